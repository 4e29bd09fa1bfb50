"""files: a folder as a table; a record is the files that share a stem.

Of a record the table keeps its key, which parts it has (most have the same), and each part's size and the time of its
last change. Files are not read while they are listed. When they are, size and time must be what was listed, before and
after: a file that was written to in between is refused. Of a file that came from a store its version was seen to while
it was fetched, so only the size is looked at again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datakit.data.keys import NAME_BYTES, check_key, check_part, split_name
from datakit.data.shard import BLOCK_BYTES, MAX_PART_BYTES, Sample, header
from datakit.errors import InputError
from datakit.events import Caution, Note
from datakit.pack.lines import changed
from datakit.pack.records import KeyColumn, Positions
from datakit.pack.troubles import Trouble, refusal


class FoundFile(NamedTuple):
    """A file of a folder: its name below it, its bytes, and its version: a time of change in ns, or a hash of a tag."""

    name: str
    size: int
    stamp: int


class Kind(NamedTuple):
    """The parts that a sample of a folder has, sorted, and how each file's name goes on after the key and a dot."""

    parts: tuple[str, ...]
    suffixes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Records of a folder, in the order of their keys.

    Attributes:
        root: The folder.
        timed: Whether stamps are times of change of the files that will be read.
        keys: Their names.
        kinds: Which parts there are together.
        kind_of: Which of the kinds each is.
        firsts: Place of each record's first part in the two columns below; one more than there are records.
        sizes: Bytes of each part.
        stamps: What tells the version of each part.
        troubles: Files that cannot be packed.
        remarks: What a user should be told.
    """

    root: str
    timed: bool
    keys: KeyColumn
    kinds: tuple[Kind, ...]
    kind_of: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    troubles: tuple[Trouble, ...] = ()
    remarks: tuple[Note | Caution, ...] = ()
    exact: bool = field(default=False, init=False)

    @property
    def part_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each."""
        return _sums(self.sizes, self.firsts)

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard."""
        return _sums(self.sizes + BLOCK_BYTES + -self.sizes % BLOCK_BYTES, self.firsts)

    @property
    def part_counts(self) -> Mapping[str, int]:
        """How many records have a part, by its name."""
        counts: Counter[str] = Counter()
        for number, count in enumerate(np.bincount(self.kind_of, minlength=len(self.kinds)).tolist()):
            counts.update(dict.fromkeys(self.kinds[number].parts, count))
        return dict(sorted(counts.items()))

    def signatures(self, positions: Positions) -> list[bytes]:
        """16 bytes for each of some: BLAKE2b over name, size and stamp of each of its parts."""
        return self.take(positions).signatures()

    def newest_ns(self, positions: Positions) -> int:
        """When the last of the files of some was changed, in ns since 1970; 0 where stamps are no times."""
        return int(self.take(positions).stamps.max(initial=0)) if self.timed else 0

    def take(self, positions: Positions) -> FileBatch:
        """Some of them, in this order."""
        counts = np.diff(self.firsts)[positions]
        firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        picked = np.repeat(self.firsts[positions] - firsts[:-1], counts) + np.arange(int(counts.sum()))
        return FileBatch(
            root=self.root,
            timed=self.timed,
            kinds=self.kinds,
            keys=self.keys.chosen(positions),
            kind_of=self.kind_of[positions],
            sizes=self.sizes[picked],
            stamps=self.stamps[picked],
        )


@dataclass(frozen=True, slots=True, eq=False)
class FileBatch:
    """Some records of a folder."""

    root: str
    timed: bool
    kinds: tuple[Kind, ...]
    keys: KeyColumn
    kind_of: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.keys)

    def samples(self) -> Iterator[Sample]:
        """The files' bytes, each of the size and time that it was listed with."""
        stamps = self.stamps.tolist() if self.timed else [None] * len(self.stamps)
        sizes = self.sizes.tolist()
        at = 0
        for key, kind in self._rows():
            stem = f"{self.root}/{key}."
            parts = {}
            for name, suffix in zip(kind.parts, kind.suffixes, strict=True):
                parts[name] = _read(stem + suffix, sizes[at], stamps[at])
                at += 1
            yield Sample(key, parts)

    def signatures(self) -> list[bytes]:
        """16 bytes a record: BLAKE2b over name, size and stamp of each of its parts."""
        sizes, stamps = self.sizes.tolist(), self.stamps.tolist()
        found, at = [], 0
        for _, kind in self._rows():
            digest = blake2b(digest_size=16)
            for name in kind.suffixes:
                digest.update(f"{name}\0{sizes[at]} {stamps[at]}\0".encode())
                at += 1
            found.append(digest.digest())
        return found

    def _rows(self) -> Iterator[tuple[str, Kind]]:
        keys = self.keys.take(np.arange(len(self)))
        return zip(keys, (self.kinds[kind] for kind in self.kind_of.tolist()), strict=True)


