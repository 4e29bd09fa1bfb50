"""attempt: one process life of a run: where it goes on, and whether it may.

Promises: a state is continued only by what it was written for; other data, another base model or other settings are
refused with both values and the option that overrides, and an override is recorded in every later lineage; what changes
bits but not the meaning (threads, device, versions) is said. A damaged checkpoint is named, set aside, and the one
before it is used. Does not train and does not talk to object storage: `fetch` is given.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from datakit.data.order import Cursor
from datakit.errors import Refused, UsageError
from datakit.events import Caution, Note, OnEvent
from datakit.feed.dataset import Dataset
from datakit.storage import disk
from datakit.train.checkpoint import Checkpoint, State, load_checkpoint
from datakit.train.model import BaseModel
from datakit.train.recipe import Recipe
from datakit.train.shelf import ADAPTER_DIR, CHECKPOINTS_NAME, checkpoints, newest_checkpoint, set_aside, step_of
from datakit.version.lineage import RUN_NAME, read_run

RUN_FORMAT = 1

Resume: TypeAlias = Literal["auto", "never"]
"""Continue from the newest valid checkpoint if there is one; or start anew, which needs a run directory without any."""

Fetch: TypeAlias = Callable[[Path, int], str | None]

Accept: TypeAlias = Literal["data", "model", "settings"]
"""What a resumed state may have been written for that differs from this attempt's."""


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
    fetch: Fetch = lambda _directory, _step: None,
    on_event: OnEvent,
) -> Start:
    """Decide where an attempt begins; the caller holds the run's lock.

    Args:
        run: The run directory.
        identity: What this attempt trains: `data`, `base_model`, `settings`.
        resume: `auto` or `never`.
        accept: What may differ from the state's identity.
        fetch: Brings a checkpoint of a colder tier into the given directory if it is newer than the given step (-1 when
            none is here), and says from where; or gives None.
        on_event: Hears what was found.

    Raises:
        Refused: The newest valid state was written for something else, or `never` was asked and there is a state.
        UsageError: An option has no such value.
    """
    _check_words(resume, accept)
    directory = run / CHECKPOINTS_NAME
    disk.sweep(run)
    disk.sweep(directory)
    number = len(read_run(run).get("attempts", [])) + 1
    if resume == "never":
        if (run / ADAPTER_DIR).exists() or checkpoints(directory):
            raise Refused(
                f"{run} holds a run already, and --resume never starts anew",
                hint=f"Name another --output, or remove it first: rm -r {run}",
                subject=str(run),
            )
        return Start(number, None, "local", Cursor(), ())
    path = _newest_here(directory, on_event)
    source = fetch(directory, -1 if path is None else step_of(path))
    if source is not None:
        path = _newest_here(directory, on_event)
    if path is None:
        return Start(number, None, "local", Cursor(), ())
    return _continue(path, number, source or "local", identity, accept, on_event)


def _newest_here(directory: Path, on_event: OnEvent) -> Path | None:
    path, skipped = newest_checkpoint(directory)
    for bad, reason in skipped:
        on_event(Caution(f"checkpoint {bad.name} is not valid and is set aside as {set_aside(bad).name}: {reason}"))
    return path


def _check_words(resume: str, accept: Collection[str]) -> None:
    if resume not in get_args(Resume):
        raise UsageError(f"--resume {resume!r} is not one of {', '.join(get_args(Resume))}", subject=resume)
    for word in accept:
        if word not in get_args(Accept):
            raise UsageError(f"--accept {word!r} is not one of {', '.join(get_args(Accept))}", subject=word)


def _continue(
    path: Path, number: int, source: str, identity: Mapping[str, Any], accept: Collection[str], on_event: OnEvent
) -> Start:
    checkpoint = load_checkpoint(path)
    state = checkpoint.state
    found = check_differences(path, state, identity, accept=accept, on_event=on_event)
    moved = any(d.what == "data" or (d.what == "settings" and "seed" in d.fields) for d in found)
    cursor = Cursor() if moved else state.cursor
    new = tuple({"what": d.what, "from": d.before, "to": d.after, "step": state.step} for d in found)
    on_event(Note(_resuming(path, source, state.step, cursor, identity["data"])))
    return Start(number, checkpoint, source, cursor, (*state.overrides, *new))


def check_differences(
    path: Path, state: State, identity: Mapping[str, Any], *, accept: Collection[str], on_event: OnEvent
) -> list[Difference]:
    """What differs between a state and this attempt, all of it accepted.

    Raises:
        Refused: Something differs that is not in `accept`, or the state is past the last step.
    """
    found = differences(state.identity, identity)
    for difference in found:
        if difference.what not in accept:
            raise Refused(
                f"{path.name} was written for {difference.what} {difference.before}; this is {difference.after}",
                hint=f"Train into another --output, or continue all the same with --accept {difference.what}",
                subject=str(path),
            )
        on_event(Caution(f"continuing with other {difference.what}: {difference.before}, now {difference.after}"))
    if state.step > identity["settings"]["steps"]:
        raise Refused(
            f"{path.name} is past the end: train.steps is {identity['settings']['steps']}",
            hint="Raise train.steps, or name another --output",
            subject=str(path),
        )
    return found


def identity_of(*, data: Dataset, base: BaseModel, recipe: Recipe) -> dict[str, Any]:
    """What an attempt trains; a state belongs to one of these."""
    return {
        "data": {"name": data.name, "layout_digest": data.digest, "samples": len(data)},
        "base_model": {"name": base.name, "digest": base.digest},
        "settings": recipe.deciding(),
    }


def _resuming(path: Path, source: str, step: int, cursor: Cursor, data: Mapping[str, Any]) -> str:
    where = f"epoch {cursor.epoch}, sample {cursor.samples} of {data['samples']}"
    return f"resuming after step {step} from {path.name} ({source}, verified): {where}"


@dataclass(frozen=True, slots=True)
class Difference:
    """What a state was written for and this attempt has otherwise.

    Attributes:
        what: `data`, `model` or `settings`.
        before: The state's value, in words.
        after: This attempt's.
        fields: The settings that differ; empty for the others.
    """

    what: str
    before: str
    after: str
    fields: tuple[str, ...] = ()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between two identities, in words that a person can compare."""
    found = []
    if before["data"]["layout_digest"] != after["data"]["layout_digest"]:
        found.append(Difference("data", _data_words(before["data"]), _data_words(after["data"])))
    if before["base_model"]["digest"] != after["base_model"]["digest"]:
        found.append(Difference("model", _model_words(before["base_model"]), _model_words(after["base_model"])))
    old, new = before["settings"], after["settings"]
    fields = tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))
    if fields:
        found.append(Difference("settings", _fields_words(old, fields), _fields_words(new, fields), fields))
    return found


def _data_words(data: Mapping[str, Any]) -> str:
    return f"{data['name']} ({data['samples']} samples, layout {data['layout_digest'][:12]})"


def _model_words(model: Mapping[str, Any]) -> str:
    return f"{model['name']} ({model['digest'][:12]})"


def _fields_words(settings: Mapping[str, Any], fields: Sequence[str]) -> str:
    return ", ".join(f"{name} {json.dumps(settings.get(name))}" for name in fields)


def check_geometry(before: Mapping[str, Any], after: Mapping[str, Any], *, on_event: OnEvent) -> None:
    """Say what makes a continued run differ in its last bits from an undisturbed one."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            on_event(
                Caution(
                    f"{name} was {before.get(name)}, now {after.get(name)}: "
                    "the run goes on, and will not be bitwise equal to an undisturbed one"
                )
            )


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
