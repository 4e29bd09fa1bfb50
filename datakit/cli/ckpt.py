"""ckpt: `datakit ckpt ls|verify|pull|prune`, the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datakit.settings import Settings
    from datakit.storage.catalog import Pulled
    from datakit.train.shelf import Held

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="The run's directory, the --output of a training.")]
Source = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="Where they are.  [default: the run's own --write-back]")
]
Copies = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="Where the copies are.  [default: where they were sent]")
]
Keep = Annotated[int | None, typer.Option(metavar="N", help="How many of the newest stay.  [default: 3]")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    ckpt = frame.group(app, "ckpt", help="List, verify, fetch and drop the checkpoints of a run.")
    _add_ls(ckpt)
    _add_verify(ckpt)
    _add_pull(ckpt)
    _add_prune(ckpt)


def _add_ls(ckpt: typer.Typer) -> None:
    @frame.command(ckpt, "ls", example="datakit ckpt ls runs/first")
    def ls(place: RunPath, json: frame.JsonOption = False) -> None:
        """List the checkpoints of RUN and its adapter, with how far write-back is; reads manifests and sizes only."""
        with frame.run("ckpt ls", json=json) as session:
            from datakit.storage.access import local_path
            from datakit.train.shelf import look

            run = local_path(place)
            held = look(run)
            session.show(held, lambda: _table(held))


def _add_verify(ckpt: typer.Typer) -> None:
    @frame.command(ckpt, "verify", example="datakit ckpt verify runs/first")
    def verify(place: RunPath, json: frame.JsonOption = False) -> None:
        """Read every byte of every checkpoint of RUN and of its adapter, and compare it with the manifests.

        Exits with 4 when one of them is not what its manifest says.
        """
        with frame.run("ckpt verify", json=json) as session:
            from datakit.errors import IntegrityError
            from datakit.storage.access import local_path
            from datakit.train.shelf import look
            from datakit.units import agree

            run = local_path(place)
            held = look(run, quick=False)
            session.show(held, lambda: _table(held))
            bad = [one for one in held if one.problem]
            if bad:
                are = agree(len(bad), "is", "are")
                raise IntegrityError(
                    f"{len(bad)} of {len(held)} commits of {run} {are} damaged: {bad[0].problem}",
                    hint="The next training sets them aside and goes on from the one before",
                    subject=bad[0].name,
                )


def _add_pull(ckpt: typer.Typer) -> None:
    @frame.command(ckpt, "pull", example="datakit ckpt pull runs/first --from s3://my-bucket/runs/first")
    def pull(
        place: RunPath,
        source: Source = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Fetch the newest checkpoint that verifies, if it is newer than what RUN holds.

        One that another run made is refused, and so is a RUN that is training. A damaged one of the same name is set
        aside.
        """
        with frame.run("ckpt pull", json=json) as session:
            from datakit.errors import NotFound
            from datakit.storage.access import local_path
            from datakit.storage.catalog import commits_at
            from datakit.train.shelf import CHECKPOINT_GLOB, CHECKPOINTS_NAME, newest_checkpoint

            run = local_path(place)
            url = source or _written_back_to(run)
            settings = session.settings(params)
            there = commits_at(url, pattern=CHECKPOINT_GLOB, settings=settings.sync, stores=settings.stores)
            if not there:
                raise NotFound(f"no checkpoint at {url}", hint="Name the --write-back of a training", subject=url)
            here = newest_checkpoint(run / CHECKPOINTS_NAME).path
            if dry_run:
                newer = [name for name in there if here is None or name > here.name]
                said = f"Would fetch {newer[0]} from {url}" if newer else f"{url} holds nothing newer"
                session.done({"run": str(run), "source": url, "pulled": None, "newer": newer}, said)
                return
            pulled = _pull(run, url, here, settings)
            for each in pulled.skipped:
                session.on_event(each.caution(url))
            session.done(
                {"run": str(run), "source": url, "pulled": pulled.name, "newest": pulled.name or (here and here.name)},
                f"Fetched {pulled.name} from {url}, verified" if pulled.name else f"{url} holds nothing newer",
            )


