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
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

import numpy as np

from datakit.data.digest import PART_BYTES
from datakit.errors import InputError, printable
from datakit.machine import cores
from datakit.source.columns import Spill
from datakit.source.files import FileBatch
from datakit.source.originals import Version, version_of
from datakit.source.originals import changed as changed_original
from datakit.source.records import Batch
from datakit.source.scan import Sources, open_source
from datakit.source.spans import LineFile
from datakit.source.trees import SourceFile
from datakit.source.unpacking import lines_file, plain_file
from datakit.storage import disk, etags
from datakit.storage.answers import changed
from datakit.storage.aside import make_ignored
from datakit.storage.objects import Store
from datakit.storage.retry import DAMAGE_TRIES

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

B = TypeVar("B", bound=Batch)

CONCURRENCY = 64
"""Objects asked for at once. At 20 ms a request that is 3200 small objects a second, what one core can just take in."""

AHEAD = 2
"""Batches on their way at once: while the last objects of one come, requests of the next keep the connections busy."""

SMALL_BYTES = 2**20
"""Objects up to this are read whole, into memory: 64 MiB at once at most."""


class Fetched:
    """A source on a local disk.

    Args:
        root: The folder that the source's names lie in, or will.
        lines: For kinds that are read while they are listed, each file in plain form.
        spool: Where more may be laid down, columns too.
        remote: What brings files, where they are in a store and come batch by batch.
        versions: Of local files that records are read from, or copies of them, the version that was listed, by path.
    """

    def __init__(
        self,
        root: str,
        *,
        lines: Sequence[LineFile] = (),
        spool: Path,
        remote: Fetcher | None = None,
        versions: Mapping[str, Version] | None = None,
    ) -> None:
        self.root = root
        self._versions = versions or {}
        self.lines = tuple(lines)
        self.spool = spool
        self.spill = Spill(spool)
        self._remote = remote

    def check(self) -> None:
        """See that files are what was listed, before something is made of them that says so.

        What was read of them was compared already; this also finds what was added, and what was read as a copy. Files
        of a folder are compared whole when each is read, and are not looked at again.

        Raises:
            InputError: One changed.
        """
        for path, version in self._versions.items():
            if version_of(path) != version:
                raise changed_original(path)

    @property
    def requests(self) -> int:
        """Requests that fetching has taken so far."""
        return 0 if self._remote is None else self._remote.requests

    def brought(self, batches: Iterable[B]) -> Iterator[B]:
        """What `bring` gives for each of the batches in its turn; the next ones are on their way by then.

        Raises:
            Refused: An object is not the one that was listed.
        """
        if self._remote is None:
            yield from batches
            return
        coming: deque[Future[B]] = deque()
        with ThreadPoolExecutor(AHEAD) as pool:
            for batch in batches:
                coming.append(pool.submit(self.bring, batch))
                if len(coming) > AHEAD:
                    yield coming.popleft().result()
            for one in coming:
                yield one.result()

    def bring(self, batch: B) -> B:
        """Lay down what a batch will read, and give the batch that reads it; itself where nothing is to be laid down.

        Any thread may call it.

        Raises:
            Refused: An object is not the one that was listed.
        """
        if self._remote is None or not isinstance(batch, FileBatch):
            return batch
        return cast("B", self._remote.gathered(batch))


def spool_of(batch: Batch) -> Path | None:
    """The file that `bring` has laid down for a batch; None where it laid down none."""
    return Path(batch.spool) if isinstance(batch, FileBatch) and batch.spool is not None else None


def release(spool: Path | None) -> None:
    """Remove what was laid down for a batch that is built."""
    if spool is not None:
        spool.unlink(missing_ok=True)


