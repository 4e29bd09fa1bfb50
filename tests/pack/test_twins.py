"""pack/twins: samples with the same bytes are told, left out where that is asked for, and refused across splits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, Refused
from datakit.data.keys import split_of
from datakit.events import Caution, Event, Note
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.pack.twins import groups_of
from datakit.storage.commit import read_manifest
from support.cli import datakit, environment
from support.opened import opened
from support.packing import raw_lines, samples_of, small_pack, tree, visible, write_lines
from support.receipts import at_rest

SPLITS = {"train": 1, "held-out": 1}


def write_texts(root: Path, texts: dict[str, str]) -> Path:
    """A folder with a text for each key."""
    root.mkdir(exist_ok=True)
    for key, text in texts.items():
        (root / f"{key}.txt").write_text(text)
    return root


def heard(raw: Path, dest: Path, **words: object) -> tuple[PackResult, list[Event]]:
    """Pack, and all that was said."""
    told: list[Event] = []
    settings = PackSettings(**{"shard_size": "8KiB", **words})  # type: ignore[arg-type]  # by name
    return pack(raw, dest, settings=settings, workers=1, on_event=told.append), told


def cautions(told: list[Event]) -> list[str]:
    """Messages of the cautions."""
    return [event.message for event in told if isinstance(event, Caution)]


@given(st.lists(st.integers(0, 30), max_size=80), st.booleans())
def test_groups_are_those_of_a_plain_loop(values: list[int], heads_equal: bool) -> None:
    """Equal rows together, in order, also where the first eight bytes of different rows are equal."""
    rows = [(b"\0" * 8 if heads_equal else value.to_bytes(8, "big")) + value.to_bytes(8, "big") for value in values]
    digests = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 16)
    expected = [[at for at, other in enumerate(values) if other == value] for value in dict.fromkeys(values)]

    found = [group.tolist() for group in groups_of(digests)]

    assert found == [group for group in expected if len(group) > 1]


def test_twins_of_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, and of whom; the dataset holds them all."""
    at_rest(monkeypatch)
    texts = {f"t{number:02d}": f"text {number % 17}" for number in range(20)}

    result, told = heard(write_texts(tmp_path / "raw", texts), tmp_path / "ds")

    assert result.samples == 20
    assert [message for message in cautions(told) if message.startswith("3 samples hold the bytes of another (")]
    again, told_again = heard(tmp_path / "raw", tmp_path / "ds")
    assert again.built == 0
    assert any(message.startswith("3 samples hold") for message in cautions(told_again)), "also when nothing is built"


