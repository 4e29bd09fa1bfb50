"""origin: what colder places hold of a pool's objects, as they say now.

A place is a commit (path or URL), or the directory of a colder tier. Each is looked at once for each `Copies`, which
is made for one command or one question: of a commit in a store one GET of its manifest and one LIST, of a local one a
look at each file's size. A copy is verified where the manifest that stands there names the object's sha256 and the
file has its size: that is how it was put there. A place that cannot be asked holds nothing, so that nothing is
dropped on its word, and that is said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from datakit.errors import DatakitError, NotFound
from datakit.events import Caution, OnEvent, ignore
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.compare import listed, look_for_manifest
from datakit.storage.counts import RequestCounts
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.store import Location, open_location
from datakit.tier.pool import FORMAT_NAME, Pool
from datakit.tier.roster import objects_of


class Copies:
    """The digests of a pool's objects that a colder place holds: call it.

    Args:
        pool: The pool.
        settings: Whose patience is used.
        stores: Named stores.
        on_event: Told of places that cannot be asked.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        settings: SyncSettings | None = None,
        stores: Mapping[str, StoreOptions] | None = None,
        on_event: OnEvent = ignore,
    ) -> None:
        self._pool = pool
        self._settings = settings or SyncSettings()
        self._stores = stores
        self._on_event = on_event
        self._seen: dict[str, frozenset[str]] = {}
        self._locations: list[Location] = []

    def __call__(self) -> Collection[str]:
        """Ask the places that were not asked yet, and say what all of them hold."""
        for known in self._pool.roster.known():
            for place in known.places:
                if place not in self._seen:
                    self._seen[place] = self._look(place)
        return frozenset().union(*self._seen.values())

    @property
    def requests(self) -> RequestCounts:
        """Requests that were made."""
        return sum((location.store.requests for location in self._locations), RequestCounts())

    def _look(self, place: str) -> frozenset[str]:
        try:
            location = open_location(place, stores=self._stores)
            self._locations.append(location)
            if location.path is not None and (location.path / FORMAT_NAME).is_file():
                return self._in_tier(location.path)
            return self._in_commit(location)
        except NotFound:
            return frozenset()
        except DatakitError as error:
            message = f"{place} cannot be asked, so what only it may hold stays here: {error.message}"
            self._on_event(Caution(message, hint=error.hint))
            return frozenset()

    def _in_tier(self, root: Path) -> frozenset[str]:
        with disk.at_door(root):
            if root.samefile(self._pool.root):  # by whatever name: nothing is a copy of itself
                return frozenset()
        colder, known = Pool(root, budget_bytes=0), objects_of(self._pool.roster.known())
        sizes = {digest: lying.bytes for digest, lying in self._pool.usage().objects.items()}
        sizes |= {digest: entry.bytes for digest, entry in known.items()}  # what was set aside is of known datasets
        return frozenset(digest for digest, size in sizes.items() if _has(colder.path(digest), size))

    def _in_commit(self, location: Location) -> frozenset[str]:
        store = patient(location, self._settings)
        held = look_for_manifest(location, store)
        if held is None or held.manifest is None:
            return frozenset()
        entries = held.manifest.members
        if location.path is not None:
            return frozenset(each.sha256 for each in entries if _has(location.path / each.name, each.bytes))
        there = {name: item.bytes for name, item in listed(location, store).items()}
        return frozenset(each.sha256 for each in entries if there.get(each.name) == each.bytes)


def _has(path: Path, size_bytes: int) -> bool:
    with disk.at_door(path):
        try:
            return path.stat().st_size == size_bytes
        except FileNotFoundError:
            return False
