"""What `storage/store` promises: places by URL, requests counted, no use after a fork, and no secret in sight."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import DatakitError, MissingExtra, NotAllowed, NotFound, Refused, StoreUnavailable, UsageError
from datakit.settings import load
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.store import ObstoreStore, open_location
from support.faulty import Fault, FaultyServer
from support.memory import MemoryBody
from support.process import run_code
from support.s3server import S3Server


def test_paths_and_urls_lead_to_their_places(tmp_path: Path) -> None:
    """A path, a file URL and a bucket with a prefix."""
    local = open_location(tmp_path / "ds", env={})
    file = open_location(f"file://{tmp_path}/ds", env={})
    remote = open_location("s3://bkt/a/b/", env={})

    assert local.path == file.path == tmp_path / "ds"
    assert (remote.url, remote.prefix, remote.path) == ("s3://bkt/a/b", "a/b", None)
    assert remote.key("x.tar") == "a/b/x.tar"
    assert open_location("s3://bkt", env={}).key("x.tar") == "x.tar"


def test_a_named_store_leads_to_its_url_and_its_options() -> None:
    """`cold://x` is x below the store's URL, and plain URLs below it use the same options."""
    stores = {"cold": StoreOptions(url="s3://bkt/team", endpoint_url="http://own", region="r")}

    named = open_location("cold://runs/a", stores=stores, env={})
    plain = open_location("s3://bkt/team/runs/a", stores=stores, env={})
    other = open_location("s3://bkt/teamwork/a", stores=stores, env={"AWS_ENDPOINT_URL": "http://env"})

    assert named.url == plain.url == "s3://bkt/team/runs/a"
    assert named.store._options.endpoint_url == plain.store._options.endpoint_url == "http://own"  # type: ignore[attr-defined]
    assert other.store._options.endpoint_url == "http://env"  # type: ignore[attr-defined]


def test_the_nearest_named_store_speaks_for_a_url() -> None:
    """Of two stores above a URL the longer one is meant."""
    stores = {
        "a": StoreOptions(url="s3://bkt", endpoint_url="http://far"),
        "b": StoreOptions(url="s3://bkt/team", endpoint_url="http://near"),
    }

    near = open_location("s3://bkt/team/x", stores=stores, env={})
    far = open_location("s3://bkt/x", stores=stores, env={})

    assert near.store._options.endpoint_url == "http://near"  # type: ignore[attr-defined]
    assert far.store._options.endpoint_url == "http://far"  # type: ignore[attr-defined]


def test_a_store_that_cannot_be_used_is_no_trouble_for_other_urls(tmp_path: Path) -> None:
    """Its secret is not set here; only who asks for it, by name or by URL, hears that."""
    (tmp_path / "params.yaml").write_text(
        "stores: {cold: {url: 's3://cold/x', access_key_id: '${NO_SUCH_ID}', secret_access_key: '${NO_SUCH_SECRET}'}}"
    )
    stores = load(tmp_path / "params.yaml", env={}).stores

    assert open_location("s3://bkt/x", stores=stores, env={}).url == "s3://bkt/x"
    for place in ("cold://y", "s3://cold/x/y"):
        with pytest.raises(UsageError, match="NO_SUCH"):
            open_location(place, stores=stores, env={})


