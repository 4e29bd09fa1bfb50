"""parent: the shards of an earlier dataset as places for the samples of a new one.

`--parent` keeps samples where an earlier version of the dataset has them, wherever that lies; of a dataset in object
storage its manifest and the indexes are fetched, no shard. Samples are matched by their keys: an edited one stays in
its shard, which changes; what is new goes into new shards (`cut.stick`). The dataset that comes out depends on its
parent, so it records the parent's digest.

What it does not do: look at the samples' bytes, or trust a shard of the parent to be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from datakit.data.keys import key_hash
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import NotFound, UsageError
from datakit.pack.cut import NOWHERE
from datakit.source.records import Records

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions
    from datakit.storage.view import View


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
    """Where a parent has the samples of a split: 16 bytes a sample, which only a plan needs.

    Attributes:
        homes: Number of the shard that has each sample, or `NOWHERE`.
        ranks: Its place in that shard.
        lost: Of each shard, whether a sample of it is gone.
    """

    homes: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
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


def find_homes(view: View, records: Records, some: npt.NDArray[np.int64] | None) -> tuple[Parent, Homes]:
    """What a parent is, and where it has some records.

    Args:
        view: The parent.
        records: The table.
        some: Positions of the records of one split; None for all.
    """
    chosen = np.arange(len(records.keys)) if some is None else some
    hashes = records.keys.hashes()[chosen]
    order = np.argsort(hashes, kind="stable")
    rising = hashes[order]
    homes = np.full(len(chosen), NOWHERE, np.int64)
    ranks = np.zeros(len(chosen), np.int64)
    lost = np.zeros(len(view.contents.shards), np.bool_)
    for number, (_, index) in enumerate(view.indexes()):
        keys = index.keys()
        wanted = np.array([key_hash(key) for key in keys], np.uint64)
        at = np.minimum(rising.searchsorted(wanted), len(rising) - 1)
        there = order[at]
        # a hash that is equal says little: the keys are compared
        same = np.array([a == b for a, b in zip(records.keys.take(chosen[there]), keys, strict=True)], np.bool_)
        homes[there[same]] = number
        ranks[there[same]] = np.flatnonzero(same)
        lost[number] = not same.all()
    inherited = view.contents.pack.get("parent")
    parent = Parent(
        digest=view.manifest.digest,
        inherited=str(inherited) if inherited is not None else None,
        shards=tuple(view.manifest.member(shard.name).sha256 for shard in view.contents.shards),
        requests=view.requests.total,
    )
    return parent, Homes(homes, ranks, lost)
