"""version/dvc: DVC's files, byte for byte as DVC writes them, from what a manifest knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, IntegrityError, NotFound, UsageError
from datakit.storage.commit import read_manifest
from datakit.version.dvc import Lock, Out, Stage, Tree, object_key, read_dvc_file, write_dvc_file
from support.commits import make_commit, noise
from support.dvcproject import make_project
from support.samples import KEYS
from support.tiny import text_samples, write_dataset

MD5S = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
TREES = st.dictionaries(KEYS, MD5S, max_size=8).map(Tree)

LOCK = b"""\
schema: '2.0'
stages:
  pack:
    cmd: datakit pack raw data/packed
    deps:
    - path: data/source.json
      hash: md5
      md5: 764efa883dda1e11db47671c4a3bbd9e
      size: 3
    - path: https://example.org/raw
      checksum: abc
    params:
      params.yaml:
        pack:
          shard_size: 1MiB
        train.rate: 0.001
    outs:
    - path: data/pack.json
      hash: md5
      md5: 8a80554c91d9fca8acb82f023de02f11
      size: 3
    - path: data/packed
      hash: md5
      md5: 3c72e0988e303f713810f312a674d551.dir
      size: 300
      nfiles: 4
"""


@given(TREES)
def test_a_directory_has_the_address_that_dvc_computes(tree: Tree) -> None:
    """Its list is the JSON that dvc-data writes, and its md5 the md5 of that list."""
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.meta import Meta
    from dvc_data.hashfile.tree import Tree as Theirs

    theirs = Theirs()
    for path, md5 in tree.members.items():
        theirs.add(tuple(path.split("/")), Meta(), HashInfo("md5", md5))
    theirs.digest()

    assert tree.to_bytes() == theirs.as_bytes()
    assert tree.md5 == theirs.hash_info.value


@given(TREES)
def test_a_directory_reads_back(tree: Tree) -> None:
    """Whatever the scripts and widths of its names."""
    assert Tree.from_bytes(tree.to_bytes(), where="x") == tree


@given(st.dictionaries(st.sampled_from(["train", "held-out", "test"]), TREES, min_size=1))
def test_a_directory_of_directories_is_taken_apart_again(trees: dict[str, Tree]) -> None:
    """The splits of a dataset are one output of one stage, and each is found in it."""
    joined = Tree.joined(trees)

    assert {name: joined.below(name) for name in trees} == trees
    assert joined.below("") == joined
    assert joined.below("nowhere").members == {}


@pytest.mark.parametrize("kind", ["dataset", "checkpoint", "adapter", "model"])
def test_dvc_hashes_a_commit_to_what_its_manifest_says(tmp_path: Path, kind: str) -> None:
    """`dvc add` reads every byte and comes to the address that we compute from the manifest alone."""
    project = make_project(tmp_path / "p")
    path = project.root / "ds"
    if kind == "dataset":
        write_dataset(path, text_samples(20))
    else:
        members = {"a.bin": noise(3000), "sub/b.json": b"{}", ".hidden": b"1", "é ü.bin": b""}
        make_commit(path, members, kind=kind)  # type: ignore[arg-type]  # one of the kinds

    project.dvc("add", "-q", "ds")

    (out,) = read_dvc_file((project.root / "ds.dvc").read_bytes(), where="ds.dvc")
    manifest = read_manifest(path)
    files = [entry for entry in path.rglob("*") if entry.is_file()]
    assert out == Out("ds", Tree.of(manifest).md5, sum(file.stat().st_size for file in files), len(files))
    listed = project.root / ".dvc" / "cache" / object_key(out.md5)
    assert listed.read_bytes() == Tree.of(manifest).to_bytes()


def test_a_dvc_file_that_we_write_is_the_one_that_dvc_writes(tmp_path: Path) -> None:
    """Of a directory and of a single file."""
    project = make_project(tmp_path / "p")
    write_dataset(project.root / "ds", text_samples(3))
    (project.root / "one.txt").write_text("1")

    project.dvc("add", "-q", "ds", "one.txt")

    for name in ("ds.dvc", "one.txt.dvc"):
        data = (project.root / name).read_bytes()
        (out,) = read_dvc_file(data, where=name)
        assert write_dvc_file(out) == data


def test_a_lock_that_we_write_is_the_one_that_dvc_writes(tmp_path: Path) -> None:
    """Dependencies, parameters with their types, and outputs of files and directories."""
    project = make_project(tmp_path / "p")
    (project.root / "params.yaml").write_text("a: {rate: 1e-3, name: '1e-3', on: yes, list: [1, 2.0]}\nb: null\n")
    (project.root / "in.txt").write_text("1")
    project.stage(
        "stages:\n  make:\n    cmd: mkdir -p out && cp in.txt out/é.txt && cp in.txt one.txt\n    deps: [in.txt]\n"
        "    params: [a, a.rate, b]\n    outs: [out, one.txt]\n"
    )

    project.dvc("repro", "-q")

    data = (project.root / "dvc.lock").read_bytes()
    lock = Lock.from_bytes(data, where="dvc.lock")
    stage = lock.stage("make")
    assert lock.to_bytes() == data
    assert lock.with_stage(stage).to_bytes() == data
    assert stage.params["params.yaml"]["a"] == {"rate": 0.001, "name": "1e-3", "on": "yes", "list": [1, 2.0]}
    assert [out.path for out in stage.outs] == ["one.txt", "out"]


def test_a_stage_is_read_with_what_it_was_made_from() -> None:
    """Dependencies without an md5 (an address, another repository) lead nowhere that could be looked at."""
    stage = Lock.from_bytes(LOCK, where="dvc.lock").stage("pack")

    assert stage.deps == (Out("data/source.json", "764efa883dda1e11db47671c4a3bbd9e", 3),)
    assert stage.params == {"params.yaml": {"pack": {"shard_size": "1MiB"}, "train.rate": 0.001}}
    assert stage.out(None) == Out("data/packed", "3c72e0988e303f713810f312a674d551.dir", 300, 4)
    assert stage.out("data/pack.json").is_dir is False
    assert stage.out("data/packed/").is_dir is True


def test_another_record_of_a_stage_keeps_what_else_is_said() -> None:
    """The command and the other stages stay as they are."""
    lock = Lock.from_bytes(LOCK, where="dvc.lock")
    stage = lock.stage("pack")

    other = lock.with_stage(Stage("pack", stage.deps, {"params.yaml": {"pack": 1}}, (Out("data/packed", "0" * 32),)))

    text = other.to_bytes().decode()
    assert "cmd: datakit pack raw data/packed" in text
    assert other.stage("pack").params == {"params.yaml": {"pack": 1}}
    assert other.stage("pack").outs == (Out("data/packed", "0" * 32),)
    assert lock.to_bytes() == Lock.from_bytes(LOCK, where="x").to_bytes()


@pytest.mark.parametrize(
    ("error", "word", "text"),
    [
        (UsageError, "schema 1.0", b"pack: {cmd: x}\n"),
        (UsageError, "schema 3.0", b"schema: '3.0'\n"),
        (InputError, "not a dvc.lock", b"[1, 2]\n"),
        (InputError, "no mapping", b"schema: '2.0'\nstages: [1]\n"),
        (InputError, "as DVC 2 did", LOCK.replace(b"      hash: md5\n", b"")),
        (InputError, "records no md5", LOCK.replace(b"3c72e0988e303f713810f312a674d551", b"3c72")),
        (InputError, "without a path", LOCK.replace(b"- path: data/packed", b"- file: data/packed")),
        (NotFound, "no stage pack", LOCK.replace(b"  pack:", b"  park:")),
    ],
)
def test_a_lock_that_cannot_be_used_says_why(error: type[Exception], word: str, text: bytes) -> None:
    """With the place, and nothing is guessed."""
    with pytest.raises(error, match=word):
        Lock.from_bytes(text, where="dvc.lock").stage("pack")


def test_one_of_several_outputs_has_to_be_named() -> None:
    """The message lists them."""
    outs = (Out("a", f"{0:032x}.dir"), Out("b", f"{1:032x}.dir"))

    with pytest.raises(UsageError, match=r"2 outputs \(a, b\)"):
        Stage("split", (), {}, outs).out(None)
    with pytest.raises(NotFound, match="no output c"):
        Stage("split", (), {}, outs).out("c")


@pytest.mark.parametrize(
    "value",
    [
        b"{}x", b"3", b"[1]", b'[{"md5": "x", "relpath": "a"}]', b'[{"relpath": "a"}]',
        json.dumps([{"md5": "0" * 32, "relpath": "../a"}]).encode(),
        json.dumps([{"md5": "0" * 32, "relpath": "/a"}]).encode(),
        json.dumps([{"md5": "0" * 32 + ".dir", "relpath": "a"}]).encode(),
    ],
)  # fmt: skip
def test_a_list_that_leads_out_of_its_directory_is_refused(value: bytes) -> None:
    """It may come from anywhere, and becomes paths."""
    with pytest.raises(IntegrityError, match=r"some\.dir"):
        Tree.from_bytes(value, where="some.dir")


@pytest.mark.parametrize("text", ["stages: {}\n", "outs: []\n", "outs: 3\n"])
def test_a_file_that_is_no_pointer_is_refused(text: str) -> None:
    """A `.dvc` file has outs."""
    with pytest.raises(InputError, match="it has no outs"):
        read_dvc_file(text.encode(), where="x.dvc")
