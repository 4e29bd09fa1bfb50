"""files: a folder as a table; a record is the files that share a stem.

Of a record the table keeps its key, which parts it has (most have the same), and each part's size and the time of its
last change. Files are not read while they are listed. When they are, size and time must be what was listed, behind the
last byte too: a file that was written to in between is refused. Of a file that came from a store its version was seen
to while it was fetched, so only the size is looked at again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datakit.data.shard import BLOCK_BYTES, Sample
from datakit.events import Caution, Note
from datakit.source.columns import Positions, picked, tally
from datakit.source.naming import Naming
from datakit.source.originals import changed, read_original
from datakit.source.records import KeyColumn
from datakit.source.troubles import Trouble


class Kind(NamedTuple):
    """The parts that a sample of a folder has, sorted, and how each file's name goes on after the key and a dot."""

    parts: tuple[str, ...]
    suffixes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Records of a folder, in the order of their keys.

    Attributes:
        root: The folder.
        naming: How names were cut.
        timed: Whether stamps are times of change of the files that will be read.
        keys: Their names.
        kinds: Which parts there are together.
        kind_of: Which of the kinds each is.
        firsts: Place of each record's first part in the two columns below; one more than there are records.
        sizes: Bytes of each part.
        stamps: What tells the version of each part.
        troubles: Files that cannot be packed.
        remarks: What a user should be told.
        listed_bytes: Bytes of all files that were listed, those of offenders too.
    """

    root: str
    naming: Naming
    timed: bool
    keys: KeyColumn
    kinds: tuple[Kind, ...]
    kind_of: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    troubles: tuple[Trouble, ...] = ()
    remarks: tuple[Note | Caution, ...] = ()
    listed_bytes: int = 0
    exact: bool = field(default=False, init=False)

    def part_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each of some."""
        return sums(*parts_between(self.sizes, self.firsts, some))

    def shard_bytes(self, some: slice) -> npt.NDArray[np.int64]:
        """Bytes that each of some takes in a shard."""
        sizes, firsts = parts_between(self.sizes, self.firsts, some)
        return sums(in_a_shard(sizes), firsts)

    @property
    def part_counts(self) -> Mapping[str, int]:
        """How many records have a part, by its name."""
        return counts([kind.parts for kind in self.kinds], self.kind_of)

    def parts_of(self, positions: Positions) -> Mapping[str, int]:
        """How many of some records have a part, by its name."""
        return counts([kind.parts for kind in self.kinds], self.kind_of[positions])

    def signatures(self, positions: Positions) -> list[bytes]:
        """16 bytes for each of some: BLAKE2b over name, size and stamp of each of its parts."""
        _, picked = self._places(positions)
        numbers = np.empty((len(picked), 2), np.uint64)
        numbers[:, 0], numbers[:, 1] = self.sizes[picked], self.stamps[picked]
        told = numbers.ravel().tolist()
        forms = [
            (
                "".join(f"{suffix.replace('%', '%%')}\0%d %d\0" for suffix in kind.suffixes).encode(),
                2 * len(kind.suffixes),
            )
            for kind in self.kinds
        ]
        found, at = [], 0
        for kind in self.kind_of[positions].tolist():
            form, count = forms[kind]
            found.append(blake2b(form % tuple(told[at : at + count]), digest_size=16).digest())
            at += count
        return found

    def newest_ns(self, positions: Positions) -> int:
        """When the last of the files of some was changed, in ns since 1970; 0 where stamps are no times."""
        _, picked = self._places(positions)
        return int(self.stamps[picked].max(initial=0)) if self.timed else 0

    def versions(self, positions: Positions) -> bytes:  # noqa: ARG002 -- of the protocol
        """None: signatures tell them."""
        return b""

    def planned(self) -> Files:
        """The table without the hashes of its keys."""
        return replace(self, keys=self.keys.without_hashes())

    def chosen(self, positions: Positions) -> Files:
        """A table of some of them, in this order, with the hashes of their keys."""
        firsts, picked = self._places(positions)
        return replace(
            self,
            keys=self.keys.chosen(positions),
            kind_of=self.kind_of[positions],
            firsts=firsts,
            sizes=self.sizes[picked],
            stamps=self.stamps[picked],
        )

    def _places(self, positions: Positions) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the parts of some will begin side by side, and where each part is now."""
        counts = np.diff(self.firsts)[positions]
        firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return firsts, np.repeat(self.firsts[positions] - firsts[:-1], counts) + np.arange(int(counts.sum()))

    def take(self, positions: Positions) -> FileBatch:
        """Some of them, in this order."""
        _, picked = self._places(positions)
        return FileBatch(
            root=self.root,
            naming=self.naming,
            timed=self.timed,
            kinds=self.kinds,
            keys=self.keys.chosen(positions, hashed=False),
            kind_of=self.kind_of[positions],
            sizes=self.sizes[picked],
            stamps=self.stamps[picked],
        )


@dataclass(frozen=True, slots=True, eq=False)
class FileBatch:
    """Some records of a folder; where there is a spool, their files lie in it one behind the other."""

    root: str
    naming: Naming
    timed: bool
    kinds: tuple[Kind, ...]
    keys: KeyColumn
    kind_of: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    spool: str | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def samples(self) -> Iterator[Sample]:
        """The files' bytes, each of the size and time that it was listed with."""
        if self.spool is not None:
            yield from self._spooled(self.spool)
            return
        stamps = self.stamps.tolist() if self.timed else [None] * len(self.stamps)
        sizes = self.sizes.tolist()
        at = 0
        for key, kind in self._rows():
            stem = f"{self.root}/{self.naming.stem(key)}."
            parts = {}
            for name, suffix in zip(kind.parts, kind.suffixes, strict=True):
                parts[name] = read_original(stem + suffix, size=sizes[at], stamp=stamps[at])
                at += 1
            yield Sample(key, parts)

    def _spooled(self, spool: str) -> Iterator[Sample]:
        sizes = iter(self.sizes.tolist())
        with open(spool, "rb") as file:
            for key, kind in self._rows():
                parts = {}
                for name, suffix in zip(kind.parts, kind.suffixes, strict=True):
                    size = next(sizes)
                    parts[name] = file.read(size)
                    if len(parts[name]) != size:
                        raise changed(f"{self.naming.stem(key)}.{suffix}")
                yield Sample(key, parts)

    def names(self) -> list[str]:
        """Names of the files, below the folder."""
        return [f"{self.naming.stem(key)}.{suffix}" for key, kind in self._rows() for suffix in kind.suffixes]

    def _rows(self) -> Iterator[tuple[str, Kind]]:
        return zip(self.keys, (self.kinds[kind] for kind in self.kind_of.tolist()), strict=True)


def parts_between(
    sizes: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64], some: slice
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The sizes of the parts of some records, which are next to each other, and the places of their first parts there.

    Args:
        sizes: Bytes of each part of all.
        firsts: Place of each record's first part; one more than there are records.
        some: Which.
    """
    its = picked(firsts, slice(some.start, some.stop + 1))
    return picked(sizes, slice(int(its[0]), int(its[-1]))), its - its[0]


def sums(values: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sums of the values between neighbouring places."""
    return np.add.reduceat(values, firsts[:-1]) if len(values) else np.zeros(0, np.int64)


def in_a_shard(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes that parts of these sizes take in a tar."""
    return sizes + BLOCK_BYTES + -sizes % BLOCK_BYTES


def counts(kinds: Sequence[Sequence[str]], kind_of: npt.NDArray[np.int32]) -> dict[str, int]:
    """How many records have a part, by its name.

    Args:
        kinds: Which parts there are together.
        kind_of: Which of them each record has.
    """
    found: Counter[str] = Counter()
    for parts, count in zip(kinds, tally(kind_of, len(kinds)).tolist(), strict=True):
        found.update(dict.fromkeys(parts, count))
    return {part: count for part, count in sorted(found.items()) if count}
