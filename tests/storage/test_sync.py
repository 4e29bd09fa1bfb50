"""What `storage/sync` promises: the destination holds what the source holds, verified, manifest last, kill or not."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.data.manifest import MANIFEST_NAME, Kind, Manifest, layout_digest
from datakit.errors import InputError, IntegrityError, NoSpace, NotAllowed, NotFound, Refused, StoreUnavailable
from datakit.events import Caution, Event, Progress
from datakit.storage import disk
from datakit.storage.commit import NEXT_NAME, commit, lock_path, read_manifest, verify_commit
from datakit.storage.moves import Durability, SyncSettings
from datakit.storage.sync import LOCK_NAME, sync
from support.commits import files_below, flip_bit, make_commit, noise
from support.faulty import Fault, FaultyServer
from support.process import kill, run_code, start_code
from support.s3server import S3Server

MEMBERS = {"a.tar": noise(PART_BYTES + 777, 1), "a.tar.index.arrow": noise(900, 2), "empty": b"", "sub/b": b"bb"}
FEW = SyncSettings(concurrency=2, retries=2)


def test_a_commit_goes_up_and_comes_down_whole(bucket: str, tmp_path: Path) -> None:
    """The copy verifies, has the same manifest, and nothing lies beside it."""
    manifest = make_commit(tmp_path / "ds", MEMBERS)

    up = sync(tmp_path / "ds", f"{bucket}/x/ds")
    down = sync(f"{bucket}/x/ds", tmp_path / "down" / "copy")

    assert verify_commit(tmp_path / "down" / "copy") == manifest
    assert files_below(tmp_path / "down" / "copy") == files_below(tmp_path / "ds")
    assert os.listdir(tmp_path / "down") == ["copy"]
    assert up.manifest_digest == down.manifest_digest == manifest.digest
    assert (up.moved_files, up.moved_bytes, up.kind, up.name) == (4, manifest.total_bytes, "commit", "ds")


def test_the_manifest_goes_up_last(faulty: FaultyServer, tmp_path: Path) -> None:
    """A reader of the bucket sees no commit or a whole one."""
    make_commit(tmp_path / "ds", MEMBERS)

    sync(tmp_path / "ds", f"{faulty.url}/ds")

    writes = [key for method, key, _ in faulty.log if method in ("PUT", "POST")]
    assert writes[-1] == f"ds/{MANIFEST_NAME}"
    assert writes.count(f"ds/{MANIFEST_NAME}") == 1


def test_a_bit_of_the_manifest_that_flips_on_the_way_is_asked_for_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """The store's tag stands for its bytes: what arrives is what was published."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    faulty.faults = [Fault("flip", key=f"ds/{MANIFEST_NAME}", times=2)]

    sync(f"{faulty.url}/ds", tmp_path / "copy", settings=FEW)

    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")
    assert faulty.faults[0].times == 0


