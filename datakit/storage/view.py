"""view: a dataset where it lies, in a directory or in object storage, read without bringing whole shards.

Opening costs one request, the manifest; an index costs one, and is believed only when its bytes are what the manifest
says; a part of a shard costs one ranged request, and a shard that is read for the first time one more, which tells its
size and the version that all reads of it are then pinned to. Every request has the patience of `sync`, and is counted.

What it does not do: compare the bytes of a shard with its index (who reads them has the crc32c), or keep anything on
the disk.
"""

from __future__ import annotations

import shlex
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from datakit.data.digest import damaged
from datakit.data.index import Index
from datakit.data.manifest import MANIFEST_NAME, Contents, Manifest, ShardEntry
from datakit.errors import InputError, IntegrityError, NotFound
from datakit.storage import disk
from datakit.storage.absent import MOST_NAMED, held_in, nothing_committed
from datakit.storage.access import StoreOptions
from datakit.storage.commit import parse_manifest, read_manifest
from datakit.storage.counts import RequestCounts
from datakit.storage.indexes import open_index, parse_index
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.objects import ObjectInfo, Store
from datakit.storage.store import Location, open_location


class View:
    """A dataset that is looked into; made by `open_view`, used from any thread.

    Attributes:
        location: Where it is.
        manifest: Its manifest, as it was when the view was opened.
        concurrency: Requests under way at once where many things are read.
    """

    def __init__(self, location: Location, manifest: Manifest, *, store: Store, concurrency: int) -> None:
        self.location = location
        self.manifest = manifest
        self.concurrency = concurrency
        self._store = store
        self._guard = threading.Lock()
        self._versions: dict[str, ObjectInfo] = {}

    @property
    def where(self) -> str:
        """The directory or URL, for people."""
        return str(self.path) if self.path is not None else self.location.url

    @property
    def path(self) -> Path | None:
        """The directory, or None in object storage."""
        return self.location.path

    @property
    def requests(self) -> RequestCounts:
        """Requests made so far, the one for the manifest included; none for a directory."""
        return self._store.requests

    @cached_property
    def contents(self) -> Contents:
        """What the manifest says about the samples.

        Raises:
            InputError: It is the manifest of something else.
            IntegrityError: The manifest contradicts itself.
        """
        try:
            return self.manifest.contents
        except IntegrityError as error:
            where = f"{self.where}/{MANIFEST_NAME}"
            raise damaged(f"{where}: {error.message}", where, at=self.where) from None

    def index(self, shard: ShardEntry) -> Index:
        """The index of a shard, compared with the manifest; one request.

        Raises:
            NotFound: It is not there.
            IntegrityError: Its bytes are not what the manifest says; the hint is the command that mends it.
            UsageError: It has a format that this version does not read.
        """
        if self.path is not None:
            return open_index(self.path, self.manifest, shard)
        data = self._store.fetch(self.location.key(shard.index_name)).data
        return parse_index(data, self.manifest, shard, where=self.where)

    def indexes(self, shards: Iterable[ShardEntry] | None = None) -> Iterator[tuple[ShardEntry, Index]]:
        """The indexes of some shards, of all when None, in their order; several are fetched ahead.

        No more than `concurrency` of them are held at once. Errors as in `index`.
        """
        wanted = iter(self.contents.shards if shards is None else shards)
        if self.path is not None:
            yield from ((shard, self.index(shard)) for shard in wanted)
            return
        ahead: deque[tuple[ShardEntry, Future[Index]]] = deque()
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="datakit-view") as pool:
            try:
                for shard in wanted:
                    ahead.append((shard, pool.submit(self.index, shard)))
                    if len(ahead) == self.concurrency:
                        first, future = ahead.popleft()
                        yield first, future.result()
                while ahead:
                    first, future = ahead.popleft()
                    yield first, future.result()
            finally:
                for _, future in ahead:
                    future.cancel()

    def read(self, shard: ShardEntry, offset: int, size: int) -> bytes:
        """Bytes of a shard: one ranged request, and one more for the first of a shard.

        Args:
            shard: As the manifest lists it.
            offset: First byte.
            size: How many.

        Raises:
            NotFound: The shard is not there.
            IntegrityError: It has another size than the manifest says.
            Refused: It was replaced since it was first read.
        """
        info = self._version(shard)
        return self._store.read(info.key, start=offset, stop=offset + size, etag=info.etag)

    def stream(self, shard: ShardEntry, start: int, stop: int) -> Iterator[memoryview]:
        """The same from `start` to `stop`, in pieces that are valid until the next is asked for; errors as in `read`.

        After a break it goes on where it was, by another request.
        """
        info = self._version(shard)
        return self._store.stream(info.key, start=start, stop=stop, etag=info.etag)

    def pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes of any file there, whatever the manifest says of it; of the version that was listed, if it was.

        Raises:
            NotFound: It is not there.
            Refused: It was replaced since it was listed.
        """
        with self._guard:
            info = self._versions.get(name)
        key = self.location.key(name)
        return self._store.stream(key, start=start, stop=stop, etag=None if info is None else info.etag)

    def files(self) -> dict[str, ObjectInfo]:
        """Everything below the place, by its name there: a request for each thousand objects, none for a directory.

        Names that a dot hides are left out of a directory. Reads that follow are pinned to what was listed.
        """
        top = f"{self.location.prefix}/" if self.location.prefix else ""
        found = {info.key.removeprefix(top): info for info in self._store.list(self.location.prefix)}
        with self._guard:
            self._versions.update(found)
        return found

    def _version(self, shard: ShardEntry) -> ObjectInfo:
        with self._guard:
            info = self._versions.get(shard.name)
        if info is None:
            info = self._store.head(self.location.key(shard.name))
            with self._guard:
                info = self._versions.setdefault(shard.name, info)
        expected = self.manifest.member(shard.name).bytes
        if info.bytes != expected:
            raise IntegrityError(
                f"{self.where}/{shard.name} has {info.bytes} bytes, the manifest says {expected}",
                hint=f"See all damage: datakit verify {shlex.quote(self.where)}",
                subject=shard.name,
            )
        return info


def open_view(
    place: str | Path | Location,
    *,
    stores: Mapping[str, StoreOptions] | None = None,
    settings: SyncSettings | None = None,
) -> View:
    """Look into the dataset at a place.

    Args:
        place: A directory, URL or location.
        stores: Named stores of the settings.
        settings: Whose patience and concurrency are used.

    Raises:
        NotFound: Nothing is committed there.
        InputError: It is a file, or what stands there is another program's.
        IntegrityError: The manifest is torn, or contradicts itself.
        StoreUnavailable, NotAllowed: The store cannot be asked.

    Example:
        >>> view = open_view("s3://bucket/train")  # doctest: +SKIP
        >>> shard = view.contents.shards[0]  # doctest: +SKIP
        >>> part = view.index(shard).row(0).parts["json"]  # doctest: +SKIP
        >>> view.read(shard, part.offset, part.size)  # doctest: +SKIP
    """
    location = open_location(place, stores=stores)
    settings = settings or SyncSettings()
    store = patient(location, settings)
    path = location.path
    with disk.at_door(location.url):
        if path is not None and path.is_file():
            hint = f"Pack it: datakit pack {shlex.quote(str(path))} DEST"
            raise InputError(f"{path} is a file, not a dataset's directory", hint=hint, subject=str(path))
    manifest = _remote_manifest(location, store) if path is None else read_manifest(path)
    return View(location, manifest, store=store, concurrency=settings.concurrency)


def _remote_manifest(location: Location, store: Store) -> Manifest:
    try:
        data = store.fetch(location.key(MANIFEST_NAME)).data
    except NotFound as error:
        if error.subject == location.store.url:  # the bucket itself
            raise
        below = held_in(store, location.prefix, where=location.url, most=MOST_NAMED)
        raise nothing_committed(location.url, hint=below or "Look at the URL") from None
    return parse_manifest(data, where=f"{location.url}/{MANIFEST_NAME}")
