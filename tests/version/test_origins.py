"""version/origins: from the adapter to the raw files, by what a dvc.lock records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datakit.data.manifest import Manifest
from datakit.storage.commit import commit, read_manifest
from datakit.version.document import read_yaml, write_yaml
from datakit.version.lineage import Link, build_lineage, chain, render, to_bytes
from datakit.version.local import record_of
from datakit.version.origins import trace
from support.cli import datakit
from support.dvcproject import bare_project
from support.tiny import text_samples, write_dataset

LISTING = {
    "format": 1,
    "kind": "jsonl",
    "files": [{"name": f"topic-{number}.jsonl", "bytes": 100, "fingerprint": "x"} for number in range(7)],
}


def stage(root: Path, deps: list[str], outs: list[str], params: dict[str, object] | None = None) -> dict[str, object]:
    """A stage as `dvc commit` would record it now."""

    def entries(paths: list[str]) -> list[dict[str, object]]:
        return [record_of(root / path, written=path).to_json() for path in paths]

    value: dict[str, object] = {"cmd": "x", "deps": entries(deps), "outs": entries(outs)}
    return {**value, "params": {"params.yaml": params}} if params else value


def write_adapter(path: Path, data: Manifest) -> Path:
    with commit(path, kind="adapter", name="first") as staging:
        lineage = build_lineage(
            run="first",
            data=data,
            base_model={"name": "base", "digest": "f" * 64},
            settings={},
            settings_digest="1" * 64,
            versions={},
            consumed={},
        )
        staging.write("lineage.json", to_bytes(lineage))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The shape of the demo: scan, pack into splits, tokenize, a copy through the bucket, train."""
    root = bare_project(tmp_path / "p", remote="../store")
    (root / "data").mkdir()
    (root / "data/source.json").write_text(json.dumps(LISTING))
    (root / "data/receipt.json").write_text("{}")
    (root / "base.json").write_text("{}")
    for split in ("train", "held-out"):
        write_dataset(root / "data/packed" / split, text_samples(9, prefix=split))
    write_dataset(root / "data/tokens", text_samples(9))
    shutil.copytree(root / "data/tokens", root / "data/tier")
    write_adapter(root / "adapter", read_manifest(root / "data/tier"))
    stages = {
        "scan": stage(root, [], ["data/source.json"]),
        "pack": stage(root, ["data/source.json"], ["data/packed"], {"pack": {"shard_size": "1MiB"}}),
        "tokenize@train": stage(root, ["data/packed/train", "base.json"], ["data/tokens"]),
        "publish": stage(root, ["data/tokens"], ["data/receipt.json"]),
        "stage": stage(root, ["data/receipt.json"], ["data/tier"]),
        "train": stage(root, ["data/tier"], ["adapter"]),
    }
    (root / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))
    return root


def way(link: Link) -> list[str]:
    """Kinds and names along the first way down, the dataset's stage taken where there is one."""
    steps = [f"{link.kind} {link.name}"]
    while link.made_from:
        link = next((each for each in link.made_from if each.kind == "stage"), link.made_from[0])
        steps.append(f"{link.kind} {link.name}")
    return steps


DOWN = [
    "adapter adapter", "dataset tokens", "stage stage", "file data/receipt.json", "stage publish",
    "directory data/tokens", "stage tokenize@train", "directory data/packed/train", "stage pack",
    "file data/source.json", "stage scan",
]  # fmt: skip


def test_an_adapter_leads_to_the_raw_files(root: Path) -> None:
    """Through the copy on the tier, the bucket, tokens, shards and their settings, to the listing."""
    link = trace(root / "adapter")

    assert way(link) == DOWN
    text = render(link)
    assert '"pack": {"shard_size": "1MiB"}' in text
    assert "raw files: 7" in text
    assert "raw bytes: 700" in text
    assert "... 2 more" in text
    assert "file base.json" in text


