"""`datakit ckpt pull` says before it fetches, and fetches what it said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.storage.commit import commit, read_manifest, verify_commit
from datakit.storage.copies import write_state
from datakit.storage.disk import exclusive
from datakit.train.shelf import LOCK_NAME
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


def test_a_pull_from_where_nothing_is_is_an_error(clean_room: Path) -> None:
    """A mistyped URL is not a run without news."""
    (clean_room / "empty").mkdir()

    for place in ("empty", "none"):
        for more in ((), ("--dry-run",)):
            answer = datakit("ckpt", "pull", "runs/first", "--from", place, *more)
            assert (answer.code, answer.stderr.splitlines()[0]) == (2, f"error: no checkpoint at {place}")
    assert not (clean_room / "runs").exists()


@pytest.mark.parametrize("words", [("pull", "runs/first", "--from", "cold"), ("prune", "runs/first", "--keep", "1")])
def test_nothing_is_moved_under_a_training(clean_room: Path, words: tuple[str, ...]) -> None:
    """While the run's lock is held, checkpoints neither come nor go."""
    run = clean_room / "runs" / "first"
    keep_checkpoints(clean_room / "cold", 30)
    keep_checkpoints(run / "checkpoints", 10, 20)

    with exclusive(run / LOCK_NAME, purpose="training"):
        answer = datakit("ckpt", *words)

    assert answer.code == 3
    assert "training in runs/first" in answer.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize(
    ("run", "data", "code"), [("first", "d1", 0), ("second", "d1", 3), ("first", "d2", 3)], ids=["own", "run", "data"]
)
def test_a_checkpoint_of_another_run_is_refused(clean_room: Path, run: str, data: str, code: int) -> None:
    """It would be continued in silence, or end the training that lies here; nothing of it stays."""
    here = clean_room / "runs" / "first"
    here.mkdir(parents=True)
    known = {"data": {"layout_digest": "d1"}, "base_model": {"digest": "m"}}
    (here / "run.json").write_text(json.dumps({"name": "first", "identity": known}))
    made = {"schema": 1, "run": run, "data": {"layout_digest": data}, "base_model": {"digest": "m"}}
    with commit(clean_room / "cold" / "step-00000010", kind="checkpoint", name="step-00000010") as staging:
        staging.write("lineage.json", json.dumps(made).encode())

    answer = datakit("ckpt", "pull", "runs/first", "--from", "cold")

    assert answer.code == code, answer.stderr
    assert ("the checkpoint is of another run" in answer.stderr) == (code == 3)
    kept = [path.name for path in (here / "checkpoints").iterdir()]
    assert kept == ([] if code else ["step-00000010"])


@pytest.mark.parametrize("asked", ["where they were sent", "--from"])
def test_prune_asks_the_store_before_it_drops(clean_room: Path, asked: str) -> None:
    """A copy that was verified and is gone since is no reason to drop the last one; it is said."""
    run, cold = clean_room / "runs" / "first", clean_room / "cold"
    keep_checkpoints(run / "checkpoints", 10, 20, 30)
    keep_checkpoints(cold, 10, 20, 30)
    (run / "write-back").mkdir()
    for path in sorted((run / "checkpoints").iterdir()):
        about = {"manifest_digest": read_manifest(path).digest}
        dest = f"{cold}/{path.name}" if asked != "--from" else f"/nowhere/{path.name}"
        write_state(run / "write-back" / f"{path.name}.json", path=str(path), dest=dest, state="verified", **about)
    (cold / "step-00000020" / "state.json").unlink()
    more = ("--from", cold) if asked == "--from" else ()

    dry = datakit("ckpt", "prune", run, "--keep", 1, *more, "--dry-run", "--json")
    real = datakit("ckpt", "prune", run, "--keep", 1, *more, "--json")

    assert dry.json["result"]["dropped"] == real.json["result"]["dropped"] == ["step-00000010"]
    assert "step-00000020: the copy was verified and is not there any more" in real.json["cautions"][0]["message"]


def test_prune_drops_nothing_where_the_store_cannot_be_asked(clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 7, and every checkpoint stays."""
    run = clean_room / "runs" / "first"
    keep_checkpoints(run / "checkpoints", 10, 20)
    (run / "write-back").mkdir()
    for path in sorted((run / "checkpoints").iterdir()):
        about = {"manifest_digest": read_manifest(path).digest}
        dest = f"s3://bkt/run/{path.name}"
        write_state(run / "write-back" / f"{path.name}.json", path=str(path), dest=dest, state="verified", **about)
    for name, value in {"ENDPOINT_URL": "http://127.0.0.1:9", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    (clean_room / "params.yaml").write_text("sync: {retries: 0}\n")

    answer = datakit("ckpt", "prune", run, "--keep", 1)

    assert answer.code == 7
    assert len(list((run / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("place", ["{}/cold", "cold", "./cold/", "file://{}/cold"])
def test_a_copy_that_a_pull_met_damaged_is_no_longer_called_verified(clean_room: Path, place: str) -> None:
    """`ls` says so, and `prune` drops nothing on its word, however the place of the copy is written."""
    run, cold = clean_room / "runs" / "first", clean_room / "cold"
    keep_checkpoints(run / "checkpoints", 10, 20)
    keep_checkpoints(cold, 20)
    (run / "write-back").mkdir()
    about = {"manifest_digest": read_manifest(cold / "step-00000020").digest}
    for name in ("step-00000010", "step-00000020"):
        state, dest = run / "write-back" / f"{name}.json", f"{cold}/{name}"
        here = str(run / "checkpoints" / name)
        write_state(state, path=here, dest=dest, state="verified" if "2" in name else "failed", **about)
    (run / "checkpoints" / "step-00000020").rename(clean_room / "aside")
    (cold / "step-00000020" / "state.json").write_text('{"step": 21}')

    pulled = datakit("ckpt", "pull", run, "--from", place.format(clean_room), "--json")
    (clean_room / "aside").rename(run / "checkpoints" / "step-00000020")
    listed = datakit("ckpt", "ls", run, "--json")
    pruned = datakit("ckpt", "prune", run, "--keep", 1, "--json")

    assert "step-00000020 is not valid and is passed over" in pulled.json["cautions"][0]["message"]
    assert [one["remote"] for one in listed.json["result"]] == ["failed", "failed"]
    assert pruned.json["result"]["dropped"] == []
