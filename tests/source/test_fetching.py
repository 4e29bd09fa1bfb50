"""source/fetching: objects of a store as plain local files, batch by batch, each in the version that was listed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from datakit import InputError, IntegrityError, Refused
from datakit.source import fetching
from datakit.source.fetching import Fetched, fetched, release, spool_of
from datakit.source.listing import list_records
from datakit.source.records import Records
from datakit.source.scan import Sources, scan
from datakit.storage import store
from datakit.storage.objects import Blob, Store
from datakit.storage.store import Location
from support.memory import MemoryBody, MemoryStore
from support.packing import tree


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store in this process, which every URL names."""
    found = MemoryStore()

    def opened(place: str, *, stores: Mapping[str, object] | None = None) -> Location:
        del stores
        typed: Store = found
        return Location(typed, place.partition("://")[2].partition("/")[2].strip("/"))

    monkeypatch.setattr(store, "open_location", opened)
    return found


@pytest.fixture
def pairs(memory: MemoryStore, tmp_path: Path) -> Iterator[tuple[MemoryStore, Fetched, Records]]:
    """Twenty pairs of objects, listed; and the source they are brought from."""
    for number in range(20):
        memory.write(f"raw/s{number:02d}.txt", b"text %d" % number)
        memory.write(f"raw/s{number:02d}.bin", bytes([number]) * 100)
    sources = scan("memory://bucket/raw")
    with fetched(sources, tmp_path / "spool") as local:
        yield memory, local, list_records(sources, local)


def test_a_name_with_a_step_is_told_as_what_it_is(memory: MemoryStore) -> None:
    """A store may hold it, a disk cannot; it is not called hidden, and nothing is laid down outside."""
    for name in ("a.txt", "x/../b.txt", "./c.txt", ".d.txt"):
        memory.write(f"raw/{name}", b"x")

    sources = scan("memory://bucket/raw")

    assert [file.name for file in sources.files] == ["a.txt"]
    assert [str(trouble) for trouble in sources.troubles] == [
        "./c.txt: has a folder `.` or `..` in its name",
        "x/../b.txt: has a folder `.` or `..` in its name",
    ]
    assert sources.hidden == (".d.txt",)


def test_nothing_is_fetched_before_its_turn(pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path) -> None:
    """A plan needs the listing alone; a batch costs one request an object."""
    memory, local, records = pairs
    before = memory.requests
    batch = records.take(np.array([3, 17]))

    brought = local.bring(batch)
    samples = list(brought.samples())

    assert before.get == 0
    assert [sample.key for sample in samples] == ["s03", "s17"]
    assert samples[1].parts == {"bin": bytes([17]) * 100, "txt": b"text 17"}
    assert (memory.requests - before).get == 4
    assert local.requests >= 4
    assert len(tree(tmp_path / "spool")) == 1
    assert (tmp_path / "spool" / ".gitignore").read_bytes() == b"*\n", "Git leaves it alone, should it be left there"


def test_what_was_built_is_removed(pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path) -> None:
    """So that a folder larger than the disk can be packed; a batch can be brought again."""
    _, local, records = pairs
    batch = records.take(np.array([1]))
    one, other = local.bring(batch), local.bring(records.take(np.array([2])))

    release(spool_of(one))

    assert list(tree(tmp_path / "spool").values()) == [bytes([2]) * 100 + b"text 2"]
    assert [sample.key for sample in other.samples()] == ["s02"]
    assert [sample.key for sample in local.bring(batch).samples()] == ["s01"]


def test_batches_come_in_order_and_ahead_of_their_turn(pairs: tuple[MemoryStore, Fetched, Records]) -> None:
    """One batch is fetched while another is built; when the second is asked for, the fourth is on its way."""
    memory, local, records = pairs
    batches = (records.take(np.arange(start, start + 4)) for start in range(0, 20, 4))

    coming = local.brought(batches)
    first = next(coming)
    after = memory.requests.get
    rest = list(coming)

    assert after >= 8
    keys = [sample.key for batch in [first, *rest] for sample in batch.samples()]
    assert keys == [f"s{number:02d}" for number in range(20)]


def test_an_object_that_was_replaced_is_refused(pairs: tuple[MemoryStore, Fetched, Records]) -> None:
    """Same size, other bytes: its tag is not the one that was listed."""
    memory, local, records = pairs
    memory.write("raw/s05.txt", b"TEXT 5")

    with pytest.raises(Refused, match=r"raw/s05\.txt was replaced"):
        local.bring(records.take(np.array([5])))


