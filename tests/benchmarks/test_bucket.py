"""The bucket: a server that is ready before any arm starts, and gone after the stage."""

from __future__ import annotations

import socket
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

import pytest

from frame import bucket
from frame.claim import Bench, BenchError, Work

SERVER = """#!{python}
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments):
        super().__init__(*arguments, directory=sys.argv[1])
    def log_message(self, form, *arguments):
        with open({log!r}, "a") as log:
            log.write(self.requestline.rpartition(" ")[0] + "\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
"""


def install_server(bench: Bench, text: str) -> None:
    """Put a program where the peer's would be."""
    program = bench.python_of("localbucket").with_name("localbucket")
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)


def test_the_server_knows_every_object_before_the_first_arm(bench: Bench, tmp_path: Path) -> None:
    """Each object was asked for once, so that no arm pays for what the server does once."""
    log = tmp_path / "log"
    install_server(bench, SERVER.format(python=sys.executable, log=str(log)))
    objects = tmp_path / "buckets" / "bench"
    objects.mkdir(parents=True)
    for name in ("a.tar", "b.tar"):
        (objects / name).write_bytes(b"content")

    with bucket.local_bucket(bench, buckets=tmp_path / "buckets") as endpoint:
        asked = [line for line in log.read_text().splitlines() if line.startswith("HEAD")]
        content = urllib.request.urlopen(f"{endpoint}/bench/a.tar").read()

    assert asked == ["HEAD /bench/a.tar", "HEAD /bench/b.tar"]
    assert content == b"content"


def test_the_server_ends_with_the_stage(bench: Bench, tmp_path: Path) -> None:
    """Also when the stage ends with an error, nothing listens afterwards."""
    install_server(bench, SERVER.format(python=sys.executable, log=str(tmp_path / "log")))

    with pytest.raises(KeyError), bucket.local_bucket(bench, buckets=tmp_path) as endpoint:
        raise KeyError

    address = urlparse(endpoint)
    with socket.socket() as probe:
        assert probe.connect_ex((address.hostname, address.port)) != 0


def test_a_server_that_dies_is_a_sentence(bench: Bench, tmp_path: Path) -> None:
    """The harness does not wait for a process that has ended."""
    install_server(bench, "#!/bin/sh\nexit 1\n")

    with (
        pytest.raises(BenchError, match="the local S3 server did not answer on http://127"),
        bucket.local_bucket(bench, buckets=tmp_path),
    ):
        pass


def test_every_client_is_told_the_same_address(tmp_path: Path) -> None:
    """The address goes to arms by the variables that S3 clients read, and no arm asks a cloud for credentials."""
    work = Work(tmp_path, tmp_path, {"endpoint": "http://127.0.0.1:9"}, proof=False, python=Path(sys.executable))

    told = bucket.credentials(work)

    assert told["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9"
    assert told["AWS_EC2_METADATA_DISABLED"] == "true"
