"""build: raw records to a committed dataset.

Plan, then do: a plan says for every split which records go into which shard; the same plan is what a dry run prints
and what workers execute. The bytes do not depend on the number of workers, on the engine, or on how many machines
shared the work. Nothing is visible before the commit; what a killed pack has built stays beside the destination (see
`receipts`), and the next pack of it goes on from there. Packing over an older dataset of the same name keeps the shards
whose samples have not changed, and replaces the manifest in one step.

What it does not do: write to object storage (pack locally, then `datakit sync`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from datakit.errors import InputError, Refused, UsageError
from datakit.events import Caution, Note, OnEvent, ignore
from datakit.machine import cores
from datakit.pack.choice import choose
from datakit.pack.cluster import Cluster
from datakit.pack.cut import PackSettings
from datakit.pack.engines import Crew, Engine, check_workers
from datakit.pack.receipts import Memory
from datakit.pack.result import Counts, PackResult
from datakit.pack.standing import refuse_another, refuse_leftovers
from datakit.pack.work import Work
from datakit.source.fetching import Fetched, fetched
from datakit.source.files import Files
from datakit.source.listing import list_records
from datakit.source.naming import Naming
from datakit.source.records import Records
from datakit.source.reports import LeftOut, add_twins, settle
from datakit.source.scan import Sources, is_remote, scan
from datakit.storage import disk
from datakit.storage.access import local_path
from datakit.units import agree, format_number_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from datakit.storage.access import StoreOptions

WORKER_BYTES = 32 * 2**20
"""Below this much in all, starting worker processes (0.3 s each) costs more than it saves."""

_TABLES = {"files": "datakit.source.folders", "jsonl": "datakit.source.lines", "tar": "datakit.source.tars"}
"""What workers import to list and read a source, by its kind; those that are not here are tables of rows."""


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
    replace: bool = False,
    dry_run: bool = False,
) -> PackResult:
    """Pack raw records into a dataset, or into one dataset for each split.

    Args:
        src: JSON lines, files, Parquet, CSV, tars or a saved dataset: a path, or a URL of any of these.
        dest: The dataset's directory, or with splits the directory of the datasets; new, empty, or packed before.
        settings: How; the defaults suit most datasets.
        workers: Processes; None takes one for each core where there is work for them. The bytes do not depend on it.
        engine: Where shards are built: `local` processes or a `ray` cluster. The bytes do not depend on it either.
        part: `(i, n)`, i from 0 to n - 1: build only the i-th of n shares of the shards, and commit nothing.
        parent: A dataset, its manifest or a URL of one, whose samples stay in the shards that they are in.
        stores: Named stores of the settings.
        on_event: Told how far it is.
        replace: Whether a dataset that shares no sample with the source is replaced; else it is refused.
        dry_run: Plan and write nothing.

    Raises:
        NotFound: The source is not there.
        InputError: The source is empty, a record is not JSON, keys are duplicate, a split gets no record.
        Refused: The destination holds something else, another dataset, or tars that others wrote, or another process
            writes there.
        NoSpace: The disk is full; nothing is left behind.
        UsageError: The destination is a URL, or of source and destination one lies inside the other.

    Example:
        >>> datakit.pack("raw/chat.jsonl", "data/chat")  # doctest: +SKIP
    """
    settings = settings or PackSettings()
    _check(engine, part)
    target = _target(src, dest, settings)
    listed_ns = time.time_ns()
    with _without_collector():
        sources = scan(src, input=settings.input, fingerprints=False, stores=stores)
    memory = Memory.beside(target)
    crew_to_be = _crew(engine, workers, sources)
    site = _site(sources, target, memory, part, crew_to_be, stores)
    with _rehearsal(sources, stores) if dry_run else site as (local, crew):
        records = _table(sources, local, settings, crew)
        left_out = _settle(records, sources.url, target, settings, on_event, dry_run=dry_run)
        choice = choose(
            records,
            local=local,
            crew=crew,
            src=src,
            dest=target,
            settings=settings,
            parent=parent,
            stores=stores,
            on_event=on_event,
        )
        refuse_leftovers(target, choice.plan.splits)
        refuse_another(choice.plan.splits, records.keys, src=sources.url, replace=replace)
        if len(choice.pairs) and not dry_run:
            left_out = add_twins(left_out, _names(choice.pairs, records), dest=target)
            on_event(Note(f"all that were left out are listed in {left_out.report}"))
        records = records.planned()
        lost = {"offenders": left_out.count, "twins": choice.twins}
        work = Work(choice.plan, records, local, choice.settings, memory, target, listed_ns, on_event, lost)
        datasets = work.rehearse(part) if dry_run else work.execute(crew) if part is None else work.share(part, crew)
        requests = sources.requests + local.requests + choice.requests
    counts = Counts(
        source_bytes=records.listed_bytes if isinstance(records, Files) else sources.total_bytes,
        requests=requests,
        built=work.num_built,
        left_out=left_out,
    )
    return PackResult.of(datasets, counts, choice, source=str(src), dest=target, dry_run=dry_run, part=part)


def _names(pairs: npt.NDArray[np.int64], records: Records) -> Iterator[tuple[str, str]]:
    for first, twin in pairs.tolist():
        yield records.keys[first], records.keys[twin]


def _check(engine: str, part: tuple[int, int] | None) -> None:
    if engine not in ("local", "ray"):
        raise UsageError(f"{engine!r} is not an engine", hint="Choose local or ray", subject=engine)
    if part is not None and not 0 <= part[0] < part[1]:
        last = f"{part[1] - 1}/{part[1]}"
        hint = f"Parts count from 0: the last is {last}" if part[1] > 0 else "Write --part 0/4 for the first of four"
        raise UsageError(f"there is no part {part[0]} of {part[1]}", hint=hint, subject=part)


def _table(sources: Sources, local: Fetched, settings: PackSettings, crew: Crew) -> Records:
    with _without_collector():
        return list_records(
            sources,
            local,
            naming=Naming(settings.key_field, settings.key, settings.escape),
            on_error=settings.on_error,
            max_errors=settings.max_errors,
            drop_twins=settings.dedupe == "drop",
            run=crew.map,
        )


def _settle(
    records: Records, src: str, target: Path, settings: PackSettings, on_event: OnEvent, *, dry_run: bool
) -> LeftOut:
    """Say what should be known of the source, and what was left out of it."""
    for remark in records.remarks:
        on_event(remark)
    left_out = settle(
        records.troubles, dest=target, on_error=settings.on_error, max_errors=settings.max_errors, dry_run=dry_run
    )
    if left_out.count:
        hint = None if left_out.report is None else f"They are listed in {left_out.report}"
        are = agree(left_out.count, "is", "are")
        on_event(Caution(f"{format_number_of(left_out.count, 'offender')} {are} left out", hint=hint))
    for offender in left_out.offenders:
        on_event(Note(f"would leave out {offender}"))
    if left_out.old_copies and not dry_run:
        folder = target.with_name(f"{target.name}.quarantine")
        said = f"{folder} holds {format_number_of(left_out.old_copies, 'file')} that this pack did not copy there"
        on_event(Caution(said, hint="Their records may be packed by now: remove what is mended or no longer needed"))
    if not len(records.keys):
        left = f" that can be packed, and {left_out.count} that cannot" if left_out.count else ""
        hint = "Name a source that holds records, or say of what kind they are: --input"
        if left_out.report is not None:
            hint = f"Mend those that are listed in {left_out.report}"
        raise InputError(f"{src} is empty: it holds no records{left}", hint=hint, subject=src)
    return left_out


@contextlib.contextmanager
def _site(
    sources: Sources,
    target: Path,
    memory: Memory,
    part: tuple[int, int] | None,
    crew: Engine | Cluster,
    stores: Mapping[str, StoreOptions] | None,
) -> Iterator[tuple[Fetched, Crew]]:
    """The source as local files, and workers; workers start first, to be ready when the plan is."""
    disk.make_dirs(target.parent)
    with (
        _own_spool(target, memory, part) as spool,
        crew as started,
        fetched(sources, spool, stores=stores) as local,
    ):
        yield local, started


@contextlib.contextmanager
def _rehearsal(sources: Sources, stores: Mapping[str, StoreOptions] | None) -> Iterator[tuple[Fetched, Crew]]:
    """The source as a plan needs it: lines are read for their keys, of files the listing is enough."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(1) as crew,
        fetched(sources, Path(folder) / "spool", stores=stores) as local,
    ):
        yield local, crew


