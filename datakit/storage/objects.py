"""objects: what the engine needs of a place for bytes, and a local directory that gives it.

A store holds objects under keys. Reads name their range and, where it matters, the version they want; nothing here
retries (that is `retry`) or verifies contents (that is `transfer`).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from datakit.data.digest import Buffer
from datakit.errors import InputError, Refused, UsageError
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.answers import already_there, changed
from datakit.storage.counts import Account, RequestCounts
from datakit.storage.limits import Gate
from datakit.storage.regular import open_regular

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: its key, its size, and the tag of its version (None where the store gives none)."""

    key: str
    bytes: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class Blob:
    """A small object, read whole by one request."""

    info: ObjectInfo
    data: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an object to be: its number, from 1, its bytes, and their binary md5."""

    number: int
    data: bytes
    md5: bytes


class Body(Protocol):
    """What an upload puts: parts of one size, but for the last."""

    @property
    def bytes(self) -> int:
        """Of all parts."""
        ...

    @property
    def part_bytes(self) -> int:
        """Of each part but the last."""
        ...

    def parts(self) -> Iterator[Part]:
        """All parts, from the first at each call; an error at the end where they are not what they should be."""
        ...

    def md5_of(self, number: int) -> builtins.bytes:
        """The binary md5 of one part, without a look at the others."""
        ...


class Patience(Protocol):
    """How often something is done again that fails."""

    def __call__(self, act: Callable[[], T], /) -> T:
        """What it gives; or its error, when it has failed often enough."""
        ...


def once(act: Callable[[], T]) -> T:
    """No patience at all."""
    return act()


class Store(Protocol):
    """What the engine needs of a place for bytes. Keys are `/`-separated; every method may be called from any thread.

    Every method raises the errors of `datakit.errors`: NotFound (object or bucket), NotAllowed, StoreUnavailable (worth
    another try), Refused (the object is not the version that was asked for, or is there already).
    """

    @property
    def url(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def options(self) -> StoreOptions:
        """How it is reached."""
        ...

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Who is asked, and pays, for what it is asked, the likeliest first; nobody where nothing is paid."""
        ...

    @property
    def requests(self) -> RequestCounts:
        """Requests made so far."""
        ...

    def limit(self, gate: Gate) -> None:
        """Have every request and every byte from now on go through a gate."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """What is known of an object without reading it."""
        ...

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix (`""` or a folder), sorted by key."""
        ...

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders right below a prefix, without a look into them: sorted, and none that a dot hides."""
        ...

    def fetch(self, key: str) -> Blob:
        """A small object whole, with its version."""
        ...

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """Exactly the bytes from `start` to `stop`, of the version `etag` when one is given, by one request.

        They come in pieces of any size; each is valid until the next is asked for. An error may come at any piece.
        """
        ...

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """The same, as one."""
        ...

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:
        """Put a small object by one request; only if there is none (`create`), or only over a version (`replaces`)."""
        ...

    def upload(
        self, key: str, body: Body, *, connections: int, create: bool = False, patience: Patience = once
    ) -> ObjectInfo:
        """Put a large object, several parts at a time; `create` holds where the store can decide it at the end."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; none there is fine."""
        ...

    def tags_bytes(self, key: str) -> bool:
        """Whether a tag of this object that looks like an md5 is one of its bytes, as far as the store has said."""
        ...


