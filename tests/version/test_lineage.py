"""version/lineage: what was it made from, in deterministic bytes and as a chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit import InputError, NotFound, UsageError
from datakit.data.manifest import Manifest
from datakit.storage.commit import commit, read_manifest
from datakit.version.lineage import Link, build_lineage, chain, data_lineage, read_lineage, read_run, render, to_bytes
from support.cli import datakit
from support.tiny import text_samples, write_dataset

SOURCE = {
    "name": "chat",
    "manifest_digest": "a" * 64,
    "content_digest": "b" * 64,
    "layout_digest": "c" * 64,
    "pack": {"algorithm": 1, "layout": "stable"},
}
PACK = {"tokenize": {"seq_len": 128, "tokenizer": "d" * 64}, "source": SOURCE, "from": [{"source": "e" * 64}] * 50}


@pytest.fixture
def data(tmp_path: Path) -> Manifest:
    return write_dataset(tmp_path / "tokens", text_samples(9), pack=PACK)


def lineage_of(data: Manifest, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run": "first",
        "data": data,
        "base_model": {"name": "base", "digest": "f" * 64},
        "settings": {"rank": 8},
        "settings_digest": "1" * 64,
        "versions": {"datakit": "0.1.0"},
        "consumed": {"steps": 30, "epoch": 1},
    }
    return build_lineage(**{**values, **changes})


def write_adapter(path: Path, lineage: dict[str, Any], kind: Any = "adapter") -> Path:
    with commit(path, kind=kind, name=path.name) as staging:
        staging.write("lineage.json", to_bytes(lineage))
    return path


def test_the_data_of_a_lineage_is_named_by_its_digests(data: Manifest) -> None:
    """Content, layout and manifest digest, size, and the settings it was made with, its own source included."""
    told = data_lineage(data)

    assert told["content_digest"] == data.contents.content_digest
    assert told["layout_digest"] == data.contents.layout_digest
    assert told["manifest_digest"] == data.digest
    assert told["samples"] == 9
    assert told["pack"] == {"tokenize": PACK["tokenize"], "source": SOURCE}


def test_equal_lineages_have_equal_bytes(data: Manifest) -> None:
    """Whatever the order in which their fields were given."""
    one = lineage_of(data, settings={"rank": 8, "alpha": 16})
    other = lineage_of(data, settings={"alpha": 16, "rank": 8})

    assert to_bytes(one) == to_bytes(other)
    assert json.loads(to_bytes(one)) == one


def test_an_adapter_leads_to_its_data_and_to_the_data_of_its_data(data: Manifest, tmp_path: Path) -> None:
    """Adapter, tokenized dataset, packed dataset, base model: each with its digest."""
    adapter = write_adapter(tmp_path / "adapter", lineage_of(data))

    link = chain(adapter)

    assert (link.kind, link.digest) == ("adapter", read_manifest(adapter).digest)
    tokens, base = link.made_from
    assert (tokens.kind, tokens.name, tokens.digest) == ("dataset", "tokens", data.digest)
    assert (base.kind, base.name, base.digest) == ("model", "base", "f" * 64)
    assert [(parent.name, parent.digest) for parent in tokens.made_from] == [("chat", "a" * 64)]


def test_an_override_stands_in_the_chain(data: Manifest, tmp_path: Path) -> None:
    """Whoever reads the lineage sees what was allowed to differ."""
    override = {"what": "data", "from": "old", "to": "new", "step": 20}
    adapter = write_adapter(tmp_path / "adapter", lineage_of(data, overrides=[override]))

    link = chain(adapter)

    assert link.facts["overrides"] == [override]
    assert '"from": "old"' in render(link)


def test_a_parent_adapter_stands_in_the_chain(data: Manifest, tmp_path: Path) -> None:
    """A commit that training started from is one of the things it was made from."""
    parent = {"kind": "adapter", "name": "earlier", "digest": "9" * 64}
    adapter = write_adapter(tmp_path / "adapter", lineage_of(data, parents=[parent]))

    assert chain(adapter).made_from[-1] == Link("adapter", "earlier", "9" * 64)


def test_a_run_leads_to_its_adapter_or_else_its_newest_checkpoint(data: Manifest, tmp_path: Path) -> None:
    """`datakit lineage RUN` works while the training goes on."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"attempts": [{"pid": 1}, {"pid": 2}], "settings_digest": "x"}')
    empty = chain(run)
    (run / "checkpoints").mkdir()
    for step in (10, 20):
        write_adapter(run / "checkpoints" / f"step-{step:08d}", lineage_of(data), kind="checkpoint")
    going_on = chain(run)
    write_adapter(run / "adapter", lineage_of(data))

    assert empty.made_from == ()
    assert [link.name for link in going_on.made_from] == ["step-00000020"]
    assert [link.kind for link in chain(run).made_from] == ["adapter"]
    assert going_on.facts["attempts"] == 2