def _crew(engine: str, workers: int | None, sources: Sources) -> Engine | Cluster:
    check_workers(workers)
    if engine == "ray":
        return Cluster(workers)
    if workers is None:
        workers = cores() if sources.folders or sources.total_bytes >= WORKER_BYTES else 1
    return Engine(workers, rooms=("datakit.pack.shards", _TABLES.get(sources.kind, "datakit.source.tables"), "pyarrow"))


@contextlib.contextmanager
def _own_spool(target: Path, memory: Memory, part: tuple[int, int] | None) -> Iterator[Path]:
    """A place for fetched sources beside the destination, and the only right to pack there, or to build this part."""
    name = f"{target.name}.spool" if part is None else f"{target.name}.spool-{part[0]}-of-{part[1]}"
    lock = memory.lock if part is None else memory.part_lock(part)
    doing = f"packing into {target}" if part is None else f"building part {part[0]}/{part[1]} for {target}"
    with disk.exclusive(lock, purpose=doing):
        # each holds its own lock before it looks for the other's, so that of two that begin at once one sees the other
        if part is None:
            _refuse_parts(memory, target)
            _sweep_parts(target)
        elif disk.is_held(memory.lock):
            hint = "Give the part again when it has ended, if it is still needed"
            raise Refused(f"another process is packing into {target}", hint=hint, subject=str(target))
        disk.sweep(target.parent, name=name)
        yield disk.temporary(target.with_name(name))


