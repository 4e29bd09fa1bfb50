"""archive: what stands in a tar that anyone may have written, header by header, believing nothing.

It knows USTAR, PAX and GNU tar: long names of each kind, sizes in octal and in base 256, hard and symbolic links,
records padded to 10 KiB. Where Python's `tarfile` takes a damaged header, a hole or a cut between two members for the
end of the file, this names the byte. It reads headers only, through a function that gives bytes; contents are the
caller's to read.

Sources: POSIX.1-2017, `pax` (ustar and pax interchange formats); "Basic Tar Format", GNU tar 1.35 manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from datakit.data.digest import Buffer
from datakit.data.shard import BLOCK_BYTES, first_difference
from datakit.errors import IntegrityError

Kind: TypeAlias = Literal[
    "file", "folder", "hard link", "symbolic link", "device", "volume label", "sparse file", "member of another kind"
]

Read: TypeAlias = Callable[[int, int], Buffer]
"""Gives the bytes at an offset: `read(offset, size)`, fewer only at the end."""

Errors: TypeAlias = Literal["strict", "surrogateescape"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "device",
    b"D": "folder",
    b"V": "volume label",
    b"S": "sparse file",
}
"""Of what POSIX and GNU tar say, of which D is a folder with a list of what was in it (`--listed-incremental`); others,
such as the rest of a file that another volume began, are of another kind."""

NO_FILES: frozenset[Kind] = frozenset({"folder", "device", "volume label"})
"""Kinds that no reader of samples misses: what they stand for has no bytes in any tar."""

_WITHOUT_CONTENT = b"123456"
"""Types whose size field counts no bytes that follow (POSIX), whatever it says."""

_MOST_HEADER_BYTES = 2**20
"""A longer name or attribute list than this is a damaged size, not a name: Linux holds paths of 4096 bytes."""

_MOST_DIGITS = len(str(_MOST_HEADER_BYTES))
"""Decimal digits before an attribute: more would say a length that no attribute has."""

_SIZE = re.compile("[0-9]{1,20}")
"""A size in an attribute: digits of ASCII only, and no more than 64 bits have."""

_MORE_MAP, _MORE_MAP_GOES_ON = 482, 504
"""Where a header of GNU's sparse files, and a block that goes on with its map, say that a block of the map follows."""

