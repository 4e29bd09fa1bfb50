"""shard: samples as bytes of a plain USTAR tar: the format, and a reader that believes nothing.

The same samples in the same order give the same bytes on any machine: every header is built from a name and a size
alone (mode 0644, owner 0, time 0, no names of owners), parts of a sample stand together and sorted, and exactly two
zero blocks end the file. Stock `webdataset`, Hugging Face `datasets`, Energon and GNU tar read it. Python's `tarfile`,
and every reader built on it, takes a damaged header for the end of the file and stops without a word; `members` here
names the byte.

A JSON line of 200 bytes costs a KiB as a member of its own. In a bundled shard, K samples in a row whose one part is a
line share a member, `<key of the first>.jsonl`: their lines, each ended by a newline. A sample's row points at its
line inside the member, and its digest is that of the same sample in a shard that is not bundled.

What it does not do: write (`data/builder` does), open anything (the reader is given a buffer). Format: USTAR of
POSIX.1-1988; for such members the bytes equal those of CPython's `tarfile.USTAR_FORMAT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from zlib import adler32

import numpy as np
import numpy.typing as npt
import xxhash

from datakit.data.digest import Buffer
from datakit.data.keys import NAME_BYTES, split_name, ustar_name
from datakit.errors import InputError, IntegrityError

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
"""The two zero blocks that end a tar."""

MAX_PART_BYTES = 8**11 - 1
"""USTAR writes a size in 11 octal digits: just under 8 GiB."""

LINE_PART = "json"
BUNDLE_PART = "jsonl"
"""The part that a bundled sample has, and that of the member which its bundle is."""

NAME_DIGITS = (8, 16, 64)
"""Hex digits of a shard's sha256 in its name; shards of one dataset that share as many take the next number."""

_NAME = re.compile(r"(.+)-([0-9a-f]+)\.tar")
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2  # mode, uid, gid
_TIME = b"00000000000\0"
_TYPE_TO_DEVICES = b"0" + bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8)
_FIXED_SUM = sum(_BEFORE_SIZE + _TIME + b" " * 8 + _TYPE_TO_DEVICES)
_CHECKSUM_AT, _CHECKSUM_BYTES = 148, 8
_HEADER = b"%b" + _BEFORE_SIZE + b"%011o\0" + _TIME + b"%06o\0 " + _TYPE_TO_DEVICES + b"%b"


@dataclass(frozen=True, slots=True)
class Sample:
    """What goes into a shard.

    Attributes:
        key: The sample's unique name.
        parts: Bytes of each part, by the part's name; at least one.
        source: Where it came from, or None where that is not recorded.
        tokens: Tokens in the sample, or None where it is not tokenized.
    """

    key: str
    parts: Mapping[str, bytes]
    source: str | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part's bytes are in its shard: offset and size in bytes, and their crc32c."""

    offset: int
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Row:
    """A sample's line in an index; `digest` is `sample_digest` of its parts, 16 bytes."""

    key: str
    digest: bytes
    parts: Mapping[str, Part]
    tokens: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


def shard_name(dataset: str, sha256: str, *, digits: int = NAME_DIGITS[0]) -> str:
    """The name of a shard with this sha256, of which so many hex digits stand in it."""
    return f"{dataset}-{sha256[:digits]}.tar"


def parse_shard_name(name: str) -> tuple[str, str] | None:
    """The dataset and the digits of a name that `shard_name` gives; None of any other name.

    Example:
        >>> parse_shard_name("train-3f2a9c1e.tar")
        ('train', '3f2a9c1e')
    """
    match = _NAME.fullmatch(name)
    return (match[1], match[2]) if match is not None and len(match[2]) in NAME_DIGITS else None


_Sizes = TypeVar("_Sizes", int, "npt.NDArray[np.int64]")


def member_bytes(size: _Sizes) -> _Sizes:
    """Bytes that a part of this size takes in a shard (or parts of these sizes): header, content, padding."""
    return BLOCK_BYTES + size + -size % BLOCK_BYTES


def bundle_bytes(sizes: npt.NDArray[np.int64], bundle: int) -> int:
    """Bytes of a bundled shard, its end included.

    Args:
        sizes: Bytes of each sample's line, without its newline, in the shard's order.
        bundle: Lines that share a member.
    """
    if not len(sizes):
        return len(END)
    contents = np.add.reduceat(sizes.astype(np.int64) + 1, np.arange(0, len(sizes), bundle))
    return int(member_bytes(contents).sum()) + len(END)


def header(key: str, part: str, size: int) -> bytes:
    """The 512 bytes before a member's content.

    Raises:
        InputError: The name or the size is more than USTAR holds.
    """
    if size > MAX_PART_BYTES:
        raise InputError(
            f"{key}.{part} has {size} bytes; a part can have {MAX_PART_BYTES}",
            hint="Cut it into several records",
            subject=key,
        )
    prefix, name = b"", f"{key}.{part}".encode()
    if len(name) > NAME_BYTES:
        prefix, name = ustar_name(key, part)
    # the low half of Adler-32 (RFC 1950) is one plus the sum of the bytes modulo 65521, in C; 255 bytes of UTF-8, each
    # 244 at most, and 11 digits stay below that
    checksum = _FIXED_SUM + (adler32(b"%b%011o%b" % (prefix, size, name)) & 0xFFFF) - 1
    return _HEADER % (name.ljust(NAME_BYTES, b"\0"), size, checksum, prefix.ljust(167, b"\0"))


