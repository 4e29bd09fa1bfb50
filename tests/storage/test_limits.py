"""storage/limits: what may be asked of stores is counted before it is asked, tries that fail included."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import IntegrityError, Interrupted, LimitExceeded, NotAllowed, StoreUnavailable, UsageError
from datakit.plan.storage import StorePrice
from datakit.storage.access import StoreOptions
from datakit.storage.counts import Meter, RequestCounts
from datakit.storage.limits import Gate, Limits, regardless
from datakit.storage.retry import Pace, PatientStore
from datakit.storage.store import ObstoreStore, open_location
from datakit.storage.sync import SyncSettings, plan_sync, run_sync, sync
from support.commits import make_commit
from support.faulty import Fault, FaultyServer
from support.memory import MemoryBody

PRICE = StorePrice("shop", "standard", "USD", None, 0.05, 0.004, 0.09, as_of="2026-04", source="a test")


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@given(most=st.integers(0, 20), asked=st.lists(st.integers(1, 3), max_size=20))
def test_no_request_passes_the_limit_and_none_is_refused_below_it(most: int, asked: list[int]) -> None:
    """One that is refused is not counted: a smaller one may still go."""
    gate, made = Gate(Limits(max_requests=most)), 0
    for number in asked:
        if made + number > most:
            with pytest.raises(LimitExceeded, match=f"{most} requests are made"):
                gate.let_through({"get": number}, None)
        else:
            gate.let_through({"get": number}, None)
            made += number


def test_many_threads_pass_no_limit() -> None:
    gate, made = Gate(Limits(max_requests=100)), Meter()
    made.gate = lambda more: gate.let_through(more, None)

    def ask() -> None:
        for _ in range(50):
            try:
                made.add(get=1)
            except LimitExceeded:
                return

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made.counts.get == 100


def test_money_counts_requests_by_class_and_what_leaves_the_store() -> None:
    """10,000 reads are 0.004, a GB is 0.09; what comes in and deletes cost nothing."""
    gate = Gate(Limits(max_cost=0.1))
    gate.let_through({"get": 10_000}, PRICE)
    gate.let_through({"bytes_in": 10**9}, PRICE)
    gate.let_through({"delete": 10**6, "bytes_out": 10**12}, PRICE)
    gate.let_through({"list": 10**6}, None)  # of one's own server

    with pytest.raises(LimitExceeded, match=r"would pass --max-cost 0.1 USD \(0.0940 are spent\)"):
        gate.let_through({"put": 2_000}, PRICE)


@given(rate=st.floats(0.5, 1000), number=st.integers(2, 50))
def test_requests_keep_their_rate(rate: float, number: int) -> None:
    """The first goes at once, and the last not before its time."""
    clock = Clock()
    gate = Gate(Limits(requests_per_s=rate), clock=clock, wait=clock.wait)
    sent = []
    for _ in range(number):
        gate.let_through({"get": 1}, None)
        sent.append(clock.now_s)

    assert sent[0] == 0
    assert sent[-1] == pytest.approx((number - 1) / rate, abs=1.01 / rate)


@given(rate=st.integers(1, 10**9), pieces=st.lists(st.integers(1, 2**20), min_size=1, max_size=30))
def test_bytes_keep_their_rate(rate: int, pieces: list[int]) -> None:
    """Both ways together, but for the tenth of a second that they may run ahead."""
    clock = Clock()
    gate = Gate(Limits(bytes_per_s=rate), clock=clock, wait=clock.wait)
    for number, size in enumerate(pieces):
        gate.let_through({"bytes_in" if number % 2 else "bytes_out": size}, None)

    assert clock.now_s >= sum(pieces) / rate - 0.1 - 1e-6
    assert clock.now_s <= sum(pieces) / rate + 1e-6


def test_who_waits_is_let_go_when_the_work_has_ended() -> None:
    """A rate of a request an hour does not hold a process that has failed."""
    gate = Gate(Limits(requests_per_s=1 / 3600))
    with regardless():
        gate.let_through({"get": 3}, None)
    ended = []

    def ask() -> None:
        try:
            gate.let_through({"get": 1}, None)
        except Interrupted as error:
            ended.append(error.message)

    waiting = threading.Thread(target=ask)
    waiting.start()

    gate.stopped.set()
    waiting.join(timeout=60)

    assert ended == ["the transfer was stopped"]
    gate.begin()
    assert not gate.stopped.is_set()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_requests": -1}, {"max_cost": -0.5}, {"requests_per_s": 0.0}, {"bytes_per_s": 0.0}),
        *({"max_cost": float("nan")}, {"requests_per_s": float("nan")}),
    ],
)
def test_a_limit_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Limits(**wrong)  # type: ignore[arg-type] # that is the point


def test_a_store_that_fails_is_not_asked_more_often_than_allowed(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is a request, and billed as one."""
    faulty.put("a", b"1")
    faulty.faults = [Fault("busy", times=100)]
    store = open_location(faulty.url).store
    gate = Gate(Limits(max_requests=3))
    patient = PatientStore(store, pace=Pace(retries=50, fraction=lambda: 0.0))
    patient.limit(gate)

    with pytest.raises(LimitExceeded):
        patient.fetch("a")

    assert len(faulty.log) == 3
    assert store.requests.get == 3


