"""tally: whether a shard of ours is what its index says, row by row, while its bytes pass by.

A shard and an index may each be what the manifest says and still contradict each other, where somebody made one of
them anew. The sizes that an index gives decide where everything in a shard stands, so its offsets are compared with
them before a byte is read: then no member is without a row and no row without a member. Of the bytes each header,
crc32c, sample digest and padding is compared. A member, or a bundle, that lies across the end of a stretch is none of
its own: `across` names it, to be read by itself.

What it does not do: tars that others wrote (`walk`), or find what is damaged in a shard that is not what the manifest
says (`damage`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from datakit.data.digest import Buffer, crc32c
from datakit.data.index import Index
from datakit.data.shard import BLOCK_BYTES, BUNDLE_PART, END, LINE_PART, SampleDigest, header, member_bytes
from datakit.errors import InputError
from datakit.verify.damage import Finding
from datakit.verify.tape import Tape

MOST_HELD_BYTES = 2**20
"""Contents up to this size are taken in one piece, larger ones as they come."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """The contents of a shard in order, one for each part of each sample.

    Attributes:
        rows: The row that each belongs to.
        parts: Its part, by its place in `Index.parts`.
        offsets: As the index says.
        sizes: In bytes.
        crcs: CRC-32C.
    """

    rows: Numbers
    parts: Numbers
    offsets: Numbers
    sizes: Numbers
    crcs: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, index: Index) -> Columns:
        """Those of an index: rows in order, and the parts of each sorted."""
        has = [np.flatnonzero(index.has(part)) for part in index.parts]
        if not has:
            none = np.empty(0, np.int64)
            return cls(none, none, none, none, none.astype(np.uint32))
        rows = np.concatenate(has)
        parts = np.repeat(np.arange(len(has)), [len(at) for at in has])
        order = np.lexsort((parts, rows))
        offsets, sizes, crcs = (
            np.concatenate([numbers(part)[at] for part, at in zip(index.parts, has, strict=True)])[order]
            for numbers in (index.offsets, index.sizes, index.crcs)
        )
        return cls(rows[order], parts[order], offsets, sizes, crcs)


class Tally:
    """What should stand at each byte of a shard.

    Args:
        shard: Its name.
        index: Its rows.
        size: Its bytes.
        bundle: Rows that share a member, or None.
    """

    def __init__(self, shard: str, index: Index, *, size: int, bundle: int | None) -> None:
        self._shard = shard
        self._index = index
        self._bundle = bundle
        self._columns = columns = Columns.of(index)
        count = len(columns.sizes)
        self._firsts = np.arange(0, count, bundle or 1)  # of each member the first content
        contents = columns.sizes + (1 if bundle else 0)  # a line has its newline
        self._sizes = np.add.reduceat(contents, self._firsts) if count else contents
        ends = np.cumsum(member_bytes(self._sizes))
        self._ends = ends
        self._starts = np.concatenate(([0], ends[:-1])) if count else ends
        before = np.cumsum(contents) - contents
        member = np.arange(count) // (bundle or 1)
        self._expected = self._starts[member] + BLOCK_BYTES + before - before[self._firsts][member]
        self.findings = tuple(self._misplaced(size))

    def across(self, stop: int) -> tuple[int, int] | None:
        """From where to where the samples lie that begin before a byte and end after it; None where none does."""
        last = self._whole_until(stop)
        first, after = self._of_row(last) if last < len(self._ends) else (0, 0)
        return (int(self._starts[first]), int(self._ends[after - 1])) if after and self._starts[first] < stop else None

    def check(self, tape: Tape, stop: int) -> Iterator[Finding]:
        """Compare the samples that lie whole on a tape, up to a byte; raises nothing, whatever stands there."""
        first = int(np.searchsorted(self._starts, tape.at))
        if first < len(self._ends):
            began, after = self._of_row(first)
            first = first if began == first else after  # the rest of a sample that began on the tape before
        last = self._whole_until(stop)
        if last > first:
            tape.skip(int(self._starts[first]) - tape.at)
            yield from self._bundles(tape, first, last) if self._bundle else self._members(tape, first, last)
        end = int(self._ends[-1]) if len(self._ends) else 0
        begin, until = max(end, tape.at), min(stop, end + len(END))
        if begin < until:  # as much of the end blocks as lies on this tape
            tape.skip(begin - tape.at)
            if any(tape.take(until - begin)):
                yield Finding(self._shard, f"its end blocks, from byte {end} on, are not zero", byte=end)

    def _whole_until(self, stop: int) -> int:
        """The first member that is not of a sample that ends before a byte."""
        last = int(np.searchsorted(self._ends, stop, side="right"))
        return self._of_row(last)[0] if last < len(self._ends) else last

    def _of_row(self, member: int) -> tuple[int, int]:
        """The first member of the sample that a member is of, and the first after it; a bundle is one by itself."""
        if self._bundle:
            return member, member + 1
        rows = self._columns.rows
        row = rows[member]
        return int(np.searchsorted(rows, row)), int(np.searchsorted(rows, row, side="right"))

    def _misplaced(self, size: int) -> Iterator[Finding]:
        """Rows that cannot be right whatever the bytes are; the first is named."""
        columns = self._columns
        lacking = np.flatnonzero(np.bincount(columns.rows, minlength=len(self._index)) == 0)
        if len(lacking):
            key = self._index.key(int(lacking[0]))
            yield Finding(self._shard, f"its index has no part of sample {key}", sample=key)
        elif self._bundle and self._index.parts not in ((), (LINE_PART,)):
            yield Finding(self._shard, f"it is bundled, and its index has the parts {', '.join(self._index.parts)}")
        elif len(wrong := np.flatnonzero((columns.sizes < 0) | (columns.sizes > size))):
            key, part = self._name(int(wrong[0]))
            said = f"the index says that part {part} of sample {key} has {columns.sizes[wrong[0]]} bytes of its {size}"
            yield Finding(self._shard, said, key, part)
        elif len(wrong := np.flatnonzero(columns.offsets != self._expected)):
            key, part = self._name(int(wrong[0]))
            byte, other = int(self._expected[wrong[0]]), int(columns.offsets[wrong[0]])
            rest = f", and {len(wrong) - 1} more are wrong" if len(wrong) > 1 else ""
            said = f"the index says that part {part} of sample {key} is at byte {other}, it should be at {byte}"
            yield Finding(self._shard, said + rest, key, part, byte)
        elif (end := int(self._ends[-1]) if len(self._ends) else 0) + len(END) != size:
            yield Finding(self._shard, f"its index ends at byte {end}, it goes on to byte {size}", byte=end)

    def _name(self, content: int) -> tuple[str, str]:
        columns = self._columns
        return self._index.key(int(columns.rows[content])), self._index.parts[columns.parts[content]]

    def _members(self, tape: Tape, first: int, last: int) -> Iterator[Finding]:
        columns, parts = self._columns, self._index.parts
        rows = columns.rows[first:last].tolist()
        base = rows[0]
        keys, digests = self._index.keys(base, rows[-1] + 1), self._index.digests(base, rows[-1] + 1)
        digest, row, key = SampleDigest(), base, keys[0]
        for at, *its in zip(rows, *(column[first:last].tolist() for column in _numbers(columns)), strict=True):
            number, size, crc = its
            part = parts[number]
            if at != row:
                if (found := digest.digest()) != digests[row - base]:
                    yield self._wrong_digest(row, key, found=found, said=digests[row - base])
                row, key = at, keys[at - base]
                digest.reset()
            if (wrong := self._wrong_head(tape, key, part, size)) is not None:
                yield wrong
            digest.part(part, size)
            offset = tape.at
            if (actual := _content(tape, size, digest.update)) != crc:
                yield self._wrong_crc(key, part, offset, size, found=actual, said=crc)
            if any(tape.take(-tape.at % BLOCK_BYTES)):
                yield self._wrong_padding(offset + size, key, part)
        if (found := digest.digest()) != digests[row - base]:
            yield self._wrong_digest(row, key, found=found, said=digests[row - base])

    def _bundles(self, tape: Tape, first: int, last: int) -> Iterator[Finding]:
        begin = int(self._firsts[first])
        stop = int(self._firsts[last]) if last < len(self._firsts) else len(self._columns.sizes)
        keys, digests = self._index.keys(begin, stop), self._index.digests(begin, stop)
        members = iter(self._sizes[first:last].tolist())
        sizes, crcs = self._columns.sizes[begin:stop].tolist(), self._columns.crcs[begin:stop].tolist()
        assert self._bundle is not None
        digest = SampleDigest()
        for row, (key, its_digest, size, crc) in enumerate(zip(keys, digests, sizes, crcs, strict=True), begin):
            first_line = row % self._bundle == 0
            if first_line and (wrong := self._wrong_head(tape, key, BUNDLE_PART, next(members))) is not None:
                yield wrong
            digest.reset()
            digest.part(LINE_PART, size)
            offset = tape.at
            if (actual := _content(tape, size, digest.update)) != crc:
                yield self._wrong_crc(key, LINE_PART, offset, size, found=actual, said=crc)
            if tape.take(1) != b"\n":
                said = f"byte {tape.at - 1}, after the line of {key}, is not a newline"
                yield Finding(self._shard, said, key, LINE_PART, tape.at - 1)
            if (found := digest.digest()) != its_digest:
                yield self._wrong_digest(row, key, found=found, said=its_digest)
            if (row + 1) % self._bundle == 0 or row + 1 == stop:
                at = tape.at
                if any(tape.take(-at % BLOCK_BYTES)):
                    yield self._wrong_padding(at, key, LINE_PART)

    def _wrong_head(self, tape: Tape, key: str, part: str, size: int) -> Finding | None:
        at, head = tape.at, tape.take(BLOCK_BYTES)
        try:
            if head == header(key, part, size):
                return None
        except InputError:  # a name that no shard has
            pass
        there = head[:100].rstrip(b"\0").decode(errors="replace")
        said = f"the header at byte {at} is of {there!r}, the index says {key}.{part} with {size} bytes"
        return Finding(self._shard, said, key, part, at)

    def _wrong_padding(self, at: int, key: str, part: str) -> Finding:
        return Finding(self._shard, f"the padding after {key}.{part}, from byte {at} on, is not zero", key, part, at)

    def _wrong_crc(self, key: str, part: str, offset: int, size: int, *, found: int, said: int) -> Finding:
        what = f"part {part} of sample {key} (bytes {offset} to {offset + size})"
        problem = f"{what} has crc32c {found:08x}, the index says {said:08x}"
        return Finding(self._shard, problem, key, part, offset)

    def _wrong_digest(self, row: int, key: str, *, found: bytes, said: bytes) -> Finding:
        byte = int(self._expected[np.searchsorted(self._columns.rows, row)])
        problem = f"sample {key}, from byte {byte} on, has the digest {found.hex()}, the index says {said.hex()}"
        return Finding(self._shard, problem, key, byte=byte)


def _numbers(columns: Columns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    return columns.parts, columns.sizes, columns.crcs


def _content(tape: Tape, size: int, hear: Callable[[Buffer], object]) -> int:
    """The crc32c of the next bytes, which a digest hears too."""
    if size <= MOST_HELD_BYTES:
        data = tape.take(size)
        hear(data)
        return crc32c(data)
    value = 0
    for piece in tape.pieces(size):
        hear(piece)
        value = crc32c(piece, value)
    return value
