"""build: raw records to a committed dataset.

Plan, then do: a plan says for every split which records go into which shard; the same plan is what a dry run prints
and what workers execute. The bytes do not depend on the number of workers. Nothing is visible before the commit; a
killed pack leaves hidden temporaries that the next pack of the same destination removes. Packing over an older dataset
of the same name keeps the shards whose samples have not changed, and replaces the manifest in one step.

What it does not do: write to object storage (pack locally, then `datakit sync`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from datakit.errors import NoSpace, UsageError
from datakit.events import Note, OnEvent, Progress, ignore
from datakit.pack.cut import AUTO, PackSettings
from datakit.pack.engines import Engine, cores
from datakit.pack.planning import PlannedSplit, plan
from datakit.pack.records import Batch
from datakit.pack.scan import Fetched, Sources, fetched, is_remote, scan
from datakit.pack.standing import refuse_leftovers, reusable
from datakit.pack.writing import (
    BuiltShard,
    describe,
    hand_over,
    name_shards,
    sync_shard,
    write_shard,
)
from datakit.storage import disk
from datakit.storage.commit import Staging, check_place, commit
from datakit.units import format_bytes

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

WORKER_BYTES = 32 * 2**20
"""Below this much in all, starting worker processes (0.3 s each) costs more than it saves."""


_SYNCERS = 2
"""Threads that wait for the disk while workers build; more only queue at the disk."""


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
        source_bytes: Bytes of the source's files.
        requests: Requests made to a store for listing and reading it.
        records: Raw records.
        samples: Samples in all datasets.
        shards: Shards in all datasets.
        reused: How many of them an earlier pack had made.
        shard_bytes: Bytes of all shards.
        datasets: One for each split.
        written: Whether anything was committed; a dry run commits nothing.
    """

    source: str
    source_bytes: int
    requests: int
    records: int
    samples: int
    shards: int
    reused: int
    shard_bytes: int
    datasets: tuple[PackedDataset, ...]
    written: bool


def pack(
    src: str | Path,
    dest: str | Path,
    *,
    settings: PackSettings | None = None,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    part: tuple[int, int] | None = None,
    parent: str | Path | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
    dry_run: bool = False,
) -> PackResult:
    """Pack raw records into a dataset, or into one dataset for each split.

    Args:
        src: A JSON lines file, a folder of them, a folder of files, or a URL of one of these.
        dest: The dataset's directory, or with splits the directory of the datasets; new, empty, or packed before.
        settings: How; the defaults suit most datasets.
        workers: Processes; None takes one for each core where there is work for them. The bytes do not depend on it.
        engine: Where shards are built: `local` processes or a `ray` cluster. The bytes do not depend on it either.
        part: `(i, n)`, i from 0 to n - 1: build only the i-th of n shares of the shards, and commit nothing.
        parent: A dataset, its manifest or a URL of one, whose samples stay in the shards that they are in.
        stores: Named stores of the settings.
        on_event: Told how far it is.
        dry_run: Plan and write nothing.

    Raises:
        NotFound: The source is not there.
        InputError: The source is empty, a record is not JSON, keys are duplicate, a split gets no record.
        Refused: The destination holds something else, or another process writes there.
        NoSpace: The disk is full; nothing is left behind.
        UsageError: The destination is a URL, or lies inside the source.

    Example:
        >>> datakit.pack("raw/chat.jsonl", "data/chat")  # doctest: +SKIP
    """
    settings = settings or PackSettings()
    _refuse_unready(settings, engine=engine, part=part, parent=parent)
    target = _target(src, dest)
    kind = cast("Literal['auto', 'jsonl', 'files']", settings.input)
    sources = scan(src, input=kind, fingerprints=False, stores=stores)
    with contextlib.ExitStack() as stack:
        if dry_run:
            spool = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "spool"
            local = stack.enter_context(_for_planning(sources, spool, stores))
            splits = plan(sources, local, dest=target, settings=settings)
            refuse_leftovers(target, splits)
            datasets = _rehearse(splits, on_event=on_event)
        else:
            disk.make_dirs(target.parent)
            spool = stack.enter_context(_own_spool(target))
            # workers start now, to be ready when the plan is
            num_workers = _num_workers(workers, sources.total_bytes)
            crew = stack.enter_context(Engine(num_workers, rooms=("datakit.pack.build", "pyarrow")))
            local = stack.enter_context(fetched(sources, spool, stores=stores))
            splits = plan(sources, local, dest=target, settings=settings)
            refuse_leftovers(target, splits)
            datasets = _execute(splits, settings=settings, engine=crew, on_event=on_event)
    samples = sum(dataset.samples for dataset in datasets)
    return PackResult(
        source=str(src),
        source_bytes=sources.total_bytes,
        requests=sources.requests + local.requests,
        records=samples,
        samples=samples,
        shards=sum(dataset.shards for dataset in datasets),
        reused=sum(dataset.reused for dataset in datasets),
        shard_bytes=sum(dataset.shard_bytes for dataset in datasets),
        datasets=datasets,
        written=not dry_run,
    )


