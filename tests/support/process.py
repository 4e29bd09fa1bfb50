"""process: run code in a fresh interpreter, and kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HALT_S = 60.0
"""The most that a process may take to stop, as other waits of the tests for one."""


def environment() -> dict[str, str]:
    """This process's environment, with the library importable from anywhere."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def run_code(code: str, *arguments: object) -> str:
    """Run code to its end and give what it wrote to stdout."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment()).stdout


def start_code(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start code and wait for the first line that it writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def halt(pid: int) -> None:
    """Stop a process, and wait until each of its threads has: a signal takes its time on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    until, tasks = time.monotonic() + HALT_S, Path(f"/proc/{pid}/task")
    while (states := {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()}) != {"T"}:
        assert "Z" not in states, f"process {pid} has died, and will not stop"
        assert time.monotonic() < until, f"process {pid} is not stopped after {HALT_S} s: {states}"
        time.sleep(0.001)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9, and close what it held."""
    process.kill()
    process.communicate()
