"""regular: regular files, opened for reading without waiting.

An open of a pipe waits until somebody writes to it, which may be never; so what others may have put in a file's place
is opened here. Errors of the system leave as they are: the caller stands at its door.

Source: open(2) of the Linux man-pages project, on O_NONBLOCK and ENXIO.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from datakit.errors import InputError, Refused

_NO_FILE = {errno.ENXIO, errno.ENODEV, errno.EISDIR}
"""What open(2) says of a socket, of a device that is not there, and Python's `FileIO` of a folder."""


def open_regular(path: Path | str) -> FileIO:
    """Open a file for reading, without a buffer.

    Args:
        path: The file, or a link to it.

    Raises:
        InputError: A folder, a pipe, a socket or a device is there.
        OSError: As open(2).
    """
    try:
        file = FileIO(path, "r", opener=_at_once)
    except OSError as error:
        raise _no_file(path) if error.errno in _NO_FILE else error from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_file(path)
    return file


def read_regular(path: Path | str) -> bytes:
    """The bytes of a file; errors as of `open_regular`."""
    with open_regular(path) as file:
        return file.readall()


def refuse_folder(path: Path) -> None:
    """Refuse a folder where a file is about to be.

    Raises:
        Refused: It is one.
        OSError: It may not be looked at.
    """
    if path.is_dir():
        hint = "Move it away, or choose another destination"
        raise Refused(f"{path} is a folder, in the way of a file of that name", hint=hint, subject=str(path))


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _no_file(path: Path | str) -> InputError:
    hint = "Move it away, and put back or fetch again the file that belongs there"
    what = "a folder where a file belongs" if os.path.isdir(path) else "neither a file nor a folder"
    return InputError(f"{path} is {what}", hint=hint, subject=str(path))
