"""What `storage/moves` and `compare` promise: few questions, an honest plan, refusals before anything moves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES, FileEntry
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import InputError, IntegrityError, NoSpace, NotFound, Refused, UsageError
from datakit.events import Caution, Event
from datakit.storage.moves import SyncPlan, SyncSettings, plan_sync
from datakit.storage.objects import LocalStore
from datakit.storage.sync import sync
from support.commits import files_below, flip_bit, make_commit, noise
from support.faulty import Fault, FaultyServer
from support.s3server import S3Server


def verbs(plan: SyncPlan) -> dict[str, str]:
    return {action.name: action.verb for action in plan.actions}


def asked(plan: SyncPlan) -> str:
    return str(plan.origin.store.requests + plan.target.store.requests)


def test_a_plan_changes_nothing(bucket: str, tmp_path: Path) -> None:
    """Planning writes no file, no lock and no object."""
    make_commit(tmp_path / "ds", {"a": b"1"})

    plan = plan_sync(tmp_path / "ds", f"{bucket}/ds")
    plan_back = plan_sync(tmp_path / "ds", tmp_path / "copy")

    assert verbs(plan) == {"a": "put"}
    assert verbs(plan_back) == {"a": "fetch"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds"]
    assert plan_sync(tmp_path / "ds", f"{bucket}/ds").count("put") == 1


def test_a_plan_says_how_many_requests_its_run_makes(bucket: str, tmp_path: Path) -> None:
    """Up and down, with parts, with the manifest: what was announced is what is counted."""
    members = {"big": noise(PART_BYTES + 1), "small": b"1", "empty": b""}
    make_commit(tmp_path / "ds", members)
    up = plan_sync(tmp_path / "ds", f"{bucket}/ds")
    planning = up.target.store.requests.total
    result = sync(tmp_path / "ds", f"{bucket}/ds")
    down = plan_sync(f"{bucket}/ds", tmp_path / "copy")
    planning_down = down.origin.store.requests.total

    result_down = sync(f"{bucket}/ds", tmp_path / "copy")

    assert up.requests == (1 + 1 + 2 + 2) + 1 + 1 + 1
    assert result.requests.total == planning + up.requests
    assert down.requests == 2 + 1
    assert result_down.requests.total == planning_down + down.requests
    assert up.bytes_to_move == down.bytes_to_move == PART_BYTES + 2


def test_an_unchanged_commit_costs_its_manifest_and_a_listing(bucket: str, tmp_path: Path) -> None:
    """A destination is listed, since somebody may have taken a member away; of a source the manifest is enough."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "ds", f"{bucket}/ds")
    sync(f"{bucket}/ds", tmp_path / "copy")

    plans = [plan_sync(tmp_path / "ds", f"{bucket}/ds"), plan_sync(f"{bucket}/ds", tmp_path / "copy")]

    assert [asked(plan) for plan in plans] == ["1 GET, 1 LIST", "1 GET"]
    assert all(plan.up_to_date and plan.requests == 0 for plan in plans)


def test_unchanged_files_cost_one_listing(bucket: str, tmp_path: Path) -> None:
    """Sizes and tags of the listing are compared with the local bytes."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(b"{}\n")
    (tmp_path / "raw" / "b.jsonl").write_bytes(noise(PART_BYTES + 9))
    sync(tmp_path / "raw", f"{bucket}/raw")

    plan = plan_sync(tmp_path / "raw", f"{bucket}/raw")
    back = plan_sync(f"{bucket}/raw", tmp_path / "raw")

    assert asked(plan) == "1 LIST"
    assert verbs(plan) == {"a.jsonl": "keep", "b.jsonl": "keep"}
    assert asked(back) == "1 GET, 1 LIST"
    assert verbs(back) == {"a.jsonl": "keep", "b.jsonl": "keep"}


def test_files_of_equal_size_and_time_are_compared_by_their_bytes(bucket: str, tmp_path: Path) -> None:
    """Aws s3 sync skips exactly this change."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(b"{1}\n")
    sync(tmp_path / "raw", f"{bucket}/raw")
    sync(f"{bucket}/raw", tmp_path / "copy")
    flip_bit(tmp_path / "raw" / "a.jsonl", 1)

    plan = plan_sync(tmp_path / "raw", f"{bucket}/raw")
    back = plan_sync(f"{bucket}/raw", tmp_path / "raw")
    across = plan_sync(tmp_path / "raw", tmp_path / "copy")

    assert [verbs(plan), verbs(back), verbs(across)] == [{"a.jsonl": "put"}, {"a.jsonl": "fetch"}, {"a.jsonl": "fetch"}]


