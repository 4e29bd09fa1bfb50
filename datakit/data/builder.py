"""builder: puts a shard together, sample by sample, and tells where everything came to lie.

The bytes follow from the samples, their order and the bundle alone: in whatever pieces they are taken, a shard is the
same. A sample that a shard cannot hold is refused before anything of it is written. It opens and keeps nothing: bytes
go to a function as they come, and of the samples only their rows remain.

The format is `data/shard`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from datakit.data.digest import crc32c
from datakit.data.keys import check_key, check_part
from datakit.data.shard import (
    BLOCK_BYTES,
    BUNDLE_PART,
    END,
    LINE_PART,
    Part,
    Row,
    Sample,
    header,
    sample_digest,
)
from datakit.errors import InputError, UsageError

_PADDING = [bytes(-size % BLOCK_BYTES) for size in range(BLOCK_BYTES)]


class ShardBuilder:
    """Turn samples into a shard.

    Args:
        write: Takes the shard's bytes, member by member.
        bundle: Samples that share a member, each with one JSON line as its only part; None: a member for each part.

    Raises:
        UsageError: `bundle` is less than 1.

    Example:
        >>> pieces: list[bytes] = []
        >>> builder = ShardBuilder(pieces.append)
        >>> builder.add(Sample("cat", {"txt": b"a cat"})).parts["txt"].offset
        512
        >>> rows, shard = builder.finish(), b"".join(pieces)
    """

    def __init__(self, write: Callable[[bytes], object], *, bundle: int | None = None) -> None:
        if bundle is not None and bundle < 1:
            raise UsageError(f"a bundle needs 1 line or more, not {bundle}", hint="64 suits short lines")
        self._write = write
        self._bundle = bundle
        self._end = 0
        self._rows: list[Row] = []
        self._known_parts: set[str] = set()
        self._lines: list[bytes] = []  # of the bundle that is not written yet
        self._lines_bytes = 0
        self._lines_key = ""

    def add(self, sample: Sample) -> Row:
        """Append a sample; its row says where it is.

        Raises:
            InputError: The sample has no part, or a name or size that a shard cannot hold, or cannot be in a bundle.
                Nothing was written of it.
        """
        names = sorted(sample.parts)
        self._check(sample.key, names)
        places = self._add_members(sample, names) if self._bundle is None else self._add_line(sample, names)
        row = Row(sample.key, sample_digest(sample.parts), places, sample.tokens, sample.source)
        self._rows.append(row)
        if len(self._lines) == self._bundle:
            self._end_bundle()
        return row

    def finish(self) -> list[Row]:
        """End the shard and give the rows of its samples, in order."""
        if self._lines:
            self._end_bundle()
        self._write(END)
        self._end += len(END)
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._end

    def _add_members(self, sample: Sample, names: list[str]) -> dict[str, Part]:
        key, parts = sample.key, sample.parts
        headers = [header(key, part, len(parts[part])) for part in names]
        places: dict[str, Part] = {}
        pieces: list[bytes] = []
        for part, head in zip(names, headers, strict=True):
            data = parts[part]
            size = len(data)
            padding = _PADDING[size % BLOCK_BYTES]
            pieces += head, data, padding
            places[part] = Part(self._end + BLOCK_BYTES, size, crc32c(data))
            self._end += BLOCK_BYTES + size + len(padding)
        self._write(b"".join(pieces))
        return places

    def _add_line(self, sample: Sample, names: list[str]) -> dict[str, Part]:
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
        # each key is checked as if it were a bundle's first: another sample more must not make it one that does not fit
        header(key, BUNDLE_PART, self._lines_bytes + len(line) + 1)
        self._lines_key = self._lines_key if self._lines else key
        self._lines.append(line)
        place = Part(self._end + BLOCK_BYTES + self._lines_bytes, len(line), crc32c(line))
        self._lines_bytes += len(line) + 1
        return {LINE_PART: place}

    def _end_bundle(self) -> None:
        size = self._lines_bytes
        padding = _PADDING[size % BLOCK_BYTES]
        head = header(self._lines_key, BUNDLE_PART, size)
        self._write(b"".join((head, b"\n".join(self._lines), b"\n", padding)))
        self._end += BLOCK_BYTES + size + len(padding)
        self._lines, self._lines_bytes = [], 0

    def _check(self, key: str, names: list[str]) -> None:
        check_key(key)
        if not names:
            raise InputError(f"sample {key} has no parts", subject=key)
        for part in names:
            if part not in self._known_parts:
                check_part(part)
                self._known_parts.add(part)
