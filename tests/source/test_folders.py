"""source/folders: a folder listed in stretches: the same table wherever they are cut, whoever looks at the files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, pack
from datakit.pack.cut import PackSettings
from datakit.source import folders, scan
from datakit.source.files import Files
from datakit.source.folders import list_files, stretches
from datakit.source.grouping import FoundFile
from datakit.source.naming import Naming
from datakit.source.trees import Folder, sketch, walk
from datakit.source.troubles import Trouble
from support.packing import tree, write_pairs

NAMES = st.text("aA.b-%", min_size=1, max_size=6).filter(lambda name: not name.startswith("."))
PATHS = st.tuples(st.sampled_from(["", "a/", "a-b/", "a/b/", "B/"]), NAMES).map("".join)
SIZES = st.sampled_from([0, 1, 5])


def told(table: Files) -> object:
    """All that a table says, in its order."""
    everything = np.arange(len(table.keys))
    batch = table.take(everything)
    return (
        list(table.keys),
        table.keys.hashes().tolist(),
        [table.kinds[kind] for kind in table.kind_of],
        (batch.names(), batch.sizes.tolist(), batch.stamps.tolist()),
        (table.troubles, table.remarks, table.listed_bytes),
    )


@given(st.dictionaries(PATHS, SIZES, max_size=20), st.lists(PATHS, max_size=3), st.integers(1, 4), st.booleans())
def test_any_cut_gives_the_same_table(files: dict[str, int], unread: list[str], count: int, escape: bool) -> None:
    """Records, offenders and their order; what is known not to be readable takes its record along in every stretch."""
    found = [FoundFile(name, size, number) for number, (name, size) in enumerate(files.items())]
    naming = Naming(escape="percent" if escape else "none")
    troubles = [Trouble(name, "may not be read", file=name) for name in sorted({*unread} - files.keys())]

    whole = list_files("root", files=found, naming=naming, troubles=troubles)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "STRETCH_FILES", count)
        cut = list_files("root", files=reversed(found), naming=naming, troubles=troubles)
        tasks = stretches("root", found, [], naming=naming)

    assert told(cut) == told(whole)
    assert sorted(file for task in tasks for file in task.known) == sorted(found)


def test_a_folder_of_one_stretch_is_cut_where_names_end() -> None:
    """Files that share what stands before their first dot stay together, and so do all parts of any record."""
    names = [f"{number:04d}.{part}" for number in range(5000) for part in ("jpg", "seg.png", "json")]

    tasks = stretches("root", [], [Folder("", names)], naming=Naming())

    stems = [{name.partition(".")[0] for folder in task.folders for name in folder.names} for task in tasks]
    assert len(tasks) == 4
    assert sum(map(len, stems)) == len(set().union(*stems)) == 5000


def test_files_are_looked_at_by_their_task(tmp_path: Path) -> None:
    """The names are enough for a sketch, and the table is that of files that were looked at before."""
    raw = write_pairs(tmp_path / "raw", 30)
    (raw / "link.jpg").symlink_to(next(raw.rglob("*.jpg")))
    named, looked_at = sketch(raw), walk(raw)

    lazy, eager = (
        list_files(
            str(raw),
            files=[FoundFile(file.name, file.bytes, file.stamp) for file in one.files],
            folders=one.folders,
        )
        for one in (named, looked_at)
    )

    assert [file.name for file in named.files] == ["link.jpg"]
    assert told(lazy) == told(eager)
    assert lazy.listed_bytes == sum(file.bytes for file in looked_at.files)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_large_folder_packs_like_a_small_one(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at its files; bytes, counts and what is left out are the same."""
    raw = write_pairs(tmp_path / "raw", 40)
    (raw / "empty.jpg").touch()
    (raw / "README").write_bytes(b"x")
    settings = PackSettings(on_error="skip")
    small = pack(raw, tmp_path / "small" / "ds", settings=settings, workers=workers)
    monkeypatch.setattr(scan, "MANY_FILES", 1)
    monkeypatch.setattr(folders, "STRETCH_FILES", 7)

    assert scan.scan(raw, fingerprints=False).folders
    large = pack(raw, tmp_path / "large" / "ds", settings=settings, workers=workers)

    assert tree(tmp_path / "large") == tree(tmp_path / "small")
    assert (large.source_bytes, large.samples) == (small.source_bytes, small.samples)
    assert large.source_bytes == sum(path.stat().st_size for path in raw.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar", "a.txt.gz", "state.json", "dataset_dict.json", "x.arrow"])
def test_a_large_folder_that_may_hold_something_else_is_looked_at(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds is told as for a small one, or refused in the same words."""
    for each in (name, "b.txt"):
        (tmp_path / each).write_bytes(b"{}")

    def outcome() -> object:
        with contextlib.suppress(InputError):
            return scan.scan(tmp_path, fingerprints=False)
        with pytest.raises(InputError) as caught:
            scan.scan(tmp_path, fingerprints=False)
        return caught.value.message

    small = outcome()
    monkeypatch.setattr(scan, "MANY_FILES", 1)

    assert outcome() == small


@pytest.mark.parametrize("what", ["nothing", "link", "folder"])
def test_what_takes_a_files_place_before_it_is_looked_at_is_refused(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a plain file when it was named."""
    monkeypatch.setattr(scan, "MANY_FILES", 1)
    raw = write_pairs(tmp_path / "raw", 3)
    sources = scan.scan(raw, fingerprints=False)
    gone = next(raw.rglob("*.jpg"))
    gone.unlink()
    if what == "link":
        gone.symlink_to("/etc/passwd")
    elif what == "folder":
        gone.mkdir()

    with pytest.raises(InputError, match=rf"{gone.name} changed while it was packed"):
        list_files(str(raw), files=[], folders=sources.folders)


def test_what_may_not_be_read_takes_its_record_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the one who looks, and told as if it had been found before."""
    for name in ("a.jpg", "a.json", "b.jpg", "b.json"):
        (tmp_path / name).write_bytes(b"x")
    closed = str(tmp_path / "a.jpg")
    os.chmod(closed, 0o200)
    real = os.access
    # the tests' user may be root, whom no mode keeps out
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and real(path, mode))

    table = list_files(str(tmp_path), files=[], folders=sketch(tmp_path).folders)

    assert list(table.keys) == ["b"]
    assert [(trouble.where, trouble.key, trouble.raws) for trouble in table.troubles] == [("a.jpg", "a", ())]
