"""transfer: the engine that moves bytes between a store and local files, and says only what it has verified.

Downloads are planned as parts over all files and fetched by one set of workers inside one window of bytes: ranged
reads, each checked against the manifest's crc32c before it is written at its place in a preallocated file; a part whose
bytes are wrong is asked for again, and named when it stays wrong. Uploads check the source's bytes while they are read,
and are believed when the store's tag is the one that those bytes must have, else when they read back the same.

It does not decide what to move (that is `sync`), and makes nothing visible under a final name that it has not checked.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import PART_BYTES, Buffer, FileEntry, crc32c
from datakit.errors import IntegrityError, Refused, UsageError
from datakit.storage import disk, etags
from datakit.storage.objects import ObjectInfo, Store
from datakit.storage.partial import Fetch, Inspector, Partial
from datakit.storage.retry import Pace, PatientStore

DAMAGE_TRIES = 3
"""How often a part is asked for whose bytes are wrong: a bit flipped on the way comes right, one at rest does not."""

STOP_WAIT_S = 3.0
"""How long an interrupted transfer waits for requests under way; what they bring later goes nowhere visible."""

MAX_PARTS = 10_000
"""Parts in a multipart upload (Amazon S3 limits)."""

PART_CONNECTIONS = 4
"""Parts of one file under way in an upload; several files go up at once besides."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """How a transfer goes about it.

    Attributes:
        part_bytes: Bytes of one ranged read or uploaded part, a multiple of 16 MiB.
        connections: Requests under way at once.
        window_bytes: Bytes held in memory at once; fewer connections are used where it is small.
        retries: Tries beyond the first for one request.
        durable: Whether files are on the disk, not in its cache, before their names appear.
    """

    part_bytes: int = PART_BYTES
    connections: int = 16
    window_bytes: int = 256 * 2**20
    retries: int = 6
    durable: bool = True

    def __post_init__(self) -> None:
        if self.part_bytes <= 0 or self.part_bytes % PART_BYTES:
            raise UsageError(
                f"a part of {self.part_bytes} bytes is not a multiple of 16 MiB, which the checksums cover",
                hint="Write part_size: 16MiB, 32MiB, ...",
                subject=self.part_bytes,
            )
        if self.connections < 1:
            raise UsageError(f"{self.connections} connections move nothing", subject=self.connections)

    @property
    def workers(self) -> int:
        """Connections that fit into the window."""
        return max(1, min(self.connections, self.window_bytes // self.part_bytes))


OnBytes = Callable[[int], None]


def download(store: Store, fetches: Iterable[Fetch], *, knobs: Knobs, pace: Pace, on_bytes: OnBytes) -> None:
    """Fetch objects into files; a file appears under its name when all its bytes have been checked.

    Args:
        store: Where the objects are.
        fetches: What to fetch; may be a generator.
        knobs: How.
        pace: The patience shared by all requests to the store.
        on_bytes: Told, in this thread, how many bytes have arrived and been checked, or were here already.

    Raises:
        IntegrityError: Bytes stay wrong however often they are asked for.
        StoreUnavailable: The patience is used up.
        NoSpace: The disk is full.
    """
    patient = PatientStore(store, pace=pace)
    opened: set[Partial] = set()

    def close() -> None:
        for partial in opened:
            partial.close()

    tasks = _fetch_tasks(patient, fetches, knobs, opened)
    _drive(tasks, workers=knobs.workers, pace=pace, on_bytes=on_bytes, on_idle=close)


Task = Callable[[], int]


def _fetch_tasks(store: Store, fetches: Iterable[Fetch], knobs: Knobs, opened: set[Partial]) -> Iterator[Task]:
    """Parts of as many files as there are workers, in turn: writers of one file wait for each other in the kernel."""
    source = iter(fetches)
    turn: deque[Iterator[Task]] = deque()
    while True:
        while len(turn) < knobs.workers and (fetch := next(source, None)) is not None:
            turn.append(
                _large(store, fetch, knobs, opened) if fetch.bytes > knobs.part_bytes else _small(store, fetch, knobs)
            )
        if not turn:
            return
        tasks = turn.popleft()
        task = next(tasks, None)
        if task is not None:
            yield task
            turn.append(tasks)


def _small(store: Store, fetch: Fetch, knobs: Knobs) -> Iterator[Task]:
    def task() -> int:
        disk.make_dirs(fetch.target.parent)
        with disk.atomic_file(fetch.target, sync=knobs.durable) as file:
            _arrive(store, fetch, 0, fetch.bytes, put=lambda data, at: disk.write_all(file.fileno(), data, at))
        return fetch.bytes

    yield task


def _large(store: Store, fetch: Fetch, knobs: Knobs, opened: set[Partial]) -> Iterator[Task]:
    partial = Partial(fetch, part_bytes=knobs.part_bytes, durable=knobs.durable)
    opened.add(partial)
    missing = partial.open()
    remaining = len(missing)
    guard = threading.Lock()

    def task(number: int) -> int:
        nonlocal remaining
        start, stop = partial.span(number)
        partial.note(number, _arrive(store, fetch, start, stop, put=partial.put))
        with guard:
            remaining -= 1
            last = remaining == 0
        if last:
            partial.finish()
            opened.discard(partial)
        return stop - start

    here = fetch.bytes - sum(stop - start for start, stop in map(partial.span, missing))
    if not missing:
        partial.finish()
        opened.discard(partial)
    if here:
        yield lambda: here
    for number in missing:
        yield lambda number=number: task(number)  # type: ignore[misc] # mypy cannot infer a lambda with a default


def _arrive(store: Store, fetch: Fetch, start: int, stop: int, *, put: Callable[[Buffer, int], None]) -> list[str]:
    """Let a part arrive and put it in its place, piece by piece while it is in the processor's cache; its crc32cs."""
    where = f"{store.url}/{fetch.key}"
    for attempt in range(1, DAMAGE_TRIES + 1):
        inspector = Inspector(fetch, start, where=where)
        md5 = hashlib.md5(usedforsecurity=False) if _has_plain_tag(fetch, start, stop) else None
        position = start
        try:
            for piece in store.stream(fetch.key, start=start, stop=stop, etag=fetch.etag):
                inspector.take(piece)
                if md5 is not None:
                    md5.update(piece)
                put(piece, position)
                position += len(piece)
            if md5 is not None and not etags.same(etags.single(md5.hexdigest()), fetch.etag):
                raise IntegrityError(
                    f"{where}: the bytes that arrived do not have the md5 of its tag", subject=fetch.key
                )
        except IntegrityError:
            if attempt == DAMAGE_TRIES:
                raise
        else:
            break
    return inspector.crcs


