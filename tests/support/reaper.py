"""reaper: packs, tokenizations and indexings, each a process of its own that is killed at one of its file operations.

A server imports the library once and forks a child for every request. CPython announces each opening, renaming,
removing, making and removing of a directory to audit hooks; the child kills itself with SIGKILL just before the n-th
one below a folder. No product code knows about it, and a child that was to be killed and was not is an error here.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from support.cli import environment

FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


class Reaper:
    """The server, seen from a test.

    Args:
        room: Operations on files below it count.
    """

    def __init__(self, room: Path) -> None:
        path = os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parents[1])])
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(room)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate("")

    def operations(self, **request: Any) -> int:
        """Run to the end, and say how many file operations that took."""
        code, operations = self._run({**request, "kill_at": None})
        assert code == 0, f"it ended with {code}"
        return operations

    def kill(self, at: int, **request: Any) -> None:
        """Kill just before the operation `at`, counted from 1; see that the kill landed."""
        code, operations = self._run({**request, "kill_at": at})
        # another thread may announce an operation while the kill is on its way
        assert code == -signal.SIGKILL, f"no kill at operation {at}: {code} after {operations}"
        assert operations >= at

    def _run(self, request: dict[str, Any]) -> tuple[int, int]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request, default=str) + "\n")
        self._server.stdin.flush()
        code, operations = json.loads(self._server.stdout.readline())
        return code, operations


def _serve(room: str) -> None:
    # loaded once for all children
    import transformers.models.auto.tokenization_auto  # noqa: F401 -- for its effect

    import datakit.pack.build
    import datakit.pack.tokenize  # noqa: F401 -- for its effect

    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(request, room, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            operations = len(pipe.read())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps([code, operations]) + "\n")
        sys.stdout.flush()


def _work(request: dict[str, Any], room: str, writer: int) -> None:
    """The child: never returns."""
    from datakit.pack.build import pack
    from datakit.pack.cut import PackSettings
    from datakit.pack.reindex import reindex
    from datakit.pack.tokenize import tokenize

    counter = itertools.count(1)  # threads sync shards: counting must be one step

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        named = event in FILE_OPERATIONS and isinstance(arguments[0], (str, os.PathLike))
        if named and os.fspath(arguments[0]).startswith(room):
            os.write(writer, b".")
            if next(counter) == request["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    try:
        if request["verb"] == "pack":
            os.environ.update(request.get("env", {}))
            part = tuple(request["part"]) if request.get("part") else None
            settings = PackSettings(shard_size="8KiB", splits=request["splits"])
            pack(request["src"], request["dest"], settings=settings, workers=1, part=part)
        elif request["verb"] == "reindex":
            reindex(request["src"], request["dest"], readers=("energon",), name="ds", workers=1)
        else:
            tokenize(request["src"], request["dest"], model=request["model"])
    except BaseException as error:  # noqa: BLE001 -- the child's end is told to the test, whatever it is
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
