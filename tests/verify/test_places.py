"""verify/verify in object storage, of bundles and of side files, and of what killed writers left."""

from __future__ import annotations

import random
import tarfile
import threading
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.data.index import Index
from datakit.data.shard import BLOCK_BYTES, Sample
from datakit.errors import DatakitError, IntegrityError, NotAllowed, Refused
from datakit.events import Caution, Event
from datakit.pack.reindex import reindex
from datakit.storage import commit as commits
from datakit.storage.commit import commit, read_manifest
from datakit.storage.counts import RequestCounts
from datakit.verify import verify as room
from datakit.verify.verify import VerifyReport, verify
from support.commits import noise
from support.datasets import lines, make_dataset, publish
from support.faulty import Fault, FaultyServer
from support.packing import raw_lines, small_pack, write_lines, write_pairs
from support.tars import files_of, write_tar
from support.tars import pairs as pairs_of_files


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A dataset of 60 pairs."""
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds")
    return tmp_path / "ds"


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """Two bundled shards."""
    return make_dataset(tmp_path / "ds", [lines(0, 25), lines(25, 40)], bundle=10)


def told(report: VerifyReport) -> list[tuple[str, str | None, str | None, int | None]]:
    """The findings without their words."""
    return [(finding.file, finding.sample, finding.part, finding.byte) for finding in report.findings]


def change(server: FaultyServer, key: str, data: bytes) -> None:
    """Put other bytes under a key."""
    server.put(key, data)


def test_a_url_is_verified_by_one_request_a_file(pairs: Path, faulty: FaultyServer) -> None:
    """A listing, the manifest, and each index and shard once; nothing is written anywhere."""
    url = publish(pairs, faulty)

    report = verify(url)

    files = 2 * report.shards + 1
    assert report.findings == ()
    assert report.path == url
    assert (report.requests.get, report.requests.list, report.requests.total) == (files, 1, files + 1)
    assert report.checked_bytes == read_manifest(pairs).total_bytes
    assert report.requests.bytes_in == report.checked_bytes + (pairs / "manifest.json").stat().st_size


def test_a_quick_look_at_a_url_reads_no_shard(pairs: Path, faulty: FaultyServer) -> None:
    """The listing tells the sizes; a shard that was cut is named with what it lost, unread."""
    url = publish(pairs, faulty)
    whole = verify(url, quick=True)
    shard = read_manifest(pairs).contents.shards[1]
    rows = Index.from_buffer((pairs / shard.index_name).read_bytes()).rows()
    at = rows[2].parts["jpg"].offset - BLOCK_BYTES
    change(faulty, f"data/ds/{shard.name}", (pairs / shard.name).read_bytes()[:at])

    report = verify(url, quick=True)

    assert (whole.findings, whole.requests.get) == ((), 1 + whole.shards)
    assert told(report) == [(shard.name, rows[2].key, "jpg", at)]
    assert f"{len(rows) - 2} samples are lost" in report.findings[0].problem
    assert faulty.asked("GET", r".*\.tar") == []


@pytest.mark.parametrize("where", ["disk", "store"])
def test_random_damage_is_found_wherever_the_dataset_lies(where: str, bundled: Path, faulty: FaultyServer) -> None:
    """Flips, cuts and holes of shards: the same finding from the disk and from a bucket."""
    url = publish(bundled, faulty)
    shard = read_manifest(bundled).contents.shards[0]
    whole = (bundled / shard.name).read_bytes()
    rng = random.Random(7)

    for number in range(12):
        at = rng.randrange(len(whole) - 1024)
        data = [
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :],
            whole[:at] + bytes(900) + whole[at + 900 :],
        ][number % 3]
        (bundled / shard.name).write_bytes(data)
        change(faulty, f"data/ds/{shard.name}", data)

        report = verify(bundled if where == "disk" else url)

        assert (report.findings == ()) == (data == whole)
        assert {finding.file for finding in report.findings} <= {shard.name}
        assert all(finding.byte is not None for finding in report.findings)


def test_a_missing_and_a_foreign_object_are_found(pairs: Path, faulty: FaultyServer) -> None:
    """By the listing alone."""
    url = publish(pairs, faulty)
    lost = read_manifest(pairs).contents.shards[0]
    del faulty.objects[f"data/ds/{lost.name}"]
    change(faulty, "data/ds/ds-00000000.tar", b"x" * 1024)

    for quick in (False, True):
        foreign, missing = verify(url, quick=quick).findings
        assert str(foreign) == "ds-00000000.tar: the manifest does not name this file"
        assert missing.file == lost.name
        assert f"the shard is missing, and its {lost.samples} samples with it" in missing.problem


@pytest.mark.parametrize("where", ["disk", "store"])
def test_swapped_shards_are_told_by_name(where: str, pairs: Path, faulty: FaultyServer) -> None:
    """Whole bytes in the wrong place: each says whose it holds."""
    one, other = read_manifest(pairs).contents.shards[:2]
    first, second = ((pairs / shard.name).read_bytes() for shard in (one, other))
    (pairs / one.name).write_bytes(second)
    (pairs / other.name).write_bytes(first)
    url = publish(pairs, faulty)

    report = verify(pairs if where == "disk" else url)

    assert [str(finding) for finding in report.findings] == [
        f"{one.name}: it holds the bytes of {other.name}, its own {one.samples} samples are not there",
        f"{other.name}: it holds the bytes of {one.name}, its own {other.samples} samples are not there",
    ]


def test_large_shards_are_read_in_stretches(
    tmp_path: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by a request of its own, side by side, and once more the samples across their ends; only damage again."""
    monkeypatch.setattr(room, "SPAN_BYTES", PART_BYTES)
    samples = [Sample(name, {"bin": noise(5 * 2**20, seed)}) for seed, name in enumerate("abcdefgh")]
    dataset = make_dataset(tmp_path / "ds", [samples])
    url = publish(dataset, faulty)
    (shard,) = read_manifest(dataset).contents.shards
    whole = verify(url)
    spans = [span for _, _, span in faulty.asked("GET", r".*\.tar")]
    data = bytearray((dataset / shard.name).read_bytes())
    data[-3000] ^= 1
    change(faulty, f"data/ds/{shard.name}", bytes(data))
    faulty.log.clear()

    report = verify(url)

    assert whole.findings == ()
    begins = sorted(int(span.removeprefix("bytes=").partition("-")[0]) for span in spans)
    member = 5 * 2**20 + BLOCK_BYTES
    assert begins == [0, 3 * member, PART_BYTES, 6 * member, 2 * PART_BYTES]
    assert [(sample, part) for _, sample, part, _ in told(report)] == [("h", "bin")]