def test_a_manifest_that_stays_wrong_is_not_written(faulty: FaultyServer, tmp_path: Path) -> None:
    """Nothing appears under the name of the commit."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    faulty.faults = [Fault("flip", key=f"ds/{MANIFEST_NAME}", times=99)]

    with pytest.raises(IntegrityError, match=r"ds/manifest\.json: the bytes that arrived do not have the md5"):
        sync(f"{faulty.url}/ds", tmp_path / "copy", settings=FEW)

    assert not (tmp_path / "copy").exists()


def test_the_manifest_of_an_encrypted_commit_is_believed(faulty: FaultyServer, tmp_path: Path) -> None:
    """Under KMS a tag looks like an md5 and is none."""
    make_commit(tmp_path / "ds", MEMBERS)
    faulty.sealed = True
    sync(tmp_path / "ds", f"{faulty.url}/ds")

    sync(f"{faulty.url}/ds", tmp_path / "copy", settings=FEW)

    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")


def test_a_dataset_that_contradicts_itself_is_not_carried_on(tmp_path: Path) -> None:
    """Its manifest names samples that its shards do not have: no copy of it is made."""
    make_commit(tmp_path / "ds", {})
    about = {"content_digest": "0" * 64, "layout_digest": layout_digest([]), "samples": 3, "payload_bytes": 0}
    wrong = Manifest(kind="dataset", name="ds", members=(), about={**about, "parts": {}, "shards": [], "pack": {}})
    (tmp_path / "ds" / MANIFEST_NAME).write_bytes(wrong.to_bytes())

    with pytest.raises(IntegrityError, match="says 3 samples, its shards have 0"):
        sync(tmp_path / "ds", tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["a.tar", "sub/b", MANIFEST_NAME])
def test_a_publication_that_fails_anywhere_is_no_commit_and_goes_on(
    faulty: FaultyServer, tmp_path: Path, name: str
) -> None:
    """Refused at a member or at the manifest: nothing is published; the next run puts only what is missing."""
    make_commit(tmp_path / "ds", MEMBERS)
    faulty.faults = [Fault("denied", method=method, key=f"ds/{name}", times=99) for method in ("PUT", "POST")]
    with pytest.raises(NotAllowed):
        sync(tmp_path / "ds", f"{faulty.url}/ds")
    assert f"ds/{MANIFEST_NAME}" not in faulty.objects
    there = {key for key in faulty.objects if key != f"ds/{name}"}
    faulty.faults, faulty.log = [], []

    sync(tmp_path / "ds", f"{faulty.url}/ds")

    put_again = {key for method, key, _ in faulty.log if method in ("PUT", "POST")}
    assert not put_again & there
    assert {key: data for key, (data, _) in faulty.objects.items()} == {
        f"ds/{key}": data for key, data in files_below(tmp_path / "ds").items()
    }


def test_a_renewed_commit_moves_only_its_new_members(bucket: str, s3: S3Server, tmp_path: Path) -> None:
    """Old members stay beside the new ones until --delete; the manifest is replaced."""
    make_commit(tmp_path / "ds", {"a-1": noise(100, 1), "b-1": noise(100, 2)})
    sync(tmp_path / "ds", f"{bucket}/ds")
    sync(f"{bucket}/ds", tmp_path / "copy")
    manifest = make_commit(tmp_path / "ds", {"a-1": noise(100, 1), "b-2": noise(100, 3)})

    up = sync(tmp_path / "ds", f"{bucket}/ds")
    down = sync(f"{bucket}/ds", tmp_path / "copy")
    kept = sorted(s3.keys(bucket.removeprefix("s3://")))
    up_clean = sync(tmp_path / "ds", f"{bucket}/ds", delete=True, max_delete=1)
    down_clean = sync(f"{bucket}/ds", tmp_path / "copy", delete=True, max_delete=1)

    assert (up.moved_files, up.kept_files, down.moved_files, down.kept_files) == (1, 1, 1, 1)
    assert kept == ["ds/a-1", "ds/b-1", "ds/b-2", f"ds/{MANIFEST_NAME}"]
    assert up_clean.deleted == down_clean.deleted == ("b-1",)
    assert verify_commit(tmp_path / "copy") == manifest
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")
    assert sorted(s3.keys(bucket.removeprefix("s3://"))) == ["ds/a-1", "ds/b-2", f"ds/{MANIFEST_NAME}"]


def test_a_manifest_replaced_by_another_meanwhile_is_not_overwritten(faulty: FaultyServer, tmp_path: Path) -> None:
    """Two publishers of one prefix: the slower is refused by If-Match instead of hiding the faster's work."""
    make_commit(tmp_path / "ds", {"a-1": b"1"})
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    make_commit(tmp_path / "other" / "ds", {"c-1": b"3"})
    theirs = (tmp_path / "other" / "ds" / MANIFEST_NAME).read_bytes()
    make_commit(tmp_path / "ds", {"a-1": b"1", "b-1": b"2"})
    begun: list[Event] = []

    def meanwhile(event: Event) -> None:
        if not begun:
            faulty.put(f"ds/{MANIFEST_NAME}", theirs)
        begun.append(event)

    with pytest.raises(Refused, match="replaced while it was in use"):
        sync(tmp_path / "ds", f"{faulty.url}/ds", on_event=meanwhile)

    assert faulty.objects[f"ds/{MANIFEST_NAME}"][0] == theirs


def test_a_published_manifest_whose_answer_was_lost_is_recognised(faulty: FaultyServer, tmp_path: Path) -> None:
    """The second try is refused because the first went through: the very same bytes are there."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    faulty.faults = [Fault("lost-answer", method="PUT", key=f"ds/{MANIFEST_NAME}")]

    result = sync(tmp_path / "ds", f"{faulty.url}/ds")

    assert result.moved_files == 1
    assert faulty.objects[f"ds/{MANIFEST_NAME}"][0] == (tmp_path / "ds" / MANIFEST_NAME).read_bytes()


def test_a_damaged_member_in_the_bucket_is_named_and_never_visible(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The message names the object, the bytes and both checksums; exit code 4."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    wrong = bytearray(MEMBERS["a.tar"])
    wrong[PART_BYTES + 3] ^= 4
    s3.put(f"{bucket.removeprefix('s3://')}/ds/a.tar", bytes(wrong))

    with pytest.raises(IntegrityError, match=f"a.tar: bytes {PART_BYTES} to {PART_BYTES + 777} have crc32c") as caught:
        sync(f"{bucket}/ds", tmp_path / "copy", settings=FEW)

    assert caught.value.exit_code == 4
    assert not (tmp_path / "copy" / "a.tar").exists()
    assert not (tmp_path / "copy" / MANIFEST_NAME).exists()


def test_a_shortened_member_in_the_bucket_is_an_integrity_error(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """It is not taken for a broken connection and tried for ever."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    s3.put(f"{bucket.removeprefix('s3://')}/ds/a.tar", MEMBERS["a.tar"][: PART_BYTES + 1])

    with pytest.raises(IntegrityError):
        sync(f"{bucket}/ds", tmp_path / "copy", settings=FEW)