def test_another_commit_at_the_destination_is_refused(bucket: str, tmp_path: Path) -> None:
    """Kind and name of both are said, at a remote and at a local destination."""
    make_commit(tmp_path / "one", {"a": b"1"})
    make_commit(tmp_path / "two", {"a": b"2"}, kind="adapter")
    sync(tmp_path / "one", f"{bucket}/x")
    sync(tmp_path / "one", tmp_path / "x")

    for place in (f"{bucket}/x", tmp_path / "x"):
        with pytest.raises(Refused, match="holds the dataset one, not the adapter two"):
            plan_sync(tmp_path / "two", place)


def test_a_member_never_changes_its_bytes_at_the_destination(bucket: str, tmp_path: Path) -> None:
    """The same kind and name with other bytes under a member's name is refused."""
    make_commit(tmp_path / "one" / "ds", {"a": b"1"})
    make_commit(tmp_path / "two" / "ds", {"a": b"2"})
    sync(tmp_path / "one" / "ds", f"{bucket}/ds")
    sync(tmp_path / "one" / "ds", tmp_path / "copy")

    for place in (f"{bucket}/ds", tmp_path / "copy"):
        with pytest.raises(Refused, match="other bytes under its name"):
            plan_sync(tmp_path / "two" / "ds", place)


