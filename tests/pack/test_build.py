"""pack/build: the same records give the same bytes, all of them or nothing, and only what changed is built again."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit import InputError, IntegrityError, NoSpace, NotFound, Refused, UsageError
from datakit.data.manifest import content_digest, content_term
from datakit.data.shard import sample_digest
from datakit.events import Event, Note, Progress
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.storage import disk
from datakit.storage.commit import commit, read_manifest
from datakit.verify.verify import verify
from support import golden
from support.cli import environment
from support.packing import raw_lines, samples_of, small_pack, tree, visible, write_lines, write_pairs
from support.peers import datasets_rows, webdataset_samples
from support.samples import CONTENTS, PARTS

STEMS = st.text(st.sampled_from("ab01 -_é中"), min_size=1, max_size=8).filter(lambda s: not s.startswith("__"))
FOLDERS = st.dictionaries(
    st.tuples(st.sampled_from(["", "d/", "d/e.v1/"]), STEMS).map("".join),
    st.dictionaries(PARTS, CONTENTS.filter(len), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15)
@given(FOLDERS)
def test_packing_and_reading_files_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, dict[str, bytes]]
) -> None:
    """Whatever files there are, the dataset holds these samples with these bytes, and nothing else."""
    root = tmp_path_factory.mktemp("raw")
    for key, parts in samples.items():
        for part, data in parts.items():
            path = root / f"{key}.{part}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    small_pack(root, root.with_name(f"{root.name}-ds"), input="files", shard_size="64KiB")

    packed = samples_of(root.with_name(f"{root.name}-ds"))
    assert {sample.key: sample.parts for sample in packed} == samples
    assert len(packed) == len(samples)


@pytest.mark.parametrize("layout", ["stable", "sequential", "shuffle"])
def test_packing_and_reading_lines_is_the_identity(tmp_path: Path, layout: str) -> None:
    """Every line is one sample, its bytes untouched, in every layout; digests are those of the samples."""
    lines = raw_lines(300)

    result = small_pack(write_lines(tmp_path / "raw.jsonl", lines), tmp_path / "ds", layout=layout)

    packed = {sample.key: sample.parts for sample in samples_of(tmp_path / "ds")}
    assert packed == {f"r{number:05d}": {"json": line} for number, line in enumerate(lines)}
    contents = read_manifest(tmp_path / "ds").contents
    assert contents.content_digest == content_digest(content_term(k, sample_digest(p)) for k, p in packed.items())
    assert contents.samples == result.samples == result.records == 300
    assert contents.payload_bytes == sum(map(len, lines))
    assert result.shards == len(contents.shards) > 3
    assert verify(tmp_path / "ds").findings == ()


@pytest.mark.parametrize("kind", ["lines", "files"])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, kind: str) -> None:
    """Law 4: one, two or three processes write the same files, manifest included."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200)) if kind == "lines" else write_pairs(tmp_path / "raw", 80)

    trees = []
    for workers in (1, 2, 3):
        place = tmp_path / f"{workers}"
        small_pack(raw, place / "ds", workers=workers, splits={"train": 4, "dev": 1})
        trees.append(tree(place))

    assert trees[0] == trees[1] == trees[2]
    assert len(trees[0]) > 6


def test_the_bytes_do_not_depend_on_the_place_or_the_time(tmp_path: Path) -> None:
    """Another folder, another file time, another umask, another order of writing: the same dataset."""
    one, other = write_pairs(tmp_path / "one", 30), tmp_path / "somewhere" / "else"
    for path in sorted(one.rglob("*.*"), reverse=True):
        copy = other / path.relative_to(one)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o600)
        os.utime(copy, (0, 0))

    old = os.umask(0o077)
    try:
        small_pack(other, tmp_path / "b" / "ds")
    finally:
        os.umask(old)
    small_pack(one, tmp_path / "a" / "ds")

    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_golden_records_give_the_golden_bytes(tmp_path: Path) -> None:
    """Format 1 and algorithm 1 are what they were: shards, indexes and manifests, byte for byte."""
    golden.make(tmp_path)

    for name in ("lines", "pairs"):
        assert tree(tmp_path / name) == tree(golden.GOLDEN / name), name


