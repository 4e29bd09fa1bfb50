"""result: what a pack did, or would do, as values that print and compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from datakit.pack.advice import Change, ShardSize
from datakit.pack.choice import Choice
from datakit.source.reports import LeftOut


@dataclass(frozen=True, slots=True)
class PackedDataset:
    """One dataset as it was committed, or as a dry run plans it (digests are None then).

    Attributes:
        split: The split, or None without splits.
        path: The dataset's directory.
        name: The dataset's name.
        samples: Its samples.
        shards: Its shards.
        reused: How many of them the version before had, byte for byte, or a killed pack had built; of a dry run those
            that are known without building, so at least.
        shard_bytes: Bytes of its shards.
        payload_bytes: Bytes of its samples' parts.
        new_bytes: Bytes of what the version before had not, which an upload sends: shards, indexes and side files; of a
            dry run shards alone, and at most. None where there was no version before.
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
    new_bytes: int | None = None
    content_digest: str | None = None
    layout_digest: str | None = None
    manifest_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What a pack counted on the way; the fields are those of `PackResult`."""

    source_bytes: int
    requests: int
    built: int
    left_out: LeftOut


@dataclass(frozen=True, slots=True)
class PackResult:
    """What a pack did, or would do.

    Attributes:
        source: Where the records came from.
        dest: The destination.
        source_bytes: Bytes of the source's files.
        requests: Requests made to a store for listing and reading it.
        records: Raw records in the datasets: those that can be packed, but for `twins`.
        twins: Records that `--dedupe drop` left out.
        part_counts: How many of them have a part, by its name.
        samples: Samples in all datasets.
        shards: Shards in all datasets.
        reused: How many of them the version before had, as in `PackedDataset`.
        new_bytes: Bytes that the upload of this version sends where the one before was uploaded, as in
            `PackedDataset`; None where no dataset had a version before.
        built: How many this one built, or would build.
        shard_bytes: Bytes of all shards.
        size: The shard size, and why.
        changes: What the next change of the datasets is expected to re-send.
        plan_digest: 64 hex digits; the same records, settings and shards. Parts of one pack have the same.
        datasets: One for each split.
        written: Whether anything was committed; a dry run commits nothing, and neither does a part.
        dry_run: Whether it was only planned.
        left_out: Offenders that `--on-error` left out of it, and where they are listed and copied.
        part: `(i, n)` where only the i-th of n shares was built.
    """

    source: str
    dest: Path
    source_bytes: int
    requests: int
    records: int
    twins: int
    part_counts: Mapping[str, int]
    samples: int
    shards: int
    reused: int
    new_bytes: int | None
    built: int
    shard_bytes: int
    size: ShardSize
    changes: tuple[Change, ...]
    plan_digest: str
    datasets: tuple[PackedDataset, ...]
    written: bool
    dry_run: bool
    left_out: LeftOut
    part: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        datasets: tuple[PackedDataset, ...],
        counts: Counts,
        choice: Choice,
        *,
        source: str,
        dest: Path,
        dry_run: bool,
        part: tuple[int, int] | None,
    ) -> PackResult:
        """What came of a choice."""
        new = [dataset.new_bytes for dataset in datasets if dataset.new_bytes is not None]
        return cls(
            source=source,
            dest=dest,
            source_bytes=counts.source_bytes,
            requests=counts.requests,
            records=choice.plan.samples,
            twins=choice.twins,
            part_counts=choice.part_counts,
            samples=choice.plan.samples,
            shards=sum(dataset.shards for dataset in datasets),
            reused=sum(dataset.reused for dataset in datasets),
            new_bytes=sum(new) if new else None,
            built=counts.built,
            shard_bytes=sum(dataset.shard_bytes for dataset in datasets),
            size=choice.size,
            changes=choice.changes,
            plan_digest=choice.plan.digest,
            datasets=datasets,
            written=not dry_run and part is None,
            dry_run=dry_run,
            left_out=counts.left_out,
            part=part,
        )
