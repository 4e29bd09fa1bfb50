"""planning: which records go into which shard of which split, before a byte is read or written.

A plan is a value: a dry run prints it, workers execute it, machines that share the work compare it, and it knows to the
byte how large every shard will be. It depends on the records' keys, sizes, signatures and order and on the settings,
and on nothing else. A planned shard is positions in the table of records, a stretch of a column of them, four bytes a
sample; what a worker needs is taken from the table when its turn comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from datakit.data.keys import split_of
from datakit.data.shard import BLOCK_BYTES, END, bundle_bytes
from datakit.errors import InputError
from datakit.pack.cut import PackSettings, check_name, cut, stick
from datakit.pack.parent import Homes, Parent, find_homes
from datakit.pack.receipts import task_of
from datakit.source.columns import Spill, picked, stretches, subset
from datakit.source.records import Records
from datakit.units import format_number_of

if TYPE_CHECKING:
    from datakit.storage.view import View

_CHUNK = 2**16
"""Keys looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedShard:
    """A shard to be.

    Attributes:
        at: Positions of its records in the table, in order, as narrow as they fit.
        task: What decides its bytes, as a digest (see `receipts`).
        versions: Those of the files of which only an index was read, as a digest; empty where there is none. A
            copy on another machine may have another, so it is no part of the plan's digest.
        payload_bytes: Bytes of their parts.
        shard_bytes: Bytes that the shard will have.
    """

    at: npt.NDArray[np.signedinteger[Any]]
    task: str
    versions: str
    payload_bytes: int
    shard_bytes: int

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Positions of its records in the table, in order."""
        return picked(self.at, slice(None)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A dataset to be.

    Attributes:
        split: The split's name, None without splits.
        path: Its place.
        dataset: Its name.
        shards: Its shards, in order.
        parent: The dataset that it goes on from, or None.
    """

    split: str | None
    path: Path
    dataset: str
    shards: tuple[PlannedShard, ...]
    parent: Parent | None = None

    @property
    def samples(self) -> int:
        """Its samples."""
        return sum(len(shard.at) for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pack will do.

    Attributes:
        splits: The datasets to be.
        digest: 64 hex digits; the same records, settings and shards.
    """

    splits: tuple[PlannedSplit, ...]
    digest: str

    @property
    def samples(self) -> int:
        """Samples in all datasets."""
        return sum(split.samples for split in self.splits)


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Bytes of records, in columns.

    Attributes:
        payload: Of the parts of each.
        taken: That each takes in a shard; about, where lines share a member, since a cut needs each by itself.
    """

    payload: npt.NDArray[np.int64]
    taken: npt.NDArray[np.int64]

    @classmethod
    def of(cls, records: Records, bundle: int | None, *, spill: Spill) -> Self:
        """Those of a table, in bundles of so many lines or without.

        Raises:
            NoSpace: The spool's disk is full.
        """
        payload, taken = spill.column(np.int64), spill.column(np.int64)
        for some in stretches(len(records.keys)):
            payload.append(its := records.part_bytes(some))
            taken.append(records.shard_bytes(some) if bundle is None else its + 1 + -(-BLOCK_BYTES // bundle))
        return cls(payload.done(), taken.done())

    def total(self, chosen: npt.NDArray[np.int64] | None) -> int:
        """Bytes that some records take in shards, or all."""
        if chosen is None:
            return sum(int(self.taken[some].sum()) for some in stretches(len(self.taken), self.taken))
        return sum(int(picked(self.taken, chosen[some]).sum()) for some in stretches(len(chosen), chosen))


def plan(
    records: Records,
    *,
    sizes: Sizes,
    chosen: npt.NDArray[np.int64] | None,
    dest: Path,
    settings: PackSettings,
    spill: Spill,
    parent: Callable[[str | None, str], View] | None = None,
) -> Plan:
    """Which records go into which shard of which split.

    Args:
        records: The table.
        sizes: Their bytes.
        chosen: Positions of the records to pack, rising; None for all.
        dest: Directory of the dataset, or with splits of all of them.
        settings: How to pack, the shard's size a number.
        spill: Where columns go that are long.
        parent: Opens the parent of a split, by the split and the dataset's name.

    Raises:
        InputError: A split gets no record.
        NoSpace: The spool's disk is full.
        NotFound, UsageError: A parent is not there, or is of another dataset.
    """
    name = settings.name if settings.name is not None else dest.name
    check_name(name)
    splits: list[tuple[str | None, Path, str, npt.NDArray[np.int64] | None]] = [(None, dest, name, chosen)]
    if settings.splits:
        its = split_positions(records, chosen, settings, spill=spill)
        splits = [(split, dest / split, f"{name}-{split}", positions) for split, positions in its.items()]
    planned = []
    for split, path, dataset, positions in splits:
        kept_by, homes = None, None
        if parent is not None:
            kept_by, homes = find_homes(parent(split, dataset), records, positions, spill=spill)
        dealt = _deal(records, sizes, positions, settings, homes, spill)
        shards = tuple(_plan_shards(records, sizes, dealt, dataset, settings, spill))
        planned.append(PlannedSplit(split, path, dataset, shards, kept_by))
    return Plan(tuple(planned), _digest(planned, settings))


def split_positions(
    records: Records, chosen: npt.NDArray[np.int64] | None, settings: PackSettings, *, spill: Spill
) -> dict[str, npt.NDArray[np.int64]]:
    """Deal records to splits by their keys.

    Raises:
        InputError: A split gets none.
        NoSpace: The spool's disk is full.
    """
    numbers = {split: number for number, split in enumerate(settings.splits)}
    columns = {split: spill.column(np.int64) for split in settings.splits}
    count = len(records.keys) if chosen is None else len(chosen)
    for some in stretches(count, rows=_CHUNK):
        positions = np.arange(some.start, some.stop) if chosen is None else picked(chosen, some)
        dealt = np.array([numbers[split_of(key, settings.splits)] for key in records.keys.take(positions)])
        for split, number in numbers.items():
            columns[split].append(positions[dealt == number])
    its = {split: column.done() for split, column in columns.items()}
    if bare := [split for split, positions in its.items() if not len(positions)]:
        raise InputError(
            f"split {bare[0]} gets none of {format_number_of(count, 'record')}",
            hint=f"Give it a larger weight than {settings.splits[bare[0]]}, or leave it out",
            subject=bare[0],
        )
    return its


def _plan_shards(
    records: Records,
    sizes: Sizes,
    dealt: Iterable[npt.NDArray[np.int64]],
    dataset: str,
    settings: PackSettings,
    spill: Spill,
) -> list[PlannedShard]:
    at = spill.column(np.int32 if len(records.keys) <= np.iinfo(np.int32).max else np.int64)
    ends, planned = [0], []
    for positions in dealt:
        at.append(positions)
        ends.append(ends[-1] + len(positions))
        payload, versions = picked(sizes.payload, positions), records.versions(positions)
        total = int(picked(sizes.taken, positions).sum()) + len(END)
        planned.append(
            partial(
                PlannedShard,
                task=task_of(
                    dataset=dataset,
                    bundle=settings.bundle,
                    pieces=_pieces(records, positions),
                ),
                versions=hashlib.sha256(versions).hexdigest() if versions else "",
                payload_bytes=int(payload.sum()),
                shard_bytes=total if settings.bundle is None else bundle_bytes(payload, settings.bundle),
            )
        )
    column = at.done()
    return [shard(at=column[start:stop]) for shard, (start, stop) in zip(planned, pairwise(ends), strict=True)]


def _deal(
    records: Records,
    sizes: Sizes,
    chosen: npt.NDArray[np.int64] | None,
    settings: PackSettings,
    homes: Homes | None,
    spill: Spill,
) -> Iterator[npt.NDArray[np.int64]]:
    """The positions of each shard."""
    hashes, taken = records.keys.hashes(), sizes.taken
    if chosen is not None:
        hashes, taken = (subset(column, chosen, spill=spill) for column in (hashes, taken))
    target_bytes = settings.shard_bytes
    if homes is None:
        shards = cut(hashes, sizes=taken, target_bytes=target_bytes, layout=settings.layout, spill=spill)
    else:
        shards = stick(
            homes.shards,
            lost=homes.lost,
            hashes=hashes,
            sizes=taken,
            target_bytes=target_bytes,
            layout=settings.layout,
            spill=spill,
        )
    return shards if chosen is None else (picked(chosen, shard) for shard in shards)


def _pieces(records: Records, positions: npt.NDArray[np.int64]) -> Iterator[tuple[list[str], list[bytes]]]:
    for start in range(0, len(positions), _CHUNK):
        some = positions[start : start + _CHUNK]
        yield records.keys.take(some), records.signatures(some)


def _digest(splits: Sequence[PlannedSplit], settings: PackSettings) -> str:
    digest = hashlib.sha256(repr(sorted(settings.to_json().items())).encode())
    for split in splits:
        parent = split.parent.digest if split.parent is not None else None
        digest.update(f"\n{split.split} {split.dataset} {parent}\n".encode())
        digest.update("".join(shard.task for shard in split.shards).encode())
    return digest.hexdigest()