def test_golden_datasets_are_read(tmp_path: Path) -> None:
    """A dataset of format 1, written by whatever version, verifies and gives its samples."""
    for path in ("lines/train", "lines/held-out", "pairs"):
        assert verify(golden.GOLDEN / path).findings == ()
    samples = {s.key: s.parts for path in ("train", "held-out") for s in samples_of(golden.GOLDEN / "lines" / path)}

    assert samples == {f"r{number:05d}": {"json": line} for number, line in enumerate(raw_lines(24))}


def test_stock_readers_read_every_sample_bit_for_bit(tmp_path: Path) -> None:
    """Stock webdataset and datasets see the samples in the manifest's order, with the bytes of the files."""
    raw = write_pairs(tmp_path / "raw", 30)
    for path in sorted(raw.rglob("*.jpg")):
        path.rename(path.with_suffix(".bin"))  # datasets would decode a jpg
    small_pack(raw, tmp_path / "ds")
    shards = [tmp_path / "ds" / shard.name for shard in read_manifest(tmp_path / "ds").contents.shards]

    expected = samples_of(tmp_path / "ds")
    rows = datasets_rows(shards, cache=tmp_path / "cache")

    assert webdataset_samples(*shards) == expected
    assert rows == [
        {"key": s.key, "parts": {"bin": s.parts["bin"].hex(), "json": json.loads(s.parts["json"])}} for s in expected
    ]


def test_splits_are_datasets_of_their_own(tmp_path: Path) -> None:
    """Together they hold every record once; each has its own name, and says how it was split."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))

    result = small_pack(raw, tmp_path / "ds", splits={"train": 9, "held-out": 1})

    assert [(d.split, d.path, d.name) for d in result.datasets] == [
        ("train", tmp_path / "ds" / "train", "ds-train"),
        ("held-out", tmp_path / "ds" / "held-out", "ds-held-out"),
    ]
    keys = [{sample.key for sample in samples_of(dataset.path)} for dataset in result.datasets]
    assert keys[0].isdisjoint(keys[1])
    assert len(keys[0] | keys[1]) == 400
    assert 20 < len(keys[1]) < 60
    assert visible(tmp_path / "ds") == ["held-out", "train"]
    about = read_manifest(tmp_path / "ds" / "train").contents.pack
    assert (about["split"], about["splits"]) == ("train", {"train": 9, "held-out": 1})


def test_a_split_without_records_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(3))

    with pytest.raises(InputError, match="split dev gets none of 3 records"):
        small_pack(raw, tmp_path / "ds", splits={"train": 100_000, "dev": 1})
    assert visible(tmp_path) == ["raw.jsonl"]


def test_a_second_pack_builds_only_what_changed(tmp_path: Path) -> None:
    """Nothing for the same records; after an edit, shards whose samples are the same keep their very files."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(600))
    first = small_pack(raw, tmp_path / "ds")
    before = {path.name: path.stat().st_ino for path in (tmp_path / "ds").iterdir()}
    told: list[Event] = []

    same = pack(raw, tmp_path / "ds", settings=PackSettings(shard_size="16KiB"), workers=1, on_event=told.append)
    write_lines(raw, raw_lines(600, edit={300: "another text"}))
    edited = small_pack(raw, tmp_path / "ds")

    after = {path.name: path.stat().st_ino for path in (tmp_path / "ds").iterdir()}
    assert (same.reused, same.datasets[0].layout_digest) == (first.shards, first.datasets[0].layout_digest)
    assert Note(f"ds: {first.shards} of {first.shards} shards have the bytes of before") in told
    assert edited.reused == edited.shards - 1
    assert sum(before.get(name) == inode for name, inode in after.items() if name.endswith(".tar")) == edited.reused
    assert verify(tmp_path / "ds").findings == ()


