"""bucket: a local S3 server over loopback, for as long as a stage lasts.

The server is the peer `localbucket` (folders as buckets, credentials not checked), a process of its own in its own
environment. It is written in Python and shares the cores with the arm that is measured, so it bounds what any client
can reach; all arms meet the same server.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from frame.claim import Bench, BenchError, Work

START_LIMIT_S = 20.0


@contextmanager
def local_bucket(bench: Bench, *, buckets: Path) -> Iterator[str]:
    """Serve the folders of a folder as buckets; gives the address, stops the server afterwards.

    Raises:
        BenchError: The server did not answer in time.
    """
    server = bench.python_of("localbucket").with_name("localbucket")
    port = _free_port()
    process = subprocess.Popen(
        [server, buckets, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _await_answer(endpoint, process=process)
        for path in sorted(path for path in buckets.rglob("*") if path.is_file()):
            _ask_for(f"{endpoint}/{path.relative_to(buckets).as_posix()}")
        yield endpoint
    finally:
        process.terminate()
        process.wait()


def credentials(work: Work) -> Mapping[str, str]:
    """The variables by which every S3 client finds the server."""
    return {
        "AWS_ENDPOINT_URL": work.values["endpoint"],
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _ask_for(url: str) -> None:
    # the server takes an object's md5 for its tag when it is first asked for: no arm shall pay for that
    urllib.request.urlopen(urllib.request.Request(url, method="HEAD")).close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_answer(endpoint: str, *, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise BenchError(f"the local S3 server did not answer on {endpoint}")
