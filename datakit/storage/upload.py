"""upload: local files become objects of a store, and what is said to be there was verified there.

The source's bytes are checked while they are read. An upload is believed when the store's tag is the one that those
bytes must have, else when they read back the same. What is to be created and is there already is read back too: the
answer to an earlier try may have been lost, or a killed run has put it; only other bytes are refused. What a store made
of an upload and is wrong is removed again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import FileEntry, crc32c, damaged
from datakit.errors import DatakitError, IntegrityError, NotFound, Refused
from datakit.storage import disk, etags
from datakit.storage.answers import already_there
from datakit.storage.objects import ObjectInfo, Store
from datakit.storage.partial import Fetch, Inspector
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.transfer import Knobs, OnBytes, Task, drive

MAX_PARTS = 10_000
"""Parts in a multipart upload (Amazon S3 limits)."""

PART_CONNECTIONS = 4
"""Parts of one file under way in an upload; several files go up at once besides.

S3 gives 85 to 90 MB/s to a request ("Performance design patterns for Amazon S3", Amazon): four fill a line of 3 Gbit/s.
"""


@dataclass(frozen=True, slots=True)
class Put:
    """One local file that becomes one object.

    Attributes:
        path: The file.
        key: Where it goes.
        bytes: Its size.
        entry: What its bytes must be, or None where no manifest says it.
        md5: Their md5, where the object is addressed by it; compared before the object appears.
        create: Whether an object that is there already, with other bytes, is an error. S3 decides that within one PUT;
            for an upload in parts a look before it has to do.
    """

    path: Path
    key: str
    bytes: int
    entry: FileEntry | None = None
    create: bool = False
    md5: str | None = None


def upload(store: Store, puts: Sequence[Put], *, knobs: Knobs, pace: Pace, on_bytes: OnBytes) -> None:
    """Put files into a store; when this returns, each was verified there.

    Raises:
        IntegrityError: A file is not what its manifest or its md5 says, or the store does not give back what it was
            given.
        Refused: An object that was to be created is there with other bytes.
    """
    patient = PatientStore(store, pace=pace)
    undo = PatientStore(store, pace=Pace(retries=knobs.retries))  # which goes on when an error has stopped the others
    in_hand = max(1, knobs.workers // PART_CONNECTIONS)
    small = [put for put in puts if put.bytes <= knobs.part_bytes]
    large = [put for put in puts if put.bytes > knobs.part_bytes]
    for batch, workers in ((large, in_hand), (small, knobs.workers)):
        tasks = (_upload_task(patient, put, knobs, undo) for put in batch)
        drive(tasks, workers=workers, pace=pace, on_bytes=on_bytes)


def _upload_task(store: Store, put: Put, knobs: Knobs, undo: Store) -> Task:
    def task() -> int:
        if put.bytes <= knobs.part_bytes:
            _put_small(store, put, undo)
        else:
            _put_large(store, put, undo, part_bytes=_upload_part_bytes(put.bytes, knobs.part_bytes))
        return put.bytes

    return task


def _upload_part_bytes(size_bytes: int, part_bytes: int) -> int:
    """Parts as asked for, or larger multiples where a file would need too many."""
    least = -(-size_bytes // MAX_PARTS)
    return part_bytes * max(1, -(-least // part_bytes))


def _put_small(store: Store, put: Put, undo: Store) -> None:
    source = _Source(put, part_bytes=max(put.bytes, 1))
    data = b"".join(source.chunks())
    tag = etags.single(source.md5s[0].hex()) if source.md5s else etags.single(_EMPTY_MD5)
    try:
        info = store.write(put.key, data, create=put.create)
    except Refused:
        # ours after all, when the answer to an earlier try was lost or a killed run had put it
        info = store.head(put.key)
        if not etags.same(info.etag, tag) and _difference(store, put, info, source.crcs, part_bytes=max(put.bytes, 1)):
            raise
        return
    with _kept_if_right(undo, put, info):
        _believe(store, put, info, tag, source.crcs, part_bytes=max(put.bytes, 1))


_EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


def _put_large(store: Store, put: Put, undo: Store, *, part_bytes: int) -> None:
    source = _Source(put, part_bytes=part_bytes)
    there = _there(store, put.key) if put.create else None
    if there is not None:
        _check_there(store, put, there, source, part_bytes=part_bytes)
        return
    info = store.upload(put.key, source.chunks, part_bytes=part_bytes, connections=PART_CONNECTIONS)
    with _kept_if_right(undo, put, info):
        _believe(store, put, info, etags.multipart(source.md5s), source.crcs, part_bytes=part_bytes)


def _there(store: Store, key: str) -> ObjectInfo | None:
    try:
        return store.head(key)
    except NotFound:
        return None  # a bucket that is not there is said by the upload


def _check_there(store: Store, put: Put, there: ObjectInfo, source: _Source, *, part_bytes: int) -> None:
    """A multipart upload cannot be told not to overwrite: what is there must be ours, of a run that was killed."""
    for _ in source.chunks():
        pass
    if etags.same(there.etag, etags.multipart(source.md5s)):
        return
    if _difference(store, put, there, source.crcs, part_bytes=part_bytes):
        raise already_there(f"{store.url}/{put.key}")


class _Source:
    """A local file as the chunks of an upload, checked and digested while it is read."""

    def __init__(self, put: Put, *, part_bytes: int) -> None:
        self._put = put
        self._part_bytes = part_bytes
        self.md5s: list[bytes] = []
        self.crcs: list[int] = []

    def chunks(self) -> Iterator[bytes]:
        put = self._put
        self.md5s, self.crcs = [], []
        seen, grown = 0, False
        several = put.md5 is not None and put.bytes > self._part_bytes
        whole = hashlib.md5(usedforsecurity=False) if several else None
        with disk.at_door(put.path), open(put.path, "rb", buffering=0) as file:
            inspector = Inspector(Fetch(put.key, put.path, put.bytes, entry=put.entry), 0, where=str(put.path))
            while data := _read_full(file, self._part_bytes):
                grown = seen + len(data) > put.bytes
                if grown:
                    break
                inspector.take(data)
                self.md5s.append(hashlib.md5(data, usedforsecurity=False).digest())
                self.crcs.append(crc32c(data))
                seen += len(data)
                if whole is not None:
                    whole.update(data)
                yield data
            if grown or seen != put.bytes:
                message = f"{put.path} changed while it was uploaded: it had {put.bytes} bytes"
                raise IntegrityError(message, hint="Run it again when nobody writes to it", subject=str(put.path))
            found = whole.hexdigest() if whole is not None else self.md5s[0].hex() if self.md5s else _EMPTY_MD5
            if put.md5 not in (None, found):
                raise other_md5(put.path, found, put.md5, is_member=put.entry is not None)


def other_md5(path: Path, found: str, expected: str | None, *, is_member: bool) -> IntegrityError:
    """The error of a file whose md5 is not what its manifest says, which says the rest rightly, or what it was."""
    if is_member:
        return damaged(f"{path} has the md5 {found}, its manifest says {expected}", str(path))
    message = f"{path} has changed: its md5 was {expected}, now {found}"
    return IntegrityError(message, hint="Run the same command again", subject=str(path))


def _read_full(file: object, size_bytes: int) -> bytes:
    pieces = []
    while size_bytes and (data := file.read(size_bytes)):  # type: ignore[attr-defined] # a raw file, which may read short
        pieces.append(data)
        size_bytes -= len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _believe(store: Store, put: Put, info: ObjectInfo, tag: str, crcs: Sequence[int], *, part_bytes: int) -> None:
    """Accept an upload by its tag; where the tag says something else or nothing, by reading it back."""
    if etags.same(info.etag, tag):
        return
    message = _difference(store, put, info, crcs, part_bytes=part_bytes)
    if message is not None:
        raise IntegrityError(message, hint="Run the same command again", subject=f"{store.url}/{put.key}")


@contextlib.contextmanager
def _kept_if_right(undo: Store, put: Put, made: ObjectInfo) -> Iterator[None]:
    """Take a new object away again where it is not proven to be right, also because another's error ended the look."""
    try:
        yield
    except BaseException:
        if put.create:
            take_away(undo, put.key, made)
        raise


