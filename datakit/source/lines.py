"""lines: JSON lines as a table; a record is a line, whose bytes pass through untouched as the part `json`.

Files are listed in spans of bytes that end at line feeds, each by a pure task, so that any number of workers gives the
same table. Of a record the table keeps its place, its size and the digest of its bytes: 33 bytes, and the key's own.
That every line is a JSON object with a usable key is seen while listing; a line whose bytes have changed by the time it
is read is refused by its digest. A byte-order mark at a file's start is left out of the first record, and said.

What it does not do: object storage and compression (`scan` lays such sources down as plain local files first).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import BLOCK_BYTES, Sample, sample_digest
from datakit.events import Caution, Note
from datakit.source.clashes import Clash, among, folded_hashes
from datakit.source.columns import IN_MEMORY, Positions, Spill, later, picked, repeated, stretches, thinned
from datakit.source.kinds import lines_name
from datakit.source.naming import JSON_PART, Naming
from datakit.source.originals import changed, open_original
from datakit.source.records import ITERATED, KeyColumn, Keys, Run, first_part, here, rows_of
from datakit.source.spans import MANY, LineFile, Piece, Span, list_span, places, spans_of, troubles_of
from datakit.source.troubles import Raw, Trouble
from datakit.storage import disk


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Records of JSON lines, in their order.

    Attributes:
        files: Where they lie.
        keys: Their names.
        firsts: Position of each file's first record.
        offsets: Where each begins in its file; 4 bytes each, 8 where a file has more than 4 GiB.
        sizes: Bytes of each.
        digests: `sample_digest` of each, a row of 16 bytes.
        troubles: Lines that are no records.
        remarks: What a user should be told.
        twins: How many lines were left out because an earlier one is the same.
    """

    files: tuple[LineFile, ...]
    keys: KeyColumn
    firsts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.integer[Any]]
    sizes: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.uint8]
    troubles: tuple[Trouble, ...] = ()
    remarks: tuple[Note | Caution, ...] = ()
    twins: int = 0
    exact: bool = field(default=True, init=False)

    def part_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes of each of some."""
        return picked(self.sizes, some).astype(np.int64)

    def shard_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes that each of some takes in a shard, without bundles."""
        sizes = self.part_bytes(some)
        sizes += BLOCK_BYTES + -sizes % BLOCK_BYTES
        return sizes

    @property
    def part_counts(self) -> Mapping[str, int]:
        """Every record has its one part."""
        return {JSON_PART: len(self.keys)} if len(self.keys) else {}

    def parts_of(self, positions: Positions) -> Mapping[str, int]:
        """How many of some records have a part, by its name."""
        return {JSON_PART: len(positions)} if len(positions) else {}

    def where(self, positions: Sequence[int]) -> dict[int, str]:
        """Where records came from, by position, as a person would look them up: `chat.jsonl:12`."""
        wanted = np.unique(np.array(positions, np.int64))
        found: dict[int, str] = {}
        file_of = self._file_of(wanted)
        for number in np.unique(file_of).tolist():
            its = wanted[file_of == number]
            found.update(zip(its.tolist(), places(self.files[number], self.offsets[its].tolist()), strict=True))
        return found

    def signatures(self, positions: Positions) -> list[bytes]:
        """`sample_digest` of some."""
        return rows_of(self.digests, positions)

    def newest_ns(self, positions: Positions) -> int:  # noqa: ARG002 -- of the protocol
        """0: signatures are digests."""
        return 0

    def versions(self, positions: Positions) -> bytes:  # noqa: ARG002 -- of the protocol
        """None: signatures are digests of what was read."""
        return b""

    def planned(self) -> Lines:
        """The table without the hashes of its keys."""
        return replace(self, keys=self.keys.without_hashes())

    def take(self, positions: Positions) -> LineBatch:
        """Some of them, in this order."""
        return LineBatch(
            files=self.files,
            keys=self.keys.chosen(positions, hashed=False),
            file_of=self._file_of(positions).astype(np.min_scalar_type(len(self.files))),
            offsets=picked(self.offsets, positions),
            sizes=picked(self.sizes, positions),
            digests=picked(self.digests, positions),
        )

    def raw(self, position: int) -> Raw:
        """The bytes of one."""
        file = self.files[int(self._file_of(np.array([position]))[0])]
        return Raw(lines_name(file.name), file.path, int(self.offsets[position]), int(self.sizes[position]))

    def _file_of(self, positions: Positions) -> npt.NDArray[np.int32]:
        return (self.firsts.searchsorted(positions, "right") - 1).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class LineBatch:
    """Some lines."""

    files: tuple[LineFile, ...]
    keys: KeyColumn
    file_of: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.integer[Any]]
    sizes: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.keys)

    def samples(self) -> Iterator[Sample]:
        """The lines' bytes, each compared with the digest that it was listed with."""
        opened, descriptor = -1, -1
        try:
            for key, number, offset, size, digest in self._rows():
                if number != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                        descriptor = -1  # if the next file is gone, none is open
                    descriptor, opened = open_original(self.files[number].path), number
                parts = {JSON_PART: disk.read_all(descriptor, size, offset)}
                if sample_digest(parts) != digest:
                    raise changed(*places(self.files[number], [offset]))
                yield Sample(key, parts)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _rows(self) -> Iterator[tuple[str, int, int, int, bytes]]:
        """Key, file, place, size and digest of each; as Python objects they take ten times what they take here."""
        for some in stretches(len(self), rows=ITERATED):
            keys = self.keys.between(some)
            columns = (self.file_of[some].tolist(), self.offsets[some].tolist(), self.sizes[some].tolist())
            yield from zip(keys, *columns, rows_of(self.digests, some), strict=True)


