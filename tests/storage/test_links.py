"""storage/links: a second name, or a plain no."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from datakit import NotFound
from datakit.data.digest import entry_of
from datakit.storage.links import link, link_or_copy


def test_a_link_is_the_same_file(tmp_path: Path) -> None:
    """One inode, two names."""
    (tmp_path / "a").write_bytes(b"1")

    made = link(tmp_path / "a", tmp_path / "b")

    assert made
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS])
def test_where_there_are_no_links_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Another disk, a file system without them, too many of them: no error, and nothing is made."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)

    assert not link(tmp_path / "a", tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_another_disk_has_no_link(tmp_path: Path) -> None:
    """What a kernel says between two file systems."""
    assert os.stat("/proc").st_dev != tmp_path.stat().st_dev

    assert not link("/proc/version", tmp_path / "version")


def test_a_name_that_is_taken_and_a_file_that_is_gone_are_errors(tmp_path: Path) -> None:
    """They are faults of the caller's."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"1")

    with pytest.raises(FileExistsError):
        link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        link(tmp_path / "gone", tmp_path / "c")


def test_a_link_or_a_copy_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a copy it says what was read; nothing else lies there afterwards."""
    (tmp_path / "a").write_bytes(b"bytes")

    linked = link_or_copy(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr("datakit.storage.links.link", lambda path, target: False)
    copied = link_or_copy(tmp_path / "a", tmp_path / "c")

    assert linked is None
    assert copied == entry_of("c", b"bytes")
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")
    assert not os.path.samefile(tmp_path / "a", tmp_path / "c")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys("abc", b"bytes")


def test_a_file_that_is_gone_is_neither_linked_nor_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name stays free."""
    with pytest.raises(NotFound):
        link_or_copy(tmp_path / "gone", tmp_path / "c")
    monkeypatch.setattr("datakit.storage.links.link", lambda path, target: False)
    with pytest.raises(NotFound):
        link_or_copy(tmp_path / "gone", tmp_path / "c")

    assert not list(tmp_path.iterdir())
