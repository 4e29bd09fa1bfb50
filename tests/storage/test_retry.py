"""What `storage/retry` promises: bounded patience, shared when the store is busy, short when it never answered."""

from __future__ import annotations

import threading

import pytest

from datakit.errors import IntegrityError, Interrupted, NotFound, StoreUnavailable
from datakit.storage.answers import Throttled
from datakit.storage.objects import Blob
from datakit.storage.retry import CONTACT_RETRIES, Pace, PatientStore
from support.memory import MemoryBody, MemoryStore


class Flaky:
    """Fails with the given errors one after the other, then gives `value`."""

    def __init__(self, *errors: Exception, value: int = 7) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.value = value

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.value


def eager(retries: int) -> Pace:
    """A pace that never really waits."""
    return Pace(retries=retries, fraction=lambda: 0.0)


def test_trouble_of_the_way_is_tried_again() -> None:
    """Two failures, then the value."""
    pace, act = eager(6), Flaky(Throttled("busy"), StoreUnavailable("cut"))

    value = pace.call(act)

    assert (value, act.calls) == (7, 3)


def test_patience_is_bounded() -> None:
    """After the last retry the error comes out, of a class that everyone knows."""
    pace, act = eager(3), Flaky(*[Throttled("busy", hint="later", subject="s") for _ in range(10)])

    with pytest.raises(StoreUnavailable, match="busy") as caught:
        pace.call(act)

    assert act.calls == 4
    assert type(caught.value) is StoreUnavailable
    assert (caught.value.hint, caught.value.subject) == ("later", "s")


def test_a_store_that_never_answered_is_given_up_early() -> None:
    """A wrong endpoint is said after few tries, whatever the patience is."""
    pace, act = eager(50), Flaky(*[StoreUnavailable("no connection") for _ in range(60)])

    with pytest.raises(StoreUnavailable):
        pace.call(act)

    assert act.calls == 1 + CONTACT_RETRIES


def test_a_store_that_has_answered_once_gets_the_full_patience() -> None:
    """It is there: trouble later is worth waiting for."""
    pace, act = eager(5), Flaky(*[StoreUnavailable("no connection") for _ in range(5)])
    pace.call(lambda: 1)

    assert pace.call(act) == 7


def test_other_errors_come_out_at_once() -> None:
    """What is not there is not there the second time either."""
    act = Flaky(NotFound("no"), value=1)

    with pytest.raises(NotFound):
        eager(6).call(act)

    assert act.calls == 1


class Clock:
    """A clock that stands still until it is told otherwise."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Asked(threading.Event):
    """An event that says each time when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.release()
        return super().wait(60)


def test_a_busy_store_slows_down_everyone() -> None:
    """After one request was told to slow down, another waits before it asks at all, until the pace is stopped."""
    waiting = Asked()
    pace = Pace(retries=1, fraction=lambda: 1.0, clock=Clock(), stopped=waiting)
    ended: list[object] = []
    first, other = Flaky(Throttled("busy")), Flaky()

    def run(act: object) -> None:
        try:
            ended.append(pace.call(act))  # type: ignore[arg-type]
        except Interrupted:
            ended.append("stopped")

    threads = []
    for act in (first, other):
        threads.append(threading.Thread(target=run, args=(act,)))
        threads[-1].start()
        assert waiting.asked.acquire(timeout=60)
    pace.stop()
    for thread in threads:
        thread.join()

    assert ended == ["stopped", "stopped"]
    assert (first.calls, other.calls) == (1, 0)


