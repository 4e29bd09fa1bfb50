"""builder: puts a shard together, sample by sample, and tells where everything came to lie.

The bytes follow from the samples, their order and the bundle alone: in whatever pieces they are taken, a shard is the
same. A sample that a shard cannot hold is refused before anything of it is written. It opens and keeps nothing: bytes
go to a function as they come, and of the samples only their rows remain.

The format is `data/shard`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from datakit.data.digest import crc32c
from datakit.data.keys import NAME_BYTES, check_key, check_part
from datakit.data.rows import Rows
from datakit.data.shard import (
    BLOCK_BYTES,
    BUNDLE_PART,
    END,
    LINE_PART,
    MAX_PART_BYTES,
    Sample,
    SampleDigest,
    header,
    member_bytes,
)
from datakit.errors import InputError, UsageError

PIECE_BYTES = 256 * 2**10
"""Bytes joined and handed over at once, while they are in the cache: 0.9 GB took 0.25 s of CPU in writes of this size
and 1.2 s to 2 s in one write a shard (Linux 6.18, ext4, 2026-11-30)."""

_SHORT_KEY = NAME_BYTES // 4 - len(BUNDLE_PART) - 1
"""Characters of a key that names a bundle whatever they are: UTF-8 has four bytes at most for each."""

_PADDING = [bytes(-size % BLOCK_BYTES) for size in range(BLOCK_BYTES)]


class ShardBuilder:
    """Turn samples into a shard.

    Args:
        write: Takes the shard's bytes, about 256 KiB at a time.
        bundle: Samples that share a member, each with one JSON line as its only part; None: a member for each part.

    Raises:
        UsageError: `bundle` is less than 1.

    Example:
        >>> pieces: list[bytes] = []
        >>> builder = ShardBuilder(pieces.append)
        >>> builder.add(Sample("cat", {"txt": b"a cat"}))
        >>> builder.finish()[0].parts["txt"].offset
        512
    """

    def __init__(self, write: Callable[[bytes], object], *, bundle: int | None = None) -> None:
        if bundle is not None and bundle < 1:
            raise UsageError(f"a bundle needs 1 line or more, not {bundle}", hint="64 suits short lines")
        self._write = write
        self._bundle = bundle
        self._end = 0
        self._rows = Rows()
        self._checked: set[str] = set()  # names of parts
        self._digest = SampleDigest()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._lines: list[bytes] = []  # of the bundle that has not ended
        self._lines_bytes = 0
        self._lines_key = ""

    def add(self, sample: Sample) -> None:
        """Append a sample.

        Raises:
            InputError: The sample has no part, or a name or size that a shard cannot hold, or cannot be in a bundle.
                Nothing was taken of it.
        """
        names = sorted(sample.parts)
        self._check(sample.key, names)
        if self._bundle is None:
            self._add_members(sample, names)
        else:
            self._add_line(sample, names)
        if self._held_bytes >= PIECE_BYTES:
            self._release()

    def finish(self) -> Rows:
        """End the shard and give the rows of its samples, in order."""
        if self._lines:
            self._end_bundle()
        self._hold(END)
        self._release()
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the members so far."""
        return self._end

    def _add_members(self, sample: Sample, names: list[str]) -> None:
        key, parts, rows = sample.key, sample.parts, self._rows
        headers = [header(key, part, len(parts[part])) for part in names]
        digest, row, start = self._digest, len(rows), self._end
        digest.reset()
        for part, head in zip(names, headers, strict=True):
            data = parts[part]
            size = len(data)
            digest.part(part, size)
            digest.update(data)
            rows.column(part).append(row, self._end + BLOCK_BYTES, size, crc32c(data))
            self._held += head, data, _PADDING[size % BLOCK_BYTES]
            self._end += member_bytes(size)
        self._held_bytes += self._end - start
        rows.end_row(key, digest.digest(), sample.tokens, sample.source)

    def _add_line(self, sample: Sample, names: list[str]) -> None:
        key, line = sample.key, sample.parts.get(LINE_PART)
        if line is None or len(names) > 1:
            raise InputError(
                f"sample {key} has parts {', '.join(names)}; in a bundle each is one JSON line",
                hint="Pack without --bundle",
                subject=key,
            )
        if (newline := line.find(b"\n")) >= 0:
            raise InputError(
                f"sample {key} has a newline at byte {newline} of its line; in a bundle newlines end lines",
                hint="Pack without --bundle, or write the record on one line",
                subject=key,
            )
        if len(key) > _SHORT_KEY or self._lines_bytes + len(line) > MAX_PART_BYTES // 2:
            # checked as if it were its bundle's first: a sample more before it must not make it one that does not fit
            header(key, BUNDLE_PART, self._lines_bytes + len(line) + 1)
        self._lines_key = self._lines_key if self._lines else key
        self._lines.append(line)
        offset = self._end + BLOCK_BYTES + self._lines_bytes
        self._rows.column(LINE_PART).append(len(self._rows), offset, len(line), crc32c(line))
        self._rows.end_row(key, self._digest.of_one(LINE_PART, line), sample.tokens, sample.source)
        self._lines_bytes += len(line) + 1
        if len(self._lines) == self._bundle:
            self._end_bundle()

    def _end_bundle(self) -> None:
        size = self._lines_bytes
        content = b"\n".join(self._lines)
        self._hold(header(self._lines_key, BUNDLE_PART, size), content, b"\n", _PADDING[size % BLOCK_BYTES])
        self._end += member_bytes(size)
        self._lines, self._lines_bytes = [], 0

    def _hold(self, *pieces: bytes) -> None:
        self._held += pieces
        self._held_bytes += sum(map(len, pieces))

    def _release(self) -> None:
        piece = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self._write(piece)

    def _check(self, key: str, names: list[str]) -> None:
        check_key(key)
        if not names:
            raise InputError(f"sample {key} has no parts", hint="Give it one at least, or leave it out", subject=key)
        for part in names:
            if part not in self._checked:
                check_part(part)
                self._checked.add(part)
