"""attempt: one process life of a run: where it goes on, and whether it may.

Promises: a state is continued only by what it was written for; other data, another base model or other settings are
refused with both values and the option that overrides, and an override is recorded in every later lineage; what changes
bits but not the meaning (threads, device, versions) is said. A damaged checkpoint is named, set aside, and the one
before it is used. Does not train and does not talk to object storage: `fetch` is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from datakit.data.manifest import MANIFEST_NAME
from datakit.data.order import Cursor
from datakit.errors import InputError, IntegrityError, Refused, UsageError
from datakit.events import Caution, Note, OnEvent
from datakit.storage import disk
from datakit.storage.access import local_path
from datakit.storage.commit import manifest_at, refuse_inside
from datakit.train.checkpoint import Checkpoint, load_checkpoint, restore
from datakit.train.identity import check_differences, check_fetched
from datakit.train.launch import check_alone
from datakit.train.shelf import (
    ADAPTER_DIR,
    CHECKPOINT_GLOB,
    CHECKPOINTS_NAME,
    LOCK_NAME,
    QUEUE_NAME,
    UNFINISHED,
    checkpoints,
    is_ours,
    newest_checkpoint,
    set_aside,
    step_of,
    strangers,
)
from datakit.version.lineage import RUN_NAME, read_lineage, read_run

RUN_FORMAT = 1

_LOGS = (".log", ".out", ".err")
"""What a job's script or scheduler writes where its run will be, before it is there (Slurm: `slurm-%j.out`)."""

_FOLDERS = {CHECKPOINTS_NAME, ADAPTER_DIR, QUEUE_NAME, "lost+found"}
"""Those of a run, by which it is not known, as other programs use the names too; and what a fresh ext4 volume holds."""

Resume: TypeAlias = Literal["auto", "never"]
"""Continue from the newest valid checkpoint if there is one; or start anew, which needs a run directory without any."""

Fetch: TypeAlias = Callable[[Path, int, Callable[[Path], None]], str | None]

Accept: TypeAlias = Literal["data", "model", "settings", "stale"]
"""What may differ: what a resumed state was written for, or (`stale`) what the data was made from."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins.

    Attributes:
        number: Of the attempt, from 1.
        checkpoint: What it continues, or None.
        source: Where that came from: `local`, or the URL it was fetched from.
        cursor: Where the next step's samples begin.
        overrides: Everything that was ever allowed to differ, oldest first.
    """

    number: int
    checkpoint: Checkpoint | None
    source: str
    cursor: Cursor
    overrides: tuple[Mapping[str, Any], ...]

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self.checkpoint.state.step if self.checkpoint else 0


def begin(
    run: Path,
    *,
    identity: Mapping[str, Any],
    resume: Resume = "auto",
    accept: Collection[str] = (),
    allowed: Sequence[Mapping[str, Any]] = (),
    fetch: Fetch = lambda _directory, _step, _check: None,
    look: Callable[[], str | None] = lambda: None,
    on_event: OnEvent,
) -> Start:
    """Decide where an attempt begins; the caller holds the run's lock.

    Args:
        run: The run directory.
        identity: What this attempt trains: `data`, `base_model`, `settings`.
        resume: `auto` or `never`.
        accept: What may differ from the state's identity.
        allowed: What the guard of the data has found and was accepted; it stands in the lineage, once.
        fetch: Brings a checkpoint of a colder tier into the given directory if it is newer than the given step (-1 when
            none is here) and the given check lets it pass, and says from where; or gives None.
        look: Names a checkpoint of a colder tier without bringing it, or gives None; asked when nothing may be there.
        on_event: Hears what was found.

    Raises:
        Refused: The newest valid state was written for something else, or `never` was asked and there is a state.
    """
    directory = run / CHECKPOINTS_NAME
    disk.sweep(run)
    disk.sweep(directory)
    number = len(read_run(run).get("attempts", [])) + 1
    if resume == "never":
        check_empty(run)
        check_nothing_there(look())
        return Start(number, None, "local", Cursor(), _overrides((), allowed, step=0))
    path = _newest_here(directory, on_event)

    def check(commit: Path) -> None:
        """Refuse what is of something else before it lies among the run's own, where it would be the newest."""
        check_fetched(run, commit, identity, accept=accept)

    source = fetch(directory, -1 if path is None else step_of(path), check)
    if source is not None:
        path = _newest_here(directory, on_event)
    if path is None:
        return Start(number, None, "local", Cursor(), _overrides((), allowed, step=0))
    _remove_unfinished(directory, path)
    checkpoint = load_checkpoint(path)
    state = checkpoint.state
    found = check_differences(path, state, identity, accept=accept, on_event=on_event)
    moved = any(d.what == "data" or (d.what == "settings" and "seed" in d.fields) for d in found)
    cursor = Cursor() if moved else state.cursor
    new = [{"what": d.what, "from": d.before, "to": d.after} for d in found]
    where = f"epoch {cursor.epoch}, sample {cursor.samples} of {identity['data']['samples']}"
    on_event(Note(f"resuming after step {state.step} from {path.name} ({source or 'local'}, verified): {where}"))
    overrides = _overrides(state.overrides, allowed, step=state.step)
    overrides = (*overrides, *({**each, "step": state.step} for each in new))
    return Start(number, checkpoint, source or "local", cursor, overrides)


