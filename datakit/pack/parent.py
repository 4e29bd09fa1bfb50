"""parent: the shards of an earlier dataset as places for the samples of a new one.

`--parent` keeps samples where an earlier version of the dataset has them, wherever that lies; of a dataset in object
storage its manifest and the indexes are fetched, no shard. Samples are matched by their keys: an edited one stays in
its shard, which changes; what is new goes into new shards (`cut.stick`). The dataset that comes out depends on its
parent, so it records the parent's digest.

What it does not do: look at the samples' bytes, or trust a shard of the parent to be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import NotFound, UsageError
from datakit.source.columns import Spill, let_go, picked, ranges, subset, within
from datakit.source.records import MAX_KEY_BYTES, KeyColumn, Keys, Records

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions
    from datakit.storage.view import View


_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Parent:
    """The dataset that a split goes on from.

    Attributes:
        digest: Of its manifest.
        inherited: Its own parent, or None.
        shards: sha256 of each of its shards, in order.
        requests: Requests that reading it took.
    """

    digest: str
    inherited: str | None
    shards: tuple[str, ...]
    requests: int


@dataclass(frozen=True, slots=True, eq=False)
class Homes:
    """Where a parent has the samples of a split.

    Attributes:
        shards: Of each of its shards the samples that there still are, in their order.
        lost: Of each, whether a sample of it is gone.
    """

    shards: Sequence[npt.NDArray[np.int64]]
    lost: npt.NDArray[np.bool_]


def open_parent(
    parent: str | Path, *, split: str | None, dataset: str, stores: Mapping[str, StoreOptions] | None
) -> View:
    """The dataset that a split goes on from.

    Args:
        parent: A dataset, its `manifest.json`, or with splits the directory of the datasets; a path or a URL.
        split: The split, or None without splits.
        dataset: The dataset's name, which its shards carry.
        stores: Named stores of the settings.

    Raises:
        NotFound: There is no dataset.
        UsageError: It has another name: all its shards would change theirs.
    """
    from datakit.storage.view import open_view

    place = str(parent).removesuffix(f"/{MANIFEST_NAME}")
    where = place if split is None else f"{place.rstrip('/')}/{split}"
    try:
        view = open_view(where, stores=stores)
    except NotFound as error:
        raise NotFound(
            f"there is no parent at {where}: {error.message}",
            hint="Name a dataset, or leave --parent out",
            subject=where,
        ) from error
    if view.manifest.name != dataset:
        raise UsageError(
            f"the parent at {where} is named {view.manifest.name}, this dataset {dataset}: every shard would change",
            hint=f"Set the name: --name {view.manifest.name.removesuffix(f'-{split}')}",
            subject=where,
        )
    return view


def find_homes(
    view: View, records: Records, some: npt.NDArray[np.int64] | None, *, spill: Spill
) -> tuple[Parent, Homes]:
    """What a parent is, and where it has some records.

    Args:
        view: The parent.
        records: The table.
        some: Positions of the records of one split; None for all.
        spill: Where columns go that are long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    hashes = records.keys.hashes() if some is None else subset(records.keys.hashes(), some, spill=spill)
    growing, ends = Keys(spill), [0]
    for _, index in view.indexes():
        # one that is too long for a record's is nobody's
        its = KeyColumn.of([key if len(key.encode()) <= MAX_KEY_BYTES else "" for key in list(index.keys())])
        growing.append(its)
        ends.append(ends[-1] + len(its))
    keys = growing.done()
    matches = _matches(keys.hashes(), hashes, spill)
    column, bounds, lost = spill.column(np.int64), [0], []
    for start, stop in pairwise(ends):
        places = np.full(stop - start, _NOWHERE, np.int64)
        for ordinals, positions in matches:
            part = slice(*ordinals.searchsorted((start, stop)))
            places[ordinals[part] - start] = positions[part]
            let_go(ordinals, positions)
        there = np.flatnonzero(places != _NOWHERE)
        found = places[there]
        # a hash that is equal says little: the keys are compared
        ours = records.keys.take(found if some is None else picked(some, found))
        same = np.array([a == b for a, b in zip(ours, keys.take(start + there), strict=True)], np.bool_)
        column.append(found[same])
        bounds.append(bounds[-1] + int(same.sum()))
        lost.append(bounds[-1] - bounds[-2] < stop - start)
    inherited = view.contents.pack.get("parent")
    parent = Parent(
        digest=view.manifest.digest,
        inherited=str(inherited) if inherited is not None else None,
        shards=tuple(view.manifest.member(shard.name).sha256 for shard in view.contents.shards),
        requests=view.requests.total,
    )
    living = column.done()
    return parent, Homes([living[start:stop] for start, stop in pairwise(bounds)], np.array(lost, np.bool_))


def _matches(
    theirs: npt.NDArray[np.uint64], ours: npt.NDArray[np.uint64], spill: Spill
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Places of hashes of a parent, rising in each pair, and those of the same hashes among ours."""
    places, positions, bounds = spill.column(np.int64), spill.column(np.int64), [0]
    for low, high in ranges(max(len(theirs), len(ours))):
        wanted = within(theirs, low, high, rows=slice(0, len(theirs)))
        its = within(ours, low, high, rows=slice(0, len(ours)))
        numbers = picked(ours, its)
        order = np.argsort(numbers, kind="stable")
        sought = picked(theirs, wanted)
        at = numbers[order].searchsorted(sought)
        hit = at < len(its)
        hit[hit] = numbers[order[at[hit]]] == sought[hit]
        # tars of others may have a key twice: the last one counts
        last = np.zeros(len(its), np.int64)
        last[at[hit]] = wanted[hit]
        hit[hit] = last[at[hit]] == wanted[hit]
        places.append(wanted[hit])
        positions.append(its[order[at[hit]]])
        bounds.append(bounds[-1] + int(hit.sum()))
    all_places, all_positions = places.done(), positions.done()
    return [(all_places[start:stop], all_positions[start:stop]) for start, stop in pairwise(bounds)]
