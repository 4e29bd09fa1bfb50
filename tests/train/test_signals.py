"""train/signals: asked to stop, heard at the next step, handlers put back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from datakit import Interrupted
from datakit.storage.newest import newest
from datakit.train.signals import StopRequest, listen
from support.cli import environment
from support.commits import make_commit


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


ENDINGS = [(signal.SIGTERM, Interrupted), (signal.SIGHUP, Interrupted), (signal.SIGINT, KeyboardInterrupt)]


def send(*numbers: signal.Signals) -> None:
    """Send this process signals, one after the other."""
    for number in numbers:
        os.kill(os.getpid(), number)


def ending(act: Callable[[StopRequest], object]) -> BaseException | None:
    """The error by which a block ends that listens while something is done, or None."""
    try:
        with listen({}) as stop:
            act(stop)
    except BaseException as error:  # noqa: BLE001 -- what is looked at
        return error
    return None


@pytest.mark.parametrize(("number", "error"), ENDINGS)
def test_where_nothing_is_to_be_saved_a_signal_ends_the_run_at_once(
    number: signal.Signals, error: type[BaseException]
) -> None:
    """While a model is loaded or a checkpoint fetched nobody reads a flag; inside `save_first` somebody does."""
    heard: list[object] = []

    def act(stop: StopRequest) -> None:
        with stop.at_once():
            with stop.save_first():
                send(number)
                heard.append(stop.signal)
            stop.signal = None
            send(number)
            heard.append("nothing")

    assert type(ending(act)) is error
    assert heard == [number]


@pytest.mark.parametrize(("number", "error"), ENDINGS)
def test_what_a_library_makes_of_a_signal_changes_nothing(number: signal.Signals, error: type[BaseException]) -> None:
    """Cut short in a lazy import it raises an ImportError of its own, or nothing at all, and the block goes on."""
    went_on: list[str] = []

    def load(stop: StopRequest) -> None:
        with stop.at_once():
            try:
                send(number)
            except BaseException:  # noqa: BLE001 -- what is tested
                raise ModuleNotFoundError("half of it is not there") from None

    def swallow(stop: StopRequest) -> None:
        with stop.at_once():
            with contextlib.suppress(BaseException):
                send(number)
            with stop.at_once():
                went_on.append("trains")

    assert type(ending(load)) is type(ending(swallow)) is error
    assert went_on == []


def test_a_signal_is_no_fault_of_what_was_looked_at(tmp_path: Path) -> None:
    """SIGTERM while a checkpoint is verified at the start: it is whole, and is not told for one that has to go."""
    make_commit(tmp_path / "step-00000002", {"a.bin": b"x"}, kind="checkpoint")
    found: list[object] = []

    def tick(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "verify_commit":
            sys.setprofile(None)
            send(signal.SIGTERM)

    def act(stop: StopRequest) -> None:
        with stop.at_once():
            sys.setprofile(tick)
            found.append(newest(tmp_path, pattern="step-*"))

    assert type(ending(act)) is Interrupted
    assert found == []


def test_the_first_signal_decides_whatever_comes_after_it() -> None:
    """Of a reclaim that is followed by others, at once or while the step is saved, is said that it can be resumed."""

    def load(stop: StopRequest) -> None:
        with stop.at_once():
            try:
                send(signal.SIGTERM)
            finally:
                send(signal.SIGHUP, signal.SIGTERM)

    def save(stop: StopRequest) -> None:
        with stop.at_once(), stop.save_first():
            send(signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    loading, saving = ending(load), ending(save)

    assert isinstance(loading, Interrupted)
    assert loading.message == "stopped by SIGTERM before the first step"
    assert isinstance(saving, Interrupted)
    assert saving.message == "stopped by SIGTERM and at once by Ctrl-C: the step under way is lost"


def test_one_block_within_another_hears_with_it() -> None:
    """The command listens while the trainer's libraries load, the trainer while it trains: one request, no gap."""
    with listen({}) as outer:
        heard = signal.getsignal(signal.SIGTERM)
        with listen({}) as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == heard

    assert inner is outer
    assert outer.signal == signal.SIGTERM


