"""starting: how the agent of a cache is started: by exec, never by fork, in a session of its own.

A shell puts it into the background and leaves at once, so that it is nobody's child whom a trainer would have to bury.
Whoever starts it hears in one line how that went. What it does not do: decide whether one is needed (`client`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datakit.storage import disk
from datakit.storage.copies import error_of

LOG_NAME = "agent.log"


def start(root: Path, options: Sequence[str], *, until_s: float) -> bool:
    """Start an agent, and hear how that went; False where it found another, or died.

    Args:
        root: The cache directory, which is there; the agent's log lies in it.
        options: Of its command line.
        until_s: How long to wait for its word, on the clock that only grows (`time.monotonic`).

    Raises:
        DatakitError: What it says is in the way.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # -P: a file of the working directory must not stand in for one of the library
    command = [sys.executable, "-P", "-m", "datakit.tier.keeper", str(root), *options]
    with disk.at_door(root), open(root / LOG_NAME, "ab") as log:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "TOKIO_WORKER_THREADS": "2"},
            start_new_session=True,
        )
    with shell:
        said = _line(shell, until_s)
    if "error" in said:
        raise error_of(said, subject=str(root))
    return bool(said.get("serving"))


def _line(shell: subprocess.Popen[bytes], until_s: float) -> dict[str, Any]:
    """What an agent says once it has begun; nothing where it has died, or takes too long."""
    assert shell.stdout is not None
    ready = select.poll()
    ready.register(shell.stdout, select.POLLIN)
    data = b""
    while not data.endswith(b"\n") and ready.poll(max(0.0, until_s - time.monotonic()) * 1000):
        piece = os.read(shell.stdout.fileno(), 65536)
        if not piece:
            break
        data += piece
    try:
        said = json.loads(data)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
