"""columns: a value for each of very many records, in memory while they are few, else in a file of the spool.

What a pack holds of its records must not fill the memory, however many there are. So a column that outgrows a limit is
written to a file without a name, of which a kill leaves nothing, and read as an array over that file. Its pages are the
system's to take back; they are let go of after each stretch, so that they do not count as this process's either. A
column is written front to back and never through the map, so a full disk is an error and no signal (SIGBUS, mmap(2)).
What must be sorted is sorted by ranges of its values, each in memory: a look at a column takes far less time than that.

What it does not do: change a column that is made.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datakit.storage import disk
from datakit.storage.aside import make_ignored

Positions = npt.NDArray[np.int64]

LIMIT_BYTES = 2**24
"""Bytes of a column that stay in memory: the digests of a million records. There are about ten columns."""

STRETCH = 2**20
"""Rows looked at together."""

NEAR = 2**22
"""Rows of a column that may be looked at before it is let go of: a group of shards of short lines has two millions."""

SORTED = 2**21
"""Rows that are sorted together, some tens of megabytes."""

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Spill:
    """Where columns go that are too long for memory.

    Attributes:
        folder: A directory of ours, made when it is needed; None keeps every column in memory.
    """

    folder: Path | None = None

    def column(self, kind: npt.DTypeLike, *, width: int | None = None) -> Column:
        """An empty column of such values, or of so many in a row."""
        return Column(self, np.dtype(kind), width)


IN_MEMORY = Spill()


class Column:
    """A column in the making.

    Args:
        spill: Where it goes when it is long.
        kind: Of its values.
        width: How many are in a row; None for one, which is no row.
    """

    def __init__(self, spill: Spill, kind: np.dtype[Any], width: int | None) -> None:
        self._spill = spill
        self._kind = kind
        self._shape = (-1,) if width is None else (-1, width)
        self._pieces: list[npt.NDArray[Any]] = []
        self._pieces_bytes = self._file_bytes = 0
        self._descriptor = -1
        self._close: Callable[[], object] = bool

    def append(self, rows: npt.ArrayLike) -> None:
        """Add rows at its end; an array of the column's own kind is kept as it is, and is the column's from then on.

        Raises:
            NoSpace: The spool's disk is full.
        """
        piece = np.ascontiguousarray(rows, self._kind)
        if len(piece):
            self._pieces.append(piece)
        self._pieces_bytes += piece.nbytes
        if self._spill.folder is not None and self._file_bytes + self._pieces_bytes > LIMIT_BYTES:
            self._write(self._spill.folder)

    def done(self) -> npt.NDArray[Any]:
        """The column as an array that is not to be written to."""
        if self._descriptor < 0:
            empty = np.zeros(0, self._kind).reshape(self._shape)
            return self._pieces[0] if len(self._pieces) == 1 else np.concatenate([empty, *self._pieces])
        mapped = mmap.mmap(self._descriptor, self._file_bytes, access=mmap.ACCESS_READ)
        self._close()
        self._descriptor = -1
        self._pieces = [np.frombuffer(mapped, self._kind).reshape(self._shape)]
        return self._pieces[0]

    def _write(self, folder: Path) -> None:
        with disk.at_door(folder):
            if self._descriptor < 0:
                make_ignored(folder)
                with tempfile.TemporaryFile(dir=folder) as file:
                    self._descriptor = os.dup(file.fileno())
                self._close = weakref.finalize(self, os.close, self._descriptor)
            for piece in self._pieces:
                disk.write_all(self._descriptor, piece.data, self._file_bytes)
                self._file_bytes += piece.nbytes
        self._pieces.clear()
        self._pieces_bytes = 0


def let_go(*columns: npt.NDArray[Any]) -> None:
    """Take the pages of columns out of this process's memory; they come back when they are looked at."""
    for column in columns:
        if (mapped := _map_of(column)) is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def stretches(count: int, *columns: npt.NDArray[Any], rows: int | None = None) -> Iterator[slice]:
    """So many rows, some at a time; columns are let go of after each time."""
    together = rows or STRETCH
    for start in range(0, count, together):
        yield slice(start, min(start + together, count))
        let_go(*columns)


def picked(column: npt.NDArray[Any], positions: Positions | slice) -> npt.NDArray[Any]:
    """Some rows of a column, in this order, as an array of their own."""
    if isinstance(positions, slice):
        some = np.array(column[positions])
        let_go(column)
        return some
    if _map_of(column) is None:
        return column[positions]
    found = np.empty((len(positions), *column.shape[1:]), column.dtype)
    for places in near(positions, column):
        found[places] = column[positions[places]]
        let_go(column)
    return found


