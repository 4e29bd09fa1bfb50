"""version/publish: what we put into a remote, the real DVC pulls, checks out and calls up to date."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import pytest

from datakit import IntegrityError, NotAllowed, NotFound, Refused, UsageError
from datakit.data.digest import entry_of
from datakit.events import Caution, Event, Note, Progress
from datakit.storage.commit import verify_commit
from datakit.storage.limits import Gate, Limits
from datakit.storage.sync import SyncSettings, run_sync
from datakit.version.bring import parse_pointer, plan_bring
from datakit.version.dvc import Lock, Tree, object_key
from datakit.version.publish import Published, plan_publish, run_publish
from support.commits import files_below, flip_bit, make_commit, noise, spoil_md5
from support.dvcproject import DvcProject, bare_project, make_project
from support.faulty import Fault, FaultyServer
from support.packing import raw_lines, small_pack, write_lines
from support.s3server import S3Server
from support.tiny import text_samples, write_dataset

PIPELINE = """\
stages:
  pack:
    cmd: mkdir -p data && cp -r made data/packed && cp in.txt data/pack.json
    deps: [in.txt]
    params: [pack]
    outs: [data/packed, data/pack.json]
  train:
    cmd: cp data/packed/manifest.json adapter
    deps: [data/packed]
    outs: [adapter]
"""


def publish(source: Path, pointer: str) -> Published:
    return run_publish(plan_publish(source, parse_pointer(pointer)))


@pytest.fixture
def project(tmp_path: Path) -> DvcProject:
    return make_project(tmp_path / "p")


def test_dvc_pulls_what_we_published(project: DvcProject, tmp_path: Path) -> None:
    """On a fresh clone, whole; here it has nothing to push, nothing to fetch and nothing to commit."""
    write_dataset(project.root / "ds", text_samples(30))
    publish(project.root / "ds", f"{project.root}/ds.dvc")
    clone = DvcProject(tmp_path / "clone")
    shutil.copytree(project.root, clone.root, ignore=shutil.ignore_patterns("ds", "cache", "site", "tmp"))

    clone.dvc("pull", "-q")

    assert files_below(clone.root / "ds") == files_below(project.root / "ds")
    assert "up to date" in project.dvc("status")
    assert "in sync" in clone.dvc("status", "-c")
    assert "up to date" in clone.dvc("push").lower()


def test_dvc_finds_an_s3_remote_in_order(s3: S3Server, bucket: str, tmp_path: Path, clean_room: Path) -> None:
    """The same through a bucket, with the settings as DVC writes them."""
    project = make_project(tmp_path / "p", remote=f"{bucket}/store", env=s3.env)
    project.dvc("remote", "modify", "store", "endpointurl", s3.endpoint)
    write_dataset(project.root / "ds", text_samples(30))

    first = publish(project.root / "ds", f"{project.root}/ds.dvc")
    again = publish(project.root / "ds", f"{project.root}/ds.dvc")
    shutil.rmtree(project.root / "ds")
    project.dvc("pull", "-q")

    verify_commit(project.root / "ds")
    assert "in sync" in project.dvc("status", "-c")
    assert (first.moved_files, first.recorded) == (first.files, True)
    assert (again.moved_files, again.recorded) == (0, False)


def test_what_is_published_comes_back_without_dvc(tmp_path: Path) -> None:
    """`--to` on one node and `--from` on another: the `.dvc` file is all that travels."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    for split in ("train", "held-out"):
        write_dataset(root / "ds" / split, text_samples(9, prefix=split))

    publish(root / "ds", f"{root}/ds.dvc")
    run_sync(plan_bring(parse_pointer(f"{root}/ds.dvc"), tmp_path / "got"))

    assert files_below(tmp_path / "got") == files_below(root / "ds")