def list_files(root: str, *, files: Iterable[FoundFile], timed: bool = True) -> Files:
    """The records of a folder: files that share a stem, in the order of their keys.

    Args:
        root: The folder.
        files: What lies in it.
        timed: Whether their stamps are times of change.

    Raises:
        InputError: A file has no part name, or a name that a sample cannot have; offenders are listed.
    """
    samples: dict[str, list[tuple[str, str, int, int]]] = {}
    troubles: list[Trouble] = []
    lower: dict[str, str] = {}
    for name, size, stamp in files:
        key, suffix = split_name(name)
        part = lower.get(suffix)
        if part is None:
            part = lower[suffix] = suffix.lower()  # as every reader of such tars will
            troubles += _broken_rules(check_part, part, name)
        samples.setdefault(key, []).append((part, suffix, size, stamp))
    keys = sorted(samples)
    kinds: dict[Kind, int] = {}
    kind_of: list[int] = []
    all_sizes: list[int] = []
    all_stamps: list[int] = []
    for key in keys:
        names, suffixes, sizes, stamps = zip(*sorted(samples[key]), strict=True)
        if len(set(names)) < len(names):
            where = f"{key}.{suffixes[-1]}"
            troubles.append(Trouble(where, f"another file is the same part of sample {key}", key=key, hint=_RENAME))
        troubles += _broken_rules(check_key, key, f"{key}.{suffixes[0]}") or _beyond_ustar(key, names, sizes)
        kind_of.append(kinds.setdefault(Kind(names, suffixes), len(kinds)))
        all_sizes += sizes
        all_stamps += stamps
    if troubles:
        raise refusal(troubles)
    counts = [len(kind.parts) for kind in kinds]
    kind_column = np.array(kind_of, np.int32)
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64)[kind_column])])
    return Files(
        root=root,
        timed=timed,
        keys=KeyColumn.of(keys),
        kinds=tuple(kinds),
        kind_of=kind_column,
        firsts=firsts,
        sizes=np.array(all_sizes, np.int64),
        stamps=np.array(all_stamps, np.uint64),
    )


_RENAME = "Rename or move it"


def _sums(values: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sums of the values between neighbouring places."""
    return np.add.reduceat(values, firsts[:-1]) if len(values) else np.zeros(0, np.int64)


def _read(path: str, size: int, stamp: int | None) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # one byte more than listed shows a file that has grown
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
            data += more
        if len(data) != size or (stamp is not None and os.fstat(descriptor).st_mtime_ns != stamp):
            raise changed(path)
    finally:
        os.close(descriptor)
    return data


def _beyond_ustar(key: str, parts: Sequence[str], sizes: Sequence[int]) -> list[Trouble]:
    """What a tar cannot hold of a sample: names too long, parts too large. Told before anything is written."""
    # bytes of UTF-8 are at most four a letter: most names are told by that alone
    if max(sizes) <= MAX_PART_BYTES and 4 * (len(key) + 1 + max(map(len, parts))) <= NAME_BYTES:
        return []
    troubles = []
    for part, size in zip(parts, sizes, strict=True):
        try:
            header(key, part, size)
        except InputError as error:
            troubles.append(Trouble(f"{key}.{part}", error.message, key=key, hint=error.hint))
    return troubles


def _broken_rules(check: Callable[[str], None], value: str, where: str) -> list[Trouble]:
    try:
        check(value)
    except InputError as error:
        return [Trouble(where, error.message, hint=_RENAME)]
    return []
