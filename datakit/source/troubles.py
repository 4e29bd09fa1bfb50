"""troubles: records that cannot be packed: each with its place, and what a pack does about them.

A pack stops at them by default and lists them. `--on-error skip` leaves them out and writes a report beside the
destination; `quarantine` also copies their bytes, so that they can be mended. What is left is the same for the same
source, however many workers list it, because troubles come in the source's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datakit.errors import InputError

LISTED = 10
"""Offenders that a message lists; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes of an offender: what a copy is called, where they lie on this machine; a whole file where there is no size.

    Bytes out of a file are a line of the copy, which may hold many.
    """

    name: str
    path: str
    offset: int = 0
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """One offender.

    Attributes:
        where: Its place, as a person would look it up: `chat.jsonl:12`, `cats/a.jpg`.
        problem: What is wrong.
        key: The record's key where it has one.
        hint: What to do about it.
        raws: Its bytes, for quarantine.
    """

    where: str
    problem: str
    key: str | None = None
    hint: str | None = None
    raws: tuple[Raw, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def refusal(troubles: Sequence[Trouble]) -> InputError:
    """The error of a pack that stops at them."""
    first = troubles[0]
    if len(troubles) == 1:
        return InputError(str(first), hint=first.hint, subject=first.where)
    hints = dict.fromkeys(trouble.hint for trouble in troubles if trouble.hint)
    return InputError(
        f"{listing([str(trouble) for trouble in troubles], 'record')} cannot be packed",
        hint="; ".join([*list(hints)[:5], "or leave them out: --on-error skip"]),
        subject=[trouble.where for trouble in troubles[:LISTED]],
    )


def listing(items: Sequence[str], noun: str) -> str:
    """Items as a phrase: how many, the first ten, how many more."""
    more = f", and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''} ({', '.join(items[:LISTED])}{more})"
