"""etags: what the tag of an object says about its bytes, where it says anything.

S3 and what speaks like it tag an object that was put by one request with the md5 of its bytes, and a multipart object
with the md5 of its parts' md5s and their number (`<32 hex>-<parts>`). With KMS encryption, and on other stores, the tag
has the same look or another and says nothing; so a match proves the bytes, and a mismatch alone proves no damage.

Source: "Checking object integrity", Amazon S3 user guide.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from datakit.data.digest import Buffer, FileEntry
from datakit.errors import IntegrityError
from datakit.storage import disk
from datakit.storage.commit import verify_file
from datakit.storage.regular import open_regular

_MD5 = re.compile(r'"?([0-9a-f]{32})(?:-(\d{1,5}))?"?')

USUAL_PART_MIB = (16, 8, 5, 32, 64, 10, 15, 25, 50, 100, 128, 256, 512)
"""Part sizes of datakit, AWS's tools, s5cmd and rclone, tried in turn when a multipart tag does not say its own."""


def single(md5: str) -> str:
    """The tag of an object that one request has put."""
    return f'"{md5}"'


def multipart(md5s: Iterable[bytes]) -> str:
    """The tag of an object put in parts with these binary md5s."""
    parts = list(md5s)
    return f'"{hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"'


def same(one: str | None, other: str | None) -> bool:
    """Whether two tags are equal, with or without their quotes."""
    return one is not None and other is not None and one.strip('"') == other.strip('"')


def is_multipart(etag: str | None) -> bool:
    """Whether a tag looks like that of an object put in parts."""
    match = _MD5.fullmatch(etag or "")
    return match is not None and match.group(2) is not None


def part_sizes(etag: str | None, size_bytes: int) -> tuple[int, ...]:
    """The part sizes that could have given this tag, in bytes; `(0,)` for a plain md5, none where it is no md5."""
    match = _MD5.fullmatch(etag or "")
    if match is None:
        return ()
    if match.group(2) is None:
        return (0,)
    parts = int(match.group(2))
    return tuple(mib * 2**20 for mib in USUAL_PART_MIB if -(-size_bytes // (mib * 2**20)) == parts)


def matches(path: Path, etag: str | None) -> bool | None:
    """Whether a file has the bytes that a tag stands for: yes, no, or None where the tag cannot tell.

    A multipart tag of an unusual part size, or a differing one, cannot tell.
    """
    size_bytes = path.stat().st_size
    sizes = part_sizes(etag, size_bytes)
    for size in sizes:
        if same(tag_of(path, part_bytes=size), etag):
            return True
    return False if sizes == (0,) else None


def fits(data: Buffer, etag: str | None) -> bool | None:
    """The same of bytes at hand; a tag of one part says yes or no too, since its part size does not matter."""
    view = memoryview(data).cast("B")
    sizes = part_sizes(etag, len(view))
    alone = not sizes or sizes == (0,) or (etag or "").strip('"').endswith("-1")
    for size in sizes[:1] if alone else sizes:
        step = size or max(len(view), 1)
        parts = [view[start : start + step] for start in range(0, max(len(view), 1), step)]
        md5s = [hashlib.md5(part, usedforsecurity=False).digest() for part in parts]
        if same(multipart(md5s) if size else single(md5s[0].hex()), etag):
            return True
    return False if sizes and alone else None


def torn(where: str, *, subject: str) -> IntegrityError:
    """The error of an object that arrives with other bytes than its tag stands for."""
    return IntegrityError(
        f"{where}: the bytes that arrived do not have the md5 of its tag",
        hint="Run it again; if it stays so, put the object again from a whole copy",
        subject=subject,
    )


def prove(etag: str | None, entry: FileEntry, original: Path | None) -> bool:
    """Whether a tag proves the bytes of an entry, alone or with a whole local file; if not, only reading can tell."""
    if same(etag, single(entry.md5)):
        return True
    if original is None or not matches(original, etag):
        return False
    try:
        verify_file(original, entry)
    except IntegrityError:
        return False
    return True


def tag_of(path: Path, *, part_bytes: int) -> str:
    """The tag that a file would get, put whole (`part_bytes` 0) or in parts of this size."""
    md5s: list[bytes] = []
    with disk.at_door(path), open_regular(path) as file:
        while True:
            md5, size_bytes = _md5_of_next(file, part_bytes)
            if size_bytes or not md5s:
                md5s.append(md5)
            if not part_bytes or size_bytes < part_bytes:
                return multipart(md5s) if part_bytes else single(md5s[0].hex())


def _md5_of_next(file: io.FileIO, part_bytes: int) -> tuple[bytes, int]:
    md5 = hashlib.md5(usedforsecurity=False)
    size_bytes = 0
    limit = part_bytes or sys.maxsize
    while data := file.read(min(limit - size_bytes, disk.READ_BYTES)):
        md5.update(data)
        size_bytes += len(data)
    return md5.digest(), size_bytes
