"""writing: one shard and its index onto the disk, and the description of a dataset made of many.

One pass over the bytes gives everything that is recorded of them: part checksums and sample digests, and sha256, md5
and crc32c of the whole. A shard streams through a quarter of a MiB of memory, so its size costs none. It is written
under a temporary name, because its final name follows from its bytes. What it does not do: commit (that is
`storage/commit`, which takes the files over).
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datakit.data.digest import Digester, FileEntry, entry_of
from datakit.data.index import Index, index_name
from datakit.data.manifest import Contents, Manifest, ShardEntry, content_digest, content_term, layout_digest
from datakit.data.shard import Row, Sample, ShardBuilder
from datakit.errors import NotFound
from datakit.storage.commit import Staging, read_manifest
from datakit.storage.disk import at_door, map_file

WRITE_BYTES = 256 * 2**10
"""Bytes joined, digested and written at once, while they are in the cache: 0.9 GB took 0.25 s of CPU in writes of this
size and 1.2 s to 2 s in one write a shard (Linux 6.18, ext4, 2026-11-30)."""

NAME_DIGITS = 8
"""Hex digits of a shard's sha256 in its name; two shards of one dataset that share them are refused by name."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What the samples of a shard, or of several, come to.

    Attributes:
        samples: Their number.
        payload_bytes: Bytes of their parts.
        parts: How many have each part.
        terms: Sum of their `content_term`.
        tokens: Sum of their tokens, or None where none is tokenized.
    """

    samples: int
    payload_bytes: int
    parts: Mapping[str, int]
    terms: int
    tokens: int | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Totals:
        """Totals of the rows of an index."""
        tokens = [row.tokens for row in rows if row.tokens is not None]
        return cls(
            samples=len(rows),
            payload_bytes=sum(place.size for row in rows for place in row.parts.values()),
            parts=Counter(part for row in rows for part in row.parts),
            terms=sum(content_term(row.key, row.digest) for row in rows),
            tokens=sum(tokens) if tokens else None,
        )

    @classmethod
    def sum(cls, several: Sequence[Totals]) -> Totals:
        """Totals of many shards."""
        parts: Counter[str] = Counter()
        for one in several:
            parts.update(one.parts)
        tokens = [one.tokens for one in several if one.tokens is not None]
        return cls(
            samples=sum(one.samples for one in several),
            payload_bytes=sum(one.payload_bytes for one in several),
            parts=parts,
            terms=sum(one.terms for one in several),
            tokens=sum(tokens) if tokens else None,
        )


@dataclass(frozen=True, slots=True)
class BuiltShard:
    """A shard and its index, their entries named as they will be in the dataset."""

    shard: FileEntry
    index: FileEntry
    totals: Totals


@dataclass(frozen=True, slots=True)
class Standing:
    """A shard that is there already, and the rows of its index."""

    built: BuiltShard
    rows: Sequence[Row]


def make_shard(
    samples: Iterable[Sample], *, dataset: str, write: Callable[[bytes], object]
) -> tuple[BuiltShard, bytes]:
    """Put a shard together, and give its entries and totals, and the bytes of its index.

    Args:
        samples: The samples, in order.
        dataset: The dataset's name, for the shard's name.
        write: Takes the shard's bytes, about 256 KiB at a time.

    Raises:
        InputError: A sample cannot be in a shard.
    """
    digester = Digester()
    pieces: list[bytes] = []
    held = 0

    def hold(piece: bytes) -> None:
        nonlocal held
        pieces.append(piece)
        held += len(piece)
        if held >= WRITE_BYTES:
            release()

    def release() -> None:
        nonlocal held
        chunk = b"".join(pieces)
        pieces.clear()
        held = 0
        digester.update(chunk)
        write(chunk)

    builder = ShardBuilder(hold)
    for sample in samples:
        builder.add(sample)
    rows = builder.finish()
    release()
    shard = digester.finish("")
    name = f"{dataset}-{shard.sha256[:NAME_DIGITS]}.tar"
    index = Index.from_rows(rows).to_bytes()
    return BuiltShard(replace(shard, name=name), entry_of(index_name(name), index), Totals.of(rows)), index


def write_shard(path: Path, samples: Iterable[Sample], *, dataset: str) -> BuiltShard:
    """Write a shard to `path`, a name that is free, and its index beside it; `sync_shard` puts them onto the disk.

    Raises:
        InputError: A sample cannot be in a shard.
        NoSpace: The disk is full.
    """
    with at_door(path):
        with open(path, "xb", buffering=0) as file:
            built, index = make_shard(samples, dataset=dataset, write=lambda data: _write_all(file, data))
        with open(index_name(str(path)), "xb", buffering=0) as file:
            _write_all(file, index)
    return built


def sync_shard(path: Path) -> None:
    """Wait until what `write_shard` wrote to `path` is on the disk; leave it to a thread while others build."""
    for written in (path, Path(index_name(str(path)))):
        with at_door(written):
            descriptor = os.open(written, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def adopt_shard(staging: Staging, path: Path, built: BuiltShard) -> None:
    """Make what `write_shard` wrote to `path`, in the staging's directory, and `sync_shard` synced, two members."""
    for written, entry in ((str(path), built.shard), (index_name(str(path)), built.index)):
        os.rename(written, staging.path / entry.name)
        staging.adopt(entry)


def keep_shard(staging: Staging, built: BuiltShard) -> None:
    """Take a standing shard and its index over from the commit that is renewed, without touching their bytes."""
    staging.keep(built.shard.name)
    staging.keep(built.index.name)


def standing_shards(previous: Manifest | None, final: Path) -> dict[str, Standing]:
    """Shards of the dataset at `final` whose files, and their indexes, have the sizes its manifest says; by name."""
    standing: dict[str, Standing] = {}
    for shard in previous.contents.shards if previous is not None else ():
        assert previous is not None
        entries = [previous.member(name) for name in (shard.name, shard.index_name)]
        paths = [final / entry.name for entry in entries]
        if all(path.is_file() and path.stat().st_size == e.bytes for path, e in zip(paths, entries, strict=True)):
            rows = Index.from_buffer(map_file(paths[1])).rows()
            standing[shard.name] = Standing(BuiltShard(entries[0], entries[1], Totals.of(rows)), rows)
    return standing


def standing_manifest(final: Path) -> Manifest | None:
    """The manifest of the dataset at `final`, or None where nothing is committed."""
    try:
        return read_manifest(final)
    except NotFound:
        return None


def describe(shards: Sequence[BuiltShard], *, pack: Mapping[str, Any]) -> Contents:
    """The description of a dataset of these shards, in this order, packed with these settings."""
    totals = Totals.sum([built.totals for built in shards])
    return Contents(
        content_digest=content_digest([totals.terms]),
        layout_digest=layout_digest((b.shard.name, b.shard.sha256, b.totals.samples) for b in shards),
        samples=totals.samples,
        payload_bytes=totals.payload_bytes,
        parts=dict(sorted(totals.parts.items())),
        shards=tuple(ShardEntry(b.shard.name, b.totals.samples, b.index.name) for b in shards),
        pack=pack,
        tokens=totals.tokens,
    )


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
