"""tier: `datakit tier status|fetch|pin|unpin|evict|verify|gc`, the hot tier and the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datakit.settings import Settings
    from datakit.tier.audit import Audit
    from datakit.tier.eviction import Eviction
    from datakit.tier.fetch import FetchPlan, FetchResult
    from datakit.tier.origin import Copies
    from datakit.tier.pool import Pool
    from datakit.tier.roster import Known
    from datakit.tier.status import TierStatus
    from datakit.tier.tiers import Tiers
    from datakit.tier.waste import Waste

Tier = Annotated[str, typer.Argument(metavar="TIER", help="hot or cache, as the settings name them under tiers.")]
AnyTier = Annotated[str | None, typer.Argument(metavar="TIER", help="hot or cache.  [default: both]")]
Place = Annotated[str, typer.Argument(metavar="DATASET", help="Name of a dataset in cold, or its path or URL.")]
Dataset = Annotated[
    str, typer.Argument(metavar="DATASET", help="Its name, a place that holds it, or 8 digits of its digest.")
]
AnyDataset = Annotated[str | None, typer.Argument(metavar="DATASET", help="As above.  [default: all that lies there]")]
Bytes = Annotated[
    str | None, typer.Option("--bytes", metavar="SIZE", help="Instead of DATASET: free so much, such as 100GB.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Look at sizes only; read nothing.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    tier = frame.group(app, "tier", help="See, fill, pin, empty and verify the hot tier and the cache.")
    _add_status(tier)
    _add_fetch(tier)
    _add_pin(tier)
    _add_unpin(tier)
    _add_evict(tier)
    _add_verify(tier)
    _add_gc(tier)


def _add_status(tier: typer.Typer) -> None:
    @frame.command(tier, "status", example="datakit tier status cache")
    def status(name: AnyTier = None, params: frame.ParamsOption = None, json: frame.JsonOption = False) -> None:
        """Say what each tier holds: bytes against its budget, and how much of each dataset; asks no store."""
        with frame.run("tier status", json=json) as session:
            from datakit.tier.status import status as look

            found = [look(pool) for pool in _tiers(session.settings(params)).pools(name)]
            session.show(found, lambda: "\n\n".join(map(_status_text, found)))


def _add_fetch(tier: typer.Typer) -> None:
    @frame.command(tier, "fetch", example="datakit tier fetch chat/train")
    def fetch(
        place: Place,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Bring a whole dataset into the cache, through the hot tier where that has room for it.

        Room is made and promised before the first request; every 16 MiB is checked while they are written, and a shard
        has its name only when it is whole. Killed, the same command goes on. Exits with 5 where it does not fit.
        """
        with frame.run("tier fetch", json=json) as session:
            from datakit.tier.fetch import plan_fetch, run_fetch

            settings = session.settings(params)
            plan = plan_fetch(
                place, _tiers(settings), settings=settings.sync, stores=settings.stores, on_event=session.on_event
            )
            if dry_run:
                session.done(plan, _intention(plan), facts=_plan_facts(plan))
            else:
                result = run_fetch(plan, on_event=session.on_event)
                session.done(result, _fetched(result), facts=_facts(result))


