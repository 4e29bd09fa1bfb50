"""Objects come into a pool verified, once, from the best place that has them, and a full disk is survived once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.errors import IntegrityError, NoSpace, NotFound, Refused
from datakit.events import Caution, Event
from datakit.storage.moves import Durability, SyncSettings
from datakit.storage.objects import LocalStore
from datakit.tier.arrival import Arrival
from datakit.tier.fill import Brought, Source, bring
from datakit.tier.pool import Pool
from support.commits import flip_bit, noise
from support.process import environment, kill, start_code
from support.tiers import cold, disk_bytes, know, pool_at, wrong_objects

KILLED = """
import sys, threading
from pathlib import Path
from datakit.storage.commit import read_manifest
from datakit.storage.objects import LocalStore
from datakit.storage.moves import SyncSettings
from datakit.tier.fill import Source, bring
from datakit.tier.pool import Pool

class Halting(LocalStore):
    def stream(self, key, *, start, stop, etag=None):
        if start:
            print("half", flush=True)
            threading.Event().wait()
        yield from super().stream(key, start=start, stop=stop, etag=etag)

manifest = read_manifest(Path(sys.argv[1]))
pool = Pool(Path(sys.argv[2]), budget_bytes=int(sys.argv[3])).open()
source = Source(Halting(Path(sys.argv[1])), {each.sha256: each.name for each in manifest.members})
bring(pool, manifest.members, sources=[source], copied=set, settings=SyncSettings(concurrency=1))
"""


class Counting(LocalStore):
    """A directory that counts what is read of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[tuple[str, int]] = []

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        self.reads.append((key, start))
        yield from super().stream(key, start=start, stop=stop, etag=etag)


class Full(Counting):
    """A directory from which nothing can be read before so many times a disk was full."""

    def __init__(self, root: Path, *, times: int) -> None:
        super().__init__(root)
        self.times = times

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        if self.times:
            self.times -= 1
            raise NoSpace(f"no space to write {key}", hint="Free some space")
        yield from super().stream(key, start=start, stop=stop, etag=etag)


def test_objects_come_once_whatever_they_are_called(tmp_path: Path) -> None:
    """Two names with the same bytes are one object; what is there is not fetched again; nothing else stays."""
    dataset = cold(tmp_path / "ds", [50, 60])
    (tmp_path / "ds" / "copy.tar").write_bytes(noise(50, 0))
    store = Counting(tmp_path / "ds")
    source = Source(store, dataset.source.keys)
    pool = pool_at(tmp_path / "pool", 110)
    events: list[Event] = []

    first = bring(pool, dataset.manifest.members * 2, sources=[source], copied=set, on_event=events.append)
    second = bring(pool, dataset.manifest.members, sources=[source], copied=set)

    assert (first, second) == (Brought(2, 110), Brought())
    assert len(store.reads) == 2
    assert wrong_objects(pool.root) == {}
    assert disk_bytes(pool.root) == 110
    assert os.listdir(pool.root / "arriving") == []


def test_a_killed_fetch_goes_on_with_the_missing_parts(tmp_path: Path) -> None:
    """Its part is taken over though budget and part are of the same size, and only the rest is read."""
    dataset = cold(tmp_path / "ds", [2 * PART_BYTES + 5])
    process = start_code(KILLED, dataset.path, tmp_path / "pool", 2 * PART_BYTES + 5)
    kill(process)
    store = Counting(dataset.path)
    pool = pool_at(tmp_path / "pool", 2 * PART_BYTES + 5)

    brought = bring(pool, dataset.manifest.members, sources=[Source(store, dataset.source.keys)], copied=set)

    assert brought.files == 1
    assert [start for _, start in sorted(store.reads)] == [PART_BYTES, 2 * PART_BYTES]
    assert wrong_objects(pool.root) == {}
    assert disk_bytes(pool.root) == 2 * PART_BYTES + 5


def test_what_another_brings_is_waited_for(tmp_path: Path) -> None:
    """It is not read a second time, and no room is taken for it."""
    dataset = cold(tmp_path / "ds", [50])
    (entry,) = dataset.manifest.members
    pool = pool_at(tmp_path / "pool", 50)
    store = Counting(dataset.path)
    waits: list[float] = []

    with pool.arrival() as other:
        pool.reserve(other, {entry.sha256: 50}, copied=set)

        def land(seconds: float) -> None:
            waits.append(seconds)
            other.target(entry.sha256).write_bytes(noise(50, 0))
            pool.land(other, entry)

        source = Source(store, dataset.source.keys)
        brought = bring(pool, [entry], sources=[source], copied=set, sleep=land)

    assert (brought, store.reads, len(waits)) == (Brought(waited_files=1), [], 1)


