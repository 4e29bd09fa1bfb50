"""identity: what a state was written for, and whether it may go on for something else.

Promises: other data, another base model or other settings are refused with both values and the option that overrides;
what was fetched is looked at before it lies among the run's own. Compares values only, and records nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.errors import Refused
from datakit.events import Caution, OnEvent, ignore
from datakit.feed.dataset import Dataset
from datakit.train.checkpoint import State, load_state
from datakit.train.model import BaseModel
from datakit.train.recipe import Recipe
from datakit.train.shelf import check_of_run, step_name

_SHAPING = ("rank", "targets")
"""Settings that decide which tensors an adapter has."""


def identity_of(*, data: Dataset, base: BaseModel, recipe: Recipe) -> dict[str, Any]:
    """What an attempt trains; a state belongs to one of these."""
    return {
        "data": {"name": data.name, "layout_digest": data.digest, "samples": len(data)},
        "base_model": {"name": base.name, "digest": base.digest},
        "settings": recipe.deciding(),
    }


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


def check_fetched(run: Path, commit: Path, identity: Mapping[str, Any], *, accept: Collection[str]) -> None:
    """See that a checkpoint that was fetched is one that this run may go on from.

    Raises:
        Refused: It is not; what to do about it is said for the destination, not for the run that lies here.
    """
    state = load_state(commit)
    try:
        if differences(state.identity, identity):  # the same identity is the same run, wherever it was begun
            check_of_run(run, commit, accept=accept)
        check_differences(Path(step_name(state.step)), state, identity, accept=accept, on_event=ignore)
    except Refused as error:
        raise Refused(
            f"{error.message}; it was not brought into {run}",
            hint=f"If that is another run's, name another --write-back. {error.hint}",
            subject=error.subject,
        ) from None


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
        if shaping := [name for name in difference.fields if name in _SHAPING]:
            raise Refused(
                f"{path.name} was written for {difference.before}; this is {difference.after}, and another "
                f"{' and '.join(shaping)} makes another adapter",
                hint="Train into another --output",
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