def test_a_damaged_local_member_is_fetched_again_by_repair(bucket: str, tmp_path: Path) -> None:
    """Named in a caution, replaced by verified bytes, everything else untouched."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    sync(f"{bucket}/ds", tmp_path / "copy")
    flip_bit(tmp_path / "copy" / "a.tar", 5)
    events: list[Event] = []

    result = sync(f"{bucket}/ds", tmp_path / "copy", repair=True, on_event=events.append)

    verify_commit(tmp_path / "copy")
    assert (result.moved_files, result.kept_files) == (1, 3)
    assert [event.message for event in events if isinstance(event, Caution)] == [f"{tmp_path}/copy/a.tar is damaged"]


def test_a_member_that_was_removed_comes_back(bucket: str, tmp_path: Path) -> None:
    """A commit whose manifest stands and whose member is gone is not up to date."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    sync(f"{bucket}/ds", tmp_path / "copy")
    (tmp_path / "copy" / "sub" / "b").unlink()

    result = sync(f"{bucket}/ds", tmp_path / "copy")

    assert (result.moved_files, result.up_to_date) == (1, False)
    verify_commit(tmp_path / "copy")


def test_a_member_that_left_the_bucket_goes_up_again(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The manifest alone does not make a commit whole there either."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    s3.request("DELETE", f"{bucket.removeprefix('s3://')}/ds/sub/b")

    result = sync(tmp_path / "ds", f"{bucket}/ds")
    sync(f"{bucket}/ds", tmp_path / "copy")

    assert (result.moved_files, result.up_to_date) == (1, False)
    assert str(result.requests) == "1 GET, 1 PUT, 1 LIST"  # listed once, though it is looked at twice
    verify_commit(tmp_path / "copy")


def test_files_go_both_ways_and_only_what_differs(bucket: str, tmp_path: Path) -> None:
    """A folder of raw files without a manifest: unchanged ones stay, changed ones are replaced whole."""
    raw = tmp_path / "raw"
    (raw / "sub").mkdir(parents=True)
    (raw / "a.jsonl").write_bytes(b"{}\n" * 100)
    (raw / "sub" / "b.jsonl").write_bytes(noise(PART_BYTES + 5))
    (raw / ".env").write_bytes(b"SECRET=1")
    first = sync(raw, f"{bucket}/raw")
    (raw / "a.jsonl").write_bytes(b"[]\n" * 100)

    second = sync(raw, f"{bucket}/raw")
    down = sync(f"{bucket}/raw", tmp_path / "copy")
    again = sync(f"{bucket}/raw", tmp_path / "copy")

    assert (first.moved_files, second.moved_files, second.kept_files) == (2, 1, 1)
    assert files_below(tmp_path / "copy") == {k: v for k, v in files_below(raw).items() if k != ".env"}
    assert (down.moved_files, again.moved_files, again.up_to_date) == (2, 0, True)


def test_deleting_files_leaves_no_empty_folders(bucket: str, tmp_path: Path) -> None:
    """What is gone at the source goes at the destination, within the bound, and is listed."""
    raw = tmp_path / "raw"
    (raw / "sub" / "deep").mkdir(parents=True)
    (raw / "a").write_bytes(b"1")
    (raw / "sub" / "deep" / "b").write_bytes(b"2")
    sync(raw, tmp_path / "copy")
    (raw / "sub" / "deep" / "b").unlink()

    result = sync(raw, tmp_path / "copy", delete=True, max_delete=1)

    assert result.deleted == ("sub/deep/b",)
    assert os.listdir(tmp_path / "copy") == ["a"]


def test_splits_below_a_folder_move_with_their_manifests_last(faulty: FaultyServer, tmp_path: Path) -> None:
    """A folder of commits is a folder, and yet no commit in it is visible before it is whole."""
    for split in ("train", "held-out"):
        make_commit(tmp_path / "chat" / split, {"a.tar": noise(500), "b.tar": noise(400)})

    sync(tmp_path / "chat", f"{faulty.url}/chat")
    up = [key for method, key, _ in faulty.log if method == "PUT"]
    sync(f"{faulty.url}/chat", tmp_path / "copy")

    assert {key.rpartition("/")[2] for key in up[-2:]} == {MANIFEST_NAME}
    for split in ("train", "held-out"):
        verify_commit(tmp_path / "copy" / split)


def test_from_store_to_store_through_a_verified_spool(bucket: str, s3: S3Server, tmp_path: Path) -> None:
    """A commit moves on without staying on the local disk."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{bucket}/ds")
    other = s3.make_bucket("another-bucket")

    result = sync(f"{bucket}/ds", f"{other}/moved/ds")
    again = sync(f"{bucket}/ds", f"{other}/moved/ds")
    sync(f"{other}/moved/ds", tmp_path / "copy")

    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")
    assert (result.moved_files, again.up_to_date, str(again.requests)) == (4, True, "2 GET, 1 LIST")


def test_the_room_on_the_way_from_store_to_store_is_looked_at_first(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One window of bytes lies on the local disk; without room for it nothing is asked for and nothing is put."""
    make_commit(tmp_path / "ds", MEMBERS)
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    monkeypatch.setattr(disk, "free_bytes", lambda _path: PART_BYTES)
    faulty.log.clear()

    with pytest.raises(NoSpace, match=r"16\.0 MiB on their way from store to store do not fit"):
        sync(f"{faulty.url}/ds", f"{faulty.url}/copy")

    assert not faulty.asked("GET", r"ds/a\.tar.*")
    assert not faulty.asked("PUT")


def test_a_folder_and_a_commit_in_it_are_not_written_at_once(tmp_path: Path) -> None:
    """Whoever came first: the other is refused with the process that writes there, before it removes what arrives."""
    make_commit(tmp_path / "chat" / "train", {"a": b"1"})
    (tmp_path / "chat" / "raw").mkdir()
    (tmp_path / "chat" / "raw" / "b.txt").write_bytes(b"2")
    (tmp_path / "copy" / "train").mkdir(parents=True)
    arriving = tmp_path / "copy" / "train" / ".a.0123abcd.part"
    arriving.write_bytes(b"half")

    for lock in ("train/.sync.lock", ".train.lock", "raw/.sync.lock"):
        with (
            disk.exclusive(tmp_path / "copy" / lock, purpose="writing"),
            pytest.raises(Refused, match=f"process {os.getpid()} is already writing"),
        ):
            sync(tmp_path / "chat", tmp_path / "copy")
    half = arriving.exists()
    sync(tmp_path / "chat", tmp_path / "copy")

    assert half
    assert not arriving.exists()
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "chat")


