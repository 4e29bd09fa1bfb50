"""What is fetched ahead is what comes next, within its bytes; what the forecast says comes true."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from datakit.tier.course import Course, Rate, merged, next_uses

orders = st.lists(st.sampled_from("abcdef"), max_size=12)


def one(_digest: str) -> int:
    return 1


@given(order=orders, reached=st.lists(st.sampled_from("abcdefx")))
def test_a_reader_is_followed_along_its_course(order: list[str], reached: list[str]) -> None:
    """Each shard it has moves it behind that shard's next place, and what it never announced does not."""
    course, rest = Course(order), list(order)

    for digest in reached:
        on_course = digest in rest
        if on_course:
            rest = rest[rest.index(digest) + 1 :]
        assert course.reach(digest) == on_course

    assert list(course.digests[course.position :]) == rest
    assert course.next_uses() == {digest: rest.index(digest) for digest in rest}


@given(orders=st.lists(orders, min_size=1, max_size=3), window=st.integers(0, 8))
def test_what_is_fetched_ahead_fits_and_is_nearest(orders: list[list[str]], window: int) -> None:
    """Each shard once, no more than the bytes allow, and of each reader the next ones."""
    ahead = merged(map(Course, orders), window, one)

    assert len(set(ahead)) == len(ahead) <= window
    for order in orders:
        wanted = list(dict.fromkeys(order))
        own = [digest for digest in wanted if digest in ahead]
        assert set(wanted[: min(len(wanted), window // len(orders))]) <= set(own)


def test_a_large_shard_ends_what_is_fetched_ahead() -> None:
    """Nothing behind it is fetched before it."""
    sizes = {"a": 2, "b": 9, "c": 1}

    assert Course("abc").within(5, sizes.__getitem__) == ["a"]


def test_the_nearest_use_of_several_readers_counts() -> None:
    """Each from where it is."""
    first, second = Course("abc"), Course("cba")
    first.reach("b")

    assert next_uses([first, second]) == {"c": 0, "b": 1, "a": 2}


def test_steps_move_a_reader() -> None:
    """What is wanted at a step is still before it at its beginning."""
    course = Course("abc", steps=[0, 4, 4])

    course.reach_step(4)

    assert course.position == 1
    course.reach_step(5)
    assert course.position == 3


def simulated(order: Sequence[str], here: set[str], use_s: float, fetch_s: float) -> int | None:
    """Position of the first wait, by playing both sides shard by shard: each shard is one byte."""
    missing = [digest for digest in dict.fromkeys(order) if digest not in here]
    ready_s = {digest: (place + 1) * fetch_s for place, digest in enumerate(missing)}
    now_s = 0.0
    for place, digest in enumerate(order):
        if ready_s.get(digest, 0.0) > now_s:
            return place
        now_s += use_s
    return None


@given(seed=st.integers(0, 10**6), use=st.integers(1, 8), fetch=st.integers(1, 8))
def test_the_forecast_is_what_happens(seed: int, use: int, fetch: int) -> None:
    """Against a simulation of fetches one after another and a reader that goes on at its rate."""
    draw = random.Random(seed)
    order = draw.sample("abcdefghijkl", 12)
    here = set(draw.sample(order, draw.randrange(13)))
    course = Course(order)

    said = course.starves_at(here=here.__contains__, size_of=one, use_rate=1 / use, fetch_rate=1 / fetch)

    assert said == simulated(order, here, use, fetch)


def test_a_reader_that_takes_nothing_never_starves() -> None:
    """It is not known yet how fast it is; where nothing comes at all, it ends at the first that is missing."""
    course = Course("ab", steps=[0, 7])
    here = {"a"}.__contains__

    assert course.starves_at(here=here, size_of=one, use_rate=0.0, fetch_rate=0.0) is None
    assert course.starves_at(here=here, size_of=one, use_rate=1.0, fetch_rate=0.0) == 7


def test_a_rate_is_that_of_the_last_minute() -> None:
    """What is older is forgotten; before a minute has passed it is over the time there was."""
    rate = Rate(100.0)
    assert rate.bytes_per_s(100.0) == 0.0

    rate.add(50, 105.0)
    assert rate.bytes_per_s(110.0) == 5.0
    rate.add(120, 170.0)

    assert rate.bytes_per_s(170.0) == 2.0
    assert rate.bytes_per_s(231.0) == 0.0
