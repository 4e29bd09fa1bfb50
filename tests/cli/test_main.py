"""The door: help, version, wrong usage, and a Ctrl-C at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datakit import __version__
from datakit.cli.main import COMMANDS
from support.cli import datakit, environment, start
from support.house import PACKAGE


def test_every_file_of_the_folder_is_a_command_and_every_command_is_a_file() -> None:
    """`ls datakit/cli` is the list of commands, besides what commands share and the door."""
    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")} - {"__init__", "frame", "splits", "main"}

    assert sorted(COMMANDS) == sorted(files)


def test_help_lists_every_command_in_the_order_of_the_journey() -> None:
    """`datakit --help` is on stdout and ends with 0."""
    answer = datakit("--help")

    listed = re.findall(r"^  (\w+) ", answer.stdout.partition("Commands:\n")[2], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert (answer.code, answer.stderr) == (0, "")


def test_no_command_at_all_shows_the_help_on_stderr() -> None:
    """Nothing was asked for, so stdout stays empty and the exit code is that of wrong usage."""
    answer = datakit()

    assert answer.code == 2
    assert answer.stdout == ""
    assert "Commands:" in answer.stderr


def test_the_version_is_one_line() -> None:
    """`datakit --version` says name and number."""
    assert datakit("--version") == datakit("--version")
    assert datakit("--version").stdout == f"datakit {__version__}\n"


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        (["docter"], "error: No such command 'docter'. Did you mean 'doctor', 'tier'?\nhint: datakit --help\n"),
        (["doctor", "--jsn"], "error: No such option: --jsn (Possible options: --json)\nhint: datakit doctor --help\n"),
        (["doctor", "--directory"], "error: Option '--directory' requires an argument\nhint: datakit doctor --help\n"),
        (["pack"], "error: Missing argument 'SRC'\nhint: datakit pack --help\n"),
        (
            ["doctor", "--params", "gone.yaml"],
            "error: there is no settings file gone.yaml\nhint: Look at the path: ls .\n",
        ),
    ],
)
def test_wrong_usage_is_one_sentence_with_the_way_to_the_help(words: list[str], stderr: str) -> None:
    """A wrong word ends with 2, a suggestion where one is near, and nothing on stdout."""
    answer = datakit(*words)

    assert (answer.code, answer.stdout, answer.stderr) == (2, "", stderr)


def test_wrong_usage_is_an_object_too_when_json_was_asked_for() -> None:
    """A program that misspells an option gets the same object as for any error."""
    answer = datakit("doctor", "--jsno", "--json")

    assert answer.code == 2
    assert (answer.json["command"], answer.json["ok"]) == ("doctor", False)
    assert answer.json["error"]["kind"] == "UsageError"
    assert answer.json["error"]["hint"] == "datakit doctor --help"


def python(script: str, *words: str) -> subprocess.Popen[str]:
    """Start a Python program that runs a command."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


SLOW = """
import sys, time
import datakit.operate.doctor as room
def look(directory):
    sys.stderr.write("working\\n"); sys.stderr.flush()
    time.sleep(60)
room.look = look
from datakit.cli.main import main
sys.exit(main())
"""


def test_ctrl_c_ends_a_working_command_with_one_line_and_130() -> None:
    """SIGINT in the middle of the work: no stack trace, the word, the code."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    process.stderr.readline()

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stdout, stderr) == (130, "", "error: interrupted\n")


THREADS = """
import sys, threading, time
import datakit.operate.doctor as room
def look(directory):
    threading.Thread(target=time.sleep, args=(60,)).start()
    sys.stderr.write("working\\n"); sys.stderr.flush()
    raise KeyboardInterrupt
room.look = look
from datakit.cli.main import main
sys.exit(main())
"""


def test_a_second_ctrl_c_ends_at_once_without_a_stack_trace() -> None:
    """While threads are joined at the end, another SIGINT kills the process and prints nothing more."""
    process = subprocess.Popen(
        [sys.executable, "-c", THREADS, "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    said = [process.stderr.readline(), process.stderr.readline()]
    _wait_until_quiet(process)

    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)

    assert said == ["working\n", "error: interrupted\n"]
    assert (process.returncode, rest) == (-signal.SIGINT, "")


def _wait_until_quiet(process: subprocess.Popen[str]) -> None:
    """Until SIGINT has its default action again, as the kernel tells it."""
    while True:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
        if not caught >> (signal.SIGINT - 1) & 1:
            return
        os.sched_yield()


@pytest.mark.prove
@pytest.mark.parametrize("calls", [*range(2, 60, 3), *range(60, 330, 29)])
def test_ctrl_c_never_shows_a_stack_trace(calls: int) -> None:
    """SIGINT at the n-th call of a function of ours, from the door to the end: always 130 and the one line."""
    script = (
        "import os, signal, sys\n"
        "seen = 0\n"
        "def tick(frame, event, arg):\n"
        "    global seen\n"
        "    if 'datakit' in frame.f_code.co_filename and event == 'call':\n"
        "        seen += 1\n"
        f"        if seen == {calls}: sys.setprofile(None); os.kill(os.getpid(), signal.SIGINT)\n"
        "from datakit.cli.main import main\n"
        "sys.setprofile(tick)\n"
        "sys.exit(main())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--settings"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_a_started_command_can_be_stopped_by_its_group() -> None:
    """The terminal sends SIGINT to the whole process group; the command ends in its usual way."""
    process = start("doctor", "--help")

    stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stderr) == (0, "")
    assert "Usage: datakit doctor" in stdout


SLOW_ROOM = """
import sys, time
print("loading", file=sys.stderr, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("json_wanted", [False, True])
def test_ctrl_c_before_the_command_begins_is_told_as_later(tmp_path: Path, json_wanted: bool) -> None:
    """While the libraries load: 130, one line, no stack trace; under --json one object all the same."""
    (tmp_path / "slow_room.py").write_text(SLOW_ROOM)
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import importlib; real = importlib.import_module\n"
        "import datakit.cli.main as main\n"
        "def slow(name, *more):\n"
        "    if name.endswith('.inspect'): real('slow_room')\n"
        "    return real(name, *more)\n"
        "main.importlib.import_module = slow\n"
        "sys.exit(main.main())"
    )
    words = ["inspect", "x", *(["--json"] if json_wanted else [])]
    with python(script, str(tmp_path), *words) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading\n"

        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said == "error: interrupted\n"
    if json_wanted:
        told = json.loads(out)
        assert (told["command"], told["exit_code"], told["error"]["kind"]) == ("inspect", 130, "KeyboardInterrupt")
    else:
        assert out == ""
