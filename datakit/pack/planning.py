"""planning: which records go into which shard of which split, before a byte is read or written.

A plan is a value: a dry run prints it, workers execute it, machines that share the work compare it, and it knows to the
byte how large every shard will be. It depends on the records' keys, sizes, signatures and order and on the settings,
and on nothing else. A planned shard is positions in the table of records, eight bytes a sample; what a worker needs is
taken from the table when its turn comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datakit.data.keys import split_of
from datakit.data.shard import END, bundle_bytes
from datakit.errors import InputError
from datakit.pack.cut import PackSettings, check_name, cut
from datakit.pack.receipts import task_of
from datakit.pack.records import Records

_CHUNK = 2**16
"""Keys looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedShard:
    """A shard to be.

    Attributes:
        positions: Its records in the table, in order.
        task: What decides its bytes, as a digest (see `receipts`).
        payload_bytes: Bytes of their parts.
        shard_bytes: Bytes that the shard will have.
    """

    positions: npt.NDArray[np.int64]
    task: str
    payload_bytes: int
    shard_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A dataset to be: the split's name (None without splits), its place, its name, its shards in order."""

    split: str | None
    path: Path
    dataset: str
    shards: tuple[PlannedShard, ...]

    @property
    def samples(self) -> int:
        """Its samples."""
        return sum(len(shard.positions) for shard in self.shards)


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


def plan(records: Records, *, chosen: npt.NDArray[np.int64], dest: Path, settings: PackSettings) -> Plan:
    """Which records go into which shard of which split.

    Args:
        records: The table.
        chosen: Positions of the records to pack, rising.
        dest: Directory of the dataset, or with splits of all of them.
        settings: How to pack, the shard's size a number.

    Raises:
        InputError: A split gets no record.
    """
    name = settings.name if settings.name is not None else dest.name
    check_name(name)
    splits: list[tuple[str | None, Path, str, npt.NDArray[np.int64]]] = [(None, dest, name, chosen)]
    if settings.splits:
        its = split_positions(records, chosen, settings)
        splits = [(split, dest / split, f"{name}-{split}", positions) for split, positions in its.items()]
    planned = tuple(
        PlannedSplit(split, path, dataset, tuple(_plan_shards(records, positions, dataset, settings)))
        for split, path, dataset, positions in splits
    )
    return Plan(planned, _digest(planned, settings))


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
            f"split {bare[0]} gets none of {len(chosen)} records",
            hint=f"Give it a larger weight than {settings.splits[bare[0]]}, or leave it out",
            subject=bare[0],
        )
    return its


def _plan_shards(
    records: Records, chosen: npt.NDArray[np.int64], dataset: str, settings: PackSettings
) -> Iterator[PlannedShard]:
    payload = records.part_bytes
    sizes = records.shard_bytes if settings.bundle is None else bundled_bytes(payload, settings.bundle)
    shards = cut(
        records.keys.hashes()[chosen],
        sizes=sizes[chosen],
        target_bytes=settings.shard_bytes,
        layout=settings.layout,
    )
    for shard in shards:
        positions = chosen[shard]
        lines = payload[positions]
        exact = int(sizes[positions].sum()) + len(END)
        yield PlannedShard(
            positions=positions,
            task=task_of(
                dataset=dataset,
                bundle=settings.bundle,
                keys=records.keys.take(positions),
                signatures=records.signatures(positions),
            ),
            payload_bytes=int(lines.sum()),
            shard_bytes=exact if settings.bundle is None else bundle_bytes(lines, settings.bundle),
        )


def bundled_bytes(lines: npt.NDArray[np.int64], bundle: int) -> npt.NDArray[np.int64]:
    """About what each line takes in a shard where so many share a member; a cut needs it of each by itself."""
    return lines + 1 + -(-512 // bundle)


def _digest(splits: tuple[PlannedSplit, ...], settings: PackSettings) -> str:
    digest = hashlib.sha256(repr(sorted(settings.to_json().items())).encode())
    for split in splits:
        digest.update(f"\n{split.split} {split.dataset}\n".encode())
        digest.update("".join(shard.task for shard in split.shards).encode())
    return digest.hexdigest()
