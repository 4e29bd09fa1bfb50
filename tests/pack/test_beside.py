"""pack/beside: files of a directory in use appear all at the end, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.data.digest import entry_of
from datakit.pack.beside import Beside
from datakit.storage.disk import TEMPORARY, sweep


def test_files_wait_under_names_that_a_sweep_knows(tmp_path: Path) -> None:
    """Until they settle nothing has its name; then all have, with the entries of their bytes."""
    (tmp_path / "theirs").write_bytes(b"theirs")
    beside = Beside(tmp_path)
    with beside.open("a") as write:
        write(b"12")
        write(memoryview(b"34"))
    with beside.open("sub/b") as write:
        write(b"")
    beside.place("x.tar").write_bytes(b"index")

    waiting = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "theirs"]
    beside.settle()

    assert len(waiting) == 3
    assert all(TEMPORARY.fullmatch(path.name) for path in waiting)
    assert beside.entries == [entry_of("a", b"1234"), entry_of("sub/b", b"")]
    assert {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == {
        "a": b"1234",
        "sub/b": b"",
        "theirs": b"theirs",
        "x.tar.index.arrow": b"index",
    }
    beside.clear()
    assert (tmp_path / "a").exists()


def test_what_waits_is_cleared(tmp_path: Path) -> None:
    """After an error nothing of it is left; after a kill the next start sweeps it."""
    beside = Beside(tmp_path)
    with pytest.raises(RuntimeError, match="half way"), beside.open("a"):
        raise RuntimeError("half way")
    with beside.open("b") as write:
        write(b"12")

    killed = Beside(tmp_path)
    with killed.open("c") as write:
        write(b"12")
    beside.clear()

    assert len(sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    assert beside.place("x.tar") == beside.place("x.tar")
