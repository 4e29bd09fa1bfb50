"""pipe: the trainer's end of the write-back agent: it starts the process, asks it, hears it, and starts it again.

One JSON object a line goes each way; what they mean is no matter here (`storage/agent`). Nothing that the agent says or
does is raised: a line that is no answer is logged, a process that ends is replaced a few times and then given up.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datakit.errors import DatakitError
from datakit.storage import disk
from datakit.storage.access import StoreOptions

MAX_STARTS = 4
"""How often an agent that died is started in one attempt; more is not bad luck."""

AGENT_LOG = "agent.log"

logger = logging.getLogger(__name__)


class AgentPipe:
    """Both ends of the pipes to one agent, and the process behind them.

    Args:
        queue_dir: The agent's own argument; its log lies there.
        options: How to reach the store, handed over in its environment, or None for what is there.
        env: More variables for it.
        take: Gets each answer; a KeyError, TypeError, ValueError or AttributeError says that it is none.
    """

    def __init__(
        self,
        queue_dir: Path,
        *,
        options: StoreOptions | None,
        env: Mapping[str, str],
        take: Callable[[dict[str, Any]], None],
    ) -> None:
        self._queue_dir = queue_dir
        self._options = options
        self._env = dict(env)
        self._take = take
        self._heard = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def log_hint(self) -> str:
        """Where to look for why an agent ended."""
        return f"See {self._queue_dir / AGENT_LOG}"

    def start(self) -> None:
        """Start a process.

        Raises:
            DatakitError: The queue directory cannot be written.
        """
        self.starts += 1
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        there = os.environ if self._options is None else self._options.to_environment(os.environ)
        env = {**there, **self._env, "PYTHONPATH": path, "TOKIO_WORKER_THREADS": "2"}
        with disk.at_door(self._queue_dir), open(self._queue_dir / AGENT_LOG, "ab") as log:
            self.process = subprocess.Popen(
                # -P: a file of the working directory must not stand in for one of the library
                [sys.executable, "-P", "-m", "datakit.storage.agent", str(self._queue_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._heard = b""

    def restart(self) -> DatakitError | None:
        """Take leave of a process that has ended, and start another; gives what is in the way when there is none."""
        gone, self.process = self.process, None
        if gone is not None:
            for pipe in (gone.stdin, gone.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what was not sent any more is asked of the next
                        pipe.close()
            gone.wait()
        if self.starts >= MAX_STARTS:
            return DatakitError("the agent ends again and again", hint=self.log_hint)
        try:
            self.start()
        except DatakitError as error:  # the queue directory is gone, or its disk is full
            return error
        return None

    def send(self, request: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> bool:
        """Ask something, or several things at once; False when the process has ended meanwhile.

        Where there is none, nothing is asked.
        """
        if self.process is None or self.process.stdin is None:
            return True
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def hear(self, timeout_s: float) -> bool:
        """Take in what was said; waits for the first word. False when nothing came and the process has ended."""
        if self.process is None:
            return True
        return self._hear(self.process, timeout_s) or self.process.poll() is None

    def close(self, deadline_s: float, *, hurried: Callable[[], bool], hurry_s: float) -> bool:
        """Let the process finish what it has, and hear it; False when it died over that.

        Args:
            deadline_s: Seconds to wait; it goes on by itself after that.
            hurried: Whether the wait is to be cut short; asked twice a second.
            hurry_s: Seconds to wait at most from when it is.
        """
        process, self.process = self.process, None
        if process is None or process.stdin is None or process.stdout is None:
            return True
        until, in_a_hurry = time.monotonic() + deadline_s, False
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        while process.poll() is None and (left := until - time.monotonic()) > 0:
            self._hear(process, min(left, 0.5))
            if not in_a_hurry and hurried():
                in_a_hurry, until = True, min(until, time.monotonic() + hurry_s)
        self._hear(process, 0.0)
        process.stdout.close()
        return process.poll() in (None, 0)

    def _hear(self, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        assert process.stdout is not None
        heard, ready = False, select.poll()  # which takes descriptors of 1024 and more, as `select` does not
        ready.register(process.stdout, select.POLLIN)
        while ready.poll(timeout_s * 1000):
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            heard, timeout_s = True, 0.0
            *lines, self._heard = (self._heard + data).split(b"\n")
            for line in lines:
                self._take_line(line)
        return heard

    def _take_line(self, line: bytes) -> None:
        try:
            self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            # something that a library of the agent prints: training does not end for that
            logger.warning("the write-back agent said what is no answer: %r", line[:200])
