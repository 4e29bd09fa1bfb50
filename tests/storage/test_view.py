"""What `storage/view` promises: a dataset is read where it lies, by few requests, each shard of one version."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from datakit import open_dataset
from datakit.data.digest import entry_of
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import InputError, IntegrityError, NotAllowed, NotFound, Refused, StoreUnavailable, UsageError
from datakit.storage.counts import RequestCounts
from datakit.storage.moves import SyncSettings
from datakit.storage.sync import sync
from datakit.storage.view import View, open_view
from support.commits import make_commit
from support.faulty import Fault, FaultyServer
from support.packing import raw_lines, samples_of, small_pack, write_lines
from support.s3server import S3Server


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of 150 lines in several shards."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(150)), tmp_path / "ds")
    return tmp_path / "ds"


def publish(dataset: Path, server: FaultyServer) -> str:
    """The dataset on the faulty server; gives its URL."""
    for path in dataset.iterdir():
        server.put(f"data/ds/{path.name}", path.read_bytes())
    server.log.clear()
    return f"{server.url}/data/ds"


def lines_of(view: View) -> dict[str, bytes]:
    """Every line of the dataset, each by one read."""
    found = {}
    for shard, index in view.indexes():
        for row in index.rows():
            place = row.parts["json"]
            found[row.key] = view.read(shard, place.offset, place.size)
    return found


def test_a_directory_and_a_url_look_the_same(dataset: Path, bucket: str) -> None:
    """Manifest, indexes and any bytes, from S3 and from the disk."""
    sync(dataset, f"{bucket}/data/ds")
    expected = {sample.key: sample.parts["json"] for sample in samples_of(dataset)}

    here, there = open_view(dataset), open_view(f"{bucket}/data/ds/")

    assert len(here.contents.shards) > 2
    assert here.manifest == there.manifest
    assert lines_of(here) == lines_of(there) == expected
    assert (here.where, here.path) == (str(dataset), dataset)
    assert (there.where, there.path) == (f"{bucket}/data/ds", None)
    assert here.requests == RequestCounts()


def test_looking_costs_what_it_says(dataset: Path, faulty: FaultyServer) -> None:
    """One request for the manifest, one an index, one a read, one for the version of a shard; nothing else moves."""
    view = open_view(publish(dataset, faulty))
    shard = view.contents.shards[0]
    place = view.index(shard).row(3).parts["json"]

    view.read(shard, place.offset, place.size)
    view.read(shard, 0, 512)

    assert [(method, key.rpartition("/")[2], span) for method, key, span in faulty.log] == [
        ("GET", MANIFEST_NAME, ""),
        ("GET", shard.index_name, ""),
        ("HEAD", shard.name, ""),
        ("GET", shard.name, f"bytes={place.offset}-{place.offset + place.size - 1}"),
        ("GET", shard.name, "bytes=0-511"),
    ]
    small = sum((dataset / name).stat().st_size for name in (MANIFEST_NAME, shard.index_name))
    assert view.requests == RequestCounts(get=4, head=1, bytes_in=small + place.size + 512)


def test_a_listing_spares_the_requests_for_versions(dataset: Path, faulty: FaultyServer) -> None:
    """Once listed, a shard's first read is one request; and everything there is told by its name."""
    url = publish(dataset, faulty)
    faulty.put("data/ds/sub/stray", b"x")
    faulty.put("data/ds-other/manifest.json", b"x")
    view = open_view(url)

    found = view.files()
    view.read(view.contents.shards[1], 0, 512)

    assert {name: info.bytes for name, info in found.items()} == {
        **{path.name: path.stat().st_size for path in dataset.iterdir()},
        "sub/stray": 1,
    }
    assert (view.requests.list, view.requests.head, view.requests.get) == (1, 0, 2)


def test_no_byte_and_the_last_byte_can_be_read(dataset: Path, faulty: FaultyServer) -> None:
    """An empty part needs no request of its own."""
    for view in (open_view(dataset), open_view(publish(dataset, faulty))):
        shard = view.contents.shards[0]
        size = view.manifest.member(shard.name).bytes

        assert view.read(shard, 700, 0) == b""
        assert view.read(shard, size - 1, 1) == b"\0"
        assert b"".join(map(bytes, view.stream(shard, 0, size))) == (dataset / shard.name).read_bytes()