def test_the_cache_gets_links_and_no_copies(tmp_path: Path) -> None:
    """One inode, read-only, as DVC protects what it caches; on another disk it is said and left."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})

    first = publish(root / "ds", f"{root}/ds.dvc")
    again = publish(root / "ds", f"{root}/ds.dvc")

    cached = root / ".dvc" / "cache" / object_key(entry_of("a", noise(300)).md5)
    assert cached.samefile(root / "ds" / "a")
    assert cached.stat().st_mode & 0o777 == 0o444
    assert (first.linked_files, again.linked_files) == (2, 0)


def test_a_later_pack_leaves_the_cached_version_as_it_was(tmp_path: Path) -> None:
    """The cache shares inodes with the dataset; a pack replaces files and writes into none, read-only or not."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    for version in (raw_lines(200), raw_lines(220, edit={3: "edited"})):
        small_pack(write_lines(root / "raw.jsonl", version), root / "ds")
        publish(root / "ds", f"{root}/ds.dvc")

    cache = root / ".dvc" / "cache"
    found = {path.parent.name + path.name: path.read_bytes() for path in cache.glob("files/md5/*/*")}
    assert {name: entry_of("", data).md5 for name, data in found.items()} == {
        name: name.removesuffix(".dir") for name in found
    }
    assert len([name for name in found if name.endswith(".dir")]) == 2
    verify_commit(root / "ds")


def test_a_cache_on_another_disk_is_said_and_left(tmp_path: Path) -> None:
    """The version is published all the same."""
    heard: list[Event] = []
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    plan = plan_publish(root / "ds", parse_pointer(f"{root}/ds.dvc"))

    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        result = run_publish(dataclasses.replace(plan, cache=Path(other)), on_event=heard.append)

    assert result.linked_files is None
    assert isinstance(heard[-1], Note)
    assert "on another disk" in heard[-1].message
    assert (root / "ds.dvc").is_file()


def test_damage_is_not_linked_into_the_cache(tmp_path: Path) -> None:
    """What the remote has already is not read for it, but for the cache it is."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    publish(root / "ds", f"{root}/ds.dvc")
    shutil.rmtree(root / ".dvc" / "cache")
    (root / "ds" / "a").chmod(0o644)
    flip_bit(root / "ds" / "a", 5)

    with pytest.raises(IntegrityError, match="have crc32c"):
        publish(root / "ds", f"{root}/ds.dvc")

    assert not (root / ".dvc" / "cache" / object_key(entry_of("a", noise(300)).md5)).exists()


def test_a_change_puts_what_is_new(tmp_path: Path) -> None:
    """Objects of the version before stay and are not put again; progress counts the others."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300), "b": noise(300, 1)})
    publish(root / "ds", f"{root}/ds.dvc")
    before = (root / "ds.dvc").read_bytes()
    make_commit(root / "ds", {"a": noise(300), "c": noise(400, 2), "twice": noise(400, 2)})
    heard: list[Event] = []

    plan = plan_publish(root / "ds", parse_pointer(f"{root}/ds.dvc"))
    result = run_publish(plan, on_event=heard.append)

    assert len(plan.moves) == result.moved_files == 2
    assert set(plan.moves) & {"c", "twice"}
    assert "manifest.json" in plan.moves
    assert heard[-1] == Progress("upload", plan.bytes_to_move, plan.bytes_to_move, "B")
    assert (root / "ds.dvc").read_bytes() != before


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    """Neither the remote nor the record."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})

    plan = plan_publish(root / "ds", parse_pointer(f"{root}/ds.dvc"))

    assert plan.records
    assert plan.total_bytes == sum(map(len, files_below(root / "ds").values()))
    assert not (tmp_path / "store").exists()
    assert not (root / "ds.dvc").exists()


def test_an_object_that_was_cut_short_is_put_again(tmp_path: Path) -> None:
    """Where the list never came, each object is looked at, by its size."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    cut = tmp_path / "store" / object_key(entry_of("a", noise(300)).md5)
    cut.parent.mkdir(parents=True)
    cut.write_bytes(noise(300)[:100])

    publish(root / "ds", f"{root}/ds.dvc")

    assert cut.read_bytes() == noise(300)


