"""diff: what became of the samples between two datasets, and what of them has to be uploaded.

Manifests are compared first: shards that both have are passed over whole, so that a change in a large dataset costs the
indexes of the shards that it touched, and no shard is read but for what is to be shown. Where the samples of a side lie
nowhere (an adapter's data of last year), digests, counts and settings are compared, and that is said.

Of two splits it tells what they share: `kept` and `changed` are keys in both, `renamed` contents in both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from datakit.data.changes import Roll, SampleChanges, sample_changes, shard_changes
from datakit.data.digest import crc32c
from datakit.data.manifest import Manifest
from datakit.data.shard import Part, Row
from datakit.errors import IntegrityError, Refused
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.view import View
from datakit.version.excerpt import excerpt
from datakit.version.places import Named, Resolver

What: TypeAlias = Literal["changed", "added", "removed", "moved"]

SHOWN_BYTES = 64 * 2**10
"""Bytes of a part that are read to show it."""

_NOT_SETTINGS = ("source",)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    Attributes:
        place: As it was named.
        trained: The adapter or checkpoint whose data it is, or None.
        name: The dataset's name.
        samples: How many it has.
        tokens: How many it has, or None where it is not tokenized.
        content_digest: The same samples, in any layout.
        layout_digest: The same bytes in the same shards, in the same order; not the keys that only an index gives.
        missing: Why its samples cannot be looked at; None where they can.
    """

    place: str
    trained: str | None
    name: str
    samples: int
    tokens: int | None
    content_digest: str
    layout_digest: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """What became of the samples.

    Attributes:
        added: Keys that only the new dataset has.
        removed: Keys that only the old one has.
        changed: Keys of both with other contents.
        moved: Samples that are as before, in a shard that goes back to another one.
        kept: Samples that are as before, those that moved included.
        renamed: Different contents of removed keys that stand under added ones.
    """

    added: int
    removed: int
    changed: int
    moved: int
    kept: int
    renamed: int