def _refuse_unready(settings: PackSettings, *, engine: str, part: object, parent: object) -> None:
    asked = {
        "--engine": engine != "local",
        "--part": part is not None,
        "--parent": parent is not None,
        "--shard-size auto": settings.shard_size == AUTO,
        **{f"--{name}": settings.to_json().get(name) for name in ("key", "escape", "bundle", "dedupe")},
        "--on-error": settings.on_error != "stop",
        "--index": settings.index,
        f"--input {settings.input}": settings.input not in ("auto", "jsonl", "files"),
    }
    for flag, value in asked.items():
        if value:
            raise UsageError(f"this version does not know {flag} yet", hint="Leave it out", subject=flag)


@dataclass(frozen=True, slots=True)
class _Task:
    path: Path
    dataset: str
    batch: Batch


def build_shard(task: _Task) -> BuiltShard:
    """Build one planned shard; its bytes follow from the records' bytes alone."""
    with disk.at_door(task.path):
        return write_shard(task.path, task.batch.samples(), dataset=task.dataset)


def _rehearse(splits: Sequence[PlannedSplit], *, on_event: OnEvent) -> tuple[PackedDataset, ...]:
    """What `_execute` would do, with its refusals, and nothing of it done."""
    standing = [check_place(split.path, kind="dataset", name=split.dataset) for split in splits]
    kept = [reusable(old, split, on_event=on_event) for old, split in zip(standing, splits, strict=True)]
    _check_space(splits, kept)
    return tuple(_planned(split, old) for split, old in zip(splits, kept, strict=True))


def _execute(
    splits: Sequence[PlannedSplit], *, settings: PackSettings, engine: Engine, on_event: OnEvent
) -> tuple[PackedDataset, ...]:
    """Build what is new and keep what is not; then commit split after split, each in one step.

    An error before the last shard is built commits none. A kill between two commits leaves the splits before it new
    and those after it as they were; the same pack again makes them all new.
    """
    total = sum(split.samples for split in splits)
    with contextlib.ExitStack() as stack:
        stagings = []
        for split in splits:
            disk.make_dirs(split.path.parent)
            stagings.append(stack.enter_context(commit(split.path, kind="dataset", name=split.dataset)))
        kept = [
            reusable(staging.previous, split, on_event=on_event)
            for staging, split in zip(stagings, splits, strict=True)
        ]
        tasks = [
            _Task(_shard_path(staging, ordinal), split.dataset, shard.batch)
            for staging, split, old in zip(stagings, splits, kept, strict=True)
            for ordinal, shard in enumerate(split.shards)
            if ordinal not in old
        ]
        _check_space(splits, kept)
        on_event(Progress("pack", 0, total, "samples"))
        done = sum(built.totals.samples for old in kept for built in old.values())
        results: dict[Path, BuiltShard] = {}
        with ThreadPoolExecutor(_SYNCERS) as pool:
            synced = []
            for task, built in zip(tasks, engine.map(build_shard, tasks), strict=True):
                synced.append(pool.submit(sync_shard, task.path))
                results[task.path] = built
                done += built.totals.samples
                on_event(Progress("pack", done, total, "samples"))
            for waiting in synced:
                waiting.result()
        datasets = []
        for staging, split, old in zip(stagings, splits, kept, strict=True):
            datasets.append(_finish(staging, split, old=old, built=results, settings=settings))
            if old:
                on_event(
                    Note(f"{split.dataset}: kept {len(old)} of {len(split.shards)} shards, whose samples are the same")
                )
    return tuple(_with_digest(dataset, staging) for dataset, staging in zip(datasets, stagings, strict=True))