def test_damage_is_not_published(tmp_path: Path) -> None:
    """The list and the record come after the objects, so that neither appears."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    flip_bit(root / "ds" / "a", 5)

    with pytest.raises(IntegrityError, match="have crc32c"):
        publish(root / "ds", f"{root}/ds.dvc")

    assert list((tmp_path / "store").rglob("*.dir")) == []
    assert not (root / "ds.dvc").exists()


def test_what_a_person_wrote_into_a_dvc_file_stays(tmp_path: Path) -> None:
    """Description and labels, as after `dvc commit`."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    (root / "one.txt").write_text("1")
    publish(root / "one.txt", f"{root}/one.txt.dvc")
    path = root / "one.txt.dvc"
    path.write_text(path.read_text() + "  desc: numbers\nmeta: {who: me}\n")
    (root / "one.txt").write_text("2")

    publish(root / "one.txt", f"{root}/one.txt.dvc")

    text = path.read_text()
    assert entry_of("", b"2").md5 in text
    assert "desc: numbers" in text
    assert "who: me" in text


def test_an_import_is_not_overwritten(tmp_path: Path) -> None:
    """What it records is another's."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    (root / "one.txt").write_text("1")
    publish(root / "one.txt", f"{root}/one.txt.dvc")
    path = root / "one.txt.dvc"
    path.write_text(path.read_text() + "deps:\n- path: s3://other/one.txt\n")
    (root / "one.txt").write_text("2")

    with pytest.raises(Refused, match="records an import"):
        publish(root / "one.txt", f"{root}/one.txt.dvc")


def test_a_file_records_what_lies_below_it(tmp_path: Path) -> None:
    """As DVC demands it; the hint names a place that would do."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(tmp_path / "ds", {"a": b"1"})

    with pytest.raises(UsageError, match="does not lie below it"):
        publish(tmp_path / "ds", f"{root}/ds.dvc")
    with pytest.raises(NotFound):
        publish(root / "gone", f"{root}/gone.dvc")


def test_a_stage_that_ran_elsewhere_is_recorded_as_dvc_would(project: DvcProject) -> None:
    """Packed by hand after an edit and a new setting: then DVC finds the stage in order, and train to be done."""
    write_dataset(project.root / "made", text_samples(9))
    (project.root / "in.txt").write_text("1")
    (project.root / "params.yaml").write_text("pack: {rate: 1e-3}\n")
    project.stage(PIPELINE)
    project.dvc("repro", "-q")
    before = Lock.from_bytes((project.root / "dvc.lock").read_bytes(), where="x")
    (project.root / "in.txt").write_text("2")
    (project.root / "params.yaml").write_text("pack: {rate: 2e-3}\n")
    packed = project.root / "data" / "packed"
    shutil.rmtree(packed)
    write_dataset(packed, text_samples(12))
    (project.root / "data" / "pack.json").unlink()
    shutil.copy(project.root / "in.txt", project.root / "data" / "pack.json")

    publish(packed, f"{project.root}/dvc.lock:pack")

    said = project.dvc("status")
    assert "train" in said
    assert "pack:" not in said
    after = Lock.from_bytes((project.root / "dvc.lock").read_bytes(), where="x")
    assert after.stage("pack").params == {"params.yaml": {"pack": {"rate": 0.002}}}
    assert after.stage("pack").outs[1].md5 != before.stage("pack").outs[1].md5
    assert after.stage("train") == before.stage("train")
    shutil.rmtree(packed)
    project.dvc("checkout", "-q", "data/packed")
    assert verify_commit(packed).contents.samples == 12


def test_a_lock_that_says_so_already_is_left_alone(project: DvcProject, tmp_path: Path) -> None:
    """`dvc push` of one output, without dvc."""
    write_dataset(project.root / "made", text_samples(9))
    (project.root / "in.txt").write_text("1")
    (project.root / "params.yaml").write_text("pack: {rate: 1e-3}\n")
    project.stage(PIPELINE)
    project.dvc("repro", "-q")
    before = (project.root / "dvc.lock").read_bytes()

    result = publish(project.root / "data" / "packed", f"{project.root}/dvc.lock:pack")

    assert not result.recorded
    assert (project.root / "dvc.lock").read_bytes() == before
    tree = Tree.from_bytes((tmp_path / "p-remote" / object_key(result.md5)).read_bytes(), where="x")
    assert len(tree.members) == result.files


