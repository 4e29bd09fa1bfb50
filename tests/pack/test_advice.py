"""pack/advice: what is foretold of the next change is what the real cut does, and derived sizes have reasons."""

from __future__ import annotations

import itertools
import random
import re
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.data.keys import key_hash
from datakit.data.shard import bundle_bytes
from datakit.pack.advice import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    Change,
    bundling,
    default_reason,
    floor_shards,
    next_changes,
    power,
    release_usd,
    sentence,
    shard_size,
    small_shards,
)
from datakit.pack.cut import Layout, cut, stick
from datakit.plan.storage import StorePrice, table

AWS = table()[0]
SIZE, TARGET = 1000, 100_000


@given(st.integers(1, 5000), st.integers(0, 3000))
def test_the_floor_is_that_of_exact_arithmetic(shards: int, edits: int) -> None:
    """S(1 - (1 - 1/S)^k) by repeated squaring is within 1e-9 of the same in fractions."""
    edits = min(edits, 60)
    exact = shards * (1 - Fraction(shards - 1, shards) ** edits)

    assert floor_shards(shards, edits) == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_a_power_is_a_power(base: float, exponent: int) -> None:
    """To the rounding of twenty multiplications."""
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-6, abs=1e-300)


def test_figures_of_others_are_found_again() -> None:
    """15 and 150 edits in 325 shards: 4.5 % and 37 %; twenty shards an edit re-send 5 % at most."""
    assert floor_shards(325, 15) / 325 == pytest.approx(0.045, abs=0.001)
    assert floor_shards(325, 150) / 325 == pytest.approx(0.37, abs=0.005)
    assert all(floor_shards(20 * k, k) / (20 * k) <= 0.05 + 1e-12 for k in range(1, 200))


class World:
    """Samples of 1000 bytes in shards of 100,000, changed in one of the usual ways."""

    def __init__(self, seed: int, *, samples: int, layout: Layout, sticky: bool) -> None:
        self.draw = random.Random(seed)
        self.layout = layout
        self.sticky = sticky
        self.keys = [f"{seed}-{number}" for number in range(samples)]
        self.versions = dict.fromkeys(self.keys, 0)
        self.before = self.shards(self.keys, None)

    def shards(self, keys: list[str], old: list[list[str]] | None) -> list[list[str]]:
        """The keys of each shard; with an earlier dealing, dealt by that."""
        hashes = np.array([key_hash(key) for key in keys], np.uint64)
        sizes = np.full(len(keys), SIZE, np.int64)
        if old is None:
            dealt = cut(hashes, sizes=sizes, target_bytes=TARGET, layout=self.layout)
        else:
            where = {key: position for position, key in enumerate(keys)}
            dealt = stick(
                [np.array([where[key] for key in shard], np.int64) for shard in old],
                lost=np.zeros(len(old), np.bool_),
                hashes=hashes,
                sizes=sizes,
                target_bytes=TARGET,
                layout=self.layout,
            )
        return [[keys[position] for position in shard] for shard in dealt]

    def changed(self, change: Change) -> int:
        """Shards that the change really makes anew."""
        versions = dict(self.versions)
        keys = list(self.keys)
        if change.kind == "edits":
            versions |= dict.fromkeys(self.draw.sample(keys, change.samples), 1)
        elif change.kind == "append":
            keys += [f"new-{self.draw.random()}" for _ in range(change.samples)]
            versions |= dict.fromkeys(keys[len(self.keys) :], 0)
        else:
            first = self.draw.randrange(len(keys) - change.samples + 1)
            versions |= dict.fromkeys(keys[first : first + change.samples], 1)
        old = {tuple((key, self.versions[key]) for key in shard) for shard in self.before}
        new = self.shards(keys, self.before if self.sticky else None)
        return sum(tuple((key, versions[key]) for key in shard) not in old for shard in new)


@settings(max_examples=12)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(layout, sticky) for layout in get_args(Layout) for sticky in (False, True)]),
    st.integers(1, 40),
)
def test_what_is_foretold_is_what_the_cut_does(seed: int, how: tuple[Layout, bool], edits: int) -> None:
    """Edits of the same size, appends and runs of neighbours, over twelve worlds of 40 shards: the mean number of
    shards that the real cut makes anew is within a fifth and one and a half shards of what is said, or below a bound.
    """
    layout, sticky = how
    worlds = [World(seed + number, samples=4000, layout=layout, sticky=sticky) for number in range(12)]
    sizes = [[(len(shard), len(shard) * SIZE) for shard in world.before] for world in worlds]

    for number in range(3):
        told = [next_changes(one, layout=layout, edits=edits, sticky=sticky)[number] for one in sizes]
        really = [world.changed(change) for world, change in zip(worlds, told, strict=True)]
        mean, said = sum(really) / len(really), sum(change.shards for change in told) / len(told)

        room = 1.5 + said / 5
        assert mean <= said + room, (told[0].kind, mean, said)
        assert told[0].at_most or mean >= said - room, (told[0].kind, mean, said)


def test_bytes_follow_from_the_shards_that_there_are() -> None:
    """A large shard with many samples is hit more often, and counts for more."""
    even = next_changes([(100, 100_000)] * 10, layout="stable", edits=1, sticky=False)[0]
    uneven = next_changes([(910, 910_000)] + [(10, 10_000)] * 9, layout="stable", edits=1, sticky=False)[0]

    assert (even.shards, even.bytes) == (pytest.approx(1), 100_000)
    assert uneven.shards == pytest.approx(1)
    assert uneven.bytes == pytest.approx(0.91 * 910_000 + 0.09 * 10_000)