def test_packing_over_gives_the_bytes_of_packing_anew(tmp_path: Path) -> None:
    """History leaves no trace: orphans are gone, the manifest is that of a fresh pack."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    small_pack(raw, tmp_path / "a" / "ds")
    write_lines(raw, raw_lines(380, edit={5: "x", 200: "y"})[3:])

    small_pack(raw, tmp_path / "a" / "ds")
    small_pack(raw, tmp_path / "b" / "ds")

    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_shard_that_was_damaged_in_size_is_built_again(tmp_path: Path) -> None:
    """What is kept must still be there, whole."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    small_pack(raw, tmp_path / "ds")
    whole = tree(tmp_path / "ds")
    shard = next((tmp_path / "ds").glob("*.tar"))
    shard.unlink()

    again = small_pack(raw, tmp_path / "ds")

    assert (again.built, again.reused, again.new_bytes) == (1, again.shards, 0)
    assert tree(tmp_path / "ds") == whole


def test_small_edits_change_few_shards(tmp_path: Path) -> None:
    """Law 5 through the whole pack: an edit in one record, an append, a removal, each in its shard and its group."""
    lines = raw_lines(1000)
    raw = tmp_path / "raw.jsonl"

    def shards(name: str, some: list[bytes]) -> set[str]:
        small_pack(write_lines(raw, some), tmp_path / name, name="ds")
        return {shard.name for shard in read_manifest(tmp_path / name).contents.shards}

    base = shards("base", lines)
    edited = shards("edited", [*lines[:500], b'{"id": "r00500", "text": "other"}', *lines[501:]])
    appended = shards("appended", [*lines, b'{"id": "new"}'])
    removed = shards("removed", [*lines[:700], *lines[701:]])

    assert len(base) > 40
    assert len(edited - base) <= 4
    assert len(appended - base) <= 7
    assert len(removed - base) <= 8


