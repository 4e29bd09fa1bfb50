"""tasks: many shards, built side by side by a crew.

Records are taken from the table, and fetched from their store, shortly before their turn, so memory and spool hold a
few shards at once however many there are; a shard that is built is put onto the disk while the next ones are built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from datakit.events import OnEvent, Progress
from datakit.pack.engines import Crew
from datakit.pack.planning import PlannedShard
from datakit.pack.receipts import Memory, Receipt
from datakit.pack.shards import ShardTask, build_shard
from datakit.source.fetching import Fetched, release, spool_of
from datakit.source.records import Records

_SYNCERS = 2
"""Threads that wait for the disk while workers build; more only queue at the disk."""


@dataclass(frozen=True, slots=True)
class Job:
    """A shard to build, and the dataset that it is of."""

    dataset: str
    shard: PlannedShard


def build_all(
    jobs: Sequence[Job],
    *,
    records: Records,
    local: Fetched,
    crew: Crew,
    memory: Memory,
    room: Path,
    bundle: int | None,
    settled: Callable[[PlannedShard], bool],
    progress: Progress,
    on_event: OnEvent,
) -> dict[str, Receipt]:
    """Build shards; each survives a kill as soon as it is built.

    Args:
        jobs: What to build.
        records: The table.
        local: What brings a shard's records shortly before their turn, and takes them away again.
        crew: Who builds.
        memory: Where built shards wait for the commit.
        room: An empty directory for shards in the making.
        bundle: Lines that share a member, or None.
        settled: Whether a shard's records will still be known by their signatures later.
        progress: What is done already; told further with each shard.
        on_event: Told so.

    Returns:
        The receipts, by task.
    """

    def tasks() -> Iterator[ShardTask]:
        batches = local.brought(records.take(job.shard.positions) for job in jobs)
        for job, batch in zip(jobs, batches, strict=True):
            spools.append(spool_of(batch))
            yield ShardTask(room / f"{job.shard.task}.tar", job.dataset, batch, bundle, crew.cores_for(len(jobs)))

    spools: deque[Path | None] = deque()
    receipts: dict[str, Receipt] = {}
    waiting: deque[Future[Receipt]] = deque()
    done = progress.done
    with ThreadPoolExecutor(_SYNCERS) as pool:
        for job, built in zip(jobs, crew.map(build_shard, tasks()), strict=True):
            shard = job.shard
            path = room / f"{shard.task}.tar"
            release(spools.popleft())
            waiting.append(
                pool.submit(memory.settle, shard.task, built, path, settled=settled(shard), versions=shard.versions)
            )
            done += built.totals.samples
            on_event(Progress(progress.task, done, progress.total, progress.unit))
        for one in waiting:
            receipt = one.result()
            receipts[receipt.task] = receipt
    return receipts