def test_a_lock_is_not_told_what_is_not_here(project: DvcProject, tmp_path: Path) -> None:
    """Another place than the stage's, a dependency that is gone, a setting that is gone: each is refused by name."""
    write_dataset(project.root / "made", text_samples(9))
    (project.root / "in.txt").write_text("1")
    (project.root / "params.yaml").write_text("pack: {rate: 1e-3}\n")
    project.stage(PIPELINE)
    project.dvc("repro", "-q")
    packed = project.root / "data" / "packed"
    before = (project.root / "dvc.lock").read_bytes()
    shutil.rmtree(packed)
    write_dataset(packed, text_samples(12))

    with pytest.raises(UsageError, match=r"not .*made"):
        publish(project.root / "made", f"{project.root}/dvc.lock:pack")
    (project.root / "params.yaml").write_text("tokenize: 1\n")
    with pytest.raises(Refused, match=r"params\.yaml does not tell"):
        publish(packed, f"{project.root}/dvc.lock:pack")
    (project.root / "in.txt").unlink()
    with pytest.raises(Refused, match=r"in\.txt is not here"):
        publish(packed, f"{project.root}/dvc.lock:pack")

    assert (project.root / "dvc.lock").read_bytes() == before
    assert not (tmp_path / "p-remote").exists()


@pytest.mark.parametrize("size", [300, 17 * 2**20])
def test_a_file_that_changes_after_the_plan_is_not_stored_under_its_old_address(tmp_path: Path, size: int) -> None:
    """Where no manifest speaks, what is sent is compared with the md5 of the plan: in one request and in parts."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    (root / "one.bin").write_bytes(noise(size))
    plan = plan_publish(root / "one.bin", parse_pointer(f"{root}/one.bin.dvc"))
    (root / "one.bin").write_bytes(noise(size, 1))

    with pytest.raises(IntegrityError, match="has changed: its md5 was"):
        run_publish(plan)

    key = object_key(entry_of("", noise(size)).md5)
    assert not (tmp_path / "store" / key).exists()
    assert not (root / ".dvc" / "cache" / key).exists()
    assert not (root / "one.bin.dvc").exists()


def test_members_that_a_list_only_promises_are_put_again(tmp_path: Path) -> None:
    """An interrupted `dvc gc` leaves the list and takes what it names; a list that was cut short is written anew."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300), "b": noise(300, 1)})
    first = publish(root / "ds", f"{root}/ds.dvc")
    gone = tmp_path / "store" / object_key(entry_of("a", noise(300)).md5)
    listed = tmp_path / "store" / object_key(first.md5)
    whole = listed.read_bytes()
    gone.unlink()
    listed.chmod(0o644)
    listed.write_bytes(whole[:20])

    again = publish(root / "ds", f"{root}/ds.dvc")

    assert (again.moved_files, again.recorded) == (1, False)
    assert gone.read_bytes() == noise(300)
    assert listed.read_bytes() == whole


LOCK = """\
schema: '2.0'
stages:
  pack:
    cmd: pack
    outs:
    - {path: ds, hash: md5, md5: 11111111111111111111111111111111.dir}
  other:
    cmd: old
    outs:
    - {path: x, hash: md5, md5: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}
"""