def test_a_dry_run_says_what_a_run_does_and_leaves_no_trace(tmp_path: Path) -> None:
    """Names, counts and bytes are those of the real run, also over an earlier dataset; nothing is written."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    words = PackSettings(shard_size="16KiB", splits={"a": 1, "b": 1})

    def facts(result: PackResult) -> list[tuple[object, ...]]:
        return [
            (d.split, d.path, d.name, d.samples, d.shards, d.reused, d.shard_bytes, d.payload_bytes)
            for d in result.datasets
        ]

    planned = pack(raw, tmp_path / "ds", settings=words, dry_run=True)
    untouched = visible(tmp_path)
    done = pack(raw, tmp_path / "ds", settings=words)
    after = tree(tmp_path)
    again = pack(raw, tmp_path / "ds", settings=words, dry_run=True)

    assert untouched == ["raw.jsonl"]
    assert facts(planned) == facts(done)
    assert (planned.written, done.written) == (False, True)
    assert again.reused == again.shards == done.shards
    assert tree(tmp_path) == after


def test_progress_counts_every_sample_once(tmp_path: Path) -> None:
    """From 0 to all, never back."""
    told: list[Event] = []

    pack(
        write_lines(tmp_path / "raw.jsonl", raw_lines(300)),
        tmp_path / "ds",
        settings=PackSettings(shard_size="16KiB"),
        workers=2,
        on_event=told.append,
    )

    progress = [event for event in told if isinstance(event, Progress)]
    assert [progress[0].done, progress[-1].done] == [0, 300]
    assert all(one.done < following.done for one, following in itertools.pairwise(progress))
    assert {(event.task, event.total, event.unit) for event in progress} == {("pack", 300, "samples")}


def test_gzipped_lines_give_the_same_dataset(tmp_path: Path) -> None:
    """Plain or .gz, one file or several: the same records, the same bytes; messages name the file as it is."""
    lines = raw_lines(120)
    write_lines(tmp_path / "plain" / "a.jsonl", lines[:50])
    write_lines(tmp_path / "plain" / "b.jsonl", lines[50:])
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[:50])))
    (tmp_path / "packed" / "b.jsonl").write_bytes(b"\n".join(lines[50:]))

    small_pack(tmp_path / "plain", tmp_path / "one" / "ds")
    small_pack(tmp_path / "packed", tmp_path / "two" / "ds")
    (tmp_path / "packed" / "a.jsonl.gz").write_bytes(gzip.compress(b"{}\nnonsense\n"))

    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    with pytest.raises(InputError, match=r"a\.jsonl\.gz:2: not JSON"):
        small_pack(tmp_path / "packed", tmp_path / "two" / "ds")
    assert visible(tmp_path / "two") == ["ds"]


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", r" is empty\."), (b"\n\n", " is empty: it holds no records"), (b"  \n", " is empty: it holds no records")],
)
def test_an_empty_input_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """No files, no lines, only blank lines: a dataset of nothing is a mistake."""
    (tmp_path / "raw.jsonl").write_bytes(data)
    (tmp_path / "folder").mkdir()

    with pytest.raises(InputError, match=rf"raw\.jsonl{said}"):
        small_pack(tmp_path / "raw.jsonl", tmp_path / "ds")
    with pytest.raises(InputError, match="folder is empty: it holds no files"):
        small_pack(tmp_path / "folder", tmp_path / "ds")
    assert visible(tmp_path) == ["folder", "raw.jsonl"]


def test_a_bad_record_leaves_nothing_behind(tmp_path: Path) -> None:
    """The last line of many is no JSON: its number is said, no file is made."""
    raw = write_lines(tmp_path / "raw.jsonl", [*raw_lines(200), b"{]"])

    with pytest.raises(InputError, match=r"raw\.jsonl:201: not JSON"):
        small_pack(raw, tmp_path / "ds")
    assert visible(tmp_path) == ["raw.jsonl"]


def test_a_wrong_source_is_not_found(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(NotFound, match=r"nowhere\.jsonl is not there"):
        small_pack(tmp_path / "nowhere.jsonl", tmp_path / "ds")


def test_a_destination_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    """Files of others, another dataset, a file: refused, and left as it was."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))
    write_lines(tmp_path / "full" / "notes.txt", [b"mine"])
    small_pack(raw, tmp_path / "other", name="another")
    with commit(tmp_path / "model", kind="model", name="ds") as staging:
        staging.write("x", b"")
    before = tree(tmp_path)

    for name, said in {
        "full": "no manifest names",
        "other": "holds the dataset another",
        "model": "the model ds",
    }.items():
        with pytest.raises(Refused, match=said):
            small_pack(raw, tmp_path / name, name="ds")
    with pytest.raises(Refused, match=r"notes\.txt is not a directory"):
        small_pack(raw, tmp_path / "full" / "notes.txt", name="ds")

    assert tree(tmp_path) == before


def test_a_refused_split_keeps_the_others_from_being_made(tmp_path: Path) -> None:
    """An error before the last shard is built commits no split."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    write_lines(tmp_path / "ds" / "held-out" / "notes.txt", [b"mine"])

    with pytest.raises(Refused, match="held-out holds files that no manifest names"):
        small_pack(raw, tmp_path / "ds", splits={"train": 1, "held-out": 1})

    assert tree(tmp_path / "ds") == {"held-out/notes.txt": b"mine\n"}


@pytest.mark.parametrize(
    ("dest", "said"),
    [("raw/ds", "lies inside the source"), ("raw", "lies inside the source"), ("a b", "name a dataset")],
)
def test_a_destination_that_cannot_be_is_refused(tmp_path: Path, dest: str, said: str) -> None:
    """Inside the source it would be packed the next time; its last step names the dataset."""
    raw = write_pairs(tmp_path / "raw", 4)

    with pytest.raises(UsageError, match=said):
        small_pack(raw, tmp_path / dest)
    assert len(tree(tmp_path)) == 8


def test_object_storage_is_no_destination(tmp_path: Path) -> None:
    """The message says how it is done."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))

    with pytest.raises(UsageError, match="not to s3://bucket/ds") as caught:
        pack(raw, "s3://bucket/ds")
    assert "datakit sync DIRECTORY s3://bucket/ds" in str(caught.value.hint)


