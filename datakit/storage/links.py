"""links: a second name for a file, where the file system has such; it saves a copy, and nothing depends on it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
