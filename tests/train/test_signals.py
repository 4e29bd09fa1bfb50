"""train/signals: asked to stop, heard at the next step, handlers put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from datakit import Interrupted
from datakit.train.signals import StopRequest, listen
from support.cli import environment


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_is_heard_and_ends_with_the_code_that_says_resumable(number: signal.Signals) -> None:
    """The flag is set; raising it gives Interrupted, exit code 75, with the hint."""
    with listen({}) as stop:
        before = bool(stop)
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=r"stopped\. run it again") as error:
            stop.raise_it("stopped", hint="run it again")

    assert not before
    assert stop.signal == number
    assert error.value.exit_code == 75


def test_ctrl_c_is_heard_and_a_second_one_ends_at_once() -> None:
    """The first waits for the step, the second does not."""
    with listen({}) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            stop.raise_it("stopped", hint="")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_under_nohup_a_hangup_stays_ignored() -> None:
    """Who ignores SIGHUP wants the run to outlive the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listen({}) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert not stop


def test_the_handlers_of_before_are_put_back() -> None:
    """Also when the block ends by an error."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    with pytest.raises(ValueError, match="x"), listen({}):
        raise ValueError("x")

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_the_main_thread_nothing_is_touched() -> None:
    """Python has no signals there; training works and cannot be asked."""
    heard: list[StopRequest] = []
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with listen({"DVC_STAGE": "train"}) as stop:
            heard.append(stop)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert not heard[0]
    assert signal.getsignal(signal.SIGTERM) == before


CHILD = """
import sys, time
from datakit.train.signals import listen
with listen() as stop:
    print("ready", flush=True)
    for _ in range(3000):
        if stop:
            open(sys.argv[1], "w").write(stop.signal.name)
            break
        time.sleep(0.01)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("stage", "told"), [("train", True), ("", False)])
def test_inside_a_dvc_stage_the_death_of_the_parent_is_a_sigterm(tmp_path: Path, stage: str, told: bool) -> None:
    """Dvc killed by a reclaim must not leave a trainer behind; outside of dvc a parent may go."""
    heard = tmp_path / "heard"

    subprocess.run(
        [sys.executable, "-c", PARENT, CHILD if told else CHILD.replace("3000", "50"), str(heard)],
        env=environment({"DVC_STAGE": stage}),
        check=False,
    )

    deadline = time.monotonic() + 30
    while told and not heard.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (heard.read_text() if heard.exists() else None) == ("SIGTERM" if told else None)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Interrupted), (signal.SIGINT, KeyboardInterrupt)])
def test_where_nothing_is_to_be_saved_a_signal_ends_the_run_at_once(
    number: signal.Signals, error: type[BaseException]
) -> None:
    """While a model is loaded or a checkpoint fetched nobody reads a flag; inside `save_first` somebody does."""
    with listen({}, at_once=True) as stop:
        with stop.save_first():
            os.kill(os.getpid(), number)
            saved_first = stop.signal
        stop.signal = None
        with pytest.raises(error):
            os.kill(os.getpid(), number)

    assert saved_first == number
