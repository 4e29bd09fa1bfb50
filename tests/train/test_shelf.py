"""train/shelf: a checkpoint counts by its bytes, and the last good one is never dropped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, NotFound
from datakit.storage.commit import commit, verify_commit
from datakit.storage.copies import State, write_state
from datakit.train.shelf import (
    checkpoints,
    droppable,
    look,
    newest_checkpoint,
    prunable,
    prune,
    set_aside,
    step_name,
    step_of,
)
from support.cli import datakit, environment


def put(run: Path, step: int) -> Path:
    path = run / "checkpoints" / step_name(step)
    path.parent.mkdir(parents=True, exist_ok=True)
    with commit(path, kind="checkpoint", name=path.name) as staging:
        staging.write("state.json", b"%d" % step)
        staging.about["step"] = step
    return path


def damage(path: Path, how: str = "bytes") -> None:
    if how == "bytes":
        (path / "state.json").write_bytes(b"?" * (path / "state.json").stat().st_size)
    else:
        (path / "manifest.json").unlink()


def written_back(run: Path, states: dict[int, State], *, place: str = "s3://b") -> None:
    (run / "write-back").mkdir(exist_ok=True)
    for step, state in states.items():
        name = step_name(step)
        write_state(run / "write-back" / f"{name}.json", path=str(run / name), dest=f"{place}/{name}", state=state)


def names(paths: list[Path]) -> list[int]:
    return [step_of(path) for path in paths]


@given(step=st.integers(0, 99_999_999))
def test_a_name_tells_its_step(step: int) -> None:
    """Eight digits, so that the alphabet is the order of time."""
    assert step_of(Path(step_name(step))) == step
    assert len(step_name(step)) == 13


@pytest.mark.parametrize("how", ["bytes", "manifest"])
def test_the_newest_that_verifies_is_found_and_the_others_are_named(tmp_path: Path, how: str) -> None:
    """A damaged one and one that was being written when the power went."""
    for step in (10, 20, 30):
        put(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-00000030", how)

    found = newest_checkpoint(tmp_path / "checkpoints")

    assert found.path == tmp_path / "checkpoints" / "step-00000020"
    assert [bad.name for bad, _ in found.skipped] == ["step-00000030"]


def test_only_the_newest_good_ones_stay(tmp_path: Path) -> None:
    """`keep` counts what verifies; what is damaged and older goes too, what is damaged and newer is left for a look."""
    for step in range(10, 80, 10):
        put(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-00000020")
    damage(tmp_path / "checkpoints" / "step-00000060")

    gone = prune(tmp_path / "checkpoints", keep=2)

    assert names(gone) == [10, 20, 30, 40]
    assert names(checkpoints(tmp_path / "checkpoints")) == [50, 60, 70]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_the_last_good_one_is_never_dropped(tmp_path: Path, keep: int) -> None:
    """Not when newer ones are damaged, not when somebody asks to keep none."""
    for step in (10, 20, 30):
        put(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-00000020")
    damage(tmp_path / "checkpoints" / "step-00000030", "manifest")

    assert prune(tmp_path / "checkpoints", keep=keep) == []
    assert verify_commit(tmp_path / "checkpoints" / "step-00000010")


def test_a_quick_prune_compares_sizes_only(tmp_path: Path) -> None:
    """Training does not wait for reading; one that lacks a file, or has another size, counts for nothing even so."""
    for step in (10, 20, 30, 40):
        put(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-00000030")
    (tmp_path / "checkpoints" / "step-00000020" / "state.json").write_bytes(b"longer")

    quick = prunable(tmp_path / "checkpoints", keep=2, quick=True)
    whole = prunable(tmp_path / "checkpoints", keep=2)

    assert names(quick) == [10, 20]
    assert names(whole) == []


def test_pruning_removes_what_a_killed_one_left_and_nothing_of_another_trainer(tmp_path: Path) -> None:
    """Members without a manifest go; a directory of such a name that holds more than members stays."""
    directory, other = tmp_path / "checkpoints", tmp_path / "other"
    for step in (10, 20, 30):
        put(tmp_path, step)
    put(other, 1)
    for step in (10, 20):
        (directory / step_name(step) / "manifest.json").unlink()
    (directory / step_name(10) / "model.pt").write_text("precious")
    (directory / step_name(5)).mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):  # as stock peft saves
        (directory / step_name(5) / name).write_text("precious")
    (directory / step_name(1)).symlink_to(other / "checkpoints" / step_name(1))

    gone = prune(directory, keep=1)

    assert names(gone) == [20]
    assert names(checkpoints(directory)) == [1, 5, 10, 30]
    verify_commit(other / "checkpoints" / step_name(1))


def test_nothing_is_dropped_that_write_back_still_needs(tmp_path: Path) -> None:
    """Staged and uploading ones stay; verified ones go; a failed one goes once a newer one is verified."""
    for step in range(10, 70, 10):
        put(tmp_path, step)
    written_back(tmp_path, {10: "verified", 20: "failed", 30: "uploading", 40: "staged", 50: "failed", 60: "staged"})

    before = prunable(tmp_path / "checkpoints", keep=1, may_go=droppable(tmp_path))
    written_back(tmp_path, {60: "verified"})
    after = prunable(tmp_path / "checkpoints", keep=1, may_go=droppable(tmp_path))
    lost = prunable(tmp_path / "checkpoints", keep=1, may_go=droppable(tmp_path, lost={step_name(10)}))

    assert names(before) == [10]
    assert names(after) == [10, 20, 50]
    assert names(lost) == [20, 50]


def test_a_verified_copy_elsewhere_is_no_reason_to_drop_a_failed_one(tmp_path: Path) -> None:
    """Whoever resumes looks at one place: what a longer run of the same directory left in another is not there."""
    written_back(tmp_path, {10: "failed", 20: "failed"})
    written_back(tmp_path, {30: "verified"}, place="s3://elsewhere")

    before = [droppable(tmp_path)(step_name(step)) for step in (10, 20, 30)]
    written_back(tmp_path, {20: "verified"})
    after = [droppable(tmp_path)(step_name(step)) for step in (10, 20, 30)]
    lost = [droppable(tmp_path, lost={step_name(20)})(step_name(step)) for step in (10, 20, 30)]

    assert before == [False, False, True]
    assert after == [True, True, True]
    assert lost == [False, False, True]


def test_who_asks_what_may_go_reads_the_states_once(tmp_path: Path) -> None:
    """Not once for each checkpoint: what was asked for answers by what stood there then."""
    put(tmp_path, 10)
    written_back(tmp_path, {10: "verified"})

    may_go = droppable(tmp_path)
    shutil.rmtree(tmp_path / "write-back")

    assert (may_go(step_name(10)), may_go(step_name(20))) == (True, False)


def test_setting_aside_keeps_the_bytes_and_hides_the_name(tmp_path: Path) -> None:
    """The second damaged one of a step gets a name of its own: nothing that was set aside is ever deleted."""
    asides = []
    for text in (b"first", b"second"):
        put(tmp_path, 10)
        (tmp_path / "checkpoints" / "step-00000010" / "state.json").write_bytes(text)
        asides.append(set_aside(tmp_path / "checkpoints" / "step-00000010"))

    assert [aside.name for aside in asides] == ["damaged-step-00000010", "damaged-step-00000010-2"]
    assert [(aside / "state.json").read_bytes() for aside in asides] == [b"first", b"second"]
    assert checkpoints(tmp_path / "checkpoints") == []


def test_a_look_tells_what_lies_there(tmp_path: Path) -> None:
    """Steps, sizes, damage and write-back; quick compares sizes, the whole look reads the bytes."""
    for step in (10, 20, 30):
        put(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-00000010")
    damage(tmp_path / "checkpoints" / "step-00000020", "manifest")
    written_back(tmp_path, {30: "verified"})
    with commit(tmp_path / "adapter", kind="adapter", name="run") as staging:
        staging.write("x", b"12345")
        staging.about["step"] = 30

    quick, whole = look(tmp_path), look(tmp_path, quick=False)

    assert [one.name for one in whole] == ["step-00000010", "step-00000020", "step-00000030", "adapter"]
    assert [one.problem is None for one in quick] == [True, False, True, True]
    assert [one.problem is None for one in whole] == [False, False, True, True]
    assert [one.remote for one in whole] == [None, None, "verified", None]
    assert (whole[3].step, whole[3].bytes) == (30, 5)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    """A path that is not there, a file, and a directory of something else."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(InputError, match="no run at"):
        look(tmp_path / "file")
    with pytest.raises(NotFound, match="no run at"):
        look(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="not the directory of a run"):
        look(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        put(tmp_path / "run", step)
    return tmp_path / "run"


def answer(*words: Any) -> tuple[int, Any]:
    told = datakit(*words, "--json")
    return told.code, told.json


def test_ls_lists_and_verify_ends_with_4_when_bytes_are_wrong(run: Path) -> None:
    """`ckpt ls` reads sizes, `ckpt verify` every byte; the damaged one is named."""
    good = answer("ckpt", "verify", run)
    damage(run / "checkpoints" / "step-00000020")

    listed, bad = answer("ckpt", "ls", run), answer("ckpt", "verify", run)

    assert (good[0], listed[0], bad[0]) == (0, 0, 4)
    assert [one["step"] for one in listed[1]["result"]] == [10, 20, 30]
    assert "step-00000020" in bad[1]["error"]["message"]
    assert [one["problem"] is None for one in bad[1]["result"]] == [True, False, True]


def test_prune_shows_and_does_the_same(run: Path) -> None:
    """The dry run names what the run then drops."""
    shown = answer("ckpt", "prune", run, "--keep", 1, "--dry-run")[1]["result"]
    still = names(checkpoints(run / "checkpoints"))
    done = answer("ckpt", "prune", run, "--keep", 1)[1]["result"]

    assert shown["dropped"] == done["dropped"] == ["step-00000010", "step-00000020"]
    assert still == [10, 20, 30]
    assert names(checkpoints(run / "checkpoints")) == [30]
    assert "nothing to drop" in datakit("ckpt", "prune", run, "--keep", 1).stderr


def test_pull_brings_the_newest_from_a_colder_place(run: Path, tmp_path: Path) -> None:
    """From the URL that is named, or the one in run.json; nothing newer is no error; neither is told otherwise."""
    cold = tmp_path / "cold"
    (run / "checkpoints").rename(cold)

    nowhere = datakit("ckpt", "pull", run)
    first = answer("ckpt", "pull", run, "--from", cold)
    (run / "run.json").write_text(f'{{"write_back": "{cold}"}}')
    second = answer("ckpt", "pull", run)

    assert nowhere.code == 2
    assert "--from URL" in nowhere.stderr
    assert first[1]["result"]["pulled"] == "step-00000030"
    assert verify_commit(run / "checkpoints" / "step-00000030")
    assert (second[1]["result"]["pulled"], second[1]["result"]["newest"]) == (None, "step-00000030")


def test_pull_replaces_a_damaged_one_by_the_whole_one(run: Path, tmp_path: Path) -> None:
    """Damage that keeps a file's size is seen too; what was here is set aside, not deleted."""
    shutil.copytree(run / "checkpoints", tmp_path / "cold")
    damage(run / "checkpoints" / "step-00000030")

    pulled = answer("ckpt", "pull", run, "--from", tmp_path / "cold")[1]["result"]

    assert pulled["pulled"] == "step-00000030"
    assert verify_commit(run / "checkpoints" / "step-00000030")
    assert (run / "checkpoints" / "damaged-step-00000030" / "state.json").read_bytes() == b"??"


def test_pull_checks_the_run_also_where_a_damaged_one_lies(run: Path, tmp_path: Path) -> None:
    """Another run's checkpoint does not take the place of a damaged one of the same name: nothing changes here."""
    lineage = {"schema": 1, "run": "other", "data": {"layout_digest": "d"}, "base_model": {"digest": "m"}}
    with commit(tmp_path / "cold" / "step-00000030", kind="checkpoint", name="step-00000030") as staging:
        staging.write("lineage.json", json.dumps(lineage).encode())
    (run / "run.json").write_text(json.dumps({"name": "run", "identity": {}}))
    damage(run / "checkpoints" / "step-00000030")
    before = sorted(path.relative_to(run) for path in run.rglob("*"))

    told = datakit("ckpt", "pull", run, "--from", tmp_path / "cold")

    assert told.code == 3, told.stderr
    assert "of another run: its run is other" in told.stderr
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before


def test_listing_needs_no_torch(run: Path) -> None:
    """`datakit ckpt ls` works on a machine without the trainer's libraries."""
    code = (
        "import sys; from datakit.cli.main import main; code = main(['ckpt', 'ls', sys.argv[1]]);"
        "print(code, 'torch' in sys.modules)"
    )

    out = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True, env=environment()
    )

    assert out.stdout.splitlines()[-1] == "0 False"
