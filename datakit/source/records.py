"""records: raw items as tables of keys and places; no byte is copied until a shard is built.

A table is columns (see `columns`), because a dataset may have millions of records; a batch of a table is what travels
to a worker. Every record is checked while it is listed, so that a bad line or name stops a pack before anything is
written, and again when it is read: what has changed in between is refused.

The tables are `lines` (JSON lines), `files` (a folder) and `members` (parts that lie inside other files).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from datakit.data.keys import key_hash
from datakit.errors import InputError
from datakit.events import Caution, Note
from datakit.source.columns import (
    IN_MEMORY,
    Column,
    Positions,
    Spill,
    kept,
    let_go,
    near,
    picked,
    stretches,
)

if TYPE_CHECKING:
    from datakit.data.shard import Sample
    from datakit.source.troubles import Trouble

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_KEY_BYTES = 255
"""Bytes of UTF-8 in a key; USTAR's two name fields hold 256, of which a dot and a part take two at least."""

ITERATED = 4096
"""Keys that are looked up at once: some megabytes of places."""

_STRIDE_BITS = 6
_STRIDE = 1 << _STRIDE_BITS
"""Keys between two places that are kept: finding one adds up 32 lengths on average, and a place costs a bit a key."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumn:
    """Keys as one text of UTF-8: 9.125 bytes a key besides its own, where a list of `str` takes about 60.

    Attributes:
        text: The bytes of all keys, one after the other.
        lengths: Bytes of each.
        known_hashes: `key_hash` of each; None where none is needed: in a batch, and once a plan is made.
        places: Where every 64th key begins.

    Example:
        >>> KeyColumn.of(["cat", "dog"])[1]
        'dog'
    """

    text: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.uint8]
    known_hashes: npt.NDArray[np.uint64] | None
    places: npt.NDArray[np.int64]

    @classmethod
    def of(cls, keys: Iterable[str]) -> KeyColumn:
        """A column of these keys.

        Raises:
            InputError: One has more than 255 bytes.
        """
        chosen = list(keys)
        encoded = [key.encode() for key in chosen]
        if (longest := max(map(len, encoded), default=0)) > MAX_KEY_BYTES:
            raise InputError(f"a key of {longest} bytes; one has {MAX_KEY_BYTES} at most", hint="Shorten that name")
        hashes = np.array([key_hash(key) for key in chosen], np.uint64)
        text = np.frombuffer(b"".join(encoded), np.uint8)
        return cls.joined(text, np.array([len(key) for key in encoded], np.uint8), hashes)

    @classmethod
    def joined(
        cls,
        text: npt.NDArray[np.uint8],
        lengths: npt.NDArray[np.uint8],
        hashes: npt.NDArray[np.uint64] | None,
        *,
        spill: Spill = IN_MEMORY,
    ) -> KeyColumn:
        """A column whose pieces are known.

        Args:
            text: The bytes of all keys.
            lengths: Bytes of each.
            hashes: `key_hash` of each, or None.
            spill: Where a column goes that is long.

        Raises:
            NoSpace: The spool's disk is full.
        """
        assert hashes is None or len(lengths) == len(hashes)
        places = spill.column(np.int64)
        places.append(ends := np.zeros(1, np.int64))
        for some in stretches(len(lengths), lengths, rows=_STRIDE << 14):
            piece = lengths[some]
            ends = ends[-1] + np.cumsum(np.add.reduceat(piece, np.arange(0, len(piece), _STRIDE), dtype=np.int64))
            places.append(ends)
        assert ends[-1] == len(text)
        return cls(text, lengths, hashes, places.done())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, position: int) -> str:
        if not 0 <= position < len(self):
            raise IndexError(position)
        block = position >> _STRIDE_BITS
        start = int(self.places[block]) + int(self.lengths[block << _STRIDE_BITS : position].sum(dtype=np.int64))
        return self.text[start : start + int(self.lengths[position])].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for some in stretches(len(self), self.text, self.lengths, rows=ITERATED):
            yield from self.between(some)

    def between(self, some: slice) -> list[str]:
        """Some that are next to each other, in a tenth of the time of `take`."""
        block = some.start >> _STRIDE_BITS
        start = int(self.places[block]) + int(self.lengths[block << _STRIDE_BITS : some.start].sum(dtype=np.int64))
        lengths = self.lengths[some]
        return _parted(self.text[start : start + int(lengths.sum(dtype=np.int64))].tobytes(), lengths)

    def take(self, positions: Positions) -> list[str]:
        """Some of them, in this order."""
        some = self.chosen(positions, hashed=False)
        return _parted(some.text.tobytes(), some.lengths)

    def chosen(self, positions: Positions, *, hashed: bool = True) -> KeyColumn:
        """A column of some of them, in this order, with their hashes or without."""
        regions = near(positions, self.text, self.lengths)
        if len(regions) > 1:
            those = Keys(IN_MEMORY)
            for region in regions:
                those.append(self.chosen(positions[region], hashed=hashed))
            return those.done().chosen(np.argsort(np.concatenate(regions)), hashed=hashed)
        texts = [self._text(positions[some]) for some in stretches(len(positions), rows=ITERATED)]
        let_go(self.text, self.lengths)
        hashes = picked(self.known_hashes, positions) if hashed and self.known_hashes is not None else None
        return KeyColumn.joined(np.frombuffer(b"".join(texts), np.uint8), picked(self.lengths, positions), hashes)

    def without(self, gone: Sequence[Positions], *, spill: Spill) -> KeyColumn:
        """A column without some of them, whose positions rise in each piece.

        Raises:
            NoSpace: The spool's disk is full.
        """
        left = Keys(spill)
        for its in kept(len(self), gone):
            left.append(self.chosen(its))
        return left.done()

    def without_hashes(self) -> KeyColumn:
        """The same keys."""
        return replace(self, known_hashes=None)

    def hashes(self) -> npt.NDArray[np.uint64]:
        """`key_hash` of each; not to be written to."""
        assert self.known_hashes is not None
        return self.known_hashes

    def _text(self, positions: Positions) -> bytes:
        """The text of some keys, which should not be many: in between it takes about a kilobyte for each."""
        wide = self.lengths[positions].astype(np.int64)
        before = np.cumsum(wide) - wide
        places = np.repeat(self._starts(positions) - before, wide) + np.arange(int(wide.sum()))
        return self.text[places].tobytes()

    def _starts(self, positions: Positions) -> npt.NDArray[np.int64]:
        first = int(positions.min(initial=len(self))) >> _STRIDE_BITS << _STRIDE_BITS
        last = int(positions.max(initial=-1))
        if last - first < _STRIDE * len(positions):  # near each other: lengths are added up once for all
            ends = np.cumsum(self.lengths[first : last + 1], dtype=np.int64)
            ends += self.places[first >> _STRIDE_BITS]
            return ends[positions - first] - self.lengths[positions]
        blocks = positions >> _STRIDE_BITS
        cells = (blocks[:, None] << _STRIDE_BITS) + np.arange(_STRIDE)
        within = cells < positions[:, None]
        lengths = np.where(within, self.lengths[np.where(within, cells, 0)], 0)
        starts: npt.NDArray[np.int64] = self.places[blocks] + lengths.sum(axis=1, dtype=np.int64)
        return starts


def _parted(data: bytes, lengths: npt.NDArray[np.uint8]) -> list[str]:
    """Texts that stand one after the other."""
    text = data.decode()
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    if len(text) == len(data):  # ASCII: places in the text are places in the bytes
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [data[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]


class Keys:
    """A column of keys in the making.

    Args:
        spill: Where it goes when it is long.
    """

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._text, self._lengths = spill.column(np.uint8), spill.column(np.uint8)
        self._hashes: Column | None = spill.column(np.uint64)

    def append(self, keys: KeyColumn) -> None:
        """Add keys at its end; where some have no hashes, none will.

        Raises:
            NoSpace: The spool's disk is full.
        """
        self._text.append(keys.text)
        self._lengths.append(keys.lengths)
        if keys.known_hashes is None:
            self._hashes = None
        if self._hashes is not None:
            self._hashes.append(keys.hashes())

    def done(self) -> KeyColumn:
        """The column.

        Raises:
            NoSpace: The spool's disk is full.
        """
        hashes = None if self._hashes is None else self._hashes.done()
        return KeyColumn.joined(self._text.done(), self._lengths.done(), hashes, spill=self._spill)


class Run(Protocol):
    """Runs a pure function of a module over tasks and gives the results in their order: `here`, or an engine's map."""

    def __call__(self, function: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
        """Run it."""
        ...


def here(function: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterator[Result]:
    """Run tasks in this process, one after the other."""
    return map(function, tasks)


class Batch(Protocol):
    """Some records of a table, in order, as a value that travels to a worker."""

    def __len__(self) -> int: ...

    def samples(self) -> Iterator[Sample]:
        """The records with their bytes.

        Raises:
            InputError: A source is not what it was when it was listed.
        """
        ...


class Records(Protocol):
    """A table of raw records; their order is the source's."""

    @property
    def keys(self) -> KeyColumn:
        """The unique name of each."""
        ...

    def part_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each of some, which are next to each other, in an array that is the caller's."""
        ...

    def shard_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes that each of some takes in a shard, without bundles, in an array that is the caller's."""
        ...

    @property
    def exact(self) -> bool:
        """Whether signatures are sample digests, which listing found or an index says; else, of sizes and times."""
        ...

    @property
    def part_counts(self) -> Mapping[str, int]:
        """How many records have a part, by its name."""
        ...

    def parts_of(self, positions: Positions) -> Mapping[str, int]:
        """How many of some records have a part, by its name."""
        ...

    @property
    def troubles(self) -> Sequence[Trouble]:
        """What was left out of the table, in the source's order."""
        ...

    @property
    def remarks(self) -> Sequence[Note | Caution]:
        """What a user should be told about the source."""
        ...

    def signatures(self, positions: Positions) -> list[bytes]:
        """16 bytes for each of some: they tell whether its content is what it was, without reading it again."""
        ...

    def newest_ns(self, positions: Positions) -> int:
        """When the last change was of the files that are told by their times for some, in ns since 1970, or 0."""
        ...

    def versions(self, positions: Positions) -> bytes:
        """What tells with the signatures of some if they are what they were: of files whose index is believed."""
        ...

    def take(self, positions: Positions) -> Batch:
        """Some of them, in this order."""
        ...

    def planned(self) -> Self:
        """The same table without the hashes of its keys: 8 bytes a record that only a plan needs."""
        ...


def first_part(table: Records, part: str) -> bytes:
    """The bytes that the first record of a table has for a part; none where it has no such part.

    Raises:
        InputError: The source is not what it was when it was listed.
    """
    (sample,) = table.take(np.zeros(1, np.int64)).samples()
    return bytes(sample.parts.get(part, b""))


def rows_of(table: npt.NDArray[np.uint8], positions: Positions | slice) -> list[bytes]:
    """Some rows of a table of bytes."""
    width = table.shape[1]
    data = picked(table, positions).tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]