def test_a_replaced_shard_is_refused(dataset: Path, faulty: FaultyServer) -> None:
    """All reads of a shard are of one version, though the bytes asked for may be whole in both."""
    view = open_view(publish(dataset, faulty))
    shard = view.contents.shards[0]
    data = view.read(shard, 0, 512)

    faulty.put(f"data/ds/{shard.name}", data + bytes((dataset / shard.name).stat().st_size - 512))

    with pytest.raises(Refused, match=rf"{shard.name} was replaced while it was in use"):
        view.read(shard, 0, 512)


def test_a_replaced_file_is_refused(dataset: Path) -> None:
    """On the disk too: another file under the name is another version."""
    view = open_view(dataset)
    shard = view.contents.shards[0]
    data = view.read(shard, 0, 512)
    path = dataset / shard.name
    whole = path.read_bytes()
    path.rename(dataset / "aside")

    path.write_bytes(data + bytes(len(whole) - 512))

    with pytest.raises(Refused, match="was replaced while it was in use"):
        view.read(shard, 0, 512)


def test_trouble_of_the_way_is_borne(dataset: Path, faulty: FaultyServer) -> None:
    """Busy, cut, hung up: tried again as in sync, each try counted."""
    url = publish(dataset, faulty)
    faulty.faults = [
        Fault("busy", key=".*manifest.json"),
        Fault("cut", key=r".*index\.arrow"),
        Fault("hang-up", method="HEAD"),
        Fault("cut", key=r".*\.tar"),
        Fault("broken", key=r".*\.tar"),
    ]

    view = open_view(url)
    shard = view.contents.shards[0]

    assert lines_of(view)[view.index(shard).key(0)]
    assert view.requests.get == len(faulty.asked("GET"))
    assert view.requests.head == len(faulty.asked("HEAD"))
    assert not any(fault.times for fault in faulty.faults)


def test_a_store_that_stays_busy_is_given_up(dataset: Path, faulty: FaultyServer) -> None:
    """After the tries that the settings allow."""
    url = publish(dataset, faulty)
    faulty.faults = [Fault("busy", times=100)]

    with pytest.raises(StoreUnavailable, match="busy or broken"):
        open_view(url, settings=SyncSettings(retries=1))

    assert len(faulty.asked("GET")) == 2


def test_a_shard_of_another_size_is_not_read(dataset: Path, faulty: FaultyServer) -> None:
    """Both sizes are named, and where to see all damage."""
    url = publish(dataset, faulty)
    view = open_view(url)
    shard = view.contents.shards[0]
    whole = (dataset / shard.name).read_bytes()
    faulty.put(f"data/ds/{shard.name}", whole[:-512])

    with pytest.raises(IntegrityError, match=f"has {len(whole) - 512} bytes, the manifest says {len(whole)}") as caught:
        view.read(shard, 0, 512)

    assert caught.value.hint == f"See all damage: datakit verify {url}"


def test_a_lost_shard_is_named(dataset: Path, faulty: FaultyServer) -> None:
    """By its URL; what else is there can be read."""
    view = open_view(publish(dataset, faulty))
    lost, other = view.contents.shards[:2]
    del faulty.objects[f"data/ds/{lost.name}"]

    with pytest.raises(NotFound, match=lost.name):
        view.read(lost, 0, 512)
    assert view.read(other, 0, 512)


@pytest.mark.parametrize("change", [lambda data: data[:100], lambda data: data.replace(b"r0", b"x0")])
def test_a_damaged_index_is_not_believed(dataset: Path, faulty: FaultyServer, change) -> None:  # type: ignore[no-untyped-def]  # bytes to bytes
    """A short one, and one that is a whole Arrow file with other keys."""
    url = publish(dataset, faulty)
    view = open_view(url)
    shard = view.contents.shards[0]
    key = f"data/ds/{shard.index_name}"
    faulty.put(key, change(faulty.objects[key][0]))

    with pytest.raises(IntegrityError, match=rf"{url}/{shard.index_name} has ") as caught:
        view.index(shard)

    assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {url}"


