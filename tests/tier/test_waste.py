"""What nobody needs is found and removed, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from datakit.tier.fill import bring
from datakit.tier.pool import Pool
from datakit.tier.waste import OLD_S, find_waste, remove_waste
from support.tiers import Cold, cold, disk_bytes, know, pool_at

NOW_S = 2_000_000_000.0


def leave(pool: Pool, digest: str, size_bytes: int, *, age_s: float) -> None:
    """A part that a fetch has left."""
    with pool.arrival() as into:
        path = into.path / f".{digest}.{digest[:8]}.part"
        path.write_bytes(b"x" * size_bytes)
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def filled(tmp_path: Path) -> tuple[Pool, Cold]:
    dataset = cold(tmp_path / "ds", [50, 60, 70])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    return pool, dataset


def test_a_tidy_pool_has_no_waste(tmp_path: Path) -> None:
    """Nothing is found, nothing removed, no place asked."""
    pool, _ = filled(tmp_path)

    def asked() -> set[str]:
        raise AssertionError

    waste = find_waste(pool, copied=asked, now_s=NOW_S)
    remove_waste(pool, waste)

    assert (waste.left, waste.aside, waste.orphans, waste.bytes) == ((), (), (), 0)
    assert len(pool.usage().objects) == 3


def test_leftovers_go_after_a_day_or_without_a_dataset(tmp_path: Path) -> None:
    """A fresh one of a known dataset is what the same fetch goes on with."""
    pool, dataset = filled(tmp_path)
    fresh, old, _ = dataset.digests
    leave(pool, fresh, 5, age_s=OLD_S - 10)
    leave(pool, old, 6, age_s=OLD_S + 10)
    leave(pool, "f" * 64, 7, age_s=0)

    waste = find_waste(pool, copied=set, now_s=NOW_S)
    remove_waste(pool, waste)

    assert set(waste.left) == {old, "f" * 64}
    assert waste.bytes == 13
    assert pool.usage().left_bytes() == 5


def test_orphans_and_spent_damage_go(tmp_path: Path) -> None:
    """What is held by a reader stays, and so do damaged files and orphans of which no other copy is known (law 8)."""
    pool, dataset = filled(tmp_path)
    one, two, three = dataset.digests
    pool.set_aside(one)
    pool.set_aside(two)
    pool.roster.forget(dataset.manifest.digest)
    other = cold(tmp_path / "other", [80, 90], seed=3)
    bring(pool, other.manifest.members, sources=[other.source], copied=set)
    orphan, only = other.digests

    with pool.lease(three):
        waste = find_waste(pool, copied=lambda: {two, orphan}, now_s=NOW_S)
        remove_waste(pool, waste)

    assert (waste.orphans, waste.kept_orphans) == ((orphan,), (only,))
    assert [name.partition(".")[0] for name in waste.aside] == [two]
    assert waste.kept_aside == 1
    assert set(pool.usage().objects) == {three, only}
    assert disk_bytes(pool.root) == 50 + 70 + 90


def test_an_orphan_that_is_known_again_stays(tmp_path: Path) -> None:
    """A fetch that began between plan and deed has said what it is for."""
    pool, dataset = filled(tmp_path)
    pool.roster.forget(dataset.manifest.digest)
    waste = find_waste(pool, copied=lambda: dataset.digests, now_s=NOW_S)
    know(pool, dataset)

    remove_waste(pool, waste)

    assert len(waste.orphans) == len(pool.usage().objects) == 3


def test_the_plan_changes_nothing_and_knows_the_dead(tmp_path: Path) -> None:
    """What a killed fetch has left is in it before anybody has looked after it; the deed removes it."""
    pool, _ = filled(tmp_path)
    with pool.arrival() as into:
        killed = into.path.with_name(
            into.path.name.replace(f"-{os.getpid()}-", "-4194305-")
        )  # above the largest number
        part = into.path / f".{'f' * 64}.{'f' * 8}.part"
        part.write_bytes(b"x" * 7)
        into.path.rename(killed)
    before = sorted(pool.root.rglob("*"))

    waste = find_waste(pool, copied=set, now_s=NOW_S)
    after = sorted(pool.root.rglob("*"))
    remove_waste(pool, waste)

    assert (waste.left, waste.bytes) == (("f" * 64,), 7)
    assert before == after
    assert pool.usage().total_bytes == 50 + 60 + 70
    assert not any((pool.root / "arriving").iterdir())


def test_a_pool_that_was_not_made_stays_so(tmp_path: Path) -> None:
    """Looking for waste must not leave what would be refused as no tier."""
    pool = Pool(tmp_path / "none", budget_bytes=10)

    waste = find_waste(pool, copied=set, now_s=NOW_S)
    remove_waste(pool, waste)

    assert waste.bytes == 0
    assert not pool.root.exists()
