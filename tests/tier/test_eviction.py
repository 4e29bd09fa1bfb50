"""A person gets room by dataset or by bytes, and never at the cost of an only copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import NoSpace, Refused
from datakit.tier.eviction import evict, plan_eviction, plan_room
from datakit.tier.fill import bring
from datakit.tier.origin import Copies
from datakit.tier.pool import Pool
from support.commits import make_commit, noise
from support.tiers import Cold, cold, know, pool_at


def filled(tmp_path: Path) -> tuple[Pool, Cold, Cold]:
    """Two datasets that share one object of 60 bytes."""
    one = cold(tmp_path / "one", [50, 60])
    other = Cold(tmp_path / "other", make_commit(tmp_path / "other", {"a": noise(60, 1), "b": noise(70, 2)}))
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, one, other)
    for each in (one, other):
        bring(pool, each.manifest.members, sources=[each.source], copied=set)
    return pool, one, other


def test_a_dataset_goes_but_what_another_has_too(tmp_path: Path) -> None:
    """And it is forgotten once nothing of it is here."""
    pool, one, other = filled(tmp_path)

    plan = plan_eviction(pool, pool.roster.find("one"), copied=Copies(pool))
    before = set(pool.usage().objects)
    evict(pool, plan)
    plan.raise_kept()
    evict(pool, plan_eviction(pool, pool.roster.find("other"), copied=Copies(pool)))
    evict(pool, plan_eviction(pool, pool.roster.find("one"), copied=Copies(pool)))

    assert len(before) == 3
    assert (plan.drop, plan.bytes, plan.kept_bytes) == ((one.digests[0],), 50, {"shared": 60})
    assert pool.usage().objects.keys() == {other.digests[0]}
    assert [known.name for known in pool.roster.known()] == ["one", "other"]


def test_the_last_dataset_of_an_object_takes_it_along(tmp_path: Path) -> None:
    """Then nothing is known any more."""
    dataset = cold(tmp_path / "ds", [50])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)

    evict(pool, plan_eviction(pool, pool.roster.find("ds"), copied=Copies(pool)))

    assert pool.usage().objects == {}
    assert pool.roster.known() == []


def test_what_the_place_lost_stays(tmp_path: Path) -> None:
    """The rest goes; the error says how much stays, and why."""
    pool, one, _ = filled(tmp_path)
    (one.path / "one-0.tar").unlink()

    plan = plan_eviction(pool, pool.roster.find("one"), copied=Copies(pool))
    evict(pool, plan)

    assert one.digests[0] in pool.usage().objects
    with pytest.raises(Refused, match="as far as it must: 50 B only copy"):
        plan.raise_kept()


def test_pinned_and_read_stay(tmp_path: Path) -> None:
    """Both are said with what to do."""
    pool, one, other = filled(tmp_path)
    pool.roster.pin(one.manifest.digest)

    with pool.lease(other.digests[1]):
        read = plan_eviction(pool, pool.roster.find("other"), copied=Copies(pool))
    pinned = plan_eviction(pool, pool.roster.find("one"), copied=Copies(pool))

    assert read.kept_bytes == {"leased": 70, "pinned": 60}
    assert pinned.drop == ()
    with pytest.raises(Refused) as refused:
        pinned.raise_kept()
    assert refused.value.hint == "Unpin it first: datakit tier unpin cache one"


def test_bytes_are_freed_or_it_is_said_what_is_short(tmp_path: Path) -> None:
    """By the policy's choice; nothing is dropped where it would not do."""
    pool, one, _ = filled(tmp_path)
    pool.roster.pin(one.manifest.digest)

    with pytest.raises(NoSpace, match="it is 30 B short, and holds 110 B pinned besides"):
        plan_room(pool, 100, copied=Copies(pool))
    plan = plan_room(pool, 70, copied=Copies(pool))
    evict(pool, plan)

    assert plan.bytes == 70
    assert len(pool.usage().objects) == 2
    plan.raise_kept()


def test_leftovers_and_damage_go_before_good_objects(tmp_path: Path) -> None:
    """As where a fetch needs the room: a plan by bytes is what that would let go."""
    pool, one, other = filled(tmp_path)
    with pool.arrival() as into:
        (into.path / f".{'f' * 64}.{'f' * 8}.part").write_bytes(b"x" * 30)
    pool.set_aside(one.digests[0])

    plan = plan_room(pool, 81, copied=Copies(pool))
    done = evict(pool, plan)

    assert (plan.other_bytes, plan.left, len(plan.aside), len(plan.drop)) == (80, ("f" * 64,), 1, 1)
    assert done == plan
    assert (pool.usage().left_bytes(), pool.usage().aside_bytes) == (0, 0)
    assert len(pool.usage().objects.keys() & {*one.digests, *other.digests}) == 1


def test_what_is_pinned_or_read_by_the_time_of_the_deed_stays(tmp_path: Path) -> None:
    """What was done is told, not what was planned."""
    pool, one, other = filled(tmp_path)
    plans = [plan_eviction(pool, pool.roster.find(name), copied=Copies(pool)) for name in ("one", "other")]
    pool.roster.pin(one.manifest.digest)

    pinned = evict(pool, plans[0])
    with pool.lease(other.digests[1]):
        read = evict(pool, plans[1])

    assert (plans[0].bytes, pinned.drop, pinned.bytes) == (50, (), 0)
    assert pinned.kept_bytes == {"shared": 60, "pinned": 50}
    assert (read.drop, read.kept_bytes) == ((), {"shared": 60, "leased": 70})
    assert len(pool.usage().objects) == 3


def test_a_dataset_on_its_way_is_not_forgotten(tmp_path: Path) -> None:
    """Else what comes would be of no known dataset, and nobody would know a copy of it."""
    dataset = cold(tmp_path / "ds", [50])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)

    with pool.arrival() as into:
        pool.reserve(into, {dataset.digests[0]: 50}, copied=set)
        evict(pool, plan_eviction(pool, pool.roster.find("ds"), copied=Copies(pool)))
        coming = len(pool.roster.known())
    evict(pool, plan_eviction(pool, pool.roster.find("ds"), copied=Copies(pool)))

    assert (coming, pool.roster.known()) == (1, [])
