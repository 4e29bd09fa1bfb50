"""changes: how the samples of one dataset differ from those of another, by key and digest, shard for shard.

A shard that both have (the same sha256 of the tar and of its index, which gives the keys) is the same samples: its
index is never looked at. Of the others, each sample is 48 bytes: a 128-bit hash of its key, its digest, its place. Two
such lists are sorted and laid beside each other, so that time and memory grow with what changed, and not with the
datasets.

A sample is *added*, *removed*, *changed* (the same key with another digest) or as before. One that is as before has
*moved* when it lies in a shard that goes back, by most of its samples, to another shard than the one it lay in: an edit
rewrites a shard around samples that have not moved. Shards that a cut has torn apart or joined show here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from datakit.data.index import Index
from datakit.data.manifest import Manifest

Places: TypeAlias = npt.NDArray[np.int64]
"""Two columns: the number of a shard in its dataset, and the row in it."""

Halves: TypeAlias = npt.NDArray[np.uint64]
"""Values of 128 bits, as two columns of 64."""


@dataclass(frozen=True)
class ShardChanges:
    """Which shards two datasets share.

    Attributes:
        reused: Numbers, in the new dataset, of the shards that the old one has too.
        new: Numbers, in the new dataset, of the others.
        dropped: Numbers, in the old dataset, of those that the new one has not.
    """

    reused: tuple[int, ...]
    new: tuple[int, ...]
    dropped: tuple[int, ...]


def shard_changes(old: Manifest, new: Manifest) -> ShardChanges:
    """Compare two datasets by their manifests alone."""
    before, after = _shards(old), _shards(new)
    known, kept = set(before), set(after)
    return ShardChanges(
        reused=tuple(number for number, shard in enumerate(after) if shard in known),
        new=tuple(number for number, shard in enumerate(after) if shard not in known),
        dropped=tuple(number for number, shard in enumerate(before) if shard not in kept),
    )


def _shards(manifest: Manifest) -> list[tuple[str, str]]:
    """What decides the samples of each shard: its bytes, and those of its index, which may name them otherwise."""
    return [
        (manifest.member(shard.name).sha256, manifest.member(shard.index_name).sha256)
        for shard in manifest.contents.shards
    ]


@dataclass(frozen=True)
class SampleChanges:
    """What became of the samples of the shards that are not shared, in the new dataset's order (`removed`: the old's).

    Attributes:
        added: Places in the new dataset.
        removed: Places in the old dataset.
        changed: Places before and after, four columns.
        moved: The same, of samples that are as before.
        kept: How many are as before, those that moved included.
        renamed: How many different contents of removed keys stand under added ones.
    """

    added: Places
    removed: Places
    changed: Places
    moved: Places
    kept: int
    renamed: int


class Roll:
    """The samples of some shards, 48 bytes each; add one index after the other."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._digests: list[bytes] = []
        self._places: list[Places] = []

    def add(self, shard: int, index: Index) -> None:
        """Take the rows of a shard; nothing of the index is kept.

        Args:
            shard: Its number in its dataset.
            index: Its index.
        """
        self._keys.append(b"".join([xxhash.xxh3_128_digest(key.encode()) for key in index.keys()]))  # noqa: SIM118 -- an Index is no dict
        self._digests.append(b"".join(index.digests()))
        places = np.empty((len(index), 2), np.int64)
        places[:, 0], places[:, 1] = shard, np.arange(len(index))
        self._places.append(places)

    def columns(self) -> tuple[Halves, Halves, Places]:
        """Hashes of keys, digests, and places; row by row of one sample. The roll is empty afterwards."""
        hashes, digests = _halves(self._keys), _halves(self._digests)
        places = np.concatenate([np.empty((0, 2), np.int64), *self._places])
        self._places.clear()
        return hashes, digests, places


def _halves(pieces: list[bytes]) -> Halves:
    joined = b"".join(pieces)
    pieces.clear()
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def sample_changes(old: Roll, new: Roll) -> SampleChanges:
    """Compare the samples of two rolls; keys are unique in each."""
    old_keys, old_digests, old_places = old.columns()
    new_keys, new_digests, new_places = new.columns()
    before, after = _pairs(old_keys, new_keys)
    same = (old_digests[before] == new_digests[after]).all(axis=1)
    added = _rest(len(new_keys), after)
    removed = _rest(len(old_keys), before)
    kept = np.hstack([old_places[before[same]], new_places[after[same]]])
    renamed, _ = _pairs(old_digests[removed], new_digests[added])
    return SampleChanges(
        added=_ordered(new_places[added], 0),
        removed=_ordered(old_places[removed], 0),
        changed=_ordered(np.hstack([old_places[before[~same]], new_places[after[~same]]]), 2),
        moved=_ordered(kept[_has_moved(kept)], 2),
        kept=len(kept),
        renamed=len(np.unique(renamed)),
    )


def _pairs(old: Halves, new: Halves) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of two lists of 128-bit values that are equal: positions in the one, and in the other; each taken once."""
    order = np.argsort(old[:, 0])
    first = old[order, 0]
    if (first[1:] == first[:-1]).any():
        return _pairs_with_ties(old, new)
    # sorted, the searches below run through memory in one direction
    asked = np.argsort(new[:, 0])
    at = np.searchsorted(first, new[asked, 0])
    inside = at < len(first)
    asked, found = asked[inside], order[at[inside]]
    equal = (old[found] == new[asked]).all(axis=1)
    found, asked = found[equal], asked[equal]
    _, once = np.unique(found, return_index=True)
    return found[once], asked[once]


def _pairs_with_ties(old: Halves, new: Halves) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same where first halves repeat: equal values, as of contents, or one key hash in 2**64."""
    both = np.concatenate([old, new])
    side = np.repeat(np.array([0, 1], np.int8), [len(old), len(new)])
    order = np.lexsort((side, both[:, 1], both[:, 0]))
    values, sides = both[order], side[order]
    equal = (values[:-1] == values[1:]).all(axis=1) & (sides[:-1] == 0) & (sides[1:] == 1)
    at = np.flatnonzero(equal)
    return order[at], order[at + 1] - len(old)


def _rest(count: int, taken: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    free = np.ones(count, bool)
    free[taken] = False
    return np.flatnonzero(free)


def _ordered(places: Places, column: int) -> Places:
    return places[np.lexsort((places[:, column + 1], places[:, column]))]


def _has_moved(kept: Places) -> npt.NDArray[np.bool_]:
    """Of samples that are as before: whether each lies outside the shard that its shard goes back to."""
    if not len(kept):
        return np.zeros(0, bool)
    # a route, from one old shard into one new one, as one number: rows of two columns sort a hundred times slower
    width = int(kept[:, 0].max()) + 1
    codes, which, counts = np.unique(kept[:, 2] * width + kept[:, 0], return_inverse=True, return_counts=True)
    routes = np.stack([codes // width, codes % width], axis=1)
    # of the routes into one new shard the busiest comes last, of equally busy ones the one from the earliest shard
    by_size = np.lexsort((-routes[:, 1], counts, routes[:, 0]))
    last = np.append(np.diff(routes[by_size, 0]) != 0, True)
    main = np.zeros(len(routes), bool)
    main[by_size[last]] = True
    strayed: npt.NDArray[np.bool_] = ~main[which.reshape(-1)]
    return strayed
