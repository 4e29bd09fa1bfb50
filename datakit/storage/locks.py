"""locks: a sync keeps others from writing where it writes, for as long as it does.

Nothing is correct only because of a lock (see `disk`); it keeps two runs from doing the same work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import NotAllowed
from datakit.storage import disk
from datakit.storage.commit import lock_path
from datakit.storage.moves import SyncPlan

LOCK_NAME = ".sync.lock"
"""The lock of whoever fetches into a directory, inside it; gone with its holder."""


@contextlib.contextmanager
def alone(plan: SyncPlan, path: Path) -> Iterator[None]:
    """Keep others from writing there: by a lock inside the place, since what is above it may belong to somebody else.

    One file is locked by its own name, so that several may come into a folder at once. A commit is made by renaming
    its whole directory, and locks beside that: where this could happen, the lock beside is taken too.
    """
    with contextlib.ExitStack() as stack:
        if plan.held.single:
            (name,) = plan.held.items
            stack.enter_context(disk.exclusive(lock_path(path / name), purpose=f"writing {path / name}"))
        else:
            if plan.kind == "commit" and path.absolute().name:
                with contextlib.suppress(NotAllowed):
                    stack.enter_context(disk.exclusive(lock_path(path), purpose=f"writing {path}"))
            stack.enter_context(disk.exclusive(path / LOCK_NAME, purpose=f"writing {path}"))
            for lock in _locks_below(plan, path):
                stack.enter_context(disk.exclusive(lock, purpose=f"writing {lock.parent}"))
        yield


def _locks_below(plan: SyncPlan, path: Path) -> list[Path]:
    """The locks of commits that lie below a folder of files, and those that somebody has left or holds in a folder."""
    if plan.kind == "commit":
        return []
    names = [Path(name) for name in plan.held.items]
    folders = {folder for name in names for folder in name.parents if folder.name}
    commits = {name.parent for name in names if name.name == MANIFEST_NAME and name.parent in folders}
    beside = [lock_path(path / folder) for folder in sorted(commits)]
    inside = [path / folder / LOCK_NAME for folder in sorted(folders)]
    return beside + [lock for lock in inside if lock.parent.relative_to(path) in commits or lock.exists()]
