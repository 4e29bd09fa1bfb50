"""A dataset comes from cold into the cache, through hot where that has room, with the requests counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import LimitExceeded, NoSpace, NotFound
from datakit.events import Event, Note
from datakit.storage.limits import Limits
from datakit.storage.moves import SyncSettings
from datakit.storage.sync import sync
from datakit.tier.audit import audit
from datakit.tier.fetch import plan_fetch, run_fetch
from datakit.tier.tiers import TierOptions, Tiers
from support.commits import flip_bit
from support.faulty import FaultyServer
from support.tiers import cold, disk_bytes, know, wrong_objects


def tiers(tmp_path: Path, *, place: str, cache: int = 1000, hot: int | None = 1000) -> Tiers:
    options = {"cold": TierOptions(place), "cache": TierOptions(str(tmp_path / "cache"), cache)}
    return Tiers(options if hot is None else {**options, "hot": TierOptions(str(tmp_path / "hot"), hot)})


def test_a_dataset_comes_from_a_bucket_through_hot(faulty: FaultyServer, tmp_path: Path) -> None:
    """One request for the manifest and one an object; the next machine reads hot alone, and asks for the manifest."""
    dataset = cold(tmp_path / "ds", [50, 60])
    sync(dataset.path, f"{faulty.url}/sets/ds")
    faulty.log.clear()
    here = tiers(tmp_path, place=f"{faulty.url}/sets")

    plan = plan_fetch("ds", here)
    first = run_fetch(plan)
    there = tiers(tmp_path / "next", place=f"{faulty.url}/sets", hot=None)
    there._options = {**there._options, "hot": TierOptions(str(tmp_path / "hot"), 1000)}
    second_plan = plan_fetch("ds", there)
    second = run_fetch(second_plan)

    assert (plan.cold_bytes, plan.hot_bytes, plan.fills_hot) == (110, 0, True)
    assert (first.fetched_files, first.fetched_bytes, first.hot_files) == (2, 110, 2)
    assert str(first.requests) == "3 GET"
    assert (second_plan.cold_bytes, second_plan.hot_bytes, second_plan.fills_hot) == (0, 110, False)
    assert (second.fetched_files, str(second.requests)) == (2, "1 GET")
    assert len(faulty.log) == 4
    for pool in (*here.pools(), there.pool("cache")):
        assert wrong_objects(pool.root) == {}
        assert disk_bytes(pool.root) == 110
    assert here.pool("cache").roster.known()[0].places == (f"{faulty.url}/sets/ds", str(tmp_path / "hot"))


def test_what_is_whole_costs_one_look(tmp_path: Path) -> None:
    """Nothing moves a second time."""
    dataset = cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"))
    run_fetch(plan_fetch("ds", here))

    plan = plan_fetch(str(dataset.path), here)
    result = run_fetch(plan)

    assert plan.here_bytes == plan.bytes == 110
    assert (result.fetched_files, result.hot_files, result.files) == (0, 0, 2)


def test_planning_makes_nothing(tmp_path: Path) -> None:
    """No directory, no promise."""
    cold(tmp_path / "sets" / "ds", [50, 60])

    plan_fetch("ds", tiers(tmp_path, place=str(tmp_path / "sets")))

    assert [path.name for path in tmp_path.iterdir()] == ["sets"]


@pytest.mark.parametrize("hot", [None, 109])
def test_a_hot_tier_without_room_is_passed_by(tmp_path: Path, hot: int | None) -> None:
    """The cache is filled from cold alone."""
    cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), hot=hot)

    result = run_fetch(plan_fetch("ds", here))

    assert (result.fetched_files, result.hot_files) == (2, 0)


def test_room_that_is_gone_by_then_is_said(tmp_path: Path) -> None:
    """Another fills hot between plan and deed; the fetch goes on."""
    cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"))
    plan = plan_fetch("ds", here)
    assert plan.hot is not None
    plan.hot.open()
    events: list[Event] = []

    with plan.hot.arrival() as into:
        plan.hot.reserve(into, {"a" * 64: 900}, copied=set)
        result = run_fetch(plan, on_event=events.append)

    assert (result.fetched_files, result.hot_files) == (2, 0)
    assert any(isinstance(event, Note) and event.message.startswith("hot is passed by") for event in events)


def test_what_does_not_fit_moves_nothing(tmp_path: Path) -> None:
    """Neither into the cache nor into hot, and nothing is dropped for it."""
    old, _ = cold(tmp_path / "sets" / "old", [40], seed=1), cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), cache=109)
    run_fetch(plan_fetch("old", here))

    with pytest.raises(NoSpace, match="no room for 110 B in its budget of 109 B"):
        plan_fetch("ds", here)

    assert set(here.pool("cache").usage().objects) == set(old.digests)
    assert set(here.pool("hot").usage().objects) == set(old.digests)


def test_an_older_dataset_makes_room_while_cold_holds_it(tmp_path: Path) -> None:
    """The plan says how much is dropped; without its copies in the colder tiers it stays."""
    old, new = cold(tmp_path / "sets" / "old", [60], seed=1), cold(tmp_path / "sets" / "ds", [50])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), cache=100, hot=None)
    run_fetch(plan_fetch("old", here))
    (old.path / "old-0.tar").rename(tmp_path / "away")

    with pytest.raises(NoSpace, match="60 B only copy"):
        plan_fetch("ds", here)
    (tmp_path / "away").rename(old.path / "old-0.tar")
    plan = plan_fetch("ds", here)
    run_fetch(plan)

    assert plan.drop_bytes == 60
    assert set(here.pool("cache").usage().objects) == set(new.digests)


def test_damage_in_hot_is_passed_by_and_set_aside(tmp_path: Path) -> None:
    """The cache gets the right bytes from cold; hot no longer offers the wrong ones."""
    dataset = cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"))
    run_fetch(plan_fetch("ds", here))
    hot, cache = here.pool("hot"), here.pool("cache")
    flip_bit(hot.path(dataset.digests[0]), 5)
    for digest in dataset.digests:
        cache.path(digest).unlink()

    result = run_fetch(plan_fetch("ds", here))

    assert result.fetched_files == 2
    assert wrong_objects(cache.root) == wrong_objects(hot.root) == {}
    assert [name.partition(".")[0] for name in hot.usage().aside] == [dataset.digests[0]]


def test_a_pinned_dataset_keeps_its_place_while_others_stream_by(tmp_path: Path) -> None:
    """Two others come and go in what is left."""
    pinned = cold(tmp_path / "sets" / "a", [60], seed=1)
    for number, name in enumerate("bc"):
        cold(tmp_path / "sets" / name, [40], seed=2 + number)
    here = tiers(tmp_path, place=str(tmp_path / "sets"), cache=100, hot=None)
    cache = here.pool("cache").open()
    know(cache, pinned)
    cache.roster.pin(pinned.manifest.digest)

    for name in ("a", "b", "c", "b"):
        run_fetch(plan_fetch(name, here))

    assert len(cache.usage().objects) == 2
    assert pinned.digests[0] in cache.usage().objects


def test_no_dataset_there_is_said_with_what_is(tmp_path: Path, faulty: FaultyServer) -> None:
    """In a bucket and in a directory."""
    dataset = cold(tmp_path / "sets" / "chat" / "train", [50])
    sync(dataset.path, f"{faulty.url}/sets/chat/train")

    for place in (str(tmp_path / "sets"), f"{faulty.url}/sets"):
        with pytest.raises(NotFound, match=r"chat has no manifest\.json") as found:
            plan_fetch("chat", tiers(tmp_path, place=place))
        assert "chat/train" in str(found.value.hint)


def test_what_another_is_bringing_needs_no_room_of_its_own(tmp_path: Path) -> None:
    """Two who fetch the same dataset into a cache of its size: the second waits, and is not refused."""
    dataset = cold(tmp_path / "sets" / "ds", [50, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), cache=110, hot=None)
    cache = here.pool("cache").open()

    with cache.arrival() as other:
        cache.reserve(other, {entry.sha256: entry.bytes for entry in dataset.manifest.members}, copied=set)
        plan = plan_fetch("ds", here)

    assert (plan.cold_bytes, plan.drop_bytes) == (110, 0)
    assert run_fetch(plan).fetched_files == 2


def test_an_empty_member_is_fetched_too(tmp_path: Path) -> None:
    """It takes no room, and stands as any other."""
    cold(tmp_path / "sets" / "ds", [0, 60])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), cache=60, hot=60)

    result = run_fetch(plan_fetch("ds", here))

    assert (result.fetched_files, result.hot_files, result.bytes) == (2, 2, 60)
    assert audit(here.pool("cache")).damage == ()


def test_a_dataset_that_was_forgotten_on_the_way_is_known_in_the_end(tmp_path: Path) -> None:
    """Otherwise its objects would be of no dataset, and nobody could know of a copy."""
    dataset = cold(tmp_path / "sets" / "ds", [50])
    here = tiers(tmp_path, place=str(tmp_path / "sets"), hot=None)
    cache = here.pool("cache")

    def forget(event: Event) -> None:
        cache.roster.forget(dataset.manifest.digest)

    run_fetch(plan_fetch("ds", here), on_event=forget)

    assert [known.name for known in cache.roster.known()] == ["ds"]


class Bounded(SyncSettings):
    """Settings that allow so many requests; rates are limits of the same kind."""

    def limits(self, *, max_requests: int | None = None, max_cost: float | None = None) -> Limits:
        return Limits(max_requests=2)


def test_the_limits_of_the_settings_stand_before_the_source(faulty: FaultyServer, tmp_path: Path) -> None:
    """The manifest is one request, and of two objects only the first is asked for."""
    dataset = cold(tmp_path / "ds", [50, 60])
    sync(dataset.path, f"{faulty.url}/sets/ds")
    here = tiers(tmp_path, place=f"{faulty.url}/sets", hot=None)

    plan = plan_fetch("ds", here, settings=Bounded(concurrency=1))
    with pytest.raises(LimitExceeded):
        run_fetch(plan)

    assert here.pool("cache").usage().object_bytes in (50, 60)
