"""usage: what lies in a pool's directory, by names and sizes; the layout is told in `pool`.

Others may write there while it is looked at. The order of looking (arriving, objects, aside) is that in which files
are moved, so that each is seen at least once. Does not open a file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from datakit.storage import disk
from datakit.tier import arrival
from datakit.tier.arrival import Incoming

ARRIVING, OBJECTS, ASIDE = "arriving", "objects", "aside"
_ASIDE = re.compile(r"(?P<digest>[0-9a-f]{64})\.[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Lying:
    """An object that is there: its size in bytes, and when it was used last, in ns since 1970."""

    bytes: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in a pool.

    Attributes:
        objects: By digest.
        incoming: Directories of arriving objects.
        aside: Sizes of damaged files, by name, oldest first.
    """

    objects: Mapping[str, Lying]
    incoming: tuple[Incoming, ...]
    aside: Mapping[str, int]

    @property
    def object_bytes(self) -> int:
        """Of the objects."""
        return sum(each.bytes for each in self.objects.values())

    @property
    def arriving_bytes(self) -> int:
        """Of what arrives, in the size that it was promised."""
        return sum(each.bytes for each in self.incoming)

    @property
    def aside_bytes(self) -> int:
        """Of what lies aside."""
        return sum(self.aside.values())

    def left_bytes(self, digests: Collection[str] | None = None) -> int:
        """Of what killed fetches have left, of some objects or of all."""
        left = [each.here for each in self.incoming if each.is_left]
        return sum(size for here in left for digest, size in here.items() if digests is None or digest in digests)

    def spent(self, copied: Collection[str]) -> list[str]:
        """Damaged files of which a whole one is here or in a colder tier; their names."""
        whole = {*self.objects, *copied}
        return [name for name in self.aside if (match := _ASIDE.fullmatch(name)) and match["digest"] in whole]

    @property
    def total_bytes(self) -> int:
        """What counts against the budget."""
        return self.object_bytes + self.arriving_bytes + self.aside_bytes


def look_at(root: Path) -> Usage:
    """What lies there now.

    Args:
        root: The pool's directory; one that is not there holds nothing.

    Raises:
        NotAllowed: It may not be read.
    """
    with disk.at_door(root):
        incoming = tuple(arrival.look(root / ARRIVING))
        objects = {
            file.name: Lying(status.st_size, status.st_atime_ns)
            for folder in _entries(root / OBJECTS)
            for file, status in _statuses(Path(folder.path))
        }
        aside = sorted((status.st_ctime_ns, file.name, status.st_size) for file, status in _statuses(root / ASIDE))
    return Usage(objects, incoming, {name: size for _, name, size in aside})


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _statuses(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if entry.is_file(follow_symlinks=False):
                yield entry, status
