"""pack/receipts: nothing is built or hashed twice, a killed pack goes on, and no bytes stay that nobody asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from datakit import IntegrityError, Refused
from datakit.data.digest import entry_of
from datakit.pack import seal
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.receipts import Memory, Receipt, task_of
from datakit.pack.writing import BuiltShard, Totals
from datakit.storage.commit import read_manifest
from datakit.verify.verify import verify
from support.cli import environment
from support.opened import opened
from support.packing import raw_lines, small_pack, tree, visible, write_lines, write_pairs
from support.receipts import HOUR_NS, at_rest, inodes


def receipt_of(path: Path, *, task: str = "t", settled: bool = True) -> Receipt:
    """A shard of nonsense bytes at `path`, and its receipt."""
    index = Path(f"{path}.index.arrow")
    path.write_bytes(b"shard")
    index.write_bytes(b"index")
    totals = Totals(samples=2, payload_bytes=5, parts={"json": 2}, terms=2**255 + 7, tokens=None)
    built = BuiltShard(entry_of("ds-x.tar", b"shard"), entry_of("ds-x.tar.index.arrow", b"index"), totals)
    receipt = Receipt.of(task, built, path, settled=settled)
    assert receipt is not None
    return receipt


def test_a_task_is_named_by_all_that_decides_its_bytes() -> None:
    """Dataset, bundle, keys, their order, signatures: another of any is another task; boundaries count."""
    keys, signatures = ["a", "bc"], [b"1" * 16, b"2" * 16]

    def named(dataset: str = "ds", bundle: int | None = None, *pieces: tuple[list[str], list[bytes]]) -> str:
        return task_of(dataset=dataset, bundle=bundle, pieces=pieces or [(keys, signatures)])

    names = [
        named(),
        named("dt"),
        named("ds", 8),
        named("ds", None, (["bc", "a"], signatures)),
        named("ds", None, (["ab", "c"], signatures)),
        named("ds", None, (keys, signatures[::-1])),
    ]

    assert len({*names}) == len(names)
    assert named("ds", None, (keys[:1], signatures[:1]), (keys[1:], signatures[1:])) == names[0]
    assert names[0].startswith("51faeab100817dc6"), "a task keeps its name from one version to the next"


def test_a_receipt_reads_back_what_was_written(tmp_path: Path) -> None:
    """Through JSON, sums beyond 64 bits too."""
    receipt = receipt_of(tmp_path / "s.tar")

    again = Receipt.from_json(json.loads(json.dumps(receipt.to_json())))

    assert again == receipt
    assert again.fits(tmp_path / "s.tar")


NONSENSE = [None, "9", 1.5, True, [], ["x"], {"x": "y"}]


@pytest.mark.parametrize(
    "field",
    ["task", "shard", "index", "samples", "payload_bytes", "parts", "terms", "tokens", "stat", "settled", "versions"],
)
def test_a_receipt_that_cannot_be_read_proves_nothing(tmp_path: Path, field: str) -> None:
    """A field that is missing or of another type: no receipt, and no error; the shard is built again."""
    value = receipt_of(tmp_path / "s.tar").to_json()
    right = {"task": ["9"], "parts": [], "tokens": [None], "settled": [True], "terms": ["9"], "versions": ["9"]}.get(
        field, []
    )

    for nonsense in NONSENSE:
        if not any(nonsense == one and type(nonsense) is type(one) for one in right):
            assert Receipt.from_json({**value, field: nonsense}) is None, nonsense
    assert Receipt.from_json({name: one for name, one in value.items() if name != field}) is None
    assert [Receipt.from_json(nonsense) for nonsense in NONSENSE] == [None] * len(NONSENSE)


@pytest.mark.parametrize("suffix", [".tar", ".tar.index.arrow"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()),
        lambda path: path.write_bytes(b"other size"),
        lambda path: os.utime(path, (0, 0)),
        lambda path: path.unlink(),
        lambda path: shutil.copy2(path, path.with_name("copy")) and os.replace(path.with_name("copy"), path),
    ],
    ids=["written", "grown", "touched", "removed", "copied"],
)
def test_a_receipt_fits_untouched_files_alone(tmp_path: Path, suffix: str, change: Callable[[Path], object]) -> None:
    """Written anew, of another size, time or inode, or gone: what a receipt says is not known any more."""
    path = tmp_path / "s.tar"
    receipt = receipt_of(path)
    os.utime(path, ns=(0, receipt.shard.mtime_ns))  # reading times do not count
    assert receipt.fits(path)

    change(tmp_path / f"s{suffix}")

    assert not receipt.fits(path)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("built", [1, 7])
def test_a_killed_pack_goes_on_where_it_was(tmp_path: Path, workers: int, built: int) -> None:
    """The shards that a pack had finished when kill -9 came are the files of the dataset that the next one commits."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    script = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from datakit.pack.build import pack\n"
        "from datakit.pack.cut import PackSettings\n"
        "def hear(event):\n"
        f"    while len(list(Path('.ds.pack/built').glob('*.json'))) < min({built}, getattr(event, 'done', 0) // 40):\n"
        "        time.sleep(0.005)\n"
        f"    if len(list(Path('.ds.pack/built').glob('*.json'))) >= {built}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"pack('raw.jsonl', 'ds', settings=PackSettings(shard_size='16KiB'), workers={workers}, on_event=hear)\n"
    )
    env = environment({"PYTHONPATH": os.pathsep.join([*sys.path])})
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=False)
    waiting = [seal.read(path) for path in (tmp_path / ".ds.pack" / "built").glob("*.json")]

    result = small_pack(raw, tmp_path / "ds")

    assert killed.returncode == -signal.SIGKILL
    assert len(waiting) >= built
    assert result.built == result.shards - len(waiting)
    assert {value["stat"][0][0] for value in waiting} <= set(inodes(tmp_path / "ds").values())
    assert visible(tmp_path) == ["ds", "raw.jsonl"]
    small_pack(raw, tmp_path / "fresh" / "ds")
    assert tree(tmp_path / "ds") == tree(tmp_path / "fresh" / "ds")


