"""version/diff and version/places: two datasets wherever they are, and what changed since an adapter was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit import InputError, IntegrityError, NotFound, Refused, UsageError
from datakit.data.digest import crc32c
from datakit.data.manifest import Manifest
from datakit.data.shard import Sample
from datakit.storage.commit import commit, read_manifest
from datakit.storage.sync import sync
from datakit.version.bring import parse_pointer
from datakit.version.diff import Difference, Samples, Side, diff
from datakit.version.lineage import build_lineage, to_bytes
from datakit.version.publish import plan_publish, run_publish
from support.commits import flip_bit, make_commit
from support.dvcproject import bare_project
from support.gitrepo import commit_all
from support.packing import raw_lines, small_pack, write_lines
from support.tiny import text_samples, write_dataset

EDITED = Samples(added=20, removed=1, changed=2, moved=0, kept=397, renamed=0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old/chat` and `new/chat`: 400 records; two edited, one removed, twenty appended."""
    root = tmp_path_factory.mktemp("packed")
    lines = raw_lines(420, edit={5: "hello world", 77: "ok"})
    del lines[30]
    for name, content in (("old", raw_lines(400)), ("new", lines)):
        small_pack(write_lines(root / name / "chat.jsonl", content), root / name / "chat", layout="sequential")
    return root


def counts(found: Difference) -> Samples:
    """What became of the samples, those that only lie elsewhere left out."""
    assert found.samples is not None
    told = found.samples
    return Samples(told.added, told.removed, told.changed, 0, told.kept, told.renamed)


def write_adapter(path: Path, data: Manifest, **changes: Any) -> Path:
    lineage = build_lineage(
        run="first",
        data=data,
        base_model={"name": "base", "digest": "f" * 64},
        settings={},
        settings_digest="1" * 64,
        versions={},
        consumed={},
    )
    lineage["data"] |= changes
    with commit(path, kind="adapter", name="first") as staging:
        staging.write("lineage.json", to_bytes(lineage))
    return path


def test_every_change_is_counted_and_the_rest_is_passed_over(packed: Path) -> None:
    """Samples by key and digest, shards by their bytes; only indexes of shards that differ are read."""
    found = diff(str(packed / "old" / "chat"), str(packed / "new" / "chat"))

    old, new = read_manifest(packed / "old" / "chat"), read_manifest(packed / "new" / "chat")
    shards = found.shards
    assert shards is not None
    assert counts(found) == EDITED
    assert shards.reused + shards.new == len(new.contents.shards)
    assert shards.reused + shards.dropped == len(old.contents.shards)
    assert found.indexes_read == shards.new + shards.dropped
    assert shards.reused > 0
    known = {entry.sha256 for entry in old.members}
    lacking = sum(entry.bytes for entry in new.members if entry.sha256 not in known)
    assert shards.bytes_to_upload == lacking + len(new.to_bytes())
    assert (found.same_samples, found.same_layout, found.settings, found.shown) == (False, False, {}, ())


def test_what_has_to_be_uploaded_is_what_sync_uploads(packed: Path, s3: object, bucket: str) -> None:
    """To a place that holds the old dataset."""
    sync(packed / "old" / "chat", f"{bucket}/chat")

    found = diff(f"{bucket}/chat", str(packed / "new" / "chat"))
    moved = sync(packed / "new" / "chat", f"{bucket}/chat")

    assert found.shards is not None
    manifest = len(read_manifest(packed / "new" / "chat").to_bytes())
    assert found.shards.bytes_to_upload == moved.moved_bytes + manifest


def test_a_dataset_does_not_differ_from_itself(packed: Path) -> None:
    """No index is read for it."""
    found = diff(str(packed / "old" / "chat"), str(packed / "old" / "chat"))

    assert counts(found) == Samples(0, 0, 0, 0, 400, 0)
    assert found.shards is not None
    assert (found.shards.bytes_to_upload, found.indexes_read) == (0, 0)
    assert found.same_layout