def test_a_destination_is_a_path_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file://` and a path is that path, and not a folder `file:` here; a URL with one slash is refused."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    pack(raw, f"file://{tmp_path}/ds")
    with pytest.raises(UsageError, match="s3:/bucket/ds is no URL"):
        pack(raw, "s3:/bucket/ds")

    assert (tmp_path / "ds" / "manifest.json").exists()
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("workers", [0, -1])
def test_workers_are_one_or_more(tmp_path: Path, workers: int) -> None:
    """Zero processes would wait for ever."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))

    with pytest.raises(UsageError, match=r"--workers is -?\d\. It must be 1 or more"):
        small_pack(raw, tmp_path / "ds", workers=workers)


def test_two_packs_into_one_place_exclude_each_other(tmp_path: Path) -> None:
    """The second says who is at it."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))

    with (
        disk.exclusive(tmp_path / ".ds.pack.lock", purpose="packing"),
        pytest.raises(Refused, match=f"process {os.getpid()} is already packing into"),
    ):
        small_pack(raw, tmp_path / "ds")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_no_space_and_leaves_nothing(tmp_path: Path, workers: int) -> None:
    """The system refuses to write more (a limit on a file's size stands for the disk): one sentence, no trace."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from datakit import NoSpace\n"
        "from support.packing import small_pack\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        f"    small_pack(Path('raw.jsonl'), Path('ds'), workers={workers})\n"
        "except NoSpace as error:\n"
        "    print(error)\n"
    )
    env = environment({"PYTHONPATH": os.pathsep.join([*sys.path])})

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )

    assert "no space to write" in done.stdout
    assert visible(tmp_path) == [raw.name]


def test_a_disk_that_is_too_small_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan knows its bytes: nothing is begun that cannot end."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    monkeypatch.setattr(disk, "free_bytes", lambda _path: 1000)

    with pytest.raises(NoSpace, match="and its disk has 1000 B free"):
        small_pack(raw, tmp_path / "ds")
    with pytest.raises(NoSpace, match="and its disk has 1000 B free"):
        small_pack(raw, tmp_path / "new" / "splits", splits={"train": 1, "dev": 1})
    assert visible(tmp_path) in (["raw.jsonl"], ["new", "raw.jsonl"])
    assert visible(tmp_path / "new") == []


@pytest.mark.parametrize("shards_built", [0, 1, 5])
def test_a_pack_killed_with_its_workers_leaves_nothing_visible(tmp_path: Path, shards_built: int) -> None:
    """A kill -9 of the whole group while workers build: no dataset is there; the next pack ends as if nothing was."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    script = (
        "import time\n"
        "from datakit.pack.build import pack\n"
        "from datakit.pack.cut import PackSettings\n"
        "told = []\n"
        "def hear(event):\n"
        "    told.extend([event] if hasattr(event, 'done') else [])\n"
        f"    if len(told) > {shards_built}:\n"
        "        print('go', flush=True)\n"
        "        time.sleep(60)\n"
        "pack('raw.jsonl', 'ds', settings=PackSettings(shard_size='16KiB'), workers=2, on_event=hear)\n"
    )
    env = environment({"PYTHONPATH": os.pathsep.join([*sys.path])})
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"

    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    assert process.returncode == -signal.SIGKILL
    assert [name for name in visible(tmp_path) if not name.startswith(".")] == ["raw.jsonl"]
    assert any(name.startswith(".ds.tmp-") for name in visible(tmp_path))
    small_pack(raw, tmp_path / "ds")
    assert visible(tmp_path) == ["ds", "raw.jsonl"]
    small_pack(raw, tmp_path / "fresh" / "ds")
    assert tree(tmp_path / "ds") == tree(tmp_path / "fresh" / "ds")