def test_what_no_manifest_names_is_in_the_way(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """Somebody's own file that has the name of a member is neither overwritten nor taken for it."""
    make_commit(tmp_path / "ds", {"notes.txt": b"members"})
    s3.put(f"{bucket.removeprefix('s3://')}/ds/notes.txt", b"my notes")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_bytes(b"my note")

    for place in (f"{bucket}/ds", tmp_path / "copy"):
        with pytest.raises(Refused, match="in the way"):
            plan_sync(tmp_path / "ds", place)


def test_files_do_not_go_where_a_commit_stands(bucket: str, tmp_path: Path) -> None:
    """They would make it something that its manifest does not say."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "ds", f"{bucket}/ds")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "b").write_bytes(b"2")

    for place in (f"{bucket}/ds", tmp_path / "ds"):
        with pytest.raises(Refused, match="holds a commit"):
            plan_sync(tmp_path / "raw", place)


def test_a_budget_counts_what_is_there_and_what_would_come(bucket: str, tmp_path: Path) -> None:
    """One byte too many is refused before anything moves; exactly enough is enough."""
    size = 1500 + len(make_commit(tmp_path / "ds", {"a": bytes(1000), "b": bytes(500)}).to_bytes())
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "ds-0123abcd.tar").write_bytes(bytes(100))

    for place in (tmp_path / "copy", f"{bucket}/ds"):
        with pytest.raises(NoSpace, match="over its budget of") as caught:
            plan_sync(tmp_path / "ds", place, budget=size - 1)
        assert caught.value.exit_code == 5
    with pytest.raises(NoSpace):
        plan_sync(tmp_path / "ds", tmp_path / "copy", budget=size + 99)
    plan = plan_sync(tmp_path / "ds", tmp_path / "copy", budget=f"{size + 100}B")

    assert plan.bytes_to_move == 1500
    assert files_below(tmp_path / "copy") == {"ds-0123abcd.tar": bytes(100)}


def test_a_budget_counts_the_manifest(bucket: str, tmp_path: Path) -> None:
    """What fits once fits again: the very bytes that lie there in the end, and one fewer is refused at once."""
    make_commit(tmp_path / "ds", {"a": bytes(1000), "b": bytes(24)})
    whole = sum(map(len, files_below(tmp_path / "ds").values()))

    for target in (f"{bucket}/ds", tmp_path / "copy"):
        with pytest.raises(NoSpace, match="over its budget"):
            plan_sync(tmp_path / "ds", target, budget=whole - 1)
        sync(tmp_path / "ds", target, budget=whole)
        assert sync(tmp_path / "ds", target, budget=whole).up_to_date
        with pytest.raises(NoSpace, match="over its budget"):
            plan_sync(tmp_path / "ds", target, budget=whole - 1)


@pytest.mark.parametrize("bound", [-1, -5])
def test_a_negative_bound_of_deletions_is_no_number(tmp_path: Path, bound: int) -> None:
    """Wrong usage, not a refusal of what was never asked."""
    make_commit(tmp_path / "ds", {"a": b"1"})

    with pytest.raises(UsageError, match=f"--max-delete {bound} is no number of files"):
        plan_sync(tmp_path / "ds", tmp_path / "copy", delete=True, max_delete=bound)


def test_a_disk_that_is_too_small_is_said_before_the_first_byte(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """A manifest of 16 TiB: the disk says how much is left, and no directory is made."""
    size_bytes = 2**44
    entry = FileEntry("a", size_bytes, "0" * 64, "0" * 32, ("00000000",) * (size_bytes // PART_BYTES))
    manifest = Manifest("dataset", "ds", (entry,), {})
    s3.put(f"{bucket.removeprefix('s3://')}/ds/{MANIFEST_NAME}", manifest.to_bytes())

    with pytest.raises(NoSpace, match=r"needs 16\.0 TiB and its disk has"):
        plan_sync(f"{bucket}/ds", tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_deleting_needs_a_bound_and_keeps_it(bucket: str, tmp_path: Path) -> None:
    """Without --max-delete it is wrong usage; with too small a one it is refused, and the first names are said."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    (tmp_path / "copy").mkdir()
    for name in ("x", "y"):
        (tmp_path / "copy" / name).write_bytes(b"")

    with pytest.raises(UsageError, match="needs a bound"):
        plan_sync(tmp_path / "ds", tmp_path / "copy", delete=True)
    with pytest.raises(Refused, match=r"2 files would be deleted, more than --max-delete 1 \(first: x, y\)"):
        plan_sync(tmp_path / "ds", tmp_path / "copy", delete=True, max_delete=1)
    plan = plan_sync(tmp_path / "ds", tmp_path / "copy", delete=True, max_delete=2)

    assert verbs(plan) == {"a": "fetch", "x": "delete", "y": "delete"}


def test_without_delete_nothing_is_deleted(tmp_path: Path) -> None:
    """What the destination holds besides is left alone, and counted."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "ds", tmp_path / "copy")
    (tmp_path / "copy" / "x").write_bytes(b"")
    make_commit(tmp_path / "ds", {"a": b"1", "b": b"2"})

    plan = plan_sync(tmp_path / "ds", tmp_path / "copy")

    assert verbs(plan) == {"a": "keep", "b": "fetch", "x": "leave"}


def test_one_file_goes_under_its_name_or_the_given_one(bucket: str, tmp_path: Path) -> None:
    """Into a folder that exists or ends with a slash; otherwise to the very name."""
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    (tmp_path / "folder").mkdir()

    into = plan_sync(tmp_path / "a.jsonl", f"{bucket}/raw/")
    named = plan_sync(tmp_path / "a.jsonl", f"{bucket}/raw/b.jsonl")
    local = plan_sync(tmp_path / "a.jsonl", tmp_path / "folder")
    renamed = plan_sync(tmp_path / "a.jsonl", tmp_path / "new.jsonl")

    assert (into.destination, verbs(into)) == (f"{bucket}/raw/a.jsonl", {"a.jsonl": "put"})
    assert (named.destination, verbs(named)) == (f"{bucket}/raw/b.jsonl", {"b.jsonl": "put"})
    assert (local.destination, verbs(local)) == (str(tmp_path / "folder" / "a.jsonl"), {"a.jsonl": "fetch"})
    assert (renamed.destination, verbs(renamed)) == (str(tmp_path / "new.jsonl"), {"new.jsonl": "fetch"})


def test_one_file_goes_into_a_folder_of_a_bucket_and_never_into_a_commit(bucket: str, tmp_path: Path) -> None:
    """A place below which objects lie is a folder without a slash too; one with a manifest takes no file."""
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "a.jsonl", f"{bucket}/top/chat/b.jsonl")
    sync(tmp_path / "ds", f"{bucket}/ds")

    plan = plan_sync(tmp_path / "a.jsonl", f"{bucket}/top/chat")
    beside = plan_sync(tmp_path / "a.jsonl", f"{bucket}/top/chatter")

    assert (plan.destination, verbs(plan)) == (f"{bucket}/top/chat/a.jsonl", {"a.jsonl": "put"})
    assert beside.destination == f"{bucket}/top/chatter"
    with pytest.raises(Refused, match="lies inside the dataset ds, a commit"):
        plan_sync(tmp_path / "a.jsonl", f"{bucket}/ds")


def test_whether_a_bucket_has_a_folder_is_one_request(faulty: FaultyServer, tmp_path: Path) -> None:
    """However much lies in it or beside it; where it may not be asked, what the name is taken for is said."""
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    for number in range(2_100):
        faulty.put(f"raw/{number:04}.jsonl", b"x")
    said: list[Event] = []

    beside = plan_sync(tmp_path / "a.jsonl", f"{faulty.url}/raw/new.jsonl", on_event=said.append)
    beside_lists = [key for method, key, _ in faulty.log if (method, key) == ("GET", "")]
    faulty.log.clear()
    inside = plan_sync(tmp_path / "a.jsonl", f"{faulty.url}/raw", on_event=said.append)
    inside_lists = [key for method, key, _ in faulty.log if (method, key) == ("GET", "")]
    silent = not said
    faulty.faults = [Fault("denied", method="GET", key="", times=9)]
    unasked = plan_sync(tmp_path / "a.jsonl", f"{faulty.url}/raw", on_event=said.append)

    assert (beside.destination, inside.destination) == (f"{faulty.url}/raw/new.jsonl", f"{faulty.url}/raw/a.jsonl")
    assert len(beside_lists) == len(inside_lists) == 1
    assert silent
    assert unasked.destination == f"{faulty.url}/raw"
    assert [f"For a folder, write {faulty.url}/raw/"] == [event.hint for event in said if isinstance(event, Caution)]


def test_one_file_for_a_store_that_is_only_read_is_told_so(tmp_path: Path) -> None:
    """Not that a folder there is missing, which nobody could make."""
    (tmp_path / "a.jsonl").write_bytes(b"{}")

    with pytest.raises(UsageError, match="reads from such stores, and does not write to them"):
        sync(tmp_path / "a.jsonl", "memory://b/deep/new.jsonl")


def test_one_file_needs_a_name_at_a_bare_bucket(bucket: str, tmp_path: Path) -> None:
    """A bucket is not a file."""
    (tmp_path / "a.jsonl").write_bytes(b"{}")

    with pytest.raises(UsageError, match="names no object"):
        plan_sync(tmp_path / "a.jsonl", bucket)


def test_nothing_at_the_source_is_not_found(bucket: str, tmp_path: Path) -> None:
    """A missing path, an empty directory, an empty prefix, an empty bucket."""
    (tmp_path / "empty").mkdir()

    for source in (tmp_path / "absent", tmp_path / "empty", f"{bucket}/nothing", bucket):
        with pytest.raises(NotFound) as caught:
            plan_sync(source, tmp_path / "copy")
        assert caught.value.exit_code == 2


def test_a_place_is_not_synced_with_itself(tmp_path: Path) -> None:
    """It would lock against itself."""
    make_commit(tmp_path / "ds", {"a": b"1"})

    with pytest.raises(UsageError, match="the same place"):
        plan_sync(tmp_path / "ds", tmp_path / "ds")


def test_a_file_in_place_of_the_destination_is_refused(tmp_path: Path) -> None:
    """A commit cannot go into a file."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Refused, match="not a directory"):
        plan_sync(tmp_path / "ds", tmp_path / "file")


def test_a_manifest_from_a_store_cannot_write_elsewhere(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """Whoever can write to the bucket cannot write to our disk outside the destination."""
    manifest = make_commit(tmp_path / "ds", {"aaaa": b"1"}).to_bytes()
    s3.put(f"{bucket.removeprefix('s3://')}/ds/{MANIFEST_NAME}", manifest.replace(b'"aaaa"', b'"../a"'))

    with pytest.raises(IntegrityError, match="does not stay inside"):
        plan_sync(f"{bucket}/ds", tmp_path / "copy")


def test_a_manifest_that_is_none_is_said_with_its_place(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """Another program's manifest.json is not a commit, and is not silently taken for files."""
    s3.put(f"{bucket.removeprefix('s3://')}/ds/{MANIFEST_NAME}", b'{"name": "an extension"}')

    with pytest.raises(InputError, match=re.escape(f"{bucket}/ds/{MANIFEST_NAME}")):
        plan_sync(f"{bucket}/ds", tmp_path / "copy")


def test_repair_reads_what_is_there(bucket: str, tmp_path: Path) -> None:
    """Without it a local member is believed by its size; with it damage is found and named."""
    make_commit(tmp_path / "ds", {"a": noise(5000), "b": noise(100)})
    sync(tmp_path / "ds", f"{bucket}/ds")
    flip_bit(tmp_path / "ds" / "a", 1234)

    quick = plan_sync(f"{bucket}/ds", tmp_path / "ds")
    thorough = plan_sync(f"{bucket}/ds", tmp_path / "ds", repair=True)

    assert quick.up_to_date
    assert verbs(thorough) == {"a": "fetch", "b": "keep"}
    assert thorough.damaged == ("a",)


def test_settings_are_checked_where_they_are_written() -> None:
    """A part size that no checksum covers is refused at once."""
    with pytest.raises(UsageError, match="multiple of 16 MiB"):
        SyncSettings(part_size="10MB")

    assert SyncSettings(part_size="32MiB").knobs(durable=True).part_bytes == 2 * PART_BYTES


def test_nothing_goes_inside_a_commit(tmp_path: Path) -> None:
    """A commit, a folder and a file are refused below it: it would hold what its manifest does not name."""
    make_commit(tmp_path / "outer", {"a": b"1"})
    make_commit(tmp_path / "ds", {"b": b"2"})
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "f").write_bytes(b"3")

    for source in ("outer", "ds", "raw", "raw/f"):
        with pytest.raises(Refused, match="lies inside the dataset outer"):
            plan_sync(tmp_path / source, tmp_path / "outer" / "sub" / "x")

    assert sorted(os.listdir(tmp_path / "outer")) == ["a", MANIFEST_NAME]


def test_a_member_of_another_size_in_a_store_names_the_way_out(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The manifest there names it, so it is damage, and --repair puts it again."""
    make_commit(tmp_path / "ds", {"a": noise(500)})
    sync(tmp_path / "ds", f"{bucket}/ds")
    s3.put(f"{bucket.removeprefix('s3://')}/ds/a", b"xyz")
    make_commit(tmp_path / "ds", {"a": noise(500), "b": b"2"})

    with pytest.raises(IntegrityError, match="a at the destination has 3 bytes, the manifest there says 500") as caught:
        plan_sync(tmp_path / "ds", f"{bucket}/ds")

    assert "--repair" in str(caught.value.hint)


def test_what_is_no_file_is_said_to_be_there(tmp_path: Path) -> None:
    """A named pipe is neither absent nor a folder; reading it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")

    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="pipe is neither a file nor a folder"):
            plan_sync(place, tmp_path / "copy")
    with pytest.raises(InputError, match="pipe is neither a file nor a folder"):
        LocalStore(tmp_path / "pipe").list("")
