"""verify/unnamed: shards of another version that a sync left are no damage; any other file that nobody names is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from datakit import sync
from datakit.data.index import index_name
from datakit.data.manifest import Manifest
from datakit.events import Caution, Event
from datakit.storage.commit import read_manifest
from datakit.verify.verify import verify
from support.cli import datakit
from support.datasets import publish
from support.faulty import FaultyServer
from support.packing import raw_lines, small_pack, write_lines


class Renewed:
    """Two versions of a dataset, and a place that got one after the other."""

    def __init__(self, root: Path) -> None:
        raw = write_lines(root / "raw.jsonl", raw_lines(100))
        self.source, self.place, self.root = root / "chat", root / "place", root
        small_pack(raw, self.source, index=("energon", "dali"))
        sync(self.source, self.place)
        self.old = read_manifest(self.source)
        write_lines(raw, raw_lines(100, edit={5: "other"}))
        small_pack(raw, self.source, index=("energon", "dali"))
        sync(self.source, self.place)
        new = {entry.name for entry in read_manifest(self.source).members}
        self.left = [entry for entry in self.old.members if entry.name not in new]
        self.shard = next(entry.name for entry in self.left if entry.name.endswith(".tar"))


@pytest.fixture
def renewed(tmp_path: Path) -> Renewed:
    """A renewed dataset whose old shards still lie there."""
    return Renewed(tmp_path)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("where", ["disk", "store"])
def test_old_shards_of_a_renewed_dataset_are_no_damage(
    where: str, quick: bool, renewed: Renewed, faulty: FaultyServer
) -> None:
    """They are counted, with the command that removes them; index and side files go with their shard."""
    place = renewed.place if where == "disk" else publish(renewed.place, faulty)
    heard: list[Event] = []

    report = verify(place, quick=quick, on_event=heard.append)

    assert len(renewed.left) >= 4
    assert report.findings == ()
    assert report.other_versions == tuple(sorted(entry.name for entry in renewed.left))
    assert report.other_versions_bytes == sum(entry.bytes for entry in renewed.left)
    (caution,) = (event for event in heard if isinstance(event, Caution))
    assert f"{len(renewed.left)} files (" in caution.message
    flags = f"--delete --max-delete {len(renewed.left)}"
    assert f"Repeat its sync with {flags}; or: datakit sync {flags} SRC {place}" in str(caution.hint)


def test_the_command_that_is_named_removes_them(renewed: Renewed) -> None:
    """And nothing is left to be told."""
    sync(renewed.source, renewed.place, delete=True, max_delete=len(renewed.left))

    report = verify(renewed.place)

    assert (report.findings, report.other_versions) == ((), ())


def test_the_command_line_ends_with_0_and_tells_it_to_scripts(renewed: Renewed) -> None:
    """As a warning for people, and in the JSON result."""
    answer = datakit("verify", renewed.place)
    told = datakit("verify", renewed.place, "--json").json

    assert answer.code == 0
    assert "of another version of chat" in answer.stderr
    assert told["result"]["other_versions"] == sorted(entry.name for entry in renewed.left)
    assert len(told["cautions"]) == 1


def test_bytes_that_are_not_what_the_name_says_are_foreign(renewed: Renewed) -> None:
    """A flipped bit in an old shard; its index has no shard then, and is foreign with it."""
    path = renewed.place / renewed.shard
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)

    findings = verify(renewed.place).findings

    assert {finding.file for finding in findings} >= {renewed.shard, index_name(renewed.shard)}
    assert {finding.problem for finding in findings} == {"the manifest does not name this file"}


@pytest.mark.parametrize(
    "name", ["other-{hex}.tar", "chat-{hex}.tar.gz", "chat-00000000.tar", "chat-{hex}00.tar", "sub/chat-{hex}.tar"]
)
def test_a_shard_under_another_name_stays_foreign(name: str, renewed: Renewed) -> None:
    """Of another dataset, in another folder, or with a name that its bytes do not have: exit code 4."""
    target = renewed.place / name.format(hex=renewed.shard.removeprefix("chat-").removesuffix(".tar"))
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(renewed.place / renewed.shard, target)

    for quick in (False, True):
        (finding,) = verify(renewed.place, quick=quick).findings
        assert finding.file == target.relative_to(renewed.place).as_posix()


def test_an_index_that_is_none_is_foreign(renewed: Renewed) -> None:
    """It stands beside an old shard and is no index."""
    (renewed.place / index_name(renewed.shard)).write_bytes(b"nothing")

    (finding,) = verify(renewed.place).findings

    assert finding.file == index_name(renewed.shard)


def test_a_quick_look_wants_the_index_beside_a_shard(renewed: Renewed) -> None:
    """Nothing is read, so a name alone is not enough."""
    (renewed.place / index_name(renewed.shard)).unlink()

    assert renewed.shard in {finding.file for finding in verify(renewed.place, quick=True).findings}
    assert verify(renewed.place).findings == ()


def test_other_commits_have_no_shards(renewed: Renewed) -> None:
    """A model's directory that holds a shard holds a foreign file."""
    manifest = read_manifest(renewed.place)
    other = Manifest("model", "chat", manifest.members, {})
    (renewed.place / "manifest.json").write_bytes(other.to_bytes())

    assert renewed.shard in {finding.file for finding in verify(renewed.place).findings}


def test_what_is_no_file_of_the_directory_is_told(tmp_path: Path) -> None:
    """A link to a folder of tars, a pipe, a broken link, a folder called like a tar: `**/*.tar` finds each."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(50)), tmp_path / "ds")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.tar").write_bytes(b"x")
    (tmp_path / "ds" / "sub").mkdir()
    (tmp_path / "ds" / "sub" / "deep").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "ds" / "link.tar").symlink_to("nowhere")
    (tmp_path / "ds" / "folder.tar").mkdir()
    os.mkfifo(tmp_path / "ds" / "pipe.tar")

    findings = [str(finding) for finding in verify(tmp_path / "ds").findings]

    names = ("folder.tar", "link.tar", "pipe.tar", "sub/deep")
    assert findings == [f"{name}: the manifest does not name this file" for name in names]


def test_a_shard_that_became_a_pipe_is_missing(tmp_path: Path) -> None:
    """It is told once, as what it is for the dataset."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(50)), tmp_path / "ds")
    shard = tmp_path / "ds" / read_manifest(tmp_path / "ds").contents.shards[0].name
    shard.unlink()
    os.mkfifo(shard)

    (finding,) = verify(tmp_path / "ds").findings

    assert "the shard is missing" in finding.problem
