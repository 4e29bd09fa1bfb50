"""storage/filters: patterns choose files of a folder, and never a part of a commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import Refused, UsageError
from datakit.storage.filters import Filter
from datakit.storage.sync import plan_sync, sync
from support.commits import make_commit

NAMES = ("a.tar", "b.txt", "raw/c.tar", "raw/deep/d.txt", "tmp/e.tar")


def tree(root: Path, names: tuple[str, ...] = NAMES) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("include", "exclude", "passed"),
    [
        ((), (), NAMES),
        (("*.tar",), (), ("a.tar", "raw/c.tar", "tmp/e.tar")),
        (("*.tar",), ("tmp/*",), ("a.tar", "raw/c.tar")),
        (("raw/*", "b.txt"), (), ("b.txt", "raw/c.tar", "raw/deep/d.txt")),
        ((), ("*",), ()),
        (("A.TAR",), (), ()),
        (("[ab].*",), (), ("a.tar", "b.txt")),
    ],
)
def test_a_name_passes_by_any_pattern_to_include_and_none_to_exclude(
    include: tuple[str, ...], exclude: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    assert tuple(Filter(include, exclude).of(dict.fromkeys(NAMES))) == passed


@given(names=st.sets(st.text("ab/.*", min_size=1)), pattern=st.text("ab/.*?", min_size=1))
def test_what_is_included_and_what_is_excluded_by_one_pattern_is_everything(names: set[str], pattern: str) -> None:
    items = dict.fromkeys(sorted(names))

    assert Filter((pattern,)).of(items) | Filter((), (pattern,)).of(items) == items


def test_only_what_passes_is_moved_and_only_that_is_deleted(tmp_path: Path) -> None:
    """What lies at the destination under other names is not touched by --delete."""
    source, dest = tree(tmp_path / "from"), tree(tmp_path / "to", ("old.tar", "notes.txt"))

    result = sync(source, dest, include=["*.tar"], exclude=["tmp/*"], delete=True, max_delete=1)

    assert result.deleted == ("old.tar",)
    assert below(dest) == {"a.tar", "raw/c.tar", "notes.txt"}


def test_a_commit_moves_whole_or_not_at_all(tmp_path: Path) -> None:
    """By itself, and among files; one that is left out whole leaves no manifest behind."""
    source = tree(tmp_path / "from")
    make_commit(source / "ds", {"x.tar": b"1", "y.bin": b"2"})

    with pytest.raises(UsageError, match="ds is a commit, which moves whole"):
        sync(source / "ds", tmp_path / "to", include=["*.tar"])
    with pytest.raises(
        UsageError, match=r"ds is a commit, which moves whole, and ds/manifest[.]json would be left out"
    ):
        sync(source, tmp_path / "to", include=["*.tar"])
    assert not (tmp_path / "to").exists()
    sync(source, tmp_path / "to", include=["*.tar"], exclude=["ds/*"])
    sync(source, tmp_path / "with", include=["ds/*"])

    assert below(tmp_path / "to") == {"a.tar", "raw/c.tar", "tmp/e.tar"}
    assert below(tmp_path / "with") == {"ds/manifest.json", "ds/x.tar", "ds/y.bin"}


def test_a_commit_at_the_destination_is_not_taken_apart(tmp_path: Path) -> None:
    """It goes whole where the patterns choose all of it, and stays whole where they choose none."""
    source, dest = tree(tmp_path / "from", ("a.tar",)), tmp_path / "to"
    make_commit(dest / "old", {"x.tar": b"1", "y.tar": b"2"})
    before = below(dest)

    with pytest.raises(Refused, match="old holds a commit, and some of its files would be deleted"):
        sync(source, dest, include=["*.tar"], delete=True, max_delete=9)
    assert below(dest) == before
    sync(source, dest, include=["*.tar"], exclude=["old/*"], delete=True, max_delete=9)
    assert below(dest) == before | {"a.tar"}
    sync(source, dest, include=["a.tar", "old/*"], delete=True, max_delete=9)
    assert below(dest) == {"a.tar"}


def test_what_a_pattern_keeps_from_deletion_is_no_part_of_a_commit_that_comes(tmp_path: Path) -> None:
    """Strangers in its place are refused with --delete too, where they would stay."""
    source, dest = tmp_path / "from", tree(tmp_path / "to", ("ds/notes.txt",))
    make_commit(source / "ds", {"x.tar": b"1"})

    with pytest.raises(Refused, match=r"notes[.]txt"):
        sync(source, dest, exclude=["*.txt"], delete=True, max_delete=9)
    sync(source, dest, delete=True, max_delete=9)

    assert below(dest) == {"ds/manifest.json", "ds/x.tar"}


def test_patterns_that_choose_nothing_are_wrong_usage(tmp_path: Path) -> None:
    """Most likely one was misspelt: nothing would be moved, and with --delete all might go."""
    source = tree(tmp_path / "from")

    with pytest.raises(UsageError, match=r"none of the 5 files of .* passes"):
        sync(source, tmp_path / "to", include=["*.tgz"])
    with pytest.raises(UsageError, match="is one file"):
        sync(source / "a.tar", tmp_path / "to", include=["*"])


def test_a_plan_shows_what_passes(tmp_path: Path) -> None:
    plan = plan_sync(tree(tmp_path / "from"), tmp_path / "to", only=Filter(("*.txt",)))

    assert [action.name for action in plan.actions] == ["b.txt", "raw/deep/d.txt"]
