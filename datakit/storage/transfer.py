"""transfer: the engine that brings objects of a store into local files, and says only what it has verified.

Downloads are planned as parts over all files and fetched by one set of workers inside one window of bytes: ranged
reads, each checked against the manifest's crc32c before it is written at its place in a preallocated file; a part whose
bytes are wrong is asked for again, and named when it stays wrong. The other direction is `upload`.

It does not decide what to move (that is `sync`), and makes nothing visible under a final name that it has not checked.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from datakit.data.digest import PART_BYTES, Buffer
from datakit.errors import IntegrityError, UsageError
from datakit.storage import disk, etags
from datakit.storage.crew import OnBytes, Task, drive
from datakit.storage.objects import Store
from datakit.storage.partial import Fetch, Inspector, Partial
from datakit.storage.retry import DAMAGE_TRIES, Pace, PatientStore


@dataclass(frozen=True, slots=True)
class Knobs:
    """How a transfer goes about it.

    Attributes:
        part_bytes: Bytes of one ranged read or uploaded part, a multiple of 16 MiB.
        connections: Requests under way at once.
        window_bytes: Bytes of parts under way at once; fewer connections are used where it is small.
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
            raise UsageError(
                f"{self.connections} connections move nothing",
                hint="Write 1 or more: --concurrency 16",
                subject=self.connections,
            )

    @property
    def workers(self) -> int:
        """Connections that fit into the window."""
        return max(1, min(self.connections, self.window_bytes // self.part_bytes))


OnFile = Callable[[Fetch], None]


def _no_file(_fetch: Fetch) -> None:
    """Nobody wants to know of single files."""


def download(
    store: Store,
    fetches: Iterable[Fetch],
    *,
    knobs: Knobs,
    pace: Pace,
    on_bytes: OnBytes,
    on_file: OnFile = _no_file,
) -> list[str]:
    """Fetch objects into files; a file appears under its name when all its bytes have been checked.

    Gives the keys of objects of which neither an entry nor a tag could say what their bytes must be.

    Args:
        store: Where the objects are.
        fetches: What to fetch; may be a generator.
        knobs: How.
        pace: The patience shared by all requests to the store.
        on_bytes: Told, in this thread, how many bytes have arrived and been checked, or were here already.
        on_file: Told, in one of the threads that fetch, of each file once it has its name.

    Raises:
        IntegrityError: Bytes stay wrong however often they are asked for.
        StoreUnavailable: The patience is used up.
        NoSpace: The disk is full.
    """
    patient = PatientStore(store, pace=pace)
    opened: set[Partial] = set()
    unproven: list[str] = []

    def close() -> None:
        for partial in opened:
            partial.close()

    tasks = _fetch_tasks(patient, fetches, knobs, opened, unproven, on_file)
    drive(tasks, workers=knobs.workers, on_bytes=on_bytes, on_stop=pace.stop, on_idle=close)
    return sorted(unproven)


def _fetch_tasks(
    store: Store,
    fetches: Iterable[Fetch],
    knobs: Knobs,
    opened: set[Partial],
    unproven: list[str],
    on_file: OnFile,
) -> Iterator[Task]:
    """Parts of as many files as there are workers, in turn: writers of one file wait for each other in the kernel."""
    source = iter(fetches)
    turn: deque[Iterator[Task]] = deque()
    while True:
        while len(turn) < knobs.workers and (fetch := next(source, None)) is not None:
            turn.append(
                _large(store, fetch, knobs, opened, unproven, on_file)
                if fetch.bytes > knobs.part_bytes
                else _small(store, fetch, knobs, unproven, on_file)
            )
        if not turn:
            return
        tasks = turn.popleft()
        task = next(tasks, None)
        if task is not None:
            yield task
            turn.append(tasks)


def _small(store: Store, fetch: Fetch, knobs: Knobs, unproven: list[str], on_file: OnFile) -> Iterator[Task]:
    def task() -> int:
        disk.make_dirs(fetch.target.parent)
        with disk.atomic_file(fetch.target, sync=knobs.durable) as file:

            def put(data: Buffer, offset: int) -> None:
                with disk.at_door(fetch.target):
                    disk.write_all(file.fileno(), data, offset)

            _arrive(store, fetch, 0, fetch.bytes, put=put)
        if fetch.entry is None and not (_has_plain_tag(fetch, 0, fetch.bytes) and store.tags_bytes(fetch.key)):
            unproven.append(fetch.key)
        on_file(fetch)
        return fetch.bytes

    yield task


def _large(
    store: Store, fetch: Fetch, knobs: Knobs, opened: set[Partial], unproven: list[str], on_file: OnFile
) -> Iterator[Task]:
    partial = Partial(fetch, part_bytes=knobs.part_bytes, durable=knobs.durable)
    opened.add(partial)
    missing = partial.open()
    remaining = len(missing)
    guard = threading.Lock()

    def finish() -> None:
        if not partial.finish(by_tag=store.tags_bytes(fetch.key)):
            unproven.append(fetch.key)
        opened.discard(partial)
        on_file(fetch)

    def task(number: int) -> int:
        nonlocal remaining
        start, stop = partial.span(number)
        partial.note(number, _arrive(store, fetch, start, stop, put=partial.put))
        with guard:
            remaining -= 1
            last = remaining == 0
        if last:
            finish()
        return stop - start

    here = fetch.bytes - sum(stop - start for start, stop in map(partial.span, missing))
    if not missing:
        finish()
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
            tag = None if md5 is None else etags.single(md5.hexdigest())
            if tag is not None and not etags.same(tag, fetch.etag) and store.tags_bytes(fetch.key):
                raise etags.torn(where, subject=fetch.key)
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
