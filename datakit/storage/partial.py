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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.digest import PART_BYTES, Buffer, FileEntry, crc32c, damaged
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


class Inspector:
    """Digests bytes of one object as they pass, and compares each 16 MiB with the entry as soon as it is complete.

    Args:
        fetch: What they must be.
        start: Where they begin in the object, a multiple of 16 MiB.
        where: The object, for the message.
    """

    def __init__(self, fetch: Fetch, start: int, *, where: str) -> None:
        self._fetch = fetch
        self._where = where
        self._position = start
        self._crc = 0
        self.crcs: list[str] = []

    def take(self, data: Buffer) -> None:
        """Look at the next bytes.

        Raises:
            IntegrityError: A part is complete and is not what the entry says; names it, and both checksums.
        """
        view = memoryview(data)
        while view:
            piece = view[: PART_BYTES - self._position % PART_BYTES]
            view = view[len(piece) :]
            self._crc = crc32c(piece, self._crc)
            self._position += len(piece)
            if self._position % PART_BYTES == 0 or self._position == self._fetch.bytes:
                self._close()

    def _close(self) -> None:
        found, self._crc = f"{self._crc:08x}", 0
        self.crcs.append(found)
        entry, number = self._fetch.entry, (self._position - 1) // PART_BYTES
        if entry is not None and found != entry.crc32c[number]:
            at = self._where.removesuffix(f"/{entry.name}")
            raise damaged(part_message(self._where, number, entry, found), self._where, at=at)


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
        stem = f".{disk.stem(fetch.target.name)}.{fetch.identity}"
        self._path = fetch.target.with_name(f"{stem}.part")
        self._journal = fetch.target.with_name(f"{stem}.journal")
        self._descriptor = -1
        self._log = -1
        self._intact_bytes = 0

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
                if here:
                    self.close()
                else:
                    self.discard()  # an empty file of great size would only fill the disk
                raise
            fresh = self._intact_bytes == 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            self._log = os.open(self._journal, flags, 0o666)
            os.ftruncate(self._log, self._intact_bytes)  # a line torn by a kill would swallow the next note
            if fresh:
                os.write(self._log, _line(self._header()))
        return [number for number in range(self._num_parts) if number not in here]

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a part, and the byte after its last."""
        start = number * self._part_bytes
        return start, min(start + self._part_bytes, self.fetch.bytes)

    def put(self, data: Buffer, offset: int) -> None:
        """Write bytes at their place; they count only when their part is `noted`."""
        with disk.at_door(self._path):
            disk.write_all(self._descriptor, data, offset)

    def note(self, number: int, crcs: Sequence[str]) -> None:
        """Write into the journal that a part is here, with the crc32c of each of its 16 MiB; any thread."""
        with disk.at_door(self._journal):
            # one write of one short line with O_APPEND: whole in the file or, when killed, the last and torn
            os.write(self._log, _line([number, list(crcs)]))

    def finish(self, *, by_tag: bool = True) -> bool:
        """Give the file its name; every part must be here. Whether an entry or the tag has proved its bytes.

        Args:
            by_tag: Whether a tag that looks like an md5 speaks for the whole where no entry does.

        Raises:
            IntegrityError: The source's tag says that the whole has other bytes.
        """
        with disk.at_door(self._path):
            by_entry = self.fetch.entry is not None
            proved = True if by_entry else etags.matches(self._path, self.fetch.etag) if by_tag else None
            if proved is False:
                self.discard()
                message = f"{self.fetch.target}: the bytes that arrived do not have the md5 of the source's tag"
                raise IntegrityError(message, hint="Run it again", subject=str(self.fetch.target))
            if self._durable:
                os.fdatasync(self._descriptor)
            self.close()
            os.replace(self._path, self.fetch.target)
            self._journal.unlink(missing_ok=True)
            return proved is True

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
            data = self._journal.read_bytes()
        except FileNotFoundError:
            return set()
        intact = data[: data.rfind(b"\n") + 1]
        lines = [_value(line) for line in intact.splitlines()]
        if not lines or lines[0] != self._header():
            return set()
        self._intact_bytes = len(intact)
        claimed = {line[0]: line[1] for line in lines[1:] if self._is_claim(line)}
        return {number for number, crcs in claimed.items() if self._has(number, crcs)}

    def _is_claim(self, line: Any) -> bool:
        """Whether a line names a part and its checksums; others, as after a power cut, are passed over."""
        if not isinstance(line, list) or len(line) != 2:
            return False
        number, crcs = line
        return isinstance(number, int) and 0 <= number < self._num_parts and isinstance(crcs, list)

    def _has(self, number: int, crcs: list[str]) -> bool:
        start, stop = self.span(number)
        inspector = Inspector(self.fetch, start, where=str(self._path))
        try:
            for offset in range(start, stop, disk.READ_BYTES):
                inspector.take(os.pread(self._descriptor, min(disk.READ_BYTES, stop - offset), offset))
        except IntegrityError:
            return False
        return inspector.crcs == crcs


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def remove_stale(fetches: Iterable[Fetch]) -> list[Path]:
    """Remove what has arrived of other versions of these files; hold the lock of the place."""
    wanted = {fetch.target: fetch.identity for fetch in fetches}
    removed = []
    for target, identity in wanted.items():
        name = disk.stem(target.name)
        with disk.at_door(target.parent):
            for path in target.parent.glob(f".{glob.escape(name)}.*"):
                match = PARTIAL.fullmatch(path.name)
                if match and match["name"] == name and f".{identity}." not in path.name[len(name) :]:
                    path.unlink(missing_ok=True)
                    removed.append(path)
    return removed


def remove_leftovers(targets: Iterable[Path]) -> list[Path]:
    """Remove what killed transfers left beside these final names; hold the lock of the place."""
    folders: dict[Path, set[str]] = {}
    for target in targets:
        folders.setdefault(target.parent, set()).add(disk.stem(target.name))
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
        for path in target.parent.glob(f".{glob.escape(disk.stem(target.name))}.*.part")
        if PARTIAL.fullmatch(path.name)
    )
