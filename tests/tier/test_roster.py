"""A pool knows its datasets by their manifests, over restarts, and finds the one that a person means."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import IntegrityError, NotFound, Refused
from datakit.tier.roster import Roster, objects_of
from support.commits import make_commit


def test_what_is_known_and_pinned_is_known_to_the_next_process(tmp_path: Path) -> None:
    """Manifest, places and pin stand on the disk; a place is kept once."""
    manifest = make_commit(tmp_path / "ds", {"a.tar": b"one", "b.tar": b"one"})
    roster = Roster(tmp_path / "pool")
    roster.add(manifest, place="s3://b/ds")
    roster.add(manifest, place="/hot")
    roster.add(manifest, place="s3://b/ds")
    roster.pin(manifest.digest)

    (known,) = Roster(tmp_path / "pool").known()

    assert (known.name, known.places, known.pinned) == ("ds", ("s3://b/ds", "/hot"), True)
    assert [entry.bytes for entry in known.objects.values()] == [3]


def test_a_dataset_is_found_by_name_place_and_digest(tmp_path: Path) -> None:
    """What is known by none of them is not found; what several have is refused with their digests."""
    roster = Roster(tmp_path / "pool")
    one = roster.add(make_commit(tmp_path / "a" / "ds", {"x": b"1"}), place="/cold/one")
    two = roster.add(make_commit(tmp_path / "b" / "ds", {"x": b"2"}))

    found = [roster.find(word) for word in ("/cold/one", "/cold/one/", one.digest, two.digest[:8])]

    assert [each.digest for each in found] == [one.digest, one.digest, one.digest, two.digest]
    with pytest.raises(Refused, match="ds is 2 datasets") as refused:
        roster.find("ds")
    assert one.digest[:12] in str(refused.value)
    with pytest.raises(NotFound, match="knows no dataset other"):
        roster.find("other")
    assert set(objects_of(roster.known())) == {*one.objects, *two.objects}


def test_what_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    """Its pin too; a second time is fine."""
    roster = Roster(tmp_path)
    known = roster.add(make_commit(tmp_path / "ds", {"x": b"1"}), place="/cold")
    roster.pin(known.digest)

    roster.forget(known.digest)
    roster.forget(known.digest)

    assert roster.known() == []
    assert [path for folder in ("datasets", "pins") for path in (tmp_path / folder).iterdir()] == []


def test_a_torn_manifest_is_said_and_a_torn_origin_names_no_place(tmp_path: Path) -> None:
    """Without its manifest nobody knows what a pin protects; without its origin nothing is taken for copied."""
    manifest = make_commit(tmp_path / "ds", {"x": b"1"})
    known = Roster(tmp_path).add(manifest, place="/cold")
    folder = tmp_path / "datasets" / known.digest

    (folder / "origin.json").write_text("{")
    places = Roster(tmp_path).known()[0].places
    (folder / "manifest.json").write_bytes(manifest.to_bytes()[:-20])

    assert places == ()
    with pytest.raises(IntegrityError, match="not JSON"):
        Roster(tmp_path).known()
