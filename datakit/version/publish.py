"""publish: what lies here, into the remote of a DVC project, recorded so that DVC takes it for its own: `sync --to`.

What `dvc add` or `dvc commit`, and then `dvc push`, would do, without hashing what a manifest knows and without a
second copy: the local cache gets hard links. Objects first, each compared with manifest and md5 while it is sent and
verified there, the `.dir` object after them, the `.dvc` file or dvc.lock last: whoever follows the record finds
everything. An object that is there already in its size is not put again; each is looked at, for a `.dir` object does
not vouch for what it names (an interrupted `dvc gc` leaves it).

What others wrote into the record while the upload ran stays: of a dvc.lock only the one stage is replaced, and where
that, or a `.dvc` file, is no longer what was planned from, nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datakit.errors import IntegrityError, NotFound, Refused, UsageError
from datakit.events import Caution, Note, OnEvent, Progress, ignore
from datakit.source.troubles import listing
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.disk import at_door, exclusive, make_dirs, sweep, write_atomic
from datakit.storage.limits import Gate
from datakit.storage.locks import LOCK_NAME
from datakit.storage.moves import gate_before, patient
from datakit.storage.objects import Store
from datakit.storage.retry import Pace
from datakit.storage.store import Location
from datakit.storage.sync import SyncSettings
from datakit.storage.upload import Put, upload
from datakit.units import agree
from datakit.version.cache import Snapshot, link_into_cache
from datakit.version.document import read_yaml, write_yaml
from datakit.version.dvc import Lock, Out, Stage, object_key, write_dvc_file
from datakit.version.local import MISSING, Found, linked_folders, record_of, settings_now
from datakit.version.project import Pointer, Project, read_pipeline, stage_dir
from datakit.version.tree import LOOKS, remote_of


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """What a publication will do.

    Attributes:
        source: From where.
        destination: The remote.
        pointer: The file that will record it, with stage and output.
        md5: The address that it will record.
        files: Files in all.
        total_bytes: Their bytes.
        moves: Names of those that the remote does not have.
        bytes_to_move: Their bytes.
        records: Whether the pointer's file changes.
    """

    source: str
    destination: str
    pointer: str
    md5: str
    files: int
    total_bytes: int
    moves: tuple[str, ...]
    bytes_to_move: int
    records: bool
    settings: SyncSettings = field(repr=False)
    puts: tuple[Put, ...] = field(repr=False)
    snapshot: Snapshot = field(repr=False)
    cache: Path | None = field(repr=False)
    place: Location = field(repr=False)
    file: Path = field(repr=False)
    record: Record | None = field(repr=False)
    gate: Gate = field(repr=False)


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication has done.

    Attributes:
        linked_files: Files that DVC's local cache got by hard link, or None where it cannot have them.
        requests: Requests made, planning included.
    """

    source: str
    destination: str
    pointer: str
    md5: str
    files: int
    moved_files: int
    moved_bytes: int
    recorded: bool
    linked_files: int | None
    requests: RequestCounts
    seconds: float