def test_what_a_stage_records_while_we_upload_stays(tmp_path: Path) -> None:
    """Only the one stage of dvc.lock is replaced, in the file as it is at the end."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    (root / "dvc.lock").write_text(LOCK)
    plan = plan_publish(root / "ds", parse_pointer(f"{root}/dvc.lock:pack"))
    (root / "dvc.lock").write_text(LOCK.replace("cmd: old", "cmd: NEW").replace("b" * 32, "c" * 32))

    run_publish(plan)

    text = (root / "dvc.lock").read_text()
    lock = Lock.from_bytes(text.encode(), where="x")
    assert "cmd: NEW" in text
    assert lock.stage("other").outs[0].md5 == "c" * 32
    assert lock.stage("pack").outs[0].md5 == plan.md5


@pytest.mark.parametrize("pointer", ["dvc.lock:pack", "ds.dvc"])
def test_a_record_that_somebody_else_wrote_meanwhile_is_not_overwritten(tmp_path: Path, pointer: str) -> None:
    """The same stage, or the same `.dvc` file: refused, and a second run has nothing to put."""
    root = bare_project(tmp_path / "p", remote=str(tmp_path / "store"))
    make_commit(root / "ds", {"a": noise(300)})
    (root / "dvc.lock").write_text(LOCK)
    plan = plan_publish(root / "ds", parse_pointer(f"{root}/{pointer}"))
    theirs = LOCK.replace("1" * 32, "3" * 32)
    (root / "dvc.lock").write_text(theirs)
    (root / "ds.dvc").write_text(f"outs:\n- {{path: ds, hash: md5, md5: {'4' * 32}.dir}}\n")

    with pytest.raises(Refused, match="recorded anew by somebody else"):
        run_publish(plan)

    assert (root / "dvc.lock").read_text() == theirs
    assert "4" * 32 in (root / "ds.dvc").read_text()
    assert publish(root / "ds", f"{root}/{pointer}").moved_files == 0


@pytest.mark.parametrize("size_bytes", [0, 300, 40 * 2**20])
def test_nothing_is_put_under_an_md5_that_is_not_its_own(tmp_path: Path, bucket: str, size_bytes: int) -> None:
    """A manifest that says all but the md5 rightly: neither remote nor record gets it, in one part or several."""
    root = bare_project(tmp_path / "p", remote=f"{bucket}/store")
    make_commit(root / "ds", {"a.tar": noise(size_bytes)})
    wrong = spoil_md5(root / "ds", "a.tar")
    plan = plan_publish(root / "ds", parse_pointer(f"{root}/ds.dvc"))

    with pytest.raises(IntegrityError, match=f"its manifest says {wrong}"):
        run_publish(plan)

    with pytest.raises(NotFound):
        plan.place.store.head(plan.place.key(object_key(wrong)))
    assert not (root / "ds.dvc").exists()


def test_a_link_to_a_folder_is_left_out_as_by_dvc_and_said(project: DvcProject, tmp_path: Path) -> None:
    """DVC does not follow it: what it is asked to add has the same md5, and says nothing."""
    root = project.root / "ds"
    (root / "in").mkdir(parents=True)
    (root / "in" / "a").write_bytes(b"1")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "b").write_bytes(b"2")
    (root / "in" / "link").symlink_to(tmp_path / "far")
    told: list[Event] = []

    plan = plan_publish(root, parse_pointer(f"{project.root}/ds.dvc"), on_event=told.append)
    project.dvc("add", "-q", "ds")

    assert f"md5: {plan.md5}" in (project.root / "ds.dvc").read_text()
    (said,) = [event.message for event in told if isinstance(event, Caution)]
    assert said == f"1 linked folder (in/link) of {root} is left out, as by DVC"


def test_a_failed_publication_does_not_wait_for_the_rate_and_can_be_run_again(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    """One object is refused; the others have hours to wait, and are let go at once."""
    root = bare_project(tmp_path / "p", remote=f"{faulty.url}/store")
    make_commit(root / "ds", {f"{number}.tar": noise(100 + number) for number in range(6)})
    plan = plan_publish(root / "ds", parse_pointer(f"{root}/ds.dvc"), settings=SyncSettings(retries=0))
    plan.place.store.limit(Gate(Limits(requests_per_s=1 / 3600), wait=plan.gate.stopped.wait))
    faulty.faults = [Fault("denied", method="PUT", times=1)]
    with pytest.raises(NotAllowed):
        run_publish(plan)
    plan.place.store.limit(Gate(Limits()))

    assert run_publish(plan).recorded
    assert (root / "ds.dvc").exists()
