"""version/revision: what DVC recorded at a Git revision, found from where one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit import NotFound
from datakit.version.document import write_yaml
from datakit.version.dvc import Out, write_dvc_file
from datakit.version.project import Pointer
from datakit.version.revision import Revision
from support.gitrepo import commit_all, git

OLD, NEW = Out("data/packed", "a" * 32 + ".dir"), Out("data/packed", "b" * 32 + ".dir")


def lock(out: Out) -> bytes:
    return write_yaml({"schema": "2.0", "stages": {"pack": {"cmd": "x", "outs": [out.to_json()]}}})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two revisions, `v1` and HEAD, and a working tree that is at neither; one stands in it."""
    root = tmp_path / "p"
    (root / "data").mkdir(parents=True)
    for number, out in enumerate((OLD, NEW), start=1):
        (root / "dvc.lock").write_bytes(lock(out))
        (root / "data" / "raw.dvc").write_bytes(write_dvc_file(Out("raw", f"{number}" + "c" * 31 + ".dir")))
        commit_all(root, "dvc.lock", "data/raw.dvc")
        if number == 1:
            git(root, "tag", "v1")
    (root / "dvc.lock").unlink()
    (root / "data" / "raw.dvc").unlink()
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("HEAD~1:data/packed", Revision("HEAD~1", "data/packed")),
        ("v1:dvc.lock:pack", Revision("v1", "dvc.lock:pack")),
        ("s3://bucket/x", None),
        ("dvc.lock:pack", None),
        ("sub/dvc.lock:pack:data/x", None),
        ("data.dvc:sub", None),
        ("data/packed", None),
        ("HEAD:", None),
        (":data", None),
    ],
)
def test_a_revision_is_told_from_other_words(text: str, parsed: Revision | None) -> None:
    """URLs, pointers and paths are something else."""
    assert Revision.parse(text) == parsed
    assert parsed is None or str(parsed) == text


def test_a_path_that_is_there_is_a_path(clean_room: Path) -> None:
    """Whatever its name looks like."""
    (clean_room / "HEAD:data").mkdir()

    assert Revision.parse("HEAD:data") is None


@pytest.mark.parametrize(
    ("text", "written", "md5"),
    [
        ("v1:data/packed", "dvc.lock:pack:data/packed", OLD.md5),
        ("HEAD:data/packed/", "dvc.lock:pack:data/packed", NEW.md5),
        ("HEAD:data/packed/train", "dvc.lock:pack:data/packed/train", NEW.md5),
        ("v1:dvc.lock:pack", "dvc.lock:pack", OLD.md5),
        ("v1:data/raw.dvc", "data/raw.dvc", "1" + "c" * 31 + ".dir"),
        ("HEAD:data/raw", "data/raw.dvc", "2" + "c" * 31 + ".dir"),
        ("HEAD:data/raw/a/b", "data/raw.dvc:raw/a/b", "2" + "c" * 31 + ".dir"),
    ],
)
def test_a_path_leads_to_what_recorded_it_then(repository: Path, text: str, written: str, md5: str) -> None:
    """By the `.dvc` file beside it or beside a folder around it, or by the stage that made it."""
    revision = Revision.parse(text)
    assert revision is not None

    pointer, data = revision.follow()

    expected = Pointer.parse(written)
    assert expected is not None
    assert (pointer.stage, pointer.out) == (expected.stage, expected.out)
    assert pointer.file.resolve() == repository / expected.file
    assert pointer.follow(data)[0].md5 == md5


def test_where_a_stage_worked_is_what_dvc_yaml_said_then(repository: Path) -> None:
    """Not what it says today."""
    (repository / "dvc.yaml").write_text("stages: {pack: {cmd: x, wdir: sub}}\n")
    (repository / "dvc.lock").write_bytes(lock(NEW))
    commit_all(repository, "dvc.yaml", "dvc.lock")
    (repository / "dvc.yaml").write_text("stages: {pack: {cmd: x, wdir: other}}\n")

    pointer, _ = Revision("HEAD", "sub/data/packed").follow()

    assert (pointer.stage, pointer.out) == ("pack", "data/packed")
    with pytest.raises(NotFound):
        Revision("HEAD", "other/data/packed").follow()


def test_it_works_from_a_folder_below(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are as seen from where one is."""
    monkeypatch.chdir(repository / "data")

    for text, md5 in (("v1:packed/train", OLD.md5), ("HEAD:../dvc.lock:pack", NEW.md5)):
        revision = Revision.parse(text)
        assert revision is not None
        pointer, data = revision.follow()
        assert pointer.follow(data)[0].md5 == md5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v9:data/packed", "v9 is not a revision of this Git repository"),
        ("v1:models/base", "v1 has no dvc.lock and no .dvc file that records models/base"),
        ("v1:sub/dvc.lock:pack", "v1 has no sub/dvc.lock"),
        ("--help:data/packed", "is not a revision"),
    ],
)
def test_what_is_not_there_is_said(repository: Path, text: str, said: str) -> None:
    """The revision, the file or the record; an option is no revision."""
    revision = Revision.parse(text)
    assert revision is not None

    with pytest.raises(NotFound, match=said):
        revision.follow()


def test_a_revision_that_is_an_option_of_git_writes_nothing(repository: Path) -> None:
    """`git show --output=FILE` would, where a folder of that name is."""
    (repository / "made:.").mkdir()

    with pytest.raises(NotFound, match="is not a revision"):
        Revision("--output=made", "dvc.lock:pack").follow()

    assert list((repository / "made:.").iterdir()) == []


def test_outside_of_a_repository_is_said(clean_room: Path) -> None:
    """With the place."""
    with pytest.raises(NotFound, match="is not in a Git repository"):
        Revision("HEAD", "data").follow()


def test_without_git_a_revision_cannot_be_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node without it everything else works."""
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(NotFound, match="git is not installed"):
        Revision("HEAD", "data").follow()
