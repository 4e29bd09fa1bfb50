"""library: the datasets that the agent of a cache has open, and where each of their objects can be had.

A dataset is known by its manifest's digest. Whoever opens a place gets what its manifest says now, one request; who
names the digest too gets that very dataset, as the pool's roster has it, and without a request: a reader that comes
back sees what it saw before. What is asked for by a digest is had from the place that was opened last: its
credentials are the freshest.

What it does not do: hold anything for anybody, or fetch shards (`keeper`, `supply`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from datakit.data.digest import FileEntry
from datakit.data.manifest import Manifest, ShardEntry
from datakit.errors import NotFound
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import address
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.store import open_location
from datakit.storage.view import View, open_view
from datakit.tier.fill import Source
from datakit.tier.pool import Pool


class Opened(NamedTuple):
    """A dataset that is open: the digest of its manifest, and where it is read."""

    digest: str
    view: View


class Library:
    """Datasets that are open.

    Args:
        pool: The pool that their objects come into.
        settings: Whose patience is used.
    """

    def __init__(self, pool: Pool, *, settings: SyncSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._guard = threading.Lock()
        self._views: dict[str, View] = {}
        self._stores: dict[str, StoreOptions] = {}
        self._where: dict[str, tuple[FileEntry, str]] = {}
        self._shards: dict[str, ShardEntry] = {}

    def open(self, place: str, *, digest: str | None = None, options: Mapping[str, Any] | None = None) -> Opened:
        """Have a dataset open.

        Args:
            place: Its path or URL.
            digest: Of its manifest, where it must be that one.
            options: Fields of the `StoreOptions` by which its store is reached.

        Raises:
            NotFound: Nothing is committed there.
            InputError: What is there is no dataset.
            UsageError: The options are none.
        """
        stores = self.stores | ({place: StoreOptions(**options)} if options else {})
        manifest = self._known(digest)
        if manifest is None:
            view = open_view(place, stores=stores, settings=self._settings)
        else:
            location = open_location(place, stores=stores)
            store = patient(location, self._settings)
            view = View(location, manifest, store=store, concurrency=self._settings.concurrency)
        contents, known = view.contents, view.manifest.digest
        self._pool.roster.add(view.manifest, place=address(view.location))
        with self._guard:
            self._stores = stores
            self._views[known] = view
            self._where |= {entry.sha256: (entry, known) for entry in view.manifest.members}
            self._shards |= {view.manifest.member(shard.name).sha256: shard for shard in contents.shards}
        return Opened(known, view)

    @property
    def stores(self) -> dict[str, StoreOptions]:
        """How the places are reached, as `open_location` takes it."""
        with self._guard:
            return dict(self._stores)

    def entry(self, digest: str) -> FileEntry:
        """What the manifest says of an object.

        Raises:
            NotFound: No dataset that is open has it.
        """
        with self._guard:
            found = self._where.get(digest)
        if found is None:
            message = f"no dataset that is open here has an object {digest}"
            raise NotFound(message, hint="Open its dataset first", subject=digest)
        return found[0]

    def size(self, digest: str) -> int:
        """Its bytes; errors as in `entry`."""
        return self.entry(digest).bytes

    def shard(self, digest: str) -> tuple[View, ShardEntry]:
        """A shard by its digest, and the dataset it is of.

        Raises:
            NotFound: No dataset that is open has it.
        """
        self.entry(digest)
        with self._guard:
            view, shard = self._views[self._where[digest][1]], self._shards.get(digest)
        if shard is None:
            raise NotFound(f"{digest} is no shard", hint="Name a shard of the manifest", subject=digest)
        return view, shard

    def source(self, digest: str) -> Source:
        """Where an object can be had; errors as in `entry`."""
        entry = self.entry(digest)
        with self._guard:
            view = self._views[self._where[digest][1]]
        return source_of(view, [entry])

    def scanned(self) -> frozenset[str]:
        """The shards of what is open, which are read over and over."""
        with self._guard:
            return frozenset(self._shards)

    def _known(self, digest: str | None) -> Manifest | None:
        if digest is None:
            return None
        return next((known.manifest for known in self._pool.roster.known() if known.digest == digest), None)


def source_of(view: View, entries: Iterable[FileEntry]) -> Source:
    """A dataset's place as a source of some of its objects."""
    return Source(view.location.store, {entry.sha256: view.location.key(entry.name) for entry in entries})
