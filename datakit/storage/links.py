"""links: a second name for a file, where the file system has such; it saves a copy, and nothing depends on it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from datakit.data.digest import Digester, FileEntry
from datakit.storage import disk
from datakit.storage.regular import open_regular

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
"""Another disk; a file system or a user without hard links; a file with as many as it may have."""


def link(path: Path | str, target: Path) -> bool:
    """Give a file a second name, in one step; False where it cannot have one.

    Args:
        path: The file.
        target: The name.

    Raises:
        FileExistsError: The name is taken.
        OSError: What else went wrong.
    """
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def link_or_copy(path: Path, target: Path) -> FileEntry | None:
    """Give a file a second name; where it cannot have one, put a copy there, whole or not at all.

    Args:
        path: The file.
        target: The name, which is free.

    Returns:
        None of a link; what the bytes of a copy were when they were read, so that the caller may compare it.

    Raises:
        NotFound: The file is not there.
        NoSpace, NotAllowed: The disk.
    """
    with disk.at_door(target):
        if link(path, target):
            return None
        digester = Digester()
        with disk.atomic_file(target) as copy, open_regular(path) as file:
            while piece := file.read(disk.READ_BYTES):
                digester.update(piece)
                copy.write(piece)
    return digester.finish(target.name)
