"""What `storage/spool` promises: room before the first byte, and nothing left behind for ever."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from datakit.errors import NoSpace
from datakit.storage import disk
from datakit.storage.spool import PREFIX, remove_leftovers, spool
from support.process import kill, run_code, start_code

HOLD = """
import sys
from datakit.storage.spool import spool
with spool(10) as folder:
    (folder / "0").write_bytes(b"half")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_spool_is_ones_own_and_goes_with_its_block(tmp_path: Path) -> None:
    """Nobody else may look into it; also after an error nothing stays, no lock either."""
    folders = []

    def fail() -> None:
        with spool(10) as folder:
            (folder / "0").write_bytes(b"1")
            folders.append((folder.parent, stat.S_IMODE(folder.stat().st_mode)))
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()

    assert folders == [(tmp_path, 0o700)]
    assert os.listdir(tmp_path) == []


def test_what_does_not_fit_is_said_before_the_first_byte(tmp_path: Path) -> None:
    """With the size, the directory and the variable that names another one."""
    with pytest.raises(NoSpace, match=rf"16\.0 TiB on their way .* do not fit into {tmp_path}.*TMPDIR"), spool(2**44):
        pytest.fail("it began")

    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    """Kill -9 leaves its spool; the next one removes it, and leaves alone what a living process holds."""
    killed, living = start_code(HOLD), start_code(HOLD)
    before = {path.name for path in tmp_path.iterdir() if path.name.startswith(PREFIX)}
    kill(killed)

    with spool(10) as own:
        there = {path.name for path in tmp_path.iterdir() if path.name.startswith(PREFIX)} - {own.name}
    kill(living)
    run_code("from datakit.storage.spool import spool\nwith spool(1):\n    print('x')")

    assert len(before) == 2
    assert len(there) == 1
    assert there < before
    assert os.listdir(tmp_path) == []


def test_links_and_what_has_another_name_stay(tmp_path: Path) -> None:
    """Only directories that a spool made are removed."""
    (tmp_path / "precious").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "precious")
    (tmp_path / "datakit-other").mkdir()

    assert remove_leftovers(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["datakit-other", f"{PREFIX}link", "precious"]


def test_this_process_own_spools_are_alive(tmp_path: Path) -> None:
    """Two at once, as two threads of one program have them."""
    with spool(1) as one, spool(1) as other:
        assert one != other
        assert one.is_dir()
        assert disk.is_held(disk.lock_beside(one))
