"""cli/splits: a folder of splits is all of them, where a command reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from datakit.storage.commit import read_manifest
from datakit.storage.sync import sync
from support.cli import datakit
from support.commits import flip_bit
from support.packing import raw_lines, write_lines
from support.tiny import text_samples, write_dataset


@pytest.fixture
def chat(clean_room: Path) -> Path:
    """`chat/train` and `chat/held-out`, and a folder that is none."""
    for split, count in (("train", 9), ("held-out", 3)):
        write_dataset(clean_room / "chat" / split, text_samples(count, prefix=split))
    (clean_room / "chat" / "notes").mkdir()
    return clean_room / "chat"


@pytest.mark.parametrize("command", ["verify", "inspect", "lineage"])
def test_each_split_is_told_under_its_place(chat: Path, command: str) -> None:
    """People read one after the other; scripts get an object with what each alone gives."""
    answer = datakit(command, "chat/")
    told = datakit(command, "chat", "--json").json["result"]

    assert answer.code == 0, answer.stderr
    heads = [line for line in answer.stdout.splitlines() if line.startswith("chat/")]
    assert heads == ["chat/held-out:", "chat/train:"]
    assert told == {place: datakit(command, place, "--json").json["result"] for place in told}
    assert list(told) == ["chat/held-out", "chat/train"]


def test_a_lineage_that_ends_at_a_dataset_says_why(chat: Path) -> None:
    """A manifest has no source's path in it, and no stage is there."""
    told = datakit("lineage", "chat/train").stdout

    assert told.endswith("\n  from what, no dvc.lock around it or here records\n")


def test_damage_of_one_split_is_found_beside_the_others(chat: Path) -> None:
    """All are looked at before the command ends with 4."""
    flip_bit(chat / "held-out" / read_manifest(chat / "held-out").contents.shards[0].name, 700)

    answer = datakit("verify", "chat")

    assert answer.code == 4
    assert "chat/held-out" in answer.stderr
    assert "train is whole: 9 samples" in answer.stdout


def test_splits_in_a_bucket_are_each_looked_at(chat: Path, bucket: str) -> None:
    """The same for a URL."""
    sync(chat, f"{bucket}/chat")

    answer = datakit("verify", f"{bucket}/chat", "--quick")

    assert answer.code == 0, answer.stderr
    assert f"{bucket}/chat/held-out:\n" in answer.stdout
    assert f"{bucket}/chat/train:\n" in answer.stdout


def test_a_folder_without_any_is_what_it_was(chat: Path) -> None:
    """The error of the place itself; and what a dataset lacks is no reason to look below it."""
    (chat / "train" / "inner").mkdir()
    empty = datakit("verify", "chat/notes")
    lacking = datakit("cat", "chat/train", "train00099.json")

    assert (empty.code, lacking.code) == (2, 2)
    assert "chat/notes has no manifest.json" in empty.stderr
    assert "train00099" in lacking.stderr


def test_a_split_that_is_not_there_is_found(clean_room: Path) -> None:
    """Removed, without its manifest, or exchanged with another; a folder may be called as one likes."""
    write_lines(clean_room / "raw.jsonl", raw_lines(40))
    datakit("pack", "raw.jsonl", "ds", "--split", "train=70", "--split", "val=30")
    whole = datakit("verify", "ds")
    os.rename("ds/val", "ds/validation")
    renamed = datakit("verify", "ds")
    os.rename("ds/validation", "ds/val")
    os.rename("ds/val/manifest.json", "kept.json")
    torn = datakit("verify", "ds", "--quick")
    os.rename("kept.json", "ds/val/manifest.json")
    for old, new in (("ds/val", "ds/x"), ("ds/train", "ds/val"), ("ds/x", "ds/train")):
        os.rename(old, new)
    exchanged = datakit("verify", "ds")
    shutil.rmtree("ds/train")
    gone = datakit("verify", "ds")

    assert [answer.code for answer in (whole, renamed, torn, exchanged, gone)] == [0, 0, 4, 4, 4]
    assert "ds lacks the split val, of which ds/train tells" in torn.stderr
    assert "it lies in the place of" in exchanged.stderr