def test_the_same_samples_in_another_layout_are_the_same_samples(packed: Path, tmp_path: Path) -> None:
    """Nothing is added, removed or changed, and the setting that did it is told."""
    small_pack(packed / "old" / "chat.jsonl", tmp_path / "chat", layout="shuffle")

    found = diff(str(packed / "old" / "chat"), str(tmp_path / "chat"))

    assert counts(found) == Samples(0, 0, 0, 0, 400, 0)
    assert (found.same_samples, found.same_layout) == (True, False)
    assert found.settings["layout"] == ("sequential", "shuffle")


def test_samples_are_shown_before_and_after(packed: Path) -> None:
    """So many of each kind; of a changed one, the parts that changed; long text is cut, other bytes are described."""
    found = diff(str(packed / "old" / "chat"), str(packed / "new" / "chat"), show=2)

    kinds = [shown.what for shown in found.shown]
    assert [kinds.count(what) for what in ("changed", "added", "removed")] == [2, 2, 1]
    first = found.shown[0]
    assert (first.key, json.loads(first.new["json"])["text"]) == ("r00005", "hello world")
    assert json.loads(first.old["json"])["id"] == "r00005"
    assert first.before != first.after
    assert next(shown for shown in found.shown if shown.what == "removed").key == "r00030"


def test_parts_that_did_not_change_are_not_read(tmp_path: Path) -> None:
    """A large one stays where it is; what is no text is told by size and checksum, what is long is cut."""
    for name, text in (("a", b"one\ntwo"), ("b", b"x" * 100_000)):
        parts = {"jpg": bytes(range(256)), "txt": text}
        write_dataset(tmp_path / name, [Sample("k", parts), *([Sample("n", {"bin": b"\0\1"})] if name == "b" else [])])

    found = diff(str(tmp_path / "a"), str(tmp_path / "b"), show=1)

    changed, added = found.shown
    assert changed.old == {"txt": "one\ntwo"}
    assert changed.new == {"txt": "x" * 400 + "... (100000 bytes)"}
    assert added.new == {"bin": f"2 bytes, crc32c {crc32c(bytes([0, 1])):08x}"}


def test_damage_of_what_is_shown_is_named(packed: Path, tmp_path: Path) -> None:
    """A difference is not made up from a flipped bit."""
    shutil.copytree(packed / "new" / "chat", tmp_path / "chat")
    manifest = read_manifest(tmp_path / "chat")
    for shard in manifest.contents.shards:
        for offset in range(700, 16_000, 64):
            if offset < (tmp_path / "chat" / shard.name).stat().st_size - 1100:
                flip_bit(tmp_path / "chat" / shard.name, offset)

    with pytest.raises(IntegrityError, match="the index says"):
        diff(str(packed / "old" / "chat"), str(tmp_path / "chat"), show=1)


def test_a_bucket_is_looked_into_by_indexes(packed: Path, s3: object, bucket: str) -> None:
    """One GET a manifest and one an index that is needed; no shard is brought."""
    for name in ("old", "new"):
        sync(packed / name / "chat", f"{bucket}/{name}")

    found = diff(f"{bucket}/old", f"{bucket}/new")

    assert counts(found) == EDITED
    assert found.requests.get == 2 + found.indexes_read
    assert found.requests.total == found.requests.get


