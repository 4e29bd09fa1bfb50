"""The main job, end to end: a first run, a second one, an edit, on the real stages with a tiny model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from datakit.version.lineage import render
from datakit.version.origins import trace
from support.checkout import adapter_bytes, make_checkout, run_demo, stages_run, start_demo

ALL = [
    "base", "pack", "tokenize@train", "tokenize@held-out", "publish@train", "publish@held-out",
    "stage@train", "stage@held-out", "train", "evaluate",
]  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the demo has run once; tests change it one after the other."""
    path = make_checkout(tmp_path_factory.mktemp("checkout") / "datakit")
    (path / "first.txt").write_text(run_demo(path))
    return path


def edit_record(checkout: Path, old: str, new: str) -> None:
    path = checkout / "data" / "raw" / "topic-0.jsonl"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_demo_ends_with_an_adapter_and_one_table(checkout: Path) -> None:
    """Every stage runs once, and the table names what came out of it."""
    said = (checkout / "first.txt").read_text()

    assert sorted(stages_run(said)) == sorted(ALL)
    assert said.index("Use `dvc push`") < said.index("dvc remote add --default NAME URL") < said.index("\nDone.")
    rows = dict(line.split("  ", 1) for line in said[said.index("\nDone.") :].splitlines() if "  " in line)
    assert rows["records"].strip().startswith("150 conversations")
    assert rows["adapter"].strip().startswith("models/adapter")
    assert "step-00000006" in rows["checkpoints"]
    assert {"samples", "shards", "bytes", "requests", "speed", "waiting for data", "held-out loss", "lineage"} <= set(
        rows
    )


def test_the_adapter_knows_where_it_comes_from(checkout: Path) -> None:
    """Its lineage holds the digests of the data on the tier and of the base model."""
    lineage = json.loads((checkout / "models" / "adapter" / "lineage.json").read_text())

    tier = json.loads((checkout / "data" / "tier" / "train" / "manifest.json").read_text())
    assert lineage["data"]["layout_digest"] == tier["about"]["layout_digest"]
    assert lineage["base_model"]["name"] == "tiny"


def test_the_chain_goes_down_to_the_raw_files(checkout: Path) -> None:
    """Through the stages that dvc.lock records: tier, bucket, tokens, shards, and the listing of the raw files."""
    text = render(trace(checkout / "models" / "adapter"))

    lines = [line.strip() for line in text.splitlines()]
    stages = [line.removeprefix("stage ") for line in lines if line.startswith("stage ")]
    assert stages[:4] == ["stage@train", "publish@train", "tokenize@train", "pack"]
    assert "raw files: 3" in lines


def table(said: str) -> str:
    """The facts at the end: from the line of the records on."""
    return said[said.rindex("\nrecords ") :]


def test_a_second_run_finds_nothing_to_do(checkout: Path) -> None:
    """Nothing but the listing runs, and the table is the same."""
    first = (checkout / "first.txt").read_text()

    said = run_demo(checkout)

    assert stages_run(said) == []
    assert "Nothing to do" in said
    assert table(said) == table(first)


def test_a_flipped_bit_on_the_tier_heals_by_the_demo_itself(checkout: Path) -> None:
    """DVC runs a stage whose output has changed; it fetches the damaged member again, and all else stays."""
    shards = [next((checkout / "data" / "tier" / split).glob("*.tar")) for split in ("train", "held-out")]
    whole = [shard.read_bytes() for shard in shards]
    for shard, data in zip(shards, whole, strict=True):
        shard.write_bytes(data[:700] + bytes([data[700] ^ 1]) + data[701:])

    said = run_demo(checkout)

    assert stages_run(said) == ["stage@train", "stage@held-out"]
    assert [shard.read_bytes() for shard in shards] == whole
    assert stages_run(run_demo(checkout)) == []


def test_an_edit_of_one_record_redoes_what_it_changes(checkout: Path) -> None:
    """A training record changes the training split and what comes after it; putting it back gives the same adapter."""
    before = adapter_bytes(checkout)
    rewritten = {path.name for path in (checkout / "data" / "tier" / "train").glob("*.tar")}

    edit_record(checkout, "13.", "thirteen.")
    said = run_demo(checkout)
    edited = adapter_bytes(checkout)
    now = {path.name for path in (checkout / "data" / "tier" / "train").glob("*.tar")}
    edit_record(checkout, "thirteen.", "13.")
    run_demo(checkout)

    assert stages_run(said) == ["pack", "tokenize@train", "publish@train", "stage@train", "train", "evaluate"]
    assert len(rewritten - now) == 1
    assert edited != before
    assert adapter_bytes(checkout) == before


def test_a_setting_of_training_redoes_training_alone(checkout: Path) -> None:
    """Data is neither packed nor moved for another learning rate."""
    params = checkout / "params.yaml"
    text = params.read_text()

    params.write_text(text.replace("learning_rate: 1e-2", "learning_rate: 2e-2"))
    said = run_demo(checkout)
    params.write_text(text)

    assert stages_run(said) == ["train", "evaluate"]


def test_a_renamed_split_is_not_mixed_with_the_old_one(checkout: Path) -> None:
    """The dataset of a split that has another name now is never evaluated on: the demo stops and names it."""
    params = checkout / "params.yaml"
    text = params.read_text()

    params.write_text(text.replace("held-out: 20", "test: 20"))
    with start_demo(checkout) as process:
        said, _ = process.communicate()
    params.write_text(text)

    assert process.returncode != 0
    assert "held-out" in said
    assert stages_run(said)[:1] == ["pack"]
    assert "evaluate" not in stages_run(said)


def test_settings_edited_while_training_runs_are_never_recorded_for_it(checkout: Path) -> None:
    """Put back meanwhile to those of a finished run: its adapter is not taken for this one's, the stage fails."""
    params, frozen = checkout / "params.yaml", checkout / "data" / "train.yaml"
    run_demo(checkout)
    before, text = adapter_bytes(checkout), params.read_text()
    frozen.unlink()
    params.write_text(text.replace("learning_rate: 1e-2", "learning_rate: 3e-2"))

    with start_demo(checkout) as process:
        while process.poll() is None and not frozen.exists():
            time.sleep(0.02)
        params.write_text(text)
        said, _ = process.communicate()
    again = run_demo(checkout)

    assert process.returncode == 1
    assert "params.yaml changed while the stage ran" in said
    assert "train" in stages_run(again)
    assert adapter_bytes(checkout) == before
