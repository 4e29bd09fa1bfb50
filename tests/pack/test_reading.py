"""pack/reading: what is in a dataset, without reading shards, and one part, byte for byte."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datakit import InputError, IntegrityError, NotFound, UsageError
from datakit.data.digest import entry_of
from datakit.data.shard import Sample
from datakit.pack.reading import PartSizes, cat, find_part, inspect
from datakit.storage.commit import commit, read_manifest
from support.datasets import lines, make_dataset, publish
from support.faulty import FaultyServer, faulty_server
from support.packing import raw_lines, samples_of, small_pack, write_lines, write_pairs


@contextlib.contextmanager
def serving_faulty() -> Iterator[FaultyServer]:
    """An S3 server in this process, to which the environment leads."""
    with faulty_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A dataset of 60 pairs."""
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds")
    return tmp_path / "ds"


def test_inspection_agrees_with_the_samples(pairs: Path) -> None:
    """Totals, digests, settings, sizes and the first samples are those of the bytes."""
    manifest, samples = read_manifest(pairs), samples_of(pairs)

    found = inspect(pairs, show=2)

    sizes = sorted(len(sample.parts["jpg"]) for sample in samples)
    assert found.parts["jpg"] == PartSizes(
        samples=60,
        total_bytes=sum(sizes),
        smallest_bytes=sizes[0],
        median_bytes=sizes[29],
        largest_bytes=sizes[-1],
        histogram={
            bound: count
            for bound in (128, 256, 512, 1024, 2048, 4096)
            if (count := sum(bound // 2 <= size < bound for size in sizes))
        },
    )
    assert (found.samples, found.shards, found.tokens) == (60, len(manifest.contents.shards), None)
    assert found.payload_bytes == sum(len(data) for sample in samples for data in sample.parts.values())
    assert found.shard_bytes == sum(entry.bytes for entry in manifest.members if entry.name.endswith(".tar"))
    assert found.manifest_digest == manifest.digest
    assert found.pack["layout"] == "stable"
    assert [(look.key, look.parts) for look in found.first_samples] == [
        (sample.key, {part: len(data) for part, data in sample.parts.items()}) for sample in samples[:2]
    ]


def test_inspection_reads_no_shard(pairs: Path) -> None:
    """It works where shards have not been fetched yet."""
    for shard in pairs.glob("*.tar"):
        shard.unlink()

    assert inspect(pairs, show=100).samples == 60
    assert len(inspect(pairs, show=100).first_samples) == 60
    assert inspect(pairs, show=0).first_samples == ()


def test_parts_of_some_samples_are_counted(tmp_path: Path) -> None:
    """A part that only some samples have, and one that is empty, are told apart."""
    samples = [Sample("a", {"txt": b""}), Sample("b", {"cls": b"1", "txt": b"12345"}), Sample("c", {"txt": b"1"})]

    parts = inspect(make_dataset(tmp_path / "ds", [samples])).parts

    assert parts["cls"] == PartSizes(1, 1, 1, 1, 1, {2: 1})
    assert parts["txt"] == PartSizes(3, 6, 0, 1, 5, {1: 1, 2: 1, 8: 1})


def test_every_part_of_every_sample_comes_out_as_it_went_in(pairs: Path) -> None:
    """By key and part, or by `KEY.PART`."""
    raw = pairs.parent / "raw"

    for sample in samples_of(pairs):
        for part in ("jpg", "json"):
            data = (raw / f"{sample.key}.{part}").read_bytes()
            assert cat(pairs, sample.key, part=part) == cat(pairs, f"{sample.key}.{part}") == data


def test_the_only_part_needs_no_name(tmp_path: Path) -> None:
    """A JSONL record is its line."""
    lines = raw_lines(40)
    small_pack(write_lines(tmp_path / "raw.jsonl", lines), tmp_path / "ds")

    assert cat(tmp_path / "ds", "r00007") == lines[7]
    assert json.loads(cat(tmp_path / "ds", "r00007.json"))["id"] == "r00007"


def test_what_is_not_there_is_said_with_what_is(pairs: Path) -> None:
    """No such sample, no such part, several parts and none named."""
    with pytest.raises(NotFound, match="has no sample 'nobody'"):
        cat(pairs, "nobody")
    with pytest.raises(NotFound, match=r"has no part png\. Name one that it has: 0/img-0000\.jpg, 0/img-0000\.json"):
        cat(pairs, "0/img-0000.png")
    with pytest.raises(UsageError, match="sample 0/img-0000 has 2 parts") as caught:
        cat(pairs, "0/img-0000")
    assert caught.value.hint == "Name one: 0/img-0000.jpg, 0/img-0000.json"
    with pytest.raises(NotFound, match="nowhere is not there"):
        inspect(pairs / "nowhere")


def test_only_datasets_are_looked_into(tmp_path: Path) -> None:
    """A checkpoint has no samples."""
    with commit(tmp_path / "c", kind="checkpoint", name="c") as staging:
        staging.write("state.json", b"{}")

    with pytest.raises(InputError, match="not a dataset"):
        inspect(tmp_path / "c")


def test_damaged_bytes_are_not_handed_out(pairs: Path) -> None:
    """One flipped bit of a part: its checksum says so, and where to see all damage; other samples are fine."""
    sample = samples_of(pairs)[0]
    shard = next(pairs / s.name for s in read_manifest(pairs).contents.shards)
    data = bytearray(shard.read_bytes())
    data[data.index(sample.parts["jpg"])] ^= 1
    shard.write_bytes(data)

    with pytest.raises(IntegrityError, match=rf"part jpg of sample {sample.key} has crc32c") as caught:
        cat(pairs, sample.key, part="jpg")
    assert caught.value.hint == f"See all damage: datakit verify {pairs}"
    assert cat(pairs, sample.key, part="json") == sample.parts["json"]


def test_a_damaged_index_is_named(pairs: Path) -> None:
    """Which of them, and the command that mends it."""
    index = next(pairs / s.index_name for s in read_manifest(pairs).contents.shards)
    index.write_bytes(index.read_bytes()[:100])

    for look in (lambda: inspect(pairs), lambda: cat(pairs, "0/img-0000", part="jpg")):
        with pytest.raises(IntegrityError, match=rf"{index.name} has 100 bytes, the manifest says") as caught:
            look()
        assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {pairs}"
    assert entry_of(index.name, index.read_bytes()) != read_manifest(pairs).member(index.name)


def test_a_changed_key_in_an_index_is_not_believed(pairs: Path) -> None:
    """An index of the right size with one other byte is a whole Arrow file; only the manifest knows better."""
    index = next(pairs / s.index_name for s in read_manifest(pairs).contents.shards)
    key = samples_of(pairs)[0].key.encode()
    index.write_bytes(index.read_bytes().replace(key, b"z" + key[1:]))

    for look in (lambda: inspect(pairs), lambda: cat(pairs, "z" + key[1:].decode(), part="jpg")):
        with pytest.raises(IntegrityError, match=rf"{index.name} has crc32c \w+ in its bytes 0 to \d+, the manifest"):
            look()


def test_a_file_is_not_called_absent(tmp_path: Path) -> None:
    """Records that are not packed yet are there; the hint says what makes a dataset of them."""
    file = write_lines(tmp_path / "raw.jsonl", raw_lines(3))

    for look in (lambda: inspect(file), lambda: cat(file, "a")):
        with pytest.raises(InputError, match=r"raw\.jsonl is a file, not a dataset's directory") as caught:
            look()
        assert caught.value.hint == f"Pack it: datakit pack {file} DEST"


def test_a_url_is_looked_into_without_fetching_shards(tmp_path: Path) -> None:
    """The same report from object storage, for one request a manifest and one an index."""
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds")
    here = inspect(tmp_path / "ds")

    with serving_faulty() as server:
        url = publish(tmp_path / "ds", server)
        there = inspect(url)
        asked = [key for _, key, _ in server.log]

    assert there.path == url
    assert replace(there, path=here.path, requests=here.requests) == here
    assert not any(key.endswith(".tar") for key in asked)
    assert (there.requests.get, there.requests.total) == (1 + here.shards, 1 + here.shards)
    assert here.requests.total == 0


def test_a_part_is_read_from_a_url_by_two_requests(tmp_path: Path) -> None:
    """Whatever the search cost: the version of the shard, and the bytes of the part alone."""
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds")
    sample = samples_of(tmp_path / "ds")[0]

    with serving_faulty() as server:
        url = publish(tmp_path / "ds", server)
        found = find_part(url, f"{sample.key}.jpg")
        shards = [line for line in server.log if line[1].endswith(".tar")]

    assert found.data == sample.parts["jpg"]
    assert [(method, span) for method, _, span in shards] == [
        ("HEAD", ""),
        ("GET", f"bytes={found.offset}-{found.offset + len(found.data) - 1}"),
    ]
    assert (found.indexes_read, found.dataset, found.part) == (1, url, "jpg")
    assert found.requests.head == 1


def test_a_key_is_guessed_where_shards_are_in_its_order(tmp_path: Path) -> None:
    """Of 30 indexes at most 5 are read; a key that no shard has costs all of them."""
    dataset = make_dataset(tmp_path / "ds", [lines(at, at + 5) for at in range(0, 150, 5)])

    costs = [find_part(dataset, f"r{number:05d}").indexes_read for number in range(150)]
    with pytest.raises(NotFound, match="has no sample 'r00042x'"):
        cat(dataset, "r00042x")

    assert max(costs) <= 5
    assert [cat(dataset, f"r{number:05d}") for number in (0, 77, 149)] == [raw_lines(150)[n] for n in (0, 77, 149)]


def test_a_guess_that_fails_leaves_nothing_out(tmp_path: Path) -> None:
    """Shards in no order: every sample is found all the same, and no index is read twice."""
    order = [3, 0, 4, 1, 2, 6, 5]
    dataset = make_dataset(tmp_path / "ds", [lines(at * 5, at * 5 + 5) for at in order])

    found = [find_part(dataset, f"r{number:05d}") for number in range(35)]

    assert [each.data for each in found] == raw_lines(35)
    assert max(each.indexes_read for each in found) <= 7


def test_lines_of_a_bundle_are_read_one_by_one(tmp_path: Path) -> None:
    """The index addresses the line, not its member."""
    dataset = make_dataset(tmp_path / "ds", [lines(0, 25), lines(25, 40)], bundle=10)

    assert [cat(dataset, f"r{number:05d}") for number in range(40)] == raw_lines(40)
    assert inspect(dataset).parts["json"].samples == 40


def test_damaged_bytes_of_a_url_are_not_handed_out(tmp_path: Path) -> None:
    """The hint names the URL."""
    dataset = make_dataset(tmp_path / "ds", [lines(0, 5)])
    with serving_faulty() as server:
        url = publish(dataset, server)
        key = next(key for key in server.objects if key.endswith(".tar"))
        server.put(key, server.objects[key][0].replace(b"r00002", b"r00009"))

        with pytest.raises(
            IntegrityError, match=rf"{url}/ds-\w+\.tar: part json of sample r00002 has crc32c"
        ) as caught:
            cat(url, "r00002")

    assert caught.value.hint == f"See all damage: datakit verify {url}"