def list_lines(
    files: Sequence[LineFile],
    *,
    naming: Naming | None = None,
    limit: int = MANY,
    run: Run = here,
    troubles: Sequence[Trouble] = (),
    drop_twins: bool = False,
    spill: Spill = IN_MEMORY,
) -> Lines:
    """The records of JSON lines, in order; blank lines are none.

    Lines that are no records are the table's troubles: not a JSON object, a key that cannot name a sample, or one that
    an earlier record has.

    Args:
        files: Plain JSON lines files.
        naming: How records are named; one without the field, by a hash of its bytes.
        limit: More offenders than this in one span end its listing: the pack will stop.
        run: What runs the tasks.
        troubles: What is known not to be readable.
        drop_twins: Whether a line that repeats an earlier one byte for byte is left out and no offender.
        spill: Where columns go that are long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    naming = naming or Naming()
    spans = spans_of(files, naming=naming, limit=limit)
    growing = _Growing(files, spans, spill)
    found = troubles_of(spans, map(growing.add, spans, run(list_span, spans)))
    lines = replace(growing.done(), troubles=(*troubles, *found))
    unnamed, total = growing.unnamed, len(lines.keys)
    naming.check_field(unnamed, total, first=lambda: first_part(lines, JSON_PART))
    lines = replace(lines, remarks=(*lines.remarks, *naming.remarks(unnamed, total)))
    return _without_clashes(lines, drop_twins=drop_twins, spill=spill)


class _Growing:
    """What becomes a table, piece by piece."""

    def __init__(self, files: Sequence[LineFile], spans: Sequence[Span], spill: Spill) -> None:
        self._files = files
        self._counts = np.zeros(len(files), np.int64)
        self._keys = Keys(spill)
        self._offsets = spill.column(np.uint32 if all(span.stop <= 2**32 for span in spans) else np.int64)
        self._sizes = spill.column(np.uint32)
        self._digests = spill.column(np.uint8, width=DIGEST_BYTES)
        self._remarks: list[Note | Caution] = []
        self.unnamed = 0

    def add(self, span: Span, piece: Piece) -> Piece:
        """Take a piece's columns; what it tells is the caller's."""
        self._counts[span.number] += len(piece.lengths)
        self._keys.append(KeyColumn.joined(np.frombuffer(piece.keys, np.uint8), piece.lengths, piece.hashes))
        self._offsets.append(piece.offsets)
        self._sizes.append(piece.sizes)
        self._digests.append(piece.digests)
        self._remarks += piece.remarks
        self.unnamed += piece.unnamed
        return piece

    def done(self) -> Lines:
        """The table, without what is told of lines that are no records."""
        arrays = [file for file in self._files if file.is_array]
        return Lines(
            files=tuple(self._files),
            keys=self._keys.done(),
            firsts=np.cumsum(self._counts) - self._counts,
            offsets=self._offsets.done(),
            sizes=self._sizes.done(),
            digests=self._digests.done(),
            remarks=(
                *(Note(f"{one.name} is a JSON array; its items are the records") for one in arrays),
                *self._remarks,
            ),
        )


def _without_clashes(lines: Lines, *, drop_twins: bool, spill: Spill) -> Lines:
    found: list[Clash] = []
    twins, ends = spill.column(np.int64), [0]
    for some in repeated(hashes := folded_hashes(lines.keys, spill=spill)):
        repeats = later(picked(lines.digests, some)) if drop_twins else np.zeros(0, np.int64)
        twins.append(some[repeats])
        ends.append(ends[-1] + len(repeats))
        others = np.delete(some, repeats)
        found += (clash for its in repeated(picked(hashes, others)) for clash in among(lines.keys, others[its]))
    if not ends[-1] and not found:
        return lines
    found.sort(key=lambda clash: clash.position)
    gone = [np.array([clash.position for clash in found], np.int64), *np.split(twins.done(), ends[1:-1])]
    return replace(
        lines,
        keys=lines.keys.without(gone, spill=spill),
        firsts=lines.firsts - sum(piece.searchsorted(lines.firsts) for piece in gone),
        offsets=thinned(lines.offsets, gone, spill=spill),
        sizes=thinned(lines.sizes, gone, spill=spill),
        digests=thinned(lines.digests, gone, spill=spill),
        troubles=(*lines.troubles, *_told(lines, found)),
        twins=ends[-1],
    )


def _told(lines: Lines, found: Sequence[Clash]) -> list[Trouble]:
    where = lines.where([position for clash in found for position in (clash.position, clash.earlier)])
    hint = "Give each record a key of its own, or set pack.key_field to the field that does"
    twins = [bool((lines.digests[clash.position] == lines.digests[clash.earlier]).all()) for clash in found]
    return [
        clash.trouble(
            where=where[clash.position],
            earlier=where[clash.earlier],
            hint=f"{hint}; or keep the first of equal lines: --dedupe drop" if twin else hint,
            raws=(lines.raw(clash.position),),
        )
        for clash, twin in zip(found, twins, strict=True)
    ]
