"""version/guard: data that is not what it is taken for is refused, with both values and the way back."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit import IntegrityError, Refused, UsageError
from datakit.events import Caution, Event
from datakit.storage.commit import read_manifest
from datakit.storage.disk import hash_file
from datakit.version.cache import Snapshot
from datakit.version.document import write_yaml
from datakit.version.dvc import Tree, object_key, write_dvc_file
from datakit.version.guard import check_expected, find_stale, guard
from datakit.version.local import record_of
from support.commits import flip_bit
from support.dvcproject import bare_project, make_project
from support.tiny import text_samples, write_dataset

STAGES: dict[str, tuple[list[str], dict[str, list[str]], list[str]]] = {
    "scan": ([], {}, ["data/source.json"]),
    "pack": (["data/source.json"], {"params.yaml": ["pack"]}, ["data/packed"]),
    "tokenize@train": (
        ["data/packed/train", "base.json"],
        {"params.yaml": ["tokenize.seq_len"]},
        ["data/tokens/train"],
    ),
    "train": (["data/tokens/train"], {"params.yaml": ["train"]}, ["adapter"]),
}
"""Name to dependencies, parameters and outputs."""

PARAMS = {"pack": {"shard_size": "1MiB"}, "tokenize": {"seq_len": 128}, "train": {"rate": 0.001}}


def write_lock(root: Path) -> None:
    """Record every stage as it lies there, as `dvc commit` does."""

    def entries(paths: list[str]) -> list[dict[str, object]]:
        return [record_of(root / path, written=path).to_json() for path in paths]

    stages = {}
    for name, (deps, params, outs) in STAGES.items():
        values = {file: {key: at(PARAMS, key) for key in keys} for file, keys in params.items()}
        stages[name] = {"cmd": "x", "deps": entries(deps), "params": values, "outs": entries(outs)}
    (root / "dvc.lock").write_bytes(write_yaml({"schema": "2.0", "stages": stages}))


def at(value: dict[str, object], key: str) -> object:
    for step in key.split("."):
        value = value[step]  # type: ignore[assignment]  # a mapping until the last step
    return value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in which everything is as recorded."""
    root = bare_project(tmp_path / "p", remote="../store")
    (root / "data").mkdir()
    (root / "data" / "source.json").write_text('{"files": []}')
    (root / "base.json").write_text("{}")
    (root / "adapter").write_text("1")
    (root / "params.yaml").write_bytes(write_yaml(PARAMS))
    for split in ("train", "held-out"):
        write_dataset(root / "data" / "packed" / split, text_samples(9, prefix=split))
    write_dataset(root / "data" / "tokens" / "train", text_samples(9))
    write_lock(root)
    return root


def tokens(root: Path) -> Path:
    return root / "data" / "tokens" / "train"


def change_params(root: Path, section: str, **values: object) -> None:
    changed = {**PARAMS, section: {**PARAMS[section], **values}}  # type: ignore[dict-item]  # of two kinds of values
    (root / "params.yaml").write_bytes(write_yaml(changed))


def rewrite(path: Path, count: int) -> None:
    shutil.rmtree(path)
    write_dataset(path, text_samples(count))


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda root: None, []),
    "the data": (lambda root: rewrite(tokens(root), 12), ["data/tokens/train"]),
    "a foreign file": (lambda root: (tokens(root) / "note").write_text("1"), ["data/tokens/train"]),
    "a setting": (lambda root: change_params(root, "tokenize", seq_len=256), ["params.yaml tokenize.seq_len"]),
    "a setting above": (lambda root: change_params(root, "pack", shard_size="2MiB"), ["params.yaml pack"]),
    "a setting of training": (lambda root: change_params(root, "train", rate=1), []),
    "a setting that is gone": (
        lambda root: (root / "params.yaml").write_text("pack: {shard_size: 1MiB}\n"), ["params.yaml tokenize.seq_len"]
    ),
    "the source listing": (lambda root: (root / "data/source.json").write_text('{"files": {}}'), ["data/source.json"]),
    "a small dependency": (lambda root: (root / "base.json").write_text("[]"), ["base.json"]),
    "the data above": (lambda root: rewrite(root / "data/packed/train", 12), ["data/packed/train"]),
    "another split": (lambda root: rewrite(root / "data/packed/held-out", 12), []),
    "what is not here": (lambda root: (shutil.rmtree(root / "data/packed"), (root / "base.json").unlink()), []),
    "the adapter": (lambda root: (root / "adapter").write_text("2"), []),
    "no settings here": (lambda root: (root / "params.yaml").unlink(), []),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_moved_on_is_found_and_nothing_else(root: Path, change: str) -> None:
    """From the data up to the listing of the raw files; what comes after the data, or is not here, is no matter."""
    act, expected = CHANGES[change]

    act(root)

    assert [finding.what for finding in find_stale(tokens(root))] == expected