def plan_publish(
    source: Path,
    pointer: Pointer,
    *,
    remote: str | None = None,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> PublishPlan:
    """Look at a file or directory and the remote, and say what has to move and what will be recorded.

    Args:
        source: What is published.
        pointer: What will record it: a `.dvc` file, made when it isn't there, or a stage of a dvc.lock.
        remote: Name of a remote of the project, or its URL; its default when None.
        settings: How, as for `sync`.
        stores: Named stores.
        on_event: Told what DVC leaves out.

    Raises:
        NotFound: The source, the stage, the output or the remote is not there.
        UsageError: The record belongs to another place than the source.
        Refused: The record is of an import, or of what is not here.
    """
    settings = settings or SyncSettings()
    snapshot = Snapshot.of(source)
    if links := [] if snapshot.tree is None else linked_folders(source):
        said = f"{listing(links, 'linked folder')} of {source} {agree(len(links), 'is', 'are')} left out, as by DVC"
        on_event(Caution(said, hint="Put the folder itself, or hard links to its files, in the link's place"))
    new = Out("", snapshot.md5, snapshot.bytes, len(snapshot.found) if snapshot.tree is not None else None)
    record = _in_lock(pointer, source, new) if pointer.stage else _in_dvc_file(pointer, source, new)
    place = remote_of(pointer, remote=remote, stores=stores)
    gate = gate_before(settings.limits(), place)
    store = patient(place, settings)
    missing = _missing(store, place, snapshot)
    md5s = snapshot.md5s
    project = Project.around(pointer.file)
    return PublishPlan(
        source=str(source),
        destination=place.url,
        pointer=str(pointer),
        md5=snapshot.md5,
        files=len(snapshot.found),
        total_bytes=snapshot.bytes,
        moves=tuple(each.name for each in missing),
        bytes_to_move=sum(each.bytes for each in missing),
        records=record is not None,
        settings=settings,
        puts=tuple(
            Put(e.path, place.key(object_key(md5s[e.name])), e.bytes, e.entry, md5=md5s[e.name]) for e in missing
        ),
        snapshot=snapshot,
        cache=None if project is None else project.cache_dir,
        place=place,
        file=pointer.file,
        record=record,
        gate=gate,
    )


def run_publish(plan: PublishPlan, *, on_event: OnEvent = ignore) -> Published:
    """Do what the plan says.

    Raises:
        IntegrityError: A file is not what its manifest says or what it was when the plan was made, or the store does
            not give back what it was given.
        Refused: Somebody else has changed the record; the objects are there, and a new run only records them.
        NotAllowed, StoreUnavailable, NoSpace: As `sync`.
    """
    begun, done = time.monotonic(), 0
    knobs = plan.settings.knobs(durable=True)
    plan.gate.begin()
    pace = Pace(retries=knobs.retries, stopped=plan.gate.stopped)

    def more(count: int) -> None:
        nonlocal done
        done += count
        on_event(Progress("upload", done, plan.bytes_to_move, "B"))

    with _alone(plan):
        upload(plan.place.store, plan.puts, knobs=knobs, pace=pace, on_bytes=more)
        _put_list(plan)
    linked = _link(plan, on_event)
    if plan.record is not None:
        write_atomic(plan.file, plan.record.renewed(plan.file))
    return Published(
        source=plan.source,
        destination=plan.destination,
        pointer=plan.pointer,
        md5=plan.md5,
        files=plan.files,
        moved_files=len(plan.moves),
        moved_bytes=plan.bytes_to_move,
        recorded=plan.records,
        linked_files=linked,
        requests=plan.place.store.requests,
        seconds=time.monotonic() - begun,
    )


@contextlib.contextmanager
def _alone(plan: PublishPlan) -> Iterator[None]:
    """In a remote that is a folder: keep other publishers away, and remove what a killed one left of these files."""
    path = plan.place.path
    if path is None:
        yield
        return
    make_dirs(path)
    with exclusive(path / LOCK_NAME, purpose=f"writing {path}"):
        for md5 in {plan.snapshot.md5s[name] for name in plan.moves} | {plan.md5}:
            target = path / object_key(md5)
            sweep(target.parent, name=target.name)
        yield


def _put_list(plan: PublishPlan) -> None:
    """The `.dir` object, after all that it names."""
    tree, store = plan.snapshot.tree, patient(plan.place, plan.settings)
    if tree is None or _has(store, plan.place, plan.md5, len(tree.to_bytes())):
        return
    key, data = plan.place.key(object_key(plan.md5)), tree.to_bytes()
    store.write(key, data)
    if store.fetch(key).data != data:
        where = f"{plan.place.store.url}/{key}"
        raise IntegrityError(f"{where} reads back with other bytes", hint="Run the same command again", subject=where)


def _link(plan: PublishPlan, on_event: OnEvent) -> int | None:
    """Let DVC find in its cache what is recorded."""
    if plan.cache is None:
        return None
    count = link_into_cache(plan.snapshot, plan.cache, verified=plan.moves)
    for other in plan.record.others if plan.record is not None and count is not None else ():
        link_into_cache(other, plan.cache)
    if count is None:
        on_event(Note(f"{plan.cache} is on another disk: until `dvc fetch`, `dvc status` says `not in cache`"))
    return count


def _missing(store: Store, place: Location, snapshot: Snapshot) -> list[Found]:
    """The files that the remote has not, or not in their size; of equal ones, one."""
    md5s = snapshot.md5s
    different = list({md5s[each.name]: each for each in snapshot.found}.values())
    with ThreadPoolExecutor(LOOKS) as pool:
        there = list(pool.map(lambda each: _has(store, place, md5s[each.name], each.bytes), different))
    return [each for each, has in zip(different, there, strict=True) if not has]


def _has(store: Store, place: Location, md5: str, size_bytes: int) -> bool:
    try:
        info = store.head(place.key(object_key(md5)))
    except NotFound as error:
        if place.path is None and error.subject == place.store.url:
            raise
        return False
    return info.bytes == size_bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What a pointer's file is to become.

    Attributes:
        before: Its bytes when the plan was made, or None where it was not there.
        after: Its bytes then.
        stage: The stage that is recorded anew, or None for a `.dvc` file.
        others: What else of the stage is then recorded otherwise.
    """

    before: bytes | None
    after: bytes
    stage: Stage | None = None
    others: tuple[Snapshot, ...] = ()

    def renewed(self, file: Path) -> bytes:
        """The bytes to write now: those that were planned, or with what others have recorded meanwhile.

        Raises:
            Refused: Others have recorded the same thing.
        """
        now = _bytes_of(file)
        if now == self.before:
            return self.after
        if self.stage is not None and now is not None and self.before is not None:
            old, lock = Lock.from_bytes(self.before, where=str(file)), Lock.from_bytes(now, where=str(file))
            name = self.stage.name
            if name in lock.names and lock.stage(name) == old.stage(name):
                return lock.with_stage(self.stage).to_bytes()
        what = str(file) if self.stage is None else f"stage {self.stage.name} of {file}"
        raise Refused(
            f"{what} was recorded anew by somebody else while this ran, and is left as it is",
            hint="See what it says now; to record yours, run the same command again: the objects are there already",
            subject=str(file),
        )


def _bytes_of(file: Path) -> bytes | None:
    with at_door(file):
        return file.read_bytes() if file.is_file() else None


def _in_dvc_file(pointer: Pointer, source: Path, new: Out) -> Record | None:
    """As `dvc add` would write it; None where it says so already."""
    written = _written(source, pointer.file.parent)
    if written.startswith("../"):
        message = f"{pointer.file} cannot record {source}, which does not lie below it"
        raise UsageError(message, hint=f"Write --to {source}.dvc", subject=str(source))
    out = replace(new, path=written)
    before, where = _bytes_of(pointer.file), str(pointer.file)
    if before is None:
        return Record(None, write_dvc_file(out))
    if pointer.follow(before) == (out, ""):
        return None
    value = read_yaml(before, where=where)
    if "deps" in value or len(value["outs"]) != 1:
        message = f"{where} records an import or several outputs"
        raise Refused(message, hint="Name another file with --to", subject=where)
    return Record(before, write_yaml({**value, "outs": [{**value["outs"][0], **out.to_json()}]}))


def _in_lock(pointer: Pointer, source: Path, new: Out) -> Record | None:
    """As `dvc commit STAGE` would write it; with the other outputs of the stage that have changed."""
    assert pointer.stage is not None
    before = pointer.read()
    lock = Lock.from_bytes(before, where=str(pointer.file))
    stage = lock.stage(pointer.stage)
    out = stage.out(pointer.out)
    base = stage_dir(pointer.file.parent, stage.name, stages=read_pipeline(pointer.file.parent))
    if os.path.realpath(base / out.path) != os.path.realpath(source):
        message = f"{pointer} is {base / out.path}, not {source}"
        raise UsageError(
            message,
            hint=f"Publish that: datakit sync {shlex.join([str(base / out.path), '--to', str(pointer)])}",
            subject=out.path,
        )
    if out.md5 == new.md5:
        return None
    outs = tuple(replace(new, path=each.path) if each is out else _again(base, each, lock) for each in stage.outs)
    renewed = Stage(stage.name, tuple(_again(base, dep, lock) for dep in stage.deps), _params(base, stage, lock), outs)
    changed = [each for each, old in zip(outs, stage.outs, strict=True) if each.md5 != old.md5 and old is not out]
    others = tuple(Snapshot.of(base / each.path) for each in changed)
    return Record(before, lock.with_stage(renewed).to_bytes(), renewed, others)


def _again(base: Path, recorded: Out, lock: Lock) -> Out:
    path = base / recorded.path
    if not path.exists():
        raise Refused(
            f"{path} is not here, so {lock.where} cannot say what was made from what",
            hint="Publish where the stage has run, or into a file of its own: --to FILE.dvc",
            subject=str(path),
        )
    return record_of(path, written=recorded.path)


def _params(base: Path, stage: Stage, lock: Lock) -> dict[str, dict[str, Any]]:
    renewed: dict[str, dict[str, Any]] = {}
    for file, values in stage.params.items():
        now = settings_now(base / file, values)
        if now is None or MISSING in now.values():
            hint = "Run the stage by DVC, or publish into a file of its own: --to FILE.dvc"
            raise Refused(f"{base / file} does not tell what {lock.where} records of it", hint=hint, subject=file)
        renewed[file] = now
    return renewed


def _written(source: Path, folder: Path) -> str:
    with at_door(source):
        return os.path.relpath(os.path.realpath(source), os.path.realpath(folder)).replace(os.sep, "/")
