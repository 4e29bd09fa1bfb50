"""troubles: records that cannot be packed: each with its place, and what a pack does about them.

A pack stops at them by default and lists them. `--on-error skip` leaves them out and writes a report beside the
destination; `quarantine` also copies their bytes, so that they can be mended. What is left is the same for the same
source, however many workers list it, because troubles come in the source's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from datakit.errors import InputError
from datakit.units import format_count, format_number_of

LISTED = 10
"""Offenders that an error names to programs."""

FETCH_AGAIN = "Fetch it again, or move it away"
"""The hint of a file that is empty: nearly always a download that was lost."""

_SHOWN = 3
"""Offenders that a message shows; it says how many more there are."""

_SHOWN_LETTERS = 80
"""Letters of each."""

_SHOWN_PROBLEM = 140
"""Letters of what is wrong: it may begin with a name, and ends with a reason, of which none is longer than 110."""

_SHOWN_AGAIN = 48
"""Letters of what is wrong, without a reason that was just given: a short name and what it cannot be."""

_HINTS = 2
"""Different hints that an error gives: those that most offenders share."""


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
        file: The name below the source of the file that it is, as the system has it; None of a folder, and of a record.
    """

    where: str
    problem: str
    key: str | None = None
    hint: str | None = None
    raws: tuple[Raw, ...] = ()
    file: str | None = None

    def __str__(self) -> str:
        return _sentence(self.where, self.problem)


def refusal(troubles: Sequence[Trouble], *, limit: int | None = None) -> InputError:
    """The error of a pack that stops at them.

    Args:
        troubles: The offenders, at least one.
        limit: With more than these there may be more of them than these: looking for them ended there.
    """
    first = troubles[0]
    if len(troubles) == 1:
        return InputError(str(first), hint=first.hint, subject=first.where)
    hints = Counter(trouble.hint for trouble in troubles if trouble.hint).most_common(_HINTS)
    return InputError(
        f"{listing(troubles, 'offender', limit=limit)} cannot be packed",
        hint=". ".join([*(hint for hint, _ in hints), "Or leave them out: --on-error skip"]),
        subject=[trouble.where for trouble in troubles[:LISTED]],
    )


def listing(items: Sequence[Trouble | str], noun: str, *, limit: int | None = None) -> str:
    """Items as a phrase: how many, the first three, how many more.

    Args:
        items: What is listed; of an offender its place is cut where it is long, and never why it is one. A reason
            that is the one before it is not said again.
        noun: What it is, one of it.
        limit: With more items than these, it is not known how many there are.
    """
    said = ", ".join(_said(items[:_SHOWN]))
    if limit is not None and len(items) > limit:
        return f"more than {format_number_of(limit, noun)} ({said}, ...)"
    more = f", and {format_count(len(items) - _SHOWN)} more" if len(items) > _SHOWN else ""
    return f"{format_number_of(len(items), noun)} ({said}{more})"


def _said(items: Iterable[Trouble | str]) -> Iterator[str]:
    before = ""
    for item in items:
        if isinstance(item, str):
            yield _cut(item, _SHOWN_LETTERS)
            continue
        what, _, reason = item.problem.partition(": ")
        again = reason and reason == before
        problem = _cut(what, _SHOWN_AGAIN) if again else _cut(item.problem, _SHOWN_PROBLEM, start=27)
        yield _sentence(_cut(item.where, _SHOWN_LETTERS), problem)
        before = reason


def _cut(text: str, letters: int, *, start: int | None = None) -> str:
    """A text of so many letters at most: without its middle, where it is longer, which begins at `start` or there."""
    start = letters * 9 // 16 if start is None else start
    return text if len(text) <= letters else f"{text[:start]}...{text[start + 3 - letters :]}"


def _sentence(where: str, problem: str) -> str:
    return f"{where}{' ' if problem.startswith('is ') else ': '}{problem}"
