"""moves: the plan of a sync: what a place holds against what another holds, as a value that can be printed and run.

Planning asks few questions: for a commit one GET of its manifest at each remote end, and a listing only when the two
differ; for files one listing at each remote end. It changes nothing, and it refuses here what must not be begun:
another commit at the destination, more deletions than allowed, too small a disk or budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.data.digest import FileEntry
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import NoSpace, NotAllowed, NotFound, Refused, UsageError
from datakit.events import Caution, OnEvent, ignore
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.commit import refuse_inside
from datakit.storage.compare import (
    Difference,
    Holding,
    Item,
    Kind,
    compare_commits,
    compare_files,
    listed,
    look_at_destination,
    look_at_source,
    total_bytes,
    visible,
)
from datakit.storage.objects import LocalStore, ObjectInfo, Store
from datakit.storage.partial import partial_bytes
from datakit.storage.refusals import (
    refuse_clashes,
    refuse_harm,
    refuse_many,
    refuse_nesting,
    refuse_unlisted,
    refuse_unspeakable,
)
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.store import Location, ObstoreStore, open_location
from datakit.storage.strangers import left_behind
from datakit.storage.transfer import Knobs
from datakit.storage.upload import reads_as
from datakit.units import format_bytes, parse_bytes

Verb: TypeAlias = Literal["fetch", "put", "keep", "delete", "leave"]
Durability: TypeAlias = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """How `sync` moves bytes.

    Attributes:
        part_size: Bytes of one request, a multiple of 16 MiB.
        concurrency: Requests under way at once.
        window: Bytes of parts under way at once.
        retries: Tries beyond the first for one request.
        durability: `auto` puts checkpoints and adapters onto the disk before their names appear; datasets, models and
            files, which can be fetched again, may still be in the disk's cache. `always` and `never` say it for all.
    """

    part_size: str | int = "16MiB"
    concurrency: int = 16
    window: str | int = "256MiB"
    retries: int = 6
    durability: Durability = "auto"

    def __post_init__(self) -> None:
        self.knobs(durable=True)

    def knobs(self, *, durable: bool) -> Knobs:
        """The engine's own form of these settings."""
        return Knobs(
            part_bytes=parse_bytes(self.part_size),
            connections=self.concurrency,
            window_bytes=parse_bytes(self.window),
            retries=self.retries,
            durable=durable,
        )


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan."""

    verb: Verb
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a run will do; print it, or run it.

    Attributes:
        source: From where.
        destination: To where; of one file, its place there.
        kind: A commit, or files.
        name: The commit's name, or None.
        actions: Every file that moves, stays or goes, by name; `leave` is one that only the destination has.
        bytes_to_move: Bytes of those that move.
        requests: Requests that the run will make, besides those that planning made; retries come on top.
        damaged: Members of the destination that were found damaged and are moved again.
        repair: Whether the destination's bytes were looked at, and not only its manifest and sizes.
    """

    source: str
    destination: str
    kind: Kind
    name: str | None
    actions: tuple[Action, ...]
    bytes_to_move: int
    requests: int
    damaged: tuple[str, ...]
    repair: bool
    settings: SyncSettings
    held: Holding = field(repr=False)
    moves: tuple[Item, ...] = field(repr=False)
    origin: Location = field(repr=False)
    target: Location = field(repr=False)
    manifest_etag: str | None = field(repr=False)
    has_manifest: bool = field(repr=False)
    up_to_date: bool = field(repr=False)
    replaced: frozenset[str] = field(repr=False)

    def original(self, name: str) -> Path | None:
        """Path of a file of the source where that is local."""
        return _locate(self.origin, name, single=self.held.single)

    def key(self, name: str) -> str:
        """Key of a file in the source's store."""
        return self.origin.prefix if self.held.single else self.origin.key(name)

    def count(self, verb: Verb) -> int:
        """Actions of one kind."""
        return sum(action.verb == verb for action in self.actions)


