"""The README's commands are commands that work: `datakit` lines and Python examples are run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import readme
from support.cli import datakit, environment
from support.house import ROOT
from support.s3server import S3Server

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# run by .ci/run and by tests/pipelines, or harmless in themselves
RUN_ELSEWHERE = re.compile(
    r"(git clone|cd|python3 -m venv|\.ci/run|\.venv/bin/(pre-commit|python -m pytest)|dvc (repro|metrics))\b"
)


def test_every_command_of_the_readme_is_one_that_something_runs(pyproject: dict[str, Any]) -> None:
    """A line is a make target that exists, a datakit command that the next test runs, an installation of extras that
    there are, or one of the few named above.
    """
    lines = readme.commands(TEXT) + readme.commands(CONTRIBUTING)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    extras = set(pyproject["project"]["optional-dependencies"])

    assert any(line.startswith("make demo") for line in lines)
    for line in lines:
        words = readme.words_of(line)
        if words[0] == "make":
            assert [word for word in words[1:] if "=" not in word] in [[target] for target in targets], line
        elif "pip" in words[0] and words[1] == "install":
            named = re.findall(r"\[([\w,]+)\]", line)
            assert {extra for group in named for extra in group.split(",")} <= extras, line
        else:
            assert words[0] == "datakit" or RUN_ELSEWHERE.match(line) or "pip freeze" in line, line


def test_the_datakit_commands_of_the_readme_work_one_after_the_other(
    server: S3Server, clean_room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory with raw records and a base model where the README says they are, each command ends with 0."""
    lines = [line for line in readme.commands(TEXT) if line.startswith("datakit ")]
    prepare(lines, server, monkeypatch)

    for line in lines:
        answer = datakit(*readme.words_of(line)[1:])

        assert answer.code == 0, f"{line}\n{answer.stderr}"

    # in one process, which imports torch once, each with names of its own
    done = subprocess.run(
        [sys.executable, "-c", "import sys\nfor program in sys.argv[1:]: exec(program, {})", *readme.programs(TEXT)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def prepare(lines: list[str], server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what the commands read where they look for it, and make the training short."""
    for name, value in {**server.env, "DATAKIT_TRAIN__STEPS": "3", "DATAKIT_TRAIN__BATCH_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for bucket in readme.buckets_of(TEXT):
        server.make_bucket(bucket)
    commands = [readme.words_of(line)[1:] for line in lines]
    keys = [re.sub(r"\.\w+$", "", words[2]) for words in commands if words[0] == "cat"]
    for words in commands:
        if words[0] == "pack" and "://" not in words[1]:
            source = Path(words[1])
            readme.write_records(source if source.suffix else source / "part-0.jsonl", keys=keys)
        if "--model" in words:
            place = Path(words[words.index("--model") + 1])
            if not place.exists():
                readme.save_model(place)


JOURNEY = """
```console
$ datakit doctor                       # a comment
$ datakit pack raw/chat.jsonl data/chat --split train=90 --split held-out=10
$ datakit verify data/chat/train
$ datakit inspect data/chat/train
$ datakit tokenize data/chat/train data/tokens --model models/base --seq-len 256
$ datakit sync data/tokens s3://journey/tokens
$ datakit sync s3://journey/tokens cache/tokens
$ datakit train cache/tokens --model models/base \\
    --output runs/first --write-back s3://journey/runs/first
$ datakit lineage runs/first
$ datakit ckpt ls runs/first
```
"""


def test_the_whole_journey_works_from_the_command_line(
    server: S3Server, clean_room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From raw records to an adapter and its lineage, command by command, with a store in between."""
    lines = readme.commands(JOURNEY)
    prepare(lines, server, monkeypatch)
    server.make_bucket("journey")

    answers = {line: datakit(*readme.words_of(line)[1:]) for line in lines}

    assert [(line, answer.stderr) for line, answer in answers.items() if answer.code] == []
    assert (clean_room / "runs" / "first" / "adapter" / "adapter_model.safetensors").exists()
    published = [key for key in server.keys("journey") if key.endswith("manifest.json")]
    assert any(key.startswith("runs/first/") for key in published), published
