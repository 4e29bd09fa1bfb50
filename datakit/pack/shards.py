"""shards: one shard to be built, as a pure task: the records' places in, the shard's bytes and their digests out.

It is all that a worker of pack imports, and imports little itself: each worker is a process of its own, which pays for
every import again. Without what plans and fetches one starts in 0.14 s of CPU instead of 0.25 (measured 2026-12-01).

What it does not do: decide what is built, or keep it (`tasks`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from datakit.data.index import index_name
from datakit.pack.writing import BuiltShard, write_shard
from datakit.source.records import Batch
from datakit.storage import disk


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What a worker needs: a name to write to, the records, and how many cores it has to itself."""

    path: Path
    dataset: str
    batch: Batch
    bundle: int | None
    cores: int = 1


def build_shard(task: ShardTask) -> BuiltShard:
    """Build one planned shard; its bytes follow from the records' bytes alone, and it may be built twice at once."""
    attempt = disk.temporary(task.path)
    with disk.at_door(task.path):
        built = write_shard(attempt, task.batch.samples(), dataset=task.dataset, bundle=task.bundle, cores=task.cores)
        os.replace(index_name(str(attempt)), index_name(str(task.path)))
        os.replace(attempt, task.path)
    return built
