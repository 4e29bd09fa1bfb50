"""storage/aside: directories of work are left alone by Git, and go when nothing else is in them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from datakit.errors import Refused
from datakit.storage.aside import make_ignored, remove_bare


def test_git_leaves_it_alone(tmp_path: Path) -> None:
    """Neither what lies in it nor the file that says so is recorded."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    make_ignored(tmp_path / ".ds.pack")
    make_ignored(tmp_path / ".ds.pack")
    (tmp_path / ".ds.pack" / "built").mkdir()
    (tmp_path / ".ds.pack" / "built" / "a.tar").write_bytes(b"x" * 1024)

    told = subprocess.run(
        ["git", "-C", tmp_path, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True
    ).stdout

    assert told == ""


def test_it_goes_when_nothing_else_is_in_it(tmp_path: Path) -> None:
    """What holds something stays; what is not there is fine."""
    make_ignored(tmp_path / "bare")
    make_ignored(tmp_path / "used")
    (tmp_path / "used" / "known.json").write_bytes(b"[]")

    for name in ("bare", "used", "never"):
        remove_bare(tmp_path / name)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["used"]
    assert sorted(path.name for path in (tmp_path / "used").iterdir()) == [".gitignore", "known.json"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    """As for any directory."""
    (tmp_path / "x").write_bytes(b"")

    with pytest.raises(Refused, match="a file is in the way"):
        make_ignored(tmp_path / "x")
