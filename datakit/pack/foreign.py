"""foreign: one tar that others wrote, as the rows of an index; and why it cannot have one.

A sample is what webdataset, Energon and DALI take for one: files whose names agree up to the first dot after the last
slash. What those readers skip is skipped and counted: folders, hidden files, names without a dot, `__x__`. Two things
are better than with them: parts of a sample that do not stand together are one sample, and a hard link is the bytes
that it leads to. Whatever would be lost or guessed is a trouble, with its place: the same name twice, a symbolic link,
a sparse or compressed file, damage. The tar passes by in pieces; what is no longer held when a digest wants it is read
again (parts above 8 MiB, scattered samples). It is not mapped, because others may cut it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from datakit.data.archive import NO_FILES, Entry, entries
from datakit.data.digest import Digester, FileEntry, crc32c, entry_of
from datakit.data.index import Index, index_name
from datakit.data.keys import key_hash, part_of, skipped_as
from datakit.data.shard import Part, Row, SampleDigest
from datakit.errors import InputError, IntegrityError, printable
from datakit.pack.writing import Totals
from datakit.source.originals import changed_ns
from datakit.source.records import MAX_KEY_BYTES
from datakit.source.troubles import LISTED, Trouble, listing
from datakit.storage.disk import at_door, read_all
from datakit.storage.regular import open_regular
from datakit.storage.stamp import Stamp

TAR = ".tar"

DIGEST_BYTES = 4 * 2**20
"""Bytes digested at once, while the headers in them are still in the cache."""

WINDOW_BYTES = 2 * DIGEST_BYTES
"""Bytes held of a tar, so that headers, small parts and samples are read once and looked at several times."""

MOST_TROUBLES = 100
"""Kept of one tar; a message lists fewer."""

DAMAGED_TAR = "Fetch it again, or move it away; datakit pack takes no damaged tar either"
"""The hint of damage: what others can still be told of, packing anew, is no way out of it."""

COMPRESSED_TAR = "Decompress it, or move it away"
"""The hint of a tar whose name does not tell pack that it is compressed, or how."""

_EMPTY_TAR = "Move it away"

NOT_UTF8 = "Rename it"
"""The hint of a name that no index can hold; pack can write it in another way."""

AT_REST = "Run the same command again when it is at rest"
"""The hint of a tar that changes meanwhile."""

_NOT_TO_BE_PACKED = (DAMAGED_TAR, AT_REST, COMPRESSED_TAR, _EMPTY_TAR)
"""Hints of what pack would not take either; the first of these that one tar needs is told."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files (RFC 1952, the bzip2 and xz formats, RFC 8878)."""


class Look(NamedTuple):
    """What tells whether a tar is as it was; a link to it or a rename changes the last alone.

    Attributes:
        stamp: By what it is known again.
        changed_ns: When its bytes or its inode were changed last, whichever is later, in ns since 1970.
    """

    stamp: Stamp
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """A file as it is now.

        Raises:
            NotFound, NotAllowed: It cannot be looked at.
        """
        with at_door(path):
            status = os.stat(path)
        return cls(Stamp.of(status), changed_ns(status))

    def check(self, path: Path, *, link: Path | None = None) -> None:
        """See that a tar is still the file that was looked at.

        Args:
            path: The tar.
            link: A link to it that has been made since, which is looked at instead.

        Raises:
            InputError: It changed.
        """
        now = Look.of(link or path)
        if (now if link is None else now._replace(changed_ns=self.changed_ns)) != self:
            raise changed(path)


def changed(path: Path) -> InputError:
    """The error of a tar that is not what was read of it."""
    return InputError(f"{path} changed while it was read", hint=AT_REST, subject=str(path))


