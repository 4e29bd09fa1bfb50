"""tie: a process that does not outlive the one that started it.

    python pipelines/tie.py PID COMMAND...      # runs COMMAND; it gets SIGTERM when PID, which called this, is gone

`kill -9` reaches one process; without this its children would go on writing. Linux only (prctl: PR_SET_PDEATHSIG,
which survives exec); elsewhere `demo.py` finds the left-over processes when it starts the next time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int, *, signum: int = signal.SIGTERM) -> None:
    """Ask the kernel for `signum` when the parent dies; exit at once if `parent` is not the parent any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:
            sys.exit(128 + signum)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 -- the point of this file is to become the command