def _refuse_parts(memory: Memory, target: Path) -> None:
    """See that no part is still being built: the commit would take its shards away under it. Dead locks go."""
    pattern = re.compile(re.escape(memory.root.name) + r"\.(\d+-of-\d+)\.lock")
    for path in sorted(target.parent.iterdir()):
        if match := pattern.fullmatch(path.name):
            words = match[1].replace("-of-", "/")
            if disk.is_held(path):
                raise Refused(
                    f"part {words} is still being built for {target}", hint="Commit when it has ended", subject=words
                )
            path.unlink(missing_ok=True)


def _sweep_parts(target: Path) -> None:
    """Remove what killed parts had fetched; none is at work."""
    ours = re.compile(re.escape(disk.stem(target.name)) + r"\.spool-\d+-of-\d+")
    for path in sorted(target.parent.iterdir()):
        if (match := disk.TEMPORARY.fullmatch(path.name)) and ours.fullmatch(match["name"]):
            disk.remove(path)


def _target(src: str | Path, dest: str | Path, settings: PackSettings) -> Path:
    where = local_path(
        dest,
        message=f"pack writes to a local directory, not to {dest}",
        hint=f"Pack into a directory, then: datakit sync DIRECTORY {shlex.quote(str(dest))}",
    )
    target = Path(os.path.abspath(where))
    if is_remote(src):
        return target
    source, real = (Path(os.path.realpath(str(path).removeprefix("file://"))) for path in (src, where))
    if real.is_relative_to(source):
        raise UsageError(
            f"{dest} lies inside the source {src}", hint="Name a destination outside it", subject=str(dest)
        )
    # what a commit does not name it removes: nothing that is read may lie there
    places = [real / split for split in settings.splits] or [real]
    if any(source.is_relative_to(place) for place in places if place != Path(place.anchor)):  # the root is told later
        raise UsageError(
            f"the source {src} lies inside {dest}, where the dataset goes",
            hint="Move it out, or name another destination",
            subject=str(src),
        )
    return target


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
