"""wire: ranges of objects over plain HTTP, received into a small buffer that stays in the processor's cache.

The address is a URL that the client library has signed; what is saved here is its copying. Measured on 2026-11-30 on
2 cores, 1.7 GB from a local server: received by obstore into parts of 16 MiB and written, 3.2 to 5.3 CPU seconds;
received here in pieces of 1 MiB, each checked and written while it is hot, 1.4 to 1.9.

Promises: exactly the bytes of the range that was asked for, or an error; a body that brings nothing for a while is
given up. One connection for each thread and host, kept open. It does not retry, and it does not use proxies.

Source: RFC 9110 (Range, Content-Range, If-Match), RFC 9112.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import struct
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

from datakit.errors import DatakitError, IntegrityError
from datakit.storage.answers import Asked, changed, no_answer, refused, untrusted

PIECE_BYTES = 2**20
"""What is received at once: 1 MiB and its copy in the page cache fit into a second-level cache."""

LONGEST_REFUSAL_BYTES = 2**16
"""As much of an error's body is read."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Wire:
    """Connections to one store, one for each thread.

    Args:
        connect_timeout_s: Seconds to wait for a connection.
        read_timeout_s: Seconds to wait for the next bytes.

    Attributes:
        sealed: Keys of objects whose answers said that their tags are not the md5 of their bytes.
    """

    def __init__(self, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._mine = threading.local()
        self._tls: ssl.SSLContext | None = None
        self.sealed: set[str] = set()

    def stream(self, url: str, asked: Asked, *, start: int, stop: int, etag: str | None) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, in pieces; each is valid until the next is asked for.

        Raises:
            StoreUnavailable: No connection, a stalled or broken body, or another range than was asked for.
            Refused: The object is not the version `etag` any more.
            NotFound, NotAllowed, IntegrityError: As the store's answer means.
        """
        headers = {"Range": f"bytes={start}-{stop - 1}"} | ({"If-Match": etag} if etag and not is_weak(etag) else {})
        connection, answer = self._ask(url, headers, asked)
        try:
            _check_answer(answer, asked, start=start, stop=stop)
            if is_weak(etag) and answer.headers.get("ETag") != etag:
                raise changed(asked.where)
            if _is_sealed(answer):
                self.sealed.add(asked.key)
            buffer = self._buffer()
            receive = _receiver(connection, answer)
            left = stop - start
            while left:
                count = receive(buffer[: min(left, PIECE_BYTES)])
                if count == 0:
                    raise no_answer(asked, "the body broke off")
                left -= count
                yield buffer[:count]
            answer.read()  # nothing is left: this frees the connection for the next request
        except BaseException as error:
            answer.close()
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)) and not isinstance(error, DatakitError):
                raise no_answer(asked, _reason(error)) from error
            raise

    def _buffer(self) -> memoryview:
        if not hasattr(self._mine, "buffer"):
            self._mine.buffer = memoryview(bytearray(PIECE_BYTES))
        buffer: memoryview = self._mine.buffer
        return buffer

    def _ask(
        self, url: str, headers: dict[str, str], asked: Asked
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urllib.parse.urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection, reused = self._connection(parts.scheme, parts.netloc)
        while True:
            try:
                if connection.sock is None:
                    self._open(connection)
                connection.request("GET", target, headers=headers)
                return connection, connection.getresponse()
            except ssl.SSLCertVerificationError as error:
                connection.close()
                raise untrusted(asked, error.verify_message) from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not reused or isinstance(error, TimeoutError):
                    raise no_answer(asked, _reason(error)) from error
                reused = False  # the server has closed an idle connection: that is no answer to this request

    def _open(self, connection: http.client.HTTPConnection) -> None:
        connection.timeout = self._connect_timeout_s
        connection.connect()
        if isinstance(connection, http.client.HTTPSConnection):
            connection.sock.settimeout(self._read_timeout_s)
            return
        # the kernel's own time-out leaves the socket blocking, so that one call may wait for a whole piece
        seconds, rest = divmod(self._read_timeout_s, 1)
        timeout = struct.pack("ll", int(seconds), int(rest * 1_000_000))
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connection.sock.settimeout(None)

    def _connection(self, scheme: str, host: str) -> tuple[http.client.HTTPConnection, bool]:
        if not hasattr(self._mine, "connections"):
            self._mine.connections = {}
        open_ones: dict[str, http.client.HTTPConnection] = self._mine.connections
        connection = open_ones.get(host)
        if connection is None:
            if scheme == "https":
                self._tls = self._tls or ssl.create_default_context()
                connection = _TlsConnection(host, context=self._tls)
            else:
                connection = _Connection(host)
            open_ones[host] = connection
        return connection, connection.sock is not None


def _receiver(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> Callable[[memoryview], int]:
    """What fills a buffer with the next bytes of the body; 0 when it has broken off.

    Over a plain connection one system call waits for a whole piece. The library's own way takes two calls for each few
    packets, and gives up Python's lock at each: with many connections that costs more than the copying.
    """
    sock = connection.sock
    early = 0 if answer.length is None or sock is None or isinstance(sock, ssl.SSLSocket) else len(answer.fp.peek(1))
    if not early:
        return answer.readinto

    def receive(buffer: memoryview) -> int:
        nonlocal early
        if early:  # what came together with the headers lies in the answer's own buffer
            count = answer.readinto(buffer[:early])
            early -= count
            return count
        count = sock.recv_into(buffer, len(buffer), socket.MSG_WAITALL)
        assert answer.length is not None
        answer.length -= count
        return count

    return receive


class _Connection(http.client.HTTPConnection):
    """A connection that closes with the thread that holds it."""

    def __del__(self) -> None:
        self.close()


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """The same, encrypted."""


def is_weak(etag: str | None) -> bool:
    """Whether a tag is one that If-Match never matches (RFC 9110, 13.1.1); the answer's own is compared then."""
    return etag is not None and etag.startswith("W/")


def is_direct(url: str) -> bool:
    """Whether no proxy of the environment stands between us and this URL."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies_environment()
    return not proxies.keys() & {parts.scheme, "all"} or bool(urllib.request.proxy_bypass(parts.netloc, proxies))


def _is_sealed(answer: http.client.HTTPResponse) -> bool:
    """Whether the object is encrypted so that its tag is no md5 ("Object ETag", Amazon S3 API reference)."""
    by_service = answer.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    return by_service or "x-amz-server-side-encryption-customer-algorithm" in answer.headers


def _check_answer(answer: http.client.HTTPResponse, asked: Asked, *, start: int, stop: int) -> None:
    if answer.status not in (200, 206):
        raise refused(answer.status, answer.read(LONGEST_REFUSAL_BYTES).decode(errors="replace"), asked)
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status == 200:
        if start or answer.length != stop:
            raise no_answer(asked, "the whole object came where a range was asked for")
    elif match is None or (int(match[1]), int(match[2])) != (start, stop - 1):
        if match is not None and match[3] != "*" and int(match[3]) < stop:
            message = f"{asked.where} holds {match[3]} bytes, it should hold {stop} at least"
            raise IntegrityError(message, hint="It was replaced, or is not whole", subject=asked.key)
        raise no_answer(asked, f"asked for bytes {start} to {stop}, got {match[0] if match else 'no range'}")


def _reason(error: BaseException) -> str:
    if isinstance(error, (TimeoutError, BlockingIOError)):  # the kernel's own time-out is said by EAGAIN (socket(7))
        return "time-out"
    if isinstance(error, ConnectionRefusedError):
        return "no connection"
    return "the connection broke off"
