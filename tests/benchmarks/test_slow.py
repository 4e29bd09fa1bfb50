"""The slow server: an S3 store as clients see one, with a delay before each answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pack_s3
from datakit.pack.build import pack
from datakit.storage.store import open_location
from frame.claim import Work
from frame.slow import PAGE_KEYS, Bucket
from support.packing import samples_of, write_pairs


@pytest.fixture
def buckets(tmp_path: Path) -> Path:
    """A bucket of 20 pairs."""
    write_pairs(tmp_path / "buckets" / "bench" / "pairs", 20)
    return tmp_path / "buckets"


def environment(endpoint: str) -> dict[str, str]:
    work = Work(Path(), Path(), {"endpoint": endpoint}, proof=False, python=Path())
    return dict(pack_s3.credentials(work))


def test_a_client_of_s3_lists_and_reads_it(buckets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, sizes, whole objects, ranges and tags are those of the files."""
    files = {path.relative_to(buckets / "bench").as_posix(): path.read_bytes() for path in buckets.rglob("*.*")}
    with pack_s3.slow_bucket(buckets) as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        store = open_location("s3://bench/pairs", env=os.environ).store

        listed = {info.key: info for info in store.list("pairs")}
        key, data = next(item for item in files.items() if len(item[1]) > 100)
        read = bytes(store.read(key, start=10, stop=60, etag=listed[key].etag))
        head = store.head(key)

    assert {key: info.bytes for key, info in listed.items()} == {key: len(data) for key, data in files.items()}
    assert read == data[10:60]
    assert (head.bytes, head.etag) == (len(data), listed[key].etag)


def test_a_folder_behind_it_is_packed(buckets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What datakit packs from the server is what it packs from the files."""
    with pack_s3.slow_bucket(buckets) as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        pack("s3://bench/pairs", tmp_path / "remote" / "ds", workers=1)
    pack(buckets / "bench" / "pairs", tmp_path / "local" / "ds", workers=1)

    assert samples_of(tmp_path / "remote" / "ds") == samples_of(tmp_path / "local" / "ds")


def test_a_long_listing_comes_in_pages(tmp_path: Path) -> None:
    """A page ends where S3 ends it; the token that it gives leads on, and no key is lost or twice."""
    (tmp_path / "b").mkdir()
    for number in range(PAGE_KEYS + 5):
        (tmp_path / "b" / f"{number:05d}").touch()
    bucket = Bucket(tmp_path)

    _, _, first = bucket.answer("GET", "/b?list-type=2&prefix=", {})
    token = first.split(b"<NextContinuationToken>")[1].split(b"<")[0].decode()
    _, _, second = bucket.answer("GET", f"/b?list-type=2&prefix=&continuation-token={token}", {})

    assert (first.count(b"<Key>"), second.count(b"<Key>")) == (PAGE_KEYS, 5)
    assert b"<IsTruncated>true<" in first
    assert b"<IsTruncated>false<" in second


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """A missing object has the status and the code of S3."""
    status, _, body = Bucket(tmp_path).answer("GET", "/b/x", {})

    assert (status, b"NoSuchKey" in body) == ("404 Not Found", True)
