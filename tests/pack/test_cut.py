"""pack/cut: every sample once, shards near their aim, and small changes that stay small (law 5)."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import UsageError
from datakit.data.keys import key_hash
from datakit.pack.cut import REACH_TENTHS, PackSettings, check_name, cut

Layout = Literal["stable", "sequential", "shuffle"]
LAYOUTS = st.sampled_from(get_args(Layout))
SIZES = st.lists(st.integers(512, 60_000), max_size=400)
TARGET = 100_000


def deal(keys: list[str], sizes: list[int], layout: Layout = "stable", target: int = TARGET) -> list[list[str]]:
    """The keys of each shard."""
    hashes = np.array([key_hash(key) for key in keys], np.uint64)
    shards = cut(hashes, sizes=np.array(sizes, np.int64), target_bytes=target, layout=layout)
    return [[keys[position] for position in shard] for shard in shards]


def names(count: int) -> list[str]:
    """Distinct keys."""
    return [f"key-{number:06d}" for number in range(count)]


@given(SIZES, LAYOUTS, st.integers(1, 10**6))
def test_every_sample_is_in_exactly_one_shard(sizes: list[int], layout: Layout, target: int) -> None:
    """Nothing is lost, doubled or put into an empty shard, whatever the sizes and the aim."""
    keys = names(len(sizes))

    shards = deal(keys, sizes, layout, target)

    assert sorted(key for shard in shards for key in shard) == keys
    assert all(shards)


@given(SIZES)
def test_a_stable_shard_is_in_the_order_of_key_hashes(sizes: list[int]) -> None:
    """Within a shard neighbours are mixed; the order follows from the keys alone."""
    for shard in deal(names(len(sizes)), sizes):
        assert shard == sorted(shard, key=key_hash)


REACH = REACH_TENTHS * TARGET // 10


def boundaries(keys: list[str], sizes: list[int]) -> list[int]:
    """Positions of the samples that end a group, by the definition, one after the other."""
    ends = np.cumsum(sizes)
    found = []
    for position, key in enumerate(keys):
        near = [other for end, other in zip(ends, keys, strict=True) if abs(end - ends[position]) <= REACH]
        whole = ends[position] >= REACH and ends[-1] - ends[position] >= REACH
        if whole and key == min(near, key=key_hash):
            found.append(position)
    return found


@given(SIZES)
def test_groups_end_at_local_minima_and_nowhere_else(sizes: list[int]) -> None:
    """Samples of one group share their shards with no other group, and groups are those of the definition."""
    keys = names(len(sizes))
    groups = [-1, *boundaries(keys, sizes), len(keys) - 1]

    shards = deal(keys, sizes)

    group_of = {key: bisect_left(groups, position) for position, key in enumerate(keys)}
    numbers = [{group_of[key] for key in shard} for shard in shards]
    assert all(len(number) == 1 for number in numbers)
    assert [min(number) for number in numbers] == sorted(min(number) for number in numbers)


@given(SIZES, st.integers(0, 400), st.integers(0, 40))
def test_a_change_is_not_felt_beyond_its_reach(sizes: list[int], start: int, count: int) -> None:
    """Remove some neighbours: a shard that changes belongs to a group within the reach of the gap, on either side."""
    keys = names(len(sizes))
    start = min(start, len(keys))
    stop = min(start + count, len(keys))
    ends = [0, *np.cumsum(sizes).tolist()]
    cuts = [-1, *boundaries(keys, sizes), len(keys) - 1]

    before = deal(keys, sizes)
    after = {tuple(shard) for shard in deal(keys[:start] + keys[stop:], sizes[:start] + sizes[stop:])}

    for shard in before:
        if tuple(shard) not in after:
            group = bisect_left(cuts, keys.index(shard[0]))
            first, last = cuts[group - 1] + 1, cuts[group]
            assert ends[first] <= ends[stop] + 2 * REACH
            assert ends[last + 1] >= ends[start] - 2 * REACH


@given(SIZES)
def test_sequential_shards_are_filled_in_order(sizes: list[int]) -> None:
    """Source order, each as full as it gets without passing the aim, one sample at least."""
    keys = names(len(sizes))
    size = dict(zip(keys, sizes, strict=True))

    shards = deal(keys, sizes, "sequential")

    assert [key for shard in shards for key in shard] == keys
    for shard, following in itertools.pairwise(shards):
        filled = sum(size[key] for key in shard)
        assert filled <= TARGET or len(shard) == 1
        assert filled + size[following[0]] > TARGET


def test_shards_come_near_their_aim() -> None:
    """Of 20,000 samples the mean shard is within 15 % of the aim, and none but the last is over twice as large."""
    rng = random.Random(1)
    keys = names(20_000)
    size = {key: rng.randrange(600, 8000) for key in keys}

    for layout in get_args(Layout):
        filled = [sum(size[key] for key in shard) for shard in deal(keys, list(size.values()), layout, 10**6)]
        assert abs(sum(filled) / len(filled) / 10**6 - 1) < 0.15, layout
        assert max(filled) < 2 * 10**6, layout


def changed_share(before: list[list[str]], after: list[list[str]], edited: set[str] = frozenset()) -> float:  # type: ignore[assignment]
    """The share of new shards that are not among the old ones; an edited sample changes its shard."""
    old = {tuple(shard) for shard in before}
    new = [tuple(shard) for shard in after]
    return sum(shard not in old or bool(edited.intersection(shard)) for shard in new) / len(new)


@pytest.fixture(scope="module")
def corpus() -> tuple[list[str], list[int]]:
    """40,000 samples of log-normal sizes, 160 MB, for about 160 shards of 1 MB."""
    rng = np.random.default_rng(7)
    sizes = np.minimum(np.exp(rng.normal(7.9, 0.9, 40_000)), 200_000).astype(int) // 512 * 512 + 1024
    return names(len(sizes)), sizes.tolist()


def test_an_append_changes_only_the_end(corpus: tuple[list[str], list[int]]) -> None:
    """1 % more samples at the end: the new shards, and those of the last group that was there."""
    keys, sizes = corpus
    more = len(keys) // 100

    before = deal(keys[:-more], sizes[:-more], target=10**6)
    after = deal(keys, sizes, target=10**6)

    assert changed_share(before, after) < 0.01 + 7 / len(after)


@pytest.mark.parametrize("where", range(5, 95, 10))
def test_a_clustered_edit_changes_the_shards_around_it(corpus: tuple[list[str], list[int]], where: int) -> None:
    """1 % of the samples, neighbours in the source, removed: 1.6 shards' worth, and at most eight more that change."""
    keys, sizes = corpus
    start = len(keys) * where // 100
    stop = start + len(keys) // 100

    before = deal(keys, sizes, target=10**6)
    after = deal(keys[:start] + keys[stop:], sizes[:start] + sizes[stop:], target=10**6)

    assert changed_share(before, after) < 0.01 + 8 / len(after)