def _overrides(
    before: Sequence[Mapping[str, Any]], allowed: Sequence[Mapping[str, Any]], *, step: int
) -> tuple[Mapping[str, Any], ...]:
    """Overrides with those that are new; an attempt that goes on under the same ones writes the same lineage."""
    known = [{name: each.get(name) for name in ("what", "from", "to")} for each in before]
    return (*before, *({**each, "step": step} for each in allowed if each not in known))


def _newest_here(directory: Path, on_event: OnEvent) -> Path | None:
    found = newest_checkpoint(directory)
    for bad, reason in found.skipped:
        if (bad / MANIFEST_NAME).exists():
            on_event(Caution(f"checkpoint {bad.name} is not valid and is set aside as {set_aside(bad).name}: {reason}"))
        else:
            aside = set_aside(bad, prefix=UNFINISHED)
            on_event(Note(f"checkpoint {bad.name} was never whole (it has no manifest) and is moved to {aside.name}"))
    return found.path


def _remove_unfinished(directory: Path, whole: Path) -> None:
    """Remove what was moved away as never whole, once a checkpoint of that step or a later one is."""
    for path in directory.glob(f"{UNFINISHED}{CHECKPOINT_GLOB}*"):
        if path.name.removeprefix(UNFINISHED)[: len(whole.name)] <= whole.name and is_ours(path):
            disk.remove(path)


@contextlib.contextmanager
def leave_nothing(run: Path, *, new: bool) -> Iterator[None]:
    """Remove a new run directory when the block ends by an error before anything in it is worth going on from.

    Args:
        run: The run directory; the caller holds its lock.
        new: Whether this attempt made it.
    """
    try:
        yield
    except BaseException:
        if new and not _holds_something(run):
            disk.remove(run)
        raise


def _holds_something(run: Path) -> bool:
    """Whether there is more than what an attempt writes before its first step."""
    if {path.name for path in run.iterdir()} - {LOCK_NAME, RUN_NAME, QUEUE_NAME, CHECKPOINTS_NAME}:
        return True
    checkpoints_dir = run / CHECKPOINTS_NAME
    return any((run / QUEUE_NAME).glob("*.json")) or (checkpoints_dir.is_dir() and any(checkpoints_dir.iterdir()))


def take_up(start: Start, checkpoint: Checkpoint, **target: Any) -> None:
    """Put a checkpoint into what trains.

    Raises:
        Refused: What was accepted to differ gives the adapter other tensors; nothing is damaged.
        IntegrityError: The checkpoint does not hold what its own state says.
    """
    try:
        restore(checkpoint, **target)
    except IntegrityError as error:
        if len(start.overrides) == len(checkpoint.state.overrides):
            raise
        message = f"what was accepted gives the adapter other tensors: {error.message}"
        raise Refused(message, hint="Train into another --output", subject=error.subject) from None


def check_empty(run: Path) -> None:
    """See that nothing of a run is here.

    Raises:
        Refused: Something is.
    """
    if (run / ADAPTER_DIR).exists() or checkpoints(run / CHECKPOINTS_NAME):
        raise Refused(
            f"{run} holds a run already, and --resume never starts anew",
            hint=f"Name another --output, or remove it first: rm -r {shlex.quote(str(run))}",
            subject=str(run),
        )


def check_nothing_there(place: str | None) -> None:
    """See that nothing of a run is at the destination, whose newest checkpoint is named.

    Raises:
        Refused: Something is.
    """
    if place is not None:
        raise Refused(
            f"{place} is there already, and --resume never starts anew",
            hint="Name another --write-back, or remove what is there first",
            subject=place,
        )


def rehearsal_dir(run: Path) -> Path:
    """Where the rehearsal of a run lies."""
    return disk.beside(run, f"{run.absolute().name}-smoke")


def check_rehearsal(run: Path) -> None:
    """See that a directory holds nothing but an earlier rehearsal.

    Raises:
        Refused: It holds something else.
        NotAllowed: It may not be read.
    """
    with disk.at_door(run):
        names = {path.name for path in run.iterdir()} if run.is_dir() else set()
    if names - {LOCK_NAME} and not read_run(run).get("smoke"):
        raise Refused(
            f"{run} is in the way of a rehearsal and is not an earlier one",
            hint=f"Remove it: rm -r {shlex.quote(str(run))}",
        )


def clear_rehearsal(run: Path) -> None:
    """Remove what an earlier rehearsal left; only what says that it is one, and that says so to the last.

    Raises:
        Refused: The directory holds something else.
    """
    disk.sweep(run)
    check_rehearsal(run)
    for path in sorted(run.iterdir(), key=lambda path: path.name == RUN_NAME):
        if path.name != LOCK_NAME:
            disk.remove(path)


