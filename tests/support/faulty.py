"""faulty: a small S3 server that cuts, stalls, lies, throttles and refuses on demand, over real HTTP on the loopback.

It knows GET with ranges and If-Match, HEAD, LIST (version 2), PUT with If-None-Match, multipart uploads with
Content-MD5 and their lists, DELETE and the deletion of several, of one bucket. Faults are scripted: each names the
requests it falls on and how often; `UPLOADS` and `PARTS` are methods there, for the lists of uploads and of parts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from support.uploads import Unfit, Uploads

BUCKET = "bkt"

Kind = Literal[
    "busy",  # 503 SlowDown
    "many",  # 429
    "broken",  # 500
    "cut",  # half of the body, then the connection is closed
    "stall",  # half of the body, then nothing, until the test ends
    "hold",  # the request waits, undone, until the test ends
    "flip",  # one bit of the body is wrong; of one that comes in, on the way
    "rot",  # one bit of a body is kept wrong
    "late-error",  # 200, and an error as its body
    "not-implemented",  # 501
    "shift",  # the range is another one than was asked for
    "whole",  # 200 and the whole object where a range was asked for
    "replace",  # the object is replaced before it is read
    "denied",  # 403 AccessDenied
    "expired",  # 400 ExpiredToken
    "signature",  # 403 SignatureDoesNotMatch
    "region",  # 301 PermanentRedirect
    "hang-up",  # the connection is closed without an answer
    "lost-answer",  # the request is done, and the connection closed without an answer
    "forget",  # a PUT is answered, and nothing is kept
    "halve",  # a PUT keeps half of the body, with the tag of that half
    "torn-list",  # the list says that it goes on, and not how
]

CREDENTIALS = ("authorization", "x-amz-security-token")
"""Headers that say who asks; a signed address says it in its query."""

CODES = {
    "busy": (503, "SlowDown"),
    "not-implemented": (501, "NotImplemented"),
    "many": (429, "TooManyRequests"),
    "broken": (500, "InternalError"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "signature": (403, "SignatureDoesNotMatch"),
    "region": (301, "PermanentRedirect"),
}


@dataclass
class Fault:
    """Something that goes wrong with the next `times` requests that match."""

    kind: Kind
    method: str = "GET"
    key: str = ".*"
    times: int = 1
    after: int = 0


@dataclass
class FaultyServer:
    """A running server: its objects, its faults to come, and what was asked of it."""

    endpoint: str = ""
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    uploads: Uploads = field(init=False)
    now_s: float = 1_800_000_000.0
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)
    conditional_ends: bool = True
    opaque_tags: bool = False
    sealed: bool = False
    credentials: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.tag_of)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-test",
        }

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        """Put an object from outside; gives its tag."""
        tag = self.tag_of(data, tag)
        self.objects[key] = (data, tag)
        return tag

    def tag_of(self, data: bytes, md5: str | None = None) -> str:
        if self.opaque_tags:
            return f'"0x{hashlib.sha1(data).hexdigest()[:12]}"'
        if self.sealed:
            return f'"{hashlib.md5(b"sealed" + data).hexdigest()}"'
        return f'"{md5 or hashlib.md5(data).hexdigest()}"'

    def asked(self, method: str, key: str = ".*") -> list[tuple[str, str, str]]:
        """Requests of a method for keys that match."""
        return [line for line in self.log if line[0] == method and re.fullmatch(key, line[1])]

    def take_fault(self, method: str, key: str) -> Kind | None:
        with self.guard:
            for fault in self.faults:
                if fault.method == method and re.fullmatch(fault.key, key) and fault.times:
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault.kind
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FaultyServer

    def log_message(self, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do_GET(self) -> None:
        key, query = self.target()
        if "uploads" in query or "uploadId" in query:
            return self.list_uploads(key, query)
        fault = self.begin(key)
        if fault in CODES or fault == "hang-up":
            self.refuse(fault)
        elif key == "" and "list-type" in query:
            asked = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "continuation-token"))
            self.list_objects(*asked, torn=fault == "torn-list")
        else:
            self.send_object(key, fault)
        return None

    def list_uploads(self, key: str, query: dict[str, list[str]]) -> None:
        is_parts = "uploadId" in query
        prefix = query.get("prefix", [""])[0]
        fault = self.begin(key or prefix, "PARTS" if is_parts else "UPLOADS")
        if fault in CODES or fault == "hang-up":
            return self.refuse(fault)
        with self.unfit_refused():
            uploads, marker = self.state.uploads, int(query.get("part-number-marker", ["0"])[0] or 0)
            body = uploads.parts_of(query["uploadId"][0], marker) if is_parts else uploads.listed(prefix)
            self.answer(200, body.encode())
        return None

    @contextlib.contextmanager
    def unfit_refused(self) -> Iterator[None]:
        try:
            yield
        except Unfit as unfit:
            self.answer(unfit.status, error(unfit.code))

    def do_HEAD(self) -> None:
        key, _ = self.target()
        fault = self.begin(key)
        if fault in CODES or fault == "hang-up":
            self.refuse(fault)
        else:
            self.send_object(key, fault)

    def do_PUT(self) -> None:
        key, query = self.target()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.begin(key)
        if fault in CODES or fault == "hang-up":
            return self.refuse(fault)
        if fault == "flip":
            body = flipped(body)
        if fault == "halve":
            body = body[: len(body) // 2]
        wanted = self.headers.get("Content-MD5")
        if wanted and base64.b64decode(wanted) != hashlib.md5(body).digest():
            return self.answer(400, error("BadDigest"))
        if fault == "rot":
            body = flipped(body)
        if "uploadId" in query:
            with self.unfit_refused():
                tag = self.state.uploads.send(query["uploadId"][0], int(query["partNumber"][0]), body)
                return self.refuse("hang-up") if fault == "lost-answer" else self.answer(200, b"", {"ETag": tag})
            return None
        if self.headers.get("If-None-Match") == "*" and key in self.state.objects:
            return self.answer(412, error("PreconditionFailed"))
        wanted = self.headers.get("If-Match")
        if wanted and self.state.objects.get(key, (b"", ""))[1] != wanted:
            return self.answer(412, error("PreconditionFailed"))
        tag = self.state.put(key, body)
        if fault == "forget":
            del self.state.objects[key]
        if fault == "lost-answer":
            return self.refuse("hang-up")
        return self.answer(200, b"", {"ETag": tag})

    def do_POST(self) -> None:
        key, query = self.target()
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.begin(key)
        if fault in CODES or fault == "hang-up":
            return self.refuse(fault)
        if "delete" in query:
            return self.delete_objects(re.findall("<Key>(.*?)</Key>", sent.decode()))
        if "uploads" in query:
            name = self.state.uploads.begin(key, self.state.now_s)
            body = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return self.refuse("hang-up") if fault == "lost-answer" else self.answer(200, body.encode())
        if fault == "late-error":
            return self.answer(200, error("InternalError"))
        create = self.headers.get("If-None-Match") == "*"
        if create and not self.state.conditional_ends:
            return self.answer(501, error("NotImplemented"))
        if create and key in self.state.objects:
            return self.answer(412, error("PreconditionFailed"))
        with self.unfit_refused():
            tag = self.state.put(key, *self.state.uploads.complete(query["uploadId"][0], sent.decode()))
            body = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
            return self.refuse("hang-up") if fault == "lost-answer" else self.answer(200, body.encode())
        return None

    def delete_objects(self, keys: list[str]) -> None:
        for key in keys:
            self.state.objects.pop(key, None)
            with self.state.guard:
                self.state.log.append(("DELETE", key, ""))
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        key, query = self.target()
        fault = self.begin(key)
        if fault in CODES or fault == "hang-up":
            return self.refuse(fault)
        with self.unfit_refused():
            if "uploadId" in query:
                self.state.uploads.abort(query["uploadId"][0])
            else:
                self.state.objects.pop(key, None)
            self.answer(204, b"")
        return None

    def target(self) -> tuple[str, dict[str, list[str]]]:
        parts = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        return key, urllib.parse.parse_qs(parts.query, keep_blank_values=True)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.state.now_s if timestamp is None else timestamp)

    def begin(self, key: str, method: str | None = None) -> Kind | None:
        fault = self.state.take_fault(method or self.command, key)
        with self.state.guard:
            self.state.log.append((method or self.command, key, self.headers.get("Range", "")))
            said = [self.path, *(value for name, value in self.headers.items() if name.lower() in CREDENTIALS)]
            self.state.credentials.append(" ".join(said))
        if fault == "hold":
            self.state.released.wait()
        if fault == "replace":
            data, _ = self.state.objects[key]
            self.state.put(key, bytes(len(data)))
        return fault

    def refuse(self, fault: str) -> None:
        if fault == "hang-up":
            self.close_connection = True
            return
        status, code = CODES[fault]
        self.answer(status, error(code))

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def list_objects(self, prefix: str, delimiter: str, token: str, *, torn: bool = False) -> None:
        below = [key.removeprefix(prefix) for key in sorted(self.state.objects) if key.startswith(prefix)]
        folders = {rest.partition(delimiter)[0] + delimiter for rest in below if delimiter and delimiter in rest}
        shared = [f"<CommonPrefixes><Prefix>{prefix}{name}</Prefix></CommonPrefixes>" for name in sorted(folders)]
        rows = [
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{tag}</ETag><Size>{len(data)}</Size></Contents>"
            for key, (data, tag) in sorted(self.state.objects.items())
            if key.startswith(prefix) and not (delimiter and delimiter in key.removeprefix(prefix))
        ]
        begin = int(token or 0)
        end = begin + 1000  # S3 gives no more to a request
        told = "".join(rows[:1] if torn else (rows + shared)[begin:end])
        goes_on = "true" if torn or end < len(rows + shared) else "false"
        if goes_on == "true" and not torn:
            told += f"<NextContinuationToken>{end}</NextContinuationToken>"
        self.answer(200, f"<ListBucketResult><IsTruncated>{goes_on}</IsTruncated>{told}</ListBucketResult>".encode())

    def send_object(self, key: str, fault: Kind | None) -> None:
        if key not in self.state.objects:
            return self.answer(404, error("NoSuchKey"))
        data, tag = self.state.objects[key]
        wanted = self.headers.get("If-Match")
        if wanted and (wanted != tag or tag.startswith("W/")):  # If-Match compares strongly (RFC 9110, section 13.1.1)
            return self.answer(412, error("PreconditionFailed"))
        start, stop, status = 0, len(data), 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match and fault != "whole":
            start, stop, status = int(match[1]), min(int(match[2] or len(data)) + 1, len(data)), 206
            if start >= len(data):
                return self.answer(416, error("InvalidRange"))
        if fault == "shift":
            start, stop = start + 1, stop + 1
        body = flipped(data[start:stop]) if fault == "flip" else data[start:stop]
        self.send_response(status)
        self.send_header("ETag", tag)
        if self.state.sealed:
            self.send_header("x-amz-server-side-encryption", "aws:kms")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault in ("cut", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.state.released.wait()
            self.close_connection = True
        else:
            self.wfile.write(body)
        return None


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()


@contextlib.contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    """Run a server in threads of this process for the length of the block."""
    state = FaultyServer()
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
