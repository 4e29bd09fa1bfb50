"""writing: one shard and its index onto the disk, and the description of a dataset made of many.

One pass over the bytes gives everything that is recorded of them: part checksums and sample digests, and sha256, md5
and crc32c of the whole. A shard streams through a quarter of a MiB of memory, so its size costs none. It is written
under a temporary name, because its final name follows from its bytes. What it does not do: commit (that is
`storage/commit`, which takes the files over).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datakit.data.builder import ShardBuilder
from datakit.data.digest import Buffer, Digester, FileEntry
from datakit.data.index import Index, index_name
from datakit.data.manifest import Contents, Manifest, ShardEntry, content_digest, content_term, layout_digest
from datakit.data.rows import Rows
from datakit.data.shard import NAME_DIGITS, Row, Sample, shard_name
from datakit.storage.disk import at_door, map_file

if TYPE_CHECKING:
    from concurrent.futures import Future

    from datakit.storage.commit import Staging

_PIECES_AHEAD = 8
"""Pieces of 256 KiB that wait to be digested; more would not make the slower of the two any faster."""


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
        """Totals of the rows of an index, with no list of their keys: of 600,000 16 MiB, where `of_index` takes 82."""
        columns = Rows.of(rows)
        tokens = [number for number in columns.tokens or () if number is not None]
        return cls(
            samples=len(columns),
            payload_bytes=sum(sum(columns.parts[part].sizes) for part in columns.part_names()),
            parts={part: len(columns.parts[part].rows) for part in columns.part_names()},
            terms=sum(map(content_term, columns.each_key(), columns.each_digest())),
            tokens=sum(tokens) if tokens else None,
        )

    @classmethod
    def of_index(cls, index: Index) -> Totals:
        """The same, of an index as it is mapped."""
        return cls(
            samples=len(index),
            payload_bytes=sum(int(index.sizes(part)[index.has(part)].sum()) for part in index.parts),
            parts={part: count for part in index.parts if (count := int(index.has(part).sum()))},
            terms=sum(map(content_term, index.keys(), index.digests())),
            tokens=index.num_tokens,
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


def make_shard(
    samples: Iterable[Sample],
    *,
    dataset: str,
    write: Callable[[Buffer], object],
    write_index: Callable[[Buffer], object],
    bundle: int | None = None,
    cores: int = 1,
) -> BuiltShard:
    """Put a shard and its index together.

    Args:
        samples: The samples, in order.
        dataset: The dataset's name, for the shard's name.
        write: Takes the shard's bytes, about 256 KiB at a time.
        write_index: Takes the index's bytes, a column at a time.
        bundle: Lines that share a member, or None (see `ShardBuilder`).
        cores: How many this shard has to itself; with more than one, bytes are digested while the next are read.

    Raises:
        InputError: A sample cannot be in a shard.
    """
    shard, its_index = Digester(), Digester()
    with _beside(shard.update) if cores > 1 else contextlib.nullcontext(shard.update) as digest:
        builder = ShardBuilder(_both(digest, write), bundle=bundle)
        for sample in samples:
            builder.add(sample)
        rows = builder.finish()
    totals, table = Totals.of(rows), Index.from_rows(rows)
    del rows, builder  # of 600,000 lines a quarter of all that a worker takes, before the index is written out
    table.write(_both(its_index.update, write_index))
    return _named(BuiltShard(shard.finish(""), its_index.finish(""), totals), dataset, NAME_DIGITS[0])


def write_shard(
    path: Path, samples: Iterable[Sample], *, dataset: str, bundle: int | None = None, cores: int = 1
) -> BuiltShard:
    """Write a shard to `path`, a name that is free, and its index beside it; `sync_shard` puts them onto the disk.

    Arguments as of `make_shard`.

    Raises:
        InputError: A sample cannot be in a shard.
        NoSpace: The disk is full.
    """
    with (
        at_door(path),
        open(path, "xb", buffering=0) as shard,
        open(index_name(str(path)), "xb", buffering=0) as index,
    ):
        return make_shard(
            samples,
            dataset=dataset,
            write=lambda data: _write_all(shard, data),
            write_index=lambda data: _write_all(index, data),
            bundle=bundle,
            cores=cores,
        )


def sync_shard(path: Path) -> None:
    """Wait until what `write_shard` wrote to `path` is on the disk; leave it to a thread while others build."""
    for written in (path, Path(index_name(str(path)))):
        with at_door(written):
            descriptor = os.open(written, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def name_shards(shards: Sequence[BuiltShard], *, dataset: str, previous: Manifest | None) -> list[BuiltShard]:
    """The shards of one dataset under their names, each its own.

    A name follows from the shards alone, with one exception in some 2**32: where the commit that is renewed has other
    bytes under it, it gets longer, since no file changes its bytes under its name.
    """
    old = {} if previous is None else {entry.name: entry.sha256 for entry in previous.members}
    named = [_named(built, dataset, NAME_DIGITS[0]) for built in shards]
    for longer in NAME_DIGITS[1:]:
        taken = Counter(built.shard.name for built in named)
        named = [
            _named(built, dataset, longer)
            if taken[built.shard.name] > 1 or old.get(built.shard.name, built.shard.sha256) != built.shard.sha256
            else built
            for built in named
        ]
    return named


def hand_over(staging: Staging, shards: Sequence[BuiltShard], *, written: Mapping[str, Path], final: Path) -> None:
    """Make the named shards of a dataset, and their indexes, members of its commit.

    Args:
        staging: The commit in the making.
        shards: From `name_shards`; those that are not in `written` stand in the commit that is renewed.
        written: Where `write_shard` wrote the new ones and `sync_shard` synced them, in the staging's directory, by
            the shard's sha256.
        final: Directory of the commit.
    """
    old = {} if staging.previous is None else {entry.sha256: entry.name for entry in staging.previous.members}
    for built in shards:
        path = written.get(built.shard.sha256)
        for entry, at in ((built.shard, path), (built.index, path and Path(index_name(str(path))))):
            if at is not None:
                os.rename(at, staging.path / entry.name)  # nothing can be there: names are unique, see `name_shards`
                staging.adopt(entry)
            elif old[entry.sha256] == entry.name:
                staging.keep(entry.name)
            else:
                staging.write(entry.name, map_file(final / old[entry.sha256]))


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


def _named(built: BuiltShard, dataset: str, digits: int) -> BuiltShard:
    name = shard_name(dataset, built.shard.sha256, digits=digits)
    return replace(built, shard=replace(built.shard, name=name), index=replace(built.index, name=index_name(name)))


@contextlib.contextmanager
def _beside(take: Callable[[Buffer], None]) -> Iterator[Callable[[Buffer], None]]:
    """Have a thread take the bytes, piece after piece; all are taken when the block ends."""
    from concurrent.futures import ThreadPoolExecutor

    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as pool:

        def give(data: Buffer) -> None:
            waiting.append(pool.submit(take, data))
            if len(waiting) > _PIECES_AHEAD:
                waiting.popleft().result()

        yield give
        for one in waiting:
            one.result()


def _both(one: Callable[[Buffer], object], other: Callable[[Buffer], object]) -> Callable[[Buffer], None]:
    def take(data: Buffer) -> None:
        one(data)
        other(data)

    return take


def _write_all(file: io.FileIO, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
