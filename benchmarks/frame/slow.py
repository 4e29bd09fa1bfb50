"""slow: an S3 server that answers each request after a fixed delay, as a store at some distance does.

Run as a script: `python slow.py FOLDER LATENCY_S` serves the folder's subfolders as buckets, prints its port, and ends
when its stdin closes. It holds every object in memory and knows listing (ListObjectsV2), GET with a range, and HEAD;
credentials are not looked at. It is one asyncio loop, because a server that is slower than its delay would measure
itself: localbucket answers a few hundred requests a second, and 64 clients at 20 ms ask 3,200.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE_KEYS = 1000
"""Keys of one page of a listing, as S3 has it."""


class Bucket:
    """Objects in memory, by `/bucket/key`."""

    def __init__(self, folder: Path) -> None:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.objects = {f"/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}
        self.tags = {name: hashlib.md5(data, usedforsecurity=False).hexdigest() for name, data in self.objects.items()}

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str], bytes]:
        """Status, headers and body for a request."""
        url = urlsplit(target)
        name, query = unquote(url.path), parse_qs(url.query)
        if name in self.objects:
            return self._object(name, headers, with_body=method == "GET")
        if method == "GET" and name.strip("/") and "/" not in name.strip("/"):
            return "200 OK", {"Content-Type": "application/xml"}, self._listing(name.strip("/"), query)
        return "404 Not Found", {}, b"<Error><Code>NoSuchKey</Code></Error>" if method == "GET" else b""

    def _object(self, name: str, headers: Mapping[str, str], *, with_body: bool) -> tuple[str, dict[str, str], bytes]:
        data, status = self.objects[name], "200 OK"
        fields = {
            "ETag": f'"{self.tags[name]}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Accept-Ranges": "bytes",
        }
        if wanted := headers.get("range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
            fields["Content-Range"], status = f"bytes {start}-{stop - 1}/{len(data)}", "206 Partial Content"
            data = data[start:stop]
        if not with_body:
            return status, {**fields, "Content-Length": str(len(data))}, b""
        return status, fields, data

    def _listing(self, bucket: str, query: Mapping[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        keys = [name.removeprefix(f"/{bucket}/") for name in self.objects if name.startswith(f"/{bucket}/{prefix}")]
        rest = [key for key in keys if key > after]
        page = rest[:PAGE_KEYS]
        more = len(rest) > len(page)
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{self.tags[f'/{bucket}/{key}']}&quot;</ETag>"
            f"<Size>{len(self.objects[f'/{bucket}/{key}'])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{PAGE_KEYS}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>"
        ).encode()


async def converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, bucket: Bucket, delay_s: float
) -> None:
    """Answer the requests of one connection, one after the other, each after the delay."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            await asyncio.sleep(delay_s)
            status, fields, body = bucket.answer(method, target, headers)
            fields = {"Content-Length": str(len(body)), **fields}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has left
    finally:
        writer.close()


async def serve(folder: Path, *, delay_s: float) -> None:
    """Serve a folder until stdin closes."""
    bucket = Bucket(folder)
    server = await asyncio.start_server(
        lambda reader, writer: converse(reader, writer, bucket=bucket, delay_s=delay_s), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), delay_s=float(sys.argv[2])))
