"""walk: whether a tar that others wrote is what its index says, header by header, while its bytes pass by.

Where its members stand only their headers tell, so those are walked, and each member that a reader takes for a part is
looked up in the index: name, place, size, crc32c. Sample digests are compared where the sample's bytes are at hand:
samples of parts of up to 16 MiB, as long as no more than 64 MiB of unfinished ones are, and none with a part that is a
hard link.

What it does not do: shards of ours (`tally`). What readers take for a part is `data/keys`' to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from datakit.data.archive import Entry, entries
from datakit.data.digest import crc32c
from datakit.data.index import Index
from datakit.data.keys import part_of
from datakit.data.shard import Part, Row, sample_digest
from datakit.errors import IntegrityError
from datakit.verify.damage import Finding
from datakit.verify.tape import Tape

MOST_PART_BYTES = 16 * 2**20
MOST_HELD_BYTES = 64 * 2**20


def walk(shard: str, index: Index, tape: Tape, *, size: int, prefix: str = "") -> Iterator[Finding]:
    """Compare a tar with its index.

    Args:
        shard: Its name.
        index: Its rows.
        tape: Its bytes, from the first on.
        size: Their number.
        prefix: What stands before each key (see `reindex --keys tar`).
    """
    check = _Walk(shard, index, prefix)
    reader = TapeReader(tape, size)
    try:
        for entry in entries(reader.read, size):
            yield from check.take(entry, tape)
    except IntegrityError as error:
        if not isinstance(error.subject, int):  # the store's own
            raise
        yield Finding(shard, error.message, byte=error.subject)
        return
    yield from check.left()


class TapeReader:
    """What `entries` asks for, one after the other; it may look at the last block once more."""

    def __init__(self, tape: Tape, size: int) -> None:
        self._tape = tape
        self._size = size
        self._last = b""
        self._last_end = 0

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset, fewer at the end."""
        back = self._tape.at - offset
        assert back <= 0 or (self._tape.at == self._last_end and back <= len(self._last)), "it no longer holds them"
        again = self._last[len(self._last) - back :][:size] if back > 0 else b""
        self._tape.skip(max(-back, 0))
        fresh = self._tape.take(min(size, self._size - offset) - len(again))
        self._last = again + fresh if fresh else self._last
        self._last_end = self._tape.at
        return again + fresh


class _Walk:
    """An index, row by row crossed off."""

    def __init__(self, shard: str, index: Index, prefix: str) -> None:
        self._shard = shard
        self._prefix = prefix
        self._rows: dict[str, Row] = {row.key: row for row in index.rows()}
        self._seen: dict[str, dict[str, bytes | None]] = {}
        self._held_bytes = 0
        self._files: dict[str, Part] = {}

    def take(self, entry: Entry, tape: Tape) -> Iterator[Finding]:
        """Compare a member; the tape stands at its content."""
        if entry.kind not in ("file", "hard link"):
            return
        name = part_of(entry.name)
        key, part = (self._prefix + name[0], name[1]) if name else ("", "")
        row = self._rows.get(key)
        data: bytes | None = None
        if entry.kind == "hard link":
            actual = self._files.get(entry.target, Part(entry.offset, entry.size, 0))
        elif row is not None and entry.size <= MOST_PART_BYTES and self._held_bytes <= MOST_HELD_BYTES:
            data = tape.take(entry.size)
            actual = Part(entry.offset, entry.size, crc32c(data))
        else:
            actual = Part(entry.offset, entry.size, tape.crc(entry.size)[0])
        self._files[entry.name] = actual
        if name is None:
            return
        if row is None or part not in row.parts or part in self._seen.get(key, ()):
            yield Finding(
                self._shard, f"{entry.name} at byte {entry.start} is not in its index", key, part, entry.start
            )
            return
        if actual != (place := row.parts[part]):
            where = f"part {part} of sample {key} (bytes {actual.offset} to {actual.offset + actual.size}, crc32c "
            what = f"{where}{actual.crc32c:08x}) has, says the index, bytes {place.offset} to "
            problem = f"{what}{place.offset + place.size} and crc32c {place.crc32c:08x}"
            yield Finding(self._shard, problem, key, part, entry.start)
        yield from self._cross_off(row, part, data)

    def left(self) -> Iterator[Finding]:
        """What the index names and the tar does not hold."""
        for row in self._rows.values():
            for part, place in row.parts.items():
                if part not in self._seen.get(row.key, ()):
                    problem = (
                        f"part {part} of sample {row.key}, which the index says is at byte {place.offset}, is not there"
                    )
                    yield Finding(self._shard, problem, row.key, part, place.offset)

    def _cross_off(self, row: Row, part: str, data: bytes | None) -> Iterator[Finding]:
        seen = self._seen.setdefault(row.key, {})
        seen[part] = data
        self._held_bytes += len(data or b"")
        if len(seen) < len(row.parts):
            return
        parts = {part: data for part, data in seen.items() if data is not None}
        self._held_bytes -= sum(map(len, parts.values()))
        self._seen[row.key] = dict.fromkeys(seen)
        if len(parts) == len(seen) and (found := sample_digest(parts)) != row.digest:
            byte = min(place.offset for place in row.parts.values())
            problem = f"sample {row.key} has the digest {found.hex()}, the index says {row.digest.hex()}"
            yield Finding(self._shard, problem, row.key, byte=byte)