def check_request(resume: str, accept: Collection[str], *, output: Path | str, environ: Mapping[str, str]) -> Path:
    """See that what was asked for can be, before the data is looked at; gives the run directory.

    Args:
        resume: The option of `train`.
        accept: Likewise.
        output: The run directory.
        environ: The environment, which says whether this process is one of several.

    Raises:
        UsageError: It cannot.
        Refused, IntegrityError, NotAllowed: As `check_place`.
    """
    _check_words(resume, accept)
    check_alone(environ)
    hint = "Copy it there while it runs: --write-back URL"
    run = local_path(output, message=f"{output} cannot be a run: a run is a local directory", hint=hint)
    check_place(run)
    return run


def check_place(run: Path) -> None:
    """See that a directory is a run, or may become one.

    It may when it is not there, or holds no more than logs, hidden files and the folders that a killed attempt leaves,
    and in those nothing of another trainer's.

    Raises:
        Refused: It is a commit or lies inside one, holds something else, or is no directory.
        IntegrityError: A manifest that is torn, or contradicts itself, lies there.
        UsageError: The commit there is of a newer format.
        NotAllowed: It may not be read, or what it lies in not be entered.
    """
    hint = "Name a directory that is empty, or not there yet: --output RUN"
    with disk.at_door(run):
        names = {path.name for path in run.iterdir()} if run.is_dir() else set()
        there = next(path for path in (run, *run.absolute().parents) if os.path.lexists(path))
        if not there.is_dir():
            what = "a run is one" if there == run else f"{run} would lie in it"
            raise Refused(f"{there} is not a directory, and {what}", hint=hint, subject=str(run))
    refuse_inside(run)
    manifest = None
    with contextlib.suppress(InputError):  # another program's manifest.json
        manifest = manifest_at(run)
    if manifest is not None:
        message = f"{run} is the {manifest.kind} {manifest.name}, a commit, which holds what its manifest names"
        raise Refused(message, hint=hint, subject=str(run))
    if "attempts" in read_run(run):  # other programs write a `run.json` too
        return
    others = sorted(name for name in names - _FOLDERS if not (name.startswith(".") or name.endswith(_LOGS)))
    if not others or checkpoints(run / CHECKPOINTS_NAME):
        others = strangers(run)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise Refused(f"{run} holds {others[0]}{more}, and is no run", hint=hint, subject=str(run))


def _check_words(resume: str, accept: Collection[str]) -> None:
    """See that options have the values there are.

    Raises:
        UsageError: One has not.
    """
    if resume not in get_args(Resume):
        hint = f"Choose {', '.join(get_args(Resume))}"
        raise UsageError(f"--resume {resume!r} is not one of its words", hint=hint, subject=resume)
    for word in accept:
        if word not in get_args(Accept):
            hint = f"Choose {', '.join(get_args(Accept))}"
            raise UsageError(f"--accept {word!r} is not one of its words", hint=hint, subject=word)


def check_changes(
    checkpoint: Checkpoint, geometry: Mapping[str, Any], versions: Mapping[str, str], *, on_event: OnEvent
) -> list[dict[str, Any]]:
    """Say what changed since a checkpoint and moves bits only, and give it, with the step, for the lineage."""
    made_with = read_lineage(checkpoint.path)["versions"]
    found = check_geometry({**made_with, **checkpoint.state.geometry}, {**versions, **geometry}, on_event=on_event)
    return [{**change, "step": checkpoint.state.step} for change in found]


def check_geometry(before: Mapping[str, Any], after: Mapping[str, Any], *, on_event: OnEvent) -> list[dict[str, Any]]:
    """Say what makes a continued run differ in its last bits from an undisturbed one; gives `what`, `from`, `to`."""
    found = []
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            found.append({"what": name, "from": before.get(name), "to": after.get(name)})
            on_event(
                Caution(
                    f"{name} was {before.get(name)}, now {after.get(name)}: "
                    "the run goes on, and will not be bitwise equal to an undisturbed one"
                )
            )
    return found


def record_attempt(run: Path, start: Start, *, facts: Mapping[str, Any]) -> None:
    """Add the attempt to `run.json`; here, and only here, stand host and time.

    Args:
        run: The run directory.
        start: Where the attempt begins.
        facts: What else the file says: settings, identity, versions, where it is written back to.
    """
    attempts = [*read_run(run).get("attempts", [])]
    attempts.append(
        {
            "attempt": start.number,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "resumed_from": start.checkpoint.path.name if start.checkpoint else None,
            "source": start.source if start.checkpoint else None,
        }
    )
    value = {"format": RUN_FORMAT, "name": run.name, **facts, "attempts": attempts}
    disk.write_atomic(run / RUN_NAME, json.dumps(value, indent=2, sort_keys=True).encode() + b"\n")
