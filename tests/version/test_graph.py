"""version/graph: which stage of a dvc.lock made a path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from datakit import InputError, UsageError
from datakit.version.document import write_yaml
from datakit.version.dvc import Lock, Out
from datakit.version.graph import Graph, folders_around

OUTS = {"pack": "data/packed", "tokens@train": "data/tokens/train", "report": "report.json"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three stages; one works in a folder of its own."""
    stages = {
        name: {"cmd": "x", "outs": [Out(path, f"{number:031x}a").to_json()]}
        for number, (name, path) in enumerate(OUTS.items())
    }
    (tmp_path / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))
    (tmp_path / "dvc.yaml").write_text("stages: {pack: {cmd: x}, report: {cmd: x, wdir: out}}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "maker"),
    [
        ("data/packed", "pack"),
        ("data/packed/train/a.tar", "pack"),
        ("data/tokens/train", "tokens@train"),
        ("out/report.json", "report"),
        ("report.json", None),
        ("data", None),
        ("data/packed2", None),
        ("data/tokens/training", None),
        (".", None),
    ],
)
def test_a_path_belongs_to_the_output_that_it_is_or_lies_in(root: Path, path: str, maker: str | None) -> None:
    """Whole steps of the path count, and each stage starts from where it works."""
    graph = Graph.at(root)
    assert graph is not None

    made = graph.maker(root / path)

    assert (made[0].name if made else None) == maker


def test_relative_paths_are_seen_from_where_one_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folder with the dvc.lock, and of what is asked about."""
    (root / "data").mkdir()
    monkeypatch.chdir(root / "data")

    graph = Graph.at(Path(".."))

    assert graph is not None
    made = graph.maker(Path("packed/train"))
    assert made is not None
    assert made[0].path(made[1]) == root / "data" / "packed"


def test_dvc_yaml_is_read_once_whatever_the_number_of_stages(tmp_path: Path) -> None:
    """Reading YAML is the slow part: 4 ms for 100 stages, for each of which it would be read again."""
    stages = {f"s{n}": {"cmd": "x", "outs": [Out(f"out-{n}", f"{n:032x}").to_json()]} for n in range(50)}
    (tmp_path / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))
    (tmp_path / "dvc.yaml").write_bytes(write_yaml({"stages": {name: {"cmd": "x"} for name in stages}}))
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)

    graph = Graph.at(tmp_path)

    assert graph is not None
    assert graph.maker(tmp_path / "out-49" / "x") is not None
    assert opened.count(str(tmp_path / "dvc.yaml")) == 1


def test_a_lock_of_a_revision_is_read_as_if_it_lay_there(root: Path, tmp_path: Path) -> None:
    """Its bytes come from git; the paths are those of the directory."""
    lock = Lock.from_bytes((root / "dvc.lock").read_bytes(), where="HEAD:dvc.lock")

    made = Graph.of(lock, tmp_path / "elsewhere").maker(tmp_path / "elsewhere" / "data" / "packed")

    assert made is not None
    assert made[1].path == "data/packed"


def test_a_folder_without_one_has_no_graph(tmp_path: Path) -> None:
    """A torn one and one of another schema are errors."""
    assert Graph.at(tmp_path) is None
    (tmp_path / "dvc.lock").write_text("stages: [")
    with pytest.raises(InputError):
        Graph.at(tmp_path)
    (tmp_path / "dvc.lock").write_text("schema: '3.0'\n")
    with pytest.raises(UsageError):
        Graph.at(tmp_path)


def test_the_folders_around_end_with_the_project(tmp_path: Path) -> None:
    """What lies above it is another's."""
    (tmp_path / "p" / ".dvc").mkdir(parents=True)

    around = list(folders_around(tmp_path / "p" / "data" / "packed" / "train"))

    assert around == [tmp_path / "p" / "data" / "packed", tmp_path / "p" / "data", tmp_path / "p"]
    assert list(folders_around(tmp_path / "q" / "ds"))[-1] == Path("/")