def test_a_local_directory_has_no_requests_to_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    store = open_location(tmp_path).store
    store.limit(Gate(Limits(max_requests=0)))

    assert store.fetch("a").data == b"1"


def folder(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(name.encode())
    return tmp_path / "folder"


def test_a_sync_that_would_pass_a_limit_moves_nothing(faulty: FaultyServer, tmp_path: Path) -> None:
    """Both numbers are told; the same with as many as it needs works, and again without any."""
    source = folder(tmp_path, "a", "b", "c")

    with pytest.raises(LimitExceeded, match="it would take 4 requests, more than --max-requests 3"):
        sync(source, f"{faulty.url}/x", max_requests=3)  # a listing, and three to put
    assert faulty.objects == {}

    assert sync(source, f"{faulty.url}/x", max_requests=4).moved_files == 3
    assert sync(source, f"{faulty.url}/x", max_requests=4).up_to_date


def test_a_run_that_meets_its_limit_stops_and_the_next_moves_the_rest(faulty: FaultyServer, tmp_path: Path) -> None:
    """Tries that fail were not foreseen; what has arrived is whole and stays."""
    for name in "abcd":
        faulty.put(f"x/{name}", name.encode() * 1000)
    faulty.faults = [Fault("busy", method="GET", key="x/[cd]", times=4)]

    with pytest.raises(LimitExceeded, match="7 requests are made, as many as --max-requests allows"):
        sync(f"{faulty.url}/x", tmp_path / "y", max_requests=7, settings=SyncSettings(concurrency=1))
    arrived = {path.name for path in (tmp_path / "y").iterdir() if not path.name.startswith(".")}
    result = sync(f"{faulty.url}/x", tmp_path / "y")

    assert {"a", "b"} <= arrived < {"a", "b", "c", "d"}
    assert result.kept_files == len(arrived)
    assert {path.name: path.read_bytes() for path in (tmp_path / "y").iterdir()} == {
        n: n.encode() * 1000 for n in "abcd"
    }


def test_money_is_bounded_by_the_prices_of_the_store(faulty: FaultyServer, tmp_path: Path) -> None:
    """Of a store whose prices nobody knows it cannot be, which is said; the plan tells what it costs."""
    faulty.put("x/a", b"1" * 10**6)
    known = StoreOptions(url=faulty.url, get_per_10k=100.0, put_per_10k=100.0, egress_per_gb=1000.0)

    with pytest.raises(UsageError, match="cost is not known, so --max-cost cannot be kept"):
        sync(f"{faulty.url}/x", tmp_path / "y", max_cost=1)
    plan = plan_sync(f"{faulty.url}/x", tmp_path / "y", stores={"s": known}, max_cost=1.1)
    with pytest.raises(LimitExceeded, match=r"it would cost 1\.\d+, more than --max-cost 1"):
        sync(f"{faulty.url}/x", tmp_path / "y", stores={"s": known}, max_cost=1)

    (charge,) = plan.charges
    assert charge.cost == pytest.approx(1.0 + 0.01)
    assert not (tmp_path / "y").exists()


def limited(faulty: FaultyServer, limits: Limits, **how: Any) -> ObstoreStore:
    """A store whose every GB and request costs something, behind a gate."""
    found = StoreOptions.from_environment(faulty.env)
    options = dataclasses.replace(found, get_per_10k=0.0, put_per_10k=0.0, egress_per_gb=1.0)
    store = ObstoreStore(faulty.url, options=options)
    store.limit(Gate(limits, **how))
    return store


def test_a_body_that_would_pass_the_limit_is_not_asked_for(faulty: FaultyServer) -> None:
    """A GB is 1 USD: of two parts of a tenth of it, under way together, only one is within 0.15."""
    faulty.put("a", bytes(10**6))
    store = limited(faulty, Limits(max_cost=0.0015))
    first = store.stream("a", start=0, stop=10**6)
    next(first)

    with pytest.raises(LimitExceeded):
        next(store.stream("a", start=0, stop=10**6))

    assert len(faulty.asked("GET")) == 1
    assert store.requests == RequestCounts(get=1, bytes_in=10**6)


def test_what_does_not_come_of_a_body_is_given_back(faulty: FaultyServer) -> None:
    """Half of the first body comes: the rest may be spent on the next try."""
    faulty.put("a", bytes(10**6))
    store = limited(faulty, Limits(max_cost=0.0015))
    faulty.faults = [Fault("cut", method="GET")]
    with pytest.raises(StoreUnavailable):
        store.read("a", start=0, stop=10**6)
    before = store.requests.bytes_in

    data = store.read("a", start=0, stop=10**6)

    assert before <= 500_000
    assert store.requests == RequestCounts(get=2, bytes_in=before + len(data))


def test_bytes_wait_before_they_go(faulty: FaultyServer) -> None:
    """A body is counted with its request, so that a rate holds and no open connection waits: both ways."""
    seen: list[int] = []
    store = limited(faulty, Limits(bytes_per_s=1.0), wait=lambda _: seen.append(len(faulty.log)))

    store.write("a", b"12345")
    store.read("a", start=0, stop=5)

    assert seen == [0, 1]
    assert store.requests == RequestCounts(put=1, get=1, bytes_in=5, bytes_out=5)


def test_an_upload_by_obstore_counts_each_part_before_it_goes(faulty: FaultyServer) -> None:
    """Begun and completed are two, so that no limit is met when the object is there; the fifth request is not sent."""
    store = limited(faulty, Limits(max_requests=4))

    with pytest.raises(LimitExceeded):
        store._upload("k", MemoryBody(bytes(16 * 2**20), part_bytes=5 * 2**20), connections=1)

    assert len(faulty.asked("PUT")) == 2
    assert faulty.uploads == {}


@pytest.mark.parametrize(("number", "pages"), [(0, 1), (999, 1), (1000, 1), (1001, 2), (2000, 2)])
def test_a_listing_counts_its_pages(faulty: FaultyServer, number: int, pages: int) -> None:
    """A thousand to a page, and no page that is not there."""
    for each in range(number):
        faulty.put(f"x/{each:05}", b"1")
    store = limited(faulty, Limits(max_requests=3))

    assert len(store.list("x")) == number
    assert store.requests == RequestCounts(list=pages)


def test_a_listing_ends_where_the_limit_is(faulty: FaultyServer) -> None:
    for each in range(3500):
        faulty.put(f"x/{each:05}", b"1")
    store = limited(faulty, Limits(max_requests=1))

    with pytest.raises(LimitExceeded):
        store.list("x")

    assert store.requests == RequestCounts(list=1)


@pytest.mark.parametrize("most", [4, 5, 6, 7])
def test_a_wrong_object_is_taken_away_whatever_the_limit(faulty: FaultyServer, tmp_path: Path, most: int) -> None:
    """The store keeps a bit wrong: nothing stays under a final name, whether or not a request is left to look."""
    make_commit(tmp_path / "ds", {"a.bin": b"right" * 100})
    faulty.faults = [Fault("rot", method="PUT", key=r"ds/a\.bin", times=9)]

    with pytest.raises((LimitExceeded, IntegrityError)):
        sync(tmp_path / "ds", f"{faulty.url}/ds", max_requests=most)

    assert faulty.objects == {}


def test_an_upload_that_cannot_be_continued_is_aborted_whatever_the_limit(faulty: FaultyServer) -> None:
    """Its parts have tags that prove nothing: the limit lets none of them be billed for ever."""
    faulty.opaque_tags = True
    store = limited(faulty, Limits(max_requests=4))

    with pytest.raises(LimitExceeded):
        store.upload("k", MemoryBody(bytes(16 * 2**20), part_bytes=5 * 2**20), connections=1)

    assert faulty.uploads == {}
    assert store.requests.delete == 1


def test_a_plan_that_failed_can_be_run_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """What ended the first run does not end the second."""
    faulty.put("x/a", b"1")
    plan = plan_sync(f"{faulty.url}/x", tmp_path / "y", settings=SyncSettings(retries=0))
    faulty.faults = [Fault("denied", method="GET", times=1)]
    with pytest.raises(NotAllowed):
        run_sync(plan)

    result = run_sync(plan)

    assert result.moved_files == 1
    assert run_sync(plan).moved_files == 1  # and once more after it has gone well
    assert (tmp_path / "y" / "a").read_bytes() == b"1"


def test_a_failure_does_not_wait_for_the_rate(faulty: FaultyServer, tmp_path: Path) -> None:
    """One object is not what the listing says; the others have hours to wait, and are let go at once."""
    for number in range(8):
        faulty.put(f"x/{number}", b"1")
    settings = SyncSettings(concurrency=4, retries=0)
    plan = plan_sync(f"{faulty.url}/x", tmp_path / "y", settings=settings)
    plan.origin.store.limit(Gate(Limits(requests_per_s=1 / 3600), wait=plan.gate.stopped.wait))
    faulty.faults = [Fault("denied", method="GET", times=1)]

    with pytest.raises(NotAllowed):
        run_sync(plan)


def test_a_bound_on_money_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """A price with a figure that nobody knows, by its setting's name; and two currencies, which have no sum."""
    hetzner = StoreOptions(url="s3://h", endpoint_url="https://fsn1.your-objectstorage.com")
    oss = StoreOptions(url="s3://o", endpoint_url="https://oss-cn-hangzhou.aliyuncs.com")

    with pytest.raises(UsageError, match="--max-cost cannot be kept") as unknown:
        sync("h://x", tmp_path / "y", stores={"h": hetzner}, max_cost=1)
    with pytest.raises(UsageError, match="s3://a in USD and s3://o in CNY have no sum"):
        sync("s3://a/x", "o://y", stores={"o": oss}, max_cost=1)

    assert unknown.value.hint == "Set get_per_10k, put_per_10k of that store, or use --max-requests"