def test_from_disk_to_disk_needs_no_store(tmp_path: Path) -> None:
    """The shared file system to the local one, with the same promises."""
    manifest = make_commit(tmp_path / "hot" / "ds", MEMBERS)

    result = sync(tmp_path / "hot" / "ds", tmp_path / "cache" / "ds")

    assert verify_commit(tmp_path / "cache" / "ds") == manifest
    assert result.requests.total == 0


def test_progress_ends_at_the_whole(bucket: str, tmp_path: Path) -> None:
    """Bytes done only grow, from nothing to the plan's total."""
    manifest = make_commit(tmp_path / "ds", MEMBERS)
    events: list[Event] = []

    sync(tmp_path / "ds", f"{bucket}/ds", on_event=events.append)

    done = [event.done for event in events if isinstance(event, Progress)]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, manifest.total_bytes)
    assert {event.total for event in events if isinstance(event, Progress)} == {manifest.total_bytes}


def test_two_writers_of_one_destination_exclude_each_other(tmp_path: Path) -> None:
    """A download and a commit of the same place take the same lock."""
    make_commit(tmp_path / "ds", {"a": b"1"})

    with (
        disk.exclusive(lock_path(tmp_path / "copy"), purpose="writing"),
        pytest.raises(Refused, match=f"process {os.getpid()} is already writing"),
    ):
        sync(tmp_path / "ds", tmp_path / "copy")


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files and directories as they are put on the disk."""
    names: list[str] = []
    for call in (os.fsync, os.fdatasync):

        def flush(descriptor: int, call: Callable[[int], None] = call) -> None:
            names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
            call(descriptor)

        monkeypatch.setattr(os, call.__name__, flush)
    return names


@pytest.mark.parametrize(
    ("durability", "kind", "durable"),
    [
        ("always", "dataset", True),
        ("always", "checkpoint", True),
        ("auto", "checkpoint", True),
        ("auto", "adapter", True),
        ("auto", "dataset", False),
        ("never", "checkpoint", False),
    ],
)
def test_durability_decides_what_is_put_on_the_disk(
    tmp_path: Path, flushed: list[str], durability: Durability, kind: Kind, durable: bool
) -> None:
    """Every member before its name appears, the manifest, and the directories; or nothing. The files are the same."""
    make_commit(tmp_path / "ds", MEMBERS, kind=kind)
    flushed.clear()

    sync(tmp_path / "ds", tmp_path / "copy", settings=SyncSettings(durability=durability))

    arriving = {re.sub(r"^\.(.+)\.(tmp-[0-9a-f]{8}|[0-9a-f]{8}\.part)$", r"\1", name) for name in flushed}
    names = {
        "a.tar",
        "a.tar.index.arrow",
        "empty",
        "b",
        NEXT_NAME,
        "copy",
        "sub",
    }  # the manifest arrives as the next one
    assert arriving == (names if durable else set())
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")


def test_a_missing_bucket_is_not_found_both_ways(s3: S3Server, tmp_path: Path) -> None:
    """Exit code 2, by the bucket's name."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    (tmp_path / "f").write_bytes(b"1")

    for source, destination in (
        (tmp_path / "ds", "s3://no-such-bucket/ds"),
        (tmp_path / "f", "s3://no-such-bucket/f"),
        ("s3://no-such-bucket/ds", tmp_path / "copy"),
    ):
        with pytest.raises(NotFound, match="bucket s3://no-such-bucket does not exist"):
            sync(source, destination)


@pytest.mark.parametrize("kind", ["denied", "expired", "signature"])
def test_wrong_credentials_are_said_at_the_first_request(faulty: FaultyServer, tmp_path: Path, kind: str) -> None:
    """Exit code 6, after one request, with no secret in the message."""
    faulty.faults = [Fault(kind, times=99)]  # type: ignore[arg-type]

    with pytest.raises(NotAllowed) as caught:
        sync(f"{faulty.url}/ds", tmp_path / "copy")

    assert caught.value.exit_code == 6
    assert len(faulty.log) == 1
    assert "the-secret-of-the-test" not in str(caught.value)


def test_an_unreachable_endpoint_is_given_up_after_few_tries(
    clean_room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 7; the patience for a store that never answered is short."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")

    with pytest.raises(StoreUnavailable, match="no connection") as caught:
        sync("s3://bkt/ds", tmp_path / "copy", settings=SyncSettings(retries=100))

    assert caught.value.exit_code == 7