def test_a_built_shard_that_was_touched_is_built_again(tmp_path: Path) -> None:
    """What waits for its commit under a name that somebody wrote to is not taken."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    small_pack(raw, tmp_path / "ds")
    whole = tree(tmp_path / "ds")
    for share in range(2):
        pack(raw, tmp_path / "du", settings=PackSettings(shard_size="16KiB", name="ds"), part=(share, 2))
    victim = next((tmp_path / ".du.pack" / "built").glob("*.tar"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")

    result = small_pack(raw, tmp_path / "du", name="ds")

    assert result.built == 1
    assert tree(tmp_path / "du") == whole


def test_a_second_pack_of_lines_reads_no_shard(tmp_path: Path) -> None:
    """Nothing is hashed twice: of the dataset only manifest and first index are opened, the edited shard is written."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(600))
    small_pack(raw, tmp_path / "ds")
    before = inodes(tmp_path / "ds")
    write_lines(raw, raw_lines(600, edit={300: "another text"}))

    with opened(tmp_path) as files:
        result = small_pack(raw, tmp_path / "ds")

    old = [
        path for path in files if path.parent == tmp_path / "ds" and path.name.removesuffix(".index.arrow") in before
    ]
    first = read_manifest(tmp_path / "ds").contents.shards[0].index_name
    assert old == [tmp_path / "ds" / first], "where the first common key is found"
    assert result.built == 1
    assert result.reused == result.shards - 1 > 10


def test_a_second_pack_of_files_reads_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder, the files of the one shard with an edited, or a touched, file are opened and no others."""
    at_rest(monkeypatch)
    raw = write_pairs(tmp_path / "raw", 120)
    first = small_pack(raw, tmp_path / "ds")

    with opened(tmp_path) as files:
        same = small_pack(raw, tmp_path / "ds")
    (raw / "0" / "img-0010.json").write_bytes(b'{"n": 999}')
    for path in (raw / "0").iterdir():
        os.utime(path, (1, 1))
    edited = small_pack(raw, tmp_path / "ds")
    small_pack(raw, tmp_path / "fresh" / "ds")

    assert (same.built, same.reused) == (0, first.shards)
    assert not [path for path in files if path.suffix in (".jpg", ".tar")], "of shards, indexes alone, for their twins"
    assert 1 < edited.built <= first.shards
    assert tree(tmp_path / "ds") == tree(tmp_path / "fresh" / "ds")


def test_one_edited_file_is_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep their very files."""
    at_rest(monkeypatch)
    raw = write_pairs(tmp_path / "raw", 120)
    small_pack(raw, tmp_path / "ds")
    before = inodes(tmp_path / "ds")
    victim = raw / "1" / "img-0051.jpg"
    victim.write_bytes(victim.read_bytes()[::-1])

    result = small_pack(raw, tmp_path / "ds")

    after = inodes(tmp_path / "ds")
    assert (result.built, result.reused) == (1, result.shards - 1)
    assert sum(before.get(name) == inode for name, inode in after.items()) == result.reused
    assert verify(tmp_path / "ds").findings == ()


