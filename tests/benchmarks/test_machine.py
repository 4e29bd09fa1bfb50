"""The machine: facts, and none that belong to a person."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from frame import machine

MOUNTS = "/dev/a / ext4 rw 0 0\ntmpfs /scratch tmpfs rw 0 0\n/dev/b /scratch/my\\040disk xfs rw 0 0\n"


def test_the_filesystem_is_that_of_the_longest_mount_point_above() -> None:
    """A path below two mount points is on the inner one; blanks in names are escaped by the kernel."""
    found = [machine.filesystem_of(Path(path), mounts=MOUNTS) for path in ("/a", "/scratch/a", "/scratch/my disk/a")]

    assert found == ["ext4", "tmpfs", "xfs"]


def test_a_machine_is_described_without_its_name(tmp_path: Path) -> None:
    """Cores and memory are positive, the date is the one given, the host's name is nowhere."""
    found = machine.describe(tmp_path, now=datetime(2026, 11, 30, 9, 30, tzinfo=UTC))

    assert found.date == "2026-11-30T09:30:00Z"
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 2**28
    assert os.uname().nodename not in map(str, found.to_json().values())


def test_a_commit_with_changes_says_so(tmp_path: Path) -> None:
    """A changed file of datakit marks the commit; a change elsewhere does not."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "datakit").mkdir()
    (tmp_path / "datakit" / "a.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)

    clean = machine.git_commit(tmp_path)
    (tmp_path / "notes.txt").write_text("elsewhere")
    elsewhere = machine.git_commit(tmp_path)
    (tmp_path / "datakit" / "a.py").write_text("2")
    changed = machine.git_commit(tmp_path)

    assert len(clean) == 40
    assert (elsewhere, changed) == (clean, f"{clean}+changes")


def test_without_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    """An unpacked archive can be measured too."""
    assert machine.git_commit(tmp_path / "absent") == "unknown"