_ZEROS_AT_ONCE = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a tar.

    Attributes:
        name: Its path, as the archive says it.
        kind: What it is.
        start: Byte of its first header; a long name has headers of its own before the usual one.
        offset: Byte of its content.
        size: Bytes of its content.
        target: What a link leads to, or empty.
    """

    name: str
    kind: Kind
    start: int
    offset: int
    size: int
    target: str = ""


def entries(read: Read, size_bytes: int, *, errors: Errors = "strict") -> Iterator[Entry]:
    """The members of a tar, in order.

    Args:
        read: Gives bytes of it.
        size_bytes: Its size.
        errors: Whether bytes of a name that are no UTF-8 are damage, or become surrogates, as in names of files.

    Raises:
        IntegrityError: It is not a whole tar; the message and the subject name the byte.
    """
    at = start = 0
    long: dict[str, str] = {}
    common: dict[str, str] = {}
    while True:
        block = bytes(read(at, BLOCK_BYTES))
        if len(block) < BLOCK_BYTES:
            where = "inside a header" if block else "without the zero blocks that end a tar"
            raise _damaged(f"it ends at byte {size_bytes}, {where}", size_bytes)
        if not any(block):
            _check_end(read, at, size_bytes)
            return
        _check_sum(block, at)
        kind = block[156:157]
        size = _number(block[124:136], at)
        if kind in (b"x", b"g", b"L", b"K", b"X"):
            data = _extension(read, at, size, size_bytes)
            if kind in b"gxX":
                (common if kind == b"g" else long).update(_attributes(data, at, errors))
            else:
                long["path" if kind == b"L" else "linkpath"] = _text(data.partition(b"\0")[0], at, errors)
            at += BLOCK_BYTES + size + -size % BLOCK_BYTES
            continue
        entry = _entry(block, {**common, **long}, start=start, at=at, errors=errors)
        if kind == b"S":  # GNU: a long map of holes goes on in blocks of its own before the content
            entry = replace(entry, offset=_after_map(read, block, entry.offset))
        stop = entry.offset + entry.size
        if stop > size_bytes:
            raise _damaged(f"it ends at byte {size_bytes}, inside {entry.name}", size_bytes)
        yield entry
        at = start = stop + -stop % BLOCK_BYTES
        long = {}


def _after_map(read: Read, block: bytes, at: int) -> int:
    more = block[_MORE_MAP : _MORE_MAP + 1]
    while more not in (b"", b"\0"):
        more = bytes(read(at + _MORE_MAP_GOES_ON, 1))
        at += BLOCK_BYTES
    return at


def _entry(block: bytes, attributes: dict[str, str], *, start: int, at: int, errors: Errors) -> Entry:
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    if prefix and block[257:263] == b"ustar\0":  # GNU tar keeps other things there, and says so
        name = prefix + b"/" + name
    # of a sparse file, `path` is what programs that know of none shall call it
    path = attributes.get("GNU.sparse.name") or attributes.get("path") or _text(name, at, errors)
    flag = block[156:157]
    kind = _KINDS.get(flag, "member of another kind")
    if kind == "file" and (path.endswith("/") and flag in (b"\0", b"0")):
        kind = "folder"  # as tars before 1988 had it
    if any(key.startswith("GNU.sparse.") for key in attributes):
        kind = "sparse file"
    said = attributes.get("size")
    size = 0 if flag in _WITHOUT_CONTENT else int(said) if said is not None else _number(block[124:136], at)
    target = attributes.get("linkpath") or _text(block[157:257].partition(b"\0")[0], at, errors)
    return Entry(path, kind, start, at + BLOCK_BYTES, size, target if kind.endswith("link") else "")


def _check_sum(block: bytes, at: int) -> None:
    stored = _octal(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")  # its own field counts as spaces
    # POSIX counts bytes unsigned; some old tars counted them signed
    if stored != total and stored != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _damaged(f"the header at byte {at} does not match its checksum", at)


def _check_end(read: Read, at: int, size_bytes: int) -> None:
    """After the first zero block: everything to the end is zero too (GNU tar fills its last record)."""
    first = at
    while at < size_bytes:
        piece = read(at, min(_ZEROS_AT_ONCE, size_bytes - at))
        if (other := first_difference(piece, bytes(len(piece)))) is not None:
            message = f"zeros end it at byte {first}, but it goes on at byte {at + other}, where no reader looks"
            raise _damaged(message, first)
        at += len(piece)


def _extension(read: Read, at: int, size: int, size_bytes: int) -> bytes:
    if size > _MOST_HEADER_BYTES:
        raise _damaged(f"the header at byte {at} says that a name has {size} bytes", at)
    data = bytes(read(at + BLOCK_BYTES, size))
    if len(data) < size:
        raise _damaged(f"it ends at byte {size_bytes}, inside a long name", size_bytes)
    return data


def _attributes(data: bytes, at: int, errors: Errors) -> dict[str, str]:
    """The records of a PAX header: `<length> <key>=<value>` and a newline each."""
    found: dict[str, str] = {}
    start, stop = 0, len(data.rstrip(b"\0"))
    while start < stop:  # by place: what is left is not copied for each of 100,000 records
        space = data.find(b" ", start, start + _MOST_DIGITS + 1)
        digits = data[start : max(space, start)]
        end = start + int(digits) if digits.isdigit() else start
        key, equals, value = data[space + 1 : max(end - 1, 0)].partition(b"=")
        if space < 0 or end <= space or data[end - 1 : end] != b"\n" or not equals:
            raise _damaged(f"the attributes at byte {at + BLOCK_BYTES} cannot be read", at + BLOCK_BYTES)
        name = _text(key, at, errors)
        if name in ("path", "linkpath", "size") or name.startswith("GNU.sparse."):
            found[name] = _text(value, at, errors)
        start = end
    if not _SIZE.fullmatch(found.get("size", "0")):
        raise _damaged(f"the attributes at byte {at + BLOCK_BYTES} give no size", at + BLOCK_BYTES)
    return found


def _number(field: bytes, at: int) -> int:
    if field[0] == 0x80:  # GNU: base 256
        return int.from_bytes(field[1:], "big")
    number = _octal(field)
    if number is None:
        raise _damaged(f"the header at byte {at} has no size that can be read", at)
    return number


def _octal(field: bytes) -> int | None:
    text = field.partition(b"\0")[0].strip(b" ")
    if not text:
        return 0
    return int(text, 8) if not text.strip(b"01234567") else None


def _text(data: bytes, at: int, errors: Errors) -> str:
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError:
        raise IntegrityError(
            f"the name {data!r:.200} at byte {at} is not UTF-8",
            hint="Write that tar again with its names in UTF-8",
            subject=at,
        ) from None


def _damaged(message: str, at: int) -> IntegrityError:
    return IntegrityError(message, hint="Fetch or write that tar again", subject=at)
