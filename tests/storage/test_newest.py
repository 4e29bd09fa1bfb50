"""storage/newest: the newest that is whole, whatever stands beside it."""

from __future__ import annotations

from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.storage.commit import commit, read_manifest
from datakit.storage.newest import newest
from support.commits import flip_bit, make_commit


def test_the_newest_valid_commit_is_found_past_damaged_ones(tmp_path: Path) -> None:
    """A damaged, an unfinished and a foreign one are skipped, each with its reason."""
    for step in (10, 20, 30, 40):
        make_commit(tmp_path / f"step-{step:08d}", {"state": str(step).encode()}, kind="checkpoint")
    flip_bit(tmp_path / "step-00000040" / "state", 0)
    (tmp_path / "step-00000030" / MANIFEST_NAME).unlink()
    with commit(tmp_path / "step-00000050", kind="adapter", name="x") as staging:
        staging.write("a", b"x")

    found = newest(tmp_path)

    assert found.path == tmp_path / "step-00000020"
    assert found.manifest == read_manifest(tmp_path / "step-00000020")
    assert [path.name for path, _reason in found.skipped] == ["step-00000050", "step-00000040", "step-00000030"]
    assert "adapter" in found.skipped[0][1]
    assert "crc32c" in found.skipped[1][1]
    assert MANIFEST_NAME in found.skipped[2][1]


def test_where_nothing_is_nothing_is_newest(tmp_path: Path) -> None:
    """A parent that is not there yet holds no commit and is no error."""
    found = newest(tmp_path / "absent")

    assert (found.path, found.manifest, found.skipped) == (None, None, ())
