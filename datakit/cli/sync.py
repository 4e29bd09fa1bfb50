"""sync: `datakit sync`, bring what one place holds to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.settings import Settings
    from datakit.storage.sync import SyncPlan, SyncResult

Source = Annotated[
    str | None, typer.Argument(metavar="SRC", help="Path or URL: a dataset or other commit, a folder, a file.")
]
Destination = Annotated[
    str | None, typer.Argument(metavar="DEST", help="Path or URL; a file goes into it if it is a folder or ends in /.")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="VERSION", help="Instead of SRC: dvc.lock:STAGE[:OUT] or FILE.dvc.")
]
To = Annotated[
    str | None, typer.Option("--to", metavar="VERSION", help="Instead of DEST: into DVC's remote, recorded there.")
]
Remote = Annotated[str | None, typer.Option(metavar="R", help="DVC remote, by name or URL.  [default: the project's]")]
Budget = Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes that DEST may hold, such as 500GB.")]
Delete = Annotated[bool, typer.Option("--delete", help="Delete what DEST holds besides; needs --max-delete.")]
MaxDelete = Annotated[int | None, typer.Option(metavar="N", help="Delete nothing if more files than this would go.")]
Repair = Annotated[bool, typer.Option("--repair", help="Read what DEST holds; move what is damaged again.")]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Of a folder, only files whose names match; may be repeated."),
]
Exclude = Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="And none that match; may be repeated.")]
MaxRequests = Annotated[
    int | None, typer.Option(metavar="N", help="Make no more requests than this, those that fail included.")
]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="X", help="Spend no more on requests and traffic, in the currency of the store's price."),
]
Flush = Annotated[
    bool, typer.Option("--flush", help="Finish the write-back of the run SRC, or of all runs here, the newest first.")
]
Deadline = Annotated[str | None, typer.Option(metavar="TIME", help="With --flush: when to end.  [default: 10m]")]
Bandwidth = Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes a second at most, such as 50MB.")]
RequestRate = Annotated[float | None, typer.Option(metavar="N", help="Requests a second at most.")]
Concurrency = Annotated[int | None, typer.Option(metavar="N", help="Requests under way at once.  [default: 16]")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "sync", example="datakit sync data/chat/train s3://my-bucket/chat/train")
    def sync(
        src: Source = None,
        dest: Destination = None,
        from_: From = None,
        to: To = None,
        remote: Remote = None,
        budget: Budget = None,
        delete: Delete = False,
        max_delete: MaxDelete = None,
        repair: Repair = False,
        flush: Flush = False,
        deadline: Deadline = None,
        include: Include = None,
        exclude: Exclude = None,
        max_requests: MaxRequests = None,
        max_cost: MaxCost = None,
        bandwidth: Bandwidth = None,
        request_rate: RequestRate = None,
        concurrency: Concurrency = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Make DEST hold what SRC holds, verified before it is visible where SRC says what it must be.

        A dataset, checkpoint, adapter or model goes member by member, each compared with its manifest, which goes last,
        so DEST has all of it or none. Other folders and prefixes are compared by size and by the checksum that the
        store has of them; the end says of how many files it has none. Killed or cut, the same command goes on.
        With --from, SRC is a version that DVC records, and with --to its remote is DEST; neither needs git or dvc.
        """
        with frame.run("sync", json=json) as session:
            flags = {"concurrency": concurrency, "bandwidth": bandwidth, "request_rate": request_rate}
            settings = session.settings(params, flags={f"sync.{name}": value for name, value in flags.items()})
            chosen: dict[str, Any] = {"budget": budget, "delete": delete, "max_delete": max_delete, "repair": repair}
            chosen |= {"max_requests": max_requests, "max_cost": max_cost}
            places = [place for place in (src, dest) if place is not None]
            if flush or deadline is not None:
                others = (from_, to, remote, dest, include or None, exclude or None, *chosen.values())
                alone = flush and all(value is None or value is False for value in others)
                _flush(session, src, deadline, settings, alone=alone, dry_run=dry_run)
                return
            _check_words(
                len(places), from_, to, remote, bounded=any(value not in (None, False) for value in chosen.values())
            )
            _check_patterns(from_ or to, include, exclude)
            if to is not None:
                _publish(session, places[0], to, remote, settings, dry_run=dry_run)
                return
            from datakit.storage.filters import Filter
            from datakit.storage.sync import plan_sync, run_sync

            common: dict[str, Any] = {"settings": settings.sync, "stores": settings.stores, **chosen}
            only = Filter(include or (), exclude or ())
            if from_ is not None:
                from datakit.version.bring import parse_pointer, plan_bring
                from datakit.version.bring import run_bring as run_sync

                plan = plan_bring(parse_pointer(from_), places[0], remote=remote, **common)
            else:
                plan = plan_sync(places[0], places[1], only=only, on_event=session.on_event, **common)
            if dry_run:
                session.done(plan, _intention(plan), facts=_plan_facts(plan))
            else:
                result = run_sync(plan, on_event=session.on_event)
                session.done(result, _sentence(result), facts=_facts(result))


def _check_words(num_places: int, from_: str | None, to: str | None, remote: str | None, *, bounded: bool) -> None:
    """See that the words on the command line make one sentence."""
    from datakit.errors import UsageError

    if from_ is not None and to is not None:
        raise UsageError("--from and --to exclude each other", hint="Use one of them")
    wanted = "SRC and DEST" if from_ is None and to is None else "DEST alone" if to is None else "SRC alone"
    if num_places != (2 if wanted == "SRC and DEST" else 1):
        after = "" if from_ is None and to is None else " after --from" if to is None else " after --to"
        raise UsageError(f"datakit sync needs {wanted}{after}, not {num_places} places", hint="datakit sync --help")
    if remote is not None and from_ is None and to is None:
        raise UsageError("--remote needs --from or --to", hint="datakit sync --help")
    if to is not None and bounded:
        message = "--budget, --delete, --repair, --max-requests and --max-cost do not go with --to"
        raise UsageError(message, hint="What lies in DVC's remote is shared by all versions; dvc gc removes from it")