@dataclass(frozen=True, slots=True)
class Tar:
    """A tar that is to have an index.

    Attributes:
        path: The tar.
        name: Its name in the dataset.
        index_path: Where its index is written; None writes none.
        prefix: What stands before each key, for tars whose keys begin anew in each.
    """

    path: Path
    name: str
    index_path: Path | None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index of a tar, or why it can have none.

    Attributes:
        shard: The tar's entry.
        look: What tells whether it still is the file that was read.
        index: Its index's entry.
        totals: Of its samples.
        hashes: `key_hash` of each sample, in the order of the rows.
        troubles: Why it cannot be indexed; the rest is of no use then.
        skipped: Members that no reader takes for a part, by what they are.
        scattered: Samples whose parts do not stand together.
        linked: Parts that are hard links.
    """

    shard: FileEntry
    look: Look
    index: FileEntry
    totals: Totals
    hashes: npt.NDArray[np.uint64] = field(repr=False)
    troubles: tuple[Trouble, ...]
    skipped: Mapping[str, int]
    scattered: int
    linked: int


def index_tar(tar: Tar) -> Indexed:
    """Read a tar, and write its index.

    Raises:
        NotFound, NotAllowed, NoSpace: As reading and writing files does.
        InputError: A pipe has taken its place.
    """
    before, rows = Look.of(tar.path), list[Row]()
    with at_door(tar.path):
        opened = open_regular(tar.path)
    with opened:
        reading = _Reading(tar.name, _Window(opened.fileno(), before.stamp.bytes), prefix=tar.prefix)
        try:
            reading.run()
            reading.digest_to(before.stamp.bytes)
            rows = reading.rows() if not reading.troubles else []
            is_same = Look.of(tar.path) == before
        except EOFError:
            is_same = False
    if not is_same:
        reading.trouble(tar.name, "it changed while it was read", hint=AT_REST)
    index = Index.from_rows(rows).to_bytes() if not reading.troubles else b""
    if tar.index_path is not None and not reading.troubles:
        with at_door(tar.index_path), open(tar.index_path, "xb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
    return Indexed(
        shard=reading.digester.finish(tar.name),
        look=before,
        index=entry_of(index_name(tar.name), index),
        totals=Totals.of(rows),
        hashes=np.array([key_hash(row.key) for row in rows], np.uint64),
        troubles=tuple(reading.troubles),
        skipped=dict(sorted(reading.skipped.items())),
        scattered=len(reading.scattered),
        linked=reading.linked,
    )


def refusal(root: Path, troubles: Sequence[Trouble], *, options: str = " --on-error skip") -> InputError:
    """The error of tars that cannot be indexed, with the command that packs their samples anew if there is one.

    Args:
        root: Their directory.
        troubles: Why not, at least one.
        options: Of that command; what is no member of an index is no part of a record either, and is left out.
    """
    hints = [trouble.hint for trouble in troubles]
    if NOT_UTF8 in hints:
        options += " --escape percent"
    own = f"{hints[0]}; or pack" if hints[0] else "Pack"
    hint = f"{own} the samples anew: datakit pack {shlex.quote(str(root))} DEST --input tar{options}"
    what = str(troubles[0]) if len(troubles) == 1 else listing(troubles, "member")
    return InputError(
        f"{root} cannot be indexed as it is: {what}",
        hint=next((alone for alone in _NOT_TO_BE_PACKED if alone in hints), hint),
        subject=[trouble.where for trouble in troubles[:LISTED]],
    )


def compressed(head: bytes) -> str | None:
    """The compression that a file begins like, or None."""
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), None)


class _Window:
    """A file that passes by, of which a stretch is held.

    Args:
        descriptor: The file.
        size: Its bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._held = memoryview(b"")
        self._start = 0

    def read(self, offset: int, size: int) -> memoryview:
        """Bytes from an offset on, fewer only at the end.

        Raises:
            EOFError: The file was cut.
        """
        size = min(size, max(0, self.size - offset))
        if not self._start <= offset <= offset + size <= self._start + len(self._held):
            self._held, self._start = memoryview(read_all(self._descriptor, max(size, WINDOW_BYTES), offset)), offset
            if len(self._held) < size:
                raise EOFError(offset)
        return self._held[offset - self._start : offset - self._start + size]

    def pieces(self, offset: int, size: int) -> Iterator[memoryview]:
        """A stretch in pieces of a few megabytes."""
        for at in range(offset, offset + size, DIGEST_BYTES):
            yield self.read(at, min(DIGEST_BYTES, offset + size - at))


def prefix_of(name: str, *, keys: object) -> str:
    """What stands before the keys of a tar, by the rule for keys that a manifest records."""
    return f"{name.removesuffix(TAR)}/" if keys == "tar" else ""


