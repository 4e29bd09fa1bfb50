"""pack/seal: what pack remembers beside a destination is believed when it is whole, and replaced when it is not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.pack import seal
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.receipts import Memory
from datakit.verify.verify import verify
from support.packing import raw_lines, small_pack, tree, write_lines, write_pairs
from support.receipts import at_rest


def edited(path: Path, old: bytes, new: bytes) -> None:
    """Change what a file says, and nothing else of it."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def unsealed(path: Path) -> None:
    """As the first format had it."""
    path.write_bytes(json.dumps({"format": 1, **json.loads(path.read_bytes())}["value"]).encode())


def a_folder(path: Path) -> None:
    """In the place of a file, with something in it."""
    path.unlink()
    (path / "x").mkdir(parents=True)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "another number": lambda path: edited(path, b'"terms":"', b'"terms":"a'),
    "another checksum": lambda path: edited(path, b'"sha256":"', b'"sha256":"0'),
    "of another format": unsealed,
    "sealed nonsense": lambda path: seal.write(path, [5, {"task": ["x"]}]),
    "a folder": a_folder,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a broken link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_memory_of_a_commit_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    """Every byte is looked at instead; the dataset is the same, and the next pack knows it by receipts again."""
    at_rest(monkeypatch)
    raw = write_pairs(tmp_path / "raw", 60)
    first = small_pack(raw, tmp_path / "ds")
    before = tree(tmp_path / "ds")
    damage(tmp_path / ".ds.pack" / "known.json")

    second = small_pack(raw, tmp_path / "ds")
    third = small_pack(raw, tmp_path / "ds")

    assert (second.built, third.built) == (first.shards, 0)
    assert tree(tmp_path / "ds") == before
    assert len(Memory.beside(tmp_path / "ds").known()) == first.shards


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_shard_whose_receipt_is_damaged_is_built_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """What a part left is taken by a whole receipt alone, and the others are taken."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    small_pack(raw, tmp_path / "ds")
    pack(raw, tmp_path / "du", settings=PackSettings(shard_size="16KiB", name="ds"), part=(0, 1))
    damage(min((tmp_path / ".du.pack" / "built").glob("*.json")))

    result = small_pack(raw, tmp_path / "du", name="ds")

    assert result.built == 1
    assert tree(tmp_path / "du") == tree(tmp_path / "ds")


@pytest.mark.parametrize("place_", ["built", "built/{task}.json", "built/{task}.tar", "plan.json", "known.json"])
@pytest.mark.parametrize("put", [lambda path: path.write_bytes(b"x"), lambda path: (path / "x").mkdir(parents=True)])
def test_whatever_lies_in_the_memorys_places_is_replaced(
    tmp_path: Path, place_: str, put: Callable[[Path], object]
) -> None:
    """Files where folders should be and folders where files should be."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    whole = PackSettings(shard_size="16KiB", name="ds")
    pack(raw, tmp_path / "other", settings=whole, part=(0, 1))
    task = min((tmp_path / ".other.pack" / "built").glob("*.json")).stem
    path = tmp_path / ".ds.pack" / place_.format(task=task)
    path.parent.mkdir(parents=True)
    put(path)

    pack(raw, tmp_path / "ds", settings=whole, part=(0, 1))
    result = small_pack(raw, tmp_path / "ds")

    assert verify(tmp_path / "ds").findings == ()
    assert result.built == 0
    assert sorted(os.listdir(tmp_path / ".ds.pack")) == [".gitignore", "known.json"]
