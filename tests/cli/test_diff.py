"""`datakit diff` as people read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import datakit
from support.packing import raw_lines, small_pack, write_lines


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets: one record edited, one removed, ten appended."""
    root = tmp_path_factory.mktemp("chats")
    lines = raw_lines(110, edit={5: "hello world"})
    del lines[30]
    for name, content in (("old", raw_lines(100)), ("new", lines)):
        small_pack(write_lines(root / f"{name}.jsonl", content), root / name, name="chat")
    return root


def test_the_report_counts_samples_shards_and_bytes(chats: Path) -> None:
    """On stdout, one fact a line."""
    answer = datakit("diff", chats / "old", chats / "new")

    assert (answer.code, answer.stderr) == (0, "")
    assert "+10 -1 ~1, 98 as before" in answer.stdout
    assert f"{chats / 'old'}: chat, 100 samples; content " in answer.stdout
    assert " reused" in answer.stdout
    assert "to upload" in answer.stdout


def test_samples_are_shown_with_their_signs(chats: Path) -> None:
    """The part before and after, beneath the key and the shards."""
    told = datakit("diff", chats / "old", chats / "new", "--show", "1").stdout

    assert "~ changed r00005  chat-" in told
    assert '  + json: {"id": "r00005", "text": "hello world"}' in told
    assert '  - json: {"id": "r00005", "text": "ef2d127d' in told
    assert "- removed r00030" in told
    assert "+ added r001" in told


def test_json_holds_all_of_it(chats: Path) -> None:
    """Numbers as numbers."""
    answer = datakit("diff", chats / "old", chats / "new", "--json", "--show", "1")

    result = answer.json["result"]
    assert result["samples"]["added"] == 10
    assert result["samples"]["kept"] == 98
    assert result["same_samples"] is False
    assert {shown["what"] for shown in result["shown"]} >= {"changed", "added", "removed"}


def test_equal_datasets_are_said_to_be(chats: Path) -> None:
    """And the command ends with 0 either way."""
    answer = datakit("diff", chats / "old", chats / "old")

    assert answer.code == 0
    assert "samples    the same" in answer.stdout


def test_a_place_that_is_not_there_is_exit_code_2(chats: Path) -> None:
    """With the place."""
    answer = datakit("diff", chats / "old", "nowhere")

    assert answer.code == 2
    assert "nowhere" in answer.stderr