def test_each_finding_names_both_values_and_the_command(root: Path) -> None:
    """The first one is the message; all are counted."""
    change_params(root, "pack", shard_size="2MiB")
    rewrite(tokens(root), 12)
    now = record_of(tokens(root), written="x").md5

    with pytest.raises(Refused) as caught:
        guard(tokens(root), read_manifest(tokens(root)))

    assert now in caught.value.message
    assert f"{root}/dvc.lock (tokenize@train) says" in caught.value.message
    assert "1 more: params.yaml pack" in caught.value.message
    assert caught.value.hint == (
        "Run dvc repro tokenize@train, or bring the recorded one back: dvc checkout data/tokens/train; "
        f"if DVC has nothing to do, look for damage: datakit verify {tokens(root)}; "
        "or go on all the same with --accept stale"
    )
    (_, setting) = find_stale(tokens(root))
    assert (setting.recorded, setting.found) == ('{"shard_size": "1MiB"}', '{"shard_size": "2MiB"}')


def put_list(root: Path, tree: Tree) -> Path:
    """Put DVC's list of a directory into its cache; where it lies."""
    listed = root / ".dvc" / "cache" / object_key(tree.md5)
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_bytes(tree.to_bytes())
    return listed


def record_damage(root: Path, path: str, *, cached: bool = True) -> Tree:
    """Have dvc.lock record an output with a flipped bit, as DVC does at the end of a stage that left it there."""
    shard = next((root / path).rglob("*.tar"))
    flip_bit(shard, 600)
    files = [file for file in (root / path).rglob("*") if file.is_file()]
    damaged = Tree({file.relative_to(root / path).as_posix(): hash_file(file).md5 for file in files})
    lock = root / "dvc.lock"
    lock.write_text(lock.read_text().replace(record_of(root / path, written=path).md5, damaged.md5))
    do = {"cmd": "x", "outs": [{"data/tokens/${item}": {"cache": cached, "persist": True}}]}
    (root / "dvc.yaml").write_bytes(write_yaml({"stages": {"tokenize": {"foreach": ["train"], "do": do}}}))
    if cached:
        put_list(root, damaged)
    return damaged


@pytest.mark.parametrize("mended", [False, True])
def test_a_record_of_damage_is_not_called_the_truth(root: Path, mended: bool) -> None:
    """The manifest tells of other bytes than DVC's list: damage is named, here or in the record."""
    damaged = record_damage(root, "data/tokens/train")
    if mended:
        flip_bit(next(tokens(root).glob("*.tar")), 600)

    with pytest.raises(Refused) as caught:
        guard(tokens(root), read_manifest(tokens(root)))

    assert f"says {damaged.md5}, beside the same manifest: one of the two is damaged" in caught.value.message
    assert caught.value.hint == (
        f"Look for damage: datakit verify {tokens(root)}. "
        f"Mend it from a whole copy: datakit sync --repair COPY {tokens(root)}; "
        "then dvc repro tokenize@train; or go on all the same with --accept stale"
    )


def test_recorded_damage_of_a_split_is_told_from_another_dataset(root: Path) -> None:
    """By DVC's list: the same manifest beside other members."""
    record_damage(root, "data/packed")
    splits = [root / "data" / "packed" / split for split in ("train", "held-out")]

    found = [finding for split in splits for finding in find_stale(split)]
    for split in splits:
        rewrite(split, 12)
    anew = [finding for split in splits for finding in find_stale(split)]

    assert [finding.damaged for finding in found] == [True]
    assert [finding.damaged for finding in anew] == [False, False]


def test_damage_that_a_later_stage_has_recorded_is_named(root: Path) -> None:
    """What another stage was made from may be recorded with damage as well."""
    record_damage(root, "data/tokens/train")

    (finding,) = find_stale(root / "adapter")

    assert (finding.what, finding.damaged) == ("data/tokens/train", True)


