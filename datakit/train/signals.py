"""signals: how the world outside asks a training to stop, and how it is heard.

SIGTERM (a reclaimed machine, a scheduler), SIGHUP (a terminal or ssh session that is gone; not under `nohup`, where it
is ignored) and SIGINT (Ctrl-C) set a flag that the loop reads at the end of each step, and while it waits for data;
the run is then saved and ends with exit code 75 or 130. Where there is nothing to save yet, while a model is loaded or
a checkpoint fetched, it ends at once; by a SIGINT that comes second too, without saving. Inside a DVC stage the kernel
is asked for SIGTERM when the parent dies, because dvc forwards no signal (measured with dvc 3.67.1).

Promises: the first signal decides how the run ends, whatever comes after it, and whatever a library makes of being cut
short; handlers that were set before are put back. Does nothing outside the main thread, where Python has no signals.
Source: prctl(2), PR_SET_PDEATHSIG, of the Linux man-pages project.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeAlias

from datakit.errors import Interrupted

_PR_SET_PDEATHSIG = 1


Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None
"""As `signal.signal` takes and gives it."""


class WaitEnded(Exception):
    """A wait was given up because the run was asked to stop; it never leaves the loop that waited."""


class _CutShort(KeyboardInterrupt):
    """What a signal raises where it ends the run at once.

    No Exception: a library would make an ImportError of it, and a room take it for a fault of what it was looking at.
    """


class StopRequest:
    """Whether, and by which signal, the run was asked to stop; later ones change nothing, but SIGINT does not wait."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._at_once = False
        self._deaf = False
        self._cut_short: str | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- the shape of a signal handler
        """Handle a signal."""
        if self._deaf:
            return
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._check()
        elif number == signal.SIGINT:
            self._cut("and at once by Ctrl-C: the step under way is lost")

    def _check(self) -> None:
        if self and self._at_once:
            self._cut("before the first step")

    def _cut(self, when: str) -> None:
        self._cut_short = self._cut_short or when
        raise _CutShort

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """For the length of the block, outside of `save_first`, a signal ends the run there and then."""
        self._at_once = True
        try:
            self._check()
            yield
        finally:
            self._at_once = False

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

    def deafen(self) -> None:
        """Hear nothing more: what ends the block ends it whole, and puts back what answered signals before."""
        self._deaf = True

    def answer(self) -> None:
        """End the run as the signal asks if one has cut it short, whatever that was made into on its way.

        Raises:
            KeyboardInterrupt: As in `raise_it`.
            Interrupted: Likewise.
        """
        if self.signal is not None and self._cut_short is not None:
            self.raise_it(f"stopped by {self.signal.name} {self._cut_short}", hint="Run the same command again")

    def handler_at_the_end(self, number: int, before: Handler) -> Handler:
        """What answers a signal where the process has only to go, once one has decided how: none changes its code.

        SIGTERM and SIGHUP ask for what happens anyway. Ctrl-C still ends a process that does not come to its end.
        """
        if self.signal is None or number == self.signal == signal.SIGINT:
            return before
        return _leave if number == signal.SIGINT else signal.SIG_IGN


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 -- the shape of a signal handler
    os._exit(Interrupted.exit_code)


@contextlib.contextmanager
def listen(env: Mapping[str, str] = os.environ, *, to_the_end: bool = False) -> Iterator[StopRequest]:
    """Hear SIGTERM, SIGHUP and SIGINT for the length of the block; inside of another such block there is one request.

    Args:
        env: Where `DVC_STAGE` tells that a DVC stage runs this process.
        to_the_end: Whether the process ends after the block: once a signal was heard, no later one changes how.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the block at once.
        Interrupted: SIGTERM or SIGHUP did, in place of whatever error left the block.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    around = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(around, StopRequest):
        yield around
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup: the user wants it to go on
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, request.hear)
        if env.get("DVC_STAGE"):
            end_with_parent()
        yield request
    except BaseException:
        request.deafen()
        request.answer()
        raise
    finally:
        request.deafen()
        for number, handler in before.items():
            signal.signal(number, request.handler_at_the_end(number, handler) if to_the_end else handler)


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when its parent dies; on other systems than Linux, nothing."""
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)
