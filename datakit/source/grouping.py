"""grouping: files that lie together as records: those that share a stem are one, and what cannot be one is told.

Offenders are an empty file (nearly always a download that was lost), a name without an extension, a name that a sample
or a part cannot have or that a tar cannot hold, and two files that are the same part. A record of which one file is an
offender is left out whole: a sample that quietly lacks a part is worse than none.

A stem has its folder in it, so a folder is grouped by itself, and so is a stretch of a large one: each is a pure task.

What it does not do: compare records of one stretch with those of others (`folders` does).
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datakit.data.keys import NAME_BYTES, check_part
from datakit.data.shard import MAX_PART_BYTES, header
from datakit.errors import InputError, printable
from datakit.source.naming import Naming
from datakit.source.records import KeyColumn
from datakit.source.trees import Folder, look
from datakit.source.troubles import FETCH_AGAIN, Raw, Trouble


class FoundFile(NamedTuple):
    """A file of a folder: its name below it, its bytes, and its version: a time of change in ns, or a hash of a tag."""

    name: str
    size: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task: files of a source that share no stem with any other.

    Attributes:
        root: The source.
        folders: Files that are still to be looked at.
        known: Files of the same folders that were.
        naming: How names are cut.
        timed: Whether stamps are times of change of the files that will be read.
        unread: Keys of records of which a file is known not to be readable.
    """

    root: str
    folders: tuple[Folder, ...]
    known: tuple[FoundFile, ...]
    naming: Naming
    timed: bool = True
    unread: frozenset[str] = frozenset()


@dataclass(slots=True)
class Group:
    """The records of a stretch, in the order of their keys.

    Attributes:
        keys: Their names.
        kinds: Suffixes that there are together, in the order of their parts.
        kind_of: Which of the kinds each record is.
        sizes: Bytes of each part of each.
        stamps: What tells its version.
        listed_bytes: Bytes of all files, those of offenders too.
        closed: Files that cannot be read.
        of_files: Other files that are offenders, by their names.
        of_keys: Records that are, by their keys.
    """

    keys: KeyColumn
    kinds: list[tuple[str, ...]]
    kind_of: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    listed_bytes: int
    closed: list[Trouble]
    of_files: list[tuple[str, Trouble]] = field(default_factory=list)
    of_keys: list[tuple[str, Trouble]] = field(default_factory=list)


class _Part(NamedTuple):
    """A file as a part of a record."""

    part: str
    suffix: str
    size: int
    stamp: int


_Groups = dict[str, list[_Part]]

RENAME = "Rename it, or move it away"
"""The hint of a file whose name is the trouble."""

_TWIN = "Remove one of the two"
_BARE = "has no extension, and so no name of a part"


def list_stretch(stretch: Stretch) -> Group:
    """Look at the files of a stretch, and make records of them.

    Raises:
        InputError: A file is not there any more.
        NotAllowed: The way to one is closed.
    """
    naming, root = stretch.naming, stretch.root if stretch.timed else None
    trees = [look(stretch.root, folder) for folder in stretch.folders]
    closed = [keyed(trouble, naming) for tree in trees for trouble in tree.troubles]
    unread = {*stretch.unread, *(trouble.key for trouble in closed if trouble.key is not None)}
    files = [*stretch.known, *((file.name, file.bytes, file.stamp) for tree in trees for file in tree.files)]
    groups, of_files = _grouped(files, stretch.root, naming)
    bad = {*unread, *(trouble.key for _, trouble in of_files)}
    rooms = _Rooms(any(size > MAX_PART_BYTES for _, size, _ in files))
    good: list[str] = []
    of_keys: list[tuple[str, Trouble]] = []
    kinds: dict[tuple[str, ...], int] = {}
    kind_of = array("i")
    for key in sorted(groups):
        parts = groups[key]
        parts.sort()
        suffixes = tuple([part.suffix for part in parts])
        is_doubtful = len(key) > rooms[suffixes] or naming.problem(key) is not None
        if is_doubtful and (found := list(_problems(key, parts, naming))):
            of_keys += [(key, trouble) for trouble in found]
        elif key not in bad:
            good.append(key)
            kind_of.append(kinds.setdefault(suffixes, len(kinds)))
    parts = [part for key in good for part in groups[key]]
    return Group(
        keys=KeyColumn.of(good),
        kinds=list(kinds),
        kind_of=np.array(kind_of, np.int32),
        sizes=np.array([part.size for part in parts], np.int64),
        stamps=np.array([part.stamp for part in parts], np.uint64),
        listed_bytes=sum(size for _, size, _ in files),
        closed=closed,
        of_files=[(name, _with_raws(trouble, groups, root, naming, unread)) for name, trouble in of_files],
        of_keys=[(key, _with_raws(trouble, groups, root, naming, unread)) for key, trouble in of_keys],
    )