def test_an_edit_that_changes_no_size_is_no_damage(root: Path) -> None:
    """As many files and bytes as before, which is what most small edits of a packed dataset come to."""
    packed = root / "data" / "packed"
    snapshots = [Snapshot.of(path) for path in (tokens(root), packed, packed / "train")]
    for snapshot in snapshots:
        assert snapshot.tree is not None
        put_list(root, snapshot.tree)
    for place, prefix in ((tokens(root), "t"), (packed / "train", "other")):
        shutil.rmtree(place)
        write_dataset(place, text_samples(9, prefix=prefix))

    found = find_stale(tokens(root)) + find_stale(packed / "train")

    assert [Snapshot.of(snapshot.path).bytes for snapshot in snapshots] == [snapshot.bytes for snapshot in snapshots]
    assert [(finding.damaged, finding.mend.partition(",")[0]) for finding in found] == [
        (False, "Run dvc repro tokenize@train"),
        (False, "Run dvc repro tokenize@train"),
        (False, "Run dvc repro pack"),
    ]


def test_what_dvc_keeps_no_copy_of_is_not_brought_back_by_it(root: Path) -> None:
    """`dvc checkout` of an output with `cache: false` does nothing; nor does `repro` where it recorded damage."""
    record_damage(root, "data/tokens/train", cached=False)

    (finding,) = find_stale(tokens(root))

    look = f"if DVC has nothing to do, look for damage: datakit verify {tokens(root)}"
    assert finding.mend == f"Run dvc repro tokenize@train; {look}"
    assert not finding.damaged


def test_what_is_accepted_is_said_and_recorded(root: Path) -> None:
    """With both values, one entry a finding, for the lineage."""
    change_params(root, "tokenize", seq_len=256)
    heard: list[Event] = []

    allowed = guard(tokens(root), read_manifest(tokens(root)), accept=["stale"], on_event=heard.append)

    assert allowed == ({"what": "stale params.yaml tokenize.seq_len", "from": "128", "to": "256"},)
    assert [isinstance(event, Caution) for event in heard] == [True]


def test_the_running_stage_is_not_compared_with_its_run_before(root: Path) -> None:
    """Inside `dvc repro` dvc.lock holds the old record of it, whether named alone or with its file."""
    rewrite(tokens(root), 12)
    change_params(root, "tokenize", seq_len=256)

    assert find_stale(tokens(root), running="tokenize@train") == []
    assert find_stale(tokens(root), running="sub/dvc.yaml:tokenize@train") == []
    assert len(find_stale(tokens(root), running="train")) == 2


def test_a_stage_that_was_run_again_alone_leaves_what_followed_stale(root: Path) -> None:
    """By dvc.lock alone, where the data between is not on this disk: pack has made another dataset since."""
    before = find_stale(root / "adapter")
    lock = root / "dvc.lock"
    old = record_of(root / "data" / "source.json", written="x").md5
    text = lock.read_text()
    at_scan = text.index(old)
    lock.write_text(text[:at_scan] + "f" * 32 + text[at_scan + 32 :])
    (root / "data" / "source.json").unlink()

    (finding,) = find_stale(tokens(root))

    assert before == []
    assert (finding.what, finding.recorded, finding.found) == ("data/source.json", old, "f" * 32)


def test_a_large_dependency_is_compared_by_its_size(root: Path, tmp_path: Path) -> None:
    """Hours of hashing are DVC's business: another size is seen, the same size is believed."""
    raw = root / "base.json"
    raw.write_bytes(bytes(17 * 2**20))
    write_lock(root)
    raw.write_bytes(b"1" * (17 * 2**20))
    same_size = find_stale(tokens(root))
    raw.write_bytes(b"1" * (17 * 2**20 + 1))

    (finding,) = find_stale(tokens(root))

    assert same_size == []
    assert finding.found == f"another ({17 * 2**20 + 1} bytes, not {17 * 2**20})"


def test_a_dvc_file_beside_the_data_is_compared(tmp_path: Path) -> None:
    """`dvc add` has recorded it, or the folder that it lies in."""
    root = bare_project(tmp_path / "p", remote="../store")
    write_dataset(root / "ds" / "train", text_samples(9))
    (root / "ds.dvc").write_bytes(write_dvc_file(record_of(root / "ds", written="ds")))
    before = find_stale(root / "ds" / "train")
    rewrite(root / "ds" / "train", 12)

    (finding,) = find_stale(root / "ds" / "train")

    assert before == []
    assert "dvc checkout" in finding.mend
    assert finding.where == str(root / "ds.dvc")


