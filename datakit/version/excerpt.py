"""excerpt: what is told of a part's bytes: a text from shortly before where its two versions differ.

Other bytes are told by their number and checksum. Does not read: what it is given may be the beginning of a part.
"""

from __future__ import annotations

from datakit.data.shard import Part
from datakit.units import format_count

MOST_CHARACTERS = 400
"""Of a text, what is told."""

BEFORE_CHARACTERS = 80
"""Of these, what stands before the difference: enough to know the place by."""


def excerpt(data: bytes, part: Part, *, other: bytes | None = None) -> str:
    """The text of a part, cut where it is long.

    Args:
        data: Its bytes, or as many of them as were read.
        part: What the index says of it.
        other: The same of its other version; None where there is none.

    Example:
        >>> excerpt(b'{"a": 1}', Part(0, 8, 0), other=b'{"a": 2}')
        '{"a": 1}'
    """
    whole = len(data) == part.size
    try:
        text = data.decode() if whole else data.decode(errors="ignore")
    except UnicodeDecodeError:
        text = "\0"
    if not all(letter.isprintable() or letter in "\n\r\t" for letter in text):
        return f"{part.size} bytes, crc32c {part.crc32c:08x}"
    if whole and len(text) <= MOST_CHARACTERS:
        return text
    at = 0 if other is None else _parting(data, other)
    same = ""
    if at == len(data) and not whole:  # what differs lies behind what was read
        at, same = 0, f", the first {format_count(len(data))} the same"
    start = len(data[:at].decode(errors="ignore")) - BEFORE_CHARACTERS
    start = max(0, min(start, len(text) - MOST_CHARACTERS))
    stop = start + MOST_CHARACTERS
    more = "..." if stop < len(text) or not whole else ""
    return f"{'...' if start else ''}{text[start:stop]}{more} ({part.size} bytes{same})"


def _parting(data: bytes, other: bytes) -> int:
    """How many bytes at their beginnings two byte strings share."""
    pairs = enumerate(zip(data, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(data), len(other)))
