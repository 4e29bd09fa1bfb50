"""pack and tokenize killed with -9 at file operations: whole or not there, and the next run ends as if nothing was.

`make prove` kills at every operation, `make test` at a sample of them; every kill is seen to have landed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit.storage.commit import verify_commit
from datakit.verify.verify import verify
from support.packing import raw_lines, small_pack, tree, write_lines
from support.reaper import Reaper
from support.tokens import tiny_tokenizer

FEW = 4
"""Kills of a campaign in `make test`: the first operation, the last, and some between."""

_PROVE = [pytest.mark.prove, pytest.mark.timeout(1800)]
CAMPAIGNS = [
    pytest.param(True, FEW, id="over-some"),
    pytest.param(True, None, id="over-every", marks=_PROVE),
    pytest.param(False, None, id="new-every", marks=_PROVE),
]
"""Whether something stands there already, and how many kills (None: one at every operation)."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a campaign works."""
    return tmp_path_factory.mktemp("campaign")


@pytest.fixture(scope="module")
def reaper(home: Path) -> Iterator[Reaper]:
    """The server that forks and kills."""
    with Reaper(home / "out") as running:
        yield running


def chosen(operations: int, kills: int | None) -> list[int]:
    """At which operations to kill."""
    if kills is None:
        return list(range(1, operations + 1))
    return sorted({1 + number * (operations - 1) // (kills - 1) for number in range(kills)})


def whole_or_not_there(out: Path, states: list[dict[str, bytes]], names: list[str]) -> None:
    """Each dataset is one of those that it may be, every member whole, or there is none; no other file is visible."""
    for name in names:
        if (out / name).exists():
            members = {entry.name for entry in verify_commit(out / name).members} | {"manifest.json"}
            there = {member: (out / name / member).read_bytes() for member in members}
            assert there in [below(state, name) for state in states]
    for path in out.rglob("*"):
        inside = path.relative_to(out).as_posix()
        hidden = any(step.startswith(".") for step in inside.split("/"))
        assert hidden or path.is_dir() or any(inside.startswith(f"{name}/") for name in names), inside


def below(state: dict[str, bytes], name: str) -> dict[str, bytes]:
    """The files of one dataset in a tree."""
    return {path.removeprefix(f"{name}/"): data for path, data in state.items() if path.startswith(f"{name}/")}


def campaign(
    out: Path,
    reaper: Reaper,
    *,
    before: dict[str, Any] | None,
    request: dict[str, Any],
    names: list[str],
    kills: int | None,
) -> None:
    """Kill one request at its operations, from the state that `before` makes, and let it run again each time."""

    def start() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if before is not None:
            reaper.operations(**before)

    start()
    first = tree(out)
    operations = reaper.operations(**request)
    last = tree(out)
    assert operations > 20
    assert first != last
    for at in chosen(operations, kills):
        start()
        reaper.kill(at, **request)
        whole_or_not_there(out, [first, last], names)
        reaper.operations(**request)
        assert tree(out) == last, f"after a kill at operation {at}"


@pytest.mark.parametrize(("again", "kills"), CAMPAIGNS)
def test_a_pack_killed_anywhere_is_whole_or_not_there(
    home: Path, reaper: Reaper, again: bool, kills: int | None
) -> None:
    """Each split is the old dataset or the new one, no mix; the next pack gives the bytes of an undisturbed one."""
    old = write_lines(home / "old.jsonl", raw_lines(60))
    new = write_lines(home / "new.jsonl", raw_lines(60, edit={7: "x", 33: "y"})[:50])
    words = {"verb": "pack", "dest": home / "out" / "ds", "splits": {"a": 1, "b": 1}}

    campaign(
        home / "out",
        reaper,
        before={**words, "src": old} if again else None,
        request={**words, "src": new},
        names=["ds/a", "ds/b"],
        kills=kills,
    )


@pytest.mark.parametrize("kills", [pytest.param(FEW, id="some"), pytest.param(None, id="every", marks=_PROVE)])
def test_a_part_killed_anywhere_is_built_again(home: Path, reaper: Reaper, kills: int | None) -> None:
    """Nothing is visible before the commit; the part run again, the other one and the commit give one pack's bytes."""
    out = home / "out"
    raw = write_lines(home / "raw.jsonl", raw_lines(60))
    words: dict[str, Any] = {"verb": "pack", "src": raw, "dest": out / "ds", "splits": {"a": 1, "b": 1}}

    def start() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()

    start()
    reaper.operations(**words)
    last = tree(out)
    start()
    operations = reaper.operations(**words, part=(0, 2))
    assert operations > 20
    for at in chosen(operations, kills):
        start()
        reaper.kill(at, **words, part=(0, 2))
        assert not (out / "ds").exists()
        for part in ((1, 2), (0, 2), None):
            reaper.operations(**words, part=part)
        assert tree(out) == last, f"after a kill at operation {at}"


@pytest.mark.parametrize("kills", [pytest.param(FEW, id="some"), pytest.param(None, id="every", marks=_PROVE)])
def test_a_pack_under_dvc_killed_anywhere_finds_its_shards_again(home: Path, reaper: Reaper, kills: int | None) -> None:
    """DVC has removed the outs, and removes them once more after the kill: datasets and links are as they would be."""
    out = home / "out"
    old = write_lines(home / "old.jsonl", raw_lines(60))
    new = write_lines(home / "new.jsonl", raw_lines(60, edit={7: "x"}))
    words = {"verb": "pack", "dest": out / "ds", "splits": {"a": 1, "b": 1}, "env": {"DVC_STAGE": "pack"}}

    def start() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        reaper.operations(**words, src=old)
        shutil.rmtree(out / "ds")

    start()
    operations = reaper.operations(**words, src=new)
    last = tree(out)
    assert [name for name in last if name.startswith(".ds.pack/kept/")]
    for at in chosen(operations, kills):
        start()
        reaper.kill(at, **words, src=new)
        shutil.rmtree(out / "ds", ignore_errors=True)
        reaper.operations(**words, src=new)
        assert tree(out) == last, f"after a kill at operation {at}"


@pytest.mark.parametrize(("again", "kills"), CAMPAIGNS)
def test_a_tokenization_killed_anywhere_is_whole_or_not_there(
    home: Path, reaper: Reaper, again: bool, kills: int | None
) -> None:
    """The old tokens or the new ones; the next run gives the bytes of an undisturbed one."""
    model = tiny_tokenizer(home / "model")
    for name, said in (("old", "hello"), ("new", "there")):
        records = [{"id": f"t{n:03d}", "text": "it is " * (n % 50) + (said if n == 9 else "what")} for n in range(90)]
        raw = write_lines(home / f"{name}.jsonl", [json.dumps(record).encode() for record in records])
        small_pack(raw, home / name, shard_size="8KiB", name="ds")
    words = {"verb": "tokenize", "dest": home / "out" / "tok", "model": model}

    campaign(
        home / "out",
        reaper,
        before={**words, "src": home / "old"} if again else None,
        request={**words, "src": home / "new"},
        names=["tok"],
        kills=kills,
    )
    assert verify(home / "out" / "tok").findings == ()
