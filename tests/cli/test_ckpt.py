"""`datakit ckpt pull` says before it fetches, and fetches what it said."""

from __future__ import annotations

from pathlib import Path

from datakit.storage.commit import commit, verify_commit
from support.cli import datakit


def keep_checkpoints(place: Path, *steps: int) -> None:
    """Commit small checkpoints of these steps at a place."""
    for step in steps:
        name = f"step-{step:08d}"
        with commit(place / name, kind="checkpoint", name=name) as staging:
            staging.write("state.json", b'{"step": %d}' % step)


def test_a_dry_pull_names_what_a_real_one_then_fetches(clean_room: Path) -> None:
    """--dry-run lists what is newer than here and moves nothing; without it the newest comes, verified."""
    keep_checkpoints(clean_room / "cold", 10, 20, 30)
    keep_checkpoints(clean_room / "runs" / "first" / "checkpoints", 10)

    dry = datakit("ckpt", "pull", "runs/first", "--from", "cold", "--dry-run", "--json")
    before = sorted(path.name for path in (clean_room / "runs/first/checkpoints").iterdir())
    real = datakit("ckpt", "pull", "runs/first", "--from", "cold", "--json")

    assert dry.json["result"]["newer"] == ["step-00000030", "step-00000020"]
    assert dry.stderr == "Would fetch step-00000030 from cold\n"
    assert before == ["step-00000010"]
    assert real.json["result"]["pulled"] == "step-00000030"
    assert verify_commit(clean_room / "runs/first/checkpoints/step-00000030").kind == "checkpoint"


def test_a_pull_of_nothing_newer_says_so(clean_room: Path) -> None:
    """What is here already is not fetched again."""
    keep_checkpoints(clean_room / "cold", 10)
    keep_checkpoints(clean_room / "runs" / "first" / "checkpoints", 10)

    dry = datakit("ckpt", "pull", "runs/first", "--from", "cold", "--dry-run")
    real = datakit("ckpt", "pull", "runs/first", "--from", "cold")

    assert (dry.code, dry.stderr) == (real.code, real.stderr) == (0, "cold holds nothing newer\n")


def test_a_damaged_newest_is_passed_over_with_the_reason(clean_room: Path) -> None:
    """The next older one that verifies comes instead, and the damage is told as a caution."""
    keep_checkpoints(clean_room / "cold", 10, 20)
    (clean_room / "cold" / "step-00000020" / "state.json").write_bytes(b'{"step": 21}')
    keep_checkpoints(clean_room / "runs" / "first" / "checkpoints", 5)

    answer = datakit("ckpt", "pull", "runs/first", "--from", "cold", "--json")

    assert answer.json["result"]["pulled"] == "step-00000010"
    assert "cold/step-00000020 is not valid and is passed over" in answer.json["cautions"][0]["message"]
