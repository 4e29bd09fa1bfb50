"""A colder place holds what its manifest names and its files show, as it says now, and each is asked once."""

from __future__ import annotations

from pathlib import Path

from datakit.events import Caution, Event
from datakit.storage.sync import sync
from datakit.tier.fill import bring
from datakit.tier.origin import Copies
from support.commits import make_commit
from support.faulty import Fault, FaultyServer
from support.tiers import cold, know, pool_at


def test_a_local_commit_holds_what_lies_there_in_its_size(tmp_path: Path) -> None:
    """A member that is gone or cut is no copy, and neither is a place that holds another commit by now."""
    dataset = cold(tmp_path / "ds", [50, 60, 70])
    pool = pool_at(tmp_path / "pool", 0)
    know(pool, dataset)
    (dataset.path / "ds-0.tar").unlink()
    (dataset.path / "ds-1.tar").write_bytes(b"short")

    held = Copies(pool)()
    dataset.path.rename(tmp_path / "moved")
    gone = Copies(pool)()
    make_commit(dataset.path, {"ds-2.tar": b"x" * 70})
    other = Copies(pool)()

    assert held == {dataset.digests[2]}
    assert gone == set()
    assert not other & set(dataset.digests)


def test_a_store_is_asked_by_one_get_and_one_list(faulty: FaultyServer, tmp_path: Path) -> None:
    """However often it is asked for, and whatever several datasets lie there."""
    dataset = cold(tmp_path / "ds", [50, 60])
    sync(dataset.path, f"{faulty.url}/ds")
    pool = pool_at(tmp_path / "pool", 0)
    pool.roster.add(dataset.manifest, place=f"{faulty.url}/ds")
    del faulty.objects["ds/ds-0.tar"]
    faulty.log.clear()
    copies = Copies(pool)

    held = copies() and copies()

    assert held == {dataset.digests[1]}
    assert [method for method, _, _ in faulty.log] == ["GET", "GET"]
    assert str(copies.requests) == "1 GET, 1 LIST"


def test_a_place_that_cannot_be_asked_holds_nothing_and_is_said(faulty: FaultyServer, tmp_path: Path) -> None:
    """So what only it may hold stays."""
    dataset = cold(tmp_path / "ds", [50])
    pool = pool_at(tmp_path / "pool", 0)
    pool.roster.add(dataset.manifest, place=f"{faulty.url}/ds")
    faulty.faults.append(Fault("denied", times=9))
    events: list[Event] = []

    held = Copies(pool, on_event=events.append)()

    assert held == set()
    (said,) = events
    assert isinstance(said, Caution)
    assert f"{faulty.url}/ds cannot be asked, so what only it may hold stays here" in said.message


def test_a_colder_tier_holds_its_objects(tmp_path: Path) -> None:
    """By their names and sizes; a pool is no copy of itself."""
    dataset = cold(tmp_path / "ds", [50, 60])
    hot, cache = pool_at(tmp_path / "hot", 100), pool_at(tmp_path / "cache", 0)
    bring(hot, dataset.manifest.members[:1], sources=[dataset.source], copied=set)
    for pool in (hot, cache):
        pool.roster.add(dataset.manifest, place=str(hot.root))

    assert Copies(cache)() == {dataset.digests[0]}
    assert Copies(hot)() == set()


def test_a_tier_under_another_name_is_no_copy_of_itself(tmp_path: Path) -> None:
    """A link to the pool's own directory, or two tiers that the settings put into one."""
    dataset = cold(tmp_path / "ds", [50])
    pool = pool_at(tmp_path / "cache", 100)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    pool.roster.add(dataset.manifest, place=str(tmp_path / "link"))

    assert Copies(pool)() == set()


def test_a_colder_tier_holds_what_no_dataset_is_known_of_too(tmp_path: Path) -> None:
    """An object is known by its bytes: what a forgotten dataset has left may go where hot has it."""
    known, forgotten = cold(tmp_path / "ds", [50]), cold(tmp_path / "old", [60], seed=1)
    hot, cache = pool_at(tmp_path / "hot", 200), pool_at(tmp_path / "cache", 200)
    cache.roster.add(known.manifest, place=str(hot.root))
    for pool in (hot, cache):
        bring(pool, forgotten.manifest.members, sources=[forgotten.source], copied=set)

    assert Copies(cache)() == set(forgotten.digests)
