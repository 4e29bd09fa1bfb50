"""events: what long work tells whoever listens.

Library code never prints. A verb that takes a while accepts `on_event` and calls it with the values below, from the
thread that called the verb; only `console` draws them. `ignore` is the default listener.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["B", "samples", "files", "steps"]


@dataclass(frozen=True, slots=True)
class Progress:
    """So much of a task is done.

    Attributes:
        task: What is going on, as a person would say it: `pack`, `download`.
        done: Units finished since the task began.
        total: Units in all, or None while unknown.
        unit: What is counted.
    """

    task: str
    done: int
    total: int | None
    unit: Unit


@dataclass(frozen=True, slots=True)
class Note:
    """A fact worth a line: `resuming from step 20`."""

    message: str


@dataclass(frozen=True, slots=True)
class Caution:
    """Something the user should know and did not ask for; shown as a warning and kept in the JSON result."""

    message: str
    hint: str | None = None


Event: TypeAlias = Progress | Note | Caution
OnEvent: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Drop the event."""
