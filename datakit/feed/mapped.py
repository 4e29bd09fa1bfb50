"""mapped: one shard of a dataset in memory, mapped and not read, and the samples in it.

A part is a slice of the map. While checks are on, no byte of a damaged sample is handed out. A sample that is asked for
alone is checked part by part against the index. Samples in order are checked in blocks against the manifest, which
holds a crc32c for each 16 MiB of a shard: a sample of two parts, 17 kB, took 3.9 us in all, and 6.5 us when each part
was checked (CPU time, page cache warm, 2026-11-30). Where a block is not what the manifest says, each part behind its
start is checked by itself, so that the damaged sample is named and whole ones are still given.

A file that somebody cuts while it is mapped ends the process at the next look behind its new end (SIGBUS, mmap(2)). So
its size is looked at, once in 10 ms where samples are read alone, else for each run of 256: what was cut before is an
error with a sentence. What remains is a cut in the moment after it, or while bytes that were handed out are still
looked at, and one of an index. `datakit sync` cuts nothing: it renames.

What it does not do: find a sample by its key or its number (`feed/dataset`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from mmap import mmap
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from datakit.data.digest import PART_BYTES, FileEntry, crc32c, damaged, range_crc32c
from datakit.data.index import Index
from datakit.errors import IntegrityError
from datakit.storage.disk import map_file

Verify: TypeAlias = Literal["crc", "none"]
"""Whether what is read is compared with its checksum."""

_RUN_ROWS = 256
"""Rows unpacked at once when samples are read in order: 1.0 us a sample of two parts, unchecked; 1.3 us with 4096,
which the garbage collector walks again and again (measured 2026-11-30)."""


_LOOK_S = 0.01
"""How long the size of a shard is believed where samples are read alone: a look costs 0.8 us, a fifth of a read; the
clock 0.1 us (measured 2026-11-30). A training step takes longer."""


class Item(NamedTuple):
    """A sample as it is read (a tuple, because a frozen dataclass takes three times as long to make).

    Attributes:
        number: Its number in the dataset, from 0, in layout order.
        key: Its unique name.
        parts: The bytes of each part; views of the mapped shard, nothing is copied.
    """

    number: int
    key: str
    parts: Mapping[str, memoryview]


class _Column(NamedTuple):
    """One part of each row: memoryviews, whose items are plain numbers at a third of the price of numpy's."""

    part: str
    offsets: memoryview
    sizes: memoryview
    crcs: memoryview
    has: npt.NDArray[np.bool_] | None  # None: every row


