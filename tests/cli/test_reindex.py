"""`datakit reindex` as people and scripts meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import datakit
from support.tars import contents, files_of, pairs, write_tar, write_webdataset


@pytest.fixture
def tars(clean_room: Path) -> Path:
    """Two tars in the current directory."""
    write_webdataset(clean_room / "theirs" / "0.tar", pairs(range(10)))
    write_tar(clean_room / "theirs" / "1.tar", [("README", b"x"), *files_of(pairs(range(10, 30)))])
    return clean_room / "theirs"


def test_it_says_what_it_found(tars: Path) -> None:
    """One sentence, the parts, what was skipped, and the manifest; then every other command reads it."""
    answer = datakit("reindex", "theirs", "ds", "--index", "energon")

    assert (answer.code, answer.stdout) == (0, "")
    assert "Indexed 30 samples in 2 tars, " in answer.stderr
    assert "part jpg" in answer.stderr
    assert "skipped names without a dot" in answer.stderr
    assert datakit("verify", "ds").code == 0
    assert datakit("cat", "ds", "img-0012.jpg").stdout.encode() == pairs([12])[0].parts["jpg"]
    assert "30" in datakit("inspect", "ds").stdout


def test_json_has_the_same_facts(tars: Path) -> None:
    """Fields of the Python result."""
    told = datakit("reindex", "theirs", "--json").json

    assert told["ok"]
    assert told["result"].items() >= {"shards": 2, "samples": 30, "skipped": {"names without a dot": 1}}.items()


def test_a_dry_run_writes_nothing(tars: Path) -> None:
    """It reads everything, so it finds what the run would find."""
    before = contents(tars)

    answer = datakit("reindex", "theirs", "--dry-run")

    assert answer.code == 0
    assert "Would index 30 samples in 2 tars" in answer.stderr
    assert contents(tars) == before


def test_offenders_are_listed_and_end_it_with_1(tars: Path) -> None:
    """With the command that packs them anew."""
    write_tar(tars / "2.tar", [("a.txt", b"1"), ("a.txt", b"2")])

    answer = datakit("reindex", "theirs")

    assert answer.code == 1
    assert "2.tar: a.txt: the tar holds part txt of sample a twice" in answer.stderr
    assert "datakit pack" in answer.stderr
    assert "--input tar" in answer.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["reindex", "nowhere"], 2, "nowhere is not a directory"),
        (["reindex", "s3://bkt/x"], 2, "reindex works on a local directory"),
        (["reindex", "theirs", "--index", "mds"], 2, "no side files for mds"),
        (["reindex", "theirs", "theirs/0.tar"], 3, "0.tar is not a directory"),
    ],
)
def test_what_cannot_be_ends_with_its_code(tars: Path, words: list[str], code: int, said: str) -> None:
    """One sentence."""
    answer = datakit(*words)

    assert answer.code == code
    assert said in answer.stderr