SYNC = """
import sys
from datakit.storage.sync import SyncSettings, sync
print("begun", flush=True)
sync(sys.argv[1], sys.argv[2], settings=SyncSettings(concurrency=int(sys.argv[3])))
"""


def test_killed_anywhere_a_download_continues_and_ends_right(bucket: str, tmp_path: Path) -> None:
    """Kill -9 at random moments: never a wrong byte under a final name, and the last run leaves exactly the commit."""
    members = {f"{name}.tar": noise(3 * PART_BYTES + 99, seed) for seed, name in enumerate("ab")}
    manifest = make_commit(tmp_path / "ds", members | {"index": noise(100)})
    sync(tmp_path / "ds", f"{bucket}/ds")
    clock = random.Random(8)

    for _ in range(6):
        process = start_code(SYNC, f"{bucket}/ds", tmp_path / "copy", 3)
        time.sleep(clock.uniform(0.05, 0.5))
        kill(process)
        visible = tmp_path / "copy"
        for path in visible.rglob("*") if visible.exists() else ():
            if not path.name.startswith(".") and path.name != MANIFEST_NAME:
                assert path.read_bytes() == (tmp_path / "ds" / path.name).read_bytes()

    sync(f"{bucket}/ds", tmp_path / "copy")
    assert verify_commit(tmp_path / "copy") == manifest
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")
    assert sorted(os.listdir(tmp_path)) == ["copy", "ds"]


def test_what_a_kill_leaves_of_a_manifest_goes(tmp_path: Path) -> None:
    """Its temporaries, of a run killed while it wrote them; its locks and the coming one, if all had come by then."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (NEXT_NAME, MANIFEST_NAME):
        (copy / f".{name}.tmp-0123abcd").write_bytes(b"{")

    sync(tmp_path / "ds", copy)
    after_first = sorted(os.listdir(copy))
    (copy / NEXT_NAME).write_bytes((copy / MANIFEST_NAME).read_bytes())
    for lock in (copy / LOCK_NAME, lock_path(copy)):
        lock.write_text("4194305\n")
    again = sync(tmp_path / "ds", copy)

    assert after_first == sorted(os.listdir(copy)) == ["a", MANIFEST_NAME]
    assert again.up_to_date
    assert sorted(os.listdir(tmp_path)) == ["copy", "ds"]


def test_an_unchanged_place_that_somebody_writes_to_is_left_alone(tmp_path: Path) -> None:
    """There is nothing to do there: it is no error, and the other's lock and coming manifest stay."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "ds", tmp_path / "copy")
    (tmp_path / "copy" / NEXT_NAME).write_bytes((tmp_path / "copy" / MANIFEST_NAME).read_bytes())

    with disk.exclusive(tmp_path / "copy" / LOCK_NAME, purpose="writing"):
        again = sync(tmp_path / "ds", tmp_path / "copy")
        left = sorted(os.listdir(tmp_path / "copy"))

    assert again.up_to_date
    assert left == [NEXT_NAME, LOCK_NAME, "a", MANIFEST_NAME]


def test_a_killed_download_fetches_only_the_missing_parts(faulty: FaultyServer, tmp_path: Path) -> None:
    """The server stalls on the last part; what came before the kill is not asked for again."""
    members = {"a.tar": noise(4 * PART_BYTES)}
    make_commit(tmp_path / "ds", members)
    for name, data in files_below(tmp_path / "ds").items():
        faulty.put(f"ds/{name}", data)
    faulty.faults = [Fault("stall", key="ds/a.tar", after=3)]
    process = start_code(SYNC, f"{faulty.url}/ds", tmp_path / "copy", 3)
    journal = None
    while journal is None or journal.read_bytes().count(b"\n") < 4 or len(faulty.asked("GET", "ds/a.tar")) < 4:
        journal = next(iter((tmp_path / "copy").glob("*.journal")), None)
        time.sleep(0.01)
    kill(process)
    faulty.log.clear()

    sync(f"{faulty.url}/ds", tmp_path / "copy")

    (asked,) = [re.fullmatch(r"bytes=(\d+)-(\d+)", line[2]) for line in faulty.asked("GET", "ds/a.tar")]
    assert asked is not None
    assert int(asked[1]) % PART_BYTES == 0
    assert int(asked[2]) - int(asked[1]) == PART_BYTES - 1
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")


