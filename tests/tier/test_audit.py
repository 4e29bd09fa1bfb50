"""A damaged object is named to the byte, set aside, and comes again whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.errors import IntegrityError
from datakit.events import Caution, Event
from datakit.tier.audit import audit
from datakit.tier.fill import bring
from support.commits import flip_bit
from support.tiers import cold, know, pool_at, wrong_objects


def test_a_flipped_bit_is_named_set_aside_and_mended(tmp_path: Path) -> None:
    """In the second part of a large object; the object is gone from its name, and the next fetch brings it."""
    dataset = cold(tmp_path / "ds", [PART_BYTES + 100, 50])
    pool = pool_at(tmp_path / "pool", 2 * PART_BYTES + 1000)
    know(pool, dataset)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    flip_bit(pool.path(dataset.digests[0]), PART_BYTES + 7)
    events: list[Event] = []

    dry = audit(pool)
    found = audit(pool, copied=lambda: set(dataset.digests), on_event=events.append)
    fetched = bring(pool, dataset.manifest.members, sources=[dataset.source], copied=lambda: set(dataset.digests))

    (damage,) = found.damage
    assert dry.damage[0].aside is None
    assert damage.file == "ds-0.tar"
    assert f"bytes {PART_BYTES} to {PART_BYTES + 100} have crc32c" in damage.problem
    assert damage.problem.endswith(f"one bit of byte {PART_BYTES + 7} is flipped")
    assert damage.aside is not None
    assert Path(damage.aside).parent == pool.root / "aside"
    assert [type(event) for event in events].count(Caution) == 1
    assert fetched.files == 1
    assert wrong_objects(pool.root) == {}
    assert audit(pool).damage == ()
    with pytest.raises(IntegrityError, match=r"1 object of .* is damaged: ds-0\.tar"):
        found.raise_damage()


def test_quick_looks_at_sizes_alone(tmp_path: Path) -> None:
    """A cut file is found, a flipped bit is not; what is not here is no damage."""
    dataset, other = cold(tmp_path / "ds", [50, 60, 70]), cold(tmp_path / "other", [9], seed=1)
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset, other)
    bring(pool, dataset.manifest.members[:2], sources=[dataset.source], copied=set)
    bring(pool, other.manifest.members, sources=[other.source], copied=set)
    flip_bit(pool.path(dataset.digests[0]), 3)
    pool.path(dataset.digests[1]).write_bytes(b"short")

    found = audit(pool, dataset=pool.roster.find("ds"), quick=True)

    assert [damage.problem for damage in found.damage] == ["has 5 bytes, the manifest says 60"]
    assert (found.objects, found.bytes, found.absent) == (2, 0, 1)


def test_an_object_of_no_dataset_is_measured_by_its_name(tmp_path: Path) -> None:
    """Its sha256 is all that is known of it."""
    dataset = cold(tmp_path / "ds", [50, 60])
    pool = pool_at(tmp_path / "pool", 1000)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    flip_bit(pool.path(dataset.digests[0]), 3)

    (damage,) = audit(pool).damage

    assert damage.file == damage.digest == dataset.digests[0]
    assert "no dataset that is known here names it" in damage.problem


def test_aside_stays_small_however_much_is_damaged(tmp_path: Path) -> None:
    """The newest three, where a colder tier holds what the others were."""
    dataset = cold(tmp_path / "ds", [50 + n for n in range(6)])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, dataset)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    for digest in dataset.digests:
        flip_bit(pool.path(digest), 3)

    found = audit(pool, copied=lambda: set(dataset.digests))

    assert len(found.damage) == 6
    assert len(pool.usage().aside) == 3
