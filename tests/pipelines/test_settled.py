"""What DVC may believe: settings that stand still while a stage runs, receipts of what the bucket still holds."""

from __future__ import annotations

import importlib
import json
import urllib.parse
from pathlib import Path

import pytest

from datakit.errors import Refused


def test_settings_edited_after_the_stage_began_are_not_those_it_is_recorded_with(
    pipelines: Path, clean_room: Path
) -> None:
    """The copy that the commands read stays as it was; another section may change, the stage's own may not."""
    run_name = importlib.import_module("run_name")
    (clean_room / "data").mkdir()
    (clean_room / "params.yaml").write_text("train: {steps: 5}\n")

    frozen = run_name.freeze()
    (clean_room / "params.yaml").write_text("train: {steps: 5}\npack: {shard_size: 1MiB}\n")
    run_name.check_frozen()
    (clean_room / "params.yaml").write_text("train: {steps: 4}\n")

    assert frozen.steps == 5
    assert "steps: 5" in Path("data/train.yaml").read_text()
    with pytest.raises(Refused, match="changed while the stage ran"):
        run_name.check_frozen()


@pytest.mark.parametrize("lost", ["nothing", "manifest", "member", "bucket"])
def test_a_receipt_of_what_the_bucket_lost_is_removed(pipelines: Path, clean_room: Path, lost: str) -> None:
    """Then DVC runs its stage again; one whose commit is whole stays."""
    demo = importlib.import_module("demo")
    bucket, data = clean_room / ".demo" / "bucket" / "datakit-demo", clean_room / "data"
    bucket.mkdir(parents=True)
    data.mkdir()
    place = "s3://datakit-demo/runs/a"
    files = {"manifest.json": json.dumps({"members": [{"name": "w"}]}).encode(), "w": b"1"}
    for commit in ("runs/a/adapter-1", "runs/a/step-1", "datasets/train"):
        for name, value in files.items():
            (bucket / urllib.parse.quote(f"{commit}/{name}", safe="")).write_bytes(b"{}\n" + value)
    trained = {"write_back": place, "adapter_copy": f"{place}/adapter-1", "checkpoints": [{"name": "step-1"}]}
    (data / "train.json").write_text(json.dumps({"result": trained}))
    (data / "publish-train.json").write_text(
        json.dumps({"result": {"destination": "s3://datakit-demo/datasets/train"}})
    )

    for path in bucket.iterdir():
        step = "step-1" in path.name
        if (
            lost == "bucket"
            or (lost == "manifest" and step and "manifest" in path.name)
            or (lost == "member" and step and path.name.endswith("w"))
        ):
            path.unlink()
    demo.forget_what_is_lost()

    assert (data / "train.json").exists() == (lost == "nothing")
    assert (data / "publish-train.json").exists() == (lost != "bucket")


@pytest.mark.parametrize("left", ["", "{", '{"result": null}', '{"result": {}}', "[]", '{"result": []}'])
def test_a_receipt_of_a_command_that_ended_early_is_removed(pipelines: Path, clean_room: Path, left: str) -> None:
    """An interrupted training leaves an object without a result, a killed one a torn file; neither stops the demo."""
    demo = importlib.import_module("demo")
    receipt = clean_room / "data" / "train.json"
    receipt.parent.mkdir()
    receipt.write_text(left)

    demo.forget_what_is_lost()

    assert not receipt.exists()
