"""storage/absent: who names a folder of commits is told which ones lie in it, in the same words by every room."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit import open_dataset
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError, InputError, NotFound
from datakit.operate.doctor import look
from datakit.pack.reading import find_part, inspect
from datakit.storage.absent import MOST_NAMED
from datakit.storage.disk import map_file
from datakit.storage.view import open_view
from datakit.verify.verify import verify
from datakit.version.diff import diff
from datakit.version.lineage import chain
from support.cli import datakit
from support.commits import make_commit
from support.datasets import lines, make_dataset, publish
from support.faulty import Fault, FaultyServer


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """A folder with two datasets and a folder that is none."""
    for name in ("held-out", "train"):
        make_dataset(tmp_path / "chat" / name, [lines(0, 5)])
    (tmp_path / "chat" / "notes").mkdir()
    (tmp_path / "chat" / "notes" / "a.txt").write_text("x")
    return tmp_path / "chat"


@pytest.mark.parametrize(
    "read",
    [verify, inspect, chain, open_dataset, lambda path: find_part(path, "k"), lambda path: diff(str(path), str(path))],
)
def test_a_folder_of_datasets_names_them(splits: Path, read: Callable[[Path], object]) -> None:
    """Every room that reads a dataset says the same."""
    with pytest.raises(NotFound, match="so nothing is committed there") as caught:
        read(splits)

    assert caught.value.hint == f"It holds held-out, train; name one: {splits}/train"


def test_a_folder_of_datasets_in_a_bucket_names_them(splits: Path, faulty: FaultyServer) -> None:
    """By one listing that stops at the next slash, and a look for a manifest in each folder."""
    url = publish(splits, faulty, "data/chat")

    with pytest.raises(NotFound) as caught:
        open_view(url)

    assert caught.value.hint == f"It holds held-out, train; name one: {url}/train"
    assert len(faulty.asked("GET", "")) == 1
    assert len(faulty.asked("HEAD")) == 3


def test_a_bucket_that_may_not_be_listed_is_no_other_error(splits: Path, faulty: FaultyServer) -> None:
    """What is told is that nothing is committed there."""
    url = publish(splits, faulty, "data/chat")
    faulty.faults = [Fault("denied", key="", times=9)]

    with pytest.raises(NotFound, match="so nothing is committed there") as caught:
        open_view(url)

    assert caught.value.hint == "Look at the URL"


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_hidden_or_is_no_commit_is_not_named(splits: Path, faulty: FaultyServer, remote: bool) -> None:
    """Leftovers of killed writers hold a manifest too; a folder without one is no commit."""
    for name in (".train.tmp-01234567", ".step-1.arriving"):
        shutil.copytree(splits / "train", splits / name)
    for folder in (*splits.glob(".*"), splits / "train"):
        for file in folder.glob("*"):
            faulty.put(f"data/chat/{folder.name}/{file.name}", file.read_bytes())
    place = f"{faulty.url}/data/chat" if remote else str(splits)

    with pytest.raises(NotFound) as caught:
        open_view(place)

    held = "train" if remote else "held-out, train"
    assert caught.value.hint == f"It holds {held}; name one: {place}/train"


@pytest.mark.parametrize("remote", [False, True])
def test_of_many_commits_the_last_are_named(tmp_path: Path, faulty: FaultyServer, remote: bool) -> None:
    """Of checkpoints those are the newest; in a bucket no more folders are looked into."""
    for number in range(1, MOST_NAMED + 4):
        make_commit(tmp_path / "run" / f"step-{number:02d}", {"a": b"1"})
        faulty.put(f"run/step-{number:02d}/{MANIFEST_NAME}", b"{}")
    place = f"{faulty.url}/run" if remote else str(tmp_path / "run")

    with pytest.raises(NotFound) as caught:
        open_view(place)

    start = "It holds " if remote else "It holds ..., "
    assert str(caught.value.hint).startswith(f"{start}step-04, step-05, ")
    assert str(caught.value.hint).endswith(f", step-11; name one: {place}/step-11")
    assert len(faulty.asked("HEAD")) == (MOST_NAMED if remote else 0)


COMMANDS_OF_HINTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: open_dataset(folder / "gone" / "ds"), "ls {}/gone"),
    (lambda folder: map_file(folder / "gone" / "x"), "ls {}/gone"),
    (lambda folder: open_view(folder / "file"), "datakit pack {}/file DEST"),
    (lambda folder: open_dataset(folder / "torn"), "datakit sync --repair COPY {}/torn"),
    (lambda folder: look(folder / "gone"), "mkdir -p {}/gone"),
]


@pytest.mark.parametrize(("read", "command"), COMMANDS_OF_HINTS, ids=[command for _, command in COMMANDS_OF_HINTS])
def test_a_command_of_a_hint_can_be_pasted(tmp_path: Path, read: Callable[[Path], object], command: str) -> None:
    """A folder's name with a space stays one word of the shell."""
    folder = tmp_path / "my data"
    (folder / "torn").mkdir(parents=True)
    (folder / "torn" / MANIFEST_NAME).write_text("{")
    (folder / "file").write_text("x")

    with pytest.raises(DatakitError) as caught:
        read(folder)

    said = shlex.split(str(caught.value.hint).rpartition(": ")[2])
    assert said == [word.format(folder) for word in command.split()]


def test_an_empty_folder_is_told_what_a_commit_is(tmp_path: Path) -> None:
    """There is nothing in it to be named."""
    with pytest.raises(NotFound) as caught:
        verify(tmp_path)

    assert caught.value.hint == "Name the directory of a commit, such as a dataset, which has a manifest.json"


COMMANDS = (
    ("verify", "{}"),
    ("inspect", "{}"),
    ("cat", "{}", "k"),
    ("diff", "{}", "{}"),
    ("lineage", "{}"),
    ("tokenize", "{}", "{}-tokens", "--model", "{}"),
)
"""Command lines that read a dataset."""


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("what", "code"),
    [("torn", 4), ("half a manifest", 4), ("another program's", 1), ("a file", 1), ("absent", 2), ("splits", 2)],
)
def test_one_exit_code_for_one_meaning(what: str, code: int, words: tuple[str, ...], splits: Path) -> None:
    """Whatever command reads it: damage is 4, what cannot be used is 1, what is not there is 2.

    Commands that look at each split of a folder have no question about one.
    """
    place = splits / "train"
    manifest = place / "manifest.json"
    if what == "torn":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif what == "half a manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b'"format"', b'"fosmat"'))
    elif what == "another program's":
        manifest.write_bytes(b'{"name": "an extension"}')
    else:
        place = {"a file": manifest, "absent": splits / "gone", "splits": splits}[what]

    answer = datakit(*(word.format(place) for word in words))

    if what == "splits" and words[0] in ("verify", "inspect", "lineage"):
        code = 0
    assert answer.code == code, answer.stderr


def test_what_is_neither_file_nor_folder_cannot_be_used(tmp_path: Path) -> None:
    """A device as a source is exit code 1, as a file is where a dataset is wanted."""
    assert datakit("pack", "/dev/null", tmp_path / "ds").code == InputError.exit_code
    assert datakit("verify", "/dev/null").code == InputError.exit_code