def test_a_dataset_and_a_model_have_a_chain_of_their_own(data: Manifest, tmp_path: Path) -> None:
    """Their manifests are enough."""
    with commit(tmp_path / "base", kind="model", name="base") as staging:
        staging.write("config.json", b"{}")
        staging.about["source"] = "somewhere"

    assert [parent.name for parent in chain(tmp_path / "tokens").made_from] == ["chat"]
    assert chain(tmp_path / "base").facts == {"source": "somewhere"}


def test_render_indents_what_something_was_made_from(data: Manifest, tmp_path: Path) -> None:
    """One line a thing, beneath it its facts, then what it was made from."""
    lines = render(chain(write_adapter(tmp_path / "adapter", lineage_of(data)))).splitlines()

    assert lines[0].startswith("adapter adapter  ")
    assert f"  dataset tokens  {data.digest[:12]}" in lines
    assert f"    dataset chat  {'a' * 12}" in lines
    assert "  model base  ffffffffffff" in lines


def test_what_has_no_lineage_is_said(data: Manifest, tmp_path: Path) -> None:
    """Nothing there, nothing committed, no lineage, no JSON, another schema: each its own error."""
    (tmp_path / "empty").mkdir()
    with commit(tmp_path / "bare", kind="adapter", name="bare") as staging:
        staging.write("x", b"")
    newer = write_adapter(tmp_path / "newer", {**lineage_of(data), "schema": 2})
    with commit(tmp_path / "broken", kind="adapter", name="broken") as staging:
        staging.write("lineage.json", b"{")
    with commit(tmp_path / "list", kind="adapter", name="list") as staging:
        staging.write("lineage.json", b"[]")

    for path, error, words in (
        ("nowhere", NotFound, "is not there"),
        ("empty", NotFound, "nothing is committed"),
        ("bare", NotFound, r"has no lineage\.json"),
        ("broken", InputError, "is not JSON"),
        ("list", InputError, "is not a JSON object"),
    ):
        with pytest.raises(error, match=words) as caught:
            chain(tmp_path / path)
        mends = f"datakit sync --repair COPY {tmp_path / path}" in str(caught.value.hint)
        assert mends == (error is InputError)
    with pytest.raises(UsageError, match="schema 2; this datakit reads 1"):
        read_lineage(newer)


def test_a_torn_record_of_a_run_is_not_mended_by_a_copy(tmp_path: Path) -> None:
    """A run is no commit; what it holds may tell the same."""
    (tmp_path / "run.json").write_text("{")

    with pytest.raises(InputError, match=r"run\.json is not JSON") as caught:
        chain(tmp_path)

    assert caught.value.hint == f"Name its adapter or a checkpoint of it: ls {tmp_path}"


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_run_file_that_is_none_reads_as_empty(tmp_path: Path, content: str | None) -> None:
    """A run that was killed before it wrote anything is a run without attempts."""
    if content is not None:
        (tmp_path / "run.json").write_text(content)

    assert read_run(tmp_path) == {}


def test_the_command_prints_the_tree_or_json(data: Manifest, tmp_path: Path) -> None:
    """`datakit lineage` is a thin face over the chain."""
    adapter = write_adapter(tmp_path / "adapter", lineage_of(data))

    text, json_answer = datakit("lineage", adapter), datakit("lineage", adapter, "--json")

    assert text.code == 0
    assert text.stdout == render(chain(adapter)) + "\n"
    assert json_answer.json["result"]["made_from"][0]["name"] == "tokens"
    assert datakit("lineage", tmp_path / "nowhere").code == 2


def test_a_run_never_leads_to_a_checkpoint_that_is_not_valid(data: Manifest, tmp_path: Path) -> None:
    """The newest that verifies is shown; a directory of that name alone proves nothing."""
    run = tmp_path / "run"
    for step in (10, 20):
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_adapter(run / "checkpoints" / f"step-{step:08d}", lineage_of(data), kind="checkpoint")
    (run / "run.json").write_text("{}")
    (run / "checkpoints" / "step-00000020" / "manifest.json").unlink()

    assert [link.name for link in chain(run).made_from] == ["step-00000010"]


def test_what_changed_under_way_stands_in_the_chain(data: Manifest, tmp_path: Path) -> None:
    """And a lineage without changes does not mention them."""
    change = {"what": "torch", "from": "2.12", "to": "2.13", "step": 20}
    changed = write_adapter(tmp_path / "changed", lineage_of(data, changes=[change]))

    assert chain(changed).facts["changes"] == [change]
    assert "changes" not in lineage_of(data)


SHAPES = [
    {"attempts": 3},
    {"attempts": [3]},
    {"identity": []},
    {"identity": {"data": "x"}},
    {"name": 1},
    {"write_back": 5},
    [],
    3,
]


@pytest.mark.parametrize("said", SHAPES, ids=str)
def test_a_run_json_of_another_shape_is_none(tmp_path: Path, said: Any) -> None:
    """Nobody stumbles over it: a training writes it anew, and whoever asks for the chain hears what is wrong."""
    (tmp_path / "run.json").write_text(json.dumps(said))

    read = read_run(tmp_path)

    assert read == {}
    with pytest.raises(InputError, match=r"run\.json is not"):
        chain(tmp_path)
