"""What `storage/multipart` promises: an upload goes on where one has ended, and no two writers make one object."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datakit.data.digest import PART_BYTES
from datakit.errors import (
    DatakitError,
    IntegrityError,
    Interrupted,
    LimitExceeded,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnavailable,
)
from datakit.storage.access import StoreOptions
from datakit.storage.etags import multipart
from datakit.storage.limits import Gate, Limits
from datakit.storage.multipart import STALE_S
from datakit.storage.objects import ObjectInfo, Part
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.store import ObstoreStore
from datakit.storage.sync import sync
from datakit.storage.transfer import Knobs
from datakit.storage.upload import Put, upload
from support.commits import make_commit
from support.faulty import Fault, FaultyServer
from support.memory import MemoryBody
from support.process import kill, run_code, start_code

PART = 50_000
DATA = random.Random(3).randbytes(10 * PART + 77)
OTHER = random.Random(4).randbytes(len(DATA))
PARTS = 11


def store_of(server: FaultyServer) -> ObstoreStore:
    return ObstoreStore(server.url, options=StoreOptions.from_environment(server.env))


def body(data: bytes = DATA) -> MemoryBody:
    return MemoryBody(data, part_bytes=PART)


def put(
    server: FaultyServer, data: bytes = DATA, *, create: bool = False, retries: int = 4, connections: int = 3
) -> ObjectInfo:
    """Put it, with patience that does not wait."""
    patient = PatientStore(store_of(server), pace=Pace(retries=retries, fraction=lambda: 0.0))
    return patient.upload("k", body(data), connections=connections, create=create)


def leave(server: FaultyServer, data: bytes = DATA, *, parts: int, key: str = "k", wrong: int | None = None) -> str:
    """An upload that somebody has not ended: its first parts, one of them perhaps with other bytes."""
    name = server.uploads.begin(key, server.now_s)
    for part in body(data).parts():
        if part.number <= parts:
            server.uploads.send(name, part.number, bytes(len(part.data)) if part.number == wrong else part.data)
    return name


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another process does."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.005)


def sent(server: FaultyServer) -> int:
    """Parts that were put."""
    return len(server.asked("PUT", "k"))


def test_an_upload_that_nobody_left_costs_a_list_and_its_parts(faulty: FaultyServer) -> None:
    """And its object has the tag of its parts."""
    made = put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert made == ObjectInfo("k", len(DATA), multipart(part.md5 for part in body().parts()))
    assert [method for method, _, _ in faulty.log] == ["UPLOADS", "POST", *["PUT"] * PARTS, "POST"]
    assert faulty.uploads == {}


@pytest.mark.parametrize("page_parts", [2, 1000])
@pytest.mark.parametrize("parts", [0, 1, 7, PARTS])
def test_only_the_missing_parts_are_sent(faulty: FaultyServer, parts: int, page_parts: int) -> None:
    """Whatever the other left, also where the list of parts comes in pages."""
    faulty.uploads.page_parts = page_parts
    leave(faulty, parts=parts)

    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS - parts
    assert faulty.uploads == {}


def test_the_upload_that_has_most_is_continued(faulty: FaultyServer) -> None:
    """Of several that fit; those of longer keys are none."""
    leave(faulty, parts=2)
    leave(faulty, parts=5)
    leave(faulty, parts=9, key="k.index")

    put(faulty)

    assert sent(faulty) == PARTS - 5
    assert sorted(each.key for each in faulty.uploads.values()) == ["k", "k.index"]


def test_a_part_with_other_bytes_is_sent_again(faulty: FaultyServer) -> None:
    """Of an upload whose first parts fit."""
    leave(faulty, parts=4, wrong=3)

    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS - 3


@pytest.mark.parametrize(
    "make",
    [
        lambda server: leave(server, OTHER, parts=3),
        lambda server: leave(server, DATA + b"longer", parts=PARTS),
    ],
    ids=["other bytes", "another size"],
)
def test_an_upload_that_does_not_fit_is_left_for_a_day(
    faulty: FaultyServer, make: Callable[[FaultyServer], str]
) -> None:
    """It may be a live one of another machine; then it is aborted, by the store's own clock."""
    name = make(faulty)

    faulty.now_s += STALE_S - 1
    put(faulty)
    left = set(faulty.uploads)
    faulty.now_s += 1
    put(faulty)

    assert left == {name}
    assert faulty.uploads == {}
    assert sent(faulty) == 2 * PARTS


