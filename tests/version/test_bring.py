"""version/bring and version/tree: what DVC has pushed comes here without DVC, verified link by link."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from datakit import IntegrityError, NoSpace, NotFound, Refused, UsageError
from datakit.data.digest import entry_of
from datakit.data.manifest import MANIFEST_NAME
from datakit.events import Event, Progress
from datakit.storage.commit import verify_commit
from datakit.storage.objects import ObjectInfo
from datakit.storage.sync import run_sync
from datakit.version.bring import parse_pointer, plan_bring, run_bring
from datakit.version.dvc import Out, Tree, object_key, write_dvc_file
from datakit.version.publish import plan_publish, run_publish
from datakit.version.tree import open_tree
from support.commits import files_below, flip_bit, make_commit, noise
from support.dvcproject import bare_project, make_project
from support.memory import MemoryBody
from support.s3server import S3Server
from support.tiny import text_samples, write_dataset


def put_by_hand(store: Path, source: Path) -> Out:
    """Lay a directory out as a DVC remote holds it, reading every byte."""
    members = {}
    for name, data in files_below(source).items():
        members[name] = entry_of(name, data).md5
        target = store / object_key(members[name])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    tree = Tree(members)
    target = store / object_key(tree.md5)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(tree.to_bytes())
    return Out(source.name, tree.md5)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A rented node: `ds.dvc` and `.dvc/config`, and a remote with the dataset."""
    make_commit(tmp_path / "ds", {"a.tar": noise(3000), "b/c.tar": noise(200, 1), "empty": b""})
    out = put_by_hand(tmp_path / "store", tmp_path / "ds")
    root = bare_project(tmp_path / "node", remote=str(tmp_path / "store"))
    (root / "ds.dvc").write_bytes(write_dvc_file(out))
    return root


def bring(node: Path, dest: Path, **more: object) -> None:
    run_bring(plan_bring(parse_pointer(f"{node}/ds.dvc"), dest, **more))  # type: ignore[arg-type]  # by name


def test_a_version_comes_whole(node: Path, tmp_path: Path) -> None:
    """Every member and the manifest, byte for byte."""
    bring(node, tmp_path / "got")

    assert files_below(tmp_path / "got") == files_below(tmp_path / "ds")
    verify_commit(tmp_path / "got")


def test_what_is_here_is_not_asked_for_again(node: Path, tmp_path: Path) -> None:
    """The second run finds the manifest and moves nothing; a lost shard alone comes again."""
    bring(node, tmp_path / "got")
    again = plan_bring(parse_pointer(f"{node}/ds.dvc"), tmp_path / "got")
    (tmp_path / "got" / "a.tar").unlink()
    lost = plan_bring(parse_pointer(f"{node}/ds.dvc"), tmp_path / "got")

    assert again.up_to_date
    assert [item.name for item in lost.moves] == ["a.tar"]


def test_a_damaged_copy_is_repaired(node: Path, tmp_path: Path) -> None:
    """`--repair` works on versions as on any source."""
    bring(node, tmp_path / "got")
    flip_bit(tmp_path / "got" / "a.tar", 7)

    bring(node, tmp_path / "got", repair=True)

    assert files_below(tmp_path / "got") == files_below(tmp_path / "ds")


def test_a_budget_holds_before_anything_moves(node: Path, tmp_path: Path) -> None:
    """The manifest tells the bytes, though DVC's list does not."""
    with pytest.raises(NoSpace, match="over its budget"):
        plan_bring(parse_pointer(f"{node}/ds.dvc"), tmp_path / "got", budget=3000)

    assert not (tmp_path / "got").exists()


def test_progress_counts_the_bytes_that_the_manifest_tells(node: Path, tmp_path: Path) -> None:
    """All of them are known when the first one comes."""
    heard: list[Event] = []

    run_sync(plan_bring(parse_pointer(f"{node}/ds.dvc"), tmp_path / "got"), on_event=heard.append)

    assert heard[-1] == Progress("download", 3200, 3200, "B")