def test_what_another_gives_up_is_fetched(tmp_path: Path) -> None:
    """A fetch that was killed while it was waited for is taken over."""
    dataset = cold(tmp_path / "ds", [2 * PART_BYTES])
    process = start_code(KILLED, dataset.path, tmp_path / "pool", 2 * PART_BYTES)
    pool = pool_at(tmp_path / "pool", 2 * PART_BYTES)

    brought = bring(
        pool, dataset.manifest.members, sources=[dataset.source], copied=set, sleep=lambda _seconds: kill(process)
    )

    assert brought.files == 1
    assert disk_bytes(pool.root) == 2 * PART_BYTES


def test_a_damaged_source_is_left_for_the_next(tmp_path: Path) -> None:
    """It is told which object is damaged, and the next source gives it."""
    dataset = cold(tmp_path / "ds", [50, 60])
    hot = cold(tmp_path / "hot" / "ds", [50, 60])
    flip_bit(hot.path / "ds-1.tar", 9)
    rejected: list[str] = []
    events: list[Event] = []
    pool = pool_at(tmp_path / "pool", 110)
    bad = Source(LocalStore(hot.path), hot.source.keys, reject=rejected.append)

    brought = bring(pool, dataset.manifest.members, sources=[bad, dataset.source], copied=set, on_event=events.append)

    assert brought.files == 2
    assert rejected == [dataset.digests[1]]
    assert wrong_objects(pool.root) == {}
    (said,) = (event for event in events if isinstance(event, Caution))
    assert "ds-1.tar: bytes 0 to 60 have crc32c" in said.message


def test_one_lost_object_costs_no_more_than_itself(tmp_path: Path) -> None:
    """The near source gives all the others; only that one is read from the far one."""
    sizes = list(range(50, 80))
    dataset, hot = cold(tmp_path / "ds", sizes), cold(tmp_path / "hot" / "ds", sizes)
    (hot.path / "ds-0.tar").unlink()
    flip_bit(hot.path / "ds-1.tar", 9)
    far = Counting(dataset.path)
    pool = pool_at(tmp_path / "pool", 9000)

    brought = bring(pool, dataset.manifest.members, sources=[hot.source, Source(far, dataset.source.keys)], copied=set)

    assert brought.files == 30
    assert sorted(key for key, _ in far.reads) == ["ds-0.tar", "ds-1.tar"]


def test_a_source_that_lost_all_is_passed_by_at_once(tmp_path: Path) -> None:
    """It is asked what else is gone, so that not each of its objects is found missing by itself."""
    dataset = cold(tmp_path / "ds", [50, 60, 70])
    pool = pool_at(tmp_path / "pool", 1000)
    events: list[Event] = []
    gone = Source(LocalStore(tmp_path / "gone"), dataset.source.keys, holds=lambda _digest: False)

    bring(pool, dataset.manifest.members, sources=[gone, dataset.source], copied=set, on_event=events.append)

    (said,) = (event for event in events if isinstance(event, Caution))
    assert "cannot give 3 objects, and the next place is asked" in said.message


@pytest.mark.parametrize(("durability", "flushed"), [("auto", 2), ("always", 2), ("never", 0)])
def test_an_object_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, flushed: int
) -> None:
    """It is believed by its size later; a power cut must not leave zeros under its name."""
    dataset = cold(tmp_path / "ds", [50, PART_BYTES + 1])
    pool = pool_at(tmp_path / "pool", 2 * PART_BYTES)
    sizes: list[int] = []
    for call in (os.fsync, os.fdatasync):

        def flush(descriptor: int, call: Callable[[int], None] = call) -> None:
            if ".tmp-" in (name := os.readlink(f"/proc/self/fd/{descriptor}")) or name.endswith(".part"):
                sizes.append(os.fstat(descriptor).st_size)
            call(descriptor)

        monkeypatch.setattr(os, call.__name__, flush)

    bring(
        pool,
        dataset.manifest.members,
        sources=[dataset.source],
        copied=set,
        settings=SyncSettings(durability=durability),
    )

    assert len(sizes) == flushed


def test_what_no_source_has_whole_is_an_error_and_nothing_has_its_name(tmp_path: Path) -> None:
    """Damage everywhere is an integrity error; absence everywhere says which."""
    dataset = cold(tmp_path / "ds", [50])
    flip_bit(dataset.path / "ds-0.tar", 3)
    pool = pool_at(tmp_path / "pool", 110)

    with pytest.raises(IntegrityError, match="bytes 0 to 50"):
        bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    with pytest.raises(NotFound, match=r"no source holds ds-0\.tar"):
        bring(pool, dataset.manifest.members, sources=[Source(LocalStore(tmp_path), {})], copied=set)

    assert disk_bytes(pool.root) == 0