@pytest.mark.parametrize("begun_with", ["ChecksumAlgorithm>CRC32", "StorageClass>GLACIER"])
@pytest.mark.parametrize("parts", [0, 3])
def test_an_upload_that_another_tool_began_otherwise_is_left(faulty: FaultyServer, parts: int, begun_with: str) -> None:
    """S3 refuses parts without checksums in one that was begun with them; a storage class is the object's for good."""
    name = leave(faulty, parts=parts)
    faulty.uploads[name].begun_with = f"<{begun_with}</{begun_with.partition('>')[0]}>"

    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS
    assert set(faulty.uploads) == {name}


def test_an_old_upload_that_fits_is_continued(faulty: FaultyServer) -> None:
    """However long ago its machine was lost."""
    leave(faulty, parts=6)
    faulty.now_s += 30 * STALE_S

    put(faulty)

    assert sent(faulty) == PARTS - 6


@pytest.mark.parametrize("tags", ["opaque_tags", "sealed"])
def test_a_tag_that_is_no_md5_proves_no_part(faulty: FaultyServer, tags: str) -> None:
    """All are sent, in an upload of one's own."""
    setattr(faulty, tags, True)
    leave(faulty, parts=6)

    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS


@pytest.mark.parametrize("kind", ["denied", "not-implemented"])
@pytest.mark.parametrize("method", ["UPLOADS", "PARTS"])
def test_a_store_that_lists_no_uploads_takes_them(faulty: FaultyServer, kind: Any, method: str) -> None:
    """The upload is a new one, and whole; what another left stays."""
    name = leave(faulty, parts=6)
    faulty.faults = [Fault(kind, method=method, times=99)]

    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS
    assert set(faulty.uploads) == {name}
    assert len(faulty.asked(method)) == 1  # what a store has not, it has not at the next try either


def test_a_store_that_cannot_be_had_is_said_at_once(faulty: FaultyServer) -> None:
    """Listing has the patience of the other requests, and ends the upload as they do."""
    faulty.faults = [Fault("busy", method="UPLOADS", times=99)]

    with pytest.raises(StoreUnavailable):
        put(faulty, retries=2)

    assert len(faulty.asked("UPLOADS")) == 3
    assert faulty.asked("POST") == []


@pytest.mark.parametrize("kind", ["busy", "many", "broken", "hang-up", "lost-answer", "flip"])
def test_each_part_has_its_own_patience(faulty: FaultyServer, kind: Any) -> None:
    """Three faults each for half of the parts: only those parts are sent again, and every try is counted."""
    faulty.faults = [Fault(kind, method="PUT", times=9)]
    store = store_of(faulty)
    patient = PatientStore(store, pace=Pace(retries=9, fraction=lambda: 0.0))

    patient.upload("k", body(), connections=3)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS + 9
    assert (store.requests.put, store.requests.list) == (PARTS + 9 + 2, 1)
    assert faulty.uploads == {}


@pytest.mark.parametrize(
    ("kind", "after"),
    [*((kind, after) for kind in ("busy", "broken", "hang-up", "lost-answer") for after in (0, 1)), ("late-error", 1)],
)
@pytest.mark.parametrize("create", [True, False], ids=["create", "replace"])
def test_begin_and_end_survive_each_fault(faulty: FaultyServer, kind: Any, after: int, create: bool) -> None:
    """A lost answer too: the upload that nobody heard of is used, the object that nobody heard of is found.

    S3 may find only while it joins the parts that it cannot, and says so below a 200.
    """
    faulty.faults = [Fault(kind, method="POST", times=1, after=after)]

    try:
        put(faulty, create=create)
    except Refused:  # by the object of the first try, which whoever creates has to look at
        assert (kind, after, create) == ("lost-answer", 1, True)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS
    assert faulty.uploads == {}


def test_a_new_object_is_not_put_over_another(faulty: FaultyServer) -> None:
    """Which appeared while the parts were sent: the store decides, and no part stays behind."""
    faulty.put("k", b"another's")

    with pytest.raises(Refused, match="bkt/k exists already"):
        put(faulty, create=True)

    assert faulty.objects["k"][0] == b"another's"
    assert faulty.uploads == {}


