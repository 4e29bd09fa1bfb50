"""pack_lines: very many tiny JSON lines into shards, where what a member costs by itself decides.

A line of 200 bytes takes 1 KiB in a tar as a member of its own. datakit is measured as it is by default, a line a
member, and with bundles of 64 lines; its index addresses each line either way.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.claim import Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import TruthTaker, lines
from frame.standin import stand_in_for_torchvision

NUM_LINES = {"quick": 20_000, "full": 1_000_000}
LINE_BYTES = 200
SHARD_BYTES = 64 * 1024**2
BUNDLE = 64


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """The lines, and the truth about them."""
    data = lines(bench.data, num_lines=NUM_LINES[bench.size], line_bytes=LINE_BYTES)
    expected = truth_of_lines(data.read_bytes().splitlines())
    text = f"{expected.samples:,} JSON lines of {LINE_BYTES} bytes in one file, {expected.payload_bytes / 1e6:,.0f} MB"
    yield Stage(data, expected, text)


def truth_of_lines(found: Iterable[bytes]) -> Truth:
    """Number, bytes and digest of lines, whatever they are called."""
    taker, count = TruthTaker(), 0
    for count, line in enumerate(found, start=1):  # noqa: B007 -- the last number is the count
        taker.add("", line)
    return taker.truth(samples=count)


def check(output: Path, report: Mapping[str, Any]) -> Truth:
    """The lines in tars or in a copy of the file; of a peer's own format, what its index and the arm say."""
    index = output / "shards" / "index.json"
    if index.exists():
        fields = json.loads(index.read_text())
        samples = sum(entry["samples"] for entry in fields.get("shards", ()))  # MDS
        samples += sum(entry["chunk_size"] for entry in fields.get("chunks", ()))  # litdata
        return Truth(samples, report.get("payload_bytes", 0), report.get("digest"))
    copies = (line for path in sorted(output.glob("*.jsonl")) for line in path.read_bytes().splitlines())
    packed = (line for path in sorted(output.rglob("*.tar")) for line in lines_in_tar(path.read_bytes()))
    return truth_of_lines(line for found in (copies, packed) for line in found)


def lines_in_tar(data: bytes) -> Iterator[bytes]:
    """The lines of every member, read by name and size alone (POSIX.1-1988): tarfile takes 20 us for each member."""
    at = 0
    while data[at]:
        size = int(data[at + 124 : at + 135], 8)
        if data[at + 156] in b"0\0":  # a file, not the extended header that webdataset writes before each
            yield from data[at + 512 : at + 512 + size].splitlines()
        at += 512 + size + -size % 512


def with_copy(work: Work) -> None:
    """The floor: the bytes as they are into another file."""
    with work.timed():
        shutil.copyfile(work.data, work.output / "lines.jsonl")


def _with_datakit(work: Work, *, bundle: int | None) -> None:
    import pyarrow.ipc  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import pack
    from datakit.pack.cut import PackSettings

    with work.timed():
        pack(work.data, work.output / "dataset", settings=PackSettings(bundle=bundle))


def with_datakit(work: Work) -> None:
    """As shipped: a line a member."""
    _with_datakit(work, bundle=None)


def with_bundles(work: Work) -> None:
    """`--bundle 64`."""
    _with_datakit(work, bundle=BUNDLE)


def with_shard_writer(work: Work) -> None:
    """The documented loop."""
    with_shard_writer_into(work)


def with_shard_writer_into(work: Work) -> None:
    """The documented loop, with the encoder off, since the lines are bytes already."""
    import webdataset

    with (
        work.timed(),
        work.data.open("rb") as source,
        webdataset.ShardWriter(
            f"{work.output}/lines-%06d.tar", maxsize=SHARD_BYTES, maxcount=10**9, encoder=False, verbose=0
        ) as sink,
    ):
        for line in source:
            record = line.removesuffix(b"\n")
            sink.write({"__key__": json.loads(record)["id"], "json": record})


def with_mds(work: Work) -> dict[str, Any]:
    """The documented loop, without compression and hashes, which are its defaults."""
    stand_in_for_torchvision()
    from streaming import MDSWriter, StreamingDataset

    shards, payload_bytes = str(work.output / "shards"), 0
    with (
        work.timed(),
        work.data.open("rb") as source,
        MDSWriter(out=shards, columns={"line": "bytes"}, size_limit=SHARD_BYTES) as writer,
    ):
        for line in source:
            record = line.removesuffix(b"\n")
            payload_bytes += len(record)
            writer.write({"line": record})
    if work.proof:
        dataset = StreamingDataset(local=shards, shuffle=False, batch_size=1)
        return vars_of(truth_of_lines(dataset[number]["line"] for number in range(len(dataset))))
    return {"payload_bytes": payload_bytes}


def read_range(ends: tuple[int, int], *, data: str) -> Iterator[bytes]:
    """The lines between two places of the file, one at a time, as litdata takes many outputs from one input."""
    start, stop = ends
    with open(data, "rb") as source:
        source.seek(start)
        yield from source.read(stop - start).splitlines()


def with_litdata(work: Work) -> dict[str, Any]:
    """The documented call, with a worker for each core and an input of 4 MiB of lines."""
    from litdata import StreamingDataset, optimize

    shards = str(work.output / "shards")
    with work.timed():
        optimize(
            fn=functools.partial(read_range, data=str(work.data)),
            inputs=list(ranges_of(work.data, range_bytes=4 * 1024**2)),
            output_dir=shards,
            chunk_bytes=SHARD_BYTES,
            num_workers=len(os.sched_getaffinity(0)),
        )
    if work.proof:
        return vars_of(truth_of_lines(StreamingDataset(shards)))
    payload = work.data.read_bytes()
    return {"payload_bytes": len(payload) - payload.count(b"\n")}


def ranges_of(data: Path, *, range_bytes: int) -> Iterator[tuple[int, int]]:
    """Places of the file, each range ending with a newline."""
    start, size = 0, data.stat().st_size
    with data.open("rb") as source:
        while start < size:
            source.seek(min(start + range_bytes, size) - 1)
            source.readline()
            yield start, (start := source.tell())


def vars_of(truth: Truth) -> dict[str, Any]:
    """A truth as an arm reports it."""
    return {"payload_bytes": truth.payload_bytes, "digest": truth.digest}


DATAKIT_LIBRARIES = ("datakit", "pyarrow", "google-crc32c", "xxhash")
CLAIM = Claim(
    name="pack_lines",
    sentence="Packing very many tiny JSON lines, with checksums, digests and an index.",
    stage=stage,
    arms=(
        python_arm(with_copy, name="copy", note="the file as it is"),
        python_arm(with_datakit, name="datakit", libraries=DATAKIT_LIBRARIES, note="a line a member"),
        python_arm(with_bundles, name="datakit, bundled", libraries=DATAKIT_LIBRARIES, note="--bundle 64"),
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
            note="optimize with a worker a core, 4 MiB of lines an input; no checksum, no flush",
        ),
    ),
    floor="copy",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("webdataset", 4.0),),
    note="datakit also parses each line for its key and sees that keys are unique; of the others only webdataset's "
    "loop parses, for the name that it needs.",
)

if __name__ == "__main__":
    run_arm(globals())
