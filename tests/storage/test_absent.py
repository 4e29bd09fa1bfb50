"""storage/absent: who names a folder of commits is told which ones lie in it, in the same words by every room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from datakit import open_dataset
from datakit.errors import InputError, NotFound
from datakit.pack.reading import find_part, inspect
from datakit.pack.verify import verify
from datakit.storage.absent import MOST_NAMED, held_below
from datakit.storage.view import open_view
from datakit.version.diff import diff
from datakit.version.lineage import chain
from support.cli import datakit
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


def test_nothing_below_says_nothing(tmp_path: Path) -> None:
    """An empty folder is told what a commit is; many commits are cut."""
    with pytest.raises(NotFound) as caught:
        verify(tmp_path)

    assert caught.value.hint == "Name the directory of a commit, such as a dataset, which has a manifest.json"
    many = str(held_below([f"runs/{number:02d}" for number in range(20)]))
    assert many.startswith("It holds 00, 01, ")
    assert many.endswith(f", ...; name one: runs/{MOST_NAMED - 1:02d}")


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
    """Whatever command reads it: damage is 4, what cannot be used is 1, what is not there is 2."""
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

    assert answer.code == code, answer.stderr


def test_what_is_neither_file_nor_folder_cannot_be_used(tmp_path: Path) -> None:
    """A device as a source is exit code 1, as a file is where a dataset is wanted."""
    assert datakit("pack", "/dev/null", tmp_path / "ds").code == InputError.exit_code
    assert datakit("verify", "/dev/null").code == InputError.exit_code