def _add_pin(tier: typer.Typer) -> None:
    @frame.command(tier, "pin", example="datakit tier pin cache chat/train")
    def pin(
        name: Tier,
        dataset: Place,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Have what a tier holds of a dataset, and what comes of it, stay until it is unpinned.

        One that the tier does not know yet is looked up at its place, by one request; nothing is fetched.
        """
        with frame.run("tier pin", json=json) as session:
            from datakit.errors import NotFound

            settings = session.settings(params)
            pool = _tiers(settings).pool(name)
            pool.check()
            try:
                known = _find(pool, dataset, settings)
                manifest, source, digest, title = known.manifest, None, known.digest, str(known)
            except NotFound:
                from datakit.storage.catalog import address
                from datakit.tier.fetch import manifest_of

                where = _tiers(settings).place_of(dataset)
                location, manifest = manifest_of(where, settings=settings.sync, stores=settings.stores)
                source, digest, title = address(location), manifest.digest, manifest.name
            if not dry_run:
                pool.open().roster.add(manifest, place=source)
                pool.roster.pin(digest)
            said = f"{'Would pin' if dry_run else 'Pinned'} {title} in {pool.root}"
            session.done({"tier": name, "place": str(pool.root), "digest": digest, "pinned": not dry_run}, said)


def _add_unpin(tier: typer.Typer) -> None:
    @frame.command(tier, "unpin", example="datakit tier unpin cache chat/train")
    def unpin(
        name: Tier,
        dataset: Dataset,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Let a pinned dataset go again when room is needed."""
        with frame.run("tier unpin", json=json) as session:
            settings = session.settings(params)
            pool = _tiers(settings).pool(name)
            pool.check()
            known = _find(pool, dataset, settings)
            if not dry_run:
                pool.roster.unpin(known.digest)
            said = f"{'Would unpin' if dry_run else 'Unpinned'} {known} in {pool.root}"
            session.done({"tier": name, "place": str(pool.root), "digest": known.digest, "pinned": dry_run}, said)


def _add_evict(tier: typer.Typer) -> None:
    @frame.command(tier, "evict", example="datakit tier evict cache chat/train")
    def evict(
        name: Tier,
        dataset: Annotated[str | None, typer.Argument(metavar="DATASET", help="Which; or give --bytes.")] = None,
        size: Bytes = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Drop a dataset from a tier, or so many bytes of whatever is needed last.

        Nothing goes that is pinned, or that no colder place verifiably holds now, as one listing of each tells; what
        stays is said. Exits with 3 where some of DATASET stays, with 5 where so many bytes may not go.
        """
        with frame.run("tier evict", json=json) as session:
            from datakit.errors import UsageError
            from datakit.tier import eviction
            from datakit.units import parse_bytes

            settings = session.settings(params)
            pool = _tiers(settings).pool(name)
            pool.check()
            copies = _copies(pool, settings, session)
            if (dataset is None) == (size is None):
                raise UsageError("datakit tier evict needs DATASET or --bytes", hint="datakit tier evict --help")
            if dataset is not None:
                plan = eviction.plan_eviction(pool, _find(pool, dataset, settings), copied=copies)
            else:
                plan = eviction.plan_room(pool, parse_bytes(size or 0), copied=copies)
            if not dry_run:
                plan = eviction.evict(pool, plan)
            session.done(plan, _evicted(plan, dry_run=dry_run))
            plan.raise_kept()


def _add_verify(tier: typer.Typer) -> None:
    @frame.command(tier, "verify", example="datakit tier verify cache chat/train --quick")
    def verify(
        name: AnyTier = None,
        dataset: AnyDataset = None,
        quick: Quick = False,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Compare what a tier holds with the manifests, and set aside what is damaged; says the byte where it can.

        What is set aside is fetched again by whoever needs it. Exits with 4 where something was damaged.
        """
        with frame.run("tier verify", json=json) as session:
            from datakit.tier.audit import audit

            settings = session.settings(params)
            found = []
            for pool in _tiers(settings).pools(name):
                pool.check()
                known = None if dataset is None else _find(pool, dataset, settings)
                copied = None if dry_run else _copies(pool, settings, session)
                found.append(audit(pool, dataset=known, quick=quick, copied=copied, on_event=session.on_event))
            session.show(found, lambda: "\n".join(map(_audit_text, found)))
            for each in found:
                each.raise_damage()


def _add_gc(tier: typer.Typer) -> None:
    @frame.command(tier, "gc", example="datakit tier gc cache --dry-run")
    def gc(
        name: AnyTier = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Remove what nobody needs: leftovers of killed fetches, damaged files, objects of no known dataset.

        Leftovers stay for a day, because the same fetch goes on with them; a damaged file, or an object of no known
        dataset, stays where nothing else is known to hold it. Fetch the dataset again, and both are known.
        """
        with frame.run("tier gc", json=json) as session:
            import time

            from datakit.tier.waste import find_waste, remove_waste

            settings = session.settings(params)
            found = []
            for pool in _tiers(settings).pools(name):
                pool.check()
                found.append(find_waste(pool, copied=_copies(pool, settings, session), now_s=time.time()))
                if not dry_run:
                    remove_waste(pool, found[-1])
            session.done(found, "\n".join(_waste_text(each, dry_run=dry_run) for each in found))


def _tiers(settings: Settings) -> Tiers:
    from datakit.tier.tiers import Tiers

    return Tiers(settings.tiers)


def _find(pool: Pool, dataset: str, settings: Settings) -> Known:
    return _tiers(settings).find(pool, dataset, stores=settings.stores)


def _copies(pool: Pool, settings: Settings, session: frame.Session) -> Copies:
    from datakit.tier.origin import Copies

    return Copies(pool, settings=settings.sync, stores=settings.stores, on_event=session.on_event)


def _status_text(found: TierStatus) -> str:
    from datakit.console import format_table
    from datakit.units import format_bytes

    head = f"{found.tier} at {found.place}: {format_bytes(found.used_bytes)} of {format_bytes(found.budget_bytes)} used"
    parts = {"arriving": found.arriving_bytes, "aside": found.aside_bytes}
    more = "".join(f", {format_bytes(size)} {what}" for what, size in parts.items() if size)
    line = f"{head}{more}; {format_bytes(found.disk_free_bytes)} free on its disk"
    if not found.datasets:
        return f"{line}\nno dataset is known there"
    rows = [
        (
            each.name,
            each.digest[:12],
            f"{each.objects}/{each.of_objects}",
            f"{format_bytes(each.bytes)} of {format_bytes(each.of_bytes)}",
            "pinned" if each.pinned else "",
        )
        for each in found.datasets
    ]
    return f"{line}\n{format_table(rows, header=('DATASET', 'DIGEST', 'FILES', 'BYTES', 'PIN'))}"


def _intention(plan: FetchPlan) -> str:
    from datakit.units import format_bytes

    if plan.here_bytes == plan.bytes:
        return f"{plan.tier} holds {plan.dataset} whole"
    return f"Would fetch {format_bytes(plan.bytes - plan.here_bytes)} of {plan.dataset} into {plan.tier}"


def _plan_facts(plan: FetchPlan) -> dict[str, object]:
    from datakit.units import format_bytes

    sizes = {
        "here already": plan.here_bytes,
        "from hot": plan.hot_bytes,
        f"from {plan.source}": plan.cold_bytes,
        "dropped for it": plan.drop_bytes,
    }
    facts: dict[str, object] = {name: format_bytes(size) for name, size in sizes.items() if size}
    return {**facts, "through hot": "yes"} if plan.fills_hot else facts


def _fetched(result: FetchResult) -> str:
    from datakit.units import format_bytes, format_duration, format_number_of

    if not result.fetched_files and not result.waited_files:
        return f"{result.tier} holds {result.dataset} whole ({format_number_of(result.files, 'file')})"
    what = f"{format_number_of(result.fetched_files, 'file')}, {format_bytes(result.fetched_bytes)}"
    others = f"; {format_number_of(result.waited_files, 'file')} came by another process" if result.waited_files else ""
    time = format_duration(result.seconds)
    return f"Fetched {what}, of {result.dataset} into {result.tier} in {time}, verified{others}"


def _facts(result: FetchResult) -> dict[str, object]:
    from datakit.units import format_number_of

    facts: dict[str, object] = {"manifest": result.digest[:12]}
    return facts | ({"through hot": format_number_of(result.hot_files, "file")} if result.hot_files else {})


def _evicted(plan: Eviction, *, dry_run: bool) -> str:
    from datakit.units import format_bytes, format_number_of

    what = f"{format_number_of(len(plan.drop), 'object')}, {format_bytes(plan.bytes)}"
    if plan.other_bytes:
        what += f", and leftovers of {format_bytes(plan.other_bytes)}"
    kept = ", ".join(f"{format_bytes(size)} {reason}" for reason, size in plan.kept_bytes.items())
    return f"{'Would drop' if dry_run else 'Dropped'} {what}, from {plan.place}" + (f"; stays: {kept}" if kept else "")


def _audit_text(found: Audit) -> str:
    from datakit.units import format_bytes, format_number_of

    looked = "sizes looked at" if found.quick else f"{format_bytes(found.bytes)} read"
    absent = f", {format_number_of(found.absent, 'file')} not here" if found.absent else ""
    if not found.damage:
        return f"{found.tier} is whole: {format_number_of(found.objects, 'object')}, {looked}{absent}"
    return "\n".join(f"{each.file}: {each.problem}" for each in found.damage)


def _waste_text(waste: Waste, *, dry_run: bool) -> str:
    from datakit.units import format_bytes, format_number_of

    names: Sequence[str] = (*waste.left, *waste.aside, *waste.orphans)
    only = "".join(f"\n  {name}" for name in waste.kept_orphans)
    stays = f"\nstay, of no known dataset and in no other place that is known:{only}" if only else ""
    if not names:
        return f"{waste.place} holds nothing to remove{stays}"
    listed = "".join(f"\n  {name}" for name in names)
    verb = "Would remove" if dry_run else "Removed"
    kept = f"; damaged files that stay: {waste.kept_aside}" if waste.kept_aside else ""
    what = f"{format_number_of(len(names), 'file')}, {format_bytes(waste.bytes)}"
    return f"{verb} {what}, from {waste.place}{kept}:{listed}{stays}"