class Waiting(threading.Event):
    """An event that nobody sets: a wait moves the clock and is written down."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.delays: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.delays.append(round(timeout, 3))
        self.clock.now += timeout
        return False


@pytest.mark.parametrize("kind", [Throttled, StoreUnavailable])
def test_delays_grow_up_to_a_bound(kind: type[StoreUnavailable]) -> None:
    """Without luck each delay is twice the one before, and none is above ten seconds."""
    clock = Clock()
    waiting = Waiting(clock)
    pace = Pace(retries=9, fraction=lambda: 1.0, clock=clock, stopped=waiting)
    pace.call(lambda: 1)

    pace.call(Flaky(*[kind("trouble") for _ in range(9)]))

    assert waiting.delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_jitter_takes_a_fraction_of_the_delay() -> None:
    """Full jitter: anything from nothing to the whole delay."""
    clock = Clock()
    waiting = Waiting(clock)
    pace = Pace(retries=2, fraction=iter([0.25, 0.75]).__next__, clock=clock, stopped=waiting)

    pace.call(Flaky(StoreUnavailable("one"), StoreUnavailable("two")))

    assert waiting.delays == [0.05, 0.3]


class Breaking(MemoryStore):
    """Breaks each stream after one piece, `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.starts: list[int] = []

    def stream(self, key, *, start, stop, etag=None):  # type: ignore[no-untyped-def]
        self.starts.append(start)
        for number, piece in enumerate(super().stream(key, start=start, stop=stop, etag=etag)):
            if number == 1 and self.times:
                self.times -= 1
                raise StoreUnavailable("cut")
            yield piece


def test_a_broken_stream_goes_on_at_the_byte_where_it_broke() -> None:
    """No byte comes twice, and each piece renews the patience: a slow but moving transfer is never killed."""
    store = Breaking(times=4)
    data = bytes(range(256)) * 4096 * 5
    store.write("k", data)
    patient = PatientStore(store, pace=eager(1))

    read = patient.read("k", start=0, stop=len(data))

    assert read == data
    assert store.starts == [number * 2**20 for number in range(5)]


def test_a_patient_store_passes_everything_on() -> None:
    """The same answers as the store behind it, and its counts."""
    store = MemoryStore()
    patient = PatientStore(store, pace=eager(1))

    patient.write("a/b", b"12345")
    patient.upload("a/c", MemoryBody(b"12", part_bytes=1), connections=1)
    listed = patient.list("a")
    blob = patient.fetch("a/b")
    head = patient.head("a/b")
    patient.delete("a/b")

    assert [info.key for info in listed] == ["a/b", "a/c"]
    assert (blob.data, blob.info) == (b"12345", head)
    assert patient.url == store.url
    assert patient.requests == store.requests
    assert list(store.objects) == ["a/c"]


class Flipping(MemoryStore):
    """A store whose first answers to `fetch` have a bit wrong."""

    def __init__(self, times: int, *, sealed: bool = False) -> None:
        super().__init__()
        self.times = times
        self.sealed = sealed

    def fetch(self, key: str) -> Blob:
        blob = super().fetch(key)
        if self.times == 0:
            return blob
        self.times -= 1
        return Blob(blob.info, bytes([blob.data[0] ^ 1]) + blob.data[1:])

    def tags_bytes(self, key: str) -> bool:
        return not self.sealed


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_bit_that_flips_on_the_way_is_asked_for_again(times: int) -> None:
    """A small object arrives with the bytes of its tag, or not at all."""
    store = Flipping(times)
    store.write("a/manifest.json", b"{}")

    blob = PatientStore(store, pace=eager(3)).fetch("a/manifest.json")

    assert blob.data == b"{}"
    assert store.times == 0


def test_a_small_object_that_stays_wrong_is_an_error() -> None:
    """Three times other bytes than its tag stands for: it is named."""
    store = Flipping(99)
    store.write("a/manifest.json", b"{}")

    with pytest.raises(IntegrityError, match=r"memory://bucket/a/manifest\.json: the bytes that arrived"):
        PatientStore(store, pace=eager(3)).fetch("a/manifest.json")


def test_an_encrypted_object_is_not_held_against_its_tag() -> None:
    """The tag of an object under KMS looks like an md5 and is none."""
    store = Flipping(99, sealed=True)
    store.write("a", b"xyz")

    assert PatientStore(store, pace=eager(3)).fetch("a").data == b"yyz"