def _has_plain_tag(fetch: Fetch, start: int, stop: int) -> bool:
    """Whether these bytes are a whole object for which no manifest speaks, but its tag does."""
    whole = stop - start == fetch.bytes
    return whole and fetch.entry is None and etags.part_sizes(fetch.etag, fetch.bytes) == (0,)


@dataclass(frozen=True, slots=True)
class Put:
    """One local file that becomes one object.

    Attributes:
        path: The file.
        key: Where it goes.
        bytes: Its size.
        entry: What its bytes must be, or None where no manifest says it.
        create: Whether an object that is there already, with other bytes, is an error.
    """

    path: Path
    key: str
    bytes: int
    entry: FileEntry | None = None
    create: bool = False


def upload(store: Store, puts: Sequence[Put], *, knobs: Knobs, pace: Pace, on_bytes: OnBytes) -> None:
    """Put files into a store; when this returns, each was verified there.

    Raises:
        IntegrityError: A file is not what its manifest says, or the store does not give back what it was given.
        Refused: An object that was to be created is there with other bytes.
    """
    patient = PatientStore(store, pace=pace)
    in_hand = max(1, knobs.workers // PART_CONNECTIONS)
    small = [put for put in puts if put.bytes <= knobs.part_bytes]
    large = [put for put in puts if put.bytes > knobs.part_bytes]
    for batch, workers in ((large, in_hand), (small, knobs.workers)):
        tasks = (_upload_task(patient, put, knobs) for put in batch)
        _drive(tasks, workers=workers, pace=pace, on_bytes=on_bytes)


def _upload_task(store: Store, put: Put, knobs: Knobs) -> Task:
    def task() -> int:
        if put.bytes <= knobs.part_bytes:
            _put_small(store, put)
        else:
            _put_large(store, put, part_bytes=_upload_part_bytes(put.bytes, knobs.part_bytes))
        return put.bytes

    return task


def _upload_part_bytes(size_bytes: int, part_bytes: int) -> int:
    """Parts as asked for, or larger multiples where a file would need too many."""
    least = -(-size_bytes // MAX_PARTS)
    return part_bytes * max(1, -(-least // part_bytes))


def _put_small(store: Store, put: Put) -> None:
    source = _Source(put, part_bytes=max(put.bytes, 1))
    data = b"".join(source.chunks())
    tag = etags.single(source.md5s[0].hex()) if source.md5s else etags.single(_EMPTY_MD5)
    try:
        info = store.write(put.key, data, create=put.create)
    except Refused:
        # ours after all, when the answer to an earlier try was lost or a killed run had put it
        info = store.head(put.key)
        if not etags.same(info.etag, tag):
            raise
    _believe(store, put, info, tag, source.crcs)


_EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


def _put_large(store: Store, put: Put, *, part_bytes: int) -> None:
    source = _Source(put, part_bytes=part_bytes)
    info = store.upload(put.key, source.chunks, part_bytes=part_bytes, connections=PART_CONNECTIONS)
    _believe(store, put, info, etags.multipart(source.md5s), source.crcs)


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
                yield data
            if grown or seen != put.bytes:
                message = f"{put.path} changed while it was uploaded: it had {put.bytes} bytes"
                raise IntegrityError(message, hint="Run it again when nobody writes to it", subject=str(put.path))


def _read_full(file: object, size_bytes: int) -> bytes:
    pieces = []
    while size_bytes and (data := file.read(size_bytes)):  # type: ignore[attr-defined] # a raw file, which may read short
        pieces.append(data)
        size_bytes -= len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _believe(store: Store, put: Put, info: ObjectInfo, tag: str, crcs: Sequence[int]) -> None:
    """Accept an upload by its tag; where the tag says something else or nothing, by reading it back."""
    if etags.same(info.etag, tag):
        return
    part_bytes = -(-put.bytes // max(len(crcs), 1))
    part_bytes = -(-part_bytes // PART_BYTES) * PART_BYTES
    for number, crc in enumerate(crcs):
        start, stop = number * part_bytes, min((number + 1) * part_bytes, put.bytes)
        data = store.read(put.key, start=start, stop=stop, etag=info.etag)
        if crc32c(data) != crc:
            where = f"{store.url}/{put.key}"
            message = f"{where}: bytes {start} to {stop} read back with crc32c {crc32c(data):08x}, sent was {crc:08x}"
            raise IntegrityError(message, hint="Run the same command again", subject=where)


def _drive(
    tasks: Iterable[Task],
    *,
    workers: int,
    pace: Pace,
    on_bytes: OnBytes,
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Do tasks on threads; progress and the first error come out in this thread.

    `on_idle` is called when no worker is left, which after Ctrl-C may be never: what they hold open stays open then.
    """
    source = iter(tasks)
    guard = threading.Lock()
    said: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            while not stopped.is_set():
                with guard:
                    task = next(source, None)
                if task is None:
                    break
                said.put(task())
        except BaseException as error:  # noqa: BLE001 -- it is raised again in the thread that asked
            said.put(error)
        finally:
            said.put(None)

    threads = [threading.Thread(target=work, name=f"datakit-transfer-{n}", daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    first: BaseException | None = None
    running = len(threads)
    try:
        while running:
            item = said.get()
            if item is None:
                running -= 1
            elif isinstance(item, int):
                on_bytes(item)
            elif first is None:
                first = item
                stopped.set()
                pace.stop()
    except BaseException:
        stopped.set()
        pace.stop()
        for thread in threads:
            thread.join(STOP_WAIT_S / len(threads))
        if not any(thread.is_alive() for thread in threads):
            on_idle()
        raise
    on_idle()
    if first is not None:
        raise first
