"""version/cache: what becomes an object of DVC's cache was verified, costs no byte, and appears in one step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit import IntegrityError, NotFound
from datakit.data.digest import entry_of
from datakit.version.cache import Snapshot, link_into_cache
from datakit.version.dvc import Tree, object_key
from datakit.version.local import record_of
from support.commits import flip_bit, make_commit, noise, spoil_md5
from support.dvcproject import make_project


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A commit, and a note that its manifest does not name."""
    make_commit(tmp_path / "ds", {"a.tar": noise(300), "b/c.tar": noise(200, 1)})
    (tmp_path / "ds" / "note").write_bytes(b"by hand")
    return tmp_path / "ds"


def test_a_snapshot_has_the_address_of_the_directory(dataset: Path) -> None:
    """And the bytes of all its files; of a file, its md5."""
    whole, note = Snapshot.of(dataset), Snapshot.of(dataset / "note")

    assert whole.md5 == record_of(dataset, written="ds").md5
    assert whole.bytes == sum(path.stat().st_size for path in dataset.rglob("*") if path.is_file())
    assert (note.md5, note.tree) == (entry_of("", b"by hand").md5, None)
    with pytest.raises(NotFound):
        Snapshot.of(dataset / "gone")


def test_every_file_becomes_a_link_once(dataset: Path, tmp_path: Path) -> None:
    """The same inode, read-only; what is there is not linked again, what was cut short is replaced."""
    cut = tmp_path / "cache" / object_key(entry_of("", noise(300)).md5)
    cut.parent.mkdir(parents=True)
    cut.write_bytes(b"cut")

    first = link_into_cache(Snapshot.of(dataset), tmp_path / "cache")
    again = link_into_cache(Snapshot.of(dataset), tmp_path / "cache")

    assert (first, again) == (4, 0)
    assert cut.samefile(dataset / "a.tar")
    assert (dataset / "a.tar").stat().st_mode & 0o777 == 0o444
    listed = tmp_path / "cache" / object_key(Snapshot.of(dataset).md5)
    assert Tree.from_bytes(listed.read_bytes(), where="") == Snapshot.of(dataset).tree
    names = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert not [name for name in names if name.startswith(".")]


def test_dvc_checks_out_from_the_links(dataset: Path, tmp_path: Path) -> None:
    """The real one, with no remote at all; its status is in order before and after."""
    project = make_project(tmp_path / "p")
    shutil.copytree(dataset, project.root / "ds")
    project.dvc("add", "-q", "--no-commit", "ds")

    link_into_cache(Snapshot.of(project.root / "ds"), project.root / ".dvc" / "cache")
    before = project.dvc("status")
    shutil.rmtree(project.root / "ds")
    project.dvc("checkout", "-q")

    assert "up to date" in before
    assert Snapshot.of(project.root / "ds").tree == Snapshot.of(dataset).tree


def test_a_member_whose_md5_its_manifest_does_not_know_is_not_linked(dataset: Path, tmp_path: Path) -> None:
    """The rest of its entry fits: under this md5 DVC would believe other bytes."""
    spoil_md5(dataset, "a.tar")

    with pytest.raises(IntegrityError, match=f"a.tar has the md5 {entry_of('', noise(300)).md5}, its manifest says"):
        link_into_cache(Snapshot.of(dataset), tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["a.tar", "note"])
def test_what_is_not_what_it_was_is_not_linked(dataset: Path, tmp_path: Path, name: str) -> None:
    """A flipped bit of a member, an edit of another file; what was verified just now is not read again."""
    snapshot = Snapshot.of(dataset)
    flip_bit(dataset / name, 3)

    with pytest.raises(IntegrityError):
        link_into_cache(snapshot, tmp_path / "cache")
    link_into_cache(snapshot, tmp_path / "other", verified=snapshot.md5s)

    assert not (tmp_path / "cache" / object_key(snapshot.md5s[name])).exists()
    assert (tmp_path / "other" / object_key(snapshot.md5s[name])).samefile(dataset / name)