def plan_sync(
    source: str | Path | Location,
    destination: str | Path,
    *,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    budget: str | int | None = None,
    delete: bool = False,
    max_delete: int | None = None,
    repair: bool = False,
    on_event: OnEvent = ignore,
) -> SyncPlan:
    """Look at both places and say what has to move; arguments and errors as in `sync.sync`."""
    settings = settings or SyncSettings()
    origin, target = open_location(source, stores=stores), open_location(destination, stores=stores)
    if max_delete is not None and max_delete < 0:
        raise UsageError(f"--max-delete {max_delete} is no number of files", hint="Write 0 or more", subject=max_delete)
    if delete and max_delete is None:
        raise UsageError("--delete needs a bound", hint="Say how many files may go: --delete --max-delete 10")
    if origin.url == target.url:
        raise UsageError(f"{origin.url} and {destination} are the same place", hint="Name another DEST")
    with disk.at_door(origin.url):
        held = look_at_source(origin, patient(origin, settings))
    if held.single:
        with disk.at_door(target.url):
            held, origin, target = _single(held, origin, target, into=_into(destination, target, settings, on_event))
    if target.path is not None:
        refuse_clashes(held.items, origin)
    else:
        refuse_unspeakable(held.items, target)
    for said in left_behind(held, origin):
        on_event(said)
    view = _View(held, origin, target, patient(target, settings), repair)
    committed = view.committed()
    if not held.single:
        refuse_nesting(origin, target, delete=delete)
    unchanged = (
        committed is not None and committed.manifest == held.manifest and not (repair or delete or budget is not None)
    )
    if unchanged and view.is_whole():
        return _plan(view, Difference(keep=list(held.items.values())), [], settings, committed, up_to_date=True)
    here = view.here
    difference = view.compare(committed, here)
    refuse_harm(held, target, view.store, here, difference.move, delete=delete)
    extra = difference.extra if delete else []
    refuse_many(extra, max_delete)
    refuse_unlisted(held, origin, patient(origin, settings), extra, connections=settings.concurrency)
    plan = _plan(view, difference, extra, settings, committed)
    _check_room(plan, here, budget=None if budget is None else parse_bytes(budget))
    return plan


def patient(place: Location, settings: SyncSettings) -> Store:
    """A place's store, asked with the patience of the settings."""
    return PatientStore(place.store, pace=Pace(retries=settings.retries))


def _single(held: Holding, origin: Location, target: Location, *, into: bool) -> tuple[Holding, Location, Location]:
    """One file: it goes into a folder under its own name, or to the name that was given."""
    (item,) = held.items.values()
    if origin.path is not None:
        origin = Location(LocalStore(origin.path.parent), origin.path.name)
    name = item.name
    if not into:
        if target.path is not None:
            folder, name = Location(LocalStore(target.path.parent)), target.path.name
        else:
            prefix, _, name = target.prefix.rpartition("/")
            folder = Location(target.store, prefix)
        if not name:
            raise UsageError(f"{target.url} names no object", hint=f"Write {target.url}/NAME", subject=target.url)
        target = folder
    return Holding("files", {name: replace(item, name=name)}, single=True), origin, target


def _into(written: str | Path | Location, place: Location, settings: SyncSettings, on_event: OnEvent) -> bool:
    """Whether a folder is there, or meant; in a store, whether something lies below the name, as one request tells."""
    if str(written).endswith("/"):
        return True
    store = place.store
    if place.path is not None or not isinstance(store, ObstoreStore):  # into others nothing is written
        return place.path is not None and place.path.is_dir()
    try:
        return bool(place.prefix and Pace(retries=settings.retries).call(lambda: store.list(place.prefix, pages=1)))
    except NotAllowed as error:  # who may write need not be allowed to list
        message = f"whether {place.url} is a folder cannot be asked, it is taken for the object's name: {error.message}"
        on_event(Caution(message, hint=f"For a folder, write {place.url}/"))
        return False


def _locate(place: Location, name: str, *, single: bool) -> Path | None:
    return None if place.path is None else place.path if single else place.path / name


@dataclass(frozen=True)
class _View:
    """Both places while a plan is made."""

    held: Holding
    origin: Location
    target: Location
    store: Store
    repair: bool

    def committed(self) -> Holding | None:
        """The commit at the destination, if a commit goes there; files are refused where one stands."""
        path = self.target.path
        if path is not None:
            with disk.at_door(path):
                if path.exists() and not path.is_dir():
                    raise Refused(f"{path} is not a directory", hint="Name another destination", subject=str(path))
            refuse_inside(path)
        elif self.held.kind == "files":
            return None
        found = look_at_destination(self.target, self.store, repair=self.repair)
        if found is not None and self.held.kind == "files":
            raise self._occupied()
        return found

    @cached_property
    def here(self) -> dict[str, Item]:
        """Everything that lies at the destination, listed once; of one file's destination, only that file."""
        if self.held.single:
            (item,) = self.held.items.values()
            return self._one(item)
        path = self.target.path
        if path is not None and not path.is_dir():
            return {}
        items = visible(listed(self.target, self.store), also=self.held.items)
        if self.held.kind == "files" and MANIFEST_NAME in items and MANIFEST_NAME not in self.held.items:
            raise self._occupied()
        if path is not None:
            with disk.at_door(path):  # a listing leaves dot files out; members may have such names
                names = [name for name in self.held.items if name not in items and (path / name).is_file()]
                items.update((name, Item(name, (path / name).stat().st_size)) for name in names)
        return items

    def is_whole(self) -> bool:
        """Whether each file is at the destination in its size: somebody may have taken one away."""
        items, path = self.held.items.values(), self.target.path
        if path is None:
            here = {item.name: item.bytes for item in self.here.values()}
            return all(here.get(item.name) == item.bytes for item in items)
        with disk.at_door(path):
            return all((file := path / item.name).is_file() and file.stat().st_size == item.bytes for item in items)

    def compare(self, committed: Holding | None, here: Mapping[str, Item]) -> Difference:
        """What has to move."""

        def original(name: str) -> Path | None:
            return _locate(self.origin, name, single=self.held.single)

        def copy(name: str) -> Path | None:
            return _locate(self.target, name, single=False)

        def reads(item: Item, entry: FileEntry) -> bool:
            return reads_as(self.store, ObjectInfo(self.target.key(item.name), item.bytes, item.etag), entry)

        if self.held.kind == "commit":
            return compare_commits(
                self.held, committed, here, original=original, copy=copy, reads=reads, repair=self.repair
            )
        return compare_files(self.held, here, original=original, copy=copy)

    def _one(self, item: Item) -> dict[str, Item]:
        try:
            info = self.store.head(self.target.key(item.name))
        except NotFound as error:
            if self.target.path is None and error.subject == self.target.store.url:
                raise
            return {}
        return {item.name: Item(item.name, info.bytes, info.etag)}

    def _occupied(self) -> Refused:
        return Refused(
            f"{self.target.url} holds a commit, and the source is not one",
            hint="Choose another destination",
            subject=self.target.url,
        )


