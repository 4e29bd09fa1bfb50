"""pack: many small files into shards of 64 MiB, datakit against webdataset's ShardWriter.

datakit also hashes every byte four ways (crc32c, xxh3, sha256, md5), writes an index and a manifest and flushes all of
it to disk; ShardWriter and tar do none of this.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.claim import Arm, Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import TruthTaker, pairs, truth_of_files

NUM_PAIRS = {"quick": 5_000, "full": 50_000}
SHARD_BYTES = 64 * 1024**2


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """The pairs, and the truth about them."""
    num_pairs = NUM_PAIRS[bench.size]
    data = pairs(bench.data, num_pairs=num_pairs)
    expected = truth_of_files((path for path in data.rglob("*") if path.is_file()), root=data, samples=num_pairs)
    megabytes = expected.payload_bytes / 1e6
    yield Stage(data, expected, f"{num_pairs:,} pairs of .jpg (16 KiB) and .json (1 kB), {megabytes:,.0f} MB")


def check(output: Path, _report: Mapping[str, Any]) -> Truth:
    """What stands in the shards, read by the standard library's tarfile."""
    taker, keys = TruthTaker(), set()
    for shard in sorted(output.rglob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                if member.isfile():
                    content = archive.extractfile(member)
                    taker.add(member.name, content.read() if content else b"")
                    keys.add(member.name.rpartition(".")[0])
    return taker.truth(samples=len(keys))


def with_datakit(work: Work) -> None:
    """The public function, as shipped: all cores, checksums, digests, index, manifest, flushed."""
    import pyarrow.ipc  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import pack

    with work.timed():
        pack(work.data, work.output / "dataset")


def with_shard_writer(work: Work) -> None:
    """The documented loop, with the encoder off, since the parts are bytes already: the fastest way to use it."""
    import webdataset

    with work.timed():
        stems = sorted(path.with_suffix("") for path in work.data.rglob("*.jpg"))
        with webdataset.ShardWriter(
            f"{work.output}/pairs-%06d.tar", maxsize=SHARD_BYTES, maxcount=len(stems), encoder=False, verbose=0
        ) as sink:
            for stem in stems:
                parts = {part: stem.with_suffix(f".{part}").read_bytes() for part in ("jpg", "json")}
                sink.write({"__key__": stem.relative_to(work.data).as_posix(), **parts})


CLAIM = Claim(
    name="pack",
    sentence="Packing many small files into shards, with checksums, digests and an index.",
    stage=stage,
    arms=(
        Arm(
            name="GNU tar",
            command=lambda work: [
                *("tar", "--create", "--format=ustar", "--file", work.output / "pairs.tar", "--directory", work.data),
                *sorted(folder.name for folder in work.data.iterdir()),
            ],
            version=("tar", "--version"),
            note="one archive, nothing but the copy",
        ),
        python_arm(with_datakit, name="datakit", libraries=("datakit", "pyarrow", "google-crc32c", "xxhash")),
        python_arm(
            with_shard_writer,
            name="webdataset",
            peer="webdataset",
            libraries=("webdataset",),
            note="ShardWriter with encoder=False; no checksum, no index, no flush",
        ),
    ),
    floor="GNU tar",
    reference="datakit",
    ratio_on="wall_s",
    unit="samples",
    check=check,
    goals=(Goal("webdataset", 4.0),),
)

if __name__ == "__main__":
    run_arm(globals())