def test_a_file_that_is_too_new_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written just now, it may change again under the same size and time: the next pack reads it again."""
    at_rest(monkeypatch)
    raw = write_pairs(tmp_path / "raw", 60)
    young = raw / "0" / "img-0010.jpg"
    young.write_bytes(b"first".ljust(1000))
    newer = time.time_ns() + 2 * HOUR_NS
    os.utime(young, ns=(newer, newer))
    first = small_pack(raw, tmp_path / "ds")
    young.write_bytes(b"other".ljust(1000))
    os.utime(young, ns=(newer, newer))

    second = small_pack(raw, tmp_path / "ds")
    third = small_pack(raw, tmp_path / "ds")

    assert first.datasets[0].content_digest != second.datasets[0].content_digest
    assert (second.built, third.built) == (1, 1)
    small_pack(raw, tmp_path / "fresh" / "ds")
    assert tree(tmp_path / "ds") == tree(tmp_path / "fresh" / "ds")


def test_tars_are_known_by_their_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of tars that was repacked is not read again; one that was written just now is."""
    pairs = write_pairs(tmp_path / "pairs", 60)
    (tmp_path / "raw").mkdir()
    with tarfile.open(tmp_path / "raw" / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(pairs.rglob("*.*")):
            tar.add(path, arcname=str(path.relative_to(pairs)))
    young = small_pack(tmp_path / "raw", tmp_path / "ds")
    young_again = small_pack(tmp_path / "raw", tmp_path / "ds")
    at_rest(monkeypatch)

    old = small_pack(tmp_path / "raw", tmp_path / "ds")
    old_again = small_pack(tmp_path / "raw", tmp_path / "ds")

    assert young.built == young_again.built == old.built == young.shards > 2
    assert old_again.built == 0
    assert verify(tmp_path / "ds").findings == ()


def test_removing_a_dataset_frees_its_bytes(tmp_path: Path) -> None:
    """Outside of DVC no second name of a shard stays: what is beside the dataset are receipts of a few KiB."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(600))
    small_pack(raw, tmp_path / "ds", splits={"train": 4, "dev": 1})

    links = {path.stat().st_nlink for path in (tmp_path / "ds").rglob("*.tar*")}
    shutil.rmtree(tmp_path / "ds")

    assert links == {1}
    assert list(tree(tmp_path)) == ["raw.jsonl"]
    assert sum(path.stat().st_size for path in (tmp_path / ".ds.pack").rglob("*")) < 64 * 2**10
    again = small_pack(raw, tmp_path / "ds", splits={"train": 4, "dev": 1})
    assert again.built == again.shards


def test_inside_a_dvc_stage_links_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC removes the outs of a stage before it runs it: the shards come back as the same files; others do not stay."""
    monkeypatch.setenv("DVC_STAGE", "pack")
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(600))
    first = small_pack(raw, tmp_path / "ds")
    before = inodes(tmp_path / "ds")
    shutil.rmtree(tmp_path / "ds")
    write_lines(raw, raw_lines(600, edit={300: "another text"}))

    with opened(tmp_path) as files:
        second = small_pack(raw, tmp_path / "ds")

    after = inodes(tmp_path / "ds")
    kept = {path.stat().st_ino for path in (tmp_path / ".ds.pack" / "kept").glob("*.tar")}
    assert (second.built, second.reused) == (1, first.shards - 1)
    assert len(set(before.values()) & set(after.values())) == second.reused
    assert not [path for path in files if path.parent.name == "kept"]
    assert kept == set(after.values())
    monkeypatch.delenv("DVC_STAGE")
    small_pack(raw, tmp_path / "ds")
    assert not (tmp_path / ".ds.pack" / "kept").exists()
    small_pack(raw, tmp_path / "fresh" / "ds")
    assert tree(tmp_path / "ds") == tree(tmp_path / "fresh" / "ds")


def test_a_dataset_that_came_from_elsewhere_is_looked_at_once(tmp_path: Path) -> None:
    """Copied here without its receipts, of a JSONL source: every byte is compared, the next time none is read."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    small_pack(raw, tmp_path / "there" / "ds")
    shutil.copytree(tmp_path / "there" / "ds", tmp_path / "ds")

    first = small_pack(raw, tmp_path / "ds")
    with opened(tmp_path / "ds") as files:
        second = small_pack(raw, tmp_path / "ds")

    assert (first.built, second.built) == (0, 0)
    assert not [path for path in files if path.suffix == ".tar"]


def test_another_source_is_not_mixed_with_the_parts_of_one(tmp_path: Path) -> None:
    """A plan is joined by its digest; another one is refused with both, and the way out."""
    memory = Memory.beside(tmp_path / "ds")
    memory.agree("a" * 64, dest=tmp_path / "ds")
    memory.agree("a" * 64, dest=tmp_path / "ds")

    with pytest.raises(Refused, match=f"plans {'b' * 16}, the parts before it planned {'a' * 16}") as caught:
        memory.agree("b" * 64, dest=tmp_path / "ds")

    assert str(caught.value.hint).endswith(f"rm -r {tmp_path / '.ds.pack'}")


def test_a_shard_is_copied_where_links_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links costs a copy, not a pack."""

    def refuse(_source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(target))

    monkeypatch.setattr(os, "link", refuse)
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    monkeypatch.setenv("DVC_STAGE", "pack")
    first = small_pack(raw, tmp_path / "ds")

    assert verify(tmp_path / "ds").findings == ()
    assert small_pack(raw, tmp_path / "ds").reused == first.shards


