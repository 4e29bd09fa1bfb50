"""members: records whose parts lie inside other files, as a table: samples of tars, rows of tables that were laid down.

Of a record the table keeps its key, which parts it has, where each lies, and 16 bytes that tell its content: the sample
digest where listing meant reading or an index says it, else a hash of its place in a file of that size and time. When a
part is read, the digest must be the same, or the file's size and time: what has changed in between is refused. What an
index says holds for one version of its file until then, so that version is part of what is remembered of a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import Sample, sample_digest
from datakit.errors import InputError
from datakit.events import Caution, Note
from datakit.source.clashes import clashes
from datakit.source.columns import IN_MEMORY, Positions, Spill, kept, picked, thinned
from datakit.source.files import counts, in_a_shard, parts_between, sums
from datakit.source.originals import Version, open_original, version_of
from datakit.source.parts import lacking
from datakit.source.records import KeyColumn, Keys, rows_of
from datakit.source.troubles import Trouble
from datakit.storage import disk

Parts = tuple[str, ...]


class Said(NamedTuple):
    """What an index of ours says of each record beside its parts: tokens and source, None where it says nothing."""

    tokens: npt.NDArray[np.object_]
    sources: npt.NDArray[np.object_]


class Holder(NamedTuple):
    """A plain local file that parts lie in: the name that messages use, its path, bytes and time of change in ns.

    It may be a copy; `source_ns` is when what it is a copy of was changed, 0 where that is known by other means. Where
    it is `exact`, signatures of its records are sample digests: those that were found in it, or, where there is a
    `version`, those that an index says of that version of what it is a copy of.
    """

    name: str
    path: str
    size: int
    changed_ns: int
    exact: bool
    source_ns: int = 0
    version: bytes | None = None

    @classmethod
    def at(cls, name: str, path: str, *, exact: bool) -> Holder:
        """The file as it is now."""
        return cls(name, path, *version_of(path), exact=exact)

    def is_same(self, descriptor: int) -> bool:
        """Whether an open file is as it was."""
        return Version.of(os.fstat(descriptor)) == (self.size, self.changed_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """As `Members`, the columns of one file's records; names that were left out, how many records have none, and files
    with the columns of records that stand before these.
    """

    holder: Holder
    keys: KeyColumn
    kinds: tuple[Parts, ...]
    kind_of: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    signatures: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.int64]
    troubles: tuple[Trouble, ...] = ()
    remarks: tuple[Note | Caution, ...] = ()
    said: Said | None = None
    hidden: tuple[str, ...] = ()
    unnamed: int = 0
    laid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Records inside files, in order.

    Attributes:
        holders: The files.
        keys: Their names.
        kinds: Which parts there are together, sorted.
        kind_of: Which of the kinds each is.
        holder_of: Which of the files each lies in.
        firsts: Place of each record's first part in the two columns below; one more than there are records.
        offsets: Where each part begins.
        sizes: Bytes of each part.
        all_signatures: A row of 16 bytes for each record.
        exact: Whether all signatures are sample digests.
        rows: Number of each record in its file, from 1, for messages.
        troubles: What is no record.
        remarks: What a user should be told.
        said: Tokens and sources, where an index says some.
    """

    holders: tuple[Holder, ...]
    keys: KeyColumn
    kinds: tuple[Parts, ...]
    kind_of: npt.NDArray[np.int32]
    holder_of: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    all_signatures: npt.NDArray[np.uint8]
    exact: bool
    rows: npt.NDArray[np.int64]
    troubles: tuple[Trouble, ...] = ()
    remarks: tuple[Note | Caution, ...] = ()
    said: Said | None = None

    def part_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each of some."""
        return sums(*parts_between(self.sizes, self.firsts, some))

    def shard_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes that each of some takes in a shard."""
        sizes, firsts = parts_between(self.sizes, self.firsts, some)
        return sums(in_a_shard(sizes), firsts)

    @property
    def part_counts(self) -> Mapping[str, int]:
        """How many records have a part, by its name."""
        return counts(self.kinds, self.kind_of)

    def parts_of(self, positions: Positions) -> Mapping[str, int]:
        """How many of some records have a part, by its name."""
        return counts(self.kinds, picked(self.kind_of, positions))

    def where(self, position: int) -> str:
        """Where a record came from, as a person would look it up: `chat.parquet:12`."""
        return f"{self.holders[self.holder_of[position]].name}:{self.rows[position]}"

    def signatures(self, positions: Positions) -> list[bytes]:
        """16 bytes for each of some."""
        return rows_of(self.all_signatures, positions)

    def newest_ns(self, positions: Positions) -> int:
        """When the last of the files of some was changed, in ns since 1970; 0 where digests tell what they hold."""
        timed = (one for one in self._holders_of(positions) if not one.exact or one.version is not None)
        return max((holder.source_ns for holder in timed), default=0)

    def versions(self, positions: Positions) -> bytes:
        """What tells the versions of the files of some of which only an index was read."""
        return b"".join(one.version for one in self._holders_of(positions) if one.version is not None)

    def _holders_of(self, positions: Positions) -> list[Holder]:
        return [self.holders[number] for number in np.unique(picked(self.holder_of, positions))]

    def planned(self) -> Members:
        """The table without the hashes of its keys."""
        return replace(self, keys=self.keys.without_hashes())

    def take(self, positions: Positions) -> MemberBatch:
        """Some of them, in this order."""
        return MemberBatch(self.chosen(positions, hashed=False))

    def chosen(self, positions: Positions, *, hashed: bool = True) -> Members:
        """A table of some of them, in this order, with hashes of the keys or without."""
        begins = picked(self.firsts, positions)
        counts = picked(self.firsts, positions + 1) - begins
        firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        places = np.repeat(begins - firsts[:-1], counts) + np.arange(int(counts.sum()))
        return replace(
            self,
            keys=self.keys.chosen(positions, hashed=hashed),
            kind_of=picked(self.kind_of, positions),
            holder_of=picked(self.holder_of, positions),
            firsts=firsts,
            offsets=picked(self.offsets, places),
            sizes=picked(self.sizes, places),
            all_signatures=picked(self.all_signatures, positions),
            rows=picked(self.rows, positions),
            troubles=(),
            remarks=(),
            said=None if self.said is None else Said(*(column[positions] for column in self.said)),
        )

    def without(self, some: Positions, *, spill: Spill) -> Members:
        """The table without some of them, whose positions rise.

        Raises:
            NoSpace: The spool's disk is full.
        """
        begins, ends = picked(self.firsts, some), picked(self.firsts, some + 1)
        parts = [np.concatenate([np.arange(first, last) for first, last in zip(begins, ends, strict=True)])]
        gone = [some]
        firsts, num_parts = spill.column(np.int64), 0
        firsts.append(np.zeros(1, np.int64))
        for its in kept(len(self.keys), gone):
            ends = np.cumsum(picked(self.firsts, its + 1) - picked(self.firsts, its))
            firsts.append(num_parts + ends)
            num_parts += int(ends[-1]) if len(ends) else 0
        return replace(
            self,
            keys=self.keys.without(gone, spill=spill),
            kind_of=thinned(self.kind_of, gone, spill=spill),
            holder_of=thinned(self.holder_of, gone, spill=spill),
            firsts=firsts.done(),
            offsets=thinned(self.offsets, parts, spill=spill),
            sizes=thinned(self.sizes, parts, spill=spill),
            all_signatures=thinned(self.all_signatures, gone, spill=spill),
            rows=thinned(self.rows, gone, spill=spill),
            said=None if self.said is None else Said(*(np.delete(column, some) for column in self.said)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MemberBatch:
    """Some records inside files, as a table of their own."""

    table: Members

    def __len__(self) -> int:
        return len(self.table.keys)

    def samples(self) -> Iterator[Sample]:
        """The parts' bytes, compared with what was listed."""
        table = self.table
        everything = np.arange(len(self))
        keys, signatures = list(table.keys), table.signatures(everything)
        offsets, sizes, at = table.offsets.tolist(), table.sizes.tolist(), 0
        with _Open(table.holders) as opened:
            for position, (number, kind) in enumerate(
                zip(table.holder_of.tolist(), table.kind_of.tolist(), strict=True)
            ):
                descriptor = opened.turn_to(number)
                parts = {}
                for name in table.kinds[kind]:
                    parts[name] = disk.read_all(descriptor, sizes[at], offsets[at])
                    if len(parts[name]) != sizes[at]:
                        raise _changed(table.holders[number].name)
                    at += 1
                if table.holders[number].exact and sample_digest(parts) != signatures[position]:
                    raise _changed(table.where(position))
                tokens, source = (None, None) if table.said is None else (column[position] for column in table.said)
                yield Sample(keys[position], parts, source, tokens)


class _Open:
    """One open file at a time, seen to be what was listed when it is opened and when it is left."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = holders
        self._number = -1
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(check=kind is None)

    def turn_to(self, number: int) -> int:
        """The descriptor of a file."""
        if number != self._number:
            self._leave(check=True)
            self._descriptor, self._number = open_original(self._holders[number].path), number
            self._check()
        return self._descriptor

    def _check(self) -> None:
        if not self._holders[self._number].is_same(self._descriptor):
            raise _changed(self._holders[self._number].name)

    def _leave(self, *, check: bool) -> None:
        if self._descriptor >= 0:
            try:
                if check:
                    self._check()
            finally:
                os.close(self._descriptor)
                self._descriptor, self._number = -1, -1


def joined(pieces: Iterable[Piece], *, troubles: Sequence[Trouble] = (), spill: Spill = IN_MEMORY) -> Members:
    """The table of all pieces, in order, without records whose keys clash with an earlier one.

    Args:
        pieces: One for each file.
        troubles: What is known already not to be readable.
        spill: Where columns go that are long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    growing = _Growing(spill)
    for piece in pieces:
        growing.add(piece)
    table = growing.done()
    table = _without_clashes(replace(table, troubles=(*troubles, *table.troubles)), spill)
    return replace(table, remarks=(*table.remarks, *lacking(table.kinds, table.kind_of, table.keys)))


class _Growing:
    """What becomes a table, piece by piece."""

    def __init__(self, spill: Spill) -> None:
        self._keys = Keys(spill)
        self._kinds: dict[Parts, int] = {}
        self._holders: list[Holder] = []
        self._kind_of, self._holder_of = spill.column(np.int32), spill.column(np.int32)
        self._firsts, self._offsets, self._sizes = (spill.column(np.int64) for _ in range(3))
        self._signatures = spill.column(np.uint8, width=DIGEST_BYTES)
        self._rows = spill.column(np.int64)
        self._firsts.append(np.zeros(1, np.int64))
        self._said: list[tuple[int, Said | None]] = []
        self._num_parts = 0
        self._troubles: list[Trouble] = []
        self._remarks: list[Note | Caution] = []

    def add(self, piece: Piece) -> None:
        """Take what a piece holds and tells."""
        numbers = np.array([self._kinds.setdefault(parts, len(self._kinds)) for parts in piece.kinds], np.int32)
        counts = np.array([len(parts) for parts in piece.kinds], np.int64)
        self._keys.append(piece.keys)
        if len(piece.keys):
            self._kind_of.append(numbers[piece.kind_of])
            self._firsts.append(self._num_parts + np.cumsum(counts[piece.kind_of]))
        self._holder_of.append(np.full(len(piece.keys), len(self._holders), np.int32))
        self._holders.append(piece.holder)
        self._offsets.append(piece.offsets)
        self._sizes.append(piece.sizes)
        self._signatures.append(piece.signatures)
        self._rows.append(piece.rows)
        self._said.append((len(piece.keys), piece.said))
        self._num_parts += len(piece.sizes)
        self._troubles += piece.troubles
        self._remarks += piece.remarks

    def done(self) -> Members:
        """The table."""
        return Members(
            holders=tuple(self._holders),
            keys=self._keys.done(),
            kinds=tuple(self._kinds),
            kind_of=self._kind_of.done(),
            holder_of=self._holder_of.done(),
            firsts=self._firsts.done(),
            offsets=self._offsets.done(),
            sizes=self._sizes.done(),
            all_signatures=self._signatures.done(),
            exact=all(holder.exact for holder in self._holders),
            rows=self._rows.done(),
            troubles=tuple(self._troubles),
            remarks=tuple(dict.fromkeys(self._remarks)),  # what each file or row group of a table says, once
            said=_all_said(self._said),
        )


def _all_said(pieces: Sequence[tuple[int, Said | None]]) -> Said | None:
    """What is said of the records of all pieces; of each how many it has, and what is said of them."""
    if all(said is None for _, said in pieces):
        return None
    nothing = [np.full(count, None) for count, _ in pieces]
    columns = [said or Said(none, none) for (_, said), none in zip(pieces, nothing, strict=True)]
    return Said(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _without_clashes(table: Members, spill: Spill) -> Members:
    found = clashes(table.keys, spill=spill)
    if not found:
        return table
    hint = "Give each record a key of its own"
    told = [
        clash.trouble(where=table.where(clash.position), earlier=table.where(clash.earlier), hint=hint, raws=())
        for clash in found
    ]
    left = table.without(np.array([clash.position for clash in found]), spill=spill)
    return replace(left, troubles=(*table.troubles, *told))


def _changed(where: str) -> InputError:
    return InputError(
        f"{where} is not what it was when it was listed, or not what its index says",
        hint="Pack again when nothing writes there; of a dataset, look: datakit verify DATASET",
        subject=where,
    )
