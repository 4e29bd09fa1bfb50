"""result: what a pack did, or would do, as values that print and compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackedDataset:
    """One dataset as it was committed, or as a dry run plans it (digests are None then).

    Attributes:
        split: The split, or None without splits.
        path: The dataset's directory.
        name: The dataset's name.
        samples: Its samples.
        shards: Its shards.
        reused: How many of them an earlier pack had made.
        shard_bytes: Bytes of its shards.
        payload_bytes: Bytes of its samples' parts.
        content_digest: Same samples.
        layout_digest: Same shards, same order.
        manifest_digest: Same commit.
    """

    split: str | None
    path: Path
    name: str
    samples: int
    shards: int
    reused: int
    shard_bytes: int
    payload_bytes: int
    content_digest: str | None = None
    layout_digest: str | None = None
    manifest_digest: str | None = None


@dataclass(frozen=True, slots=True)
class PackResult:
    """What a pack did, or would do.

    Attributes:
        source: Where the records came from.
        dest: The destination.
        source_bytes: Bytes of the source's files.
        requests: Requests made to a store for listing and reading it.
        records: Raw records.
        samples: Samples in all datasets.
        shards: Shards in all datasets.
        reused: How many of them an earlier pack had made.
        built: How many this one built, or would build.
        shard_bytes: Bytes of all shards.
        plan_digest: 64 hex digits; the same records, settings and shards. Parts of one pack have the same.
        datasets: One for each split.
        written: Whether anything was committed; a dry run commits nothing, and neither does a part.
        dry_run: Whether it was only planned.
        part: `(i, n)` where only the i-th of n shares was built.
    """

    source: str
    dest: Path
    source_bytes: int
    requests: int
    records: int
    samples: int
    shards: int
    reused: int
    built: int
    shard_bytes: int
    plan_digest: str
    datasets: tuple[PackedDataset, ...]
    written: bool
    dry_run: bool
    part: tuple[int, int] | None = None