@pytest.mark.parametrize("layout", get_args(Layout))
def test_more_edits_than_samples_are_all_of_them(layout: Layout) -> None:
    """One shard of one sample changes whole."""
    for change in next_changes([(1, 1536)], layout=layout, edits=16, sticky=False):
        assert change.samples == 1
        assert change.bytes > 0


def test_a_layout_says_what_it_costs() -> None:
    """Sequential speaks of bounds, shuffle's append re-sends all, a parent's append what is new."""
    sizes = [(1000, 2**20)] * 100

    sequential = next_changes(sizes, layout="sequential", edits=4, sticky=False)
    shuffle = next_changes(sizes, layout="shuffle", edits=4, sticky=False)
    sticky = next_changes(sizes, layout="stable", edits=4, sticky=True)

    assert sequential[0].at_most
    assert sequential[0].shards == pytest.approx(81)
    assert shuffle[1].bytes == 101 * 2**20
    assert sticky[1].bytes == 2**20
    assert sentence(sequential, total_bytes=100 * 2**20) == (
        "re-sends, of 100.0 MiB: 4 scattered edits up to 81.0 MiB; 1,000 samples appended about "
        "2.0 MiB; 4 edits of neighbours up to 50.5 MiB"
    )


def test_one_of_a_thing_is_not_several() -> None:
    """Of a dataset of one sample in one shard."""
    said = sentence(next_changes([(1, 2048)], layout="stable", edits=16, sticky=False), total_bytes=2048)

    assert said == (
        "re-sends, of 2.0 KiB: 1 scattered edit about 2.0 KiB; 1 sample appended about 4.0 KiB; "
        "1 edit of neighbours about 2.0 KiB"
    )
    assert "in 1 shard: 1 scattered edit re-sends about" in shard_size(2048, edits=1, price=AWS).reason


def test_very_many_very_small_shards_are_told() -> None:
    """A thousand small ones are fine, and so are many of a mebibyte."""
    assert small_shards(1000, 1000) is None
    assert small_shards(2000, 2000 * 2**20) is None
    assert small_shards(20_000, 20_000 * 1536) == (
        "20,000 shards of 1.5 KiB on average: each is a file to open, and two requests to write and to read"
    )


@pytest.mark.parametrize("edits", [1, 16, 1000])
@pytest.mark.parametrize("total_bytes", [1, 10**8, 2 * 10**10, 10**12, 10**14])
def test_a_derived_size_costs_least_of_its_kind(total_bytes: int, edits: int) -> None:
    """No other power of two within the limits does a release for less."""
    found = shard_size(total_bytes, edits=edits, price=AWS)

    others = [2**n for n in range(SMALLEST_BYTES.bit_length() - 1, LARGEST_BYTES.bit_length())]
    cost = release_usd(total_bytes, found.bytes, edits=edits, price=AWS)
    assert found.bytes in others
    assert all(cost <= release_usd(total_bytes, other, edits=edits, price=AWS) for other in others)
    assert {f"{edits:,}", "aws-s3", "2026-04"} <= set(re.split(r"[ ;]|, ", found.reason))


def test_more_bytes_and_dearer_requests_make_larger_shards() -> None:
    """More edits make smaller ones."""
    free = StorePrice("own", "", "USD", 0.0, 0.0, 0.0, 0.0, "today", "test")
    dear = StorePrice("dear", "", "USD", 0.0, 5.5, 5.5, 0.0, "today", "test")
    by_total = [shard_size(10**power_, edits=16, price=AWS).bytes for power_ in range(8, 15)]
    by_edits = [shard_size(10**11, edits=4**number, price=AWS).bytes for number in range(6)]

    assert by_total == sorted(by_total)
    assert by_total[0] < by_total[-1]
    assert by_edits == sorted(by_edits, reverse=True)
    assert shard_size(10**11, edits=16, price=free).bytes <= shard_size(10**11, edits=16, price=dear).bytes
    assert all(one <= two for one, two in itertools.pairwise(by_total))


def test_the_usual_size_is_not_called_cheap_for_a_small_set() -> None:
    """Sixteen scattered edits hit nearly each of few shards, and a tenth of two hundred."""
    small = default_reason(26 * 2**20, size_bytes=2**26, edits=16)
    large = default_reason(200 * 2**26, size_bytes=2**26, edits=16)

    assert "re-sends much of a set this small, less of it with a smaller --shard-size" in small
    assert "re-sends little" in large
    assert "re-sends much" in default_reason(200 * 2**26, size_bytes=2**26, edits=100)


@pytest.mark.parametrize("length", [20, 200, 400])
def test_what_bundles_would_make_of_lines_is_about_what_they_make(length: int) -> None:
    """Against the very size of a shard of bundles; of lines that fill their blocks, and of few, nothing is said."""
    sizes = np.full(20_000, length)
    payload, lined = int(sizes.sum()), sum(512 + size + -size % 512 for size in sizes.tolist())

    said = bundling(lined, payload_bytes=payload, samples=len(sizes))

    if 2 * payload >= lined:
        assert said is None
    else:
        assert said is not None
        number, unit = said.split()[-2:]
        assert float(number) * {"KiB": 2**10, "MiB": 2**20}[unit] == pytest.approx(bundle_bytes(sizes, 16), rel=0.1)
    assert bundling(lined // 100, payload_bytes=payload // 100, samples=200) is None
