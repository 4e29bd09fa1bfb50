"""receipts: sources as old as those that pack may trust, and what of a dataset is the same file."""

from __future__ import annotations

import os
import time
from pathlib import Path

HOUR_S = 3600


def age(root: Path, *, by_s: float = HOUR_S) -> Path:
    """Give all files of a folder the time that they would have an hour after they were written."""
    for path in root.rglob("*.*"):
        os.utime(path, (time.time() - by_s, time.time() - by_s))
    return root


def inodes(dataset: Path) -> dict[str, int]:
    """Of each shard by name."""
    return {path.name: path.stat().st_ino for path in dataset.glob("*.tar")}