def test_a_manifest_that_contradicts_itself_is_not_packed_over(tmp_path: Path) -> None:
    """A damaged dataset at the destination is told, not mended in silence."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(50))
    small_pack(raw, tmp_path / "ds")
    path = tmp_path / "ds" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"layout_digest": "', b'"layout_digest": "0'))

    with pytest.raises(IntegrityError, match="says layout digest 0"):
        small_pack(raw, tmp_path / "ds")


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv", "x.json", "x.tar"])
@pytest.mark.parametrize("change", ["grown", "rewritten", "gone"])
@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_changes_after_it_was_listed_is_refused(
    tmp_path: Path, name: str, change: str, again: bool
) -> None:
    """Whatever was read of it is no longer what is there; also where no shard has to be built. Nothing is committed."""
    path = write_source(tmp_path / name)
    if again:
        small_pack(path, tmp_path / "ds")
    before = visible(tmp_path / "ds") if again else None

    def spoil(event: Event) -> None:
        if isinstance(event, Progress) and event.task == "pack":
            if change == "grown":
                with path.open("ab") as file:
                    file.write(bytes(512))
            elif change == "rewritten":
                path.write_bytes(path.read_bytes())
            else:
                path.unlink(missing_ok=True)

    with pytest.raises(InputError, match=rf"{name} .*(changed while it was packed|is not what it was)"):
        pack(path, tmp_path / "ds", settings=PackSettings(shard_size="16KiB"), workers=1, on_event=spoil)

    assert (visible(tmp_path / "ds") if again else None) == before
    assert again or not (tmp_path / "ds").exists()


def write_source(path: Path) -> Path:
    """Some records in a file of any kind."""
    lines = raw_lines(60)
    if path.suffix == ".tar":
        with tarfile.open(path, "w") as tar:
            for number, line in enumerate(lines):
                info = tarfile.TarInfo(f"{number:04d}.json")
                info.size = len(line)
                tar.addfile(info, io.BytesIO(line))
    elif path.suffix == ".csv":
        path.write_bytes(b"id,n\n" + b"".join(b"r%d,%d\n" % (number, number) for number in range(60)))
    elif path.suffix == ".json":
        path.write_bytes(b"[" + b",".join(lines) + b"]")
    else:
        data = b"".join(line + b"\n" for line in lines)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_a_source_inside_its_destination_is_refused(tmp_path: Path) -> None:
    """A commit removes what it does not name: a shard packed over its own dataset would take all others with it."""
    raw = write_lines(tmp_path / "chat.jsonl", raw_lines(30))
    pack(raw, tmp_path / "ds", settings=PackSettings(shard_size="2KiB"))
    before = sorted(path.name for path in (tmp_path / "ds").iterdir())
    shard = next((tmp_path / "ds").glob("*.tar"))

    for source in (shard, f"file://{shard}", tmp_path / "ds" / "x" / "raw.jsonl"):
        with pytest.raises(UsageError, match=r"lies inside .*/ds, where the dataset goes"):
            pack(source, tmp_path / "ds")
    assert sorted(path.name for path in (tmp_path / "ds").iterdir()) == before

    # splits are directories of their own, beside which a source may lie
    (tmp_path / "all").mkdir()
    raw.rename(tmp_path / "all" / "chat.jsonl")
    splits = PackSettings(splits={"train": 2, "test": 1})
    pack(tmp_path / "all" / "chat.jsonl", tmp_path / "all", settings=splits)
    with pytest.raises(UsageError, match="where the dataset goes"):
        pack(tmp_path / "all" / "test", tmp_path / "all", settings=splits)


def test_a_destination_inside_the_source_is_seen_through_links(tmp_path: Path) -> None:
    """It would be packed the next time."""
    write_lines(tmp_path / "raw/x.jsonl", raw_lines(3))
    (tmp_path / "link").symlink_to(tmp_path / "raw")

    for src, dest in (("link", "raw/out"), ("raw", "link/out"), ("link", "link/deep/out")):
        with pytest.raises(UsageError, match="lies inside the source"):
            pack(tmp_path / src, tmp_path / dest)
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["x.jsonl"]
