"""fetching: a source's files as plain local files, for as long as a pack reads them.

What lies on this machine is read in place. Objects of a store are laid down in a spool: records that must be listed by
reading (lines, tables, tars) all at once, in ranges, many at a time; files of a folder batch by batch, because their
listing is enough for a plan, and a folder of small files may be larger than the disk. A small object is one request,
so they are asked for many at once: what they take is latency, not bandwidth. Each is read in the version that was
listed, or refused; where its tag stands for its bytes they are compared, and asked for again when they differ; where a
tag of many parts does not say how it was made, two readings must agree. Requests are counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from datakit.pack.files import FileBatch
from datakit.pack.scan import Sources, is_remote, open_source
from datakit.pack.spans import LineFile
from datakit.pack.trees import SourceFile
from datakit.pack.unpacking import lines_file, plain_file
from datakit.storage import disk, etags
from datakit.storage.objects import Store
from datakit.storage.retry import DAMAGE_TRIES

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

B = TypeVar("B")

CONCURRENCY = 64
"""Objects asked for at once. At 20 ms a request that is 3200 small objects a second, what one core can just take in."""

AHEAD = 2
"""Batches on their way at once: while the last objects of one come, requests of the next keep the connections busy."""

PIECE_BYTES = 16 * 2**20
"""Bytes of one ranged read, as in downloads."""

SMALL_BYTES = 2**20
"""Objects up to this are read whole, into memory: 64 MiB at once at most."""


class Fetched:
    """A source on a local disk.

    Args:
        root: The folder that the source's names lie in, or will.
        lines: For kinds that are read while they are listed, each file in plain form.
        spool: Where more may be laid down.
        remote: What brings files, where they are in a store and come batch by batch.
    """

    def __init__(
        self, root: str, *, lines: Sequence[LineFile] = (), spool: Path, remote: Fetcher | None = None
    ) -> None:
        self.root = root
        self.lines = tuple(lines)
        self.spool = spool
        self._remote = remote

    @property
    def requests(self) -> int:
        """Requests that fetching has taken so far."""
        return 0 if self._remote is None else self._remote.requests

    @property
    def is_brought(self) -> bool:
        """Whether batches must be brought."""
        return self._remote is not None

    def brought(self, batches: Iterable[B]) -> Iterator[B]:
        """The batches, each brought when its turn comes, and the next ones on their way by then.

        Raises:
            Refused: An object is not the one that was listed.
        """
        if self._remote is None:
            yield from batches
            return
        coming: deque[tuple[B, Future[None]]] = deque()
        with ThreadPoolExecutor(AHEAD) as pool:
            for batch in batches:
                coming.append((batch, pool.submit(self.bring, batch)))
                if len(coming) > AHEAD:
                    first, here = coming.popleft()
                    here.result()
                    yield first
            for first, here in coming:
                here.result()
                yield first

    def bring(self, batch: Any) -> None:
        """Lay down what a batch will read; nothing where that is there already. Any thread may call it.

        Raises:
            Refused: An object is not the one that was listed.
        """
        if self._remote is not None and isinstance(batch, FileBatch):
            self._remote.bring(batch.names())

    def release(self, batch: Any) -> None:
        """Remove what `bring` laid down."""
        if self._remote is not None and isinstance(batch, FileBatch):
            self._remote.release(batch.names())


@contextlib.contextmanager
def fetched(sources: Sources, spool: Path, *, stores: Mapping[str, StoreOptions] | None = None) -> Iterator[Fetched]:
    """Give a source's files as plain local files for the length of the block.

    Args:
        sources: From `scan`.
        spool: A directory that does not exist yet, for what cannot be read in place; removed afterwards.
        stores: Named stores of the settings.

    Raises:
        InputError: A compressed file is damaged.
        Refused: An object is not the one that was listed.
        NoSpace: The spool's disk is full.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(disk.remove, spool)
        root, remote = _local_root(sources.url), None
        if is_remote(sources.url):
            root = str(spool / "fetched")
            remote = stack.enter_context(Fetcher(sources, Path(root), stores=stores))
            if sources.kind != "files":
                remote.bring([file.name for file in sources.files])
        lines: list[LineFile] = []
        if sources.kind != "files":
            lay = lines_file if sources.kind == "jsonl" else plain_file
            # decompressing does not hold the interpreter
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                lines = list(pool.map(lambda file: lay(root, file.name, spool), sources.files))
        yield Fetched(root, lines=lines, spool=spool, remote=remote)


