"""planning: which records go into which shard of which split, before a byte is read or written.

A plan is a value: a dry run prints it, workers execute it, and it knows to the byte how large every shard will be. It
depends on the records' keys, sizes and order and on the settings, and on nothing else.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datakit.data.keys import split_of
from datakit.data.shard import END
from datakit.errors import InputError
from datakit.pack.cut import PackSettings, check_name, cut
from datakit.pack.listing import list_records
from datakit.pack.records import Batch, Records
from datakit.pack.scan import Fetched, Sources


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard to be.

    Attributes:
        batch: Its records, in order.
        keys: Their keys.
        digests: Their sample digests, or None where the records were not read yet.
        payload_bytes: Bytes of their parts.
        shard_bytes: Bytes that the shard will have.
    """

    batch: Batch
    keys: tuple[str, ...]
    digests: tuple[bytes, ...] | None
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
        return sum(len(shard.keys) for shard in self.shards)


def plan(sources: Sources, local: Fetched, *, dest: Path, settings: PackSettings) -> tuple[PlannedSplit, ...]:
    """Which records go into which shard of which split.

    Args:
        sources: The source's files.
        local: The same as plain local files.
        dest: Directory of the dataset, or with splits of all of them.
        settings: How to pack.

    Raises:
        InputError: A record cannot be packed, keys are duplicate, or a split gets no record.
    """
    with _without_collector():
        records = list_records(sources, local, key_field=settings.key_field)
    if not len(records.keys):
        raise InputError(f"{sources.url} is empty: it holds no records", subject=sources.url)
    name = settings.name if settings.name is not None else dest.name
    check_name(name)
    if not settings.splits:
        everything = np.arange(len(records.keys))
        return (PlannedSplit(None, dest, name, _plan_shards(records, everything, settings)),)
    dealt: dict[str, list[int]] = {split: [] for split in settings.splits}
    for position, key in enumerate(records.keys):
        dealt[split_of(key, settings.splits)].append(position)
    if bare := [split for split, its in dealt.items() if not its]:
        raise InputError(
            f"split {bare[0]} gets none of {len(records.keys)} records",
            hint=f"Give it a larger weight than {settings.splits[bare[0]]}, or leave it out",
            subject=bare[0],
        )
    return tuple(
        PlannedSplit(split, dest / split, f"{name}-{split}", _plan_shards(records, np.array(its, np.int64), settings))
        for split, its in dealt.items()
    )


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Spare the garbage collector the columns: nothing in them is cyclic, and looking costs a third of listing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _plan_shards(records: Records, chosen: npt.NDArray[np.int64], settings: PackSettings) -> tuple[PlannedShard, ...]:
    hashes = records.keys.hashes()[chosen]
    payload, sizes = records.part_bytes[chosen], records.shard_bytes[chosen]
    planned = []
    for shard in cut(hashes, sizes=sizes, target_bytes=settings.shard_bytes, layout=settings.layout):
        positions = chosen[shard]
        digests = records.signatures(positions) if records.exact else None
        planned.append(
            PlannedShard(
                batch=records.take(positions),
                keys=tuple(records.keys.take(positions)),
                digests=None if digests is None else tuple(digests),
                payload_bytes=int(payload[shard].sum()),
                shard_bytes=int(sizes[shard].sum()) + len(END),
            )
        )
    return tuple(planned)
