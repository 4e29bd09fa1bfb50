"""fetch: a whole dataset into the cache: from cold, through the hot tier where that has room.

One request says what the dataset is (its manifest). What the cache lacks comes from the hot tier as far as that has
it, and else from the dataset's place; on the way there it fills the hot tier, so that the next machine reads it from
near. That it fits into the cache is known before the first byte moves. A value says what will be done, and
`--dry-run` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from datakit.data.digest import FileEntry
from datakit.data.manifest import Manifest
from datakit.errors import NoSpace
from datakit.events import Note, OnEvent, ignore
from datakit.storage import absent
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import address
from datakit.storage.commit import read_manifest
from datakit.storage.compare import look_for_manifest
from datakit.storage.counts import RequestCounts
from datakit.storage.moves import SyncSettings, gate_before, patient
from datakit.storage.objects import LocalStore
from datakit.storage.store import Location, open_location
from datakit.tier.fill import Brought, Source, bring
from datakit.tier.origin import Copies
from datakit.tier.pool import Pool
from datakit.tier.tiers import Tiers


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What a fetch will do.

    Attributes:
        dataset: Name of the dataset.
        digest: Of its manifest.
        source: Where it lies.
        tier: The tier that will hold it whole.
        files: Objects of it.
        bytes: Their bytes.
        here_bytes: Bytes of those that the tier holds already.
        hot_bytes: Bytes that come from the hot tier, which holds them already.
        cold_bytes: Bytes that come from the source.
        drop_bytes: Bytes that are dropped to make room.
        fills_hot: Whether what comes from the source fills the hot tier on its way.
    """

    dataset: str
    digest: str
    source: str
    tier: str
    files: int
    bytes: int
    here_bytes: int
    hot_bytes: int
    cold_bytes: int
    drop_bytes: int
    fills_hot: bool
    manifest: Manifest = field(repr=False)
    location: Location = field(repr=False)
    pool: Pool = field(repr=False)
    hot: Pool | None = field(repr=False)
    settings: SyncSettings = field(repr=False)
    copies: Mapping[str, Copies] = field(repr=False)

    @property
    def lacking(self) -> dict[str, FileEntry]:
        """What the tier does not hold now."""
        return {entry.sha256: entry for entry in self.manifest.members if not self.pool.has(entry)}


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a fetch has done.

    Attributes:
        dataset: Name of the dataset.
        digest: Of its manifest.
        source: Where it lies.
        tier: The tier that holds it whole now.
        files: Objects of it.
        bytes: Their bytes.
        fetched_files: Objects that came into the tier.
        fetched_bytes: Their bytes.
        waited_files: Objects that another process brought meanwhile.
        hot_files: Objects that came into the hot tier.
        requests: Requests to stores, planning included, by class.
        seconds: How long it took.
    """

    dataset: str
    digest: str
    source: str
    tier: str
    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    waited_files: int
    hot_files: int
    requests: RequestCounts
    seconds: float


def manifest_of(
    place: str, *, settings: SyncSettings, stores: Mapping[str, StoreOptions] | None
) -> tuple[Location, Manifest]:
    """Where a dataset lies, and its manifest: by one request where that is a store, whose rates are kept from here on.

    Raises:
        NotFound: No commit is there.
    """
    location = open_location(place, stores=stores)
    gate_before(settings.limits(), location)
    if location.path is not None:
        return location, read_manifest(location.path)
    held = look_for_manifest(location, patient(location, settings))
    if held is None or held.manifest is None:
        hint = absent.held_in(location.store, location.prefix, where=location.url, most=absent.MOST_NAMED)
        raise absent.nothing_committed(location.url, hint=hint)
    return location, held.manifest


def plan_fetch(
    dataset: str,
    tiers: Tiers,
    *,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> FetchPlan:
    """Look at what is where, and say what has to come.

    Args:
        dataset: A path or URL, or the name of a dataset in the cold tier.
        tiers: The tiers.
        settings: How it will be moved.
        stores: Named stores.
        on_event: Told of places that cannot be asked.

    Raises:
        NotFound: No dataset is there.
        NoSpace: It does not fit; nothing was moved.
        UsageError: The settings name no tier to fetch into.
    """
    settings = settings or SyncSettings()
    pools = list(tiers.pools())
    for each in pools:
        each.check()
    pool, hot = pools[0], pools[1] if len(pools) > 1 else None
    location, manifest = manifest_of(tiers.place_of(dataset), settings=settings, stores=stores)
    objects = {entry.sha256: entry for entry in manifest.members}
    lacking = {digest: entry.bytes for digest, entry in objects.items() if not pool.has(entry)}
    near = {digest for digest in lacking if hot is not None and hot.has(objects[digest])}
    far = {digest: size for digest, size in lacking.items() if digest not in near}
    copies = {each.name: Copies(each, settings=settings, stores=stores, on_event=on_event) for each in pools}
    with pool.hold(objects):
        choice = pool.fits(lacking, copied=copies[pool.name])
        if choice is not None and choice.short_bytes:
            raise pool.no_room(sum(lacking.values()), choice, pool.usage())
    passes = None
    if hot is not None and far:
        with hot.hold(objects):
            passes = hot.fits(far, copied=copies[hot.name])
    return FetchPlan(
        dataset=manifest.name,
        digest=manifest.digest,
        source=location.url,
        tier=pool.name,
        files=len(objects),
        bytes=sum(entry.bytes for entry in objects.values()),
        here_bytes=sum(entry.bytes for digest, entry in objects.items() if digest not in lacking),
        hot_bytes=sum(lacking[digest] for digest in near),
        cold_bytes=sum(far.values()),
        drop_bytes=sum(each.bytes for each in choice.drop) if choice else 0,
        fills_hot=hot is not None and bool(far) and not (passes and passes.short_bytes),
        manifest=manifest,
        location=location,
        pool=pool,
        hot=hot,
        settings=settings,
        copies=copies,
    )


def run_fetch(plan: FetchPlan, *, on_event: OnEvent = ignore) -> FetchResult:
    """Do what the plan says. Errors as in `fill.bring`."""
    begun = time.monotonic()
    cold = Source(plan.location.store, {each.sha256: plan.location.key(each.name) for each in plan.manifest.members})
    place = address(plan.location)
    plan.pool.open().roster.add(plan.manifest, place=place)
    sources, through = [cold], Brought()
    if plan.hot is not None:
        if plan.fills_hot:
            plan.hot.open().roster.add(plan.manifest, place=place)
            through = _through(plan, plan.hot, cold, on_event)
        plan.pool.roster.add(plan.manifest, place=str(plan.hot.root))
        sources.insert(0, _source(plan.hot, plan.lacking))
    brought = bring(
        plan.pool,
        plan.manifest.members,
        sources=sources,
        copied=plan.copies[plan.tier],
        settings=plan.settings,
        task=f"fetch into {plan.tier}",
        on_event=on_event,
    )
    plan.pool.roster.add(plan.manifest, place=place)  # an eviction meanwhile may have forgotten it
    requests = sum((each.requests for each in plan.copies.values()), plan.location.store.requests)
    return FetchResult(
        dataset=plan.dataset,
        digest=plan.digest,
        source=plan.source,
        tier=plan.tier,
        files=plan.files,
        bytes=plan.bytes,
        fetched_files=brought.files,
        fetched_bytes=brought.bytes,
        waited_files=brought.waited_files,
        hot_files=through.files,
        requests=requests,
        seconds=time.monotonic() - begun,
    )


def _through(plan: FetchPlan, hot: Pool, cold: Source, on_event: OnEvent) -> Brought:
    """Fill the hot tier with what the other lacks; where it has no room after all, that is said and passed by."""
    try:
        return bring(
            hot,
            plan.lacking.values(),
            sources=[cold],
            copied=plan.copies[hot.name],
            settings=plan.settings,
            task="fetch into hot",
            on_event=on_event,
        )
    except NoSpace as error:
        on_event(Note(f"hot is passed by: {error.message}"))
        return Brought()


def _source(hot: Pool, lacking: Mapping[str, FileEntry]) -> Source:
    """The hot tier, as far as it has what is wanted; what is damaged in it is set aside."""
    keys = {
        digest: hot.path(digest).relative_to(hot.root).as_posix() for digest, entry in lacking.items() if hot.has(entry)
    }
    return Source(LocalStore(hot.root), keys, reject=hot.set_aside, holds=lambda digest: hot.has(lacking[digest]))