def sample_digest(parts: Mapping[str, Buffer]) -> bytes:
    """16 bytes that tell a sample's content: xxh3-128 over each part's name, NUL, size (u64, little endian), bytes."""
    digest = xxhash.xxh3_128()
    for part in sorted(parts):
        digest.update(_before_part(part, len(parts[part])))
        digest.update(parts[part])
    return digest.digest()


def _before_part(part: str, size: int) -> bytes:
    return part.encode() + b"\0" + size.to_bytes(8, "little")


class SampleDigest:
    """`sample_digest` of parts that come one after the other, in pieces: `part`, then `update` with its bytes.

    Attributes:
        update: Takes the next bytes of a part.
        digest: Gives the 16 bytes.
        reset: Begins another sample.

    Example:
        >>> digest = SampleDigest()
        >>> digest.part("txt", 5)
        >>> digest.update(b"a cat")
        >>> digest.digest() == sample_digest({"txt": b"a cat"})
        True
    """

    __slots__ = ("digest", "reset", "update")

    def __init__(self) -> None:
        own = xxhash.xxh3_128()
        self.update: Callable[[Buffer], None] = own.update
        self.digest: Callable[[], bytes] = own.digest
        self.reset: Callable[[], None] = own.reset

    def part(self, name: str, size: int) -> None:
        """Begin a part of so many bytes; the names come sorted."""
        self.update(_before_part(name, size))

    def of_one(self, name: str, data: Buffer) -> bytes:
        """The digest of a sample of one part, in half the time of `sample_digest`."""
        self.reset()
        self.part(name, len(data))
        self.update(data)
        return self.digest()


def members(data: Buffer) -> Iterator[Member]:
    """The members of a shard in order, each byte outside their contents checked.

    Raises:
        IntegrityError: The buffer is not a whole shard as this room writes it; the message names the byte.
    """
    view, at = memoryview(data), 0
    while True:
        block = bytes(view[at : at + BLOCK_BYTES])
        if len(block) < BLOCK_BYTES:
            raise _damaged(f"it ends at byte {len(view)}, inside a member or before its end blocks", len(view))
        if not any(block):
            return _check_end(view, at)
        member = _parse(block, at)
        content_end = member.offset + member.size
        at += member_bytes(member.size)
        if at > len(view):
            raise _damaged(f"it ends at byte {len(view)}, inside member {member.name}", len(view))
        if (spoilt := first_difference(view[content_end:at], bytes(at - content_end))) is not None:
            raise _damaged(f"byte {content_end + spoilt}, after {member.name}, should be zero", content_end + spoilt)
        yield member


def first_difference(data: Buffer, expected: Buffer) -> int | None:
    """Position of the first byte in which two buffers differ (or where the shorter ends), or None."""
    one, other = bytes(data), bytes(expected)
    if one == other:
        return None
    shared = min(len(one), len(other))
    return next((i for i in range(shared) if one[i] != other[i]), shared)


def _parse(block: bytes, at: int) -> Member:
    stored = block[_CHECKSUM_AT : _CHECKSUM_AT + _CHECKSUM_BYTES]
    actual = sum(block) - sum(stored) + ord(" ") * _CHECKSUM_BYTES
    if stored != b"%06o\0 " % actual:
        raise _damaged(f"the header at byte {at} does not match its checksum", at)
    name, prefix = block[:100].rstrip(b"\0"), block[345:500].rstrip(b"\0")
    try:
        size = int(block[124:135], 8)
        path = (prefix + b"/" + name if prefix else name).decode()
        key, part = split_name(path)
        expected = header(key, part, size)
    except (ValueError, InputError):  # not octal, not UTF-8, or a name that no shard has
        raise _damaged(f"the header at byte {at} is not one that datakit writes", at) from None
    if (spoilt := first_difference(block, expected)) is not None:
        raise _damaged(f"byte {at + spoilt}, in the header of {path}, is not as datakit writes it", at + spoilt)
    return Member(path, at + BLOCK_BYTES, size)


def _check_end(view: memoryview, at: int) -> None:
    rest = bytes(view[at : at + len(END)])
    spoilt = first_difference(rest, END)
    if len(rest) < len(END):
        raise _damaged(f"it ends at byte {len(view)}, before its two end blocks are complete", len(view))
    if spoilt is not None or len(view) > at + len(END):
        raise _damaged(f"zeros end it at byte {at}, but it goes on to byte {len(view)}", at)


def _damaged(message: str, at: int) -> IntegrityError:
    return IntegrityError(message, hint="See all damage of the dataset with datakit verify", subject=at)
