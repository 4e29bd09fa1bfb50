"""storage/foreign: stores of fsspec as stores of ours: listed, read in a version, translated, never written to."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from datakit import InputError
from datakit.errors import (
    DatakitError,
    IntegrityError,
    MissingExtra,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnavailable,
    UsageError,
)
from datakit.pack.build import pack
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked
from datakit.storage.foreign import FsspecStore, translated
from datakit.storage.store import open_location
from support.memory import MemoryBody
from support.packing import raw_lines, tree, write_lines, write_pairs
from support.s3server import S3Server


@pytest.fixture
def place() -> Iterator[str]:
    """A bucket in the memory of this process."""
    name = f"b{uuid.uuid4().hex[:8]}"
    yield f"memory://{name}"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def put(place: str, objects: dict[str, bytes]) -> None:
    """Put objects into a bucket, as another program would."""
    fs = fsspec.filesystem("memory")
    for key, data in objects.items():
        fs.pipe_file(f"/{place.partition('://')[2]}/{key}", data)


def test_folders_are_listed_below_a_prefix(place: str) -> None:
    """Those right below it, by one request."""
    put(place, {"raw/b.txt": b"22", "raw/a/x.txt": b"1", "raw/c/d/x.txt": b"3", "raw/.e/x.txt": b"4"})
    store = FsspecStore(place)

    assert store.folders("raw") == ("a", "c")
    assert store.folders("") == ("raw",)
    assert store.requests.list == 2


def test_objects_are_listed_below_a_prefix(place: str) -> None:
    """By key, with sizes and versions; neighbours whose names begin alike are not below it."""
    put(place, {"raw/b.txt": b"22", "raw/a/x.txt": b"1", "rawer/c.txt": b"3"})
    store = FsspecStore(place)

    found = store.list("raw")

    assert [(info.key, info.bytes) for info in found] == [("raw/a/x.txt", 1), ("raw/b.txt", 2)]
    assert all(info.etag for info in found)
    assert found == [store.head(info.key) for info in found]
    assert len(store.list("")) == 3
    assert store.list("nowhere") == []
    assert (store.requests.list, store.requests.head) == (3, 2)


def test_bytes_are_read_in_a_version(place: str) -> None:
    """Whole or in part; an object that was replaced since is refused."""
    put(place, {"x": b"0123456789"})
    store = FsspecStore(place)
    was = store.head("x")

    whole, part = store.fetch("x"), store.read("x", start=2, stop=5, etag=was.etag)
    put(place, {"x": b"9876543210"})

    assert (whole.data, whole.info, part) == (b"0123456789", was, b"234")
    assert store.requests.bytes_in == 13
    assert store.fetch("x").info.etag != was.etag
    with pytest.raises(Refused, match="was replaced"):
        store.read("x", start=2, stop=5, etag=was.etag)
    with pytest.raises(IntegrityError, match="ends at byte 10"):
        store.read("x", start=5, stop=15)


def test_what_is_not_there_is_not_found(place: str) -> None:
    """An object, or a folder where an object was meant."""
    put(place, {"a/b": b"x"})
    store = FsspecStore(place)

    for act in (store.head, store.fetch):
        with pytest.raises(NotFound, match=f"{place}/gone is not there"):
            act("gone")
    with pytest.raises(NotFound, match="is a folder"):
        store.head("a")


def test_nothing_is_written(place: str) -> None:
    """And the message says where to."""
    store = FsspecStore(place)

    for act in (
        lambda: store.write("x", b"x"),
        lambda: store.upload("x", MemoryBody(b"x", part_bytes=1), connections=1),
        lambda: store.delete("x"),
    ):
        with pytest.raises(UsageError, match="does not write to them"):
            act()
    assert not store.tags_bytes("x")
    assert store.list("") == []


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (FileNotFoundError("secret"), NotFound, "is not there"),
        (PermissionError("secret"), NotAllowed, "does not allow it"),
        (NotImplementedError("secret"), UsageError, "fsspec cannot do this"),
        (ValueError("secret"), UsageError, "fsspec cannot do this"),
        (TimeoutError("secret"), StoreUnavailable, "TimeoutError"),
        (ConnectionResetError("secret"), StoreUnavailable, "ConnectionResetError"),
        (RuntimeError("secret"), StoreUnavailable, "RuntimeError"),
        (ModuleNotFoundError("secret", name="s3fs.core"), MissingExtra, "s3fs is not installed"),
        (ModuleNotFoundError("secret", name="paramiko"), UsageError, "ftp:// needs paramiko"),
    ],
)
def test_every_error_is_one_of_ours(error: Exception, kind: type[DatakitError], said: str) -> None:
    """With a sentence and a hint, and without what the library said."""
    ours = translated(error, Asked("ftp://host", "x", StoreOptions()))

    assert type(ours) is kind
    assert said in ours.message
    assert ours.hint
    assert "secret" not in str(ours)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (401, NotAllowed), (403, NotAllowed), (500, StoreUnavailable)]
)
def test_an_answer_over_http_is_known_by_its_status(status: int, kind: type[DatakitError]) -> None:
    """Whatever class its library gives it."""
    error = RuntimeError("no")
    error.status = status  # type: ignore[attr-defined]  # as aiohttp's have

    assert type(translated(error, Asked("http://host", "x", StoreOptions()))) is kind


def test_a_url_of_fsspec_is_a_source(tmp_path: Path, place: str) -> None:
    """Lines and files, the same bytes as local ones; each object costs two requests, a listing one."""
    lines = raw_lines(40)
    raw = write_pairs(tmp_path / "raw", 8)
    put(place, {"lines/a.jsonl": b"\n".join(lines), "lines.jsonl": b"{}"})
    put(place, {f"files/{path.relative_to(raw)}": path.read_bytes() for path in raw.rglob("*.j*")})
    write_lines(tmp_path / "raw.jsonl", lines)

    one = pack(f"{place}/lines", tmp_path / "remote" / "lines")
    two = pack(f"{place}/files", tmp_path / "remote" / "files")
    pack(tmp_path / "raw.jsonl", tmp_path / "local" / "lines")
    pack(raw, tmp_path / "local" / "files")

    shards = [
        {name: data for name, data in tree(tmp_path / side).items() if ".pack" not in name}
        for side in ("remote", "local")
    ]
    assert shards[0] == shards[1]
    assert (one.requests, two.requests) == (3, 33)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server of a folder, as `python -m http.server` is one."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    (tmp_path / "www").mkdir()
    handler = functools.partial(Quiet, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_page_of_links_is_a_source(tmp_path: Path, web: str) -> None:
    """A folder on a web server, and one file of it."""
    lines = raw_lines(30)
    write_lines(tmp_path / "www" / "raw" / "a.jsonl", lines[:10])
    write_lines(tmp_path / "www" / "raw" / "b.jsonl", lines[10:])

    many = pack(f"{web}/raw", tmp_path / "many")
    single = pack(f"{web}/raw/a.jsonl", tmp_path / "single")

    assert (many.records, single.records) == (30, 10)
    with pytest.raises(NotFound):
        pack(f"{web}/nowhere", tmp_path / "none")


def test_a_web_file_that_is_replaced_is_refused(tmp_path: Path, web: str) -> None:
    """By the time of its last change, which the server tells."""
    path = write_lines(tmp_path / "www" / "a.jsonl", [b"{}"])
    store = open_location(f"{web}/a.jsonl").store
    was = store.head("a.jsonl").etag
    os.utime(path, (1, 1))

    with pytest.raises(Refused, match="was replaced"):
        store.read("a.jsonl", start=0, stop=3, etag=was)
    with pytest.raises(UsageError, match="gives no part of an object"):  # as this server does not
        store.read("a.jsonl", start=1, stop=2)


def test_s3_is_read_through_s3fs_where_a_store_says_so(tmp_path: Path, bucket: str, s3: S3Server) -> None:
    """The same samples, by another client."""
    open_location(f"{bucket}/raw/a.jsonl").store.write("raw/a.jsonl", b"\n".join(raw_lines(20)))
    environment = StoreOptions.from_environment(s3.env)
    stores = {
        "mine": StoreOptions(
            url=bucket,
            endpoint_url=environment.endpoint_url,
            access_key_id=environment.access_key_id,
            secret_access_key=environment.secret_access_key,
            client="fsspec",
        )
    }

    location = open_location("mine://raw", stores=stores)
    result = pack("mine://raw", tmp_path / "ds", stores=stores)

    assert isinstance(location.store, FsspecStore)
    assert (result.records, result.requests) == (20, 3)
    with pytest.raises(InputError, match="is empty"):
        pack("mine://", tmp_path / "none", stores=stores | {"mine": StoreOptions(url="memory://nothing-here")})