@pytest.mark.parametrize(
    ("method", "name", "after"),
    [
        ("PUT", "big", 0),  # the first part
        ("PUT", "big", 1),  # the second
        ("POST", "big", 1),  # what makes the parts one object
        ("PUT", "[0-3]", 0),  # the first small member
        ("PUT", "[0-3]", 3),  # the last
        ("PUT", MANIFEST_NAME, 0),
    ],
)
def test_a_publication_killed_at_any_request_is_no_commit_and_goes_on(
    faulty: FaultyServer, tmp_path: Path, method: str, name: str, after: int
) -> None:
    """Kill -9 while a request is under way: no manifest is there, and the next run puts the rest, the manifest last."""
    members = {f"{number}": noise(2000, number) for number in range(4)} | {"big": noise(PART_BYTES + 5)}
    make_commit(tmp_path / "ds", members)
    faulty.faults = [Fault("hold", method=method, key=f"ds/{name}", after=after)]
    process = start_code(SYNC, tmp_path / "ds", f"{faulty.url}/ds", 1)
    while len(faulty.asked(method, f"ds/{name}")) <= after:
        assert process.poll() is None
        time.sleep(0.01)
    kill(process)
    there = dict(faulty.objects)
    faulty.log.clear()

    sync(tmp_path / "ds", f"{faulty.url}/ds")

    whole = {f"ds/{name}": data for name, data in files_below(tmp_path / "ds").items()}
    put_again = {key for verb, key, _ in faulty.log if verb in ("PUT", "POST")}
    assert f"ds/{MANIFEST_NAME}" not in there
    assert {key: data for key, (data, _) in there.items()}.items() <= whole.items()
    assert put_again == whole.keys() - there.keys()
    assert {key: data for key, (data, _) in faulty.objects.items()} == whole


def test_ctrl_c_ends_a_stalled_download_soon_and_cleanly(faulty: FaultyServer, tmp_path: Path) -> None:
    """SIGINT while the store gives nothing: one KeyboardInterrupt, no crash of the process, nothing visible."""
    code = """
import sys
from datakit.storage.sync import sync
def told(event):
    print("told", flush=True)
try:
    sync(sys.argv[1], sys.argv[2], on_event=told)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
    make_commit(tmp_path / "ds", {"a.tar": noise(3 * PART_BYTES)})
    for name, data in files_below(tmp_path / "ds").items():
        faulty.put(f"ds/{name}", data)
    faulty.faults = [Fault("stall", key="ds/a.tar", times=99)]
    process = start_code(code, f"{faulty.url}/ds", tmp_path / "copy")
    while len(faulty.asked("GET", "ds/a.tar")) < 3:
        time.sleep(0.01)

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    assert out.splitlines()[-1] == "interrupted"
    assert not [path for path in (tmp_path / "copy").iterdir() if not path.name.startswith(".")]


def test_a_full_disk_ends_a_download_with_a_sentence_and_is_survived(faulty: FaultyServer, tmp_path: Path) -> None:
    """Under a limit on file sizes the download is NoSpace; with room, the same command ends right."""
    code = """
import resource, sys
from datakit.errors import NoSpace
from datakit.storage.sync import sync
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    sync(sys.argv[1], sys.argv[2])
except NoSpace as error:
    print(error.exit_code, error.message)
"""
    make_commit(tmp_path / "ds", MEMBERS)
    for name, data in files_below(tmp_path / "ds").items():
        faulty.put(f"ds/{name}", data)

    said = run_code(code, f"{faulty.url}/ds", tmp_path / "copy")
    visible = [name for name in files_below(tmp_path / "copy") if not name.startswith(".")]
    sync(f"{faulty.url}/ds", tmp_path / "copy")

    assert said.startswith("5 no space to write")
    assert "a.tar" not in visible
    assert read_manifest(tmp_path / "copy") == read_manifest(tmp_path / "ds")
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")


def test_hidden_files_of_a_bucket_are_neither_fetched_nor_deleted(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """A dot hides a file at both ends: --delete does not take for gone what it never looks at."""
    (tmp_path / "raw").mkdir()
    for name in ("a", ".env"):
        (tmp_path / "raw" / name).write_bytes(b"1")
        s3.put(f"{bucket.removeprefix('s3://')}/raw/{name}", b"1")
    s3.put(f"{bucket.removeprefix('s3://')}/raw/gone", b"1")

    up = sync(tmp_path / "raw", f"{bucket}/raw", delete=True, max_delete=9)
    sync(f"{bucket}/raw", tmp_path / "copy")

    assert up.deleted == ("gone",)
    assert sorted(s3.keys(bucket.removeprefix("s3://"))) == ["raw/.env", "raw/a"]
    assert os.listdir(tmp_path / "copy") == ["a"]


def test_hidden_members_of_commits_below_a_folder_move_with_them(bucket: str, tmp_path: Path) -> None:
    """`.gitattributes` of a model belongs to it; the manifest says so."""
    make_commit(tmp_path / "models" / "base", {".gitattributes": b"x", "config.json": b"{}"}, kind="model")

    sync(tmp_path / "models", f"{bucket}/models")
    sync(f"{bucket}/models", tmp_path / "copy")
    again = sync(f"{bucket}/models", tmp_path / "copy", delete=True, max_delete=0)

    verify_commit(tmp_path / "copy" / "base")
    assert again.up_to_date


def test_a_name_that_is_file_and_folder_is_refused_with_both(faulty: FaultyServer, tmp_path: Path) -> None:
    """A bucket can hold that; a disk cannot."""
    faulty.put("raw/a", b"1")
    faulty.put("raw/a/b", b"2")

    with pytest.raises(Refused, match="holds a and a/b"):
        sync(f"{faulty.url}/raw", tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_a_place_below_what_belongs_to_others_can_be_written(tmp_path: Path) -> None:
    """A home directory, a mount point: the lock lies inside the place, and nothing beside it."""
    code = """
import os, sys
from datakit.storage.sync import sync
if os.getuid() == 0:
    os.seteuid(65534)