class _Rooms(dict[tuple[str, ...], int]):
    """Letters that a key may have beside such suffixes, whatever these are; beyond them, or where two of the suffixes
    are the same part or a size is in doubt, `_problems` tells.
    """

    def __init__(self, any_size: bool) -> None:
        self._in_doubt = any_size

    def __missing__(self, suffixes: tuple[str, ...]) -> int:
        parts = [suffix.lower() for suffix in suffixes]
        is_plain = not self._in_doubt and len(set(parts)) == len(parts)
        # bytes of UTF-8 are at most four a letter
        self[suffixes] = NAME_BYTES // 4 - 1 - max(map(len, parts)) if is_plain else -1
        return self[suffixes]


def keyed(trouble: Trouble, naming: Naming) -> Trouble:
    """It with the key of the record that its file is of; a folder, or a name without an extension, is of none."""
    key, suffix = ("", "") if trouble.file is None else naming.cut(trouble.file)
    return replace(trouble, key=key) if suffix else trouble


def raws_of(root: str, stem: str, suffixes: Iterable[str]) -> tuple[Raw, ...]:
    """All files of a record, to be copied."""
    names = [f"{stem}.{suffix}" for suffix in suffixes]
    return tuple(Raw(name, f"{root}/{name}") for name in names)


def _grouped(
    files: Iterable[tuple[str, int, int]], root: str, naming: Naming
) -> tuple[_Groups, list[tuple[str, Trouble]]]:
    """The files by key, and those that cannot be parts, by their names."""
    groups: _Groups = {}
    told: list[tuple[str, Trouble]] = []
    parts: dict[str, tuple[str, str | None]] = {}
    for name, size, stamp in files:
        key, suffix = naming.cut(name)
        known = parts.get(suffix)
        if known is None:
            part = suffix.lower()  # as every reader of such tars will
            known = parts[suffix] = part, _broken_rule(part)
        part, problem = known
        if not part:  # nobody's part: it takes no record with it
            raws = (Raw(name, f"{root}/{name}"),)
            told.append((name, Trouble(printable(name), _BARE, hint=RENAME, raws=raws)))
            continue
        groups.setdefault(key, []).append(_Part(part, suffix, size, stamp))
        if problem is not None:
            told.append((name, Trouble(printable(name), problem, key=key, hint=RENAME)))
        elif not size:
            told.append((name, Trouble(printable(name), "is empty", key=key, hint=FETCH_AGAIN)))
    return groups, told


def _broken_rule(part: str) -> str | None:
    try:
        check_part(part)
    except InputError as error:
        return error.message
    return None


def _problems(key: str, parts: Sequence[_Part], naming: Naming) -> Iterator[Trouble]:
    """Why files that share a stem are no record."""
    for one, other in itertools.pairwise(parts):
        if one.part == other.part:
            said = f"is the same part of sample {key} as {_name(key, one, naming)}"
            yield Trouble(_name(key, other, naming), said, key=key, hint=_TWIN)
    if (broken := naming.problem(key)) is not None:
        problem, hint = broken
        yield Trouble(_name(key, parts[0], naming), problem, key=key, hint=hint)
        return
    for part in parts:
        try:
            header(key, part.part, part.size)
        except InputError as error:
            yield Trouble(_name(key, part, naming), error.message, key=key, hint=error.hint)


def _name(key: str, part: _Part, naming: Naming) -> str:
    return printable(f"{naming.stem(key)}.{part.suffix}")


def _with_raws(
    trouble: Trouble, groups: Mapping[str, list[_Part]], root: str | None, naming: Naming, unread: Collection[str]
) -> Trouble:
    """It with all files of its record, where all can be copied; what is in a store stays there."""
    if root is None or trouble.key in unread:  # a copy without one of them would be packed as a record
        return replace(trouble, raws=())
    if trouble.key is None:
        return trouble
    suffixes = (part.suffix for part in groups.get(trouble.key, ()))
    return replace(trouble, raws=raws_of(root, naming.stem(trouble.key), suffixes))