def test_nothing_is_asked_for_what_does_not_fit(tmp_path: Path) -> None:
    """Room comes before the first request (law 7)."""
    dataset = cold(tmp_path / "ds", [50, 60])
    store = Counting(dataset.path)

    with pytest.raises(NoSpace, match="no room for 110 B in its budget of 109 B"):
        bring(
            pool_at(tmp_path / "pool", 109),
            dataset.manifest.members,
            sources=[Source(store, dataset.source.keys)],
            copied=set,
        )

    assert store.reads == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_full_disk_is_survived_once(tmp_path: Path, times: int) -> None:
    """What may go is dropped and it is tried again; a disk that stays full ends with 5 and what could be freed."""
    old, new = cold(tmp_path / "cold" / "old", [40, 40], seed=1), cold(tmp_path / "cold" / "new", [30])
    pool = pool_at(tmp_path / "pool", 1000)
    know(pool, old, new)
    bring(pool, old.manifest.members, sources=[old.source], copied=set)
    source = Source(Full(new.path, times=times), new.source.keys)

    def fill() -> Brought:
        return bring(pool, new.manifest.members, sources=[source], copied=lambda: set(old.digests))

    if times == 1:
        assert fill() == Brought(1, 30)
        assert len(pool.usage().objects) == 2
    else:
        with pytest.raises(NoSpace, match=r"the disk of .* has no room for 30 B"):
            fill()
    assert pool.usage().arriving_bytes == 0


def test_what_others_drop_as_fast_as_it_comes_is_given_up(tmp_path: Path) -> None:
    """Three times, then it is said."""
    dataset = cold(tmp_path / "ds", [50, 60])
    pool = pool_at(tmp_path / "pool", 110)

    class Dropping(Counting):
        def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
            yield from super().stream(key, start=start, stop=stop, etag=etag)
            for digest in dataset.digests:
                pool.path(digest).unlink(missing_ok=True)

    source = Source(Dropping(dataset.path), dataset.source.keys)
    with pytest.raises(Refused, match="was dropped by another process each time"):
        bring(
            pool,
            dataset.manifest.members,
            sources=[source],
            copied=set,
            settings=SyncSettings(concurrency=1),
        )


def test_threads_that_want_the_same_fetch_it_once(tmp_path: Path) -> None:
    """Eight of one process, each asking for all."""
    dataset = cold(tmp_path / "ds", [50, 60, 70])
    pool = Pool(tmp_path / "pool", budget_bytes=180).open()
    store = Counting(dataset.path)
    found: list[Brought] = []

    def work() -> None:
        found.append(bring(pool, dataset.manifest.members, sources=[Source(store, dataset.source.keys)], copied=set))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert sum(each.files for each in found) == len(store.reads) == 3
    assert disk_bytes(pool.root) == 180


DISK = """
import sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.storage.commit import read_manifest
from datakit.storage.objects import LocalStore
from datakit.tier.fill import Source, bring
from datakit.tier.pool import Pool

pool = Pool(Path(sys.argv[1]) / "pool", budget_bytes=2**40).open()
held = []
for place in sys.argv[2:]:
    manifest = read_manifest(Path(place))
    pool.roster.add(manifest, place=place)
    source = Source(LocalStore(Path(place)), {each.sha256: each.name for each in manifest.members})
    try:
        bring(pool, manifest.members, sources=[source], copied=lambda: held)
    except NoSpace as error:
        print(error.exit_code, error.message)
    held += [each.sha256 for each in manifest.members]
print(len(pool.usage().objects))
"""


@pytest.mark.prove
def test_a_real_full_disk_is_survived(tmp_path: Path) -> None:
    """On a disk of 4 MiB: a second dataset of 3 MiB takes the place of the first, a third of 5 MiB ends with 5."""
    places = [cold(tmp_path / f"ds{n}", [size * 2**19] * 2, seed=n).path for n, size in enumerate((3, 3, 5))]
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=4m none {tmp_path / 'disk'}"
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, "-c", DISK]

    done = subprocess.run(
        [*command, str(tmp_path / "disk"), *map(str, places)],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("5 the disk of")
    assert lines[1:] == ["2"]


def test_an_arrival_that_fails_ends_its_promises(tmp_path: Path) -> None:
    """Whatever ends a fetch, nobody waits for it."""
    dataset = cold(tmp_path / "ds", [50])
    pool = pool_at(tmp_path / "pool", 50)
    (dataset.path / "ds-0.tar").unlink()

    with pytest.raises(NotFound):
        bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)

    other = Arrival(pool.root / "arriving")
    other.open()
    assert other.earlier(dataset.digests) == set()
    assert pool.usage().total_bytes == 0