def take_away(store: Store, key: str, made: ObjectInfo) -> None:
    """Remove an object that was made just now and is wrong: it would be in the way of the next try."""
    with contextlib.suppress(DatakitError):  # what went wrong before is what is told
        if etags.same(store.head(key).etag, made.etag):
            store.delete(key)


def _difference(store: Store, put: Put, info: ObjectInfo, crcs: Sequence[int], *, part_bytes: int) -> str | None:
    """How an object differs from the bytes of a file, in a sentence, by reading it; None where it does not.

    Args:
        store: Where it is.
        put: The file and the key.
        info: The object's version.
        crcs: Of the file's parts.
        part_bytes: Size of these parts, but for the last.
    """
    where = f"{store.url}/{put.key}"
    if info.bytes != put.bytes:
        return f"{where} holds {info.bytes} bytes, not {put.bytes}"
    for number, crc in enumerate(crcs):
        start, stop = number * part_bytes, min((number + 1) * part_bytes, put.bytes)
        found = 0
        for piece in store.stream(put.key, start=start, stop=stop, etag=info.etag):
            found = crc32c(piece, found)
        if found != crc:
            return f"{where}: bytes {start} to {stop} read back with crc32c {found:08x}, sent was {crc:08x}"
    return None


def reads_as(store: Store, info: ObjectInfo, entry: FileEntry) -> bool:
    """Whether an object has the bytes of an entry, by reading it."""
    inspector = Inspector(Fetch(info.key, Path(info.key), entry.bytes, entry=entry), 0, where=f"{store.url}/{info.key}")
    try:
        for piece in store.stream(info.key, start=0, stop=entry.bytes, etag=info.etag):
            inspector.take(piece)
    except IntegrityError:
        return False
    return True