class _Reading:
    """A tar while it passes by."""

    def __init__(self, name: str, data: _Window, *, prefix: str) -> None:
        self.name = name
        self._prefix = prefix
        self.digester = Digester()
        self.troubles: list[Trouble] = []
        self.skipped: Counter[str] = Counter()
        self.scattered: set[str] = set()
        self.linked = 0
        self._data = data
        self._digested = 0
        self._parts: dict[str, dict[str, Part]] = {}
        self._files: dict[str, Part] = {}
        self._digests: dict[str, bytes] = {}
        self._last: str | None = None

    def run(self) -> None:
        """Walk the members."""
        if (kind := compressed(bytes(self._data.read(0, 8)))) is not None:
            said = f"it is compressed ({kind}), so no byte of it can be read by its place"
            self.trouble(self.name, said, hint=COMPRESSED_TAR)
            return
        try:
            for entry in entries(self._data.read, self._data.size, errors="surrogateescape"):
                self._take(entry)
                if entry.offset + entry.size - self._digested >= DIGEST_BYTES:
                    self.digest_to(entry.offset + entry.size)
        except IntegrityError as error:
            self.trouble(self.name, error.message, hint=DAMAGED_TAR)
        self._close_sample()
        if not self._parts and not self.troubles:
            self.trouble(self.name, "it holds no sample: no file with a dot in its name", hint=_EMPTY_TAR)

    def trouble(self, where: str, problem: str, *, hint: str | None = None, key: str | None = None) -> None:
        """Keep a reason why there can be no index."""
        if len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(Trouble(where, problem, key=key, hint=hint))

    def digest_to(self, stop: int) -> None:
        """Let the file's own digests take what has passed by."""
        for piece in self._data.pieces(self._digested, stop - self._digested):
            self.digester.update(piece)
        self._digested = max(stop, self._digested)

    def rows(self) -> list[Row]:
        """A row for each sample, in the order in which samples begin."""
        for key in self.scattered:
            self._digests[key] = self._digest(key)
        return [
            Row(self._prefix + key, self._digests[key], dict(sorted(parts.items())))
            for key, parts in self._parts.items()
        ]

    def _take(self, entry: Entry) -> None:
        where = f"{self.name}: {printable(entry.name)}"
        if printable(entry.name + entry.target) != entry.name + entry.target:
            self.trouble(where, f"its name{' or target' * bool(entry.target)} is not UTF-8", hint=NOT_UTF8)
        elif entry.kind in NO_FILES:
            self.skipped[f"{entry.kind}s"] += 1
        elif entry.kind in ("symbolic link", "sparse file", "member of another kind"):
            self.trouble(where, f"it is a {entry.kind}, whose bytes do not stand in the tar as they are")
        elif entry.kind == "hard link":
            place = self._files.get(entry.target)
            if place is None:
                self.trouble(where, f"it is a hard link to {entry.target!r:.200}, which does not stand before it")
            else:
                self.linked += self._add(entry.name, place)
        else:
            crc = 0
            for piece in self._data.pieces(entry.offset, entry.size):
                crc = crc32c(piece, crc)
            place = Part(entry.offset, entry.size, crc)
            self._files[entry.name] = place
            self._add(entry.name, place)

    def _add(self, name: str, place: Part) -> bool:
        """Take a file for a part of a sample; False where readers skip it."""
        named = part_of(name)
        if named is None:
            if (why := skipped_as(name)) is not None:
                self.skipped[why] += 1
            else:
                self.trouble(f"{self.name}: {name}", "nothing follows the dot in its name")
            return False
        key, part = named
        if (length := len((self._prefix + key).encode())) > MAX_KEY_BYTES:
            said = f"its key has {length} bytes, and one has {MAX_KEY_BYTES} at most"
            self.trouble(f"{self.name}: {name:.80}...", said, hint="Shorten that name", key=key)
            return False
        if key != self._last:
            self._close_sample()
            if key in self._parts:
                self.scattered.add(key)
        parts = self._parts.setdefault(key, {})
        self._last = key
        if part in parts:
            self.trouble(f"{self.name}: {name}", f"the tar holds part {part} of sample {key} twice")
        parts[part] = place
        return True

    def _close_sample(self) -> None:
        if self._last is not None and self._last not in self.scattered:
            self._digests[self._last] = self._digest(self._last)
        self._last = None

    def _digest(self, key: str) -> bytes:
        digest = SampleDigest()
        for part, at in sorted(self._parts[key].items()):
            digest.part(part, at.size)
            for piece in self._data.pieces(at.offset, at.size):
                digest.update(piece)
        return digest.digest()