@pytest.mark.parametrize("recorder", ["ds.dvc", "dvc.lock"])
def test_raw_files_around_the_data_are_not_hashed(tmp_path: Path, recorder: str) -> None:
    """More than 16 MiB without a manifest beside the dataset: compared by size, and said where that fits."""
    root = bare_project(tmp_path / "p", remote="../store")
    write_dataset(root / "ds" / "train", text_samples(9))
    (root / "ds" / "raw").write_bytes(bytes(17 * 2**20))
    out = record_of(root / "ds", written="ds")
    written = {"schema": "2.0", "stages": {"pack": {"cmd": "x", "outs": [out.to_json()]}}}
    (root / recorder).write_bytes(write_dvc_file(out) if recorder == "ds.dvc" else write_yaml(written))
    (root / "ds" / "raw").write_bytes(b"1" * (17 * 2**20))
    heard: list[Event] = []

    same_size = find_stale(root / "ds" / "train", on_event=heard.append)
    (root / "ds" / "raw").write_bytes(b"1")
    (smaller,) = find_stale(root / "ds" / "train")

    assert same_size == []
    assert [isinstance(event, Caution) for event in heard] == [True]
    assert smaller.recorded == out.md5


@pytest.mark.parametrize("recorder", ["data/packed.dvc", "dvc.lock"])
def test_another_split_of_the_output_is_no_matter_where_dvcs_list_is_at_hand(root: Path, recorder: str) -> None:
    """The split's own members decide; without the list, only the whole can be compared."""
    packed = root / "data" / "packed"
    out = record_of(packed, written="packed")
    if recorder != "dvc.lock":
        (root / "dvc.lock").unlink()
        (root / recorder).write_bytes(write_dvc_file(out))
    snapshot = Snapshot.of(packed)
    assert snapshot.tree is not None
    listed = put_list(root, snapshot.tree)
    rewrite(packed / "held-out", 12)

    other_split = find_stale(packed / "train")
    (this_split,) = find_stale(packed / "held-out")
    listed.write_bytes(b"[]")
    (whole,) = find_stale(packed / "train")

    assert other_split == []
    assert "held-out" in this_split.what or this_split.what == str(packed)
    assert whole.recorded == out.md5


@pytest.mark.parametrize(("ignored", "found"), [("*.log\n", 0), ("# *.log\n\n", 1), (None, 1)])
def test_what_a_dvcignore_may_leave_out_is_no_change(tmp_path: Path, ignored: str | None, found: int) -> None:
    """A file that no manifest names, where a pattern may: the committed files decide; a comment is no pattern."""
    root = bare_project(tmp_path / "p", remote="../store")
    write_dataset(root / "ds", text_samples(9))
    (root / "ds.dvc").write_bytes(write_dvc_file(record_of(root / "ds", written="ds")))
    if ignored is not None:
        (root / ".dvcignore").write_text(ignored)
    (root / "ds" / "run.log").write_text("1")

    beside = find_stale(root / "ds")
    rewrite(root / "ds", 12)

    assert len(beside) == found
    assert len(find_stale(root / "ds")) == 1


def test_without_dvc_nothing_is_compared(tmp_path: Path) -> None:
    """And a dvc.lock beyond the project that the data lies in is another project's."""
    write_dataset(tmp_path / "outer" / "p" / "ds", text_samples(9))
    alone = find_stale(tmp_path / "outer" / "p" / "ds")
    (tmp_path / "outer" / "dvc.lock").write_text("schema: '9'\n")
    (tmp_path / "outer" / "p" / ".dvc").mkdir()

    heard: list[Event] = []
    inside = find_stale(tmp_path / "outer" / "p" / "ds", on_event=heard.append)

    assert alone == inside == heard == []


@pytest.mark.parametrize("text", ["schema: '1.0'\n", "schema: [", "schema: '2.0'\nstages: {a: {outs: [{path: x}]}}\n"])
def test_a_lock_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    """Training goes on: what cannot be compared proves nothing against the data."""
    root = bare_project(tmp_path / "p", remote="../store")
    write_dataset(root / "ds", text_samples(9))
    (root / "dvc.lock").write_text(text)
    heard: list[Event] = []

    found = find_stale(root / "ds", on_event=heard.append)

    assert found == []
    (caution,) = heard
    assert isinstance(caution, Caution)
    assert "the data is not compared with" in caution.message