def test_a_shard_of_few_large_samples_is_one_stretch(
    tmp_path: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly each would lie across an end and be fetched twice."""
    monkeypatch.setattr(room, "SPAN_BYTES", PART_BYTES)
    samples = [Sample(name, {"bin": noise(9 * 2**20, seed)}) for seed, name in enumerate("abc")]
    url = publish(make_dataset(tmp_path / "ds", [samples]), faulty)

    report = verify(url)

    assert report.findings == ()
    assert len(faulty.asked("GET", r".*\.tar")) == 1


def test_trouble_of_the_way_is_borne_and_counted(pairs: Path, faulty: FaultyServer) -> None:
    """A busy store, a body that breaks off: the same report, some requests more."""
    url = publish(pairs, faulty)
    faulty.faults = [Fault("busy", times=2), Fault("cut", key=r".*\.tar", times=3), Fault("cut", key=r".*\.arrow")]

    report = verify(url)

    assert report.findings == ()
    assert report.requests.get == len(faulty.asked("GET")) - report.requests.list
    assert report.requests.get > 2 * report.shards + 1


def test_a_shard_that_is_replaced_meanwhile_ends_it(pairs: Path, faulty: FaultyServer) -> None:
    """Half of one version and half of another are no finding: it says so, and leaves no thread."""
    url = publish(pairs, faulty)
    faulty.faults = [Fault("replace", key=r".*\.tar")]

    with pytest.raises(Refused, match="was replaced while it was in use"):
        verify(url)

    assert [thread for thread in threading.enumerate() if thread.name.startswith("datakit-verify")] == []


def test_what_is_not_allowed_is_no_damage(pairs: Path, faulty: FaultyServer) -> None:
    """A key without permission for shards: exit code 6, not 4."""
    url = publish(pairs, faulty)
    faulty.faults = [Fault("denied", key=r".*\.tar", times=100)]

    with pytest.raises(NotAllowed, match="access is denied"):
        verify(url)


@pytest.mark.parametrize("where", ["disk", "store"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"format": 1', b'"format" 1'),
        lambda data: data.replace(b'"sha256": "', b'"sha256": "0', 1),
        lambda data: data.replace(b'"samples": 60', b'"samples": 61'),
        lambda data: data.replace(b'"layout_digest": "', b'"layout_digest": "z', 1),
        lambda _data: b"",
    ],
)
def test_a_damaged_manifest_is_an_integrity_error(damage, where: str, pairs: Path, faulty: FaultyServer) -> None:  # type: ignore[no-untyped-def]  # bytes to bytes
    """Without it nothing can be compared, so it ends there, naming the file."""
    path = pairs / "manifest.json"
    path.write_bytes(damage(path.read_bytes()))
    url = publish(pairs, faulty)

    with pytest.raises(IntegrityError) as caught:
        verify(pairs if where == "disk" else url)

    assert caught.value.exit_code == 4
    assert "manifest" in caught.value.message


def problems(dataset: Path) -> list[str]:
    """What verify says of a dataset, by a report or by ending."""
    try:
        return [str(finding) for finding in verify(dataset).findings]
    except DatakitError as error:
        return [error.message]


def test_any_changed_digit_of_a_manifest_is_found(pairs: Path) -> None:
    """Names, sizes, checksums, counts and digests; not the md5, which only DVC reads, nor what pack was told to do."""
    path = pairs / "manifest.json"
    whole = path.read_text().splitlines()
    rng = random.Random(3)
    pack = range(whole.index('    "pack": {'), next(i for i, row in enumerate(whole) if row.startswith('    "parts"')))

    for number, row in enumerate(whole):
        places = [i for i, char in enumerate(row) if char.isdigit()]
        if not places or '"md5"' in row or number in pack:
            continue
        at = rng.choice(places)
        changed = f"{row[:at]}{(int(row[at]) + 1) % 10}{row[at + 1 :]}"
        path.write_text("\n".join([*whole[:number], changed, *whole[number + 1 :]]) + "\n")

        assert problems(pairs), changed


def test_a_damaged_index_of_a_url_is_found(bundled: Path, faulty: FaultyServer) -> None:
    """And its shard is checked without it."""
    url = publish(bundled, faulty)
    shard = read_manifest(bundled).contents.shards[0]
    data = faulty.objects[f"data/ds/{shard.index_name}"][0]
    change(faulty, f"data/ds/{shard.index_name}", data[:-9] + b"x" + data[-8:])

    (finding,) = verify(url).findings

    assert finding.file == shard.index_name
    assert "the manifest says" in finding.problem


def test_tars_of_others_are_verified_in_a_bucket(tmp_path: Path, faulty: FaultyServer) -> None:
    """Folders of them too: contents by the index, headers by their own checksums, the rest by the file's."""
    write_tar(tmp_path / "t" / "sub" / "a.tar", files_of(pairs_of_files(range(30))), kind=tarfile.PAX_FORMAT)
    reindex(tmp_path / "t", workers=1)
    url = publish(tmp_path / "t", faulty, "data/t")
    key = "data/t/sub/a.tar"
    whole = faulty.objects[key][0]
    place = whole.index(pairs_of_files([7])[0].parts["jpg"])
    found = {}

    for what, at in (("none", None), ("content", place), ("header", place - 512), ("padding", len(whole) - 1)):
        data = bytearray(whole)
        if at is not None:
            data[at] ^= 4
        change(faulty, key, bytes(data))
        found[what] = told(verify(url))

    assert found == {
        "none": [],
        "content": [("sub/a.tar", "img-0007", "jpg", place)],
        "header": [("sub/a.tar", "img-0007", "jpg", place - 512)],
        "padding": [("sub/a.tar", None, None, found["padding"][0][3])],
    }


def test_side_files_are_compared_too(tmp_path: Path, faulty: FaultyServer) -> None:
    """Whatever the manifest names, below folders and behind dots as well."""
    dataset = make_dataset(tmp_path / "ds", [lines(0, 5)])
    manifest = read_manifest(dataset)
    with commit(dataset, kind="dataset", name="ds") as staging:
        for entry in manifest.members:
            staging.keep(entry.name)
        staging.write(".nv-meta/.info.json", b"{}")
        staging.write("a.idx", b"1234")
        staging.about.update(manifest.about)
    url = publish(dataset, faulty)

    assert verify(dataset).findings == verify(url).findings == ()
    (dataset / ".nv-meta/.info.json").write_bytes(b"[]")
    (dataset / "a.idx").unlink()

    damaged, missing = verify(dataset).findings
    assert damaged.file == ".nv-meta/.info.json"
    assert "bytes 0 to 2 have crc32c" in damaged.problem
    assert str(missing) == "a.idx: the file is missing"
    (finding,) = verify(dataset, quick=True).findings
    assert finding == missing


def test_leftovers_of_a_killed_renewal_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers and members of a pack that was killed: no damage, named, and gone after the next pack."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    small_pack(raw, tmp_path / "ds")
    write_lines(raw, raw_lines(100, edit={5: "other"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "_fsync_tree", _die)
        with pytest.raises(KeyboardInterrupt):
            small_pack(raw, tmp_path / "ds")
    heard: list[Event] = []

    report = verify(tmp_path / "ds", on_event=heard.append)

    assert report.findings == ()
    assert {commits.NEXT_NAME, commits.LAST_NAME} < set(report.leftovers)
    assert any(name.endswith(".tar") for name in report.leftovers)
    (caution,) = (event for event in heard if isinstance(event, Caution))
    assert f"a killed pack or sync left {len(report.leftovers)} files" in caution.message
    small_pack(raw, tmp_path / "ds")
    assert (verify(tmp_path / "ds").findings, verify(tmp_path / "ds").leftovers) == ((), ())


def _die(path: Path) -> None:
    raise KeyboardInterrupt(path)


@pytest.mark.parametrize(
    "name", [".ds-1234.tar.tmp-0123abcd", ".ds-1234.tar.0123abcd.part", ".ds-1234.tar.0123abcd.journal", ".sync.lock"]
)
def test_temporaries_of_ours_are_leftovers(name: str, pairs: Path) -> None:
    """What sync or pack leave when they are killed is known by its name."""
    (pairs / name).write_bytes(b"half")

    heard: list[Event] = []

    report = verify(pairs, on_event=heard.append)

    assert (report.findings, report.leftovers) == ((), (name,))
    (caution,) = (event for event in heard if isinstance(event, Caution))
    assert caution.message == f"a killed pack or sync left 1 file ({name})"


def test_another_hidden_file_is_foreign(pairs: Path) -> None:
    """It is nobody's of ours."""
    (pairs / ".DS_Store").write_bytes(b"x")

    (finding,) = verify(pairs).findings

    assert str(finding) == ".DS_Store: the manifest does not name this file"
    assert verify(pairs).requests == RequestCounts()
