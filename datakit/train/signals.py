"""signals: how the world outside asks a training to stop, and how it is heard.

SIGTERM (a reclaimed machine, a scheduler), SIGHUP (a terminal or ssh session that is gone; not under `nohup`, where it
is ignored) and SIGINT (Ctrl-C) set a flag that the loop reads at the end of each step, and while it waits for data;
the run is then saved and ends with exit code 75 or 130. A second SIGINT ends it at once, without saving. Where there is
nothing to save yet, while a model is loaded or a checkpoint fetched, the first one ends the run at once. Inside a DVC
stage the kernel is asked for SIGTERM when the parent dies, because dvc forwards no signal (measured with dvc 3.67.1).

Promises: handlers that were set before are put back. Does nothing outside the main thread, where Python has no signals.
Source: prctl(2), PR_SET_PDEATHSIG, of the Linux man-pages project.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType

from datakit.errors import Interrupted

_PR_SET_PDEATHSIG = 1


class WaitEnded(Exception):
    """A wait was given up because the run was asked to stop; it never leaves the loop that waited."""


class StopRequest:
    """Whether, and by which signal, the run was asked to stop.

    Args:
        at_once: Whether a signal ends the run there and then, because there is nothing to save.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.signal: signal.Signals | None = None
        self._at_once = at_once

    def __bool__(self) -> bool:
        return self.signal is not None

    def hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- the shape of a signal handler
        """Handle a signal."""
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self._at_once:
            self.raise_it(f"stopped by {self.signal.name} before the first step", hint="Run the same command again")

    @contextlib.contextmanager
    def save_first(self) -> Iterator[None]:
        """For the length of the block a signal is a wish only, which the block reads and grants."""
        before, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = before

    def end_wait(self) -> None:
        """Give up a wait if the run was asked to stop: for what waits without an end that is known.

        Raises:
            WaitEnded: It was.
        """
        if self:
            raise WaitEnded

    def raise_it(self, message: str, *, hint: str) -> None:
        """End the run as the signal asks, after its state was saved.

        Raises:
            KeyboardInterrupt: It was Ctrl-C.
            Interrupted: It was SIGTERM or SIGHUP.
        """
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Interrupted(message, hint=hint)


@contextlib.contextmanager
def listen(env: Mapping[str, str] = os.environ, *, at_once: bool = False) -> Iterator[StopRequest]:
    """Hear SIGTERM, SIGHUP and SIGINT for the length of the block.

    Args:
        env: Where `DVC_STAGE` tells that a DVC stage runs this process.
        at_once: Whether a signal ends the run there and then, outside of `save_first`.
    """
    request = StopRequest(at_once=at_once)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: the user wants it to go on
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request.hear) for number in numbers}
    if env.get("DVC_STAGE"):
        end_with_parent()
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when its parent dies; on other systems than Linux, nothing."""
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)
