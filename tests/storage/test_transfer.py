"""What `storage/transfer` promises: verified before visible, whatever the store does; uploads believed by proof."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datakit.data.digest import PART_BYTES, FileEntry, entry_of
from datakit.errors import DatakitError, IntegrityError, NotAllowed, Refused, StoreUnavailable, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.objects import Store
from datakit.storage.partial import Fetch
from datakit.storage.retry import Pace
from datakit.storage.store import ObstoreStore, open_location
from datakit.storage.transfer import Knobs, download
from datakit.storage.upload import Put, take_away, upload
from support.faulty import Fault, FaultyServer
from support.memory import MemoryStore

BIG = random.Random(1).randbytes(PART_BYTES + 5000)
SMALL = random.Random(2).randbytes(70_000)
KNOBS = Knobs(connections=4, retries=4, durable=False)


def eager(retries: int = 4) -> Pace:
    return Pace(retries=retries, fraction=lambda: 0.0)


def get(
    store: Store, target: Path, data: bytes, *, known: bool = True, etag: str | None = None, key: str = "k"
) -> list[int]:
    """Download one object of which the manifest (`known`) or the tag says what it is."""
    told: list[int] = []
    wanted = Fetch(key, target, len(data), etag, entry_of(target.name, data) if known else None)
    download(store, [wanted], knobs=KNOBS, pace=eager(), on_bytes=told.append)
    return told


def lane_store(server: FaultyServer, lane: str) -> ObstoreStore:
    options = StoreOptions.from_environment(server.env)
    if lane == "obstore":
        options = StoreOptions(endpoint_url=server.endpoint, region="us-east-1", anonymous=True)
    return ObstoreStore(server.url, options=options)


def test_each_file_is_told_once_it_has_its_name(tmp_path: Path) -> None:
    """A small one and one of several parts; whoever is told may rename it."""
    store = MemoryStore()
    data = {"small": SMALL, "big": BIG}
    for key, each in data.items():
        store.write(key, each)
    fetches = [Fetch(key, tmp_path / key, len(each), entry=entry_of(key, each)) for key, each in data.items()]
    told: list[str] = []

    def settle(fetch: Fetch) -> None:
        assert fetch.target.read_bytes() == data[fetch.key]
        fetch.target.rename(tmp_path / f"settled-{fetch.key}")
        told.append(fetch.key)

    download(store, fetches, knobs=KNOBS, pace=eager(), on_bytes=lambda _count: None, on_file=settle)

    assert sorted(told) == ["big", "small"]
    assert sorted(os.listdir(tmp_path)) == ["settled-big", "settled-small"]


@pytest.mark.parametrize("lane", ["wire", "obstore"])
@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize("kind", ["busy", "many", "broken", "cut", "flip", "shift", "hang-up"])
def test_a_download_survives_each_fault(
    faulty: FaultyServer, tmp_path: Path, lane: str, data: bytes, kind: Any
) -> None:
    """Twice the fault, then right: the file is there with its bytes, and nothing else is."""
    faulty.put("k", data)
    faulty.faults = [Fault(kind, times=2)]

    told = get(lane_store(faulty, lane), tmp_path / "f", data)

    assert (tmp_path / "f").read_bytes() == data
    assert sum(told) == len(data)
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("lane", ["wire", "obstore"])
@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("busy", StoreUnavailable),
        ("broken", StoreUnavailable),
        ("shift", StoreUnavailable),
        ("flip", IntegrityError),
        ("denied", NotAllowed),
        ("expired", NotAllowed),
        ("replace", IntegrityError),
    ],
)
def test_a_fault_that_stays_is_said_and_nothing_is_visible(
    faulty: FaultyServer, tmp_path: Path, lane: str, data: bytes, kind: Any, expected: type[DatakitError]
) -> None:
    """No file under its final name, not even a short one; what arrived rightly may wait beside it for the next run."""
    faulty.put("k", data)
    faulty.faults = [Fault(kind, times=99)]

    with pytest.raises(expected):
        get(lane_store(faulty, lane), tmp_path / "f", data)

    assert not (tmp_path / "f").exists()
    assert all(name.startswith(".f.") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("lane", ["wire", "obstore"])
def test_an_object_replaced_while_it_is_read_is_refused(faulty: FaultyServer, tmp_path: Path, lane: str) -> None:
    """Without a manifest the version is pinned: s5cmd and s3fs mix two versions here and say that all is well."""
    etag = faulty.put("k", BIG)
    faulty.faults = [Fault("replace", after=1)]
    knobs = Knobs(connections=1)

    with pytest.raises(Refused, match="replaced while it was in use"):
        download(
            lane_store(faulty, lane),
            [Fetch("k", tmp_path / "f", len(BIG), etag)],
            knobs=knobs,
            pace=eager(),
            on_bytes=lambda _: None,
        )

    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_without_a_manifest_a_flipped_bit_is_found_by_the_tag(
    faulty: FaultyServer, tmp_path: Path, data: bytes
) -> None:
    """A plain tag is the md5 of the bytes."""
    etag = faulty.put("k", data)
    faulty.faults = [Fault("flip", times=99)]

    with pytest.raises(IntegrityError, match="md5"):
        get(lane_store(faulty, "wire"), tmp_path / "f", data, known=False, etag=etag)

    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("lane", ["wire", "obstore"])
def test_a_stalled_body_is_given_up_and_replaced(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    """A server that stops in the middle of a body, and holds the connection for ever, costs the read time-out."""
    monkeypatch.setattr("datakit.storage.store.READ_TIMEOUT_S", 1)
    faulty.put("k", BIG)
    faulty.faults = [Fault("stall")]

    get(lane_store(faulty, lane), tmp_path / "f", BIG)

    assert (tmp_path / "f").read_bytes() == BIG
    assert len(faulty.asked("GET")) == 3  # two parts, and the stalled one again
    assert not faulty.released.is_set()


def test_a_cut_body_goes_on_at_its_byte(faulty: FaultyServer, tmp_path: Path) -> None:
    """What has arrived of a part is not asked for again."""
    data = BIG[: 8 * 2**20]
    faulty.put("k", data)
    faulty.faults = [Fault("cut")]

    get(lane_store(faulty, "wire"), tmp_path / "f", data)

    ranges = [line[2] for line in faulty.asked("GET")]
    assert ranges == [f"bytes=0-{len(data) - 1}", f"bytes={len(data) // 2}-{len(data) - 1}"]


class Counting(MemoryStore):
    """Remembers which ranges were asked for, and fails those of `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []
        self.broken: set[int] = set()

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Any:
        self.asked.append((key, start))
        if start in self.broken:
            raise NotAllowed("no")
        return super().stream(key, start=start, stop=stop, etag=etag)


def test_a_second_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    """Parts that arrived before the failure are kept; their bytes are reported as done at once."""
    store = Counting()
    data = random.Random(3).randbytes(3 * PART_BYTES)
    store.write("k", data)
    store.broken = {2 * PART_BYTES}
    wanted = Fetch("k", tmp_path / "f", len(data), None, entry_of("f", data))
    with pytest.raises(NotAllowed):
        download(store, [wanted], knobs=Knobs(connections=1), pace=eager(), on_bytes=lambda _: None)
    store.broken, store.asked = set(), []
    told: list[int] = []

    download(store, [wanted], knobs=Knobs(connections=1), pace=eager(), on_bytes=told.append)

    assert store.asked == [("k", 2 * PART_BYTES)]
    assert told == [2 * PART_BYTES, PART_BYTES]
    assert (tmp_path / "f").read_bytes() == data


class Meeting(Counting):
    """Lets nobody receive before three have asked, so that no fast worker takes two turns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(3, timeout=60)

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Any:
        pieces = super().stream(key, start=start, stop=stop, etag=etag)
        first = next(pieces)
        if len(self.asked) <= 3:
            self.barrier.wait()
        yield first
        yield from pieces


def test_parts_of_several_files_take_turns(tmp_path: Path) -> None:
    """Writers of one file wait for each other in the kernel; large and small files share the workers."""
    store = Meeting()
    data = bytes(2 * PART_BYTES)
    for name in ("a", "b"):
        store.write(name, data)
    store.write("c", b"x")
    fetches = [Fetch(n, tmp_path / n, s) for n, s in (("a", len(data)), ("b", len(data)), ("c", 1))]

    download(store, fetches, knobs=Knobs(connections=3), pace=eager(), on_bytes=lambda _: None)

    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
    assert sorted(store.asked[:3]) == [("a", 0), ("b", 0), ("c", 0)]


class Gauge(MemoryStore):
    """Measures how many streams are open at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.open = self.most = 0

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Any:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        yield from super().stream(key, start=start, stop=stop, etag=etag)
        with self.lock:
            self.open -= 1


def test_no_more_requests_are_under_way_than_the_window_holds(tmp_path: Path) -> None:
    """Two parts fit into a window of two parts, however many connections are allowed."""
    store = Gauge()
    store.write("k", bytes(6 * PART_BYTES))
    knobs = Knobs(connections=16, window_bytes=2 * PART_BYTES)

    download(store, [Fetch("k", tmp_path / "f", 6 * PART_BYTES)], knobs=knobs, pace=eager(), on_bytes=lambda _: None)

    assert knobs.workers == 2
    assert store.most <= 2


def test_a_listener_that_raises_stops_the_transfer(tmp_path: Path) -> None:
    """Ctrl-C arrives as an exception in the thread that asked: nothing goes on behind its back."""
    store = Counting()
    for number in range(50):
        store.write(f"{number}", b"x")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    fetches = [Fetch(f"{number}", tmp_path / f"{number}", 1) for number in range(50)]
    with pytest.raises(KeyboardInterrupt):
        download(store, fetches, knobs=Knobs(connections=1), pace=eager(), on_bytes=interrupt)

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("datakit-transfer")]


def test_an_empty_file_arrives_without_a_request(tmp_path: Path) -> None:
    """Nothing needs to be asked for nothing."""
    store = Counting()
    store.write("k", b"")

    get(store, tmp_path / "f", b"")

    assert (tmp_path / "f").read_bytes() == b""
    assert store.asked == []


@pytest.mark.parametrize(("part_bytes", "connections"), [(10, 4), (0, 4), (PART_BYTES + 1, 4), (PART_BYTES, 0)])
def test_knobs_that_cannot_work_are_refused(part_bytes: int, connections: int) -> None:
    """Parts must be whole numbers of checksums, and somebody must work."""
    with pytest.raises(UsageError):
        Knobs(part_bytes=part_bytes, connections=connections)


def file(directory: Path, data: bytes, name: str = "f") -> Path:
    path = directory / name
    path.write_bytes(data)
    return path


def put(store: Store, path: Path, *, entry: FileEntry | None = None, create: bool = False) -> None:
    one = Put(path, "k", path.stat().st_size, entry, create=create)
    upload(store, [one], knobs=KNOBS, pace=eager(), on_bytes=lambda _: None)


@pytest.mark.parametrize("data", [b"", SMALL, BIG], ids=["empty", "small", "big"])
def test_an_upload_arrives_and_is_believed_by_its_tag(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """The store's tag is the one that these bytes must have: no byte is read back."""
    put(open_location(faulty.url).store, file(tmp_path, data), entry=entry_of("f", data))

    assert faulty.objects["k"][0] == data
    assert faulty.asked("GET") == []


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_where_the_tag_says_nothing_the_upload_is_read_back(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """As with encrypted objects: every part is compared with what was sent."""
    faulty.opaque_tags = True

    put(open_location(faulty.url).store, file(tmp_path, data))

    assert faulty.objects["k"][0] == data
    assert len(faulty.asked("GET")) == -(-len(data) // PART_BYTES)


@pytest.mark.parametrize("part_mib", [32, 48, 64])
@pytest.mark.parametrize("extra", [1, PART_BYTES])
def test_an_upload_is_read_back_in_the_parts_that_it_was_sent_in(tmp_path: Path, part_mib: int, extra: int) -> None:
    """Whatever the part size and the rest: a good upload is never called damaged."""
    store = MemoryStore(plain_tags=False)
    size_bytes = part_mib * 2**20 + extra
    path = file(tmp_path, random.Random(4).randbytes(size_bytes))

    upload(
        store,
        [Put(path, "k", size_bytes)],
        knobs=Knobs(part_bytes=part_mib * 2**20, durable=False),
        pace=eager(),
        on_bytes=lambda _: None,
    )

    assert store.requests.bytes_in == size_bytes


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_what_is_there_already_is_read_back_where_its_tag_says_nothing(
    faulty: FaultyServer, tmp_path: Path, data: bytes
) -> None:
    """A run that was killed had put it into a bucket that encrypts: it is ours, and is not put again."""
    faulty.sealed = True
    faulty.put("k", data)

    put(open_location(faulty.url).store, file(tmp_path, data), create=True)
    other = bytearray(data)
    other[-1] ^= 1
    with pytest.raises(Refused, match="exists already"):
        put(open_location(faulty.url).store, file(tmp_path, bytes(other)), create=True)

    assert faulty.objects["k"][0] == data


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_an_encrypted_object_is_not_taken_for_a_damaged_one(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """Under KMS the tag looks like an md5 and is none; the answer says so."""
    faulty.sealed = True
    etag = faulty.put("k", data)

    get(lane_store(faulty, "wire"), tmp_path / "f", data, known=False, etag=etag)

    assert (tmp_path / "f").read_bytes() == data


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_a_bit_that_the_store_keeps_wrong_is_found(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """The tag is another, and reading back shows which bytes: no upload is called done that is not."""
    faulty.faults = [Fault("rot", method="PUT", times=99)]

    with pytest.raises(IntegrityError, match="read back with crc32c"):
        put(open_location(faulty.url).store, file(tmp_path, data))


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize("kind", ["busy", "broken", "hang-up"])
def test_an_upload_survives_each_fault(faulty: FaultyServer, tmp_path: Path, data: bytes, kind: Any) -> None:
    """Tried again; no unfinished multipart upload stays behind."""
    faulty.faults = [Fault(kind, method="PUT", times=2), Fault(kind, method="POST", times=1)]

    put(open_location(faulty.url).store, file(tmp_path, data))

    assert faulty.objects["k"][0] == data
    assert faulty.uploads == {}


def test_a_creation_whose_answer_was_lost_is_recognised(faulty: FaultyServer, tmp_path: Path) -> None:
    """The second try finds the object there with its own bytes, which is what was wanted."""
    faulty.faults = [Fault("lost-answer", method="PUT")]

    put(open_location(faulty.url).store, file(tmp_path, SMALL), create=True)

    assert faulty.objects["k"][0] == SMALL


def test_a_creation_over_other_bytes_is_refused(faulty: FaultyServer, tmp_path: Path) -> None:
    """What is there stays there."""
    faulty.put("k", b"somebody else's")

    with pytest.raises(Refused, match="exists already"):
        put(open_location(faulty.url).store, file(tmp_path, SMALL), create=True)

    assert faulty.objects["k"][0] == b"somebody else's"


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_a_damaged_source_is_never_published(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """The manifest's checksums are compared while the file is read: the part is named, and no object appears."""
    damaged = bytearray(data)
    damaged[-1] ^= 1

    with pytest.raises(IntegrityError, match=f"to {len(data)} have crc32c"):
        put(open_location(faulty.url).store, file(tmp_path, bytes(damaged)), entry=entry_of("f", data))

    assert faulty.objects == {}
    assert faulty.uploads == {}


@pytest.mark.parametrize("change", [lambda size: size - 1, lambda size: size + 1], ids=["shrunk", "grown"])
def test_a_source_that_changes_its_size_is_said(tmp_path: Path, change: Callable[[int], int]) -> None:
    """A file that somebody still writes is not uploaded as if it were done."""
    store = MemoryStore()
    path = file(tmp_path, SMALL)
    one = Put(path, "k", change(len(SMALL)))

    with pytest.raises(IntegrityError, match="changed while it was uploaded"):
        upload(store, [one], knobs=KNOBS, pace=eager(), on_bytes=lambda _: None)

    assert store.objects == {}


def test_many_files_go_up_and_progress_adds_up(tmp_path: Path) -> None:
    """Large ones in parts and small ones whole, each told when it is verified."""
    store = MemoryStore()
    told: list[int] = []
    puts = [Put(file(tmp_path, data, f"{n}"), f"p/{n}", len(data)) for n, data in enumerate([SMALL, BIG, b"", SMALL])]

    upload(store, puts, knobs=KNOBS, pace=eager(), on_bytes=told.append)

    assert sorted(store.objects) == ["p/0", "p/1", "p/2", "p/3"]
    assert sum(told) == 2 * len(SMALL) + len(BIG)
    assert store.objects["p/1"][1].strip('"').endswith("-2")
    assert store.objects["p/0"][1].strip('"') == hashlib.md5(SMALL).hexdigest()


def test_whatever_a_store_keeps_half_of_is_taken_away_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """Of many at once too, whose look the first error ends: nothing wrong is in the way of the next try."""
    puts = []
    for number in range(24):
        path = tmp_path / f"{number}"
        path.write_bytes(SMALL[number:])
        puts.append(Put(path, path.name, len(SMALL) - number, create=True))
    faulty.faults = [Fault("halve", method="PUT", times=99)]

    with pytest.raises(IntegrityError):
        upload(
            lane_store(faulty, "obstore"),
            puts,
            knobs=Knobs(connections=8, retries=4),
            pace=eager(),
            on_bytes=lambda _: None,
        )
    assert faulty.objects == {}

    faulty.faults = []
    upload(lane_store(faulty, "obstore"), puts, knobs=KNOBS, pace=eager(), on_bytes=lambda _: None)
    assert {key: data for key, (data, _) in faulty.objects.items()} == {f"{n}": SMALL[n:] for n in range(24)}


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_what_is_not_proven_to_be_wrong_stays(faulty: FaultyServer, tmp_path: Path, data: bytes) -> None:
    """The store answers no look: another may have read the object and taken it for its own, and a next try finds it."""
    faulty.opaque_tags = True
    faulty.faults = [Fault("broken", times=2)]
    one = Put(file(tmp_path, data), "k", len(data), create=True)

    with pytest.raises(StoreUnavailable):
        upload(lane_store(faulty, "obstore"), [one], knobs=Knobs(retries=1), pace=eager(1), on_bytes=lambda _: None)
    faulty.faults = []
    upload(lane_store(faulty, "obstore"), [one], knobs=KNOBS, pace=eager(), on_bytes=lambda _: None)

    assert faulty.objects["k"][0] == data
    assert faulty.asked("DELETE") == []


def test_what_is_wrong_goes_also_when_the_look_at_it_was_ended(faulty: FaultyServer, tmp_path: Path) -> None:
    """A second look, which no other's error ends, proves it."""
    faulty.opaque_tags = True
    faulty.faults = [Fault("flip", method="PUT"), Fault("broken", times=2)]
    one = Put(file(tmp_path, SMALL), "k", len(SMALL), create=True)

    with pytest.raises(StoreUnavailable):
        upload(lane_store(faulty, "obstore"), [one], knobs=Knobs(retries=1), pace=eager(1), on_bytes=lambda _: None)

    assert faulty.objects == {}


def test_an_object_that_another_put_meanwhile_is_not_taken_away(tmp_path: Path) -> None:
    """It has another tag than what was made."""
    store = MemoryStore()
    (tmp_path / "a").write_bytes(b"ours")
    made = store.write("a", b"our")
    store.write("a", b"theirs")

    take_away(store, made)

    assert store.read("a", start=0, stop=6) == b"theirs"
