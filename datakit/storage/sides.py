"""sides: source and destination of a sync while its plan is made: what lies there, and how that differs.

What the destination holds is listed once, however often it is looked at. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from datakit.data.digest import FileEntry
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import NotFound, Refused
from datakit.storage import disk
from datakit.storage.commit import refuse_inside
from datakit.storage.compare import (
    Difference,
    Holding,
    Item,
    compare_commits,
    compare_files,
    listed,
    look_at_destination,
    visible,
)
from datakit.storage.objects import ObjectInfo, Store
from datakit.storage.store import Location
from datakit.storage.upload import reads_as


@dataclass(frozen=True)
class Sides:
    """Both places while a plan is made.

    Attributes:
        held: What the source holds.
        origin: Where.
        target: The destination.
        store: Its store, asked with patience.
        repair: Whether bytes that it holds are looked at.
    """

    held: Holding
    origin: Location
    target: Location
    store: Store
    repair: bool

    def committed(self) -> Holding | None:
        """The commit at the destination, if a commit goes there; files are refused where one stands."""
        path = self.target.path
        if path is not None:
            with disk.at_door(path):
                if path.exists() and not path.is_dir():
                    raise Refused(f"{path} is not a directory", hint="Name another destination", subject=str(path))
            refuse_inside(path)
        elif self.held.kind == "files":
            return None
        found = look_at_destination(self.target, self.store, repair=self.repair)
        if found is not None and self.held.kind == "files":
            raise self._occupied()
        return found

    @cached_property
    def here(self) -> dict[str, Item]:
        """Everything that lies at the destination, listed once; of one file's destination, only that file."""
        if self.held.single:
            (item,) = self.held.items.values()
            return self._one(item)
        path = self.target.path
        if path is not None and not path.is_dir():
            return {}
        items = visible(listed(self.target, self.store), also=self.held.items)
        if self.held.kind == "files" and MANIFEST_NAME in items and MANIFEST_NAME not in self.held.items:
            raise self._occupied()
        if path is not None:
            with disk.at_door(path):  # a listing leaves dot files out; members may have such names
                names = [name for name in self.held.items if name not in items and (path / name).is_file()]
                items.update((name, Item(name, (path / name).stat().st_size)) for name in names)
        return items

    def is_whole(self) -> bool:
        """Whether each file is at the destination in its size: somebody may have taken one away."""
        items, path = self.held.items.values(), self.target.path
        if path is None:
            here = {item.name: item.bytes for item in self.here.values()}
            return all(here.get(item.name) == item.bytes for item in items)
        with disk.at_door(path):
            return all((file := path / item.name).is_file() and file.stat().st_size == item.bytes for item in items)

    def compare(self, committed: Holding | None, here: Mapping[str, Item]) -> Difference:
        """What has to move."""

        def original(name: str) -> Path | None:
            return locate(self.origin, name, single=self.held.single)

        def copy(name: str) -> Path | None:
            return locate(self.target, name, single=False)

        def reads(item: Item, entry: FileEntry) -> bool:
            return reads_as(self.store, ObjectInfo(self.target.key(item.name), item.bytes, item.etag), entry)

        if self.held.kind == "commit":
            return compare_commits(
                self.held, committed, here, original=original, copy=copy, reads=reads, repair=self.repair
            )
        return compare_files(self.held, here, original=original, copy=copy)

    def _one(self, item: Item) -> dict[str, Item]:
        try:
            info = self.store.head(self.target.key(item.name))
        except NotFound as error:
            if self.target.path is None and error.subject == self.target.store.url:
                raise
            return {}
        return {item.name: Item(item.name, info.bytes, info.etag)}

    def _occupied(self) -> Refused:
        return Refused(
            f"{self.target.url} holds a commit, and the source is not one",
            hint="Choose another destination",
            subject=self.target.url,
        )


def locate(place: Location, name: str, *, single: bool) -> Path | None:
    """Path of a file at a place, or of the place itself where that is one file; None where it is not local."""
    return None if place.path is None else place.path if single else place.path / name
