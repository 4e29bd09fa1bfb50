"""pack: many small files into shards of 64 MiB, datakit against webdataset, MosaicML streaming (MDS) and litdata.

datakit also hashes every byte four ways (crc32c, xxh3, sha256, md5), writes an index and a manifest and flushes all of
it to disk; the others do none of this beyond an index of their own format.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.claim import Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import TruthTaker, pairs, truth_of_files
from frame.standin import stand_in_for_torchvision

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


def check(output: Path, report: Mapping[str, Any]) -> Truth:
    """What stands in the shards, read by the standard library's tarfile; of a peer's own format, see `foreign`."""
    index = output / "shards" / "index.json"
    if index.exists():
        return foreign(index, report)
    taker, keys = TruthTaker(), set()
    for shard in sorted(output.rglob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                if member.isfile():
                    content = archive.extractfile(member)
                    taker.add(member.name, content.read() if content else b"")
                    keys.add(member.name.rpartition(".")[0])
    return taker.truth(samples=len(keys))


def foreign(index: Path, report: Mapping[str, Any]) -> Truth:
    """What a peer wrote in its own format: samples by its index, bytes and digest as the arm found them.

    In the warm-up run the arm reads all of it back with the peer's own reader; in the others it counts what it writes.
    """
    fields = json.loads(index.read_text())
    samples = sum(entry["samples"] for entry in fields.get("shards", ()))  # MDS
    samples += sum(entry["chunk_size"] for entry in fields.get("chunks", ()))  # litdata
    return Truth(samples, report.get("payload_bytes", 0), report.get("digest"))


def stems_of(data: Path) -> list[str]:
    """The pairs, by the path that both files share, in order."""
    return sorted(str(path.with_suffix("")) for path in data.rglob("*.jpg"))


def read_pair(stem: str, *, data: str) -> dict[str, Any]:
    """One sample as a peer takes it: its key and the bytes of both files."""
    key = os.path.relpath(stem, data)
    return {"key": key, "jpg": Path(f"{stem}.jpg").read_bytes(), "json": Path(f"{stem}.json").read_bytes()}


def proof_of(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes and digest of what a peer's own reader gives."""
    taker = TruthTaker()
    for sample in samples:
        for part in ("jpg", "json"):
            taker.add(f"{sample['key']}.{part}", sample[part])
    truth = taker.truth(samples=0)
    return {"payload_bytes": truth.payload_bytes, "digest": truth.digest}


def with_tar(work: Work) -> None:
    """The floor: the same bytes into one archive."""
    folders = sorted(folder.name for folder in work.data.iterdir())
    command = ["tar", "--create", "--format=ustar", "--file", str(work.output / "pairs.tar"), "--directory"]
    with work.timed():
        subprocess.run([*command, str(work.data), *folders], check=True)


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


def with_mds(work: Work) -> dict[str, Any]:
    """The documented loop, without compression and hashes, which are its defaults."""
    stand_in_for_torchvision()
    from streaming import MDSWriter, StreamingDataset

    shards, payload_bytes = str(work.output / "shards"), 0
    with work.timed():
        columns = {"key": "str", "jpg": "bytes", "json": "bytes"}
        with MDSWriter(out=shards, columns=columns, size_limit=SHARD_BYTES) as writer:
            for stem in stems_of(work.data):
                sample = read_pair(stem, data=str(work.data))
                payload_bytes += len(sample["jpg"]) + len(sample["json"])
                writer.write(sample)
    if work.proof:
        dataset = StreamingDataset(local=shards, shuffle=False, batch_size=1)
        return proof_of(dataset[number] for number in range(len(dataset)))
    return {"payload_bytes": payload_bytes}


def with_litdata(work: Work) -> dict[str, Any]:
    """The documented call, with a worker for each core."""
    from litdata import StreamingDataset, optimize

    shards = str(work.output / "shards")
    with work.timed():
        stems = stems_of(work.data)
        optimize(
            fn=functools.partial(read_pair, data=str(work.data)),
            inputs=stems,
            output_dir=shards,
            chunk_bytes=SHARD_BYTES,
            num_workers=len(os.sched_getaffinity(0)),
        )
    if work.proof:
        return proof_of(StreamingDataset(shards))
    sizes = (os.path.getsize(f"{stem}.{part}") for stem in stems for part in ("jpg", "json"))
    return {"payload_bytes": sum(sizes)}


CLAIM = Claim(
    name="pack",
    sentence="Packing many small files into shards, with checksums, digests and an index.",
    stage=stage,
    arms=(
        python_arm(
            with_tar,
            name="GNU tar",
            version=("tar", "--version"),
            note="one archive, nothing but the copy; its start counts",
        ),
        python_arm(with_datakit, name="datakit", libraries=("datakit", "pyarrow", "google-crc32c", "xxhash")),
        python_arm(
            with_shard_writer,
            name="webdataset",
            peer="webdataset",
            libraries=("webdataset",),
            note="ShardWriter with encoder=False; no checksum, no index, no flush",
        ),
        python_arm(
            with_mds,
            name="MDS",
            peer="mosaicml-streaming",
            libraries=("mosaicml-streaming",),
            note="MDSWriter; no checksum, no flush; its import of torchvision, unused here, gets an empty stand-in",
        ),
        python_arm(
            with_litdata,
            name="litdata",
            peer="litdata",
            libraries=("litdata", "torch"),
            note="optimize with a worker a core; no checksum, no flush",
        ),
    ),
    floor="GNU tar",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("webdataset", 4.0), Goal("MDS", 1.5), Goal("litdata", 4.0)),
    note="The work alone is compared: MDS and litdata import torch first, which takes longer than the work.",
)

if __name__ == "__main__":
    run_arm(globals())
