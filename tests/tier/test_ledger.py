"""A lease is one of memory and one on disk; the next agent holds what living readers hold until they come back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datakit.errors import NoSpace
from datakit.storage import disk
from datakit.tier.arrival import start_of
from datakit.tier.ledger import Ledger, holder_of, pid_of
from datakit.tier.pool import Pool
from support.process import kill, start_code
from support.tiers import cold, know, pool_at

ME = "00000001"


def filled(tmp_path: Path) -> tuple[Pool, list[str]]:
    """A pool with two objects of 50 bytes, both copied."""
    dataset = cold(tmp_path / "ds", [50, 50])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)
    for entry in dataset.manifest.members:
        disk.make_dirs(pool.path(entry.sha256).parent)
        pool.path(entry.sha256).write_bytes((dataset.path / entry.name).read_bytes())
    return pool, dataset.digests


def test_what_is_held_once_for_each_take_is_dropped_after_the_last(tmp_path: Path) -> None:
    """And its record goes with it."""
    pool, (one, _) = filled(tmp_path)
    ledger, me = Ledger(pool), holder_of(os.getpid(), ME)
    ledger.take(me, one)
    ledger.take(me, one)

    ledger.give_back(me, one)
    assert not pool.drop(one)
    ledger.give_back(me, one)
    ledger.give_back(me, one)

    assert os.listdir(pool.root / "leases") == []
    assert pool.drop(one)


def test_a_new_ledger_holds_what_living_readers_held(tmp_path: Path) -> None:
    """Until they have come back by a connection of another name, and taken what they still have."""
    pool, (one, two) = filled(tmp_path)
    before, after = holder_of(os.getpid(), ME), holder_of(os.getpid(), "00000002")
    for digest in (one, two):
        Ledger(pool).take(before, digest)
    later = Pool(pool.root, budget_bytes=1000).open()
    ledger = Ledger(later)

    ledger.inherit()
    assert not later.drop(one)
    assert sorted(ledger.held()[before]) == sorted((one, two))
    ledger.take(after, one)
    ledger.end(before)

    assert not later.drop(one)
    assert later.drop(two)
    assert pid_of(after) == os.getpid()
    ledger.end(after)
    assert os.listdir(pool.root / "leases") == []


def test_what_a_dead_reader_held_goes_when_it_is_looked_at(tmp_path: Path) -> None:
    """Also when it dies later; a process of the same number that began later is another."""
    pool, (one, two) = filled(tmp_path)
    process = start_code("print('x', flush=True); input()")
    living = holder_of(process.pid, ME)
    Ledger(pool).take(living, one)
    Ledger(pool).take(living.replace(f"-{start_of(process.pid)}-", "-1-"), two)
    (pool.root / "leases" / "stray").write_bytes(b"")
    ledger = Ledger(pool)

    ledger.inherit()
    assert list(ledger.held()) == [living]
    kill(process)
    ledger.sweep()

    assert ledger.held() == {}
    assert os.listdir(pool.root / "leases") == ["stray"]


def test_a_reader_that_the_system_hides_keeps_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid another user's process cannot be read; its death is told all the same."""
    pool, (one, _) = filled(tmp_path)
    process = start_code("print('x', flush=True); input()")
    Ledger(pool).take(holder_of(process.pid, ME), one)
    monkeypatch.setattr("datakit.tier.arrival._fields", lambda _pid: [])
    ledger = Ledger(pool)

    ledger.inherit()
    kept = list(ledger.held())
    kill(process)
    ledger.sweep()

    assert len(kept) == 1
    assert ledger.held() == {}


def test_a_full_disk_leaves_a_lease_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds all the same."""
    pool, (one, _) = filled(tmp_path)
    ledger, me = Ledger(pool), holder_of(os.getpid(), ME)

    def full(_path: Path) -> None:
        raise NoSpace("full", hint="x")

    monkeypatch.setattr(disk, "make_dirs", full)
    ledger.take(me, one)

    assert not pool.drop(one)
    ledger.give_back(me, one)
    assert pool.drop(one)
