"""`datakit tier` as people use it: what is held, filled, pinned, dropped and verified, in sentences and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Answer, datakit
from support.commits import flip_bit, make_commit, noise
from support.faulty import FaultyServer

PARAMS = """
tiers:
  cold: {place: sets}
  hot: {place: shared, budget: 10KiB}
  cache: {place: nvme, budget: 5KiB}
"""


@pytest.fixture
def room(clean_room: Path) -> Path:
    """Two datasets in cold, and settings with all three tiers."""
    make_commit(clean_room / "sets" / "chat" / "train", {"a.tar": noise(3000), "b.tar": noise(200, 1)})
    make_commit(clean_room / "sets" / "code", {"c.tar": noise(2500, 2)})
    (clean_room / "params.yaml").write_text(PARAMS)
    return clean_room


def held(answer: Answer, tier: str) -> dict[str, int]:
    """Objects that are here, by dataset, as `tier status --json` tells."""
    (found,) = (each for each in answer.json["result"] if each["tier"] == tier)
    return {each["name"]: each["objects"] for each in found["datasets"]}


def test_a_dataset_is_fetched_and_shown(room: Path) -> None:
    """A sentence, what it cost, and the state of both tiers; a second time nothing moves."""
    planned = datakit("tier", "fetch", "chat/train", "--dry-run")
    before = sorted(path.name for path in room.iterdir())
    first = datakit("tier", "fetch", "chat/train")
    again = datakit("tier", "fetch", "chat/train")
    shown = datakit("tier", "status")

    assert (planned.code, planned.stdout) == (0, "")
    assert "Would fetch 3.1 KiB of train into cache" in planned.stderr
    assert before == ["params.yaml", "sets"]
    assert first.code == 0
    assert "Fetched 2 files, 3.1 KiB, of train into cache in" in first.stderr
    assert "through hot  2 files" in first.stderr
    assert "cache holds train whole (2 files)" in again.stderr
    assert shown.code == 0
    assert "3.1 KiB of 5.0 KiB used" in shown.stdout
    assert "2/2" in shown.stdout
    assert held(datakit("tier", "status", "--json"), "hot") == {"train": 2}


def test_from_a_bucket_the_requests_are_told(room: Path, faulty: FaultyServer) -> None:
    """As any command that touches a store."""
    datakit("sync", "sets", f"{faulty.url}/sets")
    (room / "params.yaml").write_text(PARAMS.replace("place: sets", f"place: {faulty.url}/sets"))

    answer = datakit("tier", "fetch", "code", "--json").json

    assert answer["ok"]
    assert [charge["requests"]["get"] for charge in answer["requests"]] == [2]
    assert answer["result"]["requests"]["get"] == 2
    assert answer["result"]["fetched_bytes"] == 2500
    assert "manifest" not in answer["result"]


def test_a_second_dataset_takes_the_place_of_the_first_unless_that_is_pinned(room: Path) -> None:
    """Pinned: 5, and who holds the room; unpinned: it goes, since cold has it."""
    datakit("tier", "fetch", "chat/train")
    pinned = datakit("tier", "pin", "cache", "chat/train")
    refused = datakit("tier", "fetch", "code")
    unpinned = datakit("tier", "unpin", "cache", "train")
    fetched = datakit("tier", "fetch", "code")

    assert "Pinned train (" in pinned.stderr
    assert refused.code == 5
    assert "3.1 KiB pinned" in refused.stderr
    assert "Unpinned train (" in unpinned.stderr
    assert fetched.code == 0
    assert held(datakit("tier", "status", "cache", "--json"), "cache")["code"] == 1


def test_a_dataset_can_be_pinned_before_it_comes(room: Path) -> None:
    """It is looked up in cold; a dry run keeps nothing."""
    dry = datakit("tier", "pin", "cache", "code", "--dry-run")
    unmade = not (room / "nvme").exists()
    answer = datakit("tier", "pin", "cache", "code", "--json").json

    assert "Would pin code in" in dry.stderr
    assert unmade
    assert answer["result"]["pinned"] is True
    assert datakit("tier", "status", "cache", "--json").json["result"][0]["datasets"][0]["pinned"] is True
    assert datakit("tier", "pin", "cache", "none").code == 2


def test_eviction_drops_what_cold_holds_and_says_what_stays(room: Path) -> None:
    """By dataset and by bytes; 3 where a part stays because its copy is gone."""
    datakit("tier", "fetch", "chat/train")
    (room / "sets" / "chat" / "train" / "b.tar").unlink()
    for path in (room / "shared" / "objects").rglob("*"):
        if path.is_file():
            path.unlink()

    dry = datakit("tier", "evict", "cache", "train", "--dry-run")
    done = datakit("tier", "evict", "cache", "train")
    short = datakit("tier", "evict", "cache", "--bytes", "1KiB")

    assert dry.code == done.code == 3
    assert "Would drop 1 object, 2.9 KiB" in dry.stderr
    assert "Dropped 1 object, 2.9 KiB" in done.stderr
    assert "stays: 200 B only copy" in done.stderr
    assert short.code == 5
    assert held(datakit("tier", "status", "cache", "--json"), "cache") == {"train": 1}
    assert datakit("tier", "evict", "cache").code == 2


def test_verify_names_damage_and_the_next_fetch_mends_it(room: Path) -> None:
    """4, the byte, and where it lies; a dry run moves nothing."""
    datakit("tier", "fetch", "code")
    (path,) = (path for path in (room / "nvme" / "objects").rglob("*") if path.is_file())
    flip_bit(path, 77)

    dry = datakit("tier", "verify", "cache", "--dry-run")
    found = datakit("tier", "verify", "cache", "code")
    mended = datakit("tier", "fetch", "code")
    whole = datakit("tier", "verify")

    assert dry.code == found.code == 4
    assert "one bit of byte 77 is flipped" in found.stdout
    assert "is damaged and set aside as" in found.stderr
    assert mended.code == 0
    assert (whole.code, whole.stdout.splitlines()[0]) == (0, "cache is whole: 1 object, 2.4 KiB read")


def test_gc_removes_what_nobody_needs(room: Path) -> None:
    """Damage that cold has whole, and objects of no dataset; first as a plan."""
    datakit("tier", "fetch", "code")
    (path,) = (path for path in (room / "nvme" / "objects").rglob("*") if path.is_file())
    flip_bit(path, 77)
    datakit("tier", "verify", "cache")

    dry = datakit("tier", "gc", "--dry-run")
    done = datakit("tier", "gc", "cache")
    again = datakit("tier", "gc", "cache", "--json").json

    assert f"Would remove 1 file, 2.4 KiB, from {room / 'nvme'}" in dry.stderr
    assert f"Removed 1 file, 2.4 KiB, from {room / 'nvme'}" in done.stderr
    assert again["result"][0]["bytes"] == 0


def test_without_tiers_it_is_said_what_to_write(clean_room: Path) -> None:
    """With an example, as wrong usage."""
    answer = datakit("tier", "status")

    assert answer.code == 2
    assert "tiers: {cache: {place: /nvme/datakit, budget: 500GB}}" in answer.stderr
