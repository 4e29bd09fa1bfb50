"""s3server: moto's S3 server as a process of its own on a free port, and an environment that leads to it.

It is in a session of its own, so that no signal to the tests' process group reaches it, and serves in its main thread:
whatever ends the serving ends the process, with a word about it, instead of leaving a process that refuses connections.
A thread waits for the end of stdin, so that it never outlives the tests.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

SERVE = """
import logging, os, sys, threading
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = create_backend_app("s3")
server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server. Each test takes a bucket of its own name."""

    endpoint: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def env(self) -> dict[str, str]:
        """The variables that lead datakit, and every other S3 client, to this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
        }

    def make_bucket(self, name: str) -> str:
        """Create a bucket and give its URL."""
        self.request("PUT", name)
        return f"s3://{name}"

    def put(self, key: str, data: bytes) -> None:
        """Put an object; the key starts with the bucket."""
        self.request("PUT", key, data)

    def get(self, key: str) -> bytes:
        """An object's bytes."""
        return self.request("GET", key)

    def keys(self, bucket: str) -> list[str]:
        """The keys of a bucket."""
        text = self.request("GET", f"{bucket}?list-type=2").decode()
        return [piece.split("</Key>")[0] for piece in text.split("<Key>")[1:]]

    def request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """One plain request."""
        # without a type urllib says that it is a form, and moto takes it apart; moto reads the name, not the signature
        who = "Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"AWS4-HMAC-SHA256 {who}"}
        request = urllib.request.Request(f"{self.endpoint}/{path}", method=method, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read()
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            self.log.seek(0)
            said = self.log.read().decode(errors="replace")[-4000:]
            raise AssertionError(
                f"{error}; the server's exit code is {self.process.poll()}, it said: {said}"
            ) from error


@contextlib.contextmanager
def serving() -> Iterator[S3Server]:
    """Run a server for the length of the block, and wait for its first answer; it dies with this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # moto wants some credentials of its own to start
    env |= {"AWS_ACCESS_KEY_ID": "moto", "AWS_SECRET_ACCESS_KEY": "moto"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().decode().strip()
            server = S3Server(f"http://127.0.0.1:{port}", process, log)
            server.request("GET", "")
            yield server
        finally:
            process.stdin.close()
            process.wait(timeout=60)
            process.stdout.close()
