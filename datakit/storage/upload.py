"""upload: local files become objects of a store, and what is said to be there was verified there.

The source's bytes are checked while they are read. An upload is believed when the store's tag is the one that those
bytes must have, else when they read back the same. What is to be created and is there already is read back too: the
answer to an earlier try may have been lost, or a killed run has put it; only other bytes are refused. What a store made
of an upload and is proven to be wrong is removed again.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import FileEntry, crc32c, damaged
from datakit.errors import DatakitError, IntegrityError, NotFound, Refused
from datakit.storage import disk, etags
from datakit.storage.answers import already_there
from datakit.storage.crew import OnBytes, drive
from datakit.storage.limits import regardless
from datakit.storage.objects import ObjectInfo, Part, Store
from datakit.storage.partial import Fetch, Inspector
from datakit.storage.profiles import MAX_PARTS
from datakit.storage.regular import open_regular
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.transfer import Knobs

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
        create: Whether an object that is there already, with other bytes, is an error. S3 decides that at the end; for
            an upload in parts to other stores, or to one that cannot decide it, a look before it has to do.
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
        tasks = (_Upload(put, patient, undo, part_bytes=knobs.part_bytes).run for put in batch)
        drive(tasks, workers=workers, on_bytes=on_bytes, on_stop=pace.stop)


def _upload_part_bytes(size_bytes: int, part_bytes: int) -> int:
    """Parts as asked for, or larger multiples where a file would need too many."""
    least = -(-size_bytes // MAX_PARTS)
    return part_bytes * max(1, -(-least // part_bytes))


class _Upload:
    """One file on its way up: put by one request, or in parts where it is larger than one.

    Args:
        put: What goes where.
        store: Where it goes, as long as nobody has failed.
        undo: The same store, for what has to be ended all the same.
        part_bytes: Size of a part.
    """

    def __init__(self, put: Put, store: Store, undo: Store, *, part_bytes: int) -> None:
        self._put = put
        self._store = store
        self._undo = undo
        self._is_small = put.bytes <= part_bytes
        self._part_bytes = max(put.bytes, 1) if self._is_small else _upload_part_bytes(put.bytes, part_bytes)
        self._source = _Source(put, part_bytes=self._part_bytes)
        self._where = f"{store.url}/{put.key}"

    def run(self) -> int:
        """Put it, and believe it by its tag, or by reading it back where the tag says something else or nothing."""
        made = self._put_small() if self._is_small else self._put_large()
        if made is None or etags.same(made.etag, self._tag):
            return self._put.bytes
        try:
            message = self._difference(self._store, made)
        except BaseException:  # also because another's error ended the look, which proves nothing
            if self._put.create:
                self._end_look(made)
            raise
        if message is not None:
            if self._put.create:
                take_away(self._undo, made)
            raise IntegrityError(message, hint="Run the same command again", subject=self._where)
        return self._put.bytes

    def _put_small(self) -> ObjectInfo | None:
        """The new object; None where it is there already."""
        data = b"".join(part.data for part in self._source.parts())
        try:
            return self._store.write(self._put.key, data, create=self._put.create)
        except Refused:
            # ours after all, when the answer to an earlier try was lost or a killed run had put it
            if self._is_ours(self._store.head(self._put.key)):
                return None
            raise

    def _put_large(self) -> ObjectInfo | None:
        """The same in parts; a look before it saves sending what a run that was killed may have put."""
        create = self._put.create
        if create:
            # a bucket that is not there is said by the upload
            with contextlib.suppress(NotFound):
                there = self._store.head(self._put.key)
                for _ in self._source.parts():
                    pass
                if self._is_ours(there):
                    return None
                raise already_there(self._where)
        try:
            return self._store.upload(self._put.key, self._source, connections=PART_CONNECTIONS, create=create)
        except Refused:
            if create and self._is_ours(self._store.head(self._put.key)):  # of another, quicker by minutes
                return None
            raise

    @property
    def _tag(self) -> str:
        """What a store that tags objects with md5s must say of the bytes that were read."""
        md5s = self._source.md5s
        return etags.single(md5s[0].hex() if md5s else _EMPTY_MD5) if self._is_small else etags.multipart(md5s)

    def _is_ours(self, there: ObjectInfo) -> bool:
        return etags.same(there.etag, self._tag) or self._difference(self._store, there) is None

    def _end_look(self, made: ObjectInfo) -> None:
        """Take a new object away if it is wrong; of a large one only the size is asked, for nobody waits for its bytes.

        One that is not proven to be wrong stays: another process may have read it, and taken it for its own.
        """
        with regardless(), contextlib.suppress(DatakitError):  # what ended the look is what is told
            there = self._undo.head(made.key)
            halved = there.bytes != self._put.bytes
            if halved or (self._is_small and self._difference(self._undo, made) is not None):
                take_away(self._undo, made)

    def _difference(self, store: Store, info: ObjectInfo) -> str | None:
        """How an object differs from the bytes that were read, in a sentence, by reading it; None where it does not."""
        if info.bytes != self._put.bytes:
            return f"{self._where} holds {info.bytes} bytes, not {self._put.bytes}"
        for number, crc in enumerate(self._source.crcs):
            start = number * self._part_bytes
            stop, found = min(start + self._part_bytes, self._put.bytes), 0
            for piece in store.stream(info.key, start=start, stop=stop, etag=info.etag):
                found = crc32c(piece, found)
            if found != crc:
                return f"{self._where}: bytes {start} to {stop} read back with crc32c {found:08x}, sent was {crc:08x}"
        return None


_EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


class _Source:
    """A local file as the parts of an upload, checked and digested while they are read."""

    def __init__(self, put: Put, *, part_bytes: int) -> None:
        self._put = put
        self.bytes = put.bytes
        self.part_bytes = part_bytes
        self.md5s: list[builtins.bytes] = []
        self.crcs: list[int] = []

    def md5_of(self, number: int) -> builtins.bytes:
        """Of one part, whatever else was read."""
        with disk.at_door(self._put.path), open_regular(self._put.path) as file:
            file.seek((number - 1) * self.part_bytes)
            return hashlib.md5(_read_full(file, self.part_bytes), usedforsecurity=False).digest()

    def parts(self) -> Iterator[Part]:
        """The file from its beginning; an error at the end, where it is not what it should be."""
        put = self._put
        self.md5s, self.crcs = [], []
        seen, grown = 0, False
        several = put.md5 is not None and put.bytes > self.part_bytes
        whole = hashlib.md5(usedforsecurity=False) if several else None
        with disk.at_door(put.path), open_regular(put.path) as file:
            inspector = Inspector(Fetch(put.key, put.path, put.bytes, entry=put.entry), 0, where=str(put.path))
            while data := _read_full(file, self.part_bytes):
                grown = seen + len(data) > put.bytes
                if grown:
                    break
                inspector.take(data)
                self.md5s.append(hashlib.md5(data, usedforsecurity=False).digest())
                self.crcs.append(crc32c(data))
                seen += len(data)
                if whole is not None:
                    whole.update(data)
                yield Part(len(self.md5s), data, self.md5s[-1])
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


def take_away(store: Store, made: ObjectInfo) -> None:
    """Remove an object that was made just now and is wrong: it would be in the way of the next try."""
    with regardless(), contextlib.suppress(DatakitError):  # what went wrong before is what is told
        if etags.same(store.head(made.key).etag, made.etag):
            store.delete(made.key)


def reads_as(store: Store, info: ObjectInfo, entry: FileEntry) -> bool:
    """Whether an object has the bytes of an entry, by reading it."""
    inspector = Inspector(Fetch(info.key, Path(info.key), entry.bytes, entry=entry), 0, where=f"{store.url}/{info.key}")
    try:
        for piece in store.stream(info.key, start=0, stop=entry.bytes, etag=info.etag):
            inspector.take(piece)
    except IntegrityError:
        return False
    return True
