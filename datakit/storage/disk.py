"""disk: the one way to write a file, to hold a lock, and to say what a disk could not do.

Promises: a file appears under its final name whole or not at all, also after kill -9 (temporary sibling, fsync, rename,
fsync of the directory); leftovers of a killed run are recognised by their name and removed by the next start; a lock
dies with its holder; every OSError that leaves this room is one of ours, with a sentence.

Locks are POSIX `fcntl` locks, because `flock` is only node-local on some cluster file systems (measured by others on
GPFS), and nothing here is correct only because of a lock. They exclude processes, and this room's own list excludes the
threads of one process. What it does not do: commit directories (that is `commit`).

Sources: rename(2), fsync(2), fcntl(2) of the Linux man-pages project.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import re
import secrets
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from datakit.data.digest import Buffer, Digester, FileEntry
from datakit.errors import Busy, DatakitError, NoSpace, NotAllowed, NotFound, Refused, UsageError
from datakit.storage.regular import open_regular

TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp-[0-9a-f]{8}")
"""Names of our temporary siblings: `.<name>.tmp-<8 hex>`."""

READ_BYTES = 2**20
"""Bytes read at once when a file is digested.

256 MiB took 0.61 CPU seconds in pieces of 16 KiB, 0.55 of 256 KiB and of 1 MiB, 0.58 of 4 MiB (measured 2026-11-30).
"""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


@contextlib.contextmanager
def at_door(path: Path | str) -> Iterator[None]:
    """Translate an OSError of the block into the error that says it in a sentence.

    Args:
        path: What the block works on; named in the message when the OSError names nothing itself.

    Raises:
        NoSpace: The disk, the quota or the largest file size is reached.
        NotAllowed: Permission is missing or the file system is read-only.
        NotFound: Something on the path is not there.
        DatakitError: Anything else the system said.
    """
    try:
        yield
    except DatakitError:
        raise
    except OSError as error:
        raise translated(error, path) from error


def translated(error: OSError, path: Path | str) -> DatakitError:
    """The error of our tree that says what this OSError says."""
    where = path if error.filename is None else os.fsdecode(error.filename)
    said = error.strerror or str(error)
    if error.errno in _FULL:
        hint = "Free some space or choose another place, then run the same command again"
        return NoSpace(f"no space to write {where} ({said})", hint=hint, subject=str(where))
    if error.errno in _FORBIDDEN:
        return NotAllowed(f"{where}: {said}", hint="Check who owns it and its permissions", subject=str(where))
    if error.errno in _ABSENT:
        hint = f"Look at the path: ls {shlex.quote(os.path.dirname(where) or '.')}"
        return NotFound(f"{where} is not there ({said})", hint=hint, subject=str(where))
    hint = "Check the path and the disk, then run the same command again"
    return DatakitError(f"{where}: {said}", hint=hint, subject=str(where))


def stem(name: str) -> str:
    """A name as it stands inside the names of its temporaries and locks; a long one is cut, with a digest at its end.

    A name has 255 bytes at most (NAME_MAX of Linux), and `.NAME.<8 hex>.journal` needs 18 of them for itself.
    """
    data = name.encode(errors="surrogateescape")
    if len(data) <= 230:
        return name
    digest = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[:200].decode(errors='ignore')}~{digest}"


def beside(path: Path, name: str) -> Path:
    """Another name in the directory that a place is in.

    Raises:
        UsageError: The place is in no directory: it is the root of the file system.
    """
    place = path if path.name else path.absolute()
    if not place.name:
        raise UsageError(f"{path} is the root of the file system", hint="Name a directory inside it", subject=str(path))
    return place.with_name(name)


def temporary(path: Path) -> Path:
    """A new name beside `path` that a later start recognises as a leftover."""
    return beside(path, f".{stem(path.name)}.tmp-{secrets.token_hex(4)}")


@contextlib.contextmanager
def atomic_file(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under `path`, whole, when the block ends well, and not at all otherwise.

    Args:
        path: Final name; an existing file is replaced in one step.
        sync: Whether the bytes and the name are on the disk before this returns.

    Errors of the block leave as they are: an OSError of its own is none of this file. Who writes stands `at_door`.
    """
    path = Path(path)
    part, file = temporary(path), None
    try:  # from before the file is there: Ctrl-C may come at any moment
        with at_door(path):
            file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "w+b")
        yield file
        with at_door(path):
            file.flush()
            if sync:
                os.fsync(file.fileno())
            file.close()
            os.replace(part, path)
            if sync:
                fsync_dir(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # what its buffer still holds may have no room
            if file is not None:
                file.close()
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_atomic(path: Path, data: Buffer, *, sync: bool = True) -> None:
    """Put `data` under `path` in one step; readers see the old bytes or the new ones, never a mix."""
    with at_door(path), atomic_file(path, sync=sync) as file:
        file.write(data)


def read_all(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`, fewer only where the file ends; one call gives 2,147,479,552 at most (read(2))."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    pieces, num = [data], len(data)
    while num < size and (data := os.pread(descriptor, size - num, offset + num)):
        pieces.append(data)
        num += len(data)
    return b"".join(pieces)


def write_all(descriptor: int, data: Buffer, offset: int) -> None:
    """Write the whole buffer at `offset`; one system call may write less than it was given."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def fsync_dir(path: Path) -> None:
    """Put the names in a directory onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dirs(path: Path) -> None:
    """Make a directory and those above it; one that is there is fine, a file in the way is refused."""
    with at_door(path):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            message = f"{path} cannot be a directory: a file is in the way"
            raise Refused(message, hint="Move it away, or name another place", subject=str(path)) from error


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write where `path` is or would be."""
    here = Path(path).absolute()
    with at_door(here):
        while not here.exists():
            here = here.parent
        status = os.statvfs(here)
    return status.f_bavail * status.f_frsize


def preallocate(descriptor: int, size_bytes: int) -> None:
    """Reserve room for a file of this size, so that a full disk is met before the first byte is fetched.

    Raises:
        OSError: ENOSPC; the caller stands at its door.
    """
    if size_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size_bytes)  # file systems without allocation: the write itself meets the full disk


def map_file(path: Path) -> memoryview:
    """The bytes of a file, read-only, without reading them; they stay valid as long as the view is held.

    Raises:
        NotFound: The file is not there.
        InputError: No file is there, but a pipe.
    """
    with at_door(path), open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) if size_bytes else b"")


def hash_file(path: Path, *, name: str | None = None) -> FileEntry:
    """Read a file once and say what its bytes are.

    Args:
        path: The file.
        name: Its name in the entry; the file's own name when not given.
    """
    digester = Digester()
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    with at_door(path), open_regular(path) as file:
        while count := file.readinto(buffer):
            digester.update(view[:count])
    return digester.finish(name or Path(path).name)


def sweep(directory: Path, *, name: str | None = None) -> list[Path]:
    """Remove what killed writers left in a directory (not below it), and say what it was.

    Call it only while holding the lock of whoever writes there: a temporary of a living writer looks the same.

    Args:
        directory: Where to look; nothing there is fine.
        name: Only temporaries of this final name.
    """
    removed = []
    with at_door(directory):
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                match = TEMPORARY.fullmatch(path.name)
                wanted = match and (name is None or stem(name) == match["name"])
                # of a place inside this one, somebody else may be writing there
                if match and wanted and (name is not None or not is_held(lock_beside(directory / match["name"]))):
                    remove(path)
                    removed.append(path)
    return removed


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with everything in it; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=False)
    else:
        path.unlink(missing_ok=True)


def lock_beside(path: Path) -> Path:
    """The lock file of whoever writes at a place: beside it, because what is there may be renamed away."""
    return beside(path, f".{stem(path.absolute().name)}.lock")


def is_held(lock: Path) -> bool:
    """Whether a process, or a thread of this one, holds a lock file."""
    with _held_guard:
        if lock.absolute() in _held:
            return True  # and it is not opened: closing it would free the lock
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


_held: set[Path] = set()
_held_guard = threading.Lock()


@contextlib.contextmanager
def exclusive(path: Path, *, purpose: str) -> Iterator[None]:
    """Hold a lock file for the length of the block; it goes away with the block, and its lock with the process.

    Args:
        path: The lock file; its directory is made when it is not there.
        purpose: What the holder is doing, as a sentence's end: `training in runs/a`.

    Raises:
        Busy: Another process, or another thread of this one, holds it; the message names its process id.
    """
    path = Path(path).absolute()
    with _held_guard:
        if path in _held:
            raise _refusal(path, str(os.getpid()), purpose)
        with dirs_for(path):
            descriptor = _lock(path, purpose)
        _held.add(path)
    try:
        yield
    finally:
        with _held_guard:
            _held.discard(path)
            # removed while still held: whoever opened it in between sees that the name is another file and tries again
            path.unlink(missing_ok=True)
            os.close(descriptor)


@contextlib.contextmanager
def dirs_for(path: Path) -> Iterator[None]:
    """The directories above a file, which go again when the block ends by an error and they are empty."""
    with at_door(path):
        new = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    try:
        make_dirs(path.parent)
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _lock(path: Path, purpose: str) -> int:
    while True:
        with at_door(path):
            descriptor = _opened(path)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(path, descriptor):
                    _sign(path, descriptor)
                    return descriptor
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise _refusal(path, holder or "unknown", purpose) from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        if path.parent.is_dir():  # such as /proc
            raise NotAllowed(f"no file can be made in {path.parent}", hint="Name another place") from None
        raise


def _sign(path: Path, descriptor: int) -> None:
    """Write who holds a lock; where that has no room there is nothing to hold, and no file stays."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _refusal(path: Path, holder: str, purpose: str) -> Busy:
    return Busy(
        f"process {holder} is already {purpose}",
        hint=f"Wait for it or end it; the lock {path} dies with its process",
        subject=str(path),
    )
