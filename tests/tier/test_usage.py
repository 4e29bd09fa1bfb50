"""What lies in a pool is told by names and sizes, and counts as it stands on the disk."""

from __future__ import annotations

from pathlib import Path

from datakit.tier.fill import bring
from datakit.tier.usage import Usage, look_at
from support.tiers import cold, disk_bytes, pool_at


def test_nothing_is_where_no_pool_is(tmp_path: Path) -> None:
    """A directory that is not there holds nothing."""
    assert look_at(tmp_path / "none") == Usage({}, (), {})


def test_every_byte_is_counted_once(tmp_path: Path) -> None:
    """Objects, what arrives, what a killed fetch left, and what lies aside."""
    dataset = cold(tmp_path / "ds", [50, 60])
    pool = pool_at(tmp_path / "pool", 1000)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    pool.set_aside(dataset.digests[0])
    with pool.arrival() as dead:
        (dead.path / f".{'a' * 64}.{'a' * 8}.part").write_bytes(b"x" * 7)
    with pool.arrival() as into:
        (into.path / f".{'b' * 64}.{'b' * 8}.part").write_bytes(b"x" * 5)

        usage = look_at(pool.root)

        assert (usage.object_bytes, usage.arriving_bytes, usage.left_bytes(), usage.aside_bytes) == (60, 12, 7, 50)
        assert usage.total_bytes == disk_bytes(pool.root) == 122
