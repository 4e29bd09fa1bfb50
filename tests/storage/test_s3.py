"""What `storage/s3` promises: S3's calls for uploads in parts, each counted, and each error of botocore one of ours."""

from __future__ import annotations

import builtins
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.parsers
import pytest

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
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked, Throttled
from datakit.storage.counts import Meter, RequestCounts
from datakit.storage.multipart import Lost
from datakit.storage.s3 import S3Calls, _authorities, translated
from datakit.storage.store import open_location
from support.faulty import FaultyServer
from support.memory import MemoryBody
from support.s3server import S3Server

PART = 5 * 2**20
DATA = random.Random(5).randbytes(PART) * 2 + b"the end"
ASKED = Asked("s3://bkt", "a", StoreOptions(endpoint_url="http://store:9", access_key_id="A", secret_access_key="S"))
E = botocore.exceptions


def calls_of(url: str, options: StoreOptions) -> tuple[S3Calls, Meter]:
    meter = Meter()
    return S3Calls(url, options, meter=meter), meter


def test_the_calls_make_an_object_and_count_themselves(s3: S3Server, bucket: str) -> None:
    """Against moto: begin, send, both lists, complete; and abort, which may be said twice."""
    calls, meter = calls_of(bucket, StoreOptions.from_environment(s3.env))
    body = MemoryBody(DATA, part_bytes=PART)

    first, second = calls.begin("a/b c"), calls.begin("a/b cd")
    tags = {part.number: calls.send("a/b c", first, part) for part in body.parts()}
    under_way = [pending.id for pending in calls.under_way("a/b c")]
    kept = calls.kept("a/b c", first)
    tag = calls.complete("a/b c", first, tags, create=True)
    calls.abort("a/b cd", second)
    calls.abort("a/b cd", second)

    store = open_location(bucket).store
    assert under_way == [first]
    assert [(part.number, part.bytes, part.etag) for part in kept] == [
        (part.number, len(part.data), f'"{part.md5.hex()}"') for part in body.parts()
    ]
    assert store.fetch("a/b c").data == DATA
    assert store.head("a/b c").etag == tag
    assert calls.under_way("a/b cd") == []
    assert meter.counts == RequestCounts(put=2 + 3 + 1, list=3, delete=2, bytes_out=len(DATA))


def test_a_new_object_is_not_put_over_another(s3: S3Server, bucket: str) -> None:
    """Moto decides it as S3 does, at the end."""
    calls, _ = calls_of(bucket, StoreOptions.from_environment(s3.env))
    upload = calls.begin("a")
    tags = {part.number: calls.send("a", upload, part) for part in MemoryBody(DATA, part_bytes=PART).parts()}
    open_location(bucket).store.write("a", b"another's")

    with pytest.raises(Refused, match="a exists already"):
        calls.complete("a", upload, tags, create=True)

    assert open_location(bucket).store.fetch("a").data == b"another's"


def test_a_part_that_is_not_there_is_lost(s3: S3Server, bucket: str) -> None:
    """As is an upload that was ended: by moto's own words for both."""
    calls, _ = calls_of(bucket, StoreOptions.from_environment(s3.env))
    upload = calls.begin("a")
    part = next(MemoryBody(DATA, part_bytes=PART).parts())
    calls.send("a", upload, part)

    with pytest.raises(Lost, match="InvalidPart"):
        calls.complete("a", upload, {1: '"00000000000000000000000000000000"'}, create=False)
    calls.abort("a", upload)
    with pytest.raises(Lost, match="NoSuchUpload"):
        calls.kept("a", upload)