@pytest.mark.parametrize("provider", [None, "huawei-obs"])
def test_a_store_without_conditions_is_asked_what_is_there(faulty: FaultyServer, provider: str | None) -> None:
    """Known to keep none, or answering 501: a look right before the end has to do."""
    faulty.conditional_ends = False
    options = dataclasses.replace(
        StoreOptions.from_environment(faulty.env), provider=provider, virtual_hosted=False if provider else None
    )
    store = ObstoreStore(faulty.url, options=options)

    store.upload("k", body(), connections=3, create=True)
    with pytest.raises(Refused, match="bkt/k exists already"):
        store.upload("k", body(OTHER), connections=3, create=True)

    assert faulty.objects["k"][0] == DATA
    assert faulty.uploads == {}
    assert store.requests.put == 2 * (PARTS + 2) + (-1 if provider else 1)


class Meddling(MemoryBody):
    """A body that lets something happen before its last part is read."""

    def __init__(self, data: bytes, act: Callable[[], object]) -> None:
        super().__init__(data, part_bytes=PART)
        self.act: Callable[[], object] | None = act

    def parts(self) -> Any:
        for part in super().parts():
            if part.number == PARTS and self.act is not None:
                self.act, act = None, self.act
                act()
            yield part


def test_a_part_that_another_put_over_is_refused_at_the_end(faulty: FaultyServer) -> None:
    """The end names the tag of each part: a new upload begins, and the object has one writer's bytes alone."""

    def put_over() -> None:
        (name,) = faulty.uploads
        faulty.uploads.send(name, 2, OTHER[PART : 2 * PART])

    store_of(faulty).upload("k", Meddling(DATA, put_over), connections=1)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == 2 * PARTS
    assert faulty.uploads == {}


def test_an_upload_that_another_aborted_begins_anew(faulty: FaultyServer) -> None:
    """With all its parts."""
    store_of(faulty).upload("k", Meddling(DATA, faulty.uploads.clear), connections=1)

    assert faulty.objects["k"][0] == DATA
    assert faulty.uploads == {}


def test_an_upload_that_another_completed_is_done(faulty: FaultyServer) -> None:
    """Both sent the same bytes: the object is there, and is not sent again."""
    made = store_of(faulty).upload("k", Meddling(DATA, lambda: put(faulty)), connections=1)

    assert made.etag == faulty.objects["k"][1]
    assert sent(faulty) == PARTS + 1  # the last part, in vain
    assert faulty.uploads == {}


def test_uploads_that_are_ended_again_and_again_are_given_up(faulty: FaultyServer) -> None:
    """With a sentence, not in a circle."""

    class Ended(MemoryBody):
        def parts(self) -> Any:
            faulty.uploads.clear()
            yield from super().parts()

    with pytest.raises(Refused, match="was ended, or a part of it put over, by another"):
        store_of(faulty).upload("k", Ended(DATA, part_bytes=PART), connections=1)

    assert "k" not in faulty.objects


