"""spool: a directory for bytes on their way from one store to another, which no killed run leaves behind for ever.

It lies in the temporary directory (`TMPDIR`), with the lock of its holder beside it. Before it is made the room is
looked at, and what killed runs left there goes: a lock dies with its process, so a spool that nobody holds is nobody's.
What it does not do: keep anything for the next run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from datakit.errors import NoSpace
from datakit.storage import disk
from datakit.units import format_bytes

PREFIX = "datakit-spool-"


@contextlib.contextmanager
def spool(size_bytes: int) -> Iterator[Path]:
    """A directory of one's own for the length of the block.

    Args:
        size_bytes: The most that will lie in it at once.

    Raises:
        NoSpace: The temporary directory's disk has less left.
    """
    top = Path(tempfile.gettempdir())
    remove_leftovers(top)
    free = disk.free_bytes(top)
    if size_bytes > free:
        raise NoSpace(
            f"{format_bytes(size_bytes)} on their way from store to store do not fit into {top}, "
            f"whose disk has {format_bytes(free)} left",
            hint="Name another directory with TMPDIR, or move less at once: sync.window in params.yaml",
            subject=str(top),
        )
    folder = top / f"{PREFIX}{secrets.token_hex(8)}"
    with disk.exclusive(disk.lock_beside(folder), purpose=f"using {folder}"):
        try:
            with disk.at_door(folder):
                folder.mkdir(mode=0o700)
            yield folder
        finally:
            with disk.at_door(folder):
                disk.remove(folder)


def remove_leftovers(top: Path) -> list[Path]:
    """Remove this user's spools of processes that live no more, and say what it was."""
    removed = []
    for folder in top.glob(f"{PREFIX}*"):
        lock = disk.lock_beside(folder)
        with contextlib.suppress(OSError):  # somebody else clears the same place
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or disk.is_held(lock):
                continue
            disk.remove(folder)
            lock.unlink(missing_ok=True)
            removed.append(folder)
    return removed
