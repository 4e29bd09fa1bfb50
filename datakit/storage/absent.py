"""absent: why no commit is at a place, and which ones lie one level below it, since those were perhaps meant.

`pack.splits` makes datasets below DEST, and a run keeps checkpoints below a folder: whoever names the folder is told
what it holds. Every room that opens a commit says it with these words. It reads no manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import InputError, NotFound

MOST_NAMED = 8
"""Commits that a hint lists, and places that are looked into for one."""

_NAME = f"Name the directory of a commit, such as a dataset, which has a {MANIFEST_NAME}"


def no_commit(directory: Path) -> InputError | NotFound:
    """The error of a local path where no manifest is: absent, a file, or a directory without one."""
    if directory.is_dir():
        names = sorted(path.parent.name for path in directory.glob(f"*/{MANIFEST_NAME}"))
        return nothing_committed(str(directory), hint=held_below([directory / name for name in names]))
    if directory.exists():
        message = f"{directory} is a file, not a directory with a commit"
        return InputError(message, hint=_NAME, subject=str(directory))
    return not_there(directory)


def not_there(path: Path) -> NotFound:
    """The error of a local path at which nothing is."""
    return NotFound(f"{path} is not there", hint=f"Look at the path: ls {path.parent}", subject=str(path))


def nothing_committed(where: str, *, hint: str | None) -> NotFound:
    """The error of a place that is there and has no manifest."""
    message = f"{where} has no {MANIFEST_NAME}, so nothing is committed there"
    return NotFound(message, hint=hint or _NAME, subject=where)


def held_below(places: Sequence[object]) -> str | None:
    """What to say of commits that lie one level below a place; None where there are none.

    Args:
        places: As a person would write each of them, sorted.
    """
    if not places:
        return None
    names = [str(place).rpartition("/")[2] for place in places[:MOST_NAMED]]
    more = ", ..." if len(places) > MOST_NAMED else ""
    return f"It holds {', '.join(names)}{more}; name one: {places[min(len(places), MOST_NAMED) - 1]}"
