"""Law 9 on the main job: kill -9 of any of its processes, run it again, get the same adapter."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.checkout import adapter_bytes, demo_environment, make_checkout, run_demo, start_demo

STEPS = 400
MAKEFILE = "demo:\n\t@exec python pipelines/demo.py $(shell echo $$PPID)\n"

Pick = Callable[[psutil.Process], psutil.Process]


def prepared(path: Path) -> Path:
    """A checkout that trains for long enough to be met in the middle."""
    make_checkout(path)
    params = path / "params.yaml"
    params.write_text(
        params.read_text().replace("steps: 6", f"steps: {STEPS}").replace("save_every_steps: 2", "save_every_steps: 20")
    )
    (path / "Makefile").write_text(MAKEFILE)
    return path


def below(root: psutil.Process, *words: str) -> psutil.Process:
    """The process below `root` whose command line holds all the words, the outermost one."""
    (found, *_) = [child for child in root.children(recursive=True) if set(words) <= set(child.cmdline())]
    return found


def trainer(make: psutil.Process) -> psutil.Process:
    return below(make, "train", "data/tier/train", "--write-back")


def dvc(make: psutil.Process) -> psutil.Process:
    return below(make, "dvc", "repro")


def demo(make: psutil.Process) -> psutil.Process:
    return below(make, "pipelines/demo.py")


def make_itself(make: psutil.Process) -> psutil.Process:
    return make


def steps_committed(checkout: Path) -> int:
    """The newest step with a manifest."""
    manifests = checkout.glob("runs/*/checkpoints/step-*/manifest.json")
    return max((int(path.parent.name.removeprefix("step-")) for path in manifests), default=0)


def kill_after(checkout: Path, pick: Pick, *, step: int) -> str:
    """Run `make demo`, kill one of its processes once a step is committed, and see all of them end; what was said."""
    with (checkout / "said.txt").open("w+") as said:
        make = subprocess.Popen(
            ["make", "demo"], cwd=checkout, env=demo_environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        while steps_committed(checkout) < step:
            assert make.poll() is None, Path(said.name).read_text()
            time.sleep(0.02)
        everyone = [psutil.Process(make.pid), *psutil.Process(make.pid).children(recursive=True)]
        pick(everyone[0]).kill()
        make.wait()
        _, alive = psutil.wait_procs(everyone, timeout=60)
    assert not alive, [process.cmdline() for process in alive]
    return (checkout / "said.txt").read_text()


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_kill_9_of_anyone_ends_with_the_same_adapter(tmp_path: Path) -> None:
    """Trainer, DVC, the demo and make are killed one after the other; each next run goes on from the last commit."""
    undisturbed = prepared(tmp_path / "undisturbed" / "datakit")
    killed = prepared(tmp_path / "killed" / "datakit")

    run_demo(undisturbed)
    for pick, step in ((trainer, 40), (dvc, 120), (demo, 200), (make_itself, 280)):
        kill_after(killed, pick, step=step)
        assert not (killed / "models" / "adapter").exists()
    said = run_demo(killed)

    assert "resuming after step" in said
    assert adapter_bytes(killed) == adapter_bytes(undisturbed)


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_a_run_directory_that_is_lost_comes_back_from_the_bucket(tmp_path: Path) -> None:
    """A killed machine's disk is gone: the checkpoint that was written back is fetched, and the adapter is the same."""
    undisturbed = prepared(tmp_path / "undisturbed" / "datakit")
    killed = prepared(tmp_path / "killed" / "datakit")

    run_demo(undisturbed)
    kill_after(killed, trainer, step=200)
    shutil.rmtree(killed / "runs")
    said = run_demo(killed)

    assert "s3://" in next(line for line in said.splitlines() if "resuming after step" in line)
    assert adapter_bytes(killed) == adapter_bytes(undisturbed)


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_kill_9_of_anyone_at_any_moment_blocks_nothing(tmp_path: Path) -> None:
    """Any process, at any moment of any stage: the next run always goes on, and the adapter is that of a quiet run."""
    quiet = make_checkout(tmp_path / "quiet" / "datakit")
    killed = make_checkout(tmp_path / "killed" / "datakit")
    chance = random.Random(20261130)

    run_demo(quiet)
    for _ in range(12):
        with start_demo(killed) as process:
            time.sleep(chance.uniform(0.3, 12.0))
            everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(everyone).kill()
            process.communicate()
        psutil.wait_procs(everyone, timeout=60)
    run_demo(killed)

    assert adapter_bytes(killed) == adapter_bytes(quiet)


def test_what_a_killed_dvc_leaves_is_mended(tmp_path: Path, pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken list of readers and writers, and a half-written dvc.lock, are removed; whole ones stay."""
    monkeypatch.chdir(tmp_path)
    import mend

    lock = "schema: '2.0'\nstages:\n  scan:\n    cmd: x\n    outs:\n    - path: a\n      md5: 0f\n      size: 1\n"
    rwlock = Path(".dvc/tmp/rwlock")
    rwlock.parent.mkdir(parents=True)
    for broken in ('{"write": {"', '{"write": {"/a": {"pid": 4194305, "cmd": "dvc repro"}}}'):
        rwlock.write_text(broken)
        Path("dvc.lock").write_text(lock)

        mend.mend_dvc()

        assert not rwlock.exists()
        assert Path("dvc.lock").read_text() == lock

    for cut in (lock[:-20], lock[:40], "", lock.replace("md5: 0f", "md5:")):
        Path("dvc.lock").write_text(cut)

        mend.mend_dvc()

        assert not Path("dvc.lock").exists(), cut


def test_the_list_of_a_living_dvc_stays(tmp_path: Path, pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC's list is only dropped when nobody on it is a DVC that lives; a number that was used again does not count."""
    monkeypatch.chdir(tmp_path)
    import mend

    rwlock = Path(".dvc/tmp/rwlock")
    rwlock.parent.mkdir(parents=True)
    living = subprocess.Popen(["sh", "-c", "sleep 99; : dvc repro"])
    other = subprocess.Popen(["sleep", "99"])
    while not psutil.Process(living.pid).cmdline():  # empty for a moment after the program was exchanged
        time.sleep(0.001)
    try:
        rwlock.write_text(f'{{"read": {{"/a": [{{"pid": {living.pid}, "cmd": "dvc repro"}}]}}}}')
        mend.mend_dvc()
        assert rwlock.exists()

        rwlock.write_text(f'{{"read": {{"/a": [{{"pid": {other.pid}, "cmd": "dvc repro"}}]}}}}')
        mend.mend_dvc()
        assert not rwlock.exists()
    finally:
        living.kill()
        other.kill()
        living.wait()
        other.wait()
