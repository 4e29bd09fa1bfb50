"""A version is brought or published by a process that is killed: nothing torn is visible, the same command goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from datakit.data.manifest import MANIFEST_NAME
from datakit.storage.commit import verify_commit
from datakit.version.dvc import Tree, object_key, read_dvc_file
from support.cli import datakit_process, start
from support.commits import files_below, make_commit, noise
from support.dvcproject import bare_project

MEMBERS = {f"{number:02d}.tar": noise(3 * 2**20, number) for number in range(12)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 MiB in a remote, and the `.dvc` file that records them."""
    root = tmp_path_factory.mktemp("killed")
    project = bare_project(root / "p", remote=str(root / "store"))
    make_commit(project / "ds", MEMBERS)
    assert datakit_process("sync", project / "ds", "--to", project / "ds.dvc").code == 0
    return project


def kill_when(words: list[object], seen: Path, delay_s: float) -> None:
    """Start a command, wait until something of it is there, and a little longer, and kill it with -9."""
    process = start(*words)
    deadline = time.monotonic() + 60
    while process.poll() is None and not any(seen.rglob("*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay_s)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def whole_or_absent(place: Path) -> None:
    if (place / MANIFEST_NAME).exists():
        verify_commit(place)


def recorded_and_there(project: Path) -> None:
    """Whoever follows a record finds the list, and whoever follows a list finds each object."""
    store = project.with_name("store")
    for listed in store.glob("files/md5/*/*.dir"):
        for md5 in Tree.from_bytes(listed.read_bytes(), where="x").members.values():
            assert (store / object_key(md5)).is_file()
    if (project / "ds.dvc").exists():
        (out,) = read_dvc_file((project / "ds.dvc").read_bytes(), where="x")
        assert (store / object_key(out.md5)).is_file()


def bring_killed(project: Path, place: Path, delays_s: list[float]) -> None:
    words: list[object] = ["sync", "--from", project / "ds.dvc", place]
    for delay_s in delays_s:
        kill_when(words, place, delay_s)
        whole_or_absent(place)
    answer = datakit_process(*words)
    assert answer.code == 0, answer.stderr
    assert files_below(place) == files_below(project / "ds")


def publish_killed(root: Path, delays_s: list[float]) -> None:
    project = bare_project(root / "p", remote=str(root / "store"))
    make_commit(project / "ds", MEMBERS)
    words: list[object] = ["sync", project / "ds", "--to", project / "ds.dvc"]
    for delay_s in delays_s:
        kill_when(words, root / "store", delay_s)
        recorded_and_there(project)
    answer = datakit_process(*words)
    assert answer.code == 0, answer.stderr
    recorded_and_there(project)
    assert (project / "ds.dvc").exists()
    left = [path for path in (root / "store").rglob("*") if path.is_file()]
    assert len(left) == len(MEMBERS) + 2


def test_killed_while_it_comes_the_same_command_goes_on(project: Path, tmp_path: Path) -> None:
    """At the first byte, and a little later; no manifest over missing members at any moment."""
    bring_killed(project, tmp_path / "got", [0, 0.02])


def test_killed_while_it_goes_nothing_is_recorded_that_is_not_there(tmp_path: Path) -> None:
    """The list comes after the objects, the record after the list; what was put is not put again."""
    publish_killed(tmp_path, [0, 0.02])


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments_both_ways_arrive(project: Path, tmp_path: Path, seed: int) -> None:
    """Up to five kills each, at moments of 0 to 0.3 s after the first byte."""
    moments = random.Random(seed)
    delays_s = [moments.random() * 0.3 for _ in range(moments.randint(1, 5))]

    bring_killed(project, tmp_path / "got", delays_s)
    publish_killed(tmp_path, delays_s)
