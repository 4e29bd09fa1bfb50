"""Processes that do not outlive the one which started them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from support.checkout import demo_environment, make_checkout

ROOT = Path(__file__).parents[2]
TIE = ROOT / "pipelines" / "tie.py"
SLEEP = "import time; print('up', flush=True); time.sleep(99)"


def test_kill_9_of_the_parent_ends_the_child(tmp_path: Path) -> None:
    """The kernel tells the child, and through it the grandchild, when its parent is gone."""
    grandchild = f"[sys.executable, {str(TIE)!r}, str(os.getpid()), sys.executable, '-c', {SLEEP!r}]"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import os, subprocess, sys; subprocess.run({grandchild})"], stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        (child,) = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    psutil.wait_procs([child], timeout=20)
    assert not child.is_running()


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    """A child that starts after its parent died ends at once, without running the command."""
    done = subprocess.run(
        [sys.executable, str(TIE), "0", sys.executable, "-c", "print('ran')"], capture_output=True, check=False
    )

    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout == b""


def test_the_command_replaces_the_tie() -> None:
    """The command runs in the process that was started, and its exit code is the process's."""
    command = [sys.executable, "-c", "import os, sys; print(os.getpid()); sys.exit(7)"]
    process = subprocess.Popen([sys.executable, str(TIE), str(os.getpid()), *command], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        said = process.stdout.read()

    assert process.returncode == 7
    assert int(said) == process.pid


def test_a_make_killed_before_the_demo_has_begun_leaves_no_demo(tmp_path: Path) -> None:
    """Its process was given to another parent by the time that it asks; it would hold the demo's lock for minutes."""
    checkout = make_checkout(tmp_path / "datakit", records=3)
    shutil.copy(ROOT / "Makefile", checkout)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nkill -9 $PPID\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = [
        "make",
        "--no-print-directory",
        "demo",
        f"BIN={tmp_path}",
        "STAMP=dvc.yaml",
    ]  # a stamp that is there: nothing is installed

    with subprocess.Popen(command, cwd=checkout, env=demo_environment(), stdout=subprocess.PIPE) as make:
        said, _ = make.communicate()  # until the last process that may write there has ended

    assert make.returncode == -signal.SIGKILL
    assert said == b""
    assert not (checkout / ".demo").exists()
