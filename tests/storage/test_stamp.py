"""storage/stamp: what makes a file another one, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.storage.stamp import Stamp


def replace(path: Path) -> None:
    """Other bytes of the same size and time under the name."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"4321")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


def touch(path: Path) -> None:
    """A time of its own."""
    os.utime(path, ns=(1, 1))


def lengthen(path: Path) -> None:
    """A byte more, and the time put back."""
    before = path.stat()
    path.write_bytes(b"12345")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (replace, False),
        (touch, False),
        (lengthen, False),
        (lambda path: os.link(path, path.with_name("link")), True),
        (lambda path: path.chmod(0o400), True),
    ],
    ids=["replaced", "touched", "longer", "linked", "closed"],
)
def test_what_is_done_to_a_file_is_told_by_its_stamp(
    tmp_path: Path, change: Callable[[Path], object], is_same: bool
) -> None:
    """A hard link and a mode change its inode alone, and its bytes are what they were."""
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    before = Stamp.of(path.stat())

    change(path)

    assert (Stamp.of(path.stat()) == before) is is_same