def test_many_objects_are_asked_for_at_once(
    pairs: tuple[MemoryStore, Fetched, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request waits until all of them are there: with fewer at once the barrier would break."""
    memory, local, records = pairs
    together = threading.Barrier(40, timeout=60)
    real = memory.fetch

    def fetch(key: str) -> Blob:
        together.wait()
        return real(key)

    monkeypatch.setattr(memory, "fetch", fetch)

    batch = local.bring(records.take(np.arange(20)))

    assert len(list(batch.samples())) == 20
    assert together.n_waiting == 0
    assert not together.broken


def test_a_large_object_comes_in_ranges(memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at a time, each of the listed version; the file is the object."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", 10)
    monkeypatch.setattr(fetching, "PART_BYTES", 64)
    data = b"".join(b'{"id": %d}\n' % n for n in range(100))
    memory.write("raw/a.jsonl", data)

    with fetched(scan("memory://bucket/raw"), tmp_path / "spool") as local:
        (plain,) = local.lines
        found = Path(plain.path).read_bytes()

    assert found == data
    assert memory.requests.get == -(-len(data) // 64)
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("name", ["empty.jsonl", "small.jsonl"])
def test_objects_of_any_size_are_laid_down(memory: MemoryStore, tmp_path: Path, name: str) -> None:
    """An empty one is an empty file."""
    memory.write("raw/empty.jsonl", b"")
    memory.write("raw/small.jsonl", b"{}\n")

    with fetched(scan(f"memory://bucket/raw/{name}"), tmp_path / "spool") as local:
        assert Path(local.lines[0].path).read_bytes() == memory.objects[f"raw/{name}"][0]


def test_local_files_are_read_where_they_are(tmp_path: Path) -> None:
    """Bringing and releasing them does nothing to them."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_bytes(b"x")
    sources: Sources = scan(tmp_path / "raw")

    with fetched(sources, tmp_path / "spool") as local:
        batch = list_records(sources, local).take(np.arange(1))
        brought = local.bring(batch)
        release(spool_of(brought))

    assert brought is batch
    assert spool_of(brought) is None
    assert (tmp_path / "raw" / "a.txt").exists()
    assert local.requests == 0


def test_a_damaged_file_leaves_no_spool(tmp_path: Path) -> None:
    """Whatever ends the block, what was laid down is removed."""
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain")

    with (
        pytest.raises(InputError, match=r"a\.jsonl\.gz is not a whole gzip file"),
        fetched(scan(tmp_path / "a.jsonl.gz"), tmp_path / "spool"),
    ):
        pass
    assert not (tmp_path / "spool").exists()


@pytest.fixture
def flips(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the next reads have a bit wrong, as a list of one number."""
    left, real, whole = [0], memory.stream, memory.fetch

    def stream(key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        for piece in real(key, start=start, stop=stop, etag=etag):
            left[0] -= 1
            yield memoryview(bytes([piece[0] ^ (left[0] >= 0)]) + bytes(piece[1:]))

    def fetch(key: str) -> Blob:
        blob = whole(key)
        left[0] -= 1
        return Blob(blob.info, bytes([blob.data[0] ^ (left[0] >= 0)]) + blob.data[1:])

    monkeypatch.setattr(memory, "stream", stream)
    monkeypatch.setattr(memory, "fetch", fetch)
    return left


@pytest.mark.parametrize("small_bytes", [10, 2**20])
@pytest.mark.parametrize("times", [1, 2])
def test_a_bit_that_flips_on_the_way_is_not_packed(
    memory: MemoryStore,
    flips: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
    times: int,
) -> None:
    """Small or in ranges: the object is asked for again until it is what its tag stands for."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", small_bytes)
    memory.write("raw/a.jsonl", b'{"id": 1}\n')
    flips[0] = times

    with fetched(scan("memory://bucket/raw"), tmp_path / "spool") as local:
        found = Path(local.lines[0].path).read_bytes()

    assert found == b'{"id": 1}\n'
    assert flips[0] < 0


@pytest.mark.parametrize("small_bytes", [5, 2**20])
def test_an_object_that_stays_wrong_is_named(
    memory: MemoryStore, flips: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    """Not the user's record is blamed, but the object."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", small_bytes)
    memory.write("raw/a.jsonl", b'{"id": 1}\n')
    flips[0] = 10**6

    with (
        pytest.raises(IntegrityError, match=r"memory://bucket/raw/a\.jsonl: the bytes that arrived"),
        fetched(scan("memory://bucket/raw"), tmp_path / "spool"),
    ):
        pass


@pytest.mark.parametrize(("times", "num_readings"), [(0, 2), (1, 3)])
def test_a_tag_of_unknown_parts_needs_two_readings_that_agree(
    memory: MemoryStore,
    flips: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    num_readings: int,
) -> None:
    """A part size that no usual tool has: the bytes are believed when they have come twice."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", 5)
    lines = [b'{"id": 1}\n', b'{"id": 2}\n']
    memory.upload("raw/a.jsonl", MemoryBody(b"".join(lines), part_bytes=10), connections=1)
    flips[0] = times
    before = memory.requests.get

    with fetched(scan("memory://bucket/raw"), tmp_path / "spool") as local:
        found = Path(local.lines[0].path).read_bytes()

    assert found == b"".join(lines)
    assert memory.requests.get - before == num_readings


def test_a_spool_that_was_cut_is_refused(pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path) -> None:
    """Nothing shorter than was listed is taken for a file."""
    _, local, records = pairs
    batch = local.bring(records.take(np.array([1])))
    (path,) = (tmp_path / "spool" / "fetched").iterdir()
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(InputError, match="changed while it was packed"):
        list(batch.samples())


def test_objects_of_all_sizes_share_a_spool(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones whole, large ones in ranges, each at its place."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", 10)
    monkeypatch.setattr(fetching, "PART_BYTES", 7)
    files = {f"raw/s{number}.bin": bytes([number]) * (number * 5 + 1) for number in range(8)}
    for key, data in files.items():
        memory.write(key, data)

    sources = scan("memory://bucket/raw")
    with fetched(sources, tmp_path / "spool") as local:
        records = list_records(sources, local)
        samples = list(local.bring(records.take(np.array([7, 0, 3, 5]))).samples())

    assert [(f"raw/{one.key}.bin", one.parts["bin"]) for one in samples] == [
        (f"raw/s{number}.bin", files[f"raw/s{number}.bin"]) for number in (7, 0, 3, 5)
    ]


def test_an_error_lets_no_thread_write_on(
    pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is closed when the last of them has ended, so that none writes into what was opened next."""
    memory, local, records = pairs
    failed, running = threading.Event(), []
    real = memory.fetch

    def fetch(key: str) -> Blob:
        if key.endswith("s00.bin"):
            failed.set()
            raise Refused("replaced")
        failed.wait(60)
        running.append(key)
        blob = real(key)
        running.remove(key)
        return blob

    monkeypatch.setattr(memory, "fetch", fetch)

    with pytest.raises(Refused, match="replaced"):
        local.bring(records.take(np.arange(20)))

    assert running == []
    assert memory.requests.get < 40


def test_an_object_that_is_also_a_folder_is_named(memory: MemoryStore, tmp_path: Path) -> None:
    """A store may hold both, a disk cannot: the key is told, not our own place."""
    memory.write("raw/x.jsonl", b'{"id": "a"}\n')
    memory.write("raw/x.jsonl/y.jsonl", b'{"id": "b"}\n')

    with (
        pytest.raises(InputError, match=r"raw/x\.jsonl/y\.jsonl lies below x\.jsonl, which is an object and no folder"),
        fetched(scan("memory://bucket/raw"), tmp_path / "spool"),
    ):
        raise AssertionError("it is fetched")


def test_a_large_object_that_is_also_a_folder_is_named_before_anything_is_fetched(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever batches the two are in; small ones never lie by themselves, and are packed."""
    memory.write("raw/a.bin", b"large" * 10)
    memory.write("raw/a.bin/b.bin", b"large" * 10)
    with fetched(scan("memory://bucket/raw"), tmp_path / "spool") as local:
        assert len(list_records(scan("memory://bucket/raw"), local).keys) == 2
    monkeypatch.setattr(fetching, "SMALL_BYTES", 10)

    with (
        pytest.raises(InputError, match=r"raw/a\.bin/b\.bin lies below a\.bin, which is an object and no folder"),
        fetched(scan("memory://bucket/raw"), tmp_path / "spool"),
    ):
        pass

    assert memory.requests.get == 0