for source, destination in (("raw", "home"), ("raw/f", "home/f"), ("ds", "home/ds"), ("ds", "mount")):
    sync(f"{sys.argv[1]}/{source}", f"{sys.argv[1]}/{destination}")
"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "raw").mkdir()
        (root / "raw" / "f").write_bytes(b"1")
        make_commit(root / "ds", {"a": b"1"})
        for folder in ("home", "mount"):
            (root / folder).mkdir()
            (root / folder).chmod(0o777)
        root.chmod(0o555)

        run_code(code, root)

        root.chmod(0o755)
        assert sorted(os.listdir(root)) == ["ds", "home", "mount", "raw"]
        assert sorted(files_below(root / "home")) == ["ds/a", f"ds/{MANIFEST_NAME}", "f"]
        verify_commit(root / "mount")


def test_single_files_of_one_folder_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """The folder is not locked; the same file is."""
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "copy").mkdir()

    with disk.exclusive(lock_path(tmp_path / "copy" / "other"), purpose="writing"):
        sync(tmp_path / "f", tmp_path / "copy" / "f")
        with pytest.raises(Refused, match="is already writing"):
            sync(tmp_path / "f", tmp_path / "copy" / "other")

    assert os.listdir(tmp_path / "copy") == ["f"]


def test_another_commit_may_come_where_a_first_sync_was_cut_off(faulty: FaultyServer, tmp_path: Path) -> None:
    """What the first one left is ours and goes; what somebody else has put there does not."""
    for number in (1, 2):
        make_commit(tmp_path / f"{number}" / "adapter", {"a": noise(99, number), "b": noise(99, number + 5)})
        sync(tmp_path / f"{number}" / "adapter", f"{faulty.url}/{number}")
    faulty.faults = [Fault("denied", key="1/b", times=99)]
    with pytest.raises(NotAllowed):
        sync(f"{faulty.url}/1", tmp_path / "copy", settings=SyncSettings(concurrency=1))
    assert (tmp_path / "copy" / "a").read_bytes() == noise(99, 1)

    sync(f"{faulty.url}/2", tmp_path / "copy")

    assert files_below(tmp_path / "copy") == files_below(tmp_path / "2" / "adapter")
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "1" / "adapter" / MANIFEST_NAME, tmp_path / "other" / NEXT_NAME)
    (tmp_path / "other" / "a").write_bytes(b"my own")
    with pytest.raises(Refused, match="in the way"):
        sync(f"{faulty.url}/2", tmp_path / "other")


def test_what_arrived_of_an_older_version_goes_before_the_new_one_comes(faulty: FaultyServer, tmp_path: Path) -> None:
    """It would fill the disk beside it; a run that is cut off as well leaves only its own."""
    (tmp_path / "copy").mkdir()
    for end in ("part", "journal"):
        (tmp_path / "copy" / f".f.0123abcd.{end}").write_bytes(b"old")
        (tmp_path / "copy" / f".f.x.0123abcd.{end}").write_bytes(b"of another file")
    faulty.put("raw/f", noise(2 * PART_BYTES))
    faulty.faults = [Fault("denied", key="raw/f", times=99)]

    with pytest.raises(NotAllowed):
        sync(f"{faulty.url}/raw", tmp_path / "copy")

    left = sorted(os.listdir(tmp_path / "copy"))
    assert [name for name in left if "0123abcd" in name] == [".f.x.0123abcd.journal", ".f.x.0123abcd.part"]


@pytest.mark.parametrize("data", [noise(500), noise(PART_BYTES + 5)], ids=["small", "big"])
def test_what_nothing_could_verify_is_counted(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """A tag that says nothing, a file from disk to disk: neither is called verified; a plain tag is."""
    faulty.put("plain/f", data)
    faulty.opaque_tags = True
    faulty.put("opaque/f", data)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "f").write_bytes(data)

    places = (f"{faulty.url}/plain", f"{faulty.url}/opaque", tmp_path / "raw")
    told = [sync(place, tmp_path / f"copy-{number}") for number, place in enumerate(places)]

    assert [result.unverified_files for result in told] == [0, 1, 1]
    assert [result.unverified for result in told] == [(), ("f",), ("f",)]


@pytest.mark.parametrize("opaque", [False, True], ids=["plain tags", "tags that say nothing"])
def test_damaged_members_of_a_published_commit_are_put_again_by_repair(
    faulty: FaultyServer, tmp_path: Path, opaque: bool
) -> None:
    """A flipped bit, another size and a member that is gone, put whole or in parts; what is whole stays."""
    faulty.opaque_tags = opaque
    members = {"big-bad": noise(PART_BYTES + 9, 1), "big-ok": noise(PART_BYTES + 9, 2), "bit": noise(99, 3)}
    make_commit(tmp_path / "ds", members | {"gone": b"12", "ok": noise(99, 4), "size": b"123"})
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    for name in ("big-bad", "bit"):
        wrong = bytearray(members[name])
        wrong[50] ^= 1
        faulty.put(f"ds/{name}", bytes(wrong))
    faulty.put("ds/size", b"1")
    del faulty.objects["ds/gone"]
    events: list[Event] = []

    repaired = sync(tmp_path / "ds", f"{faulty.url}/ds", repair=True, on_event=events.append)
    again = sync(tmp_path / "ds", f"{faulty.url}/ds", repair=True)
    sync(f"{faulty.url}/ds", tmp_path / "copy")

    assert (repaired.moved_files, repaired.kept_files, repaired.up_to_date) == (4, 2, False)
    assert (again.moved_files, again.up_to_date, again.by_manifest) == (0, True, False)
    cautions = [event.message for event in events if isinstance(event, Caution)]
    assert cautions == [f"{faulty.url}/ds/{name} is damaged" for name in ("big-bad", "bit", "size")]
    verify_commit(tmp_path / "copy")