@pytest.mark.parametrize("workers", [1, 2])
def test_twins_are_left_out_where_that_is_asked_for(tmp_path: Path, workers: int) -> None:
    """The first by the source's order stays; only files whose size another has are read before the plan, and it says
    so; the manifest records the setting.
    """
    texts = {f"t{number:02d}": "x" * (number // 2) + f"{number % 2 if number < 10 else 7}" for number in range(20)}
    texts["zz"] = "a text of a length that is nobody else's"
    raw = write_texts(tmp_path / "raw", texts)
    settings = PackSettings(shard_size="8KiB", dedupe="drop")
    told: list[Event] = []

    planned = pack(raw, tmp_path / "ds", settings=settings, dry_run=True)
    with opened(raw) as files:
        result = pack(raw, tmp_path / "ds", settings=settings, workers=workers, on_event=told.append)

    first = {text: key for key, text in reversed(texts.items())}
    assert {sample.key for sample in samples_of(tmp_path / "ds")} == set(first.values())
    assert (result.twins, result.samples) == (5, 16)
    assert (planned.twins, planned.samples, planned.plan_digest) == (5, 16, result.plan_digest)
    notes = [event.message for event in told if isinstance(event, Note)]
    assert any(note.startswith("reading 20 of 21 records") for note in notes)
    assert any(note.startswith("left out 5 records") and "t11 is t10" in note for note in notes)
    if workers == 1:
        assert sum(path.name == "zz.txt" for path in files) == 1
    assert '"dedupe": "drop"' in (tmp_path / "ds" / "manifest.json").read_text()
    assert read_manifest(tmp_path / "ds").contents.pack["left_out"] == {"twins": 5}
    listed = [json.loads(line) for line in (tmp_path / "ds.errors.jsonl").read_text().splitlines()]
    assert [(one["key"], one["problem"]) for one in listed] == [
        (f"t{number}", f"holds the bytes of t{number - 1}") for number in range(11, 21, 2)
    ]
    assert result.left_out.report == tmp_path / "ds.errors.jsonl"


def test_twins_are_listed_behind_offenders_and_never_over_a_file_of_others(tmp_path: Path) -> None:
    """One list of all that was left out; what no pack wrote is left alone."""
    raw = write_texts(tmp_path / "raw", {"a": "same", "b": "same", "c": ""})
    settings = PackSettings(dedupe="drop", on_error="skip")
    report = tmp_path / "ds.errors.jsonl"

    result = pack(raw, tmp_path / "ds", settings=settings)
    listed = [json.loads(line)["where"] for line in report.read_text().splitlines()]
    (raw / "c.txt").unlink()
    report.write_text("mine")
    with pytest.raises(Refused, match="is no list of offenders that a pack wrote"):
        pack(raw, tmp_path / "ds", settings=settings)

    assert (listed, result.left_out.count, result.twins) == (["c.txt", "b"], 1, 1)
    assert read_manifest(tmp_path / "ds").contents.pack["left_out"] == {"offenders": 1, "twins": 1}
    assert report.read_text() == "mine"


def leaking(count: int) -> dict[str, str]:
    """Texts of which one is in both splits under two keys."""
    keys = [f"t{number:03d}" for number in range(count)]
    one = next(key for key in keys if split_of(key, SPLITS) == "train")
    two = next(key for key in keys if split_of(key, SPLITS) == "held-out")
    return {key: f"text of {one if key == two else key}" for key in keys}


def test_a_leak_between_splits_is_refused(tmp_path: Path) -> None:
    """Both keys and both splits, before anything is committed; left out, the splits are apart."""
    texts = leaking(40)
    raw = write_texts(tmp_path / "raw", texts)
    one, two = sorted(key for key, text in texts.items() if list(texts.values()).count(text) > 1)

    with pytest.raises(InputError, match="splits leak: 2 samples have the bytes of one in another split") as caught:
        heard(raw, tmp_path / "ds", splits=SPLITS)
    left = visible(tmp_path / "ds") if (tmp_path / "ds").exists() else []
    result, _ = heard(raw, tmp_path / "ds", splits=SPLITS, dedupe="drop")

    assert f"{one} in" in caught.value.message
    assert f"{two} in" in caught.value.message
    assert caught.value.hint == "Keep the first of each: --dedupe drop"
    assert left == []
    assert result.samples == 39


def test_lines_that_repeat_one_another_are_refused_or_left_out(tmp_path: Path) -> None:
    """They have one key; the hint says how to keep the first. Lines of one key that differ are refused all the same."""
    lines = raw_lines(30)
    raw = write_lines(tmp_path / "raw.jsonl", [*lines, lines[3], lines[7]])

    with pytest.raises(InputError, match="keep the first of equal lines: --dedupe drop"):
        heard(raw, tmp_path / "ds")
    result, told = heard(raw, tmp_path / "ds", dedupe="drop")
    small_pack(write_lines(tmp_path / "plain.jsonl", lines), tmp_path / "plain" / "ds", shard_size="8KiB")
    write_lines(raw, [*lines, json.dumps({"id": "r00003", "text": "another"}).encode()])

    assert (result.twins, result.records) == (2, 30)
    assert Note("left out 2 lines that repeat an earlier one") in told
    shards = {name: data for name, data in tree(tmp_path / "ds").items() if name.endswith(".tar")}
    assert shards == {n: d for n, d in tree(tmp_path / "plain" / "ds").items() if n.endswith(".tar")}
    with pytest.raises(InputError, match="r00003"):
        heard(raw, tmp_path / "ds", dedupe="drop")


def test_the_flag_is_there(tmp_path: Path) -> None:
    """On the command line, with its count in the JSON; what is said to be packed is what is in the dataset."""
    raw = write_texts(tmp_path / "raw", {"a": "same", "b": "same", "c": "other"})

    answer = datakit("pack", raw, tmp_path / "ds", "--dedupe", "drop", "--json")
    dry = datakit("pack", raw, tmp_path / "ds", "--dedupe", "drop", "--dry-run")

    result = answer.json["result"]
    assert (result["twins"], result["samples"], result["records"], result["part_counts"]) == (1, 2, 2, {"txt": 2})
    assert "Packed 2 records into 1 shard" in answer.stderr
    assert "Would pack 2 records into 1 shard" in dry.stderr


def test_side_files_are_members_of_the_commit(tmp_path: Path) -> None:
    """`--index energon --index dali`: named by the manifest, renewed with it, and gone when nobody asks for them."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    words = ["--shard-size", "8KiB", "--index", "energon", "--index", "dali"]

    first = datakit("pack", raw, tmp_path / "ds", *words)
    names = set(tree(tmp_path / "ds"))
    write_lines(raw, raw_lines(100, edit={3: "x"}))
    second = datakit("pack", raw, tmp_path / "ds", *words)
    renewed = tree(tmp_path / "ds")
    fresh = datakit(
        "pack", raw, tmp_path / "fresh" / "ds", "--shard-size", "8KiB", "--index", "energon", "--index", "dali"
    )
    third = datakit("pack", raw, tmp_path / "ds", "--shard-size", "8KiB")

    assert [answer.code for answer in (first, second, fresh, third)] == [0, 0, 0, 0]
    shards = {name for name in names if name.endswith(".tar")}
    assert {f"{name}.idx" for name in shards} <= names
    assert {f"{name.removesuffix('.tar')}.idx" for name in shards} <= names
    assert ".nv-meta/index.sqlite" in names
    assert renewed == tree(tmp_path / "fresh" / "ds")
    assert not [name for name in tree(tmp_path / "ds") if name.endswith(".idx") or name.startswith(".nv-meta")]


def test_twins_are_found_in_more_shards_than_a_process_may_have_files(tmp_path: Path) -> None:
    """150 shards with 64 descriptors: one index is open at a time."""
    texts = {f"t{number:03d}": f"{number % 149:04d}" * 300 for number in range(150)}
    raw = write_texts(tmp_path / "raw", texts)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from datakit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["pack", str(raw), str(tmp_path / "ds"), "--shard-size", "1KiB", "--layout", "sequential"]

    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())

    assert done.returncode == 0, done.stderr
    assert "1 sample holds the bytes of another (t149 is t000)" in " ".join(done.stderr.split())
    assert len([name for name in tree(tmp_path / "ds") if name.endswith(".tar")]) > 100


def test_a_leak_counts_samples_not_groups(tmp_path: Path) -> None:
    """Ten samples of the same bytes over two splits are ten; a plan says that it has not looked."""
    raw = write_texts(tmp_path / "raw", {f"t{number}": "same" for number in range(10)})
    told: list[Event] = []

    pack(raw, tmp_path / "ds", settings=PackSettings(splits=SPLITS), dry_run=True, on_event=told.append)
    with pytest.raises(InputError, match="splits leak: 10 samples have the bytes of one in another split"):
        heard(raw, tmp_path / "ds", splits=SPLITS)

    assert Note("whether splits share samples is seen when shards are built, and then refused") in told