@dataclass(frozen=True, slots=True)
class Shards:
    """What became of the shards.

    Attributes:
        reused: Shards of the new dataset that the old one has.
        new: Those that it has not.
        dropped: Shards of the old dataset that the new one has not.
        bytes: Of all files of the new dataset.
        bytes_to_upload: Of those that the old one has not; a place that holds the old one needs these.
    """

    reused: int
    new: int
    dropped: int
    bytes: int
    bytes_to_upload: int


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample, before and after.

    Attributes:
        what: What became of it.
        key: Its key.
        before: Shard in the old dataset, or None.
        after: Shard in the new one, or None.
        old: Text of each part that is told, as it was.
        new: As it is.
    """

    what: What
    key: str
    before: str | None
    after: str | None
    old: Mapping[str, str]
    new: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """How two datasets differ.

    Attributes:
        same_samples: Whether the content digests are equal.
        same_layout: Whether the layout digests are.
        samples: What became of the samples, or None where those of a side lie nowhere.
        shards: What became of the shards, likewise.
        settings: What they were packed or tokenized with otherwise: name to both values.
        shown: Samples, before and after.
        indexes_read: Indexes that were looked at.
        requests: Requests made to object storage.
    """

    old: Side
    new: Side
    same_samples: bool
    same_layout: bool
    samples: Samples | None
    shards: Shards | None
    settings: Mapping[str, tuple[Any, Any]]
    shown: tuple[Shown, ...] = ()
    indexes_read: int = 0
    requests: RequestCounts = field(default_factory=RequestCounts)


def diff(
    old: str,
    new: str,
    *,
    show: int = 0,
    remote: str | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
) -> Difference:
    """Compare two datasets.

    Args:
        old: A directory or URL of a dataset, adapter, checkpoint or run; a version that DVC records
            (`dvc.lock:STAGE[:OUT]`, `FILE.dvc`); a Git revision (`REV:PATH`).
        new: The same.
        show: How many samples to show of each kind of change.
        remote: DVC remote, by name or URL; the project's default when None.
        stores: Named stores of the settings.

    Raises:
        NotFound: One of them is not there.
        InputError: One is neither data nor made from data.
        Refused: One is tokenized and the other is not, so that every sample would count as changed.
        IntegrityError: An index or a part is not what the manifest says.

    Example:
        >>> diff("HEAD:data/packed/train", "data/packed/train").samples  # doctest: +SKIP
    """
    resolver = Resolver(remote=remote, stores=stores)
    before, after = resolver.find(old, beside=new), resolver.find(new, beside=old)
    _refuse_mixed(before, after)
    before, after = resolver.samples(before, after), resolver.samples(after, before)
    told: dict[str, Any] = {}
    if before.view is not None and after.view is not None:
        told = _by_sample(before.view, after.view, show=show)
    return Difference(
        old=_side(before),
        new=_side(after),
        same_samples=before.data["content_digest"] == after.data["content_digest"],
        same_layout=before.data["layout_digest"] == after.data["layout_digest"],
        samples=told.get("samples"),
        shards=told.get("shards"),
        settings=_settings(before.data["pack"], after.data["pack"]),
        shown=told.get("shown", ()),
        indexes_read=told.get("indexes_read", 0),
        requests=sum((view.requests for view in (before.view, after.view) if view is not None), RequestCounts()),
    )


def _refuse_mixed(before: Named, after: Named) -> None:
    """Refuse to set token ids against the records that they were made from: the keys are the same, no content is."""
    tokenized, records = (before, after) if before.data.get("tokens") is not None else (after, before)
    if (tokenized.data.get("tokens") is None) == (records.data.get("tokens") is None):
        return
    data = tokenized.text if tokenized.trained is None else f"the data of {tokenized.text}"
    raise Refused(
        f"{data} is tokenized and {records.text} is not, so every sample would count as changed",
        hint=f"Name what datakit tokenize made of {records.text} instead of it",
        subject=records.text,
    )


def _side(named: Named) -> Side:
    data = named.data
    return Side(
        place=named.text,
        trained=named.trained,
        name=str(data["name"]),
        samples=int(data["samples"]),
        tokens=data.get("tokens"),
        content_digest=str(data["content_digest"]),
        layout_digest=str(data["layout_digest"]),
        missing=None if named.view is not None else "; ".join(named.missed) or "they lie nowhere that is known",
    )


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = sorted({*old, *new} - set(_NOT_SETTINGS))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _by_sample(old: View, new: View, *, show: int) -> dict[str, Any]:
    shards = shard_changes(old.manifest, new.manifest)
    changes = sample_changes(_roll(old, shards.dropped), _roll(new, shards.new))
    reused = sum(new.contents.shards[number].samples for number in shards.reused)
    return {
        "samples": Samples(
            added=len(changes.added),
            removed=len(changes.removed),
            changed=len(changes.changed),
            moved=len(changes.moved),
            kept=reused + changes.kept,
            renamed=changes.renamed,
        ),
        "shards": Shards(
            reused=len(shards.reused),
            new=len(shards.new),
            dropped=len(shards.dropped),
            bytes=_total_bytes(new.manifest),
            bytes_to_upload=_bytes_to_upload(old.manifest, new.manifest),
        ),
        "shown": tuple(_shown(_Reader(old), _Reader(new), changes, show)) if show else (),
        "indexes_read": len(shards.dropped) + len(shards.new),
    }


def _roll(view: View, numbers: Sequence[int]) -> Roll:
    roll = Roll()
    shards = view.contents.shards
    for number, (_, index) in zip(numbers, view.indexes(shards[number] for number in numbers), strict=True):
        roll.add(number, index)
    return roll


def _total_bytes(manifest: Manifest) -> int:
    return manifest.total_bytes + len(manifest.to_bytes())


def _bytes_to_upload(old: Manifest, new: Manifest) -> int:
    known = {entry.sha256 for entry in old.members}
    own = 0 if new.digest == old.digest else len(new.to_bytes())
    return own + sum({entry.sha256: entry.bytes for entry in new.members if entry.sha256 not in known}.values())


def _shown(old: _Reader, new: _Reader, changes: SampleChanges, show: int) -> Iterable[Shown]:
    for before_shard, before_row, after_shard, after_row in changes.changed[:show].tolist():
        before, after = old.row(before_shard, before_row), new.row(after_shard, after_row)
        parts = [
            part
            for part in sorted({*before.parts, *after.parts})
            if _mark(before.parts.get(part)) != _mark(after.parts.get(part))
        ]
        was, now = old.data(before_shard, before, parts), new.data(after_shard, after, parts)
        yield Shown(
            "changed",
            after.key,
            old.name(before_shard),
            new.name(after_shard),
            _told(before, was, now),
            _told(after, now, was),
        )
    for shard, place in changes.added[:show].tolist():
        row = new.row(shard, place)
        yield Shown("added", row.key, None, new.name(shard), {}, _told(row, new.data(shard, row, row.parts)))
    for shard, place in changes.removed[:show].tolist():
        row = old.row(shard, place)
        yield Shown("removed", row.key, old.name(shard), None, _told(row, old.data(shard, row, row.parts)), {})
    for before_shard, _, after_shard, after_row in changes.moved[:show].tolist():
        key = new.row(after_shard, after_row).key
        yield Shown("moved", key, old.name(before_shard), new.name(after_shard), {}, {})


def _told(row: Row, read: Mapping[str, bytes], other: Mapping[str, bytes] | None = None) -> dict[str, str]:
    """The texts of parts that were read; long ones from where they differ from the sample's other version."""
    return {name: excerpt(data, row.parts[name], other=(other or {}).get(name)) for name, data in sorted(read.items())}


def _mark(part: Part | None) -> tuple[int, int] | None:
    return None if part is None else (part.size, part.crc32c)


class _Reader:
    """Single samples of a view; an index is asked for once, however many samples of it are shown."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._rows: dict[int, Any] = {}

    def name(self, number: int) -> str:
        return self._view.contents.shards[number].name

    def row(self, number: int, place: int) -> Row:
        if number not in self._rows:
            self._rows = {number: self._view.index(self._view.contents.shards[number])}
        row: Row = self._rows[number].row(place)
        return row

    def data(self, number: int, row: Row, parts: Iterable[str]) -> dict[str, bytes]:
        shard = self._view.contents.shards[number]
        read = {}
        for name in parts:
            part = row.parts.get(name)
            if part is not None:
                data = self._view.read(shard, part.offset, min(part.size, SHOWN_BYTES)) if part.size else b""
                if len(data) == part.size and crc32c(data) != part.crc32c:
                    where = f"{self._view.where}/{shard.name}"
                    raise IntegrityError(
                        f"{where}: part {name} of sample {row.key} has crc32c {crc32c(data):08x}, "
                        f"the index says {part.crc32c:08x}",
                        hint=f"See all damage: datakit verify {shlex.quote(str(self._view.where))}",
                        subject=where,
                    )
                read[name] = data
        return read