def test_an_index_of_what_is_no_text_is_refused_whatever_vouches_for_it(dataset: Path) -> None:
    """A sentence that names it, and no UnicodeDecodeError in the middle of an epoch."""
    shard = open_view(dataset).contents.shards[0]
    path, manifest = dataset / shard.index_name, dataset / MANIFEST_NAME
    old = entry_of(path.name, path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"r0", b"r\xff"))
    new = entry_of(path.name, path.read_bytes())
    data = manifest.read_bytes()
    for was, is_now in ((old.sha256, new.sha256), (old.md5, new.md5), (old.crc32c[0], new.crc32c[0])):
        data = data.replace(was.encode(), is_now.encode())
    manifest.write_bytes(data)

    with pytest.raises(IntegrityError, match=f"{shard.index_name}: it holds what is no text"):
        open_view(dataset).index(shard)
    with pytest.raises(IntegrityError, match=f"{shard.index_name}: it holds what is no text"):
        open_dataset(dataset)[0]


def test_a_manifest_that_contradicts_itself_is_named_and_the_hint_mends_it(dataset: Path, tmp_path: Path) -> None:
    """`sync --repair` replaces it by that of a whole copy."""
    sync(dataset, tmp_path / "copy")
    manifest = dataset / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes().replace(b'"samples": 150', b'"samples": "many"'))

    with pytest.raises(IntegrityError, match=r"ds/manifest\.json: the manifest's field samples is missing") as caught:
        _ = open_view(dataset).contents
    assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {dataset}"
    sync(tmp_path / "copy", dataset, repair=True)

    assert open_view(dataset).contents.samples == 150


def test_indexes_come_in_order_few_at_a_time(dataset: Path, faulty: FaultyServer) -> None:
    """Chosen shards in the order asked for; never more ahead than the concurrency."""
    view = open_view(publish(dataset, faulty), settings=SyncSettings(concurrency=2))
    chosen = [*reversed(view.contents.shards), view.contents.shards[0]]

    several = view.indexes(chosen)
    first = next(several)
    asked = len(faulty.asked("GET", r".*index\.arrow"))
    rest = list(several)

    assert asked <= 2
    assert [shard for shard, _ in (first, *rest)] == chosen
    assert [index.key(0) for _, index in rest] == [view.index(shard).key(0) for shard in chosen[1:]]


def test_leaving_early_leaves_no_thread(dataset: Path, faulty: FaultyServer) -> None:
    """Who has found what it looked for stops, and what was asked ahead is dropped."""

    def fetchers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("datakit-view")]

    several = open_view(publish(dataset, faulty)).indexes()
    next(several)
    working = fetchers()
    several.close()  # type: ignore[attr-defined]  # a generator

    assert working != []
    assert fetchers() == []


def test_a_place_that_is_no_dataset_says_so(tmp_path: Path, s3: S3Server, bucket: str) -> None:
    """Nothing, a file, a checkpoint, no bucket, a scheme nobody knows."""
    make_commit(tmp_path / "step-00000001", {"state": b"x"}, kind="checkpoint")
    file = write_lines(tmp_path / "raw.jsonl", raw_lines(3))
    s3.put(f"{bucket.removeprefix('s3://')}/junk/manifest.json", b"junk")

    with pytest.raises(NotFound, match="nowhere is not there"):
        open_view(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"has no manifest\.json, so nothing is committed there"):
        open_view(tmp_path)
    with pytest.raises(InputError, match=r"raw\.jsonl is a file, not a dataset's directory"):
        open_view(file)
    with pytest.raises(NotFound, match=rf"{bucket}/nowhere has no manifest\.json, so nothing is committed there"):
        open_view(f"{bucket}/nowhere")
    with pytest.raises(IntegrityError, match=rf"{bucket}/junk/manifest\.json: the manifest is not JSON"):
        open_view(f"{bucket}/junk")
    with pytest.raises(NotFound, match="bucket s3://no-such-bucket does not exist"):
        open_view("s3://no-such-bucket/ds")
    with pytest.raises(UsageError, match="a scheme that datakit does not know"):
        open_view("nosuch://host/ds")
    with pytest.raises(InputError, match="is a checkpoint, not a dataset"):
        _ = open_view(tmp_path / "step-00000001").contents


def test_what_is_not_allowed_is_said(faulty: FaultyServer) -> None:
    """No retry, exit code 6."""
    faulty.faults = [Fault("denied")]

    with pytest.raises(NotAllowed, match="access is denied"):
        open_view(f"{faulty.url}/ds")