def test_a_pipeline_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """dvc.yaml tells where a stage works; without it no path of dvc.lock leads anywhere."""
    root = bare_project(tmp_path / "p", remote="../store")
    write_dataset(root / "ds", text_samples(9))
    (root / "dvc.yaml").write_text("stages: [")
    (root / "dvc.lock").write_text("schema: '2.0'\nstages: {a: {cmd: x}}\n")
    heard: list[Event] = []

    assert find_stale(root / "ds", on_event=heard.append) == []
    assert [isinstance(event, Caution) for event in heard] == [True]


def test_files_that_are_not_the_manifests_are_damage(tmp_path: Path) -> None:
    """Names and sizes always, bytes where they are asked for; this cannot be accepted."""
    manifest = write_dataset(tmp_path / "ds", text_samples(9))
    shard = tmp_path / "ds" / manifest.contents.shards[0].name
    flip_bit(shard, 600)

    quick = guard(tmp_path / "ds", manifest)
    with pytest.raises(IntegrityError, match="have crc32c") as caught:
        guard(tmp_path / "ds", manifest, read=True, accept=["stale"])
    shard.write_bytes(b"cut")
    with pytest.raises(IntegrityError, match="has 3 bytes"):
        guard(tmp_path / "ds", manifest, accept=["stale"])

    assert quick == ()
    assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {tmp_path / 'ds'}"


def test_the_expected_data_is_named_by_any_of_its_digests(tmp_path: Path) -> None:
    """Content, layout or manifest, the whole or its beginning."""
    manifest = write_dataset(tmp_path / "ds", text_samples(9))
    contents = manifest.contents

    for digest in (contents.content_digest, contents.layout_digest[:12], manifest.digest[:8]):
        check_expected(manifest, digest)
    check_expected(manifest, None)
    with pytest.raises(Refused, match="expected was 00000000") as caught:
        check_expected(manifest, "00000000")

    assert contents.content_digest[:12] in caught.value.message


@pytest.mark.parametrize("digest", ["", "abc", "0000000", "ABCDEF01", "latest!!"])
def test_a_word_that_is_no_digest_is_wrong_usage(tmp_path: Path, digest: str) -> None:
    """A short one would fit by accident."""
    with pytest.raises(UsageError, match="is not a digest"):
        check_expected(write_dataset(tmp_path / "ds", text_samples(9)), digest)


def test_dvc_calls_stale_what_we_call_stale(tmp_path: Path) -> None:
    """`dvc repro` goes through with the guard inside a stage, and after each change DVC's status and ours agree."""
    project = make_project(tmp_path / "p")
    root = project.root
    (root / "raw.txt").write_text("9")
    (root / "params.yaml").write_text("pack: {rate: 1e-3}\n")
    make = """
from pathlib import Path
from support.tiny import text_samples, write_dataset
write_dataset(Path('data/ds'), text_samples(int(Path('raw.txt').read_text())))
"""
    look = """
from pathlib import Path
from datakit.version.guard import guard
from datakit.storage.commit import read_manifest
from datakit.storage.disk import hash_file
guard(Path('data/ds'), read_manifest(Path('data/ds')))
"""
    (root / "make.py").write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{make}\n")
    (root / "look.py").write_text(f"{look}\n")
    project.stage(
        f"stages:\n  pack:\n    cmd: {sys.executable} make.py\n    deps: [raw.txt]\n    params: [pack]\n"
        f"    outs: [data/ds]\n  train:\n    cmd: {sys.executable} look.py && cp data/ds/manifest.json adapter\n"
        "    deps: [data/ds]\n    outs: [adapter]\n"
    )

    def stale() -> bool:
        said = json.loads(project.dvc("status", "--json", "pack"))
        ours = find_stale(root / "data" / "ds")
        assert bool(said) == bool(ours), (said, ours)
        return bool(ours)

    project.dvc("repro", "-q")
    seen = [stale()]
    (root / "raw.txt").write_text("12")
    seen.append(stale())
    project.dvc("repro", "-q")
    seen.append(stale())
    (root / "params.yaml").write_text("pack: {rate: 2e-3}\n")
    seen.append(stale())
    (root / "params.yaml").write_text("pack: {rate: 0.001}\n")
    seen.append(stale())
    (root / "data" / "ds" / "note").write_text("1")
    seen.append(stale())

    assert seen == [False, True, False, True, False, True]