@pytest.mark.parametrize("virtual", [True, False])
def test_buckets_are_addressed_as_the_options_say(virtual: bool) -> None:
    """In the host's name, or in the path; what is signed covers the md5 of the body."""
    options = StoreOptions(
        endpoint_url="http://store:9", access_key_id="A", secret_access_key="S", virtual_hosted=virtual
    )
    calls, _ = calls_of("s3://bkt", options)
    part = next(MemoryBody(b"12345", part_bytes=5).parts())

    request = caught(calls, lambda: calls.send("a/b", "u", part))

    host, path = ("bkt.store:9", "/a/b") if virtual else ("store:9", "/bkt/a/b")
    assert request.url == f"http://{host}{path}?uploadId=u&partNumber=1"
    assert request.headers["Content-MD5"] == b"gnzLDuqKcGxMNKFokfhOew=="
    assert b"content-md5" in request.headers["Authorization"]
    assert request.body.read() == b"12345"


def test_public_buckets_are_asked_without_a_name() -> None:
    """Nothing is signed, and no credentials are looked for."""
    calls, _ = calls_of("s3://bkt", StoreOptions(endpoint_url="http://store:9", anonymous=True))

    request = caught(calls, lambda: calls.begin("a"))

    assert "Authorization" not in request.headers


def caught(calls: S3Calls, ask: Callable[[], object]) -> Any:
    """The request that would go out."""
    found: list[Any] = []

    def catch(request: Any, **_: object) -> None:
        found.append(request)
        raise E.EndpointConnectionError(endpoint_url="none")

    with calls._door("") as client:
        client.meta.events.register("before-send.s3", catch)
    with pytest.raises(StoreUnavailable):
        ask()
    return found[0]


