"""pack/cut, sticky: a parent's shards keep their living samples, and only what is new is dealt anew."""

from __future__ import annotations

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.keys import key_hash
from datakit.pack.cut import Layout, cut, stick

TARGET = 20_000
LAYOUTS = st.sampled_from(get_args(Layout))
WORLDS = st.lists(st.integers(512, 6_000), min_size=1, max_size=150)
Shards = list[list[str]]


def size_of(key: str) -> int:
    """Each key of a world has a size of its own."""
    return int(key.rpartition("/")[2])


def dealt(keys: list[str], layout: Layout, parent: Shards | None = None) -> Shards:
    """The keys of each shard, by a parent's or anew."""
    hashes = np.array([key_hash(key) for key in keys], np.uint64)
    sizes = np.array([size_of(key) for key in keys], np.int64)
    if parent is None:
        found = cut(hashes, sizes=sizes, target_bytes=TARGET, layout=layout)
    else:
        where = {key: position for position, key in enumerate(keys)}
        found = stick(
            [np.array([where[key] for key in shard if key in where], np.int64) for shard in parent],
            lost=np.array([not set(shard) <= set(keys) for shard in parent], np.bool_),
            hashes=hashes,
            sizes=sizes,
            target_bytes=TARGET,
            layout=layout,
        )
    return [[keys[position] for position in shard] for shard in found]


def world(sizes: list[int], prefix: str = "k") -> list[str]:
    """Keys that carry their sizes."""
    return [f"{prefix}{number:04d}/{size}" for number, size in enumerate(sizes)]


def bytes_of(shard: list[str]) -> int:
    """What a shard's samples take."""
    return sum(map(size_of, shard))


@given(WORLDS, LAYOUTS)
def test_the_same_samples_give_the_parents_shards(sizes: list[int], layout: Layout) -> None:
    """History: a parent of the same samples gives itself, in its order, and again."""
    keys = world(sizes)
    parent = dealt(keys, layout)

    child = dealt(keys, layout, parent)

    assert child == parent
    assert dealt(keys, layout, child) == parent


@given(WORLDS, WORLDS, LAYOUTS, st.integers(0, 2**32))
def test_every_sample_is_in_exactly_one_shard(sizes: list[int], more: list[int], layout: Layout, draw: int) -> None:
    """Whatever is gone and whatever is new, none is lost or doubled, and no shard is empty."""
    before = world(sizes)
    keys = [key for number, key in enumerate(before) if draw >> (number % 32) & 1] + world(more, "n")

    child = dealt(keys, layout, dealt(before, layout))

    assert sorted(key for shard in child for key in shard) == sorted(keys)
    assert all(child)


@given(WORLDS, WORLDS, LAYOUTS)
def test_what_is_appended_leaves_full_shards_as_they_are(sizes: list[int], more: list[int], layout: Layout) -> None:
    """Shards that are at least half full stay, in their order; the new ones, without their samples, come after them."""
    before, new = world(sizes), world(more, "n")
    parent = dealt(before, layout)
    full = [shard for shard in parent if 2 * bytes_of(shard) >= TARGET]

    child = dealt(before + new, layout, parent)

    assert child[: len(full)] == full
    assert {key for shard in child[len(full) :] for key in shard} == {*before, *new} - {k for s in full for k in s}


@given(WORLDS, LAYOUTS, st.sets(st.integers(0, 149), min_size=1))
def test_what_is_deleted_changes_the_shards_that_had_it(sizes: list[int], layout: Layout, gone: set[int]) -> None:
    """All others stay, but for those that were less than half full already; order within a shard stays too."""
    before = world(sizes)
    keys = [key for number, key in enumerate(before) if number not in gone]
    parent = dealt(before, layout)

    child = dealt(keys, layout, parent)

    untouched = [shard for shard in parent if set(shard) <= set(keys) and 2 * bytes_of(shard) >= TARGET]
    living = [[key for key in shard if key in set(keys)] for shard in parent]
    assert [shard for shard in child if shard in untouched] == untouched
    for shard in living:
        if 2 * bytes_of(shard) >= TARGET:
            assert shard in child


@given(WORLDS, LAYOUTS)
def test_where_samples_are_does_not_hang_on_the_sources_order(sizes: list[int], layout: Layout) -> None:
    """A source that lists the same samples backwards: the parent's shards."""
    keys = world(sizes)
    parent = dealt(keys, layout)

    assert dealt(keys[::-1], layout, parent) == parent


@given(WORLDS, LAYOUTS)
def test_a_parent_of_other_samples_is_none(sizes: list[int], layout: Layout) -> None:
    """With nothing in common, samples are dealt as without a parent."""
    assert dealt(world(sizes), layout, dealt(world(sizes, "other"), layout)) == dealt(world(sizes), layout)
