"""partial: a file that is still arriving, and what of it is already here.

It lies beside its final name as `.<name>.<8 hex>.part`, preallocated, with a journal `.<name>.<8 hex>.journal` of the
parts that have arrived. The hex digits say which version of the source it is of, so that parts of two versions never
meet. Killed with -9, the next start reads the journal, checks the crc32c of each part that it claims, and asks only for
the others. The final name appears by rename, after every part was checked.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import PART_BYTES, Buffer, FileEntry, crc32c
from datakit.errors import IntegrityError
from datakit.storage import disk, etags
from datakit.storage.commit import part_message

JOURNAL_FORMAT = 1
PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?:part|journal)")
"""Names of arriving files and their journals."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One object that becomes one file.

    Attributes:
        key: Where it is in its store.
        target: The file's final name.
        bytes: Its size.
        etag: The version to read, or None to let the entry's checksums decide alone.
        entry: What its bytes must be, or None where no manifest says it.
    """

    key: str
    target: Path
    bytes: int
    etag: str | None = None
    entry: FileEntry | None = None

    @property
    def identity(self) -> str:
        """Eight hex digits that tell versions of the source apart."""
        if self.entry is not None:
            return self.entry.sha256[:8]
        return hashlib.sha256(f"{self.etag} {self.bytes}".encode()).hexdigest()[:8]


def check_part(fetch: Fetch, start: int, data: Buffer, *, where: str) -> None:
    """Check bytes that arrived against the entry, one crc32c for each 16 MiB.

    Raises:
        IntegrityError: Names the object, the bytes, and both checksums.
    """
    if fetch.entry is None:
        return
    view = memoryview(data)
    for offset in range(0, len(view), PART_BYTES):
        number = (start + offset) // PART_BYTES
        found = f"{crc32c(view[offset : offset + PART_BYTES]):08x}"
        if found != fetch.entry.crc32c[number]:
            raise IntegrityError(part_message(where, number, fetch.entry, found), subject=fetch.entry.name)


class Partial:
    """A file that is arriving in parts.

    Args:
        fetch: What is coming.
        part_bytes: Size of the parts it comes in, a multiple of 16 MiB.
        durable: Whether its bytes are on the disk before its name appears.
    """

    def __init__(self, fetch: Fetch, *, part_bytes: int, durable: bool) -> None:
        self.fetch = fetch
        self._part_bytes = part_bytes
        self._durable = durable
        stem = f".{fetch.target.name}.{fetch.identity}"
        self._path = fetch.target.with_name(f"{stem}.part")
        self._journal = fetch.target.with_name(f"{stem}.journal")
        self._descriptor = -1
        self._log = -1

    def open(self) -> list[int]:
        """Take up what is here of it, make room for the rest, and say which parts are missing.

        Raises:
            NoSpace: There is no room for the whole.
        """
        disk.make_dirs(self._path.parent)
        with disk.at_door(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            here = self._arrived()
            try:
                disk.preallocate(self._descriptor, self.fetch.bytes)
            except OSError:
                self.discard()  # with nothing in it, or not enough room for it: what is here would only fill the disk
                raise
            fresh = not here
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            self._log = os.open(self._journal, flags, 0o666)
            if fresh:
                os.write(self._log, _line(self._header()))
        return [number for number in range(self._num_parts) if number not in here]

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a part, and the byte after its last."""
        start = number * self._part_bytes
        return start, min(start + self._part_bytes, self.fetch.bytes)

    def take(self, number: int, data: Buffer) -> None:
        """Put a checked part in its place, then write it into the journal; any thread."""
        with disk.at_door(self._path):
            disk.write_all(self._descriptor, data, self.span(number)[0])
            # one write of one short line with O_APPEND: whole in the file or, when killed, the last and torn
            os.write(self._log, _line([number, f"{crc32c(data):08x}"]))

    def finish(self) -> None:
        """Give the file its name; every part must be here.

        Raises:
            IntegrityError: The source's tag says that the whole has other bytes.
        """
        with disk.at_door(self._path):
            if self.fetch.entry is None and etags.matches(self._path, self.fetch.etag) is False:
                self.discard()
                message = f"{self.fetch.target}: the bytes that arrived do not have the md5 of the source's tag"
                raise IntegrityError(message, hint="Run it again", subject=str(self.fetch.target))
            if self._durable:
                os.fdatasync(self._descriptor)
            self.close()
            os.replace(self._path, self.fetch.target)
            self._journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave it as it is, for a later start."""
        for descriptor in (self._descriptor, self._log):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._log = -1

    def discard(self) -> None:
        """Remove what is here of it."""
        self.close()
        self._path.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    @property
    def _num_parts(self) -> int:
        return -(-self.fetch.bytes // self._part_bytes)

    def _header(self) -> dict[str, object]:
        return {"format": JOURNAL_FORMAT, "bytes": self.fetch.bytes, "part_bytes": self._part_bytes}

    def _arrived(self) -> set[int]:
        """Parts that the journal claims and whose bytes are what it claims."""
        try:
            lines = self._journal.read_bytes().split(b"\n")[:-1]  # what follows the last newline was torn by a kill
            if not lines or json.loads(lines[0]) != self._header():
                return set()
            claimed: dict[int, str] = dict(json.loads(line) for line in lines[1:])
        except (FileNotFoundError, ValueError):
            return set()
        return {number for number, crc in claimed.items() if self._has(number, crc)}

    def _has(self, number: int, crc: str) -> bool:
        start, stop = self.span(number)
        data = os.pread(self._descriptor, stop - start, start)
        if len(data) != stop - start or f"{crc32c(data):08x}" != crc:
            return False
        try:
            check_part(self.fetch, start, data, where=str(self._path))
        except IntegrityError:
            return False
        return True


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def remove_leftovers(targets: Iterable[Path]) -> list[Path]:
    """Remove what killed transfers left beside these final names; hold the lock of the place."""
    folders: dict[Path, set[str]] = {}
    for target in targets:
        folders.setdefault(target.parent, set()).add(target.name)
    removed = []
    for folder, names in folders.items():
        with disk.at_door(folder):
            for path in sorted(folder.glob(".*")) if folder.is_dir() else ():
                match = PARTIAL.fullmatch(path.name) or disk.TEMPORARY.fullmatch(path.name)
                if match and match["name"] in names and path.is_file():
                    path.unlink(missing_ok=True)
                    removed.append(path)
    return removed


def partial_bytes(targets: Iterable[Path]) -> int:
    """Bytes of the disk that arriving files of these final names have taken already."""
    return sum(
        path.stat().st_blocks * 512
        for target in targets
        for path in target.parent.glob(f".{glob.escape(target.name)}.*.part")
        if PARTIAL.fullmatch(path.name)
    )
