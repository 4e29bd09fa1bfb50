"""vouching: whether the index that lies beside a tar is of that tar, and what a manifest says of both.

An index is believed where a manifest that names it gives its bytes, and where the tar's own headers agree with it: each
part under the name and in the place that it says, none besides, and of a bundle all lines. Contents are compared when
they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from datakit.data.archive import NO_FILES, Entry, Read, entries
from datakit.data.digest import Buffer, FileEntry
from datakit.data.index import Index
from datakit.data.keys import part_of
from datakit.data.manifest import MANIFEST_NAME, Contents, Manifest
from datakit.data.shard import BLOCK_BYTES, BUNDLE_PART, END, LINE_PART, header, member_bytes
from datakit.errors import DatakitError, InputError, IntegrityError, UsageError, printable
from datakit.events import Caution
from datakit.source.kinds import plain_name
from datakit.source.originals import PLACES_BYTES, reading
from datakit.source.trees import SourceFile
from datakit.source.troubles import Trouble
from datakit.storage.commit import parse_manifest

BRING = "Bring it: datakit sync --repair SOURCE DATASET; or, to do without it, move the manifest away"
_LOOK = "Look: datakit verify DATASET; or, to do without it, move the index and the manifest away"


class Named(NamedTuple):
    """What a folder's manifest says: of each file that it names, and whether lines share members of its tars.

    Shards come first, in the order in which their samples are numbered; then all else, by name. Where it is damaged,
    `problem` says so, and it says nothing else.
    """

    entries: Mapping[str, FileEntry] = {}
    bundled: bool = False
    problem: str | None = None


NamedIn: TypeAlias = Callable[[PurePosixPath], Named]


def named_in(folder: str) -> Named:
    """What the manifest of a folder says; there may be none, or one of others, which says nothing of a tar."""
    path = os.path.normpath(os.path.join(folder, MANIFEST_NAME))
    if not os.path.exists(path):
        return Named()
    try:
        with reading(path) as file:
            manifest = parse_manifest(file.read(), where=path)
    except InputError:
        return Named()
    except DatakitError as error:
        return Named(problem=error.message)
    pack = manifest.about.get("pack")
    bundled = isinstance(pack, dict) and pack.get("bundle") is not None
    return Named({entry.name: entry for entry in (*_shards(manifest), *manifest.members)}, bundled)


def _shards(manifest: Manifest) -> list[FileEntry]:
    try:
        return [manifest.member(shard.name) for shard in Contents.from_about(manifest.about).shards]
    except DatakitError:  # it is of no dataset, or its members alone can be believed
        return []


def lost_tars(files: Sequence[SourceFile], beside: Sequence[SourceFile], *, named: NamedIn) -> list[Trouble]:
    """The tars that manifests of a source name and that are not there, as offenders.

    Args:
        files: The tars that are there.
        beside: What lies beside them, manifests among it.
        named: What the manifest of a folder below the source names.
    """
    there = {plain_name(file.name) for file in files}
    lost = []
    for folder in _with_manifest(beside):
        names = (str(folder / name) for name in named(folder).entries if name.endswith(".tar"))
        said = f"is not there, and {folder / MANIFEST_NAME} names it"
        lost += [Trouble(name, said, hint=BRING) for name in names if name not in there]
    return lost


def damaged_manifests(beside: Sequence[SourceFile], *, named: NamedIn) -> list[Caution]:
    """What to say of manifests beside tars that cannot tell any more which tars there should be.

    Args:
        beside: What lies beside the tars, manifests among it.
        named: What the manifest of a folder below the source names.
    """
    problems = (named(folder).problem for folder in _with_manifest(beside))
    said = "so it was not seen whether all tars are there"
    return [Caution(f"{problem}; {said}", hint=BRING) for problem in problems if problem is not None]


def _with_manifest(beside: Sequence[SourceFile]) -> Iterator[PurePosixPath]:
    """The folders of manifests."""
    names = (PurePosixPath(file.name) for file in beside)
    return (name.parent for name in names if name.name == MANIFEST_NAME)


def index_at(path: str, said: FileEntry | None) -> Index:
    """The index at a path.

    Args:
        path: A file.
        said: What a manifest says of it.

    Raises:
        IntegrityError: It is not what the manifest says, or damaged.
        UsageError: It is of a newer datakit.
    """
    with reading(path) as file:
        data = file.read()
    if said is not None and (other := said.difference(data)) is not None:
        raise IntegrityError(f"{path} {other}", hint=_LOOK, subject=path)
    try:
        index = Index.from_buffer(data)
        index.check_texts()
    except (IntegrityError, UsageError) as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint, subject=path) from None
    return index


def difference(index: Index, path: str, size_bytes: int, *, hidden: list[str] | None = None) -> str | None:
    """What shows that an index is of another tar than that at a path, as a clause about the tar; None where nothing.

    Args:
        index: The index.
        path: The tar.
        size_bytes: Its size.
        hidden: Gets the names of members that are hidden by a dot, which no index names.
    """
    places = _Places(index, [] if hidden is None else hidden)
    with reading(path, buffer_bytes=PLACES_BYTES) as file:
        if places.are_as_written(reader(file), size_bytes):
            return None
        try:
            for entry in entries(reader(file), size_bytes):
                if not places.take(entry):
                    return f"the index does not name {printable(entry.name)}, which begins at byte {entry.start}"
        except IntegrityError as error:
            return error.message
    return places.left()


def reader(file: BinaryIO) -> Read:
    """What gives the bytes of an open tar by their places."""

    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    return read


class _Places:
    """What an index says of each place in its tar, beside what members the tar has."""

    def __init__(self, index: Index, hidden: list[str]) -> None:
        self._index = index
        self._hidden = hidden
        self._prefix: str | None = None
        self._files: dict[str, tuple[int, int]] = {}
        self._bundles = {(0, -1): True}  # whether each is a part as it is; nothing lies in the first
        rows, numbers, offsets, sizes = [], [], [], []
        for number, part in enumerate(index.parts):
            its = np.flatnonzero(index.has(part))
            rows.append(its)
            numbers.append(np.full(len(its), number))
            offsets.append(index.offsets(part)[its])
            sizes.append(index.sizes(part)[its])
        order = np.argsort(_joined(offsets), kind="stable")
        self._rows, self._parts = _joined(rows)[order], _joined(numbers)[order]
        self._offsets, self._sizes = _joined(offsets)[order], _joined(sizes)[order]
        self._taken = np.zeros(len(order), np.bool_)

    def are_as_written(self, read: Read, size_bytes: int) -> bool:
        """Whether a tar is header for header what datakit writes of rows without bundles; a third of the work."""
        at, columns = 0, (self._rows.tolist(), self._parts.tolist(), self._offsets.tolist(), self._sizes.tolist())
        for row, number, offset, size in zip(*columns, strict=True):
            key, part = self._index.key(row), self._index.parts[number]
            if offset != at + BLOCK_BYTES or not _has_header(read(at, BLOCK_BYTES), key, part, size):
                return False
            at += member_bytes(size)
        return size_bytes == at + len(END) and read(at, len(END)) == END

    def take(self, entry: Entry) -> bool:
        """Whether the index names a member as it is; what readers skip needs no name."""
        at = entry.offset, entry.size
        if entry.kind == "hard link":
            at = self._files.get(entry.target, at)
        elif entry.kind == "file":
            self._files[entry.name] = at
        named = None if entry.kind in NO_FILES else part_of(entry.name)
        if named is None:
            if entry.kind not in NO_FILES and any(
                step.startswith(".") and step != "." for step in entry.name.split("/")
            ):
                self._hidden.append(printable(entry.name))
            return True
        if entry.kind not in ("file", "hard link"):  # what no index can name
            return False
        first, last = self._offsets.searchsorted([at[0], at[0] + 1]).tolist()
        its = [place for place in range(first, last) if self._is_at(place, *named, size=at[1])]
        self._taken[its] = True
        if named[1] == BUNDLE_PART:
            whole = any(self._index.parts[self._parts[place]] == BUNDLE_PART for place in its)
            self._bundles[at] = self._bundles.get(at, False) or whole
        return bool(its)

    def left(self) -> str | None:
        """What the index names that is neither a member nor a line in a bundle, or what it leaves out of a bundle."""
        bundles = sorted(self._bundles)
        starts, sizes = np.array(bundles, np.int64).T
        bundle_of = starts.searchsorted(self._offsets, "right") - 1
        ends = (starts + sizes)[bundle_of]
        is_line = np.array([part == LINE_PART for part in self._index.parts], np.bool_)[self._parts]
        is_line &= (self._offsets >= 0) & (self._sizes >= 0) & (self._sizes <= ends - self._offsets)
        known = self._taken | is_line
        if not known.all():
            place = int(known.argmin())
            return f"no part of a sample is at byte {self._offsets[place]}, where the index names {self._name(place)}"
        # a bundle that is a part as it is may hold anything; of any other, a line begins where the one before it ends
        whole = np.array([self._bundles[bundle] for bundle in bundles], np.bool_)
        lines = np.flatnonzero(is_line & ~whole[bundle_of])
        after = self._offsets[lines] + self._sizes[lines] + 1
        nexts, same = self._offsets[np.roll(lines, -1)], np.diff(bundle_of[lines], append=-1) == 0
        wrong = np.flatnonzero(after != np.where(same, nexts, ends[lines]))
        if not len(wrong):
            return None
        said = f"the line of {self._name(int(lines[wrong[0]]))} ends before byte {after[wrong[0]]}"
        return f"{said}, and the index names none that begins there"

    def _name(self, place: int) -> str:
        return f"{self._index.key(int(self._rows[place]))}.{self._index.parts[self._parts[place]]}"

    def _is_at(self, place: int, key: str, part: str, *, size: int) -> bool:
        """Whether a place is that of a part, or of a bundle's first line, under one prefix, as `--keys tar` sets it."""
        said, said_size = self._index.parts[self._parts[place]], int(self._sizes[place])
        if (said, said_size) != (part, size) and not ((said, part) == (LINE_PART, BUNDLE_PART) and said_size < size):
            return False
        whole = self._index.key(int(self._rows[place]))
        prefix = whole.removesuffix(key) if self._prefix is None else self._prefix
        if whole != prefix + key or not (prefix == "" or prefix.endswith("/")):
            return False
        self._prefix = prefix
        return True


def _has_header(block: Buffer, key: str, part: str, size: int) -> bool:
    try:
        return block == header(key, part, size)
    except InputError:  # a name that no tar of ours holds
        return False


def _joined(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([*columns, np.zeros(0, np.int64)])