def _flush(
    session: frame.Session, src: str | None, deadline: str | None, settings: Settings, *, alone: bool, dry_run: bool
) -> None:
    """`--flush`."""
    from datakit.errors import UsageError
    from datakit.storage.access import local_path
    from datakit.storage.flush import flush, plan_flush
    from datakit.train.shelf import queues_below
    from datakit.units import format_duration, parse_duration

    if not alone:
        hint = "datakit sync --flush RUN --deadline 25s"
        raise UsageError("--flush and --deadline go together, with a run at most", hint=hint)
    deadline_s = parse_duration(deadline or "10m")
    queues = queues_below(local_path(src or "."))
    if dry_run:
        waiting = plan_flush(queues)
        facts: dict[str, object] = {each.dest: "" if each.here else "not here any more" for each in waiting}
        session.done(waiting, f"Would copy {sum(each.here for each in waiting)}, in this order", facts=facts)
        return
    how: dict[str, Any] = {"settings": settings.sync, "stores": settings.stores}
    done = flush(queues, deadline_s=deadline_s, on_event=session.on_event, **how)
    left = f", {len(done.left)} without a copy" if done.left else ""
    session.done(done, f"{len(done.copied)} copied and verified in {format_duration(done.seconds)}{left}")
    if done.trouble is not None:
        raise done.trouble


def _check_patterns(version: str | None, include: list[str] | None, exclude: list[str] | None) -> None:
    """See that no part of a version is asked for."""
    from datakit.errors import UsageError

    if version is not None and (include or exclude):
        message = "--include and --exclude do not go with --from and --to: a version moves whole"
        raise UsageError(message, hint="Sync it whole, and then from there what you want of it")


def _publish(
    session: frame.Session, src: str, to: str, remote: str | None, settings: Settings, *, dry_run: bool
) -> None:
    """`--to`."""
    from datakit.storage.access import local_path
    from datakit.units import format_bytes, format_duration
    from datakit.version.bring import parse_pointer
    from datakit.version.publish import plan_publish, run_publish

    source = local_path(src)
    common: dict[str, Any] = {"settings": settings.sync, "stores": settings.stores, "on_event": session.on_event}
    plan = plan_publish(source, parse_pointer(to), remote=remote, **common)
    facts: dict[str, object] = {"md5": plan.md5, "files": plan.files, "records": to if plan.records else "nothing new"}
    what = f"{_files(len(plan.moves))} of {plan.files}, {format_bytes(plan.bytes_to_move)}, to {plan.destination}"
    if dry_run:
        session.done(plan, f"Would move {what}", facts=facts)
        return
    result = run_publish(plan, on_event=session.on_event)
    session.done(result, f"Moved {what} in {format_duration(result.seconds)}, verified", facts=facts)


def _files(count: int) -> str:
    from datakit.units import format_number_of

    return format_number_of(count, "file")


def _intention(plan: SyncPlan) -> str:
    from datakit.units import format_bytes

    return f"Would move {_files(len(plan.moves))}, {format_bytes(plan.bytes_to_move)}, to {plan.destination}"


def _plan_facts(plan: SyncPlan) -> dict[str, object]:
    """The plan itself: every file that moves or goes; what stays only as a number."""
    from datakit.units import format_bytes

    facts: dict[str, object] = {
        f"{action.verb} {action.name}": format_bytes(action.bytes)
        for action in plan.actions
        if action.verb not in ("keep", "leave")
    }
    if plan.count("leave"):
        facts["leave"] = f"{_files(plan.count('leave'))} that SRC has not"
    asks = [f"{charge.told} at {charge.store}" for charge in plan.charges if charge.requests.total]
    return facts | {"keep": _files(plan.count("keep")), "requests": "; ".join(asks) or "none"}


def _sentence(result: SyncResult) -> str:
    from datakit.units import format_bytes, format_duration, format_rate

    if result.up_to_date:
        proof = " by its manifest; their bytes were not read" if result.by_manifest and result.kept_files else ""
        return f"{result.destination} is up to date ({_files(result.kept_files)}){proof}"
    if not (result.moved_files or result.deleted):
        return f"Wrote the manifest of {result.destination}; its {_files(result.kept_files)} were there already"
    rate = f", {format_rate(result.moved_bytes / result.seconds)}" if result.moved_bytes and result.seconds else ""
    return (
        f"Moved {_files(result.moved_files)}, {format_bytes(result.moved_bytes)}, to {result.destination} "
        f"in {format_duration(result.seconds)}{rate}{_proof(result)}"
    )


def _proof(result: SyncResult) -> str:
    """What was verified of the files that moved."""
    if not result.moved_files:
        return ""
    if not result.unverified_files:
        return ", verified"
    more = ", ..." if result.unverified_files > len(result.unverified) else ""
    names = f"{', '.join(result.unverified)}{more}"
    return f", {_files(result.unverified_files)} of them not verified ({names}): the source has no checksum for them"


def _facts(result: SyncResult) -> dict[str, object]:
    facts: dict[str, object] = {}
    if result.kept_files and not result.up_to_date:
        facts["kept"] = _files(result.kept_files)
    if result.deleted:
        facts["deleted"] = _files(len(result.deleted))
    if result.manifest_digest:
        facts["manifest"] = result.manifest_digest[:12]
    return facts
