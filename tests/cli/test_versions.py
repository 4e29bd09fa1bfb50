"""`datakit sync --from` and `--to` as people use them on a node that has neither git nor dvc."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.storage.commit import verify_commit
from support.cli import datakit, datakit_process
from support.commits import files_below, flip_bit, make_commit, noise
from support.dvcproject import bare_project


@pytest.fixture
def project(clean_room: Path) -> Path:
    """A project in the current directory with a dataset and a remote beside it."""
    bare_project(clean_room / "p", remote=str(clean_room / "store"))
    make_commit(clean_room / "p" / "ds", {"a.tar": noise(3000), "b.tar": noise(200, 1)})
    return clean_room / "p"


def test_a_dataset_goes_through_the_remote_and_comes_back(project: Path) -> None:
    """The sentences say what moved and what records it; stdout stays empty."""
    there = datakit("sync", project / "ds", "--to", project / "ds.dvc")
    again = datakit("sync", project / "ds", "--to", project / "ds.dvc")
    here = datakit("sync", "--from", project / "ds.dvc", "got")

    assert [there.code, again.code, here.code] == [0, 0, 0]
    assert "Moved 3 files of 3" in there.stderr
    assert f"records  {project / 'ds.dvc'}" in there.stderr
    assert "Moved 0 files of 3" in again.stderr
    assert "records  nothing new" in again.stderr
    assert "Moved 2 files, 3.1 KiB, to got" in here.stderr
    assert "verified" in here.stderr
    assert there.stdout == again.stdout == here.stdout == ""
    assert files_below(Path("got")) == files_below(project / "ds")


def test_a_dry_run_shows_both_plans(project: Path) -> None:
    """And changes neither the remote, nor the record, nor the destination."""
    there = datakit("sync", project / "ds", "--to", project / "ds.dvc", "--dry-run", "--json")
    left = sorted(path.name for path in project.parent.iterdir())
    datakit("sync", project / "ds", "--to", project / "ds.dvc")
    here = datakit("sync", "--from", project / "ds.dvc", "got", "--dry-run", "--json")

    assert there.json["result"]["moves"] == ["a.tar", "b.tar", "manifest.json"]
    assert left == ["p"]
    assert here.json["result"]["bytes_to_move"] == 3200
    assert here.json["result"]["source"] == str(project / "ds.dvc")
    assert not Path("got").exists()


def test_no_git_and_no_dvc_is_started(project: Path) -> None:
    """With no program on the path the version comes all the same."""
    datakit("sync", project / "ds", "--to", project / "ds.dvc")

    answer = datakit_process("sync", "--from", project / "ds.dvc", "got", env={"PATH": "/nonexistent"})

    assert answer.code == 0, answer.stderr
    verify_commit(Path("got"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "dvc.lock:pack"], "needs DEST alone after --from, not 0 places"),
        (["--from", "dvc.lock:pack", "a", "b"], "needs DEST alone after --from, not 2 places"),
        (["--to", "a.dvc"], "needs SRC alone after --to, not 0 places"),
        (["a"], "needs SRC and DEST, not 1 places"),
        ([], "needs SRC and DEST, not 0 places"),
        (["--from", "a.dvc", "--to", "b.dvc", "c"], "exclude each other"),
        (["a", "b", "--remote", "r"], "--remote needs --from or --to"),
        (["a", "--to", "a.dvc", "--repair"], "do not go with --to"),
        (["--from", "a", "b"], "a does not name a version"),
        (["--from", "dvc.lock", "b"], "dvc.lock names no stage"),
        (["--from", "dvc.lock:pack", "b"], "dvc.lock is not there"),
    ],
)
def test_words_that_make_no_sentence_are_wrong_usage(clean_room: Path, words: list[str], said: str) -> None:
    """Exit code 2, and nothing happens."""
    answer = datakit("sync", *words)

    assert answer.code == 2
    assert said in answer.stderr
    assert list(clean_room.iterdir()) == []


def test_an_object_that_was_never_pushed_says_what_to_do(project: Path) -> None:
    """The command that pushes, and exit code 2: it is not there."""
    datakit("sync", project / "ds", "--to", project / "ds.dvc")
    for path in (project.parent / "store").rglob("*.dir"):
        path.unlink()

    answer = datakit("sync", "--from", project / "ds.dvc", "got")

    assert answer.code == 2
    assert "dvc push" in answer.stderr


def test_a_damaged_object_of_the_remote_is_named_with_what_mends_it(project: Path) -> None:
    """Exit code 4: the object is to be removed there, and put there again; nothing here is to be mended."""
    datakit("sync", project / "ds", "--to", project / "ds.dvc")
    largest = max((project.parent / "store").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    largest.chmod(0o644)
    flip_bit(largest, 7)

    answer = datakit("sync", "--from", project / "ds.dvc", "got")

    said = " ".join(answer.stderr.split())
    assert answer.code == 4
    assert f"{largest}: " in said
    assert f"hint: Remove that object. Put it there from where ds is whole: datakit sync {project}/ds --to" in said