def _add_prune(ckpt: typer.Typer) -> None:
    @frame.command(ckpt, "prune", example="datakit ckpt prune runs/first --keep 1 --dry-run")
    def prune(
        place: RunPath,
        keep: Keep = None,
        source: Copies = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Drop all but the newest checkpoints of RUN that verify.

        Never drops the last one that verifies, nor one that write-back still needs: the store is asked whether it holds
        the copies, before anything is dropped on their word.
        """
        with frame.run("ckpt prune", json=json) as session:
            from datakit.storage.access import local_path
            from datakit.storage.disk import exclusive
            from datakit.train import shelf

            run = local_path(place)
            settings = session.settings(params, flags={"train.keep": keep})
            number = settings.train.keep
            shelf.look(run)  # says what is wrong with a directory that is no run
            directory = run / shelf.CHECKPOINTS_NAME
            lost = _lost(session, run, directory, source, settings)
            if dry_run:
                gone = shelf.prunable(directory, keep=number, may_go=shelf.droppable(run, lost=lost))
            else:
                with exclusive(run / shelf.LOCK_NAME, purpose=f"training in {run}"):
                    gone = shelf.prune(directory, keep=number, may_go=shelf.droppable(run, lost=lost))
            names = [path.name for path in gone]
            verb = "Would drop" if dry_run else "Dropped"
            sentence = f"{verb} {', '.join(names)}" if names else f"{run} holds nothing to drop"
            session.done({"run": str(run), "keep": number, "dropped": names, "dry_run": dry_run}, sentence)


def _lost(session: frame.Session, run: Path, directory: Path, source: str | None, settings: Settings) -> set[str]:
    """Checkpoints whose copies are gone, which is said; the store is not asked where nothing would be dropped."""
    from datakit.events import Caution
    from datakit.storage.catalog import shelf_at
    from datakit.train import shelf

    if not shelf.is_written_back(run):
        return set()
    wanted = shelf.prunable(directory, keep=settings.train.keep, may_go=shelf.droppable(run), quick=True)
    if not wanted:
        return set()
    lost = shelf.lost_copies(
        run, lambda place: shelf_at(source or place, settings=settings.sync, stores=settings.stores)
    )
    if lost & {path.name for path in wanted}:
        names = ", ".join(sorted(lost))
        said = f"{names}: the copy was verified and is not there any more"
        session.on_event(Caution(said, "The next training with the same --write-back copies them again"))
    return lost


def _written_back_to(run: Path) -> str:
    """The destination that the run's last attempt named."""
    from datakit.errors import UsageError
    from datakit.version.lineage import read_run

    url = read_run(run).get("write_back")
    if not url:
        raise UsageError(f"{run} does not say where it was written back to", hint="Name it with --from URL")
    return str(url)


def _pull(run: Path, url: str, here: Path | None, settings: Settings) -> Pulled:
    """Bring what is newer, while nobody trains there; what another run made is refused."""
    from datakit.storage.catalog import address, pull_newest
    from datakit.storage.copies import note_damage
    from datakit.storage.disk import exclusive
    from datakit.train import shelf

    with exclusive(run / shelf.LOCK_NAME, purpose=f"training in {run}"):
        pulled = pull_newest(
            url,
            run / shelf.CHECKPOINTS_NAME,
            after=None if here is None else here.name,
            pattern=shelf.CHECKPOINT_GLOB,
            settings=settings.sync,
            stores=settings.stores,
            check=lambda commit: shelf.check_of_run(run, commit),
            set_aside=shelf.set_aside,
        )
        note_damage(run / shelf.QUEUE_NAME, address(url, stores=settings.stores), pulled.damaged)
        return pulled


def _table(held: Sequence[Held]) -> str:
    from datakit.console import format_table
    from datakit.units import format_bytes

    if not held:
        return "no checkpoint yet"
    rows = [
        (
            one.name,
            "" if one.step is None else str(one.step),
            format_bytes(one.bytes),
            "ok" if one.problem is None else one.problem,
            one.remote or "",
        )
        for one in held
    ]
    return format_table(rows, header=("name", "step", "size", "state", "write-back"))