def test_a_folder_of_commits_comes_with_each_manifest_last(tmp_path: Path) -> None:
    """The splits of a dataset are one output."""
    for split in ("train", "held-out"):
        write_dataset(tmp_path / "ds" / split, text_samples(9, prefix=split))
    (tmp_path / "ds" / "note.txt").write_text("by hand")
    out = put_by_hand(tmp_path / "store", tmp_path / "ds")
    root = bare_project(tmp_path / "node", remote=str(tmp_path / "store"))
    (root / "ds.dvc").write_bytes(write_dvc_file(out))

    bring(root, tmp_path / "got")

    assert files_below(tmp_path / "got") == files_below(tmp_path / "ds")
    assert verify_commit(tmp_path / "got" / "held-out").contents.samples == 9


def test_a_single_file_comes_to_the_name_that_is_given(tmp_path: Path) -> None:
    """And is compared with its md5."""
    data = noise(500)
    md5 = entry_of("x", data).md5
    key = tmp_path / "store" / object_key(md5)
    key.parent.mkdir(parents=True)
    key.write_bytes(data)
    root = bare_project(tmp_path / "node", remote=str(tmp_path / "store"))
    (root / "ds.dvc").write_bytes(write_dvc_file(Out("metrics.json", md5, 500)))

    bring(root, tmp_path / "here.json")

    assert (tmp_path / "here.json").read_bytes() == data
    flip_bit(key, 3)
    with pytest.raises(IntegrityError, match="do not have the md5"):
        bring(root, tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_a_large_file_without_a_manifest_is_checked_before_its_name_appears(tmp_path: Path) -> None:
    """Also where it comes in parts: its md5 is that of the whole."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "big.bin").write_bytes(noise(17 * 2**20))
    out = put_by_hand(tmp_path / "store", tmp_path / "raw")
    root = bare_project(tmp_path / "node", remote=str(tmp_path / "store"))
    (root / "ds.dvc").write_bytes(write_dvc_file(out))
    bring(root, tmp_path / "got")
    whole = files_below(tmp_path / "got") == files_below(tmp_path / "raw")
    flip_bit(tmp_path / "store" / object_key(entry_of("x", noise(17 * 2**20)).md5), 17 * 2**20 - 9)

    with pytest.raises(IntegrityError, match="do not have the md5"):
        bring(root, tmp_path / "other")

    assert whole
    assert not (tmp_path / "other" / "big.bin").exists()


def test_each_link_of_the_chain_is_held_to_the_one_before(node: Path, tmp_path: Path) -> None:
    """A flipped bit in the list, in the manifest or in a shard is named, and no manifest appears at the destination."""
    store = tmp_path / "store"
    listed = next(store.glob("files/md5/*/*.dir"))
    manifest = store / object_key(entry_of("m", (tmp_path / "ds" / MANIFEST_NAME).read_bytes()).md5)
    shard = store / object_key(entry_of("a", noise(3000)).md5)

    for path, said in ((listed, "the object of ds"), (manifest, "the object of manifest"), (shard, "have crc32c")):
        flip_bit(path, 40)
        with pytest.raises(IntegrityError, match=said):
            bring(node, tmp_path / "got")
        flip_bit(path, 40)
        assert not (tmp_path / "got" / MANIFEST_NAME).exists()

    bring(node, tmp_path / "got")
    assert files_below(tmp_path / "got") == files_below(tmp_path / "ds")


def test_a_manifest_that_contradicts_the_list_is_not_believed(node: Path, tmp_path: Path) -> None:
    """A directory that was recorded while it was written: the manifest names a shard that the list has otherwise."""
    (tmp_path / "ds" / "a.tar").write_bytes(noise(3000, 9))
    out = put_by_hand(tmp_path / "store", tmp_path / "ds")
    (node / "ds.dvc").write_bytes(write_dvc_file(out))

    with pytest.raises(IntegrityError, match="in DVC's list, its manifest says") as caught:
        bring(node, tmp_path / "got")

    assert caught.value.subject == "a.tar"


def test_an_object_that_was_never_pushed_is_named(node: Path, tmp_path: Path) -> None:
    """With the command that mends it."""
    shard = tmp_path / "store" / object_key(entry_of("a", noise(3000)).md5)
    shard.unlink()

    with pytest.raises(NotFound, match=r"a\.tar is not in") as caught:
        bring(node, tmp_path / "got")
    assert f"datakit sync {node}/ds --to {node}/ds.dvc (dvc push may" in (caught.value.hint or "")

    shutil.rmtree(tmp_path / "store" / "files")
    with pytest.raises(NotFound, match=r"ds \(.*\.dir\) is not in"):
        bring(node, tmp_path / "got")


def test_an_object_that_is_cut_short_in_the_remote_is_damage(node: Path, tmp_path: Path) -> None:
    """Pushed from a disk that was full: nothing was replaced, and the same command again helps nobody."""
    shard = tmp_path / "store" / object_key(entry_of("a", noise(3000)).md5)
    shard.write_bytes(noise(3000)[:10])

    with pytest.raises(IntegrityError, match=r"a\.tar is damaged: .* ends before byte 3000") as caught:
        bring(node, tmp_path / "got")

    assert (caught.value.hint or "").startswith("Remove that object. Put it there from where ds is whole: datakit sync")
    assert not (tmp_path / "got" / MANIFEST_NAME).exists()


def test_what_a_hint_says_mends_a_damaged_object_of_the_remote(node: Path, tmp_path: Path) -> None:
    """The error names the object; without it, the command of the hint puts it there again, and the version comes."""
    shard = tmp_path / "store" / object_key(entry_of("a", noise(3000)).md5)
    shard.chmod(0o644)
    flip_bit(shard, 7)

    with pytest.raises(IntegrityError, match=f"a\\.tar is damaged: .*{shard}: .* crc32c") as caught:
        bring(node, tmp_path / "got")
    command = re.search(r"datakit (sync) (\S+) (--to) (\S+) \(", caught.value.hint or "")
    assert command
    shard.unlink()
    shutil.copytree(tmp_path / "ds", node / "ds")
    run_publish(plan_publish(Path(command[2]), parse_pointer(command[4])))
    bring(node, tmp_path / "got")

    verify_commit(tmp_path / "got")


def test_a_node_without_the_settings_is_told_what_to_copy(node: Path, tmp_path: Path) -> None:
    """Or to name the remote by its URL."""
    shutil.rmtree(node / ".dvc")

    with pytest.raises(NotFound, match=r"\.dvc/config is not there") as caught:
        bring(node, tmp_path / "got")
    bring(node, tmp_path / "got", remote=f"file://{tmp_path / 'store'}")

    assert "--remote" in (caught.value.hint or "")
    assert files_below(tmp_path / "got") == files_below(tmp_path / "ds")


def test_a_version_is_never_written_to(node: Path) -> None:
    """As a store it gives and does not take; a version of a file is asked for by its md5 or not at all."""
    store = open_tree(parse_pointer(f"{node}/ds.dvc")).store

    for act in (
        lambda: store.write("a.tar", b""),
        lambda: store.delete("a.tar"),
        lambda: store.upload("a.tar", MemoryBody(b"x", part_bytes=1), connections=1),
        lambda: store.read("a.tar", start=0, stop=5, etag='"' + "0" * 32 + '"'),
    ):
        with pytest.raises(Refused):
            act()
    assert store.read("a.tar", start=3, stop=9, etag=entry_of("", noise(3000)).md5) == noise(3000)[3:9]
    with pytest.raises(NotFound, match="no file z"):
        store.head("z")


def test_the_cache_is_asked_before_the_remote(node: Path, tmp_path: Path) -> None:
    """What one of them lacks the other may have, object by object."""
    cache = node / ".dvc" / "cache"
    shutil.copytree(tmp_path / "store", cache)
    shard = object_key(entry_of("a", noise(3000)).md5)
    (cache / shard).unlink()
    listed = next((tmp_path / "store").glob("files/md5/*/*.dir"))
    listed.unlink()

    place = open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True)

    assert place.store.read("a.tar", start=0, stop=3000) == noise(3000)
    assert place.store.list("b") == [ObjectInfo("b/c.tar", 200, f'"{entry_of("", noise(200, 1)).md5}"')]
    with pytest.raises(NotFound):
        open_tree(parse_pointer(f"{node}/ds.dvc"))


def test_what_is_damaged_in_the_cache_is_taken_from_the_remote(node: Path, tmp_path: Path) -> None:
    """Only where both are damaged it is an error, and that names both."""
    cache = node / ".dvc" / "cache"
    shutil.copytree(tmp_path / "store", cache)
    listed = next(cache.glob("files/md5/*/*.dir"))
    name = listed.relative_to(cache)
    for damaged in (listed, tmp_path / "store" / name):
        damaged.chmod(0o644)
    flip_bit(listed, 5)

    place = open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True)

    assert place.store.read("a.tar", start=0, stop=3000) == noise(3000)
    flip_bit(tmp_path / "store" / name, 5)
    with pytest.raises(IntegrityError) as caught:
        open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True)
    assert f"{cache}/{name} has md5" in str(caught.value)
    assert f"{tmp_path / 'store'}/{name} has md5" in str(caught.value)


def test_what_is_cut_short_in_the_cache_is_taken_from_the_remote(node: Path, tmp_path: Path) -> None:
    """A copy that was killed half way: known by the size that the manifest says."""
    cache = node / ".dvc" / "cache"
    shutil.copytree(tmp_path / "store", cache)
    cut = cache / object_key(entry_of("c", noise(200, 1)).md5)
    cut.chmod(0o644)
    cut.write_bytes(noise(200, 1)[:100])
    place = open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True)
    place.store.list("")

    assert place.store.read("b/c.tar", start=0, stop=200) == noise(200, 1)


def test_a_remote_that_is_not_there_is_said_though_there_is_a_cache(node: Path, tmp_path: Path) -> None:
    """A misspelt name is no wish for the cache alone; without any remote the cache is enough."""
    shutil.copytree(tmp_path / "store", node / ".dvc" / "cache")

    with pytest.raises(NotFound, match="has no remote typo"):
        open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True, remote="typo")
    (node / ".dvc" / "config").write_text("")
    place = open_tree(parse_pointer(f"{node}/ds.dvc"), cache=True)

    assert place.store.read("a.tar", start=0, stop=3000) == noise(3000)


@pytest.mark.parametrize("text", ["data/ds", "s3://bucket/ds"])
def test_a_place_is_no_version(text: str) -> None:
    """The hint shows what one looks like."""
    with pytest.raises(UsageError, match="does not name a version"):
        parse_pointer(text)


def test_a_lock_of_another_name_is_told_what_it_must_be_called(tmp_path: Path) -> None:
    """An old dvc.lock that was put aside: the hint says where to copy it, and what to write then."""
    with pytest.raises(UsageError) as caught:
        parse_pointer("/abs/old.lock:pack:data/a")

    said = "The file must be called dvc.lock: copy it to /abs/old/dvc.lock and name /abs/old/dvc.lock:pack:data/a"
    assert caught.value.hint == said


def test_what_dvc_pushed_to_a_bucket_comes_with_few_requests(
    s3: S3Server, bucket: str, tmp_path: Path, clean_room: Path
) -> None:
    """The list, the manifest and one GET a member: no listing of a remote that may hold every version ever made."""
    project = make_project(tmp_path / "p", remote=f"{bucket}/store", env=s3.env)
    project.dvc("remote", "modify", "store", "endpointurl", s3.endpoint)
    write_dataset(project.root / "ds", text_samples(30))
    project.stage("stages:\n  pack:\n    cmd: touch seen\n    deps: [ds]\n    outs: [seen]\n")
    project.dvc("add", "-q", "ds")
    project.dvc("push", "-q")
    node = tmp_path / "node"
    (node / ".dvc").mkdir(parents=True)
    for name in ("ds.dvc", ".dvc/config"):
        shutil.copy(project.root / name, node / name)

    plan = plan_bring(parse_pointer(f"{node}/ds.dvc"), tmp_path / "got")
    result = run_sync(plan)

    assert files_below(tmp_path / "got") == files_below(project.root / "ds")
    assert (result.requests.get, result.requests.list, result.requests.head) == (2 + len(plan.moves), 0, 0)
    assert json.loads((tmp_path / "got" / MANIFEST_NAME).read_bytes())["name"] == "ds"
