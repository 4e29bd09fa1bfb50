"""pack/parent: `--parent` keeps samples in the shards they are in, wherever the parent lies, and records it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit import NotFound, UsageError
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.storage.commit import read_manifest
from datakit.verify.verify import verify
from support.cli import datakit
from support.packing import raw_lines, small_pack, tree, write_lines

SETTINGS = PackSettings(shard_size="16KiB", name="ds")


def child(raw: Path, dest: Path, parent: str | Path, settings: PackSettings = SETTINGS) -> PackResult:
    """Pack with a parent."""
    return pack(raw, dest, settings=settings, parent=parent, workers=1)


def shards(dataset: Path) -> list[str]:
    """Names of the shards, in order."""
    return [shard.name for shard in read_manifest(dataset).contents.shards]


def test_old_samples_stay_where_they_are(tmp_path: Path) -> None:
    """Records put in between and at the front: the old shards that are half full come first, then new ones."""
    lines = raw_lines(400)
    raw = write_lines(tmp_path / "raw.jsonl", lines)
    small_pack(raw, tmp_path / "v1", name="ds")
    new = [json.dumps({"id": f"new{number}", "text": "n" * 900}).encode() for number in range(40)]
    write_lines(raw, [*new[:20], *lines[:200], *new[20:], *lines[200:]])

    result = child(raw, tmp_path / "v2", tmp_path / "v1")

    sizes = {entry.name: entry.bytes for entry in read_manifest(tmp_path / "v1").members}
    full = [name for name in shards(tmp_path / "v1") if 2 * (sizes[name] - 1024) >= 16 * 2**10]
    assert len(full) > 20
    assert shards(tmp_path / "v2")[: len(full)] == full
    assert result.samples == 440
    assert verify(tmp_path / "v2").findings == ()
    assert read_manifest(tmp_path / "v2").contents.pack["parent"] == read_manifest(tmp_path / "v1").digest


@pytest.mark.parametrize("layout", ["stable", "sequential", "shuffle"])
def test_an_edit_changes_its_shard_alone(tmp_path: Path, layout: str) -> None:
    """In every layout, also where a longer record would move all that follow."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    settings = PackSettings(shard_size="16KiB", name="ds", layout=layout)  # type: ignore[arg-type]  # by name
    pack(raw, tmp_path / "v1", settings=settings, workers=1)
    write_lines(raw, raw_lines(400, edit={100: "x" * 3000}))

    child(raw, tmp_path / "v2", tmp_path / "v1", settings)

    assert len(set(shards(tmp_path / "v2")) - set(shards(tmp_path / "v1"))) == 1


def test_a_dataset_may_be_its_own_parent(tmp_path: Path) -> None:
    """Packed over with itself as the parent, nothing changes where nothing has changed, again and again."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    small_pack(raw, tmp_path / "ds")
    before = tree(tmp_path / "ds")

    same = child(raw, tmp_path / "ds", tmp_path / "ds")
    unchanged = tree(tmp_path / "ds")
    write_lines(raw, raw_lines(300, edit={5: "x"}))
    edited = child(raw, tmp_path / "ds", tmp_path / "ds" / "manifest.json")
    after = tree(tmp_path / "ds")
    again = child(raw, tmp_path / "ds", tmp_path / "ds")

    assert (same.built, edited.built, again.built) == (0, 1, 0)
    assert unchanged == before
    assert tree(tmp_path / "ds") == after


def test_splits_have_parents_of_their_own(tmp_path: Path) -> None:
    """The directory of the datasets is named; each split goes on from its own."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    settings = PackSettings(shard_size="16KiB", name="ds", splits={"train": 3, "dev": 1})
    pack(raw, tmp_path / "v1", settings=settings, workers=1)
    write_lines(raw, [b'{"id": "first"}', *raw_lines(400)])

    child(raw, tmp_path / "v2", tmp_path / "v1", settings)

    for split in settings.splits:
        old, new = shards(tmp_path / "v1" / split), shards(tmp_path / "v2" / split)
        assert len(set(old) - set(new)) <= 1
        assert len(set(new) - set(old)) <= 1


def test_parts_with_a_parent_are_one_plan(tmp_path: Path) -> None:
    """Shares and the commit give what one pack gives."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    small_pack(raw, tmp_path / "v1", name="ds")
    write_lines(raw, raw_lines(360)[30:])
    child(raw, tmp_path / "one" / "ds", tmp_path / "v1")

    for number in range(2):
        pack(raw, tmp_path / "two" / "ds", settings=SETTINGS, parent=tmp_path / "v1", part=(number, 2), workers=1)
    committed = child(raw, tmp_path / "two" / "ds", tmp_path / "v1")

    assert committed.built == 0
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


def test_a_parent_that_cannot_be_is_told(tmp_path: Path) -> None:
    """One that is not there, and one of another dataset, whose shards would all be renamed: before anything is done."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(30))
    small_pack(raw, tmp_path / "other", name="other")

    with pytest.raises(NotFound, match="there is no parent at"):
        child(raw, tmp_path / "ds", tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is named other, this dataset ds") as caught:
        child(raw, tmp_path / "ds", tmp_path / "other")

    assert caught.value.hint == "Set the name: --name other"
    assert not (tmp_path / "ds").exists()


def test_the_command_takes_a_parent_and_says_what_comes_next(tmp_path: Path) -> None:
    """Facts say what the next change re-sends, and which shard size and why; auto says how it was derived."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    dest = tmp_path / "ds"

    first = datakit("pack", raw, dest, "--shard-size", "auto", "--expected-edits", "3")
    second = datakit("pack", raw, dest, "--parent", dest, "--shard-size", "4MiB", "--json").json
    small = datakit("pack", raw, tmp_path / "small" / "ds", "--shard-size", "16KiB")
    over = datakit("pack", raw, tmp_path / "small" / "ds", "--shard-size", "auto")

    assert "shards of 64.0 MiB: " in first.stderr, "all of it fits into one of whatever size, then it is the usual one"
    assert "3 scattered edits re-send about" in first.stderr
    assert "re-sends, of" in first.stderr
    assert second["result"]["size"] == {"bytes": 4 * 2**20, "reason": "as it was set"}
    assert [change["kind"] for change in second["result"]["changes"]] == ["edits", "append", "neighbours"]
    assert "as it was set" in small.stderr
    assert "was packed with shards of 16.0 KiB, and now with shards of 64.0 MiB (which auto derives)" in over.stderr
    assert "--shard-size 16384" in over.stderr