def _finish(
    staging: Staging,
    split: PlannedSplit,
    *,
    old: Mapping[int, BuiltShard],
    built: Mapping[Path, BuiltShard],
    settings: PackSettings,
) -> PackedDataset:
    """Hand a split's shards to its commit, in the plan's order."""
    paths = [_shard_path(staging, ordinal) for ordinal in range(len(split.shards))]
    shards = [old[ordinal] if ordinal in old else built[path] for ordinal, path in enumerate(paths)]
    written = {built[path].shard.sha256: path for ordinal, path in enumerate(paths) if ordinal not in old}
    shards = name_shards(shards, dataset=split.dataset, previous=staging.previous)
    hand_over(staging, shards, written=written, final=split.path)
    contents = describe(shards, pack=settings.to_json() | {"split": split.split})
    staging.about.update(contents.to_about())
    return replace(
        _planned(split, old),
        payload_bytes=contents.payload_bytes,
        content_digest=contents.content_digest,
        layout_digest=contents.layout_digest,
    )


def _with_digest(dataset: PackedDataset, staging: Staging) -> PackedDataset:
    assert staging.manifest is not None
    return replace(dataset, manifest_digest=staging.manifest.digest)


def _planned(split: PlannedSplit, old: Mapping[int, BuiltShard]) -> PackedDataset:
    return PackedDataset(
        split=split.split,
        path=split.path,
        name=split.dataset,
        samples=split.samples,
        shards=len(split.shards),
        reused=len(old),
        shard_bytes=sum(shard.shard_bytes for shard in split.shards),
        payload_bytes=sum(shard.payload_bytes for shard in split.shards),
    )


def _check_space(splits: Sequence[PlannedSplit], kept: Sequence[Mapping[int, BuiltShard]]) -> None:
    needed = sum(
        shard.shard_bytes
        for split, old in zip(splits, kept, strict=True)
        for ordinal, shard in enumerate(split.shards)
        if ordinal not in old
    )
    free = disk.free_bytes(splits[0].path)
    if needed > free:
        raise NoSpace(
            f"{splits[0].path} needs {format_bytes(needed)} and its disk has {format_bytes(free)} free",
            hint="Free some space or name another destination",
            subject=str(splits[0].path),
        )


def _shard_path(staging: Staging, ordinal: int) -> Path:
    return staging.path / f"shard-{ordinal:06d}"


@contextlib.contextmanager
def _own_spool(target: Path) -> Iterator[Path]:
    """A place for fetched sources beside the destination, and the only right to pack there."""
    name = f"{target.name}.spool"
    with disk.exclusive(target.with_name(f".{target.name}.pack.lock"), purpose=f"packing into {target}"):
        disk.sweep(target.parent, name=name)
        yield disk.temporary(target.with_name(name))


def _target(src: str | Path, dest: str | Path) -> Path:
    if is_remote(dest):
        raise UsageError(
            f"pack writes to a local directory, not to {dest}",
            hint=f"Pack into a directory, then: datakit sync DIRECTORY {dest}",
            subject=str(dest),
        )
    target = Path(os.path.abspath(dest))
    if not is_remote(src) and target.is_relative_to(os.path.abspath(str(src).removeprefix("file://"))):
        raise UsageError(
            f"{dest} lies inside the source {src}", hint="Name a destination outside it", subject=str(dest)
        )
    return target


def _for_planning(
    sources: Sources, spool: Path, stores: Mapping[str, StoreOptions] | None
) -> contextlib.AbstractContextManager[Fetched]:
    """The source as a plan needs it: lines are read for their keys, of files the listing is enough."""
    if sources.kind == "files" and is_remote(sources.url):
        return contextlib.nullcontext(Fetched(sources.url, (), 0))
    return fetched(sources, spool, stores=stores)


def _num_workers(workers: int | None, source_bytes: int) -> int:
    if workers is None:
        return cores() if source_bytes >= WORKER_BYTES else 1
    if workers < 1:
        raise UsageError(f"--workers must be 1 or more, not {workers}", subject=workers)
    return workers