def test_versions_of_dvc_and_git_are_compared_like_places(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revision before against what lies here, from the remote or the cache, with git alone."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    monkeypatch.chdir(root)
    for name in ("old", "new"):
        shutil.rmtree(root / "chat", ignore_errors=True)
        shutil.copytree(packed / name / "chat", root / "chat")
        run_publish(plan_publish(root / "chat", parse_pointer("chat.dvc")))
        commit_all(root, "chat.dvc", message=name)

    by_path = diff("HEAD~1:chat", "chat")
    shutil.rmtree(root / ".dvc" / "cache")
    from_remote = diff("HEAD~1:chat.dvc", "chat.dvc", show=1)

    assert counts(by_path) == counts(from_remote) == EDITED
    assert by_path.old.place == "HEAD~1:chat"
    assert from_remote.shown[0].key == "r00005"


def test_a_lock_alone_means_what_it_records_of_the_other_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split inside an output, too: what has changed since the stage ran?"""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    monkeypatch.chdir(root)
    for split in ("train", "held-out"):
        write_dataset(root / "data" / split, text_samples(9, prefix=split))
    plan = plan_publish(root / "data", parse_pointer("data.dvc"))
    run_publish(plan)
    entry = f"{{path: data, hash: md5, md5: {plan.md5}}}"
    (root / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  pack:\n    cmd: x\n    outs: [{entry}]\n")
    shutil.rmtree(root / "data" / "train")
    write_dataset(root / "data" / "train", text_samples(12, prefix="train"))

    changed = diff("dvc.lock", "data/train")
    same = diff("dvc.lock:pack:data/held-out", "data/held-out")

    assert counts(changed) == Samples(3, 0, 0, 0, 9, 0)
    assert same.same_layout
    with pytest.raises(UsageError, match=r"no stage of dvc\.lock made"):
        diff("dvc.lock", str(tmp_path))
    with pytest.raises(NotFound, match="holds no folder gone"):
        diff("dvc.lock:pack:data/gone", "data/train")
    for whole, hint in (
        ("data", "data/train"),
        ("data.dvc", "data.dvc:data/train"),
    ):
        with pytest.raises(NotFound) as caught:
            diff(whole, "data/train")
        assert caught.value.hint == f"It holds held-out, train; name one: {hint}"
    assert diff("data.dvc:data/held-out", "data/held-out").same_layout


def test_an_adapter_stands_for_its_data(packed: Path, tmp_path: Path) -> None:
    """Compared with the very data it was trained on, nothing has changed."""
    data = read_manifest(packed / "old" / "chat")
    adapter = write_adapter(tmp_path / "adapter", data)

    found = diff(str(adapter), str(packed / "old" / "chat"))

    contents = data.contents
    assert found.old == Side(
        str(adapter), "adapter first", data.name, 400, None, contents.content_digest, contents.layout_digest
    )
    assert counts(found) == Samples(0, 0, 0, 0, 400, 0)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_token_ids_are_not_compared_with_records(packed: Path, tmp_path: Path, trained: bool, turned: bool) -> None:
    """Keys are the same and no content is: it names what to name instead, whichever side they are on."""
    records = packed / "old" / "chat"
    samples = [Sample(f"r{number:05d}", {"ids.npy": b"x"}, tokens=3) for number in range(9)]
    data = write_dataset(tmp_path / "tokens", samples)
    tokens = write_adapter(tmp_path / "adapter", data) if trained else tmp_path / "tokens"
    sides = (str(records), str(tokens)) if turned else (str(tokens), str(records))

    with pytest.raises(Refused, match=r"is tokenized and .*/old/chat is not") as caught:
        diff(*sides)

    assert caught.value.hint == f"Name what datakit tokenize made of {records} instead of it"
    assert diff(str(tokens), str(tmp_path / "tokens")).same_samples


def test_what_has_changed_since_it_was_trained_is_found_where_the_run_read_it(packed: Path, tmp_path: Path) -> None:
    """run.json tells where that was; a run stands for its adapter, a checkpoint lies in it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"data_path": str(packed / "old" / "chat")}))
    write_adapter(run / "checkpoints" / "step-00000010", read_manifest(packed / "old" / "chat"))
    write_adapter(run / "adapter", read_manifest(packed / "old" / "chat"))

    for named in (run, run / "adapter", run / "checkpoints" / "step-00000010"):
        assert counts(diff(str(named), str(packed / "new" / "chat"))) == EDITED


