"""originals: a source's own files, opened for reading in the version in which they were listed.

Between listing and reading anything may happen to a file that is not ours: it may grow, be cut, vanish, or be replaced
by a pipe, on which an open waits for ever. So every room opens such files here. An open never waits, takes regular
files only, and a file that is not there any more has changed like any other. None is mapped: when a mapped file is cut
by somebody else, the next look at it ends the process (SIGBUS, mmap(2)); a read only ends early.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from datakit.errors import DatakitError, InputError
from datakit.storage import disk

PLACES_BYTES = 2**13
"""Bytes read ahead of a file of which single places are read: headers of a tar, stretches that pyarrow names."""

_AT_ONCE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR, errno.EAGAIN}
"""What open(2) and read(2) say where a file has vanished, or a link, a socket, a device, a folder or a pipe that
somebody writes to has taken its place."""


class Version(NamedTuple):
    """What tells whether a file is as it was: bytes, and the time of its change in ns."""

    size: int
    stamp: int

    @classmethod
    def of(cls, status: os.stat_result) -> Version:
        """The version that a status shows."""
        return cls(status.st_size, changed_ns(status))


def changed_ns(status: os.stat_result) -> int:
    """When a file was last changed, in ns since 1970: its bytes, or its name, mode or times.

    A file that was edited or replaced and has its old time of modification back (`touch -r`, `rsync -a`, `mv`) is told
    by its inode's time alone, which nobody sets; a file system that keeps no such time has the other. Writes through a
    memory map need change neither before msync(2), says mmap(2).
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)


def changed(where: str) -> InputError:
    """The error of a source that is not what it was when it was listed."""
    return InputError(
        f"{where} changed while it was packed", hint="Pack again when nothing writes there", subject=where
    )


def open_original(path: str) -> int:
    """A descriptor to read a file by.

    Raises:
        InputError: It is not there any more, or something else than a file is.
        NotAllowed: It may not be read.
    """
    try:
        descriptor = os.open(path, _AT_ONCE)
    except OSError as error:
        raise _refused(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise changed(path)
    return descriptor


def read_original(path: str, *, size: int, stamp: int | None) -> bytes:
    """The bytes of a file; one look at it, behind the last byte, sees whatever changed from its listing on.

    Args:
        path: The file.
        size: Bytes that it was listed with.
        stamp: When it was changed, in ns since 1970, as it was listed; None where that is not known.

    Raises:
        InputError: It changed, is not there any more, or something else than a file is.
        NotAllowed: It may not be read.
    """
    try:
        descriptor = os.open(path, _AT_ONCE)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        # one byte more than listed shows a file that has grown
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
            data += more
        status = os.fstat(descriptor)
        is_same = len(data) == size and stat.S_ISREG(status.st_mode) and stamp in (None, changed_ns(status))
    except OSError as error:  # which names nothing, so that the shard that is being written would be named
        raise _refused(path, error) from error
    finally:
        os.close(descriptor)
    if not is_same:
        raise changed(path)
    return data


def version_of(path: str) -> Version:
    """The version of a file as it is now.

    Raises:
        InputError: It is not there any more, or something else than a file is.
        NotAllowed: It may not be looked at.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise _refused(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise changed(path)
    return Version.of(status)


@contextlib.contextmanager
def reading(path: str, *, version: Version | None = None, buffer_bytes: int = disk.READ_BYTES) -> Iterator[BinaryIO]:
    """Open a file to be read in the block, and see that it is of its version before the block and after.

    What goes wrong in the block with a file that is not of its version any more went wrong because of that.

    Args:
        path: The file.
        version: As it was listed; None for what nobody else writes to.
        buffer_bytes: Bytes to read ahead.

    Raises:
        InputError: It changed.
        NotAllowed: It may not be read.
    """
    descriptor = open_original(path)
    try:
        _check(descriptor, path, version)
        # pyarrow closes what it is given
        with open(descriptor, "rb", buffering=buffer_bytes, closefd=False) as file:
            try:
                yield file
            except Exception:
                _check(descriptor, path, version)
                raise
        _check(descriptor, path, version)
    finally:
        os.close(descriptor)


def _check(descriptor: int, path: str, version: Version | None) -> None:
    if version is not None and Version.of(os.fstat(descriptor)) != version:
        raise changed(path)


def _refused(path: str, error: OSError) -> DatakitError:
    return changed(path) if error.errno in _GONE else disk.translated(error, path)