def _plan(
    view: _View,
    difference: Difference,
    extra: Sequence[Item],
    settings: SyncSettings,
    committed: Holding | None,
    *,
    up_to_date: bool = False,
) -> SyncPlan:
    held, target = view.held, view.target
    has_manifest = held.manifest is None or (committed is not None and committed.manifest == held.manifest)
    verb: Verb = "put" if target.path is None else "fetch"
    left = [] if extra else difference.extra
    steps = [(verb, difference.move), ("keep", difference.keep), ("delete", extra), ("leave", left)]
    actions = [Action(each, item.name, item.bytes) for each, items in steps for item in items]
    knobs = settings.knobs(durable=True)
    return SyncPlan(
        source=view.origin.url,
        destination=f"{target.url}/{next(iter(held.items))}" if held.single else target.url,
        kind=held.kind,
        name=held.manifest.name if held.manifest else None,
        actions=tuple(sorted(actions, key=lambda action: action.name)),
        bytes_to_move=total_bytes(difference.move),
        requests=0 if up_to_date else _num_requests(view, difference, len(extra) + (not has_manifest), knobs),
        damaged=tuple(difference.damaged),
        repair=view.repair,
        settings=settings,
        held=held,
        moves=tuple(difference.move),
        origin=view.origin,
        target=target,
        manifest_etag=committed.manifest_etag if committed else None,
        has_manifest=has_manifest,
        up_to_date=up_to_date,
        replaced=frozenset((*difference.damaged, *difference.derived)),
    )


def _num_requests(view: _View, difference: Difference, num_others: int, knobs: Knobs) -> int:
    parts = [-(-item.bytes // knobs.part_bytes) for item in difference.move]
    gets = sum(parts) if view.origin.path is None else 0
    puts = 0
    if view.target.path is None:
        replaced = {*difference.damaged, *difference.derived}
        new = [view.held.kind == "commit" and item.name not in replaced for item in difference.move]
        # an upload in parts of what is to be new first looks whether something is there
        puts = sum(1 if count <= 1 else count + 2 + look for count, look in zip(parts, new, strict=True))
    return gets + puts + (num_others if view.target.path is None else 0)


def _check_room(plan: SyncPlan, here: Mapping[str, Item], *, budget: int | None) -> None:
    # while a commit is renewed both its manifests are there
    manifest_bytes = 0 if plan.held.manifest is None or plan.has_manifest else len(plan.held.manifest.to_bytes())
    coming_bytes = plan.bytes_to_move + manifest_bytes
    used_bytes = total_bytes(here.values())
    if budget is not None and used_bytes + coming_bytes > budget:
        raise NoSpace(
            f"{plan.destination} holds {format_bytes(used_bytes)} and would get {format_bytes(coming_bytes)} more, "
            f"over its budget of {format_bytes(budget)}",
            hint="Free some of it, or allow more with --budget",
            subject=plan.destination,
        )
    path = plan.target.path
    if path is None:
        return
    needed_bytes = coming_bytes - partial_bytes(path / item.name for item in plan.moves)
    free = disk.free_bytes(path)
    if needed_bytes > free:
        raise NoSpace(
            f"{path} needs {format_bytes(needed_bytes)} and its disk has {format_bytes(free)} left",
            hint="Free some space or choose another place, then run the same command again",
            subject=str(path),
        )