def test_a_session_token_of_the_environment_is_not_sent_with_other_keys(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to another account: the store would refuse the pair, and would have seen the token."""
    faulty.put("a", b"12345")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    options = StoreOptions(
        url=faulty.url, endpoint_url=faulty.endpoint, access_key_id="AKIAOTHER", secret_access_key="other"
    )
    store = open_location(f"{faulty.url}/x", stores={"own": options}).store

    store.fetch("a")
    store.read("a", start=0, stop=5)
    store.write("b", b"x")

    assert len(faulty.credentials) == 3
    assert not [said for said in faulty.credentials if "token-of-somebody-else" in said]
    assert all("AKIAOTHER" in said for said in faulty.credentials)


@pytest.mark.parametrize(
    ("place", "stores", "words"),
    [
        ("s3://b/x", {"s3": StoreOptions(url="s3://other")}, "cannot be named s3"),
        ("cold://x", {"cold": StoreOptions(url="gs://b", region="r")}, "region, which gs:// does not take"),
        ("s4://host/x", {}, "does not know"),
        ("r2://b/x", {}, "in params.yaml: stores: .r2: .url: s3://BUCKET"),
        ("s3://", {}, "names no bucket"),
        ("s3:///x", {}, "names no bucket"),
        ("s3:/b/x", {}, "s3:/b/x is no URL: s3:// has two slashes"),
        ("gs:b/x", {}, "gs:b/x is no URL"),
        ("S3:/b/x", {}, "S3:/b/x is no URL"),
        ("file:/tmp/x", {}, "file:/tmp/x is no URL"),
        ("cold:/x", {"cold": StoreOptions(url="s3://b")}, "cold:/x is no URL"),
        ("cold://x", {"cold": StoreOptions()}, "has no url in the settings"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place: str, stores: Mapping[str, StoreOptions], words: str) -> None:
    """Before any request, with what would be accepted."""
    with pytest.raises(UsageError, match=words) as caught:
        open_location(place, stores=stores, env={})

    assert caught.value.hint


def test_every_request_is_counted_by_class(s3: S3Server, bucket: str) -> None:
    """One call, one count; an upload of two parts is a LIST and four PUTs; bytes are those of bodies."""
    store = open_location(bucket).store

    store.write("a", b"12345")
    store.fetch("a")
    store.read("a", start=1, stop=3)
    store.head("a")
    store.list("")
    store.upload("b", MemoryBody(bytes(5 * 2**20 + 1), part_bytes=5 * 2**20), connections=1)
    store.delete("a")

    large = 5 * 2**20 + 1
    assert store.requests == RequestCounts(
        get=2, head=1, put=1 + 4, list=1 + 1, delete=1, bytes_in=7, bytes_out=5 + large
    )


def test_refused_requests_are_counted_too(faulty: FaultyServer) -> None:
    """The bill counts them as well."""
    faulty.put("a", b"12345")
    faulty.faults = [Fault("busy", times=2)]
    store = open_location(faulty.url).store

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.read("a", start=0, stop=5)
    store.read("a", start=0, stop=5)

    assert store.requests.get == 3 == len(faulty.asked("GET"))


def test_a_long_list_counts_its_pages(s3: S3Server, bucket: str) -> None:
    """A thousand objects a request: 1,001 objects are two, also beside folders that are asked for; the first is one."""
    name = bucket.removeprefix("s3://")
    for number in range(1001):
        s3.put(f"{name}/n/{number:05d}", b"")
    store = open_location(bucket).store

    listed = store.list("n")
    num_listed = store.requests.list
    folders = store.folders("n")
    num_beside = store.requests.list - num_listed
    first = store.list("n", pages=1)

    assert (len(listed), folders, len(first)) == (1001, (), 1000)
    assert (num_listed, num_beside, store.requests.list - num_listed - num_beside) == (2, 2, 1)


LANES = ["signed", "anonymous"]


def faulty_store(server: FaultyServer, lane: str) -> ObstoreStore:
    """Signed addresses are received directly; an anonymous store receives through obstore."""
    options = StoreOptions.from_environment(server.env)
    if lane == "anonymous":
        options = StoreOptions(endpoint_url=server.endpoint, region="us-east-1", anonymous=True)
    return ObstoreStore(server.url, options=options)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("busy", StoreUnavailable),
        ("many", StoreUnavailable),
        ("broken", StoreUnavailable),
        ("cut", StoreUnavailable),
        ("shift", StoreUnavailable),
        ("hang-up", StoreUnavailable),
        ("denied", NotAllowed),
        ("expired", NotAllowed),
        ("signature", NotAllowed),
        ("region", UsageError),
    ],
)
def test_each_fault_of_a_read_is_said(faulty: FaultyServer, lane: str, kind: Any, expected: type[DatakitError]) -> None:
    """By both lanes, with the place and without a secret."""
    faulty.put("a/b", bytes(range(200)))
    faulty.faults = [Fault(kind, times=9)]
    store = faulty_store(faulty, lane)

    with pytest.raises(expected) as caught:
        store.read("a/b", start=10, stop=110)

    assert faulty.url in str(caught.value)
    assert "the-secret-of-the-test" not in repr(caught.value) + str(caught.value)
    assert "X-Amz" not in str(caught.value)


@pytest.mark.parametrize("lane", LANES)
def test_a_store_that_ignores_ranges_is_never_believed(faulty: FaultyServer, lane: str) -> None:
    """200 and the whole object where a range was asked for: an error, never bytes from the wrong place."""
    faulty.put("a", bytes(range(200)))
    faulty.faults = [Fault("whole", times=9)]

    with pytest.raises(DatakitError):
        faulty_store(faulty, lane).read("a", start=10, stop=110)


def test_after_a_fault_the_next_read_is_right(faulty: FaultyServer) -> None:
    """No connection is used again that still holds bytes of a broken answer."""
    data = bytes(range(200))
    faulty.put("a", data)
    store = open_location(faulty.url).store
    for kind in ("cut", "shift", "whole", "busy"):
        faulty.faults = [Fault(kind)]  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            store.read("a", start=10, stop=110)

        read = store.read("a", start=10, stop=110)

        assert read == data[10:110]


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(faulty: FaultyServer) -> None:
    """Servers close idle connections; that is no trouble and no second request."""
    faulty.put("a", b"12345")
    store = open_location(faulty.url).store
    store.read("a", start=0, stop=5)
    faulty.faults = [Fault("hang-up")]

    read = store.read("a", start=0, stop=5)

    assert read == b"12345"


def test_a_missing_bucket_is_said_by_name(s3: S3Server) -> None:
    """By reads, lists and writes: the bucket, not the object, is what is missing."""
    store = open_location("s3://no-such-bucket").store

    for ask in (
        lambda: store.fetch("a"),
        lambda: store.read("a", start=0, stop=1),
        lambda: store.list(""),
        lambda: store.write("a", b"x"),
        lambda: store.upload("a", MemoryBody(bytes(100), part_bytes=5 * 2**20), connections=1),
    ):
        with pytest.raises(NotFound, match="bucket s3://no-such-bucket does not exist"):
            ask()


def test_an_unreachable_endpoint_is_said(clean_room: Path) -> None:
    """Port 1 refuses connections."""
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    store = open_location("s3://bkt", env=env).store

    for ask in (lambda: store.fetch("a"), lambda: store.read("a", start=0, stop=1)):
        with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1"):
            ask()


def test_a_missing_obstore_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install 'datakit[s3]'`."""
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "obstore":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    store = ObstoreStore("s3://bkt", options=StoreOptions())

    with pytest.raises(MissingExtra, match="obstore is not installed"):
        store.list("")


def test_a_forked_child_is_refused_and_does_not_hang(s3: S3Server, bucket: str) -> None:
    """The library hangs in a child that was forked after its use; the child hears why instead."""
    code = """
import os, sys
from datakit.errors import DatakitError
from datakit.storage.store import open_location
store = open_location(sys.argv[1]).store
store.write("a", b"x")
pid = os.fork()
if pid == 0:
    try:
        store.fetch("a")
    except DatakitError as error:
        print(error.message, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""

    said = run_code(code, bucket)

    assert "forked" in said


def test_importing_the_room_loads_no_client() -> None:
    """The library enters when the first request is made."""
    code = "import sys, datakit.storage.sync; print(sorted({'obstore', 'fsspec', 'pyarrow'} & set(sys.modules)))"

    said = run_code(code)

    assert said.strip() == "[]"


def test_the_mark_of_a_folder_is_no_file(faulty: FaultyServer) -> None:
    """Consoles make an empty object of a folder's name; an empty file that is no folder stays."""
    for key in ("dir/", "dir/x", "dir/sub/", "dir/sub/y", "dir/empty"):
        faulty.put(key, key[-1:].encode() if key[-1] in "xy" else b"")

    listed = open_location(faulty.url).store.list("")

    assert [info.key for info in listed] == ["dir/empty", "dir/sub/y", "dir/x"]


def test_a_key_that_no_file_can_have_is_named(faulty: FaultyServer) -> None:
    """The library gives up the whole list for it; so at least it is said for which."""
    faulty.put("a//b", b"1")

    with pytest.raises(UsageError, match='holds the key "a//b"') as caught:
        open_location(faulty.url).store.list("")

    assert caught.value.hint


def test_an_address_that_is_refused_is_signed_once_more(faulty: FaultyServer) -> None:
    """After a sleep of the machine it is older than the clock says; credentials that are wrong are asked once."""
    faulty.put("a", b"12345")
    store = open_location(faulty.url).store
    store.read("a", start=0, stop=5)
    faulty.faults = [Fault("denied")]

    again = store.read("a", start=0, stop=5)
    faulty.faults = [Fault("denied", times=9)]
    with pytest.raises(NotAllowed):
        store.read("a", start=0, stop=5)

    assert again == b"12345"
    assert store.requests.get == 5 == len(faulty.asked("GET"))


def test_kept_addresses_are_bounded(faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of a million files does not fill the memory with their addresses."""
    monkeypatch.setattr("datakit.storage.addresses.MAX_ADDRESSES", 3)
    store = ObstoreStore(faulty.url, options=StoreOptions.from_environment(faulty.env))
    for number in range(10):
        faulty.put(f"{number}", b"1")

        store.read(f"{number}", start=0, stop=1)

        assert len(store._addresses) <= 3


@pytest.mark.parametrize("lane", LANES)
def test_a_weak_tag_is_compared_with_the_answers(faulty: FaultyServer, lane: str) -> None:
    """If-Match never matches it; a version that was replaced is found all the same."""
    faulty.objects["a"] = (b"12345", 'W/"one"')
    store = faulty_store(faulty, lane)

    read = store.read("a", start=0, stop=5, etag='W/"one"')
    with pytest.raises(Refused, match="replaced while it was in use"):
        store.read("a", start=0, stop=5, etag='W/"two"')

    assert read == b"12345"


def test_an_expired_token_is_said_of_a_question_without_a_body(faulty: FaultyServer) -> None:
    """The 400 to a HEAD says nothing: a GET of one byte tells why."""
    faulty.put("a", b"12345")
    faulty.faults = [Fault("expired", method="HEAD"), Fault("expired", method="GET")]
    store = open_location(faulty.url).store

    with pytest.raises(NotAllowed, match=r"bkt/a.*: the session token has expired \(400 ExpiredToken\)"):
        store.head("a")

    assert (store.requests.head, store.requests.get) == (1, 1)


def test_a_bare_refusal_of_a_question_stays_one(faulty: FaultyServer) -> None:
    """When the GET is answered, the 400 to the HEAD is said as it is."""
    faulty.put("a", b"12345")
    faulty.faults = [Fault("expired", method="HEAD")]

    with pytest.raises(DatakitError, match=r"the store refused the request \(400\)"):
        open_location(faulty.url).store.head("a")


@pytest.mark.parametrize("key", ["a\nb", "a//b", "a/../b", "a\udcffb"])
def test_a_key_that_obstore_cannot_send_is_wrong_usage(faulty: FaultyServer, key: str) -> None:
    """Whatever is asked of it."""
    store = open_location(faulty.url).store

    for ask in (store.head, store.fetch, lambda name: store.write(name, b"x")):
        with pytest.raises(UsageError, match="cannot be the key of an object"):
            ask(key)
