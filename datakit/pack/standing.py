"""standing: what an earlier run left at a destination, and what of it a new run may keep.

A shard is kept only where its file and its index are those that a receipt was written for, untouched, or have the size
and crc32c that the old manifest names: a flipped bit would otherwise live on under a new manifest. What is damaged is
told and made again. Datasets of an earlier pack that a new one would leave standing beside its own are refused, because
their samples would be in two splits at once; so is a destination that holds another dataset, and tars of others always.

What it does not do: remove or mend anything (a commit replaces what it renews).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datakit.data.digest import FileEntry
from datakit.data.index import Index, index_name
from datakit.data.keys import key_hash
from datakit.data.manifest import Manifest
from datakit.errors import DatakitError, InputError, IntegrityError, Refused
from datakit.events import Caution, OnEvent
from datakit.pack.planning import PlannedShard, PlannedSplit
from datakit.pack.receipts import Memory, Receipt, task_of
from datakit.pack.writing import BuiltShard, Totals
from datakit.source.columns import STRETCH, stretches
from datakit.source.records import KeyColumn
from datakit.storage.commit import check_place, manifest_at
from datakit.storage.disk import map_file
from datakit.units import format_number_of

_LOOKED_AT = 4096
"""Keys of an index that are looked for at first, then ever more: of an older version of it nearly all are found."""


def standing_shards(previous: Manifest | None, final: Path, *, on_event: OnEvent) -> dict[str, BuiltShard]:
    """The shards of the dataset at `final` whose indexes are what its manifest says, by name; damage is told.

    Whether a shard's own bytes are, `kept` finds out.
    """
    standing: dict[str, BuiltShard] = {}
    if previous is None:
        return standing
    for shard in previous.contents.shards:
        index = previous.member(shard.index_name)
        if _is_whole(final / index.name, index, on_event):
            totals = Totals.of_index(Index.from_buffer(map_file(final / index.name)))
            standing[shard.name] = BuiltShard(previous.member(shard.name), index, totals)
    return standing


def kept(built: BuiltShard | None, final: Path, *, on_event: OnEvent) -> BuiltShard | None:
    """A shard that may be kept as it is, after a look at every byte; None where there is none, or a damaged one."""
    if built is None or not _is_whole(final / built.shard.name, built.shard, on_event):
        return None
    return built


@dataclass(frozen=True, slots=True)
class Found:
    """A shard that is there: its receipt, and its file, which its index lies beside."""

    receipt: Receipt
    path: Path

    @property
    def index(self) -> Path:
        """The file of its index."""
        return Path(index_name(str(self.path)))


def reusable(
    previous: Manifest | None, split: PlannedSplit, *, memory: Memory, exact: bool, on_event: OnEvent
) -> dict[int, Found]:
    """The planned shards, by ordinal, that need not be built.

    Args:
        previous: The manifest of the dataset that stands at the split's place, or None.
        split: What is planned.
        memory: What earlier packs of this destination remember.
        exact: Whether a task's name follows from a dataset's index as well (see `Records.exact`).
        on_event: Told of damage.
    """
    look = _Look(previous, split, memory, on_event)
    found = {}
    for ordinal, shard in enumerate(split.shards):
        if (one := look.remembered(shard)) is not None:
            found[ordinal] = one
    if exact and len(found) < len(split.shards):
        unknown = look.unknown()
        for ordinal, shard in enumerate(split.shards):
            if shard.versions:  # an index is no word for what another index said: the tar may have been edited since
                continue
            if ordinal not in found and (standing := unknown.get(shard.task)) is not None:
                one = look.checked(shard, standing, settled=True)
                if one is not None:
                    found[ordinal] = one
    return found


class _Look:
    """One look for the shards of a split."""

    def __init__(self, previous: Manifest | None, split: PlannedSplit, memory: Memory, on_event: OnEvent) -> None:
        self._previous = previous
        self._split = split
        self._memory = memory
        self._on_event = on_event
        self._known = memory.known()
        shards = [] if previous is None else previous.contents.shards
        self._names = {} if previous is None else {previous.member(one.name).sha256: one.name for one in shards}

    def remembered(self, shard: PlannedShard) -> Found | None:
        """A shard that a receipt speaks of: where it stands, as a killed pack left it, or as a link was kept."""
        receipt = self._known.get(shard.task)
        if receipt is not None and receipt.versions != shard.versions:
            receipt = None
        name = None if receipt is None else self._names.get(receipt.built.shard.sha256)
        if receipt is not None and name is not None and receipt.fits(self._split.path / name):
            return Found(receipt, self._split.path / name)
        if (built := self._memory.built(shard.task, versions=shard.versions)) is not None:
            return Found(*built)
        if receipt is None:
            return None
        if (path := self._memory.kept(receipt)) is not None:
            return Found(receipt, path)
        return None if name is None else self.checked(shard, receipt.built, settled=receipt.settled)

    def checked(self, shard: PlannedShard, built: BuiltShard, *, settled: bool) -> Found | None:
        """A shard that stands in the dataset, after a look at every byte; damage is told."""
        assert self._previous is not None
        path = self._split.path / self._names[built.shard.sha256]
        # before the look: what changes after it is noticed
        receipt = Receipt.of(shard.task, built, path, settled=settled, versions=shard.versions)
        index = Path(index_name(str(path)))
        whole = [_is_whole(path, built.shard, self._on_event), _is_whole(index, built.index, self._on_event)]
        return Found(receipt, path) if receipt is not None and all(whole) else None

    def unknown(self) -> dict[str, BuiltShard]:
        """The shards of the dataset that no receipt speaks of, by the task that their index tells."""
        if self._previous is None:
            return {}
        known = {receipt.built.shard.sha256 for receipt in self._known.values()}
        pack = self._previous.contents.pack
        bundle = pack.get("bundle")
        found = {}
        for shard in self._previous.contents.shards:
            entry, member = self._previous.member(shard.name), self._previous.member(shard.index_name)
            path = self._split.path / member.name
            if entry.sha256 in known or not _is_whole(path, member, self._on_event):
                continue
            index = Index.from_buffer(map_file(path))
            task = task_of(dataset=self._split.dataset, bundle=bundle, pieces=[(index.keys(), index.digests())])
            found[task] = BuiltShard(entry, member, Totals.of_index(index))
        return found


def stood(previous: Manifest | None, memory: Memory) -> frozenset[str]:
    """The sha256 of each shard and index of the version before; none where there was none.

    It is the dataset that stands, or the one that the last pack committed, where somebody has removed it as DVC does.

    Args:
        previous: The manifest of the dataset that stands at the split's place, or None.
        memory: What earlier packs of this destination remember.
    """
    if previous is not None:
        return frozenset(entry.sha256 for entry in previous.members)
    return frozenset(one.sha256 for its in memory.known().values() for one in (its.built.shard, its.built.index))


def refuse_leftovers(dest: Path, splits: Sequence[PlannedSplit]) -> None:
    """See that no dataset of an earlier pack into `dest` stays beside the planned ones.

    Raises:
        Refused: One would; all are named, with the command that removes them.
    """
    planned = {split.path for split in splits}
    places = {dest: None} | {path: path.name for path in _folders(dest)}
    left = [path for path, split in places.items() if path not in planned and _is_of_pack(path, split)]
    if left:
        raise Refused(
            f"an earlier pack made {', '.join(map(str, left))}, which this one would leave beside "
            f"{', '.join(map(str, sorted(planned)))}: the same samples would be in both",
            hint=f"Name another destination, or remove what is old: rm -r {shlex.join(map(str, left))}",
            subject=str(left[0]),
        )


def refuse_another(splits: Sequence[PlannedSplit], keys: KeyColumn, *, src: str, replace: bool) -> None:
    """See that what stands at the planned places is an older version of what is packed, and no other dataset.

    Another is one that pack did not make, and one of which not a single sample is among the new ones. The samples of
    all splits count together, and looking ends at the first common one: a first index in the usual case.

    Args:
        splits: What is planned.
        keys: Of all records.
        src: What the source is called.
        replace: Whether another dataset is to be replaced.

    Raises:
        Refused: Another one is there, or something else.
    """
    standing = []
    for split in splits:
        if (manifest := check_place(split.path, kind="dataset", name=split.dataset)) is not None:
            refuse_foreign(manifest, split.path)
            standing.append((split.path, manifest))
    if replace or not standing or not len(keys):
        return
    said = f"{', '.join(str(path) for path, _ in standing)} {'hold' if len(standing) > 1 else 'holds'}"
    names = f"dataset {', '.join(manifest.name for _, manifest in standing)}"
    hint = "Name another destination; or, if it is no longer needed, replace it: --replace"
    if any("tokenize" in manifest.contents.pack for _, manifest in standing):
        raise Refused(f"{said} {names}, which tokenize made", hint=hint, subject=str(standing[0][0]))
    samples = sum(manifest.contents.samples for _, manifest in standing)
    if samples and not share_a_key(standing, keys.hashes()):
        raise Refused(f"{said} {none_of(samples, names)} {src}", hint=hint, subject=str(standing[0][0]))


def none_of(samples: int, names: str) -> str:
    """So many samples of datasets, none of which is in a source: a phrase that its name ends."""
    none = "none of which is" if samples > 1 else "which is not"
    return f"{format_number_of(samples, 'sample')} of {names}, {none} in"


def refuse_foreign(manifest: Manifest | None, final: Path) -> None:
    """See that a dataset about to be renewed is not one of tars that others wrote, which a renewal would remove.

    Raises:
        Refused: It is.
    """
    if manifest is not None and manifest.kind == "dataset" and manifest.contents.pack.get("foreign"):
        raise Refused(
            f"{final} holds tars that others wrote (dataset {manifest.name}, made by reindex), which would be removed",
            hint="Name another destination",
            subject=str(final),
        )


def share_a_key(standing: Sequence[tuple[Path, Manifest]], hashes: npt.NDArray[np.uint64]) -> bool:
    """Whether a sample of these datasets has one of some keys, or cannot be looked at: damage is told elsewhere.

    Args:
        standing: Directory and manifest of each.
        hashes: `key_hash` of each key, at least one.
    """
    num_looked_at = _LOOKED_AT
    for path, manifest in standing:
        for shard in manifest.contents.shards:
            try:
                index = Index.from_buffer(map_file(path / shard.index_name))
            except DatakitError:
                return True
            start = 0
            while start < len(index):
                some = np.array([key_hash(key) for key in index.keys(start, start + num_looked_at)], np.uint64)
                if any(np.isin(some, hashes[its]).any() for its in stretches(len(hashes), hashes)):
                    return True
                start, num_looked_at = start + num_looked_at, min(2 * num_looked_at, STRETCH)
    return False


def _folders(dest: Path) -> list[Path]:
    return sorted(path for path in dest.iterdir() if path.is_dir()) if dest.is_dir() else []


def _is_of_pack(path: Path, split: str | None) -> bool:
    """Whether a dataset stands there that a pack made as this split (None: one made without splits)."""
    try:
        manifest = manifest_at(path)
    except (InputError, IntegrityError):  # a torn one, or a manifest.json of others
        return False
    if manifest is None:
        return False
    pack = manifest.about.get("pack")
    return manifest.kind == "dataset" and isinstance(pack, dict) and "split" in pack and pack["split"] == split


def _is_whole(path: Path, entry: FileEntry, on_event: OnEvent) -> bool:
    """Whether a file has the size and the crc32c of its entry; where it has not, that is told."""
    problem = "is missing"
    if path.is_file():
        if entry.difference(map_file(path)) is None:
            return True
        problem = "is not what the manifest says"
    on_event(Caution(f"{path} {problem}; what it held is made again"))
    return False
