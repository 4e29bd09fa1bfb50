"""sync: make one place hold what another holds: plan first, then move, verify, and say what it cost.

A commit (a place with a manifest) moves member by member, each verified, the manifest last: a reader of the destination
sees no commit or a whole one. Other places are files, compared by size and checksum. The plan (`moves`) is a value;
`--dry-run` prints the very plan that the run executes. Budgets are checked before the first byte moves. Nothing is
deleted unless it was asked for with a number, and it is listed.

The exit is an error of `datakit.errors`; whatever ended a run, the same command continues it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import entry_of
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import IntegrityError, NotAllowed, NotFound, Refused
from datakit.events import Caution, Note, OnEvent, Progress, ignore
from datakit.storage import disk, etags
from datakit.storage.access import StoreOptions
from datakit.storage.commit import NEXT_NAME, lock_path, unlink_below
from datakit.storage.compare import Item, Kind
from datakit.storage.counts import RequestCounts
from datakit.storage.filters import Filter
from datakit.storage.locks import LOCK_NAME, alone
from datakit.storage.moves import Action, SyncPlan, SyncSettings, patient, plan_sync
from datakit.storage.partial import Fetch, remove_leftovers, remove_stale
from datakit.storage.retry import Pace
from datakit.storage.spool import spool
from datakit.storage.strangers import in_commit
from datakit.storage.transfer import Knobs, download
from datakit.storage.upload import Put, take_away, upload
from datakit.units import format_bytes, format_number_of

__all__ = ["Action", "SyncPlan", "SyncResult", "SyncSettings", "plan_sync", "run_sync", "sync"]


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a run has done.

    Attributes:
        moved_files: Files that were fetched or put, the manifest not counted.
        moved_bytes: Their bytes.
        kept_files: Files that were there already.
        unverified_files: Of those moved, the ones for which the source has no checksum to compare with.
        unverified: The first three of them by name.
        deleted: Names that were deleted.
        left_files: Files that only the destination has, and that stay.
        requests: Requests made, planning included, by class.
        seconds: How long moving took.
        up_to_date: Whether there was nothing to do.
        by_manifest: Whether members stayed because of the manifest there and their sizes, their bytes unread.
        manifest_digest: Identity of the commit, or None.
    """

    source: str
    destination: str
    kind: Kind
    name: str | None
    moved_files: int
    moved_bytes: int
    kept_files: int
    unverified_files: int
    unverified: tuple[str, ...]
    deleted: tuple[str, ...]
    left_files: int
    requests: RequestCounts
    seconds: float
    up_to_date: bool
    by_manifest: bool
    manifest_digest: str | None