def subset(column: npt.NDArray[Any], positions: Positions, *, spill: Spill) -> npt.NDArray[Any]:
    """A column of some rows of another.

    Args:
        column: All rows.
        positions: Of those that are taken, a column too.
        spill: Where it goes when it is long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    taken = spill.column(column.dtype)
    for some in stretches(len(positions), positions):
        taken.append(picked(column, positions[some]))
    return taken.done()


def near(positions: Positions, *columns: npt.NDArray[Any]) -> list[Positions]:
    """Places in an array of positions, those together that lie near each other in columns that are not in memory.

    The places of each keep their order; where all columns are in memory, all are together.
    """
    if all(_map_of(column) is None for column in columns) or not len(positions):
        return [np.arange(len(positions))]
    low = positions.min()
    if positions.max() - low < NEAR:
        return [np.arange(len(positions))]
    regions = ((positions - low) // NEAR).astype(np.uint16)  # two bytes sort in linear time; they do for 10**11 rows
    order = np.argsort(regions, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(regions[order])) + 1)


def kept(count: int, gone: Sequence[Positions]) -> Iterator[Positions]:
    """Positions of so many rows but for some, some at a time.

    Args:
        count: How many rows there are.
        gone: Positions of those that are left out, in pieces of which each rises.
    """
    for some in stretches(count, *gone):
        its = [piece[slice(*piece.searchsorted((some.start, some.stop)))] for piece in gone]
        yield np.delete(np.arange(some.start, some.stop), np.concatenate([_NONE, *its]) - some.start)


def thinned(column: npt.NDArray[Any], gone: Sequence[Positions], *, spill: Spill) -> npt.NDArray[Any]:
    """A column without some rows.

    Args:
        column: All rows.
        gone: Positions of those that are left out, in pieces of which each rises.
        spill: Where it goes when it is long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    left = spill.column(column.dtype, width=column.shape[1] if column.ndim > 1 else None)
    for its in kept(len(column), gone):
        left.append(picked(column, its))
    return left.done()


def tally(kinds: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int64]:
    """How many rows of a column are of each of so many kinds, which it names by their numbers."""
    found = np.zeros(count, np.int64)
    for some in stretches(len(kinds), kinds):
        found += np.bincount(kinds[some], minlength=count)
    return found


def having(kinds: npt.NDArray[np.int32], wanted: npt.NDArray[np.bool_]) -> Iterator[int]:
    """Positions of the rows of a column that are of a wanted kind, rising."""
    for some in stretches(len(kinds), kinds):
        yield from (some.start + np.flatnonzero(wanted[kinds[some]])).tolist()


def within(numbers: npt.NDArray[Any], low: int, high: int, *, rows: slice) -> Positions:
    """Positions, among some rows of a column, of the numbers from `low` to `high`, both included; rising."""
    found = [_NONE]
    for start in range(rows.start, rows.stop, STRETCH):
        some = numbers[start : min(start + STRETCH, rows.stop)]
        found.append(start + np.flatnonzero((some >= low) & (some <= high)))
        let_go(numbers)
    return np.concatenate(found)


def ranges(count: int) -> Iterator[tuple[int, int]]:
    """Ranges of a hash, their first and last number, each with about as many of so many rows as are sorted together."""
    parts = max(1, -(-count // SORTED))
    for first, behind in pairwise(-(-number * 2**64 // parts) for number in range(parts + 1)):
        yield first, behind - 1


def repeated(numbers: npt.NDArray[np.uint64]) -> Iterator[Positions]:
    """Positions of the numbers that are there more than once: rising in each piece, and those of a number in one piece.

    Args:
        numbers: Hashes: pieces are alike long where numbers are as likely as each other.
    """
    everything = slice(0, len(numbers))
    for low, high in ranges(len(numbers)):
        pieces = [np.zeros(0, np.uint64)]
        for some in stretches(len(numbers), numbers):
            piece = numbers[some]
            pieces.append(piece[(piece >= low) & (piece <= high)])
        rising = np.concatenate(pieces)
        rising.sort()
        if len(twice := np.unique(rising[1:][rising[1:] == rising[:-1]])):
            its = within(numbers, low, high, rows=everything)
            yield its[np.isin(picked(numbers, its), twice)]


def later(rows: npt.NDArray[np.uint8]) -> Positions:
    """Places of the rows of 16 bytes that are equal to an earlier one, rising."""
    halves = rows.view(np.uint64)
    order = np.lexsort((halves[:, 0], halves[:, 1]))  # stable
    same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    return np.sort(order[1:][same])


def _map_of(column: npt.NDArray[Any]) -> mmap.mmap | None:
    """The map that an array is a view of, or None for an array of memory."""
    base: Any = column
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
