"""machine: what the figures were taken on, and by which version of datakit.

Facts only: processor, cores, memory, kernel, filesystem, load. It records no host name, user or path.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a benchmark ran; `load_1min` is the load average before it began (0 is a quiet machine)."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    filesystem: str
    python: str
    load_1min: float
    date: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in a result."""
        return asdict(self)


def describe(scratch: Path, *, now: datetime | None = None) -> Machine:
    """This machine, with the filesystem that holds a folder."""
    now = now or datetime.now(UTC)
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        filesystem=filesystem_of(scratch, mounts=Path("/proc/self/mounts").read_text()),
        python=platform.python_version(),
        load_1min=round(os.getloadavg()[0], 2),
        date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def filesystem_of(path: Path, *, mounts: str) -> str:
    """The type of the filesystem that holds a path, by the longest mount point above it (proc_mounts(5))."""
    fields = [line.split() for line in mounts.splitlines()]
    above = [(len(entry[1]), entry[2]) for entry in fields if path.resolve().is_relative_to(_unescaped(entry[1]))]
    return max(above)[1] if above else "unknown"


def may_drop_caches() -> bool:
    """Whether this process is allowed to empty the page cache."""
    return os.access(DROP_CACHES, os.W_OK)


def drop_caches() -> None:
    """Empty the page cache, after all dirty pages went to disk (kernel: Documentation/admin-guide/sysctl/vm.rst)."""
    os.sync()
    DROP_CACHES.write_text("3")


def git_commit(repository: Path) -> str:
    """The commit that is checked out, with `+changes` if files of datakit or benchmarks differ from it."""
    head = _git(repository, "rev-parse", "HEAD")
    changes = _git(repository, "status", "--porcelain", "--", "datakit", "benchmarks/*.py", "benchmarks/frame")
    return f"{head or 'unknown'}{'+changes' if changes else ''}"


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _unescaped(mount_point: str) -> str:
    return mount_point.replace("\\040", " ")
