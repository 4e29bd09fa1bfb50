"""download: shards from a local S3 server to a local folder, datakit against s5cmd and s3fs.

datakit verifies every byte against the manifest before a file is visible; the others do not. No arm flushes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.bucket import credentials, local_bucket
from frame.claim import Arm, Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import blobs, truth_of_files

NUM_SHARDS = {"quick": 4, "full": 10}
SHARD_BYTES = {"quick": 64 * 1000**2, "full": 170 * 1000**2}
PREFIX = "bench/shards"
DATAKIT = "import sys; from datakit.cli.main import main; sys.exit(main())"  # what the console script runs


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """A bucket that holds the shards as a commit, served over HTTP."""
    num_shards, shard_bytes = NUM_SHARDS[bench.size], SHARD_BYTES[bench.size]
    source = blobs(bench.data, num_files=num_shards, file_bytes=shard_bytes)
    buckets = bench.data / f"buckets-{bench.size}"
    commit = buckets / PREFIX
    commit_once(source, commit)
    expected = truth_of_files(sorted(commit.glob("*.tar")), root=commit)
    text = f"{num_shards} shards of {shard_bytes / 1e6:,.0f} MB"
    with local_bucket(bench, buckets=buckets) as endpoint:
        yield Stage(commit, expected, text, {"endpoint": endpoint, "url": f"s3://{PREFIX}"})


def commit_once(source: Path, destination: Path) -> None:
    """Make a folder of shards a commit, so that its manifest can vouch for the bytes."""
    from datakit.storage.commit import commit

    if destination.exists():
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    with commit(destination, kind="model", name="shards") as staging:
        for shard in sorted(source.iterdir()):
            with staging.open(shard.name) as write, shard.open("rb") as data:
                while chunk := data.read(1 << 20):
                    write(chunk)


def check(output: Path, _report: Mapping[str, Any]) -> Truth:
    """Which shards arrived, with which bytes."""
    shards = list(output.rglob("*.tar"))
    return truth_of_files(shards, root=shards[0].parent if shards else output)


def with_datakit(work: Work) -> None:
    """The public function, as shipped."""
    import obstore  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import sync

    with work.timed():
        sync(work.values["url"], work.output / "shards")


def with_s3fs(work: Work) -> None:
    """The documented recursive get."""
    import s3fs

    with work.timed():
        s3fs.S3FileSystem().get(PREFIX, str(work.output / "shards"), recursive=True)


CLAIM = Claim(
    name="download",
    sentence="Downloading shards from object storage into a local folder, verified.",
    stage=stage,
    arms=(
        Arm(
            name="cp",
            command=lambda work: ["cp", "--recursive", "--reflink=never", work.data, work.output / "shards"],
            version=("cp", "--version"),
            note="a local copy, no server",
        ),
        Arm(
            name="datakit",
            command=lambda work: [work.python, "-c", DATAKIT, "sync", work.values["url"], work.output / "shards"],
            environment=credentials,
            libraries=("datakit", "obstore", "google-crc32c"),
            note="the command; every 16 MiB part checked against the manifest, not flushed",
        ),
        python_arm(
            with_datakit,
            name="datakit.sync",
            environment=credentials,
            libraries=("datakit", "obstore", "google-crc32c"),
            note="the same from Python, which shows how much of it is start and imports",
        ),
        Arm(
            name="s5cmd",
            command=lambda work: [work.python.with_name("s5cmd"), "cp", f"{work.values['url']}/*", f"{work.output}/"],
            peer="s5cmd",
            environment=lambda work: {**credentials(work), "S3_ENDPOINT_URL": work.values["endpoint"]},
            version=("s5cmd", "version"),
            note="not verified, not flushed",
        ),
        python_arm(
            with_s3fs,
            name="s3fs",
            peer="s3fs",
            environment=credentials,
            libraries=("s3fs", "aiobotocore"),
            note="not verified, not flushed",
        ),
    ),
    floor="cp",
    reference="datakit",
    ratio_on="wall_s",
    unit="bytes",
    check=check,
    goals=(Goal("s5cmd", 1.2), Goal("s3fs", 4.0)),
    services=("localbucket",),
    note="The server (localbucket, Python) shares the cores with the client and bounds them all.",
)

if __name__ == "__main__":
    run_arm(globals())
