"""planning: which records go into which shard of which split, before a byte is read or written.

A plan is a value: a dry run prints it, workers execute it, and it knows to the byte how large every shard will be. It
depends on the records' keys, sizes and order and on the settings, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datakit.data.keys import key_hash, split_of
from datakit.data.shard import END
from datakit.errors import InputError
from datakit.pack.cut import PackSettings, check_name, cut
from datakit.pack.records import Record, check_unique, file_records, jsonl_records
from datakit.pack.scan import Fetched, Sources


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard to be: its records in order, and the bytes that it will have."""

    records: tuple[Record, ...]
    shard_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A dataset to be: the split's name (None without splits), its place, its name, its shards in order."""

    split: str | None
    path: Path
    dataset: str
    shards: tuple[PlannedShard, ...]


def plan(sources: Sources, local: Fetched, *, dest: Path, settings: PackSettings) -> tuple[PlannedSplit, ...]:
    """Which records go into which shard of which split.

    Raises:
        InputError: A record cannot be packed, keys are duplicate, or a split gets no record.
    """
    if sources.kind == "jsonl":
        records = list(jsonl_records(local.files, key_field=settings.key_field))
    else:
        records = list(file_records(local.files))
    if not records:
        raise InputError(f"{sources.url} is empty: it holds no records", subject=sources.url)
    check_unique(records)
    name = settings.name if settings.name is not None else dest.name
    check_name(name)
    if not settings.splits:
        return (PlannedSplit(None, dest, name, _plan_shards(records, settings)),)
    dealt: dict[str, list[Record]] = {split: [] for split in settings.splits}
    for record in records:
        dealt[split_of(record.key, settings.splits)].append(record)
    if bare := [split for split, its in dealt.items() if not its]:
        raise InputError(
            f"split {bare[0]} gets none of {len(records)} records",
            hint=f"Give it a larger weight than {settings.splits[bare[0]]}, or leave it out",
            subject=bare[0],
        )
    return tuple(
        PlannedSplit(split, dest / split, f"{name}-{split}", _plan_shards(its, settings))
        for split, its in dealt.items()
    )


def _plan_shards(records: Sequence[Record], settings: PackSettings) -> tuple[PlannedShard, ...]:
    hashes = np.array([key_hash(record.key) for record in records], np.uint64)
    sizes = np.array([record.shard_bytes for record in records], np.int64)
    shards = cut(hashes, sizes=sizes, target_bytes=settings.shard_bytes, layout=settings.layout)
    return tuple(
        PlannedShard(tuple(records[position] for position in shard), int(sizes[shard].sum()) + len(END))
        for shard in shards
    )
