"""members: records whose parts lie inside other files, as a table: samples of tars, rows of tables that were laid down.

Of a record the table keeps its key, which parts it has, where each lies, and 16 bytes that tell its content: the sample
digest where listing meant reading or an index says it, else a hash of its place in a file of that size and time. When a
part is read, the digest must be the same, or the file's size and time: what has changed in between is refused. What an
index says holds for one version of its file until then, so that version is part of what is remembered of a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import Sample, sample_digest
from datakit.errors import InputError
from datakit.events import Caution, Note
from datakit.source.clashes import clashes
from datakit.source.files import counts, in_a_shard, sums
from datakit.source.originals import Version, open_original, version_of
from datakit.source.records import KeyColumn, Positions, lacking, rows_of
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
    """As `Members`, the columns of one file's records; names that were left out, and how many records have none."""

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

    @property
    def part_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each."""
        return sums(self.sizes, self.firsts)

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard."""
        return sums(in_a_shard(self.sizes), self.firsts)

    @property
    def part_counts(self) -> Mapping[str, int]:
        """How many records have a part, by its name."""
        return counts(self.kinds, self.kind_of)

    def parts_of(self, positions: Positions) -> Mapping[str, int]:
        """How many of some records have a part, by its name."""
        return counts(self.kinds, self.kind_of[positions])

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
        return [self.holders[number] for number in np.unique(self.holder_of[positions])]

    def planned(self) -> Members:
        """The table without the hashes of its keys."""
        return replace(self, keys=self.keys.without_hashes())

    def take(self, positions: Positions) -> MemberBatch:
        """Some of them, in this order."""
        return MemberBatch(self.chosen(positions, hashed=False))

    def chosen(self, positions: Positions, *, hashed: bool = True) -> Members:
        """A table of some of them, in this order, with hashes of the keys or without."""
        counts = np.diff(self.firsts)[positions]
        firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        picked = np.repeat(self.firsts[positions] - firsts[:-1], counts) + np.arange(int(counts.sum()))
        return replace(
            self,
            keys=self.keys.chosen(positions, hashed=hashed),
            kind_of=self.kind_of[positions],
            holder_of=self.holder_of[positions],
            firsts=firsts,
            offsets=self.offsets[picked],
            sizes=self.sizes[picked],
            all_signatures=self.all_signatures[positions],
            rows=self.rows[positions],
            troubles=(),
            remarks=(),
            said=None if self.said is None else Said(*(column[positions] for column in self.said)),
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
        keys, signatures = table.keys.take(everything), table.signatures(everything)
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


def joined(pieces: Sequence[Piece], *, troubles: Sequence[Trouble] = ()) -> Members:
    """The table of all pieces, in order, without records whose keys clash with an earlier one.

    Args:
        pieces: One for each file.
        troubles: What is known already not to be readable.
    """
    kinds: dict[Parts, int] = {}
    kind_of = []
    for piece in pieces:
        numbers = np.array([kinds.setdefault(parts, len(kinds)) for parts in piece.kinds], np.int32)
        kind_of.append(numbers[piece.kind_of] if len(numbers) else piece.kind_of)
    counts = np.array([len(parts) for parts in kinds], np.int64)
    all_kinds = np.concatenate([*kind_of, np.zeros(0, np.int32)])
    holder_of = [np.full(len(piece.keys), number, np.int32) for number, piece in enumerate(pieces)]
    part_counts = counts[all_kinds] if len(counts) else np.zeros(0, np.int64)
    table = Members(
        holders=tuple(piece.holder for piece in pieces),
        keys=KeyColumn.joined(
            b"".join(piece.keys.text for piece in pieces),
            np.concatenate([*(piece.keys.lengths for piece in pieces), np.zeros(0, np.uint8)]),
            np.concatenate([*(piece.keys.hashes() for piece in pieces), np.zeros(0, np.uint64)]),
        ),
        kinds=tuple(kinds),
        kind_of=all_kinds,
        holder_of=np.concatenate([*holder_of, np.zeros(0, np.int32)]),
        firsts=np.concatenate([np.zeros(1, np.int64), np.cumsum(part_counts)]),
        offsets=np.concatenate([*(piece.offsets for piece in pieces), np.zeros(0, np.int64)]),
        sizes=np.concatenate([*(piece.sizes for piece in pieces), np.zeros(0, np.int64)]),
        all_signatures=np.concatenate([*(piece.signatures for piece in pieces), np.zeros((0, DIGEST_BYTES), np.uint8)]),
        exact=all(piece.holder.exact for piece in pieces),
        rows=np.concatenate([*(piece.rows for piece in pieces), np.zeros(0, np.int64)]),
        troubles=(*troubles, *(trouble for piece in pieces for trouble in piece.troubles)),
        remarks=tuple(remark for piece in pieces for remark in piece.remarks),
        said=_all_said(pieces),
    )
    table = _without_clashes(table)
    return replace(table, remarks=(*table.remarks, *lacking(table.kinds, table.kind_of, table.keys)))


def _all_said(pieces: Sequence[Piece]) -> Said | None:
    if all(piece.said is None for piece in pieces):
        return None
    nothing = [np.full(len(piece.keys), None) for piece in pieces]
    columns = [piece.said or Said(none, none) for piece, none in zip(pieces, nothing, strict=True)]
    return Said(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _without_clashes(table: Members) -> Members:
    found = clashes(table.keys)
    if not found:
        return table
    hint = "Give each record a key of its own"
    told = [
        clash.trouble(where=table.where(clash.position), earlier=table.where(clash.earlier), hint=hint, raws=())
        for clash in found
    ]
    kept = np.delete(np.arange(len(table.keys)), [clash.position for clash in found])
    return replace(table.chosen(kept), troubles=(*table.troubles, *told), remarks=table.remarks)


def _changed(where: str) -> InputError:
    return InputError(
        f"{where} is not what it was when it was listed, or not what its index says",
        hint="Pack again when nothing writes there; of a dataset, look: datakit verify DATASET",
        subject=where,
    )
