"""manifest: the list that makes a directory a commit. It is written last; what has none does not exist.

One format serves every commit: a dataset, a checkpoint, an adapter, a model. Its bytes are deterministic: the same
members and the same description give the same manifest, on any machine, so the sha256 of a manifest is an identity. It
reads format numbers 1 to 1 and refuses others by name.

A dataset's description (`Contents`) carries two digests. The content digest answers "the same samples?" whatever their
shards and order: the sum, modulo 2**256, of sha256(key, NUL, sample digest) over all samples, a multiset hash (Bellare
and Micciancio 1997, AdHash) that needs O(1) memory and adds up over shards packed anywhere. It tells accidents apart,
not attackers: those are kept out by each member's sha256. The layout digest answers "the same shards, in order?".
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import orjson

from datakit.data.digest import FileEntry, damaged
from datakit.errors import InputError, UsageError

Kind: TypeAlias = Literal["dataset", "checkpoint", "adapter", "model"]

MANIFEST_NAME = "manifest.json"
FORMAT = 1
FORMATS_READ = range(1, 2)
"""Format numbers that this version reads."""

_FIELDS = {"format", "kind", "name", "members", "about"}
_OURS = 3
"""So many of these fields are no accident: without a format number such JSON is a damaged manifest, not another's."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard in a dataset's order: its file, its number of samples, the file of its index."""

    name: str
    samples: int
    index_name: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What a dataset's manifest says about the samples.

    Attributes:
        content_digest: 64 hex digits; the same samples, in any layout.
        layout_digest: 64 hex digits; the same bytes in the same shards, in the same order. Keys that only an index
            gives (`reindex --keys tar`) are not in it: they are in the content digest and the manifest digest.
        samples: Samples in all shards.
        payload_bytes: Bytes of all parts, without tar headers and padding.
        parts: For each part name, how many samples have it.
        shards: In the order in which their samples are numbered.
        pack: The settings that the dataset was packed with, and the number of the algorithm.
        tokens: Tokens in all samples, or None where no sample is tokenized.
    """

    content_digest: str
    layout_digest: str
    samples: int
    payload_bytes: int
    parts: Mapping[str, int]
    shards: tuple[ShardEntry, ...]
    pack: Mapping[str, Any]
    tokens: int | None = None

    def to_about(self) -> dict[str, Any]:
        """The description as it stands under `about`."""
        about: dict[str, Any] = {
            "content_digest": self.content_digest,
            "layout_digest": self.layout_digest,
            "samples": self.samples,
            "payload_bytes": self.payload_bytes,
            "parts": dict(self.parts),
            "shards": [{"name": s.name, "samples": s.samples, "index": s.index_name} for s in self.shards],
            "pack": dict(self.pack),
        }
        if self.tokens is not None:
            about["tokens"] = self.tokens
        return about

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> Contents:
        """Read a description back.

        Raises:
            IntegrityError: A field is missing or of another type; the message names it.
        """
        shards = tuple(
            ShardEntry(_text(entry, "name"), _count(entry, "samples"), _text(entry, "index"))
            for entry in _typed(about, "shards", list)
        )
        return cls(
            content_digest=_text(about, "content_digest"),
            layout_digest=_text(about, "layout_digest"),
            samples=_count(about, "samples"),
            payload_bytes=_count(about, "payload_bytes"),
            parts={str(part): _count(about["parts"], part) for part in _typed(about, "parts", dict)},
            shards=shards,
            pack=_typed(about, "pack", dict),
            tokens=_count(about, "tokens") if "tokens" in about else None,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A commit: its kind, its name, its members sorted by name, and what it says about itself.

    Raises:
        IntegrityError: Two members have the same name.
    """

    kind: Kind
    name: str
    members: tuple[FileEntry, ...]
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda entry: entry.name)))
        for one, next_one in zip(self.members, self.members[1:], strict=False):
            if one.name == next_one.name:
                raise damaged(f"the manifest of {self.name} lists {one.name} twice", one.name)

    def check_name(self, name: str) -> None:
        """See that a checkpoint stands under the name that it was committed as, by which its step is known.

        Raises:
            InputError: It was renamed.
        """
        if self.kind == "checkpoint" and self.name != name:
            raise InputError(f"{name} is {self.name} under another name", hint=f"Call it {self.name}", subject=name)

    def to_bytes(self) -> bytes:
        """Deterministic JSON: keys sorted, two spaces of indent, a newline at the end."""
        value = {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "members": [entry.to_json() for entry in self.members],
            "about": self.about,
        }
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            InputError: The bytes are JSON of something else.
            UsageError: The manifest has a format number that this version does not read.
            IntegrityError: They are no JSON, or a field of the manifest is wrong.
        """
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise damaged(f"the manifest is not JSON: {error}") from None
        if not isinstance(value, dict) or ("format" not in value and len(_FIELDS & set(value)) < _OURS):
            raise InputError(
                "this JSON is not a datakit manifest: it has no format number",
                hint="Another program wrote it: name another directory",
            )
        if value.get("format", FORMAT) not in FORMATS_READ:
            accepted = f"{FORMATS_READ[0]} to {FORMATS_READ[-1]}"
            raise UsageError(
                f"the manifest has format {value['format']!r}; this datakit reads {accepted}",
                hint="Use a newer datakit",
                subject=value["format"],
            )
        if set(value) != _FIELDS or value["kind"] not in get_args(Kind):
            raise damaged(f"a manifest has {', '.join(sorted(_FIELDS))}; this one has {', '.join(sorted(value))}")
        members = tuple(FileEntry.from_json(entry) for entry in _typed(value, "members", list))
        return cls(value["kind"], _text(value, "name"), members, _typed(value, "about", dict))

    @property
    def digest(self) -> str:
        """The identity of the commit: sha256 of the manifest's bytes, 64 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def member(self, name: str) -> FileEntry:
        """The member of this name.

        Raises:
            IntegrityError: There is none.
        """
        at = bisect_left(self.members, name, key=lambda entry: entry.name)  # they are sorted, and may be many
        if at < len(self.members) and self.members[at].name == name:
            return self.members[at]
        raise damaged(f"the manifest of {self.name} has no member {name}", name)

    @property
    def derived(self) -> frozenset[str]:
        """Members that follow from the others, such as side files for other readers: a renewal may change their bytes.

        Their names are given by those readers, and datakit itself reads none of them.
        """
        names = self.about.get("derived", ())
        return frozenset(map(str, names)) if isinstance(names, (list, tuple)) else frozenset()

    @property
    def total_bytes(self) -> int:
        """Bytes of all members."""
        return sum(entry.bytes for entry in self.members)

    @property
    def contents(self) -> Contents:
        """The dataset that this manifest describes, checked against the members.

        Raises:
            InputError: It is the manifest of something else.
            IntegrityError: The description does not fit the members.
        """
        if self.kind != "dataset":
            raise InputError(
                f"{self.name} is a {self.kind}, not a dataset",
                hint="Name the directory of a dataset",
                subject=self.name,
            )
        contents = Contents.from_about(self.about)
        files = {entry.name: entry for entry in self.members}
        lost = [name for shard in contents.shards for name in (shard.name, shard.index_name) if name not in files]
        if lost:
            raise damaged(f"the manifest of {self.name} has no member {lost[0]}", lost[0])
        layout = layout_digest((shard.name, files[shard.name].sha256, shard.samples) for shard in contents.shards)
        if layout != contents.layout_digest:
            said = f"says layout digest {contents.layout_digest}, its members give {layout}"
            raise damaged(f"the manifest of {self.name} {said}", self.name)
        samples = sum(shard.samples for shard in contents.shards)
        if samples != contents.samples:
            said = f"says {contents.samples} samples, its shards have {samples}"
            raise damaged(f"the manifest of {self.name} {said}", self.name)
        return contents


def content_term(key: str, sample_digest: bytes) -> int:
    """What one sample adds to the content digest."""
    return int.from_bytes(hashlib.sha256(key.encode() + b"\0" + sample_digest).digest(), "big")


def content_digest(terms: Iterable[int]) -> str:
    """The content digest of samples (or of sums of samples), in any order: 64 hex digits."""
    return f"{sum(terms) % 2**256:064x}"


def layout_digest(shards: Iterable[tuple[str, str, int]]) -> str:
    """The layout digest of (name, sha256, samples) of each shard, in order: 64 hex digits; not of indexes."""
    digest = hashlib.sha256()
    for name, sha256, samples in shards:
        digest.update(f"{name} {sha256} {samples}\n".encode())
    return digest.hexdigest()


def _typed(value: Any, field: str, kind: type) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(field), kind):
        raise damaged(f"the manifest's field {field} is missing or is not a {kind.__name__}", field)
    return value[field]


def _text(value: Any, field: str) -> str:
    return str(_typed(value, field, str))


def _count(value: Any, field: str) -> int:
    number = int(_typed(value, field, int))
    if number < 0 or isinstance(value[field], bool):
        raise damaged(f"the manifest's field {field} is {value[field]!r}, not a count", field)
    return number
