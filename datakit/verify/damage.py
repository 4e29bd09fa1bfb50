"""damage: what is wrong with the bytes of a shard: which sample, which byte.

The index says what should stand at each byte: a header is known from name and size, padding and the end are zeros, a
part has its crc32c (from which a single flipped bit can be named, see `flips`), a line of a bundle ends with a newline.
Bytes are asked for by range and pass by in order, so a shard of any size takes no memory, and one in object storage
costs a request for each stretch that is damaged. A tar that others wrote (`reindex`) has contents that are known and
headers that are not; there the headers' own checksums tell. Python's `tarfile`, and so every reader built on it, stops
silently at most such damage.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from datakit.data.archive import entries
from datakit.data.digest import PART_BYTES, Buffer, FileEntry, mend_hint
from datakit.data.flips import flipped_bit
from datakit.data.keys import split_name
from datakit.data.shard import BLOCK_BYTES, BUNDLE_PART, END, Part, Row, first_difference, header, member_bytes
from datakit.errors import InputError, IntegrityError
from datakit.verify.tape import Tape

Stream: TypeAlias = Callable[[int, int], Iterator[Buffer]]
"""Gives the bytes from an offset to another, in pieces of any size."""

_WINDOW_BYTES = 2**20
"""Bytes asked for at once where headers are looked at one after the other."""

UNNAMED = "the manifest does not name this file"
"""The problem of a file that is too many."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        file: The dataset's file.
        problem: What is wrong with it.
        sample: Key of the sample that is hit, where there is one.
        part: Its part.
        byte: Position in the file of the first wrong byte; of the part that holds it, where only a checksum is known of
            that part and more than one bit of it is wrong.
    """

    file: str
    problem: str
    sample: str | None = None
    part: str | None = None
    byte: int | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def mending(findings: Sequence[Finding], where: object) -> str:
    """What to do about findings in the commit at `where`, as a hint."""
    strange = [finding.problem == UNNAMED for finding in findings]
    delete, place = "--delete --max-delete N", shlex.quote(str(where))
    if not any(strange):
        return f"{mend_hint(where)}; or set it aside and make it anew"
    if all(strange):
        return f"Move it away, or delete what SRC does not hold: datakit sync {delete} SRC {place}"
    return f"Move away what is yours, and mend it from a whole copy: datakit sync --repair {delete} COPY {place}"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A shard whose bytes differ from the manifest.

    Attributes:
        entry: What the manifest says of it.
        size: Bytes that it has.
        stream: Gives them.
        wrong_parts: Numbers of its 16 MiB parts whose crc32c differs; empty where only the whole differs.
        bundle: Rows that share a member, or None.
        foreign: Whether others wrote it, so that its headers are not known.
    """

    entry: FileEntry
    size: int
    stream: Stream
    wrong_parts: Collection[int] = ()
    bundle: int | None = None
    foreign: bool = False

    def finding(self, problem: str, byte: int, key: str | None = None, part: str | None = None) -> Finding:
        """A finding in this shard."""
        return Finding(self.entry.name, problem, key, part, byte)

    def touched(self, start: int, stop: int) -> bool:
        """Whether these bytes may be wrong, by the checksums of the parts that they lie in."""
        parts = range(start // PART_BYTES, (max(stop, start + 1) - 1) // PART_BYTES + 1)
        return not self.wrong_parts or any(part in self.wrong_parts for part in parts)


def damage(suspect: Suspect, rows: Sequence[Row] | None) -> Iterator[Finding]:
    """What is wrong with a shard, first byte first; at least one finding.

    Args:
        suspect: The shard.
        rows: Its index, or None where that is lost: then headers and 16 MiB parts tell.
    """
    found = False
    known = () if rows is None else _against_rows(suspect, rows)
    walked = _against_headers(suspect, rows) if rows is None or suspect.foreign else ()
    for finding in chain(known, walked):
        found = True
        yield finding
    if not found:
        yield from wrong_parts(suspect)


def cut(suspect: Suspect, rows: Sequence[Row]) -> Finding | None:
    """What a shard that is too short has lost; reads nothing."""
    size, total = suspect.size, suspect.entry.bytes
    if size >= total:
        return None
    for member in _members(suspect, rows):
        if member.stop > size:
            return _lost(suspect, member, rows)
    return suspect.finding(f"it ends at byte {size} of {total}, before its end blocks", size)


def wrong_parts(suspect: Suspect) -> Iterator[Finding]:
    """The 16 MiB parts of a file that are not what the manifest says; at least one finding."""
    entry = suspect.entry
    if suspect.size != entry.bytes:
        problem = f"it has {suspect.size} bytes, the manifest says {entry.bytes}"
        yield suspect.finding(problem, min(suspect.size, entry.bytes))
        return
    for number in sorted(suspect.wrong_parts):
        start = number * PART_BYTES
        stop = min(start + PART_BYTES, entry.bytes)
        actual = Tape(suspect.stream(start, stop), start).crc(stop - start)[0]
        problem = f"bytes {start} to {stop} have crc32c {actual:08x}, the manifest says {entry.crc32c[number]}"
        flip = _flip(suspect, start, stop - start, found=actual, expected=int(entry.crc32c[number], 16))
        at, said = flip if flip is not None else (start, "")
        yield suspect.finding(problem + said, at)
    if not suspect.wrong_parts:
        yield Finding(entry.name, f"it has another sha256 than the manifest says ({entry.sha256})")


@dataclass(frozen=True, slots=True)
class _Member:
    """What should stand between two bytes: a header, contents one after the other, padding."""

    name: str
    start: int
    stop: int
    head: bytes | None
    contents: tuple[tuple[str, str, Part], ...]
    bundled: bool
    position: int

    @property
    def key(self) -> str:
        """The first sample in it."""
        return self.contents[0][0]


def _members(suspect: Suspect, rows: Sequence[Row]) -> Iterator[_Member]:
    if suspect.bundle is not None:
        for first in range(0, len(rows), suspect.bundle):
            together = rows[first : first + suspect.bundle]
            contents = tuple((row.key, part, place) for row in together for part, place in row.parts.items())
            size = sum(place.size + 1 for _, _, place in contents)
            yield _member(together[0].key, BUNDLE_PART, size, contents, first)
    elif suspect.foreign:
        placed = ((place, row.key, part, i) for i, row in enumerate(rows) for part, place in row.parts.items())
        for place, key, part, position in sorted(placed, key=lambda each: each[0].offset):
            stop = place.offset + place.size
            yield _Member(f"{key}.{part}", place.offset, stop, None, ((key, part, place),), False, position)
    else:
        for position, row in enumerate(rows):
            for part, place in sorted(row.parts.items(), key=lambda item: item[1].offset):
                yield _member(row.key, part, place.size, ((row.key, part, place),), position)


def _member(key: str, part: str, size: int, contents: tuple[tuple[str, str, Part], ...], position: int) -> _Member:
    start = contents[0][2].offset - BLOCK_BYTES
    head = header(key, part, size)
    return _Member(f"{key}.{part}", start, start + member_bytes(size), head, contents, part == BUNDLE_PART, position)


def _against_rows(suspect: Suspect, rows: Sequence[Row]) -> Iterator[Finding]:
    tape: Tape | None = None
    end = 0
    for member in _members(suspect, rows):
        end = member.stop
        if end > suspect.size:
            yield _lost(suspect, member, rows)
            return
        if not suspect.touched(member.start, end):
            tape = None
            continue
        if tape is None or tape.at > member.start:  # links of a foreign tar name the same bytes twice
            tape = Tape(suspect.stream(member.start, suspect.size), member.start)
        tape.skip(member.start - tape.at)
        yield from _look(suspect, member, tape)
    if not suspect.foreign:
        yield from _look_at_end(suspect, end)


def _lost(suspect: Suspect, member: _Member, rows: Sequence[Row]) -> Finding:
    """The first sample whose bytes the shard no longer has, and how many follow it."""
    whole = sum(place.offset + place.size < suspect.size for _, _, place in member.contents) if member.bundled else 0
    first = min(whole, len(member.contents) - 1)
    key, part, place = member.contents[first]
    lost = len(rows) - member.position - whole
    start, stop = (place.offset, place.offset + place.size) if member.bundled else (member.start, member.stop)
    rest = f"{lost} sample{'s are' if lost != 1 else ' is'} lost"
    problem = (
        f"it ends at byte {suspect.size} of {suspect.entry.bytes}: {key}.{part} should stand at bytes {start} to "
        f"{stop}, {rest}"
    )
    return suspect.finding(problem, suspect.size, key, part)


def _look(suspect: Suspect, member: _Member, tape: Tape) -> Iterator[Finding]:
    """What is wrong with one member, header to padding."""
    found: list[Finding] = []
    blank = True
    if member.head is not None:
        head = tape.take(BLOCK_BYTES)
        blank = not any(head)
        if (byte := first_difference(head, member.head)) is not None:
            at = member.start + byte
            was = f"is {head[byte]:#04x}, not {member.head[byte]:#04x}"
            problem = f"byte {at}, in the header of {member.name}, {was}"
            found.append(suspect.finding(problem, at, member.key, split_name(member.name)[1]))
    for key, part, place in member.contents:
        actual, zeros = tape.crc(place.size)
        blank = blank and zeros
        if actual != place.crc32c:
            found.append(_wrong_content(suspect, key, part, place, actual))
        if member.bundled:
            at, newline = tape.at, tape.take(1)
            blank = blank and newline == b"\0"
            if newline != b"\n":
                problem = f"byte {at}, after the line of {key}, is {newline[0]:#04x}, not a newline"
                found.append(suspect.finding(problem, at, key, part))
    at, padding = tape.at, tape.take(member.stop - tape.at)
    if (spoilt := first_difference(padding, bytes(len(padding)))) is not None:
        problem = f"byte {at + spoilt}, in the padding after {member.name}, is {padding[spoilt]:#04x}, not zero"
        found.append(suspect.finding(problem, at + spoilt, *member.contents[-1][:2]))
    elif found and blank:
        problem = f"bytes {member.start} to {member.stop} are zeros where {member.name} should be"
        found = [suspect.finding(problem, member.start, *member.contents[0][:2])]
    yield from found


def _wrong_content(suspect: Suspect, key: str, part: str, place: Part, actual: int) -> Finding:
    """A part with another checksum; by its byte, where one flipped bit explains it."""
    what = f"part {part} of sample {key} (bytes {place.offset} to {place.offset + place.size})"
    problem = f"{what} has crc32c {actual:08x}, the index says {place.crc32c:08x}"
    flip = _flip(suspect, place.offset, place.size, found=actual, expected=place.crc32c)
    at, said = flip if flip is not None else (place.offset, "")
    return suspect.finding(problem + said, at, key, part)


def _flip(suspect: Suspect, start: int, size: int, *, found: int, expected: int) -> tuple[int, str] | None:
    """The byte of which one bit is flipped, and how to say it; None where that does not explain two checksums."""
    flip = flipped_bit(size, found=found, expected=expected)
    if flip is None:
        return None
    at = start + flip[0]
    byte = Tape(suspect.stream(at, at + 1), at).take(1)[0]
    return at, f": one bit of byte {at} is flipped, {byte:#04x} should be {byte ^ 1 << flip[1]:#04x}"


def _look_at_end(suspect: Suspect, end: int) -> Iterator[Finding]:
    size, total = suspect.size, suspect.entry.bytes
    stop = min(size, end + len(END))
    rest = Tape(suspect.stream(end, stop), end).take(stop - end) if suspect.touched(end, stop) else END[: stop - end]
    if (byte := first_difference(rest, bytes(len(rest)))) is not None:
        yield suspect.finding(f"byte {end + byte}, in the end blocks, is not zero", end + byte)
    elif len(rest) < len(END):
        yield suspect.finding(f"it ends at byte {size} of {total}, before its end blocks", size)
    elif size > total:
        yield suspect.finding(f"{size - total} bytes follow its end at byte {total}", total)


def _against_headers(suspect: Suspect, rows: Sequence[Row] | None) -> Iterator[Finding]:
    """What the headers themselves tell, without an index that knows them; the first that is wrong."""
    window = _Window(suspect)
    try:
        for entry in entries(window.read, suspect.size):
            if suspect.foreign:
                continue
            head = window.read(entry.offset - BLOCK_BYTES, BLOCK_BYTES)
            try:
                expected = header(*split_name(entry.name), entry.size)
            except InputError:
                expected = bytes(BLOCK_BYTES)
            if (byte := first_difference(head, expected)) is not None:
                at = entry.offset - BLOCK_BYTES + byte
                yield suspect.finding(f"byte {at}, in the header of {entry.name}, is not as datakit writes it", at)
                return
    except IntegrityError as error:
        at = int(str(error.subject))
        key, part = _owner(rows, at)
        yield suspect.finding(error.message, at, key, part)


def _owner(rows: Sequence[Row] | None, byte: int) -> tuple[str | None, str | None]:
    """The sample and part whose content is the first to end after a byte."""
    placed = ((place, row.key, part) for row in rows or () for part, place in row.parts.items())
    after = [(place.offset, key, part) for place, key, part in placed if place.offset + place.size > byte]
    return min(after)[1:] if after else (None, None)


class _Window:
    """Small reads, one after the other, by few large ones."""

    def __init__(self, suspect: Suspect) -> None:
        self._suspect = suspect
        self._start = 0
        self._held = b""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset; fewer at the end."""
        stop = min(offset + size, self._suspect.size)
        if not self._start <= offset <= stop <= self._start + len(self._held):
            last = min(max(stop, offset + _WINDOW_BYTES), self._suspect.size)
            self._held = b"".join(map(bytes, self._suspect.stream(offset, last))) if last > offset else b""
            self._start = offset
        return self._held[offset - self._start : stop - self._start]