class LocalStore:
    """A directory as a store; a file's version is its size, time and inode."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    @property
    def url(self) -> str:
        """The directory."""
        return str(self.root)

    @property
    def options(self) -> StoreOptions:
        """There are none."""
        return StoreOptions()

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Nobody charges for system calls."""
        return ()

    @property
    def requests(self) -> RequestCounts:
        """Nobody charges for system calls."""
        return RequestCounts()

    def limit(self, gate: Gate) -> None:
        """See `Store.limit`: there are no requests, and bytes that move beside a store are counted there."""

    def head(self, key: str) -> ObjectInfo:
        """Size and version of a file."""
        path = self._path(key)
        with disk.at_door(path):
            return _local_info(key, os.stat(path))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All files below a directory, without those that a dot hides.

        Raises:
            NotAllowed: A folder cannot be read.
            InputError: Something is neither a file nor a folder; nothing is left out in silence.
            Refused: Something is a link to a folder, likewise.
        """
        found = []
        top = self._path(prefix) if prefix else self.root
        with disk.at_door(top):
            if top.exists() and not (top.is_dir() or top.is_file()):
                raise no_file(top)
        folders = [top]
        while folders:
            folder = folders.pop()
            with disk.at_door(folder), os.scandir(folder) as entries:
                for entry in entries:
                    # dot files are ours (temporaries, locks) or the user's own secrets: neither belongs to the data
                    if entry.name.startswith("."):
                        continue
                    path = Path(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif entry.is_file():
                        found.append(_local_info(path.relative_to(self.root).as_posix(), entry.stat()))
                    else:
                        raise no_file(path)
        return sorted(found, key=lambda info: info.key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Directories in a directory, without those that a dot hides."""
        top = self._path(prefix) if prefix else self.root
        with disk.at_door(top):
            return shown(each.name for each in top.iterdir() if each.is_dir())

    def fetch(self, key: str) -> Blob:
        """A file whole."""
        path = self._path(key)
        with disk.at_door(path), open_regular(path) as file:
            data = file.readall()
            return Blob(_local_info(key, os.fstat(file.fileno())), data)

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """Bytes of a file, checked to be of the version that was asked for after they were read."""
        path = self._path(key)
        with disk.at_door(path), open_regular(path) as file:
            buffer = memoryview(bytearray(min(stop - start, disk.READ_BYTES)))
            offset = start
            while offset < stop and (count := os.preadv(file.fileno(), [buffer[: stop - offset]], offset)):
                offset += count
                yield buffer[:count]
            info = _local_info(key, os.fstat(file.fileno()))
        if etag not in (None, info.etag) or offset < stop:
            raise changed(f"{self.url}/{key}")

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """The same, as one."""
        return joined(self.stream(key, start=start, stop=stop, etag=etag))

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:
        """Put a file in one step."""
        path = self._path(key)
        with disk.at_door(path):
            if create and path.exists():
                raise already_there(f"{self.url}/{key}")
        if replaces is not None and self.head(key).etag != replaces:
            raise changed(f"{self.url}/{key}")
        disk.make_dirs(path.parent)
        disk.write_atomic(path, data)
        return self.head(key)

    def upload(self, key: str, body: Body, *, create: bool = False, **how: Any) -> ObjectInfo:  # noqa: ARG002 -- a local disk needs neither
        """Put a file part by part, in one step at the end."""
        path = self._path(key)
        with disk.at_door(path):
            if create and path.exists():
                raise already_there(f"{self.url}/{key}")
        disk.make_dirs(path.parent)
        with disk.atomic_file(path) as file:
            for part in body.parts():
                with disk.at_door(path):
                    file.write(part.data)
        return self.head(key)

    def delete(self, key: str) -> None:
        """Remove a file; none there is fine."""
        path = self._path(key)
        with disk.at_door(path):
            path.unlink(missing_ok=True)

    def tags_bytes(self, key: str) -> bool:  # noqa: ARG002 -- the same for every file
        """A file's version is none of its bytes."""
        return False

    def _path(self, key: str) -> Path:
        if key.startswith("/") or any(step in ("", ".", "..") for step in key.split("/")):
            raise UsageError(
                f"{key!r} does not stay inside {self.root}",
                hint="Write it without . and .. and a / in front",
                subject=key,
            )
        return self.root / key


def no_file(path: Path) -> Refused | InputError:
    """The error of what is there and is neither a file nor a folder that is followed."""
    if path.is_dir():
        message, hint = f"{path} is a link to a folder, and is not followed", "Name its target as a place of its own"
        return Refused(message, hint=hint, subject=str(path))
    message = f"{path} is neither a file nor a folder"
    hint = "Name a file or a folder; in a folder, a name that starts with a dot leaves it out"
    return InputError(message, hint=hint, subject=str(path))


def _local_info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}")


def shown(names: Iterable[str]) -> tuple[str, ...]:
    """Names of folders as a store gives them: sorted, without those that a dot hides."""
    return tuple(sorted(name for name in names if not name.startswith(".")))


def joined(pieces: Iterable[memoryview]) -> bytes:
    """Pieces of a stream as one."""
    return b"".join(map(bytes, pieces))
