"""planning: which records go into which shard of which split, before a byte is read or written.

A plan is a value: a dry run prints it, workers execute it, machines that share the work compare it, and it knows to the
byte how large every shard will be. It depends on the records' keys, sizes, signatures and order and on the settings,
and on nothing else. A planned shard is positions in the table of records, four bytes a sample; what a worker needs is
taken from the table when its turn comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datakit.data.keys import split_of
from datakit.data.shard import BLOCK_BYTES, END, bundle_bytes
from datakit.errors import InputError
from datakit.pack.cut import PackSettings, check_name, cut, stick
from datakit.pack.parent import Homes, Parent, find_homes
from datakit.pack.receipts import task_of
from datakit.source.records import Records
from datakit.storage.view import View
from datakit.units import format_number_of

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
        return self.at.astype(np.int64)


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


def plan(
    records: Records,
    *,
    chosen: npt.NDArray[np.int64] | None,
    dest: Path,
    settings: PackSettings,
    parent: Callable[[str | None, str], View] | None = None,
) -> Plan:
    """Which records go into which shard of which split.

    Args:
        records: The table.
        chosen: Positions of the records to pack, rising; None for all.
        dest: Directory of the dataset, or with splits of all of them.
        settings: How to pack, the shard's size a number.
        parent: Opens the parent of a split, by the split and the dataset's name.

    Raises:
        InputError: A split gets no record.
        NotFound, UsageError: A parent is not there, or is of another dataset.
    """
    name = settings.name if settings.name is not None else dest.name
    check_name(name)
    splits: list[tuple[str | None, Path, str, npt.NDArray[np.int64] | None]] = [(None, dest, name, chosen)]
    if settings.splits:
        its = split_positions(records, np.arange(len(records.keys)) if chosen is None else chosen, settings)
        splits = [(split, dest / split, f"{name}-{split}", positions) for split, positions in its.items()]
    planned = []
    for split, path, dataset, positions in splits:
        kept_by, homes = (None, None) if parent is None else find_homes(parent(split, dataset), records, positions)
        shards = tuple(_plan_shards(records, positions, dataset, settings, homes))
        planned.append(PlannedSplit(split, path, dataset, shards, kept_by))
    return Plan(tuple(planned), _digest(planned, settings))


def split_positions(
    records: Records, chosen: npt.NDArray[np.int64], settings: PackSettings
) -> dict[str, npt.NDArray[np.int64]]:
    """Deal records to splits by their keys.

    Raises:
        InputError: A split gets none.
    """
    numbers = {split: number for number, split in enumerate(settings.splits)}
    dealt = np.empty(len(chosen), np.int32)
    for start in range(0, len(chosen), _CHUNK):
        keys = records.keys.take(chosen[start : start + _CHUNK])
        dealt[start : start + len(keys)] = [numbers[split_of(key, settings.splits)] for key in keys]
    its = {split: chosen[dealt == number] for split, number in numbers.items()}
    if bare := [split for split, positions in its.items() if not len(positions)]:
        raise InputError(
            f"split {bare[0]} gets none of {format_number_of(len(chosen), 'record')}",
            hint=f"Give it a larger weight than {settings.splits[bare[0]]}, or leave it out",
            subject=bare[0],
        )
    return its


def _plan_shards(
    records: Records,
    chosen: npt.NDArray[np.int64] | None,
    dataset: str,
    settings: PackSettings,
    homes: Homes | None,
) -> list[PlannedShard]:
    narrow: type[np.signedinteger[Any]] = np.int32 if len(records.keys) <= np.iinfo(np.int32).max else np.int64
    shards: list[npt.NDArray[np.signedinteger[Any]]] = [
        shard.astype(narrow) for shard in _deal(records, chosen, settings, homes)
    ]
    sizes = sample_bytes(records, settings.bundle)
    totals = [int(sizes[at].sum()) + len(END) for at in shards]
    del sizes
    payload = records.part_bytes
    planned = []
    for at, total in zip(shards, totals, strict=True):
        lines, positions = payload[at], at.astype(np.int64)
        versions = records.versions(positions)
        planned.append(
            PlannedShard(
                at=at,
                task=task_of(
                    dataset=dataset,
                    bundle=settings.bundle,
                    pieces=_pieces(records, positions),
                ),
                versions=hashlib.sha256(versions).hexdigest() if versions else "",
                payload_bytes=int(lines.sum()),
                shard_bytes=total if settings.bundle is None else bundle_bytes(lines, settings.bundle),
            )
        )
    return planned


def _deal(
    records: Records, chosen: npt.NDArray[np.int64] | None, settings: PackSettings, homes: Homes | None
) -> list[npt.NDArray[np.int64]]:
    """The positions of each shard; columns are copied where they must be, and let go of here."""
    hashes, sizes = records.keys.hashes(), sample_bytes(records, settings.bundle)
    if chosen is not None:
        hashes, sizes = hashes[chosen], sizes[chosen]
    target_bytes = settings.shard_bytes
    if homes is None:
        shards = cut(hashes, sizes=sizes, target_bytes=target_bytes, layout=settings.layout)
    else:
        shards = stick(
            homes.homes,
            ranks=homes.ranks,
            lost=homes.lost,
            hashes=hashes,
            sizes=sizes,
            target_bytes=target_bytes,
            layout=settings.layout,
        )
    return shards if chosen is None else [chosen[shard] for shard in shards]


def _pieces(records: Records, positions: npt.NDArray[np.int64]) -> Iterator[tuple[list[str], list[bytes]]]:
    for start in range(0, len(positions), _CHUNK):
        some = positions[start : start + _CHUNK]
        yield records.keys.take(some), records.signatures(some)


def sample_bytes(records: Records, bundle: int | None) -> npt.NDArray[np.integer[Any]]:
    """Bytes that each record takes in a shard; about, where lines share a member, since a cut needs each by itself.

    Four bytes a record, eight where one takes 4 GiB or more.
    """
    if bundle is None:
        sizes = records.shard_bytes
    else:
        sizes = records.part_bytes
        sizes += 1 + -(-BLOCK_BYTES // bundle)
    return sizes.astype(np.uint32) if sizes.max(initial=0) < 2**32 else sizes


def _digest(splits: Sequence[PlannedSplit], settings: PackSettings) -> str:
    digest = hashlib.sha256(repr(sorted(settings.to_json().items())).encode())
    for split in splits:
        parent = split.parent.digest if split.parent is not None else None
        digest.update(f"\n{split.split} {split.dataset} {parent}\n".encode())
        digest.update("".join(shard.task for shard in split.shards).encode())
    return digest.hexdigest()
