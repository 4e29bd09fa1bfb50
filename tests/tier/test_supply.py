"""One fetch for an object however many want it; what waits goes before what is ahead; no room is said at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from datakit.errors import NoSpace
from datakit.storage.objects import LocalStore
from datakit.tier.fill import Source
from datakit.tier.pool import Pool
from datakit.tier.supply import Flight, Supply
from support.agents import WAIT_S
from support.tiers import Cold, cold, disk_bytes, pool_at


class Gated(LocalStore):
    """A directory whose reads wait for leave, and are counted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()
        self.asked = threading.Semaphore(0)
        self.reads: list[str] = []

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        self.reads.append(key)
        self.asked.release()
        assert self.open.wait(WAIT_S)
        yield from super().stream(key, start=start, stop=stop, etag=etag)


def supply_of(pool: Pool, dataset: Cold, store: LocalStore, ahead: Sequence[str] = ()) -> Supply:
    """A supply that knows one dataset."""
    entries = {entry.sha256: entry for entry in dataset.manifest.members}
    found = Supply(
        pool,
        entry=entries.__getitem__,
        source=lambda digest: Source(store, {digest: entries[digest].name}),
        copied=list,
        prepare=lambda: None,
        ahead=lambda: ahead,
    )
    found.start()
    return found


def end(flight: Flight) -> Flight:
    """The flight, once it has ended."""
    assert flight.done.wait(WAIT_S)
    return flight


def test_all_who_want_an_object_get_one_fetch(tmp_path: Path) -> None:
    """They join it; once it is done, another begins anew and finds it here."""
    dataset = cold(tmp_path / "ds", [50])
    store, pool = Gated(dataset.path), pool_at(tmp_path / "pool", 50)
    supply = supply_of(pool, dataset, store)

    flights = [supply.want(dataset.digests[0]) for _ in range(5)]
    assert supply.coming == dataset.digests
    store.open.set()

    assert len(set(flights)) == 1
    assert end(flights[0]).error is None
    assert end(supply.want(dataset.digests[0])).error is None
    assert store.reads == ["ds-0.tar"]
    assert (supply.fetched_files, supply.fetched_bytes) == (1, 50)


def test_what_is_ahead_comes_while_nobody_waits_and_is_not_asked_for_twice(tmp_path: Path) -> None:
    """What finds no room is left until something changes, and disturbs nobody."""
    dataset = cold(tmp_path / "ds", [50, 60, 120])
    store, pool = Gated(dataset.path), pool_at(tmp_path / "pool", 110)
    store.open.set()
    supply = supply_of(pool, dataset, store, ahead=dataset.digests)
    for _ in range(2):
        assert store.asked.acquire(timeout=WAIT_S)

    assert end(supply.want(dataset.digests[0])).error is None
    assert end(supply.want(dataset.digests[1])).error is None

    assert sorted(store.reads) == ["ds-0.tar", "ds-1.tar"]
    assert disk_bytes(pool.root) == 110


def test_who_finds_no_room_waits_for_what_others_take(tmp_path: Path) -> None:
    """While another object comes that may not stay there; when it has, and there is none, that is the answer."""
    dataset = cold(tmp_path / "ds", [60, 70])
    store, pool = Gated(dataset.path), pool_at(tmp_path / "pool", 100)
    supply = supply_of(pool, dataset, store)
    first = supply.want(dataset.digests[0])
    assert store.asked.acquire(timeout=WAIT_S)
    second = supply.want(dataset.digests[1])
    store.open.set()

    assert end(first).error is None
    error = end(second).error

    assert isinstance(error, NoSpace)
    assert supply.coming == []
    assert store.reads == ["ds-0.tar"]
    with pytest.raises(NoSpace, match="no room for 70 B"):
        raise error


def test_an_error_that_nobody_foresaw_ends_one_fetch(tmp_path: Path) -> None:
    """The next is served by the same threads."""
    dataset = cold(tmp_path / "ds", [60])
    pool = pool_at(tmp_path / "pool", 100)
    supply = supply_of(pool, dataset, LocalStore(dataset.path))

    errors = [end(supply.want("0" * 64)).error for _ in range(9)]

    assert {str(error).partition(":")[0] for error in errors} == {"KeyError"}
    assert end(supply.want(dataset.digests[0])).error is None
