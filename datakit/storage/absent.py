"""absent: why no commit is at a place, and which ones lie one level below it, since those were perhaps meant.

`pack.splits` makes datasets below DEST, and a run keeps checkpoints below a folder: whoever names the folder is told
what it holds. Every room that opens a commit says it with these words. It reads no manifest.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError, InputError, NotAllowed, NotFound
from datakit.storage.objects import LocalStore, Store

MOST_NAMED = 8
"""Commits that a hint lists; in a bucket, also the folders that are looked into for one, a request each."""

_NAME = f"Name the directory of a commit, such as a dataset, which has a {MANIFEST_NAME}"


def no_commit(directory: Path) -> InputError | NotFound:
    """The error of a local path where no manifest is: absent, a file, or a directory without one."""
    if directory.is_dir():
        return nothing_committed(str(directory), hint=held_in(LocalStore(directory), "", where=str(directory)))
    return no_directory(directory, "with a commit", hint=_NAME)


def no_directory(path: Path, what: str, *, hint: str) -> InputError | NotFound:
    """The error of a local path that is to be read and is no directory: a file cannot be used, nothing is not there.

    Args:
        path: Where it is.
        what: What the directory would be, such as `with tars`.
        hint: What to do where a file is.
    """
    if not path.exists():
        return not_there(path)
    return InputError(f"{path} is a file, not a directory {what}", hint=hint, subject=str(path))


def not_there(path: Path) -> NotFound:
    """The error of a local path at which nothing is."""
    hint = f"Look at the path: ls {shlex.quote(str(path.parent))}"
    return NotFound(f"{path} is not there", hint=hint, subject=str(path))


def nothing_committed(where: str, *, hint: str | None) -> NotFound:
    """The error of a place that is there and has no manifest."""
    message = f"{where} has no {MANIFEST_NAME}, so nothing is committed there"
    return NotFound(message, hint=hint or _NAME, subject=where)


def held_in(store: Store, prefix: str, *, where: str, most: int | None = None) -> str | None:
    """What to say of commits one level below a place without a manifest: one listing, and a look into each folder.

    Where folders may not be listed, or hold none, it is None: what is told is that nothing is committed there.

    Args:
        store: Whose place it is.
        prefix: The place in it.
        where: The place as a person would write it.
        most: Folders that are looked into, the last ones; all when None.
    """
    return held_below(where, commits_below(store, prefix, most=most))


def commits_below(store: Store, prefix: str, *, most: int | None = None) -> list[str]:
    """Folders of a place that hold a commit, sorted: one listing, and a look into each; none where that is forbidden.

    Args:
        store: Whose place it is.
        prefix: The place in it.
        most: Folders that are looked into, the last ones; all when None.
    """
    top = f"{prefix}/" if prefix else ""
    found = []
    with contextlib.suppress(DatakitError):
        folders = store.folders(prefix)
        for folder in folders if most is None else folders[-most:]:
            with contextlib.suppress(NotFound, NotAllowed):
                store.head(f"{top}{folder}/{MANIFEST_NAME}")
                found.append(folder)
    return found


def held_below(where: str, names: Sequence[str]) -> str | None:
    """What to say of commits that lie one level below a place; None where there are none.

    Args:
        where: The place as a person would write it.
        names: Theirs, sorted; of many the last are named, which of checkpoints are the newest.
    """
    if not names:
        return None
    more = "..., " if len(names) > MOST_NAMED else ""
    return f"It holds {more}{', '.join(names[-MOST_NAMED:])}; name one: {where}/{names[-1]}"
