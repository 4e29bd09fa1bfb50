"""The guard inside a training: refused before anything is made, accepted with a record, the same in a preview."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.events import Caution, Event
from datakit.train.preview import preview
from datakit.train.recipe import Recipe
from datakit.version.dvc import write_dvc_file
from datakit.version.local import record_of
from support.cli import datakit as command
from support.commits import flip_bit
from support.tiny import commit_model

RECIPE = Recipe(steps=1, batch_size=2, threads=1, save_every_steps=1, warmup_steps=0)


@pytest.fixture
def recorded(tokens_dir: Path, tmp_path: Path) -> Path:
    """A dataset that its `.dvc` file records."""
    path = tmp_path / "data" / "tokens"
    shutil.copytree(tokens_dir, path)
    path.with_name("tokens.dvc").write_bytes(write_dvc_file(record_of(path, written="tokens")))
    return path


def train(data: Path, base: Path, run: Path, events: list[Event] | None = None, **options: Any) -> Any:
    hear = (lambda _: None) if events is None else events.append
    return datakit.train(data, model=base, output=run, settings=RECIPE, on_event=hear, **options)


def test_stale_data_is_refused_and_leaves_no_run(recorded: Path, base_dir: Path, tmp_path: Path) -> None:
    """In the training and in its preview alike."""
    (recorded / "note").write_text("1")

    with pytest.raises(datakit.Refused, match=r"tokens\.dvc says"):
        train(recorded, base_dir, tmp_path / "run")
    with pytest.raises(datakit.Refused, match=r"tokens\.dvc says"):
        preview(recorded, model=base_dir, output=tmp_path / "run", settings=RECIPE)

    assert not (tmp_path / "run").exists()


def test_accepted_stale_data_stands_in_the_lineage(recorded: Path, base_dir: Path, tmp_path: Path) -> None:
    """With both values and the step; data that is as recorded leaves nothing there."""
    good = train(recorded, base_dir, tmp_path / "good")
    (recorded / "note").write_text("1")
    events: list[Event] = []

    bad = train(recorded, base_dir, tmp_path / "bad", events, accept=["stale"])

    assert json.loads((good.adapter / "lineage.json").read_bytes())["overrides"] == []
    (override,) = json.loads((bad.adapter / "lineage.json").read_bytes())["overrides"]
    assert override["what"] == f"stale {recorded}"
    assert override["to"] == record_of(recorded, written="x").md5
    assert override["step"] == 0
    assert any("going on although" in event.message for event in events if isinstance(event, Caution))


def test_a_file_of_another_size_is_found_before_training(recorded: Path, base_dir: Path, tmp_path: Path) -> None:
    """A flipped bit is found with `verify`, which reads every byte; otherwise by the loader, when it gets there."""
    shard = next(recorded.glob("*.tar"))
    flip_bit(shard, 10)

    with pytest.raises(datakit.IntegrityError, match="have crc32c"):
        train(recorded, base_dir, tmp_path / "run", verify=True)
    shard.write_bytes(b"cut")
    with pytest.raises(datakit.IntegrityError, match="has 3 bytes"):
        train(recorded, base_dir, tmp_path / "run")

    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_in_the_base_model_is_found_before_training(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """At each start that will load it: the adapter's lineage would name a model that it was not made of."""
    base, run = commit_model(base_dir, tmp_path / "base"), tmp_path / "run"
    train(tokens_dir, base, run)
    flip_bit(base / "model.safetensors", 5000)

    done = train(tokens_dir, base, run)
    shutil.rmtree(run / "checkpoints")
    for output in (tmp_path / "other", run):
        with pytest.raises(datakit.IntegrityError, match="safetensors: bytes 0 to"):
            train(tokens_dir, base, output)

    assert done.steps == RECIPE.steps  # a finished run loads no model, and reads none
    assert not (tmp_path / "other").exists()
    assert preview(tokens_dir, model=base, output=tmp_path / "other", settings=RECIPE).steps_done == 0


def test_a_flipped_bit_in_a_plain_model_is_another_model(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """A directory without a manifest is told by its bytes: a run that began with others is not resumed."""
    base, run = Path(shutil.copytree(base_dir, tmp_path / "base")), tmp_path / "run"
    train(tokens_dir, base, run)
    flip_bit(base / "model.safetensors", 5000)

    with pytest.raises(datakit.Refused, match="written for model base"):
        train(tokens_dir, base, run)


def test_a_launch_script_names_its_data(recorded: Path, base_dir: Path, tmp_path: Path) -> None:
    """`--expect-data` goes on with that dataset and refuses any other, exit code 3, saying what it has."""
    content = json.loads((recorded / "manifest.json").read_bytes())["about"]["content_digest"]
    words = ["train", recorded, "--model", base_dir, "--output", tmp_path / "run", "--dry-run"]

    right = command(*words, "--expect-data", content[:16])
    wrong = command(*words, "--expect-data", "0123456789abcdef")

    assert right.code == 0, right.stderr
    assert wrong.code == 3
    assert content[:12] in wrong.stderr
    assert "expected was 0123456789abcdef" in wrong.stderr


def test_the_command_says_how_to_go_on(recorded: Path, base_dir: Path, tmp_path: Path) -> None:
    """Exit code 3, both values, the commands that mend it and the option that lets it pass."""
    (recorded / "note").write_text("1")
    words = ["train", recorded, "--model", base_dir, "--output", tmp_path / "run", "--dry-run"]

    refused = command(*words)
    accepted = command(*words, "--accept", "stale")

    assert refused.code == 3
    assert "dvc checkout" in refused.stderr
    assert "--accept stale" in refused.stderr
    assert accepted.code == 0, accepted.stderr
    assert "going on although" in accepted.stderr
