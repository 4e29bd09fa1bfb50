"""pack/fetching: objects of a store as plain local files, batch by batch, each in the version that was listed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from datakit import InputError, Refused
from datakit.pack import fetching
from datakit.pack.fetching import Fetched, fetched
from datakit.pack.listing import list_records
from datakit.pack.records import Records
from datakit.pack.scan import Sources, scan
from datakit.storage import store
from datakit.storage.objects import Blob, Store
from datakit.storage.store import Location
from support.memory import MemoryStore
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


def test_nothing_is_fetched_before_its_turn(pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path) -> None:
    """A plan needs the listing alone; a batch costs one request an object."""
    memory, local, records = pairs
    before = memory.requests
    batch = records.take(np.array([3, 17]))

    local.bring(batch)
    samples = list(batch.samples())

    assert before.get == 0
    assert [sample.key for sample in samples] == ["s03", "s17"]
    assert samples[1].parts == {"bin": bytes([17]) * 100, "txt": b"text 17"}
    assert (memory.requests - before).get == 4
    assert local.requests >= 4
    assert len(tree(tmp_path / "spool")) == 4


def test_what_was_built_is_removed(pairs: tuple[MemoryStore, Fetched, Records], tmp_path: Path) -> None:
    """So that a folder larger than the disk can be packed; a batch can be brought again."""
    _, local, records = pairs
    one, other = records.take(np.array([1])), records.take(np.array([2]))
    local.bring(one)
    local.bring(other)

    local.release(one)

    assert sorted(tree(tmp_path / "spool")) == ["fetched/s02.bin", "fetched/s02.txt"]
    local.bring(one)
    assert len(list(one.samples())) == 1


def test_batches_are_brought_from_several_threads(pairs: tuple[MemoryStore, Fetched, Records]) -> None:
    """One batch is fetched while another is built."""
    _, local, records = pairs
    batches = [records.take(np.arange(start, start + 5)) for start in range(0, 20, 5)]
    threads = [threading.Thread(target=local.bring, args=(batch,)) for batch in batches]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [sample.key for batch in batches for sample in batch.samples()] == [f"s{n:02d}" for n in range(20)]


def test_an_object_that_was_replaced_is_refused(pairs: tuple[MemoryStore, Fetched, Records]) -> None:
    """Same size, other bytes: its tag is not the one that was listed."""
    memory, local, records = pairs
    memory.write("raw/s05.txt", b"TEXT 5")

    with pytest.raises(Refused, match=r"raw/s05\.txt was replaced"):
        local.bring(records.take(np.array([5])))


def test_many_objects_are_asked_for_at_once(
    pairs: tuple[MemoryStore, Fetched, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request waits until all of them are there: with fewer at once this would never end."""
    memory, local, records = pairs
    together = threading.Barrier(40, timeout=60)
    real = memory.fetch

    def fetch(key: str) -> Blob:
        together.wait()
        return real(key)

    monkeypatch.setattr(memory, "fetch", fetch)

    local.bring(records.take(np.arange(20)))

    assert fetching.CONCURRENCY >= 40


def test_a_large_object_comes_in_ranges(memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at a time, each of the listed version; the file is the object."""
    monkeypatch.setattr(fetching, "SMALL_BYTES", 10)
    monkeypatch.setattr(fetching, "PIECE_BYTES", 64)
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
        local.bring(batch)
        local.release(batch)

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