def sync(
    source: str | Path,
    destination: str | Path,
    *,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    budget: str | int | None = None,
    delete: bool = False,
    max_delete: int | None = None,
    repair: bool = False,
    max_requests: int | None = None,
    max_cost: float | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> SyncResult:
    """Make the destination hold what the source holds.

    Args:
        source: A path or URL: a commit, a folder or prefix of files, or one file.
        destination: A path or URL.
        settings: How.
        stores: Named stores.
        budget: Bytes that the destination may hold in the end, such as `500GB`.
        delete: Delete what the destination holds besides.
        max_delete: How many files that may be at most.
        repair: Look at the bytes that the destination holds, and move damaged members, or a torn manifest, again.
        max_requests: Requests that may be made, planning and tries that fail included.
        max_cost: What they and the bytes that leave a store may cost, in the currency of its price.
        include: Of a folder, only files whose names match one of these patterns.
        exclude: And none of these.
        on_event: Told about progress.

    Raises:
        NotFound: There is nothing at the source, or a bucket is not there.
        Refused: The destination holds something else, is being written, or lies inside a commit.
        IntegrityError: Bytes are not what the manifest says, however often they are asked for.
        NoSpace: The disk or the budget is too small; nothing was moved.
        LimitExceeded: A limit does not allow what it would take, or what it took; the next run moves the rest.
        NotAllowed: Credentials or permissions.
        StoreUnavailable: The store is unreachable or throttles for too long.

    Example:
        >>> sync("data/train", "s3://bucket/train")  # doctest: +SKIP
    """
    plan = plan_sync(
        source,
        destination,
        settings=settings,
        stores=stores,
        budget=budget,
        delete=delete,
        max_delete=max_delete,
        repair=repair,
        max_requests=max_requests,
        max_cost=max_cost,
        only=Filter(include, exclude),
        on_event=on_event,
    )
    return run_sync(plan, on_event=on_event)


def run_sync(plan: SyncPlan, *, on_event: OnEvent = ignore) -> SyncResult:
    """Do what the plan says. Errors as in `sync`."""
    begun = time.monotonic()
    plan.gate.begin()
    for name in plan.damaged:
        again = "put" if plan.target.path is None else "fetched"
        on_event(Caution(f"{plan.destination}/{name} is damaged", hint=f"It is {again} again"))
    unverified: list[str] = []
    path = plan.target.path
    if plan.up_to_date and path is not None:
        _tidy(plan, path)
    if not plan.up_to_date:
        with _with_all_members(plan):
            if path is None:
                unverified = _run_upload(plan, on_event)
            else:
                with alone(plan, path):
                    unverified = _run_download(plan, path, on_event)
        if (said := _left(plan)) is not None:
            on_event(said)
    return SyncResult(
        source=plan.source,
        destination=plan.destination,
        kind=plan.kind,
        name=plan.name,
        moved_files=len(plan.moves),
        moved_bytes=plan.bytes_to_move,
        kept_files=plan.count("keep"),
        unverified_files=len(unverified),
        unverified=_some_names(plan, unverified),
        deleted=tuple(action.name for action in plan.actions if action.verb == "delete"),
        left_files=plan.count("leave"),
        requests=plan.origin.store.requests + plan.target.store.requests,
        seconds=time.monotonic() - begun,
        up_to_date=plan.up_to_date or not (plan.moves or plan.count("delete") or not plan.has_manifest),
        by_manifest=plan.kind == "commit" and not plan.repair,
        manifest_digest=plan.held.manifest.digest if plan.held.manifest else None,
    )


def _some_names(plan: SyncPlan, keys: Collection[str]) -> tuple[str, ...]:
    """The first three names of files with these keys at the source."""
    wanted = set(keys)
    return tuple(itertools.islice((item.name for item in plan.moves if plan.key(item.name) in wanted), 3))


def _left(plan: SyncPlan) -> Caution | None:
    """What to say of files that stay where a commit came, and that it does not name: an older version's shards."""
    left = [action for action in plan.actions if action.verb == "leave"]
    others = [action for action in left if in_commit(plan.held, action.name)]
    if not others:
        return None
    what = f"{format_number_of(len(others), 'file')} ({format_bytes(sum(other.bytes for other in others))})"
    return Caution(
        f"{plan.destination} keeps {what} of before, such as {others[0].name}: readers that list it take them for data",
        hint=f"See what would go: the same command with --delete --max-delete {len(left)} --dry-run",
    )


@contextlib.contextmanager
def _with_all_members(plan: SyncPlan) -> Iterator[None]:
    """A member that is gone from the source is damage of a commit: its manifest says that it is there."""
    try:
        yield
    except NotFound as error:
        if plan.kind != "commit" or error.subject not in {f"{plan.source}/{item.name}" for item in plan.moves}:
            raise
        raise IntegrityError(
            f"{error.subject} is missing, and the manifest there names it",
            hint=f"Publish it again from a whole copy: datakit sync --repair COPY {shlex.quote(plan.source)}",
            subject=error.subject,
        ) from error


def _knobs(plan: SyncPlan) -> Knobs:
    choice = plan.settings.durability
    precious = plan.held.manifest is not None and plan.held.manifest.kind in ("checkpoint", "adapter")
    return plan.settings.knobs(durable=choice == "always" or (choice == "auto" and precious))


def _phases(plan: SyncPlan) -> Iterator[list[Item]]:
    """Manifests of commits that lie below a folder of files go last."""
    for last in (False, True):
        items = [item for item in plan.moves if (item.name.rpartition("/")[2] == MANIFEST_NAME) == last]
        if items:
            yield items


def _reporter(task: str, plan: SyncPlan, on_event: OnEvent) -> Callable[[int], None]:
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        on_event(Progress(task, done, plan.bytes_to_move, "B"))

    more(0)
    return more


def _run_download(plan: SyncPlan, path: Path, on_event: OnEvent) -> list[str]:
    """Fetch; the keys of files that nothing could verify."""
    unverified: list[str] = []
    knobs = _knobs(plan)
    disk.make_dirs(path)
    on_bytes = _reporter("download", plan, on_event)
    pace = Pace(retries=knobs.retries, stopped=plan.gate.stopped)
    manifest = plan.held.manifest
    if manifest is not None and not plan.has_manifest:
        # says whose the members are that a killed run leaves without a manifest
        disk.write_atomic(path / NEXT_NAME, manifest.to_bytes(), sync=knobs.durable)
    for items in _phases(plan):
        fetches = [Fetch(plan.key(item.name), path / item.name, item.bytes, item.etag, item.entry) for item in items]
        remove_stale(fetches)
        unverified += download(plan.origin.store, fetches, knobs=knobs, pace=pace, on_bytes=on_bytes)
    targets = [path / name for name in plan.held.items]
    remove_leftovers([*targets, *(path / name for name in (NEXT_NAME, MANIFEST_NAME) if manifest is not None)])
    if knobs.durable:
        for folder in {target.parent for target in targets}:
            disk.fsync_dir(folder)
    if manifest is not None:
        _settle(path, plan, durable=knobs.durable)
    for action in _deletions(plan):
        with disk.at_door(path / action.name):
            unlink_below(path, path / action.name)
        on_event(Note(f"deleted {path / action.name}"))
    return unverified


def _settle(path: Path, plan: SyncPlan, *, durable: bool) -> None:
    """Give the manifest that has been coming its name; by a rename, so that the place never holds it twice."""
    with disk.at_door(path):
        if plan.has_manifest:
            (path / NEXT_NAME).unlink(missing_ok=True)
        else:
            os.replace(path / NEXT_NAME, path / MANIFEST_NAME)
        if durable:
            disk.fsync_dir(path)


def _deletions(plan: SyncPlan) -> list[Action]:
    """What is to be deleted; manifests first, so that no commit is ever there in part."""
    wanted = [action for action in plan.actions if action.verb == "delete"]
    return sorted(wanted, key=lambda action: action.name.rpartition("/")[2] != MANIFEST_NAME)


def _tidy(plan: SyncPlan, path: Path) -> None:
    """Remove what a run leaves that was killed when all had come: its locks, and the coming manifest."""
    coming, locks = path / NEXT_NAME, (path / LOCK_NAME, lock_path(path))
    if not any(file.exists() for file in (coming, *locks)) or any(disk.is_held(lock) for lock in locks):
        return
    # somebody else was quicker, or we may not write there: then it stays
    with contextlib.suppress(Refused, NotAllowed), alone(plan, path), disk.at_door(path):
        if plan.held.manifest is not None and coming.is_file() and coming.read_bytes() == plan.held.manifest.to_bytes():
            coming.unlink()


def _run_upload(plan: SyncPlan, on_event: OnEvent) -> list[str]:
    """Put; the keys of files that nothing could verify on their way from another store."""
    unverified: list[str] = []
    knobs = _knobs(plan)
    on_bytes = _reporter("upload", plan, on_event)
    pace = Pace(retries=knobs.retries, stopped=plan.gate.stopped)
    for items in _phases(plan):
        if plan.origin.path is not None:
            puts = [_put(plan, item, plan.original(item.name)) for item in items]
            upload(plan.target.store, puts, knobs=knobs, pace=pace, on_bytes=on_bytes)
        else:
            unverified += _run_through_spool(plan, items, knobs, pace, on_bytes)
    if plan.held.manifest is not None and not plan.has_manifest:
        _write_manifest(plan)
    store = patient(plan.target, plan.settings)
    for action in _deletions(plan):
        store.delete(plan.target.key(action.name))
        on_event(Note(f"deleted {plan.destination}/{action.name}"))
    return unverified


def _put(plan: SyncPlan, item: Item, path: Path | None) -> Put:
    assert path is not None
    is_new = plan.kind == "commit" and item.name not in plan.replaced
    return Put(path, plan.target.key(item.name), item.bytes, item.entry, create=is_new)


def _run_through_spool(
    plan: SyncPlan, items: Iterable[Item], knobs: Knobs, pace: Pace, on_bytes: Callable[[int], None]
) -> list[str]:
    """From store to store: each file is verified on the local disk in between; one window of bytes lies there."""
    down = Pace(retries=knobs.retries, stopped=plan.gate.stopped)
    unverified: list[str] = []
    batches = list(_batches(items, knobs.window_bytes))
    with spool(max(sum(item.bytes for item in batch) for batch in batches)) as folder:
        for batch in batches:
            spooled = {item.name: folder / f"{number}" for number, item in enumerate(batch)}
            fetches = [Fetch(plan.key(i.name), spooled[i.name], i.bytes, i.etag, i.entry) for i in batch]
            unverified += download(plan.origin.store, fetches, knobs=knobs, pace=down, on_bytes=lambda _: None)
            puts = [_put(plan, item, spooled[item.name]) for item in batch]
            upload(plan.target.store, puts, knobs=knobs, pace=pace, on_bytes=on_bytes)
            for path in spooled.values():
                path.unlink()
    return unverified


def _batches(items: Iterable[Item], limit_bytes: int) -> Iterator[list[Item]]:
    size_bytes, number = 0, 0

    def group(item: Item) -> int:
        nonlocal size_bytes, number
        if size_bytes and size_bytes + item.bytes > limit_bytes:
            size_bytes, number = 0, number + 1
        size_bytes += item.bytes
        return number

    for _, batch in itertools.groupby(items, key=group):
        yield list(batch)


def _write_manifest(plan: SyncPlan) -> None:
    """The last step of a publication: the commit exists from here on."""
    assert plan.held.manifest is not None
    data = plan.held.manifest.to_bytes()
    store, key = patient(plan.target, plan.settings), plan.target.key(MANIFEST_NAME)
    try:
        info = store.write(key, data, create=plan.manifest_etag is None, replaces=plan.manifest_etag)
    except Refused:
        # the answer to an earlier try was lost, or another process has published the very same commit
        if store.fetch(key).data != data:
            raise
        return
    if not etags.same(info.etag, etags.single(entry_of(MANIFEST_NAME, data).md5)) and store.fetch(key).data != data:
        where = f"{plan.destination}/{MANIFEST_NAME}"
        if plan.manifest_etag is None:
            take_away(store, info)
        raise IntegrityError(f"{where} reads back with other bytes", hint="Run the same command again", subject=where)
