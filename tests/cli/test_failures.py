"""What goes wrong for people ends in one sentence, the right exit code, and nothing half-made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import Answer, datakit, environment, start
from support.faulty import Fault, FaultyServer
from support.s3server import S3Server


def chat(number: int) -> str:
    """One conversation as a JSON line."""
    turns = [{"role": "user", "content": f"What is {number}?"}, {"role": "assistant", "content": f"It is {number}."}]
    return json.dumps({"id": f"chat-{number:05d}", "messages": turns})


@pytest.fixture
def raw(clean_room: Path) -> Path:
    """Records to pack, in the current directory."""
    path = clean_room / "raw.jsonl"
    path.write_text("".join(chat(number) + "\n" for number in range(50)), encoding="utf-8")
    return path


@pytest.fixture
def packed(raw: Path) -> Path:
    """A dataset of these records."""
    assert datakit("pack", "raw.jsonl", "data").code == 0
    return raw.parent / "data"


def names(room: Path) -> set[str]:
    """Everything in a directory, hidden names included."""
    return {path.name for path in room.iterdir()}


def told(answer: Answer) -> tuple[int, str]:
    """Exit code and what was said; nothing was printed as a result, and no stack trace was shown."""
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    return answer.code, answer.stderr


def test_a_path_that_is_not_there(clean_room: Path) -> None:
    """Packing what is not there is wrong usage and makes nothing."""
    answer = datakit("pack", "gone.jsonl", "data")

    assert told(answer) == (2, "error: gone.jsonl is not there\nhint: Look at the path: ls .\n")
    assert names(clean_room) == set()


def test_an_empty_input(clean_room: Path) -> None:
    """A file without records gives no dataset without samples."""
    (clean_room / "raw.jsonl").touch()

    answer = datakit("pack", "raw.jsonl", "data")

    assert told(answer) == (1, "error: raw.jsonl is empty\nhint: Fetch it again, or move it away\n")
    assert names(clean_room) == {"raw.jsonl"}


def test_a_record_that_is_not_json(raw: Path) -> None:
    """File and line are named, and the records before it leave nothing."""
    with raw.open("a", encoding="utf-8") as file:
        file.write("{'id': 1}\n")

    answer = datakit("pack", "raw.jsonl", "data")

    code, words = told(answer)
    assert code == 1
    assert words.startswith("error: raw.jsonl:51: not JSON: ")
    assert words.endswith("\nhint: Mend that line, or take it out, and pack again\n")
    assert names(raw.parent) == {"raw.jsonl"}


def test_a_disk_that_is_full(raw: Path) -> None:
    """A write that the system refuses for want of space is exit code 5, and what was begun is gone.

    A limit of the file size stands for the full disk: the system's answer takes the same way.
    """
    script = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (4096, 4096))\n"
    script += "import sys; from datakit.cli.main import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", script, "pack", "raw.jsonl", "data"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=60,
    )

    code, words = told(Answer(done.returncode, done.stdout, done.stderr))
    assert code == 5
    assert words.startswith("error: no space to write ")
    assert words.endswith("\nhint: Free some space or choose another place, then run the same command again\n")
    assert names(raw.parent) == {"raw.jsonl"}


def test_a_bucket_that_does_not_exist(packed: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing into a bucket that is not there names bucket and endpoint."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)

    answer = datakit("sync", "data", "s3://not-there/data")

    code, words = told(answer)
    assert code == 2
    assert words == (
        "  requests to s3://not-there: 1 GET\n"
        f"error: bucket s3://not-there does not exist at {server.endpoint}\n"
        "hint: Create it, or check its name and the endpoint\n"
    )


def test_wrong_credentials(packed: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses our key is exit code 6, and neither key nor secret is repeated."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    faulty.faults.append(Fault("denied", times=1000))

    answer = datakit("sync", "data", f"{faulty.url}/data")

    code, words = told(answer)
    assert code == 6
    assert words.endswith("\nhint: Check the credentials and what they permit\n")
    assert "AKIAWRONG" not in words
    assert "wrong-secret" not in words


def test_a_store_that_nobody_answers_for(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint where nothing listens is exit code 7, after the retries that the settings allow."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("DATAKIT_SYNC__RETRIES", "0")

    answer = datakit("sync", "data", "s3://bkt/data")

    code, words = told(answer)
    assert code == 7
    assert "no proper answer from the store at http://127.0.0.1:9" in words


def test_a_damaged_dataset(packed: Path) -> None:
    """Verify names the shard, says what is wrong on stdout, and ends with 4."""
    shard = next(packed.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)

    answer = datakit("verify", "data")

    assert answer.code == 4
    assert shard.name in answer.stdout
    assert answer.stderr.startswith("error: ")


def test_a_destination_that_is_somebody_elses(raw: Path) -> None:
    """A folder of other files is refused and left as it is."""
    (raw.parent / "data").mkdir()
    (raw.parent / "data" / "thesis.txt").write_text("years of work")

    answer = datakit("pack", "raw.jsonl", "data")

    code, _ = told(answer)
    assert code == 3
    assert (raw.parent / "data" / "thesis.txt").read_text() == "years of work"
    assert names(raw.parent / "data") == {"thesis.txt"}


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("obstore", "s3", ["sync", "data", "s3://bkt/data"]),
        ("transformers", "train", ["tokenize", "data", "tokens", "--model", "model"]),
        ("torch", "train", ["train", "data", "--model", "model", "--output", "run"]),
    ],
)
def test_a_missing_extra(packed: Path, library: str, extra: str, words: list[str]) -> None:
    """A command whose library is not installed says which pip install brings it; nothing else is touched."""
    (packed.parent / "model").mkdir()
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {library!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from datakit.cli.main import main; sys.exit(main())"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=120,
    )

    code, said = told(Answer(done.returncode, done.stdout, done.stderr))
    assert (code, said) == (1, f"error: {library} is not installed\nhint: pip install 'datakit[{extra}]'\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_in_the_middle_of_packing(clean_room: Path, workers: int) -> None:
    """The terminal interrupts the whole process group: one line, 130, no stack trace of any process, nothing left."""
    with (clean_room / "raw.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(chat(number) + "\n" for number in range(60_000))
    process = start("pack", "raw.jsonl", "data", "--shard-size", "64KiB", "--workers", workers)
    while not list(clean_room.glob(".data.tmp-*")):
        assert process.poll() is None
        time.sleep(0.01)

    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stdout, stderr) == (130, "", "error: interrupted\n")
    assert names(clean_room) == {"raw.jsonl"}


def test_the_root_of_the_file_system_is_no_destination_of_a_pack(clean_room: Path) -> None:
    """It has no name and no directory that it is in, so nothing can be put together beside it: wrong usage, 2."""
    (clean_room / "r.jsonl").write_text('{"id": "a", "text": "b"}\n')

    answer = datakit("pack", "r.jsonl", "/")

    assert answer.code == 2
    assert "/ is the root of the file system" in answer.stderr
