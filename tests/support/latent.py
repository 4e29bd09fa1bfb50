"""latent: an S3 server in a process of its own whose every answer takes its time, for what depends on latency.

It knows LIST (version 2, in pages of 1000) and GET of made-up small objects, and counts how many requests were under
way at once. One thread serves any number of connections, so that latency is what a client waits for, not the server.

    python -m support.latent 20 2000 1000   # 20 ms, 2000 objects of 1000 bytes; prints the port
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUCKET = "bkt"
PAGE = 1000


def body(number: int, size: int) -> bytes:
    """The bytes of an object: its number, and filling."""
    return (b"%d " % number).ljust(size, b"x")


@dataclass
class Latent:
    """The server's side.

    Attributes:
        latency_s: What every answer takes.
        num_objects: Objects `raw/00000.txt` and on.
        size: Bytes of each.
        under_way: Requests being answered.
        most: The most at once so far.
    """

    latency_s: float
    num_objects: int
    size: int
    under_way: int = 0
    most: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        while head := await _head(reader):
            path, _, query = head.split(" ")[1].partition("?")
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(self.latency_s)
            self.under_way -= 1
            data, tag = self._answer(path, urllib.parse.parse_qs(query))
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: %s\r\n"
                b"Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\n\r\n%s" % (len(data), tag, data)
            )
            await writer.drain()
        writer.close()

    def _answer(self, path: str, query: dict[str, list[str]]) -> tuple[bytes, bytes]:
        if path == "/most":
            return b"%d" % self.most, b'"most"'
        if "list-type" in query:
            start = int(query.get("continuation-token", ["0"])[0])
            return self._page(start), b'"page"'
        data = body(int(path.rpartition("/")[2].partition(".")[0]), self.size)
        return data, _tag(data)

    def _page(self, start: int) -> bytes:
        stop = min(start + PAGE, self.num_objects)
        more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if stop < self.num_objects else ""
        items = "".join(
            f"<Contents><Key>raw/{n:05d}.txt</Key><LastModified>2026-11-30T00:00:00.000Z</LastModified>"
            f"<ETag>{_tag(body(n, self.size)).decode()}</ETag><Size>{self.size}</Size></Contents>"
            for n in range(start, stop)
        )
        flag = str(bool(more)).lower()
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>{flag}</IsTruncated>{items}{more}</ListBucketResult>"
        ).encode()


def _tag(data: bytes) -> bytes:
    return b'"%s"' % hashlib.md5(data, usedforsecurity=False).hexdigest().encode()


async def _head(reader: asyncio.StreamReader) -> str:
    """The head of a request, empty at the end of the connection."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""


async def _run(latent: Latent) -> None:
    server = await asyncio.start_server(latent.serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def latent(*, latency_ms: int, num_objects: int, size: int) -> Iterator[str]:
    """A server for the length of the block; its endpoint."""
    words = [sys.executable, "-m", "support.latent", *map(str, (latency_ms, num_objects, size))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(_run(Latent(int(sys.argv[1]) / 1000, int(sys.argv[2]), int(sys.argv[3]))))
