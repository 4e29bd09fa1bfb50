"""pack/engines: the same results here and in processes, in order, and a worker's death is told."""

from __future__ import annotations

import io
import math
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datakit import DatakitError, UsageError
from datakit.pack.engines import Engine
from datakit.units import parse_bytes
from support.cli import environment

GARBLE = (
    "[os.write(fd, b'no pickle' * 9) for os in [__import__('os')] for fd in range(3, 9) "
    "if os.path.exists(f'/proc/self/fd/{fd}')]"
)
"""Written to every pipe that a worker holds."""

# tasks here are functions of modules that a worker can import: of the standard library and of datakit


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    """However many processes there are, results are those of a plain loop."""
    words = [f"{number} KiB" for number in range(20)]

    with Engine(workers) as engine:
        results = list(engine.map(parse_bytes, words))

    assert results == [parse_bytes(word) for word in words]


def test_workers_are_other_processes_and_stay_for_the_next_tasks() -> None:
    """Two rounds, two processes at most, none of them this one."""
    with Engine(2) as engine:
        pids = {link for _ in range(2) for link in engine.map(os.readlink, ["/proc/self"] * 6)}

    assert 1 <= len(pids) <= 2
    assert str(os.getpid()) not in pids


def test_with_one_worker_tasks_run_here() -> None:
    """No process is started for what needs none."""
    with Engine(1) as engine:
        assert list(engine.map(os.readlink, ["/proc/self"])) == [str(os.getpid())]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_travels_whole(workers: int) -> None:
    """Kind, message, hint and subject of our own errors; foreign ones too."""
    with Engine(workers) as engine:
        with pytest.raises(UsageError, match="'lots' is not a size") as caught:
            list(engine.map(parse_bytes, ["1", "lots", "2"]))
        with pytest.raises(ValueError, match="math domain error"):
            list(engine.map(math.sqrt, [4.0, -1.0]))

    assert caught.value.subject == "lots"
    assert caught.value.hint


def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    """As when the kernel kills it for memory."""
    with Engine(2) as engine, pytest.raises(DatakitError, match=r"a worker process died \(exit code 7\)") as caught:
        list(engine.map(os._exit, [7, 7]))

    assert "--workers" in str(caught.value.hint)


def test_an_answer_that_cannot_be_read_ends_its_worker() -> None:
    """Bytes that are no pickle on the pipe: an error at once, not a wait for a worker that lives on."""
    with Engine(2) as engine, pytest.raises(DatakitError, match="a worker process died"):
        list(engine.map(eval, [GARBLE, GARBLE]))


def test_a_task_that_does_not_travel_leaves_the_workers_as_they_were() -> None:
    """It is told, and the next tasks run."""
    with Engine(2) as engine:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            list(engine.map(len, [lambda: None]))  # type: ignore[list-item]  # what cannot be pickled
        assert list(engine.map(len, ["a", "bb"])) == [1, 2]


def test_a_task_that_waits_comes_before_what_may_be_imported_ahead(tmp_path: Path) -> None:
    """Nobody waits for a module that its task does not use; a worker's tasks here are all there from the start."""
    script = (
        "import os; from datakit.pack.engines import serve; serve(('colorsys', 'no.such.room'), parent=os.getppid())"
    )
    asked = pickle.dumps((eval, "'colorsys' in __import__('sys').modules"))
    (tmp_path / "tasks").write_bytes(asked * 2)

    with open(tmp_path / "tasks", "rb") as tasks:
        done = subprocess.run(
            [sys.executable, "-c", script], stdin=tasks, capture_output=True, env=environment(), check=True
        )

    answers = io.BytesIO(done.stdout)
    assert [pickle.load(answers) for _ in range(2)] == [(True, False)] * 2


def test_no_worker_outlives_its_engine() -> None:
    """They end with the block, however it ends."""
    with Engine(2) as engine:
        pids = {int(pid) for pid in engine.map(os.readlink, ["/proc/self"] * 8)}

    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """A parent killed with -9 cleans nothing up; its workers end in the middle of their tasks, and write no more."""
    script = (
        "import os, time\n"
        "from datakit.pack.engines import Engine\n"
        "with Engine(2) as engine:\n"
        "    print(*set(engine.map(os.readlink, ['/proc/self'] * 8)), flush=True)\n"
        "    list(engine.map(time.sleep, [60, 60]))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment())
    assert parent.stdout is not None
    pids = parent.stdout.readline().split()

    parent.kill()
    parent.communicate()

    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Workers do not import the caller's script, so nothing in it runs twice."""
    (tmp_path / "job.py").write_text(
        "from datakit.pack.engines import Engine\n"
        "from datakit.units import parse_bytes\n"
        "print('started')\n"
        "with Engine(2) as engine:\n"
        "    print(*engine.map(parse_bytes, ['1 KiB', '2 KiB']))\n"
    )

    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["started", "1024", "2048"]


def test_what_a_task_prints_does_not_mix_with_answers() -> None:
    """A library that prints in a worker prints on stderr."""
    with Engine(2) as engine:
        assert list(engine.map(print, ["noise", "more noise"])) == [None, None]
