"""moves: the plan of a sync: what a place holds against what another holds, as a value that can be printed and run.

Planning asks few questions: for a commit one GET of its manifest at each remote end, and a listing only when the two
differ; for files one listing at each remote end. It changes nothing, and it refuses here what must not be begun:
another commit at the destination, more deletions than allowed, too small a disk or budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.errors import NoSpace, NotAllowed, UsageError
from datakit.events import Caution, OnEvent, ignore
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.compare import (
    Difference,
    Holding,
    Item,
    Kind,
    look_at_source,
    total_bytes,
)
from datakit.storage.estimate import expected, refuse_unpriced
from datakit.storage.filters import EVERYTHING, Filter, chosen, refuse_parts
from datakit.storage.limits import Gate, Limits
from datakit.storage.objects import LocalStore, Store
from datakit.storage.partial import partial_bytes
from datakit.storage.prices import Charge
from datakit.storage.refusals import (
    refuse_clashes,
    refuse_harm,
    refuse_many,
    refuse_nesting,
    refuse_unlisted,
    refuse_unspeakable,
)
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.sides import Sides, locate
from datakit.storage.store import Location, ObstoreStore, open_location
from datakit.storage.strangers import left_behind
from datakit.storage.transfer import Knobs
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
            files, which can be fetched again, may still be in the disk's cache; what a tier holds is on the disk.
            `always` and `never` say it for all.
        bandwidth: Bytes a second to and from stores together, such as `50MB`; None for all there is.
        request_rate: Requests a second; None for as many as `concurrency` gives.
    """

    part_size: str | int = "16MiB"
    concurrency: int = 16
    window: str | int = "256MiB"
    retries: int = 6
    durability: Durability = "auto"
    bandwidth: str | int | None = None
    request_rate: float | None = None

    def __post_init__(self) -> None:
        self.knobs(durable=True)
        self.limits()

    def limits(self, *, max_requests: int | None = None, max_cost: float | None = None) -> Limits:
        """What a run may take at most, with the rates of these settings."""
        bandwidth = None if self.bandwidth is None else parse_bytes(self.bandwidth)
        return Limits(max_requests, max_cost, requests_per_s=self.request_rate, bytes_per_s=bandwidth)

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
        charges: The same by store and class, with what they cost.
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
    charges: tuple[Charge, ...]
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
    gate: Gate = field(repr=False)

    def original(self, name: str) -> Path | None:
        """Path of a file of the source where that is local."""
        return locate(self.origin, name, single=self.held.single)

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
    max_requests: int | None = None,
    max_cost: float | None = None,
    only: Filter = EVERYTHING,
    on_event: OnEvent = ignore,
) -> SyncPlan:
    """Look at both places and say what has to move; arguments and errors as in `sync.sync`."""
    settings = settings or SyncSettings()
    origin, target = open_location(source, stores=stores), open_location(destination, stores=stores)
    gate = gate_before(settings.limits(max_requests=max_requests, max_cost=max_cost), origin, target)
    if max_delete is not None and max_delete < 0:
        raise UsageError(f"--max-delete {max_delete} is no number of files", hint="Write 0 or more", subject=max_delete)
    if delete and max_delete is None:
        raise UsageError("--delete needs a bound", hint="Say how many files may go: --delete --max-delete 10")
    if origin.url == target.url:
        raise UsageError(f"{origin.url} and {destination} are the same place", hint="Name another DEST")
    with disk.at_door(origin.url):
        held = chosen(look_at_source(origin, patient(origin, settings)), only, origin.url)
    if held.single:
        with disk.at_door(target.url):
            held, origin, target = _single(held, origin, target, into=_into(destination, target, settings, on_event))
    if target.path is not None:
        refuse_clashes(held.items, origin)
    else:
        refuse_unspeakable(held.items, target)
    for said in left_behind(held, origin):
        on_event(said)
    sides = Sides(held, origin, target, patient(target, settings), repair)
    committed = sides.committed()
    if not held.single:
        refuse_nesting(origin, target, delete=delete)
    unchanged = (
        committed is not None and committed.manifest == held.manifest and not (repair or delete or budget is not None)
    )
    if unchanged and sides.is_whole():
        return _plan(sides, Difference(keep=list(held.items.values())), [], settings, committed, gate, up_to_date=True)
    here = sides.here
    difference = sides.compare(committed, only.of(here))
    extra = difference.extra if delete else []
    refuse_harm(held, target, sides.store, here, difference.move, gone=extra)
    refuse_parts(held, here, extra, only)
    refuse_many(extra, max_delete)
    refuse_unlisted(held, origin, patient(origin, settings), extra, connections=settings.concurrency)
    plan = _plan(sides, difference, extra, settings, committed, gate)
    _check_room(plan, here, budget=None if budget is None else parse_bytes(budget))
    gate.expect(plan.requests, sum(charge.cost or 0 for charge in plan.charges))
    return plan


def gate_before(limits: Limits, *places: Location) -> Gate:
    """What stands before stores from now on; before none where nothing is limited.

    Raises:
        UsageError: Money is limited, and what a store costs is not known.
    """
    refuse_unpriced(places, limits)
    gate = Gate(limits)
    if limits != Limits():
        for place in places:
            place.store.limit(gate)
    return gate


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


def _plan(
    sides: Sides,
    difference: Difference,
    extra: Sequence[Item],
    settings: SyncSettings,
    committed: Holding | None,
    gate: Gate,
    *,
    up_to_date: bool = False,
) -> SyncPlan:
    held, target = sides.held, sides.target
    has_manifest = held.manifest is None or (committed is not None and committed.manifest == held.manifest)
    verb: Verb = "put" if target.path is None else "fetch"
    left = [] if extra else difference.extra
    steps = [(verb, difference.move), ("keep", difference.keep), ("delete", extra), ("leave", left)]
    actions = [Action(each, item.name, item.bytes) for each, items in steps for item in items]
    charges = expected(
        held,
        sides.origin,
        target,
        Difference() if up_to_date else difference,
        extra=extra,
        manifests=not (up_to_date or has_manifest),
        part_bytes=settings.knobs(durable=True).part_bytes,
    )
    return SyncPlan(
        source=sides.origin.url,
        destination=f"{target.url}/{next(iter(held.items))}" if held.single else target.url,
        kind=held.kind,
        name=held.manifest.name if held.manifest else None,
        actions=tuple(sorted(actions, key=lambda action: action.name)),
        bytes_to_move=total_bytes(difference.move),
        requests=sum(charge.requests.total for charge in charges),
        charges=charges,
        damaged=tuple(difference.damaged),
        repair=sides.repair,
        settings=settings,
        held=held,
        moves=tuple(difference.move),
        origin=sides.origin,
        target=target,
        manifest_etag=committed.manifest_etag if committed else None,
        has_manifest=has_manifest,
        up_to_date=up_to_date,
        replaced=frozenset((*difference.damaged, *difference.derived)),
        gate=gate,
    )


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