def test_two_who_join_one_upload_with_other_bytes_both_end_whole(faulty: FaultyServer) -> None:
    """They put over each other's parts, in one upload that had none; each object that appears is one writer's."""
    leave(faulty, parts=0)
    seen: list[bytes] = []
    both = threading.Barrier(2, timeout=60)

    def run(data: bytes) -> None:
        store_of(faulty).upload("k", Meddling(data, both.wait), connections=1)
        seen.append(faulty.objects["k"][0])

    threads = [threading.Thread(target=run, args=(data,)) for data in (DATA, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 2
    assert set(seen) <= {DATA, OTHER}
    assert faulty.objects["k"][0] in (DATA, OTHER)


@pytest.mark.parametrize(
    ("kind", "error"), [("busy", StoreUnavailable), ("hang-up", StoreUnavailable), ("expired", NotAllowed)]
)
@pytest.mark.parametrize("setting", ["", "opaque_tags", "unlisted"])
def test_what_can_be_continued_is_left_and_all_else_is_aborted(
    faulty: FaultyServer, kind: Any, error: type[DatakitError], setting: str
) -> None:
    """Where uploads are listed and parts recognised the same command sends the rest; elsewhere no part stays behind."""
    faulty.faults = [Fault(kind, method="PUT", times=99, after=4)]
    if setting == "opaque_tags":
        faulty.opaque_tags = True
    if setting == "unlisted":
        faulty.faults.append(Fault("denied", method="UPLOADS", times=99))

    with pytest.raises(error):
        put(faulty, retries=1, connections=1)
    left = len(faulty.uploads)
    faulty.faults, faulty.log = faulty.faults[1:], []
    put(faulty)

    assert left == (0 if setting else 1)
    assert sent(faulty) == (PARTS if setting else PARTS - 4)
    assert faulty.objects["k"][0] == DATA
    assert faulty.uploads == {}


def test_a_limit_that_is_reached_leaves_what_is_sent(faulty: FaultyServer) -> None:
    """A higher one continues: of money too, which it costs nothing to abort with."""
    options = dataclasses.replace(StoreOptions.from_environment(faulty.env), put_per_10k=10_000.0)
    store = ObstoreStore(faulty.url, options=options)
    store.limit(Gate(Limits(max_cost=6)))

    with pytest.raises(LimitExceeded):
        store.upload("k", body(), connections=1)
    put(faulty)

    assert faulty.objects["k"][0] == DATA
    assert sent(faulty) == PARTS
    assert faulty.uploads == {}


def test_a_damaged_source_leaves_nothing(faulty: FaultyServer) -> None:
    """Its parts would be of no use to the next try; the store may be busy for a moment meanwhile."""
    faulty.faults = [Fault("busy", method="DELETE", times=2)]

    class Damaged(MemoryBody):
        def parts(self) -> Any:
            yield from super().parts()
            raise IntegrityError("damaged", hint="none")

    with pytest.raises(IntegrityError, match="damaged"):
        store_of(faulty).upload("k", Damaged(DATA, part_bytes=PART), connections=2)

    assert faulty.uploads == {}
    assert "k" not in faulty.objects


def test_a_stop_is_heard_between_parts_that_are_not_sent(faulty: FaultyServer) -> None:
    """Reading on through what the store has already would go on for minutes."""
    leave(faulty, parts=PARTS - 1)
    pace = Pace(retries=1)

    class Stopped(MemoryBody):
        def parts(self) -> Any:
            for part in super().parts():
                assert part.number <= 2
                if part.number == 2:
                    pace.stop()
                yield part

    with pytest.raises(Interrupted):
        PatientStore(store_of(faulty), pace=pace).upload("k", Stopped(DATA, part_bytes=PART), connections=1)

    assert len(faulty.uploads) == 1


# from here on as `sync` does it: files, in parts of 16 MiB, processes that are killed

FILE = random.Random(6).randbytes(2**20) * 64 + b"end"
FILE_PARTS = 5
UPLOAD = """
import sys
from pathlib import Path
from datakit.storage.retry import Pace
from datakit.storage.store import open_location
from datakit.storage.sync import sync
from datakit.storage.transfer import Knobs
from datakit.storage.upload import Put, upload
path = Path(sys.argv[1])
print("ready", flush=True)
create = sys.argv[2] == "create"
puts = [Put(path, "k", path.stat().st_size, create=create)]
upload(open_location("s3://bkt").store, puts, knobs=Knobs(), pace=Pace(retries=6), on_bytes=print)
"""


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(FILE)
    return path


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_killed_process_is_continued_by_the_same_command(
    faulty: FaultyServer, big: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Kill -9 while some parts are under way: the others are not sent again, and nothing is left at the store."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    faulty.faults = [Fault("hold", method="PUT", times=99, after=after)]
    process = start_code(UPLOAD, big, "create")
    until(lambda: sent(faulty) == min(after + 4, FILE_PARTS) and kept_by(faulty) == after)
    kill(process)
    faulty.faults, faulty.log = [], []

    run_code(UPLOAD, big, "create")

    assert sent(faulty) == FILE_PARTS - after
    assert faulty.objects["k"][0] == FILE
    assert len(faulty.uploads) == 0
    faulty.released.set()


def test_a_killed_sync_of_a_commit_goes_on(faulty: FaultyServer, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checkpoint is written back: its large member is continued, and the manifest comes last."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    commit = big.parent / "step-00000001"
    make_commit(commit, {"adapter_model.safetensors": FILE, "state.json": b"{}"})
    code = "import sys; from datakit.storage.sync import sync; print(1, flush=True); sync(sys.argv[1], sys.argv[2])"
    key, dest = f"{commit.name}/adapter_model.safetensors", f"{faulty.url}/{commit.name}"
    faulty.faults = [Fault("hold", method="PUT", key=key, times=99, after=2)]
    process = start_code(code, commit, dest)
    until(lambda: kept_by(faulty) == 2)
    kill(process)
    faulty.faults, faulty.log = [], []

    again = sync(commit, dest)

    assert len(faulty.asked("PUT", key)) == FILE_PARTS - 2
    assert again.moved_files == 2
    assert faulty.objects[key][0] == FILE
    assert sync(commit, dest).up_to_date
    assert len(faulty.uploads) == 0
    faulty.released.set()


def test_two_processes_with_other_bytes_end_with_the_bytes_of_one(
    faulty: FaultyServer, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same time, under one key: both end well, the object is whole, and no part stays behind."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    other = tmp_path / "other"
    other.write_bytes(FILE[:PART_BYTES] + FILE[PART_BYTES + 1 :] + b"!")

    processes = [start_code(UPLOAD, path, "replace") for path in (big, other)]
    for process in processes:
        process.communicate(timeout=120)

    assert [process.returncode for process in processes] == [0, 0]
    assert faulty.objects["k"][0] in (FILE, other.read_bytes())
    assert len(faulty.uploads) == 0


def kept_by(server: FaultyServer) -> int:
    """Parts that the store has."""
    return sum(len(each.parts) for each in server.uploads.values())


def settle(server: FaultyServer) -> None:
    """Wait until what a killed process had sent has arrived."""
    seen: object = None
    while seen != (seen := (len(server.log), kept_by(server), len(server.uploads))):
        time.sleep(0.3)


@pytest.mark.prove
def test_kills_at_random_moments_lose_no_part_that_the_store_has(
    faulty: FaultyServer, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of times in a row: the last run sends what is missing, and no upload is left."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    chance = random.Random(8)
    num_kept = 0
    for _ in range(12):
        faulty.objects.clear()
        for _ in range(chance.randint(1, 3)):
            process = start_code(UPLOAD, big, "replace")
            until(lambda: bool(faulty.uploads) or "k" in faulty.objects)
            time.sleep(chance.random() * 0.3)
            kill(process)
            settle(faulty)
        kept = kept_by(faulty)
        num_kept += kept
        faulty.log = []

        run_code(UPLOAD, big, "replace")

        assert sent(faulty) == FILE_PARTS - kept
        assert faulty.objects["k"][0] == FILE
        assert len(faulty.uploads) == 0
    assert num_kept > 0


def test_an_upload_in_parts_is_believed_by_its_tag(faulty: FaultyServer, big: Path) -> None:
    """Continued or not: nothing is read back where the tag proves the bytes."""
    put_file(faulty, big)

    assert faulty.asked("GET") == []


@pytest.mark.parametrize("same", [True, False], ids=["same bytes", "other bytes"])
def test_an_object_that_appears_meanwhile_is_looked_at(faulty: FaultyServer, big: Path, same: bool) -> None:
    """By another tag than ours, as of other parts: the same bytes are what was wanted, others are refused."""
    there = FILE if same else bytes(len(FILE))
    faulty.put("k", there, hashlib.md5(b"of other parts").hexdigest() + "-9")
    store = Late(faulty)

    if same:
        put_file(faulty, big, store=store, create=True)
    else:
        with pytest.raises(Refused, match="exists already"):
            put_file(faulty, big, store=store, create=True)

    assert faulty.objects["k"][0] == there
    assert faulty.uploads == {}


class Late(ObstoreStore):
    """A store whose object is not there at the first look."""

    def __init__(self, server: FaultyServer) -> None:
        super().__init__(server.url, options=StoreOptions.from_environment(server.env))
        self.looks = 0

    def head(self, key: str) -> ObjectInfo:
        self.looks += 1
        if self.looks == 1:
            raise NotFound("not yet", hint="none")
        return super().head(key)


def put_file(server: FaultyServer, path: Path, *, store: ObstoreStore | None = None, create: bool = False) -> None:
    puts = [Put(path, "k", path.stat().st_size, create=create)]
    pace = Pace(retries=4, fraction=lambda: 0.0)
    upload(store or store_of(server), puts, knobs=Knobs(), pace=pace, on_bytes=lambda _: None)


def test_a_part_says_what_it_is() -> None:
    """Number, bytes and md5 of memory's body, which the tests above stand on."""
    parts = list(body().parts())

    assert parts[1] == Part(2, DATA[PART : 2 * PART], hashlib.md5(DATA[PART : 2 * PART]).digest())
    assert b"".join(part.data for part in parts) == DATA