def test_data_that_is_gone_from_here_is_found_in_dvcs_cache(packed: Path, tmp_path: Path) -> None:
    """By the address that stands in the lineage; nobody needs to remember a revision."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    shutil.copytree(packed / "old" / "chat", root / "chat")
    run_publish(plan_publish(root / "chat", parse_pointer(f"{root}/chat.dvc")))
    shutil.rmtree(root / "chat")
    adapter = write_adapter(root / "adapter", read_manifest(packed / "old" / "chat"))

    cached = diff(str(adapter), str(packed / "new" / "chat"))
    shutil.rmtree(root / ".dvc" / "cache")
    fetched = diff(str(adapter), str(packed / "new" / "chat"))

    assert counts(cached) == counts(fetched) == EDITED


def test_data_that_lies_nowhere_is_compared_by_what_is_recorded(packed: Path, tmp_path: Path) -> None:
    """Digests, numbers and settings; nothing is made up about samples."""
    adapter = write_adapter(tmp_path / "adapter", read_manifest(packed / "old" / "chat"), pack={"layout": "shuffle"})

    found = diff(str(adapter), str(packed / "new" / "chat"))

    assert (found.samples, found.shards) == (None, None)
    assert (found.old.samples, found.new.samples) == (400, 419)
    assert found.same_samples is False
    assert found.settings["layout"] == ("shuffle", "sequential")
    assert found.old.missing == "they lie nowhere that is known"
    assert found.new.missing is None


def test_why_samples_cannot_be_looked_at_is_told(packed: Path, tmp_path: Path) -> None:
    """Damage where the run read them is not the same as nothing there."""
    data = tmp_path / "data"
    shutil.copytree(packed / "old" / "chat", data)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"data_path": str(data)}))
    write_adapter(run / "adapter", read_manifest(data))
    (data / "manifest.json").chmod(0o644)
    (data / "manifest.json").write_bytes(b"{")

    found = diff(str(run), str(packed / "new" / "chat"))

    assert found.samples is None
    assert f"{data}/manifest.json" in str(found.old.missing)


def test_a_path_that_holds_other_data_by_now_is_not_taken_for_it(packed: Path, tmp_path: Path) -> None:
    """The place that the run read from has been packed anew: its samples are not the adapter's."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"data_path": str(packed / "new" / "chat")}))
    write_adapter(run / "adapter", read_manifest(packed / "old" / "chat"))

    assert diff(str(run), str(tmp_path / "run")).samples is None


def test_an_adapter_in_a_bucket_is_read_there(packed: Path, tmp_path: Path, s3: object, bucket: str) -> None:
    """Its manifest and its lineage, two GETs."""
    adapter = write_adapter(tmp_path / "adapter", read_manifest(packed / "old" / "chat"))
    sync(adapter, f"{bucket}/adapter")

    found = diff(f"{bucket}/adapter", str(packed / "old" / "chat"))

    assert found.same_layout
    assert found.old.trained == "adapter first"


def test_what_is_no_data_is_said(packed: Path, tmp_path: Path) -> None:
    """A model, a run that has made nothing yet, a torn lineage, a place that is not there."""
    chat = str(packed / "new" / "chat")
    make_commit(tmp_path / "base", {"model.safetensors": b"1"}, kind="model")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    torn = write_adapter(tmp_path / "adapter", read_manifest(packed / "old" / "chat"))
    flip_bit(torn / "lineage.json", 3)

    with pytest.raises(InputError, match="is a model"):
        diff(str(tmp_path / "base"), chat)
    with pytest.raises(NotFound, match="no adapter and no checkpoint yet"):
        diff(str(tmp_path / "run"), chat)
    with pytest.raises(IntegrityError, match=r"lineage\.json has"):
        diff(str(torn), chat)
    with pytest.raises(NotFound):
        diff(str(tmp_path / "nowhere"), chat)
