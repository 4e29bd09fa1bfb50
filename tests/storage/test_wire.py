"""What `storage/wire` promises: exactly the bytes of the range, however a server frames its answer."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from datakit.errors import DatakitError, IntegrityError, StoreUnavailable
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked
from datakit.storage.wire import PIECE_BYTES, Wire, is_direct

DATA = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"
ASKED = Asked("s3://bkt", "k", StoreOptions())


@contextlib.contextmanager
def answering(*answers: list[bytes]) -> Iterator[str]:
    """A server that gives one answer after the other, each in these writes; an empty write closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        left = list(answers)
        while left:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as requests:
                while left and requests.readline():
                    while requests.readline().strip():
                        pass
                    pieces = left.pop(0)
                    for piece in pieces:
                        connection.sendall(piece)
                    if pieces[-1] == b"":
                        break

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/bkt/k"
    finally:
        thread.join(timeout=30)
        listener.close()


def head(
    start: int, stop: int, *lines: str, status: str = "206 Partial Content", total: int | str = len(DATA)
) -> bytes:
    fields = ["HTTP/1.1 206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{total}", *lines]
    return "\r\n".join([*fields, "", ""]).encode()


def length(count: int) -> str:
    return f"Content-Length: {count}"


def read(url: str, start: int, stop: int, *, wire: Wire | None = None, timeout_s: float = 10.0) -> bytes:
    wire = wire or Wire(connect_timeout_s=10, read_timeout_s=timeout_s)
    return b"".join(map(bytes, wire.stream(url, ASKED, start=start, stop=stop, etag=None)))


def test_bytes_that_come_with_the_headers_are_not_lost() -> None:
    """Head and body in one packet, in two, and split anywhere."""
    stop = len(DATA)
    whole = head(0, stop, length(stop)) + DATA

    for cut in (1, 40, len(whole) - len(DATA), len(whole) - len(DATA) + 5, len(whole) - 1):
        with answering([whole[:cut], whole[cut:]]) as url:
            assert read(url, 0, stop) == DATA


def test_one_connection_serves_many_ranges() -> None:
    """The second answer is not confused with the first."""
    first, second = DATA[5:1000], DATA[PIECE_BYTES : 2 * PIECE_BYTES + 7]
    wire = Wire(connect_timeout_s=10, read_timeout_s=10)
    answers = [
        [head(5, 1000, length(len(first))) + first],
        [head(PIECE_BYTES, 2 * PIECE_BYTES + 7, length(len(second))) + second],
    ]

    with answering(*answers) as url:
        assert read(url, 5, 1000, wire=wire) == first
        assert read(url, PIECE_BYTES, 2 * PIECE_BYTES + 7, wire=wire) == second


def test_a_chunked_body_is_read_too() -> None:
    """Proxies of some stores frame bodies so."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (DATA[:10], DATA[10:5000])) + b"0\r\n\r\n"

    with answering([head(0, 5000, "Transfer-Encoding: chunked") + body]) as url:
        assert read(url, 0, 5000) == DATA[:5000]


def test_a_connection_that_is_closed_after_the_answer_is_opened_again() -> None:
    """`Connection: close`, twice on one wire."""
    wire = Wire(connect_timeout_s=10, read_timeout_s=10)
    answer = [head(0, 5000, length(5000), "Connection: close") + DATA[:5000], b""]

    with answering(answer, answer) as url:
        assert [read(url, 0, 5000, wire=wire) for _ in range(2)] == [DATA[:5000]] * 2


def test_a_store_that_answers_a_whole_range_with_200_is_believed() -> None:
    """From the first byte to the last there is nothing to get wrong."""
    with answering([f"HTTP/1.1 200 OK\r\n{length(len(DATA))}\r\n\r\n".encode() + DATA]) as url:
        assert read(url, 0, len(DATA)) == DATA


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        ([head(0, 100, length(100)) + DATA[:50], b""], StoreUnavailable, "broke off"),
        ([head(1, 101, length(100)) + DATA[1:101]], StoreUnavailable, "asked for bytes 0 to 100"),
        ([head(0, 50, length(50), total=50) + DATA[:50]], IntegrityError, "holds 50 bytes"),
        ([b"HTTP/1.1 206 OK\r\nContent-Length: 100\r\n\r\n" + DATA[:100]], StoreUnavailable, "no range"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"], StoreUnavailable, "the whole object came"),
        ([b"rubbish\r\n\r\n", b""], StoreUnavailable, "broke off"),
        ([b""], StoreUnavailable, "broke off"),
    ],
)
def test_a_wrong_answer_is_an_error(answer: list[bytes], expected: type[DatakitError], words: str) -> None:
    """Too short, elsewhere, of a shorter object, without a range, whole, no HTTP, nothing."""
    with answering(answer) as url, pytest.raises(expected, match=words):
        read(url, 0, 100)


def test_a_body_that_stalls_is_given_up_after_the_time_out() -> None:
    """Half a body and then silence."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(head(0, 100, length(100)) + DATA[:50])
        kept.append(connection)

    thread = threading.Thread(target=serve)
    thread.start()

    with pytest.raises(StoreUnavailable, match="time-out"):
        read(f"http://127.0.0.1:{listener.getsockname()[1]}/bkt/k", 0, 100, timeout_s=0.3)

    thread.join()
    for each in (*kept, listener):
        each.close()


def test_a_proxy_of_the_environment_is_respected(clean_room: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one stands in between, this lane is not taken; `no_proxy` takes it away again."""
    before = is_direct("http://store:9000/b/k")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    behind, tls = is_direct("http://store:9000/b/k"), is_direct("https://store/b/k")
    monkeypatch.setenv("no_proxy", "store")

    assert (before, behind, tls, is_direct("http://store:9000/b/k")) == (True, False, True, True)


@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTP_PROXY"])
def test_a_proxy_for_everything_is_a_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What goes around a proxy that the user has set may be refused, or must not be done."""
    for each in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name if name != "HTTP_PROXY" else "http_proxy", "http://proxy:3128")

    assert not is_direct("http://store/bucket/key")


def test_a_certificate_that_is_not_trusted_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking again would not make it trusted: it is no error that patience tries again."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"

    def connect(_: object) -> None:
        raise error

    monkeypatch.setattr(http.client.HTTPSConnection, "connect", connect)
    wire = Wire(connect_timeout_s=1, read_timeout_s=1)
    asked = Asked("s3://bkt", "k", StoreOptions())

    with pytest.raises(DatakitError, match="not trusted \\(self-signed certificate\\)") as caught:
        list(wire.stream("https://store/bkt/k", asked, start=0, stop=1, etag=None))

    assert not isinstance(caught.value, StoreUnavailable)
