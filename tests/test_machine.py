"""machine: cores follow the affinity mask and every control group around the process."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from datakit.machine import cores, cpu_quota, memory_bytes

NO_LIMIT: dict[str, str] = {}


def pretend(root: Path, *, groups: str, limits: dict[str, str]) -> Path:
    """A root with the two trees of the kernel that are read."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "quota"),
    [
        pytest.param("0::/\n", NO_LIMIT, math.inf, id="no file"),
        pytest.param("0::/\n", {"cpu.max": "max 100000"}, math.inf, id="no limit"),
        pytest.param("0::/\n", {"cpu.max": "150000 100000"}, 1.5, id="a container's own view"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "400000 100000"}, 4.0, id="a group"),
        pytest.param(
            "0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "100000 50000"}, 2.0, id="the group around it"
        ),
        pytest.param(
            "12:cpu,cpuacct:/a\n3:memory:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            0.5,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/1f\n",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            3.0,
            id="version 1 in a container",
        ),
        pytest.param(
            "4:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            math.inf,
            id="none of 1",
        ),
        pytest.param("3:memory:/a\n", {"memory/a/cpu.max": "100000 100000"}, math.inf, id="another controller"),
        pytest.param("0::/\n", {"cpu.max": "what is this"}, math.inf, id="unreadable"),
    ],
)
def test_the_quota_is_the_smallest_around_the_process(
    tmp_path: Path, groups: str, limits: dict[str, str], quota: float
) -> None:
    """Both versions of control groups, as a host and as a container show them."""
    root = pretend(tmp_path, groups=groups, limits=limits)

    assert cpu_quota(root=root) == quota


@pytest.mark.parametrize(("limit", "allowed"), [("10000 100000", 1), ("50000 50000", 1), ("max 100000", None)])
def test_cores_follow_the_quota_and_the_mask(tmp_path: Path, limit: str, allowed: int | None) -> None:
    """Never more than the process may run on, never less than one."""
    root = pretend(tmp_path, groups="0::/\n", limits={"cpu.max": limit})

    assert cores(root=root) == (allowed or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("groups", "limits", "limit"),
    [
        ("0::/\n", {"memory.max": "1073741824"}, 2**30),
        ("0::/a/b\n", {"a/memory.max": "536870912", "a/b/memory.max": "max"}, 2**29),
        ("9:memory:/docker/1f\n", {"memory/memory.limit_in_bytes": "536870912"}, 2**29),
        ("9:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/\n", {"memory.max": "max"}, None),
        ("", NO_LIMIT, None),
    ],
)
def test_memory_is_the_machines_or_its_groups(
    tmp_path: Path, groups: str, limits: dict[str, str], limit: int | None
) -> None:
    """`max`, a number beyond all memory and no file at all mean that there is no limit."""
    root = pretend(tmp_path, groups=groups, limits=limits)

    assert memory_bytes(root=root) == (limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_the_mask_limits_what_the_quota_does_not(tmp_path: Path) -> None:
    """`taskset` and Slurm bind a process to some of the cores."""
    root = pretend(tmp_path, groups="0::/\n", limits={"cpu.max": "99900000 100000"})
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert cores(root=root) == 1
    finally:
        os.sched_setaffinity(0, mask)