def test_a_built_shard_that_is_not_what_it_was_is_not_copied_into_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is read, so a bit that flipped under an old time is seen; the next pack builds that shard again."""

    def refuse(_source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(target))

    monkeypatch.setattr(os, "link", refuse)
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    pack(raw, tmp_path / "ds", settings=PackSettings(shard_size="16KiB"), part=(0, 2))
    damaged = next((tmp_path / ".ds.pack" / "built").glob("*.tar"))
    about, data = damaged.stat(), bytearray(damaged.read_bytes())
    data[600] ^= 1
    damaged.write_bytes(data)
    os.utime(damaged, ns=(about.st_atime_ns, about.st_mtime_ns))

    with pytest.raises(IntegrityError, match="is not what it was when it was built"):
        small_pack(raw, tmp_path / "ds")
    assert not (tmp_path / "ds").exists()

    small_pack(raw, tmp_path / "ds")
    assert verify(tmp_path / "ds").findings == ()


def test_a_kept_link_that_is_not_what_it_was_is_not_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a DVC stage, which removes the dataset: the pack after the one that saw it builds that shard again."""

    def refuse(_source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(target))

    monkeypatch.setenv("DVC_STAGE", "pack")
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    first = small_pack(raw, tmp_path / "ds")
    shutil.rmtree(tmp_path / "ds")
    damaged = next((tmp_path / ".ds.pack" / "kept").glob("*.tar"))
    about, data = damaged.stat(), bytearray(damaged.read_bytes())
    data[600] ^= 1
    damaged.write_bytes(data)
    os.utime(damaged, ns=(about.st_atime_ns, about.st_mtime_ns))
    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(IntegrityError, match="is not what it was when it was built"):
        small_pack(raw, tmp_path / "ds")
    again = small_pack(raw, tmp_path / "ds")

    assert again.reused == first.shards - 1
    assert verify(tmp_path / "ds").findings == ()


def test_a_receipt_of_another_task_is_not_taken(tmp_path: Path) -> None:
    """A file that was renamed by hand proves nothing under its new name."""
    memory = Memory.beside(tmp_path / "ds")
    with memory.workroom("work") as room:
        receipt = memory.settle("one", receipt_of(room / "x").built, room / "x", settled=True)
    waiting = tmp_path / ".ds.pack" / "built"
    for name in ("one.json", "one.tar", "one.tar.index.arrow"):
        shutil.copy2(waiting / name, waiting / name.replace("one", "two"))

    assert memory.built("one") == (receipt, waiting / "one.tar")
    assert memory.built("two") is None
    assert memory.built("three") is None


def test_a_receipt_of_other_versions_is_not_taken(tmp_path: Path) -> None:
    """An index said what was built of one version of its tar; of another one it has to be read."""
    memory = Memory.beside(tmp_path / "ds")
    with memory.workroom("work") as room:
        receipt = memory.settle("one", receipt_of(room / "x").built, room / "x", settled=True, versions="a")

    assert memory.built("one", versions="a") == (receipt, memory.path_of("one"))
    assert memory.built("one", versions="b") is None
    assert memory.built("one") is None


def test_a_receipt_that_is_not_settled_is_not_taken(tmp_path: Path) -> None:
    """Not by the next pack, and not after a commit."""
    memory = Memory.beside(tmp_path / "ds")
    with memory.workroom("work") as room:
        receipt = memory.settle("one", receipt_of(room / "x").built, room / "x", settled=False)

    assert memory.built("one") is None
    memory.remember([receipt, replace(receipt, task="two", settled=True)], at={}, links=False)
    assert list(memory.known()) == ["two"]


def test_git_records_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part that waits for its commit, and of the links of a DVC stage, `git add -A` takes nothing."""
    monkeypatch.setenv("DVC_STAGE", "pack")
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    recorded = []

    for part in ((0, 2), None):
        pack(raw, tmp_path / "ds", workers=1, part=part)
        told = subprocess.run(["git", "-C", tmp_path, "status", "--porcelain"], check=True, capture_output=True)
        recorded.append(told.stdout.split())

    assert (tmp_path / ".ds.pack" / "kept").exists()
    assert recorded == [[b"??", b"raw.jsonl"], [b"??", b"ds/", b"??", b"raw.jsonl"]]
