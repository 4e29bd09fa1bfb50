"""data/order: laws 1 to 3 of docs/design.md, as arithmetic."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit import InputError, UsageError
from datakit.data.order import Cursor, Geometry, Order, Tail, steps_per_epoch

SIZES = st.integers(1, 3000)
SEEDS = st.integers(-(2**70), 2**70)
EPOCHS = st.integers(0, 2**40)
TAILS = st.sampled_from(get_args(Tail))


@given(size=SIZES, seed=SEEDS, epoch=EPOCHS)
def test_an_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    """Each sample is visited exactly once, for any size, seed and epoch."""
    order = Order(size, digest="d", seed=seed)

    assert sorted(order.span(epoch, 0, size).tolist()) == list(range(size))


@given(size=SIZES, seed=SEEDS, epoch=EPOCHS, data=st.data())
def test_any_span_is_a_piece_of_the_whole(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    """A position's sample does not depend on how positions are asked for."""
    order = Order(size, digest="d", seed=seed)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))

    assert order.span(epoch, start, stop).tolist() == order.span(epoch, 0, size).tolist()[start:stop]
    if start < size:
        assert order.at(epoch, start) == order.span(epoch, 0, size).tolist()[start]


def test_dataset_seed_and_epoch_each_change_the_order() -> None:
    """The order is a function of all three and of nothing else."""
    spans = [
        tuple(Order(500, digest=digest, seed=seed).span(epoch, 0, 500).tolist())
        for digest, seed, epoch in itertools.product("ab", (0, 1, -1), (0, 1, 2))
    ]

    assert len(set(spans)) == len(spans)


def test_the_order_is_the_same_for_ever() -> None:
    """These numbers stand in the states of people's runs; another algorithm needs another ORDER_FORMAT."""
    order = Order(10, digest="d", seed=1)

    assert order.span(0, 0, 10).tolist() == [7, 9, 5, 2, 3, 1, 4, 8, 0, 6]
    assert order.span(1, 0, 10).tolist() == [2, 3, 5, 1, 6, 9, 8, 7, 4, 0]
    assert Order(10**9, digest="d", seed=1).span(7, 10**9 - 3, 10**9).tolist() == [53564318, 731190848, 655958375]


def test_a_billion_samples_cost_no_more_memory_than_ten() -> None:
    """Positions are computed, never listed."""
    peaks = []
    for size in (10, 10**9, 2**62):
        order = Order(size, digest="d", seed=5)
        tracemalloc.start()
        assert 0 <= order.at(3, size - 1) < size
        assert len(set(order.span(3, size // 2, size // 2 + 5).tolist())) == 5
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert max(peaks) < 64 * 1024


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_small_datasets_see_every_order_about_equally_often(size: int) -> None:
    """Over 6000 seeds no permutation of up to 6 samples is missing or favoured (chi-square, 99.99 %)."""
    counts = Counter(tuple(Order(size, digest="d", seed=seed).span(0, 0, size).tolist()) for seed in range(6000))
    permutations = list(itertools.permutations(range(size)))
    expected = 6000 / len(permutations)

    chi_square = sum((counts[permutation] - expected) ** 2 / expected for permutation in permutations)

    # mean df, variance 2 df; 4.5 standard deviations above the mean for the few degrees of freedom there are here
    degrees = len(permutations) - 1
    assert chi_square < degrees + 4.5 * (2 * degrees) ** 0.5 + 6


def test_neighbours_are_separated_as_in_a_uniform_shuffle() -> None:
    """The mean distance of two neighbours of an epoch is n/3, and a sample stays in place about once an epoch."""
    size = 5000
    distances, fixed = 0.0, 0
    for epoch in range(20):
        span = Order(size, digest="d", seed=1).span(epoch, 0, size)
        distances += float(abs(span[1:] - span[:-1]).mean()) / 20
        fixed += int((span == range(size)).sum())

    assert abs(distances / size - 1 / 3) < 0.005
    assert 5 <= fixed <= 45


def test_an_order_of_nothing_is_refused() -> None:
    """There is no epoch without a sample."""
    with pytest.raises(InputError, match="at least one sample"):
        Order(0, digest="d", seed=0)


@pytest.mark.parametrize(("epoch", "start", "stop"), [(0, -1, 2), (0, 3, 2), (0, 0, 11), (-1, 0, 1)])
def test_positions_outside_the_epoch_are_refused(epoch: int, start: int, stop: int) -> None:
    """A position never wraps around in silence."""
    with pytest.raises(UsageError, match="10 samples"):
        Order(10, digest="d", seed=0).span(epoch, start, stop)


@settings(max_examples=200)
@given(size=st.integers(1, 200), world=st.integers(1, 8), batch=st.integers(1, 9), tail=TAILS, cut=st.integers(0, 200))
def test_shares_of_all_ranks_tile_the_rest_of_an_epoch(size: int, world: int, batch: int, tail: Tail, cut: int) -> None:
    """From any cut point, ranks' shares follow each other without gap; what is dropped or repeated is what is said."""
    cut = min(cut, size)
    geometry = Geometry(size, batch, world_size=world, tail=tail)
    steps = geometry.steps_left(cut)

    shares = [
        geometry.share(cut + step * geometry.global_batch, rank=rank) for step in range(steps) for rank in range(world)
    ]

    positions = [position for start, stop in shares for position in range(start, stop)]
    assert positions == list(range(cut, cut + len(positions)))
    assert len(positions) == size - cut - geometry.dropped(cut) + geometry.repeated(cut)
    assert steps == steps_per_epoch(size - cut, global_batch=world * batch, tail=tail)


@given(size=st.integers(1, 60), batch=st.integers(1, 9), tail=TAILS, steps=st.integers(0, 100))
def test_a_cursor_advances_through_epochs_without_skipping_a_step(
    size: int, batch: int, tail: Tail, steps: int
) -> None:
    """After so many steps the cursor stands in the epoch and at the sample that division says."""
    geometry = Geometry(size, batch, tail=tail)
    if geometry.steps_left(0) == 0:
        with pytest.raises(InputError, match="pad or exact"):
            geometry.normal(Cursor())
        return
    cursor = Cursor()

    for _ in range(steps):
        cursor = geometry.after(cursor)

    epoch, step = divmod(steps, geometry.steps_left(0))
    assert cursor == Cursor(epoch, step * batch)


@given(epoch=st.integers(0, 2**60), samples=st.integers(0, 2**60))
def test_a_cursor_is_two_integers_of_json(epoch: int, samples: int) -> None:
    """It goes through JSON unchanged."""
    cursor = Cursor(epoch, samples)

    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


@pytest.mark.parametrize("value", [{}, {"epoch": 1}, {"epoch": -1, "samples": 0}, {"epoch": True, "samples": 1.5}])
def test_what_is_no_cursor_is_refused(value: dict[str, object]) -> None:
    """Missing, negative, fractional and boolean fields are all refused."""
    with pytest.raises(InputError, match="not a cursor"):
        Cursor.from_json(value)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"world_size": 0, "batch_size": 1}, {"batch_size": 1, "tail": "x"}]
)
def test_a_geometry_out_of_range_is_refused(options: dict[str, object]) -> None:
    """Sizes start at 1, tails have names."""
    with pytest.raises(UsageError):
        Geometry(10, **options)  # type: ignore[arg-type]