def test_an_adapter_that_was_carried_away_is_followed_from_where_we_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its place nor its name has to fit, only its data."""
    shutil.copytree(root / "adapter", tmp_path / "elsewhere")
    alone = trace(tmp_path / "elsewhere")
    monkeypatch.chdir(root / "data")

    assert alone == chain(tmp_path / "elsewhere")
    assert way(trace(tmp_path / "elsewhere"))[1:] == DOWN[1:]


def test_a_split_inside_an_output_is_found(root: Path) -> None:
    """The stage made both splits; one of them is asked about."""
    assert way(trace(root / "data/packed/held-out")) == ["dataset held-out", *DOWN[-3:]]


def test_data_that_no_stage_records_ends_the_chain(root: Path) -> None:
    """Packed again by hand: what dvc.lock tells is of other data, and is not shown."""
    shutil.rmtree(root / "data/packed/train")
    write_dataset(root / "data/packed/train", text_samples(12, prefix="train"))

    assert trace(root / "data/packed/train") == chain(root / "data/packed/train")


def test_an_older_split_is_told_what_is_recorded_now(root: Path, tmp_path: Path) -> None:
    """Where it is known what the splits are that dvc.lock records."""
    write_dataset(tmp_path / "older" / "train", text_samples(12, prefix="train"))
    shutil.move(tmp_path / "older", root / "older")

    found = trace(root / "older" / "train")

    said = f"another: {root}/dvc.lock records other data now for data/packed of stage pack"
    assert found.facts == {**chain(root / "older" / "train").facts, "here": said}


@pytest.mark.parametrize("gone", [False, True])
def test_an_adapter_of_older_data_says_that_another_is_recorded_now(root: Path, gone: bool) -> None:
    """After an edit and a new repro its chain ends, and it is said why; where the data is not here, too."""
    adapter = shutil.move(root / "adapter", root / "old")
    value = json.loads(json.dumps(read_yaml((root / "dvc.lock").read_bytes(), where="dvc.lock")))
    for place in ("data/tokens", "data/tier"):
        shutil.rmtree(root / place)
        write_dataset(root / place, text_samples(12))
        manifest = json.loads((root / place / "manifest.json").read_text())
        (root / place / "manifest.json").write_text(json.dumps({**manifest, "name": "tokens"}))
    value["stages"]["tokenize@train"] = stage(root, ["data/packed/train", "base.json"], ["data/tokens"])
    value["stages"]["stage"] = stage(root, ["data/receipt.json"], ["data/tier"])
    (root / "dvc.lock").write_bytes(write_yaml(value))
    if gone:
        shutil.rmtree(root / "data/tokens")

    link = trace(adapter)

    data = link.made_from[0]
    assert (data.kind, data.name, data.made_from) == ("dataset", "tokens", ())
    places = ["data/tier of stage stage", "data/tokens of stage tokenize@train"]
    assert data.facts["here"].startswith(f"another: {root}/dvc.lock records other data now for ")
    assert all(place in data.facts["here"] for place in places)
    assert "data/packed" not in data.facts["here"]


def test_an_adapter_that_has_nothing_to_do_with_the_pipeline_is_left_alone(root: Path) -> None:
    """A dvc.lock around it that makes no data of that name is not mentioned."""
    write_dataset(root / "mine", text_samples(5))

    assert trace(root / "mine") == chain(root / "mine")


def test_what_lies_there_now_is_compared(root: Path) -> None:
    """The chain is what was; beside each step stands whether it still lies here."""
    (root / "base.json").write_text("[]")
    (root / "data/source.json").unlink()

    text = render(trace(root / "adapter"))

    assert "file base.json" in text
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index(next(line for line in lines if line.startswith("file base.json"))) + 2] == "here: another"
    assert "here: no" in lines
    assert "here: as recorded" in lines
    assert "raw files" not in text


def test_a_lock_that_cannot_be_read_changes_nothing(root: Path) -> None:
    """What the lineage itself says is shown."""
    (root / "dvc.lock").write_text("schema: '9'\n")

    assert trace(root / "adapter") == chain(root / "adapter")


def test_stages_that_feed_each_other_do_not_go_round(root: Path) -> None:
    """A dvc.lock is written by anyone."""
    stages = {"a": stage(root, ["data/tokens"], ["data/tier"]), "b": stage(root, ["data/tier"], ["data/tokens"])}
    (root / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))

    assert len(way(trace(root / "adapter"))) == 6


def test_a_stage_that_several_ways_lead_to_is_told_once(root: Path) -> None:
    """Diamond on diamond: each stage once, with a word where it is met again, and not once for each of 2**12 ways."""
    tier = "data/tier"
    stages = {}
    for level in range(13):
        for side in "ab":
            (root / f"d{level}-{side}").write_text(f"{level}{side}")
    for level in range(12):
        below = [f"d{level + 1}-a", f"d{level + 1}-b"]
        stages |= {f"s{level}{side}": stage(root, below, [f"d{level}-{side}"]) for side in "ab"}
    stages["stage"] = stage(root, ["d0-a", "d0-b"], [tier])
    (root / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))

    text = render(trace(root / "adapter"))

    assert text.count("stage s11a\n") == text.count("stage s0b\n") == 1
    assert "made by: stage s11b, told above" in text
    assert len(text.splitlines()) < 500


def test_raw_files_beside_a_dataset_are_not_hashed(root: Path) -> None:
    """An output that holds a dataset and 17 MiB besides is too large to be read in passing."""
    (root / "data/packed/raw.bin").write_bytes(bytes(17 * 2**20))
    stages = {"pack": stage(root, ["data/source.json"], ["data/packed"])}
    (root / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))

    assert trace(root / "data/packed/train") == chain(root / "data/packed/train")


def test_the_command_shows_the_whole_chain(root: Path) -> None:
    """One thing a line, its facts beneath it."""
    answer = datakit("lineage", root / "adapter")

    assert answer.code == 0
    assert "stage pack" in answer.stdout
    assert "first of them" in answer.stdout