def test_scattered_edits_change_the_shards_they_hit_and_no_more(corpus: tuple[list[str], list[int]]) -> None:
    """40 samples with other bytes of the same size, anywhere: exactly the shards that hold them."""
    keys, sizes = corpus
    edited = set(random.Random(3).sample(keys, 40))

    before = deal(keys, sizes, target=10**6)
    floor = sum(bool(edited.intersection(shard)) for shard in before) / len(before)

    assert changed_share(before, deal(keys, sizes, target=10**6), edited) == floor


def test_scattered_removals_stay_at_the_floor(corpus: tuple[list[str], list[int]]) -> None:
    """12 samples gone, anywhere: hardly more shards than held them; a sequential layout changes more."""
    keys, sizes = corpus
    gone = set(random.Random(5).sample(range(len(keys)), 12))
    left = [position for position in range(len(keys)) if position not in gone]

    shares = {}
    for layout in ("stable", "sequential"):
        before = deal(keys, sizes, layout, 10**6)
        after = deal([keys[i] for i in left], [sizes[i] for i in left], layout, 10**6)
        shares[layout] = changed_share(before, after)

    held = {keys[i] for i in gone}
    floor = sum(bool(held.intersection(shard)) for shard in deal(keys, sizes, target=10**6)) / 160
    assert shares["stable"] < 1.25 * floor
    assert shares["sequential"] > 1.5 * floor


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"shard_size": "0"}, "shard_size"),
        ({"shard_size": "lots"}, "not a size"),
        ({"layout": "random"}, "not a layout"),
        ({"input": "xml"}, "not a kind of input"),
        ({"key": "dash"}, "not a way to cut names"),
        ({"escape": "base64"}, "not a way to escape"),
        ({"dedupe": "fuzzy"}, "not a way to treat duplicates"),
        ({"on_error": "ignore"}, "not a way to treat records"),
        ({"index": ("mds",)}, "not a reader"),
        ({"index": ("dali", "dali")}, "twice"),
        ({"bundle": 1}, "bundle is 1. It must be a whole number of 2"),
        ({"bundle": True}, "bundle is True. It must be a whole number of 2"),
        ({"max_errors": 0}, "max_errors is 0. It must be"),
        ({"expected_edits": 0}, "expected_edits is 0. It must be"),
        ({"splits": {"train": 0}}, "whole weights"),
        ({"splits": {"train": True}}, "whole weights"),
        ({"splits": {"a/b": 1}}, "cannot name a dataset"),
        ({"splits": {"Train": 1, "dev": 1, "train": 1}}, "splits Train and train differ by case alone"),
        ({"splits": {"Manifest.json": 1}}, "a split cannot be called Manifest.json"),
        ({"splits": {"train.tar": 1}}, "a split cannot be called train.tar"),
        ({"name": ""}, "cannot name a dataset"),
        ({"name": ".."}, "cannot name a dataset"),
    ],
)
def test_settings_that_cannot_be_are_refused(words: dict[str, object], said: str) -> None:
    """When they are made, not when they are used."""
    with pytest.raises(UsageError, match=said):
        PackSettings(**words)  # type: ignore[arg-type]  # what a settings file may hold


@pytest.mark.parametrize("name", ["chat", "chat-2026.11_v2", "0", "a" * 64])
def test_ordinary_names_are_fine(name: str) -> None:
    """Letters, digits, dot, dash and underscore."""
    check_name(name)


def test_the_manifest_records_what_decides_the_layout() -> None:
    """Settings that change no byte (the dataset's name, the kind of input) are not part of it."""
    settings = PackSettings(shard_size="1MiB", name="x", input="jsonl", splits={"a": 1})

    assert settings.to_json() == {
        "algorithm": 1,
        "layout": "stable",
        "shard_bytes": 2**20,
        "key_field": "id",
        "splits": {"a": 1},
    }


def test_a_setting_that_came_later_is_recorded_where_it_decides_bytes() -> None:
    """Those of names, bundles and duplicates are; how errors are treated and whose side files are written is not."""
    later = {"key": "first-dot", "escape": "percent", "bundle": 8, "dedupe": "drop"}
    settings = PackSettings(**later, on_error="skip", max_errors=3, index=("dali",), expected_edits=2)  # type: ignore[arg-type]  # by name

    assert {name: value for name, value in settings.to_json().items() if name not in PackSettings().to_json()} == later
