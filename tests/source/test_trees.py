"""source/trees: what lies below a folder, and what in it is no file."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit import InputError, NotAllowed, NotFound
from datakit.source.originals import changed_ns
from datakit.source.trees import SourceFile, Tree, walk, with_fingerprints


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file in a folder."""
    (tmp_path / "raw" / "sub").mkdir(parents=True)
    (tmp_path / "raw" / "sub" / "a.txt").write_bytes(b"abc")
    return tmp_path / "raw"


def told(tree: Tree) -> dict[str, str]:
    """Problems by place."""
    return {trouble.where: trouble.problem for trouble in tree.troubles}


def test_files_have_name_size_md5_and_time(root: Path) -> None:
    """The md5 only where it is asked for, because it means reading."""
    md5, mtime = hashlib.md5(b"abc").hexdigest(), changed_ns((root / "sub" / "a.txt").stat())

    assert with_fingerprints(root, walk(root)).files == [SourceFile("sub/a.txt", 3, md5, mtime)]
    assert walk(root).files == [SourceFile("sub/a.txt", 3, None, mtime)]
    assert walk(root / "sub" / "a.txt").files == [SourceFile("a.txt", 3, None, mtime)]


def test_what_is_hidden_is_left_out(root: Path) -> None:
    """Files and folders, whatever they are."""
    (root / ".git").mkdir()
    (root / ".git" / "x.txt").write_bytes(b"x")
    (root / ".lock").symlink_to("/nowhere")

    tree = walk(root)

    assert ([file.name for file in tree.files], tree.troubles) == (["sub/a.txt"], [])


def test_links_inside_the_folder_are_followed(root: Path) -> None:
    """To a file; size and time are its own."""
    (root / "b.txt").symlink_to("sub/a.txt")

    tree = walk(root)

    assert {file.name: file.bytes for file in tree.files} == {"b.txt": 3, "sub/a.txt": 3}
    assert tree.troubles == []


def test_links_out_of_the_folder_are_told(root: Path, tmp_path: Path) -> None:
    """They may lead to what was never meant to be packed."""
    (tmp_path / "secret.txt").write_bytes(b"s")
    (tmp_path / "rawer").mkdir()
    (tmp_path / "rawer" / "x.txt").write_bytes(b"s")
    (root / "b.txt").symlink_to(tmp_path / "secret.txt")
    (root / "c.txt").symlink_to("../rawer/x.txt")
    (root / "d.txt").symlink_to("nowhere")
    (root / "e").symlink_to("sub")

    tree = walk(root)

    assert told(tree) == {
        "b.txt": f"a link out of the source, to {tmp_path / 'secret.txt'}",
        "c.txt": f"a link out of the source, to {tmp_path / 'rawer' / 'x.txt'}",
        "d.txt": "a link to nothing",
        "e": "a link to a folder",
    }
    assert all(trouble.hint for trouble in tree.troubles)
    assert [file.name for file in tree.files] == ["sub/a.txt"]


def test_links_into_a_dvc_cache_are_followed(root: Path, tmp_path: Path) -> None:
    """DVC lays data down as such links, and what they lead to is named by its md5."""
    cached = tmp_path / "cache" / "files" / "md5" / "90" / "0150983cd24fb0d6963f7d28e17f72"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"abc")
    (root / "b.txt").symlink_to(cached)

    tree = walk(root)

    assert (sorted(file.name for file in tree.files), tree.troubles) == (["b.txt", "sub/a.txt"], [])


def test_a_folder_that_is_a_link_itself_is_a_source(root: Path, tmp_path: Path) -> None:
    """What was named is what was meant; its own links are judged by where it really is."""
    (root / "b.txt").symlink_to("sub/a.txt")
    (tmp_path / "link").symlink_to(root)

    tree = walk(tmp_path / "link")

    assert (sorted(file.name for file in tree.files), tree.troubles) == (["b.txt", "sub/a.txt"], [])


def test_sockets_and_pipes_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for ever."""
    monkeypatch.chdir(root)  # a socket's path is short
    os.mkfifo("p.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.txt")

        tree = with_fingerprints(root, walk(root))

    assert told(tree) == {"p.txt": "a pipe, not a file", "s.txt": "a socket, not a file"}


def test_what_may_not_be_read_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is packed, not by a worker half-way."""
    closed = str(root / "sub" / "a.txt")
    os.chmod(closed, 0o200)
    real = os.access
    # the tests' user may be root, whom no mode keeps out
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and real(path, mode))

    tree = walk(root)

    assert told(tree) == {"sub/a.txt": "may not be read"}


def test_a_trouble_says_of_which_file_it_is(root: Path) -> None:
    """By the bytes of its name; a folder, and a link to one, are no file."""
    name = os.fsdecode(b"caf\xe9.txt")
    (root / name).symlink_to("nowhere")
    (root / "cat.d").symlink_to("sub")

    tree = walk(root)

    assert {trouble.where: trouble.file for trouble in tree.troubles} == {"caf\\udce9.txt": name, "cat.d": None}


def test_a_folder_that_may_not_be_listed_can_be_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever bytes its name has; no file is known to be spoilt."""
    closed = root / os.fsdecode(b"caf\xe9.d")
    closed.mkdir()
    real = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if path == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # the tests' user may be root, whom no mode keeps out

    (trouble,) = walk(root).troubles

    assert (trouble.where, trouble.file) == ("caf\\udce9.d", None)


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    """Named by its path."""
    with pytest.raises(NotFound, match="nowhere is not there"):
        walk(tmp_path / "nowhere")


def test_a_source_behind_a_closed_door_is_not_allowed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence, with the exit code of it."""
    real = os.stat

    def stat(path: object, *args: object, **options: object) -> os.stat_result:
        if str(path) == str(root):
            raise PermissionError(13, "Permission denied", str(root))
        return real(path, *args, **options)  # type: ignore[arg-type]  # what it was called with

    monkeypatch.setattr(os, "stat", stat)

    with pytest.raises(NotAllowed, match="raw: Permission denied"):
        walk(root)


def test_a_pipe_by_itself_is_said_to_be_there(tmp_path: Path) -> None:
    """Not that it is missing, and nobody waits for it."""
    os.mkfifo(tmp_path / "fifo.jsonl")

    for path in (tmp_path / "fifo.jsonl", Path("/dev/null")):
        with pytest.raises(InputError, match="is neither a file nor a folder"):
            with_fingerprints(path, walk(path))