@contextlib.contextmanager
def fetched(sources: Sources, spool: Path, *, stores: Mapping[str, StoreOptions] | None = None) -> Iterator[Fetched]:
    """Give a source's files as plain local files for the length of the block.

    Args:
        sources: From `scan`.
        spool: A directory that does not exist yet, for what cannot be read in place; removed afterwards.
        stores: Named stores of the settings.

    Raises:
        InputError: A compressed file is damaged, or an object is also the folder of another.
        Refused: An object is not the one that was listed.
        NoSpace: The spool's disk is full.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(disk.remove, spool)
        root, remote = _local_root(sources.url), None
        if sources.is_remote or sources.kind != "files":
            make_ignored(spool)
        if sources.is_remote:
            root = str(spool / "fetched")
            remote = stack.enter_context(Fetcher(sources, Path(root), stores=stores))
            if sources.kind == "files":
                remote.refuse_clashes([file for file in sources.files if file.bytes > SMALL_BYTES])
            else:
                remote.refuse_clashes([*sources.files, *sources.beside])
                remote.lay_down([*sources.files, *sources.beside])
        lines: list[LineFile] = []
        versions: dict[str, Version] = {}
        if sources.kind != "files":
            versions = {os.path.join(root, file.name): file.version for file in sources.files if file.version}
            lay = lines_file if sources.kind == "jsonl" else plain_file
            # decompressing does not hold the interpreter
            with ThreadPoolExecutor(cores()) as pool:
                plain = pool.map(lambda file: lay(root, file, spool), sources.files)
                lines = [one._replace(name=printable(one.name)) for one in plain]
        yield Fetched(root, lines=lines, spool=spool, remote=remote, versions=versions)


class _Range(NamedTuple):
    """A part of a large object."""

    file: SourceFile
    start: int
    stop: int


class _Place(NamedTuple):
    """Where a small object goes: an open file, and from which byte on."""

    file: SourceFile
    descriptor: int
    base: int


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
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._store.requests.total

    def refuse_clashes(self, files: Sequence[SourceFile]) -> None:
        """See that no file that will lie by itself is also the folder of another: a store may hold both, a disk cannot.

        Raises:
            InputError: One is.
        """
        names = {file.name for file in files}
        for file in files:
            above = next((str(folder) for folder in PurePosixPath(file.name).parents if str(folder) in names), None)
            if above is not None:
                raise InputError(
                    f"{self._store.url}/{self._key(file)} lies below {above}, which is an object and no folder",
                    hint="Rename one of the two, or pack them from two prefixes",
                    subject=[above, file.name],
                )

    def lay_down(self, files: Sequence[SourceFile]) -> None:
        """Lay each file down by itself.

        Raises:
            Refused: An object is not the one that was listed.
            IntegrityError: The bytes of one are not those of its tag, however often they are asked for.
        """
        for folder in {(self._root / file.name).parent for file in files}:
            disk.make_dirs(folder)
        for _ in self._pool.map(self._lay_small, [file for file in files if file.bytes <= SMALL_BYTES]):
            pass
        self._lay_large([file for file in files if file.bytes > SMALL_BYTES])

    def gathered(self, batch: FileBatch) -> FileBatch:
        """The files of a batch one behind the other in one file: creating thousands would take longer than fetching.

        Large ones are laid down by themselves first, to be compared with their tags.

        Raises:
            Refused: An object is not the one that was listed.
            IntegrityError: The bytes of one are not those of its tag, however often they are asked for.
        """
        target = self._root / f"batch-{next(self._numbers):08d}"
        ends = np.cumsum(batch.sizes)
        files = list(zip(self._named(batch.names()), (ends - batch.sizes).tolist(), strict=True))
        large = [(file, base) for file, base in files if file.bytes > SMALL_BYTES]
        disk.make_dirs(self._root)
        with disk.at_door(target), open(target, "wb", buffering=0) as out:
            disk.preallocate(out.fileno(), int(ends[-1]) if files else 0)
            left = deque(_Place(file, out.fileno(), base) for file, base in files if file.bytes <= SMALL_BYTES)
            fetching = [self._pool.submit(self._gather, left) for _ in range(min(CONCURRENCY, len(left)))]
            wait(fetching)  # before the file is closed under a thread that writes to it
            for one in fetching:
                one.result()
            self.lay_down([file for file, _ in large])
            for file, base in large:
                self._move_in(self._root / file.name, out.fileno(), base)
        return replace(batch, spool=str(target))

    def _move_in(self, path: Path, descriptor: int, at: int) -> None:
        with open(path, "rb") as whole:
            while data := whole.read(disk.READ_BYTES):
                disk.write_all(descriptor, data, at)
                at += len(data)
        path.unlink()

    def _gather(self, left: deque[_Place]) -> None:
        """Fetch small files until none is left, as one of many threads; an error leaves none to the others."""
        while True:
            try:
                file, descriptor, base = left.popleft()
            except IndexError:
                return
            try:
                disk.write_all(descriptor, self._small(file), base)
            except BaseException:
                left.clear()
                raise

    def _lay_small(self, file: SourceFile) -> None:
        target = self._root / file.name
        with disk.at_door(target), open(target, "wb", buffering=0) as out:
            disk.write_all(out.fileno(), self._small(file), 0)

    def _lay_large(self, files: Sequence[SourceFile]) -> None:
        seen: dict[str, set[str]] = {}
        missing = list(files)
        for _ in range(DAMAGE_TRIES):
            for file in missing:
                target = self._root / file.name
                with disk.at_door(target), open(target, "wb") as out:
                    disk.preallocate(out.fileno(), file.bytes)
            ranges = [
                _Range(file, start, min(start + PART_BYTES, file.bytes))
                for file in missing
                for start in range(0, file.bytes, PART_BYTES)
            ]
            for _done in self._pool.map(self._fetch, ranges):
                pass
            checks = zip(missing, self._pool.map(lambda file: self._is_right(file, seen), missing), strict=True)
            missing = [file for file, is_right in checks if not is_right]
            if not missing:
                return
        raise etags.torn(f"{self._store.url}/{self._key(missing[0])}", subject=missing[0].name)

    def _named(self, names: Sequence[str]) -> list[SourceFile]:
        with self._guard:
            if not self._by_name:
                self._by_name = {file.name: number for number, file in enumerate(self._files)}
        return [self._files[self._by_name[name]] for name in names]

    def _key(self, file: SourceFile) -> str:
        folder = self._prefix.rpartition("/")[0] if self._single else self._prefix
        return f"{folder}/{file.name}".lstrip("/")

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
        """A small file's bytes, by one request, which a patient store compares with its tag."""
        key = self._key(file)
        blob = self._store.fetch(key)
        if (blob.info.etag, len(blob.data)) != (file.fingerprint, file.bytes):
            raise changed(f"{self._store.url}/{key}")
        return blob.data

    def _fetch(self, piece: _Range) -> None:
        file, at = piece.file, piece.start
        target = self._root / file.name
        with disk.at_door(target), open(target, "r+b", buffering=0) as out:
            for data in self._store.stream(self._key(file), start=at, stop=piece.stop, etag=file.fingerprint):
                disk.write_all(out.fileno(), data, at)
                at += len(data)


def _local_root(url: str) -> str:
    path = url.removeprefix("file://")
    return os.path.dirname(path) or "." if os.path.isfile(path) else path