class _Range(NamedTuple):
    """A part of an object; the whole where it is small."""

    file: SourceFile
    start: int
    stop: int


class Fetcher:
    """Brings objects of a source to a folder, many at a time. A context manager.

    Args:
        sources: What was listed.
        root: The folder.
        stores: Named stores of the settings.
    """

    def __init__(self, sources: Sources, root: Path, *, stores: Mapping[str, StoreOptions] | None) -> None:
        self._store: Store
        self._store, self._prefix = open_source(sources.url, stores)
        self._single = sources.single
        self._root = root
        self._files = sources.files
        self._by_name: dict[str, int] = {}
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(CONCURRENCY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._store.requests.total

    def bring(self, names: Sequence[str]) -> None:
        """Lay down some files.

        Raises:
            Refused: An object is not the one that was listed.
            IntegrityError: The bytes of one are not those of its tag, however often they are asked for.
        """
        seen: dict[str, set[str]] = {}
        missing = self._named(names)
        for _ in range(DAMAGE_TRIES):
            self._lay_down(missing)
            large = [file for file in missing if file.bytes > SMALL_BYTES]
            checks = zip(large, self._pool.map(lambda file: self._is_right(file, seen), large), strict=True)
            missing = [file for file, is_right in checks if not is_right]
            if not missing:
                return
        raise etags.torn(f"{self._store.url}/{self._key(missing[0])}", subject=missing[0].name)

    def _lay_down(self, files: Iterable[SourceFile]) -> None:
        ranges = []
        for file in files:
            target = self._root / file.name
            disk.make_dirs(target.parent)
            if file.bytes > SMALL_BYTES:
                with disk.at_door(target), open(target, "wb") as out:
                    disk.preallocate(out.fileno(), file.bytes)
            starts = range(0, max(file.bytes, 1), PIECE_BYTES)
            ranges += [_Range(file, start, min(start + PIECE_BYTES, file.bytes)) for start in starts]
        for _ in self._pool.map(self._fetch, ranges):
            pass

    def release(self, names: Sequence[str]) -> None:
        """Remove some files."""
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def _named(self, names: Sequence[str]) -> list[SourceFile]:
        with self._guard:
            if not self._by_name:
                self._by_name = {file.name: number for number, file in enumerate(self._files)}
        return [self._files[self._by_name[name]] for name in names]

    def _key(self, file: SourceFile) -> str:
        return self._prefix if self._single else f"{self._prefix}/{file.name}".lstrip("/")

    def _is_right(self, file: SourceFile, seen: dict[str, set[str]]) -> bool:
        """Whether a large file is what its tag says, or, where that cannot tell, what an earlier reading was."""
        target, tag = self._root / file.name, file.fingerprint
        if not self._store.tags_bytes(self._key(file)):
            return True
        said = etags.matches(target, tag)
        if said is not None or not etags.is_multipart(tag):
            return said is not False
        sha256 = disk.hash_file(target).sha256
        before = seen.setdefault(file.name, set())
        agrees = sha256 in before
        before.add(sha256)
        return agrees

    def _small(self, file: SourceFile) -> bytes:
        key = self._key(file)
        for _ in range(DAMAGE_TRIES):
            data = self._store.read(key, start=0, stop=file.bytes, etag=file.fingerprint)
            if etags.fits(data, file.fingerprint) is not False or not self._store.tags_bytes(key):
                return data
        raise etags.torn(f"{self._store.url}/{key}", subject=file.name)

    def _fetch(self, piece: _Range) -> None:
        file, key = piece.file, self._key(piece.file)
        target = self._root / file.name
        if file.bytes <= SMALL_BYTES:
            whole = self._small(file)
            with disk.at_door(target), open(target, "wb") as out:
                out.write(whole)
            return
        with disk.at_door(target), open(target, "r+b", buffering=0) as out:
            at = piece.start
            for data in self._store.stream(key, start=piece.start, stop=piece.stop, etag=file.fingerprint):
                disk.write_all(out.fileno(), data, at)
                at += len(data)


def _local_root(url: str) -> str:
    path = url.removeprefix("file://")
    return os.path.dirname(path) or "." if os.path.isfile(path) else path
