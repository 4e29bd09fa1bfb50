"""aside: directories of work beside a destination, which are nobody's result and which Git leaves alone.

Destinations often lie inside a repository, and `git add -A` would record shards that wait for their commit. A
`.gitignore` of `*` in the directory keeps all of it out, itself too, as DVC does with its cache and temporary files.

What it does not do: a directory that becomes a commit by its rename may hold nothing but members, so it has none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from datakit.storage import disk

IGNORE_NAME = ".gitignore"


def make_ignored(path: Path) -> None:
    """Make a directory that Git leaves alone; one that is there is fine."""
    disk.make_dirs(path)
    if not (path / IGNORE_NAME).exists():
        # not synced: what a power cut swallows, the next start writes again
        disk.write_atomic(path / IGNORE_NAME, b"*\n", sync=False)


def remove_bare(path: Path) -> None:
    """Remove such a directory where it holds nothing else."""
    with contextlib.suppress(OSError):  # it is not there, or something has come into it
        if os.listdir(path) == [IGNORE_NAME]:
            (path / IGNORE_NAME).unlink()
        path.rmdir()
