"""machine: what this process may use of the machine it runs on.

A container sees every core of its host and is stopped for the rest of each period once it has used its quota, so a
worker for each visible core only makes all of them slower. Formats: `Documentation/admin-guide/cgroup-v2.rst`,
`Documentation/scheduler/sched-bwc.rst` and `Documentation/admin-guide/cgroup-v1/memory.rst` of the Linux kernel.
"""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def cores(*, root: Path = _ROOT) -> int:
    """Cores that this process may use: those it may run on, or its control group's quota where that is less.

    A quota of one and a half cores counts as two.

    Args:
        root: Where `/proc` and `/sys` are.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota(root=root))))


def cpu_quota(*, root: Path = _ROOT) -> float:
    """Cores' worth of time that the control groups of this process allow; infinite where none of them limits it.

    The smallest of the process's own group and of those around it counts. What cannot be read limits nothing.
    """
    return min(map(_quota, _groups("cpu", root)), default=math.inf)


def memory_bytes(*, root: Path = _ROOT) -> int:
    """Memory that this process may use: the machine's, or its control group's limit where that is less."""
    limits = [
        number
        for group in _groups("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (number := _number(group / name)) is not None
    ]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def _groups(controller: str, root: Path) -> list[Path]:
    """The directories that may limit this process: of its control groups and those around them, in both versions."""
    mounts = root / "sys/fs/cgroup"
    found = [mounts, mounts / controller]  # a container sees its own group there, whatever its name outside is
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            inner = PurePosixPath(name.lstrip("/"))
            found += [mounts / controllers / part for part in (inner, *inner.parents)]
    return found


def _quota(group: Path) -> float:
    words = _read(group / "cpu.max").split()
    if not words:
        words = [_read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return math.inf  # `max`, or -1, or no such file
    return int(words[0]) / int(words[1])


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
