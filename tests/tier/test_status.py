"""What a tier holds can be seen without touching it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datakit.errors import Refused
from datakit.tier.fill import bring
from datakit.tier.pool import Pool
from datakit.tier.status import status
from support.tiers import cold, know, pool_at


def test_how_much_of_each_dataset_is_here(tmp_path: Path) -> None:
    """By objects and bytes, with its pin and its places."""
    dataset = cold(tmp_path / "ds", [50, 60, 70])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)
    bring(pool, dataset.manifest.members[:2], sources=[dataset.source], copied=set)
    pool.roster.pin(dataset.manifest.digest)

    found = status(pool)

    (each,) = found.datasets
    assert (found.budget_bytes, found.used_bytes, found.object_bytes) == (1000, 110, 110)
    assert (each.name, each.objects, each.of_objects, each.bytes, each.of_bytes) == ("ds", 2, 3, 110, 180)
    assert (each.pinned, each.places) == (True, (str(dataset.path),))


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A tier that was not made yet is empty, and what is none is refused."""
    found = status(Pool(tmp_path / "none", budget_bytes=10))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x")

    assert (found.used_bytes, found.datasets) == (0, ())
    assert found.disk_free_bytes > 0
    assert os.listdir(tmp_path) == ["mine"]
    with pytest.raises(Refused, match="is no tier"):
        status(Pool(tmp_path / "mine", budget_bytes=10))