def test_a_damaged_published_commit_is_repaired_from_another_store(faulty: FaultyServer, tmp_path: Path) -> None:
    """No local file is needed to tell: the object is read where its tag does not say it."""
    make_commit(tmp_path / "ds", {"a": noise(500), "b": noise(PART_BYTES + 3)})
    sync(tmp_path / "ds", f"{faulty.url}/one")
    sync(tmp_path / "ds", f"{faulty.url}/two")
    faulty.put("two/a", noise(500, 9))

    result = sync(f"{faulty.url}/one", f"{faulty.url}/two", repair=True)

    assert (result.moved_files, result.kept_files) == (1, 1)
    assert faulty.objects["two/a"][0] == noise(500)


def test_repair_puts_no_damaged_copy_over_a_damaged_member(faulty: FaultyServer, tmp_path: Path) -> None:
    """The source is checked as well: what has the same damage as the object does not make it whole."""
    make_commit(tmp_path / "ds", {"a": noise(500)})
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    flip_bit(tmp_path / "ds" / "a", 5)
    faulty.put("ds/a", (tmp_path / "ds" / "a").read_bytes())

    with pytest.raises(IntegrityError, match="ds/a: bytes 0 to 500 have crc32c"):
        sync(tmp_path / "ds", f"{faulty.url}/ds", repair=True, settings=FEW)


@pytest.mark.parametrize("remote", [True, False], ids=["store", "disk"])
def test_a_torn_manifest_at_the_destination_is_replaced_by_repair(
    faulty: FaultyServer, tmp_path: Path, remote: bool
) -> None:
    """Without it the message names the way; another program's manifest.json is never replaced."""
    manifest = make_commit(tmp_path / "ds", {"a": noise(500), "b": b"2"}).to_bytes()
    destination = f"{faulty.url}/ds" if remote else str(tmp_path / "copy")
    sync(tmp_path / "ds", destination)

    def put(data: bytes) -> None:
        if remote:
            faulty.put(f"ds/{MANIFEST_NAME}", data)
        else:
            (tmp_path / "copy" / MANIFEST_NAME).write_bytes(data)

    put(b'{"name": "an extension"}')
    with pytest.raises(InputError, match="not a datakit manifest"):
        sync(tmp_path / "ds", destination, repair=True)
    put(manifest[:100])
    with pytest.raises(IntegrityError) as caught:
        sync(tmp_path / "ds", destination)
    result = sync(tmp_path / "ds", destination, repair=True)
    sync(destination, tmp_path / "back")

    assert "--repair" in str(caught.value.hint)
    assert (result.moved_files, result.kept_files, result.up_to_date) == (0, 2, False)
    assert files_below(tmp_path / "back") == files_below(tmp_path / "ds")


def test_a_member_that_is_gone_from_a_bucket_is_damage_with_the_command(faulty: FaultyServer, tmp_path: Path) -> None:
    """Exit code 4 and how to publish it again; that command mends it."""
    make_commit(tmp_path / "ds", {"a": noise(500), "big": noise(PART_BYTES + 1)})
    sync(tmp_path / "ds", f"{faulty.url}/ds")
    for name in ("a", "big"):
        sync(tmp_path / "ds", f"{faulty.url}/ds", repair=True)
        del faulty.objects[f"ds/{name}"]

        for destination in (tmp_path / f"copy-{name}", f"{faulty.url}/other-{name}"):
            with pytest.raises(
                IntegrityError, match=f"ds/{name} is missing, and the manifest there names it"
            ) as caught:
                sync(f"{faulty.url}/ds", destination)

            assert f"datakit sync --repair COPY {faulty.url}/ds" in str(caught.value.hint)


@pytest.mark.parametrize("where", ["disk", "store"])
def test_derived_members_are_replaced_by_a_renewal(where: str, tmp_path: Path, bucket: str) -> None:
    """Side files of another reader change their bytes under their names; a member that is data does not."""
    place = str(tmp_path / "there") if where == "disk" else f"{bucket}/ds"
    for text in (b"one", b"other"):
        with commit(tmp_path / "ds", kind="dataset", name="ds") as staging:
            staging.write(".nv-meta/.info.json", text)
            staging.write(f"data-{text.decode()}", text)
            staging.about["derived"] = [".nv-meta/.info.json"]
        result = sync(tmp_path / "ds", place)
        sync(place, tmp_path / "back")

    assert result.moved_files == 2
    assert (tmp_path / "back" / ".nv-meta" / ".info.json").read_bytes() == b"other"
    assert verify_commit(tmp_path / "back") == read_manifest(tmp_path / "ds")
    assert sync(tmp_path / "ds", place).up_to_date