def test_what_the_options_say_is_all_that_counts(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a profile that the environment names, nor files that cannot be read."""
    (tmp_path / "config").write_text("[broken")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    calls, meter = calls_of(faulty.url, StoreOptions.from_environment(faulty.env))

    assert calls.begin("a") == "upload-1"
    assert meter.counts.put == 1


def test_an_unreachable_endpoint_is_said_after_one_try(clean_room: Path) -> None:
    """Port 1 refuses connections; to try again is for whoever calls."""
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    calls, meter = calls_of("s3://bkt", StoreOptions.from_environment(env))

    with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1 \(no connection\)"):
        calls.begin("a")

    assert meter.counts.put == 1


def test_a_missing_botocore_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install 'datakit[s3]'`."""
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "botocore":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    calls, _ = calls_of("s3://bkt", StoreOptions(access_key_id="a", secret_access_key="b"))

    with pytest.raises(MissingExtra, match=r"datakit\[s3\]"):
        calls.begin("a")


def test_the_machine_s_own_authorities_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the rest of datakit does; botocore alone would look into its own list. Its own variable stays its own."""
    (tmp_path / "ca.pem").write_text("")

    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, str(tmp_path / "ca.pem"))
    named = _authorities()
    monkeypatch.setenv("AWS_CA_BUNDLE", "/elsewhere")

    assert named == str(tmp_path / "ca.pem")
    assert _authorities() is None


def answered(status: int, code: str) -> Exception:
    metadata = {"HTTPStatusCode": status}
    return E.ClientError({"Error": {"Code": code, "Message": "the S"}, "ResponseMetadata": metadata}, "UploadPart")


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (answered(404, "NoSuchUpload"), Lost, "ended"),
        (answered(400, "InvalidPart"), Lost, "put over"),
        (answered(400, "InvalidPartOrder"), Lost, "put over"),
        (answered(400, "BadDigest"), StoreUnavailable, "another checksum: 400 BadDigest"),
        (answered(400, "XAmzContentSHA256Mismatch"), StoreUnavailable, "another checksum"),
        (answered(400, "EntityTooSmall"), DatakitError, "refused the request (400 EntityTooSmall)"),
        (answered(404, "NoSuchBucket"), NotFound, "bucket s3://bkt does not exist"),
        (answered(403, "AccessDenied"), NotAllowed, "access is denied"),
        (answered(400, "ExpiredToken"), NotAllowed, "session token has expired"),
        (answered(409, "ConditionalRequestConflict"), Throttled, "busy"),
        (answered(501, "NotImplemented"), DatakitError, "refused the request (501 NotImplemented)"),
        (answered(503, "SlowDown"), Throttled, "busy or broken (503 SlowDown)"),
        (answered(503, "503"), Throttled, "busy or broken (503)"),
        (answered(416, "InvalidRange"), IntegrityError, "fewer bytes"),
        (E.EndpointConnectionError(endpoint_url="http://store:9"), StoreUnavailable, "no connection"),
        (E.ConnectTimeoutError(endpoint_url="x"), StoreUnavailable, "no connection"),
        (E.ProxyConnectionError(proxy_url="x"), StoreUnavailable, "no connection to the proxy"),
        (E.ReadTimeoutError(endpoint_url="x"), StoreUnavailable, "time-out"),
        (E.ConnectionClosedError(endpoint_url="x"), StoreUnavailable, "the connection broke off"),
        (E.ConnectionError(error="x"), StoreUnavailable, "the connection failed"),
        (E.HTTPClientError(error="x"), StoreUnavailable, "the connection failed"),
        (E.ResponseStreamingError(error="x"), StoreUnavailable, "the body broke off"),
        (E.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnavailable, "the body broke off"),
        (botocore.parsers.ResponseParserError("x"), DatakitError, "the answer at http://store:9 is none of S3's"),
        (E.SSLError(endpoint_url="x", error="CERTIFICATE_VERIFY_FAILED"), DatakitError, "is not trusted"),
        (E.SSLError(endpoint_url="x", error="EOF"), StoreUnavailable, "the connection failed"),
        (E.NoCredentialsError(), NotAllowed, "no credentials were found"),
        (E.PartialCredentialsError(provider="env", cred_var="x"), NotAllowed, "no credentials were found"),
        (E.CredentialRetrievalError(provider="x", error_msg="y"), NotAllowed, "no credentials were found"),
        (E.UnauthorizedSSOTokenError(), NotAllowed, "no credentials were found"),
        (E.ParamValidationError(report="the S"), UsageError, "botocore cannot do this (ParamValidationError)"),
        (E.ProfileNotFound(profile="x"), UsageError, "botocore cannot do this (ProfileNotFound)"),
        (KeyError("UploadId"), UsageError, "botocore cannot do this (KeyError)"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_each_exception_of_botocore_has_its_error(error: Exception, expected: type[DatakitError], words: str) -> None:
    """By class, by status and by code; its own text, which may tell too much, is never passed on."""
    said = translated(error, ASKED)

    assert type(said) is expected
    assert words in said.message
    assert "the S" not in str(said)


def test_the_list_of_botocore_s_failed_connections_is_complete() -> None:
    """A new class must be thought about: this test names those of 1.43 that say what became of a connection."""
    classes = [one for one in vars(E).values() if isinstance(one, type) and issubclass(one, BaseException)]
    roads = {E.ConnectionError, E.HTTPClientError}

    found = {one.__name__ for one in classes if roads & {*one.__mro__}}

    assert found == {
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "ConnectionError",
        "EndpointConnectionError",
        "HTTPClientError",
        "ProxyConnectionError",
        "ReadTimeoutError",
        "ResponseStreamingError",
        "SSLError",
    }


def test_a_list_of_parts_that_does_not_go_on_is_trouble_of_the_store(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that says so of every page would be asked, and paid, for ever."""
    calls, _ = calls_of(bucket, StoreOptions.from_environment(s3.env))
    upload = calls.begin("a")
    page: dict[str, Any] = {"IsTruncated": True, "NextPartNumberMarker": 0, "Parts": []}
    with calls._door("a") as client:
        monkeypatch.setattr(client, "list_parts", lambda **_: page)

    with pytest.raises(StoreUnavailable, match="goes on, and not how"):
        calls.kept("a", upload)
    calls.abort("a", upload)
