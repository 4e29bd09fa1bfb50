"""rows: where each sample of a shard is, as columns, and as rows for those who want them.

A shard has thousands of samples, and an object for each of their parts costs more than to checksum it. So a builder
appends numbers to columns (16 bytes of digest, 8 of offset, 8 of size, 4 of checksum a part; of a key its own bytes and
4 more, where a list of `str` takes about 60), an index is made of the same columns, and a `Row` is made when it is
asked for. It promises that the rows are those that were appended.

What it does not do: write or read a file (`data/index`), or check a name (`data/builder`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import overload

from datakit.data.shard import Part, Row

DIGEST_BYTES = 16


class PartColumns:
    """One part in all samples that have it.

    Attributes:
        rows: Positions of those samples, ascending.
        offsets: Of the part's bytes in the shard, one for each of `rows`, as all that follow.
        sizes: In bytes.
        crcs: CRC-32C.
    """

    __slots__ = ("crcs", "offsets", "rows", "sizes")

    def __init__(self) -> None:
        self.rows = array("q")
        self.offsets = array("q")
        self.sizes = array("q")
        self.crcs = array("I")

    def append(self, row: int, offset: int, size: int, crc32c: int) -> None:
        """Take the part of one more sample."""
        self.rows.append(row)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.crcs.append(crc32c)


class Rows(Sequence[Row]):
    """The rows of a shard, kept as columns; equal to any sequence of the same rows.

    Attributes:
        key_text: The keys as one text of UTF-8, one after the other.
        key_ends: Where each key begins in it, and after the last where that ends.
        digests: `sample_digest` of each, 16 bytes after 16 bytes.
        parts: The columns of each part, by its name.
        tokens: Of each, or None where no sample is tokenized.
        sources: Of each, or None where no source is recorded.
    """

    __slots__ = ("digests", "key_ends", "key_text", "parts", "sources", "tokens")

    def __init__(self) -> None:
        self.key_text = bytearray()
        self.key_ends = array("i", [0])  # as an index has them: a shard's keys are below 2 GiB
        self.digests = bytearray()
        self.parts: dict[str, PartColumns] = {}
        self.tokens: list[int | None] | None = None
        self.sources: list[str | None] | None = None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Rows:
        """The same rows as columns."""
        if isinstance(rows, Rows):
            return rows
        columns = cls()
        for row in rows:
            columns.append(row)
        return columns

    def append(self, row: Row) -> None:
        """Take a row."""
        position = len(self)
        for part, place in row.parts.items():
            self.column(part).append(position, place.offset, place.size, place.crc32c)
        self.end_row(row.key, row.digest, row.tokens, row.source)

    def column(self, part: str) -> PartColumns:
        """The columns of a part, new ones if it has none yet."""
        column = self.parts.get(part)
        if column is None:
            column = self.parts[part] = PartColumns()
        return column

    def end_row(self, key: str, digest: bytes, tokens: int | None, source: str | None) -> None:
        """Take what a row has besides its parts, which were appended to their columns before."""
        if tokens is not None and self.tokens is None:
            self.tokens = [None] * len(self)
        if source is not None and self.sources is None:
            self.sources = [None] * len(self)
        if self.tokens is not None:
            self.tokens.append(tokens)
        if self.sources is not None:
            self.sources.append(source)
        self.key_text += key.encode()
        self.key_ends.append(len(self.key_text))
        self.digests += digest

    def part_names(self) -> list[str]:
        """Names of the parts that any sample has, sorted."""
        return sorted(part for part, column in self.parts.items() if column.rows)

    def each_key(self) -> Iterator[str]:
        """The key of each sample, in order."""
        text = bytes(self.key_text)
        return (text[start:end].decode() for start, end in pairwise(self.key_ends))

    def each_digest(self) -> Iterator[bytes]:
        """The digest of each sample, in order."""
        digests = bytes(self.digests)
        return (digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES))

    def __len__(self) -> int:
        return len(self.key_ends) - 1

    @overload
    def __getitem__(self, position: int) -> Row: ...

    @overload
    def __getitem__(self, position: slice) -> list[Row]: ...

    def __getitem__(self, position: int | slice) -> Row | list[Row]:
        if isinstance(position, slice):
            return list(self)[position]
        row = range(len(self))[position]
        places = {}
        for part in self.part_names():
            column = self.parts[part]
            at = bisect_left(column.rows, row)
            if at < len(column.rows) and column.rows[at] == row:
                places[part] = Part(column.offsets[at], column.sizes[at], column.crcs[at])
        return self._row(row, places)

    def __iter__(self) -> Iterator[Row]:
        places: list[dict[str, Part]] = [{} for _ in range(len(self))]
        for part in self.part_names():
            column = self.parts[part]
            for row, *place in zip(column.rows, column.offsets, column.sizes, column.crcs, strict=True):
                places[row][part] = Part(*place)
        return map(self._row, range(len(self)), places)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _row(self, position: int, places: Mapping[str, Part]) -> Row:
        return Row(
            self.key_text[self.key_ends[position] : self.key_ends[position + 1]].decode(),
            bytes(self.digests[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]),
            places,
            None if self.tokens is None else self.tokens[position],
            None if self.sources is None else self.sources[position],
        )