LAST = """
import contextlib, os, signal, sys
from datakit.cli.frame import die_quietly_from_now_on
from datakit.train.signals import listen
first, *later = (signal.Signals[name] for name in sys.argv[1:])
with contextlib.suppress(BaseException), listen({}, to_the_end=True) as stop, stop.at_once():
    os.kill(os.getpid(), first)
for number in later:
    os.kill(os.getpid(), number)
die_quietly_from_now_on()
for number in later:
    os.kill(os.getpid(), number)
os._exit(75)
"""


@pytest.mark.parametrize(
    "signals",
    [
        ["SIGTERM", "SIGTERM", "SIGHUP", "SIGINT"],
        ["SIGHUP", "SIGTERM", "SIGINT"],
        ["SIGINT", "SIGTERM", "SIGHUP"],
    ],
)
def test_at_the_end_of_a_process_no_later_signal_kills_it(signals: list[str]) -> None:
    """Where all is saved and said, the interpreter takes another second to go: it ends with the code that was said."""
    done = subprocess.run([sys.executable, "-c", LAST, *signals], env=environment(), check=False, timeout=60)

    assert done.returncode == 75


HANGING = """
import contextlib, os, signal, sys
from datakit.cli.frame import die_quietly_from_now_on
from datakit.train.signals import listen
with contextlib.suppress(BaseException), listen({}, to_the_end=True) as stop, stop.at_once():
    for name in sys.argv[2:]:
        os.kill(os.getpid(), signal.Signals[name])
die_quietly_from_now_on()
os.kill(os.getpid(), signal.Signals[sys.argv[1]])
os._exit(3)
"""


@pytest.mark.parametrize(
    ("late", "heard", "code"),
    [
        ("SIGINT", ["SIGTERM"], 75),
        ("SIGINT", ["SIGHUP"], 75),
        ("SIGINT", ["SIGINT"], -signal.SIGINT),
        ("SIGINT", [], -signal.SIGINT),
        ("SIGTERM", ["SIGTERM"], 3),
        ("SIGHUP", ["SIGTERM"], 3),
        ("SIGTERM", [], -signal.SIGTERM),
    ],
)
def test_at_the_end_only_ctrl_c_ends_a_process_that_hangs(late: str, heard: list[str], code: int) -> None:
    """By the code of what ended the run, if anything did; a second SIGTERM asks for what is under way."""
    words = [sys.executable, "-c", HANGING, late, *heard]

    done = subprocess.run(words, env=environment(), check=False, timeout=60)

    assert done.returncode == code


def test_who_listens_in_a_library_hears_later_signals_himself() -> None:
    """Only a process that ends after the block may ignore them."""
    before = signal.getsignal(signal.SIGTERM)

    with listen({}):
        os.kill(os.getpid(), signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) == before


def test_a_ctrl_c_while_the_block_is_left_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither how the run ends, nor that what answered signals before is put back."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    raise_it = StopRequest.raise_it

    def interrupted(self: StopRequest, message: str, *, hint: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise_it(self, message, hint=hint)

    monkeypatch.setattr(StopRequest, "raise_it", interrupted)
    with pytest.raises(Interrupted), listen({}) as stop, stop.at_once():
        os.kill(os.getpid(), signal.SIGTERM)

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


CUT_SHORT = """
import os, signal
try:
    os.kill(os.getpid(), signal.{first})
except BaseException:
    os.kill(os.getpid(), signal.SIGTERM)
    raise ImportError("half of it is not there")
"""
TO_THE_END = """
import atexit, os, signal, sys
from datakit.console import Console
say = Console.error
def again(*words, **more):
    say(*words, **more)
    os.kill(os.getpid(), signal.SIGTERM)
Console.error = again
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
from datakit.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("library", "first", "code"),
    [("torch", "SIGTERM", 75), ("torch", "SIGHUP", 75), ("torch", "SIGINT", 130), ("transformers", "SIGTERM", 75)],
)
def test_the_command_ends_by_its_first_signal(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, library: str, first: str, code: int
) -> None:
    """While a library loads that tells another tale of it; then SIGTERM again, as it is said, and at the very end."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{library}.py").write_text(CUT_SHORT.format(first=first))
    env = environment({"PYTHONPATH": os.pathsep.join([str(tmp_path / "slow"), environment()["PYTHONPATH"]])})
    words = ["train", str(tokens_dir), "--model", str(base_dir), "--output", str(tmp_path / "run")]

    done = subprocess.run(
        [sys.executable, "-c", TO_THE_END, *words], env=env, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == code, done.stderr
    assert "not installed" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
