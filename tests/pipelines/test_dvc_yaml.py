"""dvc.yaml: DVC reads it, its commands exist, and none of DVC's traps is in it."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from datakit.cli.main import COMMANDS
from datakit.settings import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that DVC reads, in a directory of their own, without git."""
    path = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / ".dvc", path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local"))
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, path / name)
    (path / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    return path


def dvc(repository: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "dvc", *words],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stages() -> dict[str, dict[str, Any]]:
    """Each stage as it is written, a `foreach` as the stage that it repeats."""
    written = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in written.items()}


def commands(stage: dict[str, Any]) -> list[str]:
    return [stage["cmd"]] if isinstance(stage["cmd"], str) else stage["cmd"]


def outs(stage: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries = [*stage.get("outs", []), *stage.get("metrics", [])]
    return dict(next(iter(entry.items())) if isinstance(entry, dict) else (entry, {}) for entry in entries)


def test_dvc_reads_the_pipeline(repository: Path) -> None:
    """`dvc stage list` names every stage, in the words of the issue."""
    names = {line.split()[0].partition("@")[0] for line in dvc(repository, "stage", "list").splitlines()}

    assert names == {"scan", "base", "pack", "tokenize", "publish", "stage", "train", "evaluate"}


def test_the_stages_follow_from_each_other(repository: Path) -> None:
    """`dvc dag` reaches `evaluate` from `scan`: no stage hangs in the air."""
    graph = dvc(repository, "dag", "--md")

    names = dict(re.findall(r'(node\d+)\["([^"]+)"\]', graph))
    edges = {(names[a], names[b]) for a, b in re.findall(r"(node\d+)-->(node\d+)", graph)}
    chain = ["scan", "pack", "tokenize@train", "publish@train", "stage@train", "train", "evaluate"]
    assert set(itertools.pairwise(chain)) <= edges
    assert {("stage@held-out", "evaluate"), ("base", "train")} <= edges


def test_every_command_of_a_stage_exists() -> None:
    """A stage runs a `datakit` command that is registered, or a script that is there."""
    for stage in stages().values():
        for command in commands(stage):
            words = shlex.split(command.rpartition("exec ")[2])
            known = words[1] in COMMANDS if words[0] == "datakit" else (ROOT / words[1]).is_file()
            assert words[0] in ("datakit", "python")
            assert known, command


def test_dvcs_child_is_the_command_itself() -> None:
    """Every command ends in an exec, so that no shell stands between DVC and what it started."""
    for stage in stages().values():
        for command in commands(stage):
            assert command.split(" && ")[-1].startswith("exec "), command
            assert "\n" not in command, "DVC runs each line as a command of its own"


def test_checkpoints_are_no_outs() -> None:
    """Nothing of runs/ is an out, and what `train` makes is removed before it is made anew."""
    for stage in stages().values():
        assert not [name for name in outs(stage) if name.startswith("runs")]
    assert not [name for name, options in outs(stages()["train"]).items() if options.get("persist")]


def test_only_what_renews_itself_persists() -> None:
    """`persist` stands at datasets alone: tokenize and sync give the same bytes whatever was there before.

    What pack makes needs none: it finds its shards again although DVC has removed them (tests/pack/test_dvc_stage.py).
    """
    persisting = {name for name, stage in stages().items() for out in outs(stage).values() if out.get("persist")}

    assert persisting == {"tokenize", "stage"}
    for name in persisting:
        assert commands(stages()[name])[0].startswith("exec datakit ")


def test_a_stage_that_moves_bytes_to_or_from_the_bucket_is_never_restored_from_a_cache() -> None:
    """`publish`, `stage` and `train` hold an out that DVC does not cache, which keeps them out of its run cache."""
    for name in ("publish", "stage", "train"):
        assert any(options.get("cache") is False for options in outs(stages()[name]).values()), name


def test_every_working_stage_names_its_versions() -> None:
    """Algorithm and library versions are parameters of the stages whose results they decide."""
    for name, part in {"pack": "pack", "tokenize": "tokenize", "train": "train", "evaluate": "train"}.items():
        assert {"data/versions.json": [part]} in stages()[name]["params"], name


def test_dvc_calls_nobody() -> None:
    """Telemetry and the update check are off in the committed configuration."""
    config = (ROOT / ".dvc" / "config").read_text()

    assert re.search(r"^\s*analytics = false$", config, re.MULTILINE)
    assert re.search(r"^\s*check_update = false$", config, re.MULTILINE)


def test_the_settings_are_settings() -> None:
    """params.yaml holds no name that datakit does not know, and splits the records."""
    settings = load(ROOT / "params.yaml")

    assert settings.pack.splits == {"train": 95, "held-out": 5}
    assert settings.train.steps > settings.train.save_every_steps
