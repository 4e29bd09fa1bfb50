"""The raw records: what is taken from the package, and that a user's edit survives."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def corpus(pipelines: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    import corpus

    return corpus


def all_records(raw: Path) -> list[dict]:
    return [
        json.loads(line) for path in sorted(raw.iterdir()) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def digest_of(raw: Path) -> str:
    return hashlib.sha256(
        b"".join(path.name.encode() + path.read_bytes() for path in sorted(raw.iterdir()))
    ).hexdigest()


def test_the_corpus_is_the_same_bytes_every_time(corpus: ModuleType, tmp_path: Path) -> None:
    """Two writes of the corpus give equal files, so that a fresh clone packs equal shards."""
    corpus.write_corpus(tmp_path / "a")
    corpus.write_corpus(tmp_path / "b")

    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")


def test_every_record_is_a_conversation_that_ends_with_an_answer(corpus: ModuleType, tmp_path: Path) -> None:
    """Roles alternate from user to assistant and no message is empty."""
    counts = corpus.write_corpus(tmp_path / "raw")

    records = all_records(tmp_path / "raw")
    assert counts["records"] == len(records) == 2492
    assert counts["skipped"] == 1
    for record in records:
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert roles
        assert all(message["content"].strip() for message in record["messages"])


def test_ids_are_unique_and_name_their_file(corpus: ModuleType, tmp_path: Path) -> None:
    """An id is `<file>-<number>`; equal conversations keep ids of their own."""
    corpus.write_corpus(tmp_path / "raw")

    for path in (tmp_path / "raw").iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["id"].rpartition("-")[0] == path.stem
    ids = [record["id"] for record in all_records(tmp_path / "raw")]
    assert len(set(ids)) == len(ids)


def test_an_edited_record_survives(corpus: ModuleType, tmp_path: Path) -> None:
    """data/raw is the user's folder: where it is, nothing is written."""
    corpus.write_corpus(tmp_path / "raw")
    edited = tmp_path / "raw" / "english-ai.jsonl"
    edited.write_text("mine\n")

    counts = corpus.write_corpus(tmp_path / "raw")

    assert edited.read_text() == "mine\n"
    assert not counts


def test_a_killed_write_is_begun_again(corpus: ModuleType, tmp_path: Path) -> None:
    """What a killed run left beside data/raw is replaced and never shown as data/raw."""
    (tmp_path / ".raw.tmp").mkdir()
    (tmp_path / ".raw.tmp" / "half.jsonl").write_text("{")

    corpus.write_corpus(tmp_path / "raw")

    assert not (tmp_path / "raw" / "half.jsonl").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    "conversation",
    [["only a question"], ["question", {"an answer with": "a colon"}], ["question", "  "], "text", [], None],
)
def test_a_conversation_without_an_answer_is_skipped_and_counted(corpus: ModuleType, conversation: object) -> None:
    """What cannot be a conversation is left out, and the count says so."""
    counts: Counter[str] = Counter()
    text = json.dumps({"conversations": [conversation, ["a", "b", "c"]]})

    records = list(corpus.records("x", text, counts))

    assert [record["id"] for record in records] == ["x-0001"]
    assert [message["content"] for message in records[0]["messages"]] == ["a", "b"]
    assert counts == {"skipped": 1, "records": 1, "shortened": 1}
