"""stamp: by what a local file is known again without reading it.

A file that was replaced has another inode, one that was written to another size or time, unless somebody set its time
back; that, only its bytes tell. The time is that of the bytes alone: a hard link, which DVC and we make of shards,
changes that of the inode. Does not look at anything: the caller has a status at hand, or stands at the file's door.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Self


class Stamp(NamedTuple):
    """Number of the inode, bytes, and when these were last written, in ns since 1970."""

    inode: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The stamp that a status shows."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)
