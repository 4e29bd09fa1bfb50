"""cli: run a command line in a test, as a process of its own or inside this one, and see all of its answer."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """How a command line ended and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.stdout)


class _Stream(io.TextIOWrapper):
    """A text stream over memory, with the `buffer` that commands write bytes to."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode("utf-8", errors="backslashreplace")


def datakit(*words: object) -> Answer:
    """Run `datakit WORDS...` inside this process: quick, with this process's environment and directory."""
    from datakit.cli.main import main

    out, err = _Stream(), _Stream()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Answer(code, out.text(), err.text())


def start(*words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `datakit WORDS...` as a process of its own, in a process group of its own, and return at once."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from datakit.cli.main import main; sys.exit(main())", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(env),
        start_new_session=True,
    )


def datakit_process(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> Answer:
    """Run `datakit WORDS...` as a process of its own and wait for its end."""
    process = start(*words, cwd=cwd, env=env)
    stdout, stderr = process.communicate(timeout=timeout_s)
    return Answer(process.returncode, stdout, stderr)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the repository importable, and `extra` on top."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}