class MappedShard:
    """One shard, mapped.

    Args:
        path: The file.
        entry: What the manifest says of it.
        index: Its index.
        first: Number of its first sample in the dataset.
        verify: `crc` or `none`.

    Raises:
        NotFound: It is not there.
        IntegrityError: It has another size than the manifest says.
    """

    def __init__(self, path: Path, *, entry: FileEntry, index: Index, first: int, verify: Verify) -> None:
        self.path = path
        self.index = index
        self._entry = entry
        self._first = first
        self._verify = verify == "crc"
        self._data = map_file(path)
        if len(self._data) != entry.bytes:
            raise self._damaged(f"{path} has {len(self._data)} bytes, the manifest says {entry.bytes}", path)
        # the mapping keeps the file open: this is the size of the very file, whatever its name leads to by now
        self._look_at = monotonic() + _LOOK_S
        self._size = self._data.obj.size if isinstance(self._data.obj, mmap) else self._data.__len__
        self._crc_of = range_crc32c(self._data)
        self._columns = [_column(index, part) for part in index.parts]

    def read(self, row: int) -> Item:
        """One sample, each part compared with its checksum in the index while checks are on.

        Raises:
            IntegrityError: A part's bytes are not what the index says.
        """
        if monotonic() > self._look_at:
            self._look()
        parts = {}
        for part, offsets, sizes, crcs, has in self._columns:
            if has is None or has[row]:
                start, size = offsets[row], sizes[row]
                data = parts[part] = self._data[start : start + size]
                if self._verify and (self._crc_of(start, start + size) != crcs[row] or len(data) != size):
                    raise self._part_damaged(row, part, data, crcs[row])
        return Item(self._first + row, self.index.key(row), parts)

    def samples(self) -> Iterator[Item]:
        """All samples, in order.

        Raises:
            IntegrityError: A part's bytes are not what the index says.
        """
        if not self._verify:
            return self._trusted(0, len(self.index))
        return self._checked()

    def _checked(self) -> Iterator[Item]:
        ends = np.zeros(len(self.index), np.int64)
        for column in self._columns:
            np.maximum(ends, np.asarray(column.offsets) + np.asarray(column.sizes), out=ends)
        np.maximum.accumulate(ends, out=ends)
        row = 0
        for block, expected in enumerate(self._entry.crc32c):
            start, stop = block * PART_BYTES, min((block + 1) * PART_BYTES, len(self._data))
            self._look()
            if f"{crc32c(self._data[start:stop]):08x}" != expected:
                break
            # what ends within the blocks so far lies within them: nothing of it is unchecked
            last = int(ends.searchsorted(stop, "right"))
            yield from self._trusted(row, last)
            row = last
        for rest in range(row, len(self.index)):
            yield self.read(rest)

    def _trusted(self, start: int, stop: int) -> Iterator[Item]:
        """Samples that follow each other, as they are; the index's columns are unpacked for many at once."""
        for begin in range(start, stop, _RUN_ROWS):
            end = min(begin + _RUN_ROWS, stop)
            self._look()
            numbers = range(self._first + begin, self._first + end)
            # no line of Python for each item: 0.13 us instead of 0.24
            rows = zip(numbers, self.index.keys(begin, end), self._parts(begin, end), strict=True)
            yield from map(_NEW, repeat(Item), rows)

    def _parts(self, start: int, stop: int) -> Sequence[Mapping[str, memoryview]]:
        views = [self._views(column, start, stop) for column in self._columns]
        if all(column.has is None for column in self._columns):
            match [column.part for column in self._columns]:
                case [one]:
                    return [{one: data} for data in views[0]]
                case [one, two]:  # pairs are common, and this takes a quarter of what the general way does
                    return [{one: data, two: other} for data, other in zip(*views, strict=True)]
                case names:
                    return [dict(zip(names, row, strict=True)) for row in zip(*views, strict=True)]
        parts: list[dict[str, memoryview]] = [{} for _ in range(start, stop)]
        for column, its in zip(self._columns, views, strict=True):
            rows = range(stop - start) if column.has is None else np.flatnonzero(column.has[start:stop]).tolist()
            for row in rows:
                parts[row][column.part] = its[row]
        return parts

    def _views(self, column: _Column, start: int, stop: int) -> list[memoryview]:
        offsets = np.asarray(column.offsets[start:stop])
        ends = offsets + np.asarray(column.sizes[start:stop])
        return list(map(self._data.__getitem__, map(slice, offsets.tolist(), ends.tolist())))

    def _part_damaged(self, row: int, part: str, data: memoryview, expected: int) -> IntegrityError:
        key = self.index.key(row)
        said = f"part {part} of sample {key} has crc32c {crc32c(data):08x}, the index says {expected:08x}"
        return self._damaged(f"{self.path}: {said}", key)

    def _look(self) -> None:
        size_bytes = self._size()
        if size_bytes != self._entry.bytes:
            said = f"{self.path} has {size_bytes} bytes since a moment ago, the manifest says {self._entry.bytes}"
            raise self._damaged(said, self.path)
        self._look_at = monotonic() + _LOOK_S

    def _damaged(self, message: str, subject: object) -> IntegrityError:
        return damaged(message, str(subject), at=self.path.parents[self._entry.name.count("/")])


_NEW = tuple.__new__


def _column(index: Index, part: str) -> _Column:
    has = index.has(part)
    return _Column(
        part,
        index.offsets(part).data,
        index.sizes(part).data,
        index.crcs(part).data,
        None if has.all() else has,
    )
