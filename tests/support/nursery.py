"""nursery: many short trainings, each a process of its own that may be killed, without paying for imports each time.

A server process imports torch, transformers and peft once and then forks a child for every request. A child can be
killed with SIGKILL after a time, or at its n-th operation on files below a directory (opening, renaming, removing,
making and removing directories), which CPython announces to audit hooks: no product code knows about it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cli import environment

FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        code: 0, 1 for an error, or minus the signal that killed it.
        operations: File operations that it was about to do or did below its output directory.
        error: Class name and text of the error.
        messages: What it said by notes and cautions.
        result: The fields of the result, as far as JSON says them.
    """

    code: int
    operations: int
    error: str
    messages: tuple[str, ...]
    result: Mapping[str, Any]


class Nursery:
    """The server, seen from a test."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **environment(),
                "PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parents[1])]),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate("")

    def train(
        self,
        dataset: Path,
        *,
        model: Path,
        output: Path,
        settings: Mapping[str, Any],
        kill_at: int | None = None,
        kill_after_s: float | None = None,
        signal_at_step: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Outcome:
        """Run one training to its end or its death.

        Args:
            dataset: As for `datakit.train`.
            model: Likewise.
            output: Likewise.
            settings: Fields of the recipe.
            kill_at: Kill the process just before this file operation, counted from 1.
            kill_after_s: Kill the process after so many seconds.
            signal_at_step: Send this signal after this step: (signal, step).
            env: Variables for the process.
            options: Further arguments of `datakit.train`.
        """
        request = {
            "dataset": str(dataset),
            "model": str(model),
            "output": str(output),
            "settings": dict(settings),
            "kill_at": kill_at,
            "kill_after_s": kill_after_s,
            "signal_at_step": signal_at_step,
            "env": dict(env or {}),
            "options": options,
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Outcome(**{**answer, "messages": tuple(answer["messages"])})


def _serve() -> None:
    # loaded once for all children
    import peft.tuners.lora  # noqa: F401 -- for its effect
    import pyarrow.compute  # noqa: F401 -- for its effect
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 -- for its effect

    import datakit.train.loop  # noqa: F401 -- for its effect

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _train(request, writer)
        os.close(writer)
        if request["kill_after_s"] is not None:
            time.sleep(request["kill_after_s"])
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reader) as pipe:
            told = [json.loads(row) for row in pipe.read().splitlines()]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer = {
            "code": code,
            "operations": sum(row.get("operation", 0) for row in told),
            "error": "".join(row.get("error", "") for row in told),
            "messages": [row["message"] for row in told if "message" in row],
            "result": next((row["result"] for row in told if "result" in row), {}),
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _train(request: dict[str, Any], writer: int) -> None:
    """The child: never returns."""
    import dataclasses

    from datakit.events import Event, Progress
    from datakit.train.loop import train
    from datakit.train.recipe import Recipe

    os.setsid()
    os.environ.update(request["env"])

    def tell(row: dict[str, Any]) -> None:
        os.write(writer, (json.dumps(row, default=str) + "\n").encode())

    counter = itertools.count(1)  # several threads verify files: counting must be one step

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        named = event in FILE_OPERATIONS and isinstance(arguments[0], (str, os.PathLike))
        if named and os.fspath(arguments[0]).startswith(request["output"]):
            os.write(writer, b'{"operation": 1}\n')
            if next(counter) == request["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            if request["signal_at_step"] and event.done == request["signal_at_step"][1]:
                os.kill(os.getpid(), request["signal_at_step"][0])
        else:
            tell({"message": event.message})

    sys.addaudithook(audit)
    settings = {**request["settings"], "threads": 1}
    if "targets" in settings:
        settings["targets"] = tuple(settings["targets"])
    try:
        result = train(
            request["dataset"],
            model=request["model"],
            output=request["output"],
            settings=Recipe(**settings),
            on_event=hear,
            **request["options"],
        )
    except BaseException as error:  # noqa: BLE001 -- the child's end is told to the test, whatever it is
        tell({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    tell({"result": json.loads(json.dumps(dataclasses.asdict(result), default=str))})
    os._exit(0)


if __name__ == "__main__":
    _serve()
