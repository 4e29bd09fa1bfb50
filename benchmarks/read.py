"""read: every sample of a packed dataset once, in order, one process, datakit against webdataset, MDS and litdata.

webdataset reads datakit's shards, MDS and litdata what their own writers made of the same files. All arms go through
the same loop, which counts samples and bytes; in the warm-up run it digests every byte instead. The time is that of
opening and reading, without the start of the interpreter, which would cover everything else.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.claim import Bench, BenchError, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import TruthTaker, pairs, truth_of_files
from frame.standin import stand_in_for_torchvision

NUM_PAIRS = {"quick": 5_000, "full": 50_000}


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """The pairs, packed by the datakit of this checkout, with a list of where each payload is."""
    from datakit import pack

    num_pairs = NUM_PAIRS[bench.size]
    source = pairs(bench.data, num_pairs=num_pairs)
    expected = truth_of_files((path for path in source.rglob("*") if path.is_file()), root=source, samples=num_pairs)
    dataset = bench.data / f"dataset-{num_pairs}"
    shutil.rmtree(dataset, ignore_errors=True)
    pack(source, dataset)
    places = bench.data / f"places-{num_pairs}.tsv"
    places.write_text("".join(_places(dataset)))
    text = f"{num_pairs:,} samples of .jpg (16 KiB) and .json (1 kB) in {len(shards_of(dataset))} shards"
    values = {"places": str(places), **{peer: str(_packed_by(peer, source, bench)) for peer in WRITERS}}
    yield Stage(dataset, expected, f"{text}, {expected.payload_bytes / 1e6:,.0f} MB", values)


WRITERS = {"mosaicml-streaming": "with_mds", "litdata": "with_litdata"}
"""Peers that read formats of their own, and the arm of the claim `pack` that writes them."""


def _packed_by(peer: str, source: Path, bench: Bench) -> Path:
    """The pairs in a peer's own format, written once by its own writer."""
    output = bench.data / f"{peer}-{source.name}"
    if not (output / "done").exists():
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        errand = Work(source, output, {}, proof=False, python=bench.python_of(peer))
        script = Path(__file__).with_name("pack.py")
        done = subprocess.run(
            [errand.python, script, WRITERS[peer], errand.to_json()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"{peer} could not write its own format:\n{done.stderr[-2000:]}")
        for file in output.rglob("*"):
            if file.is_file():
                file.read_bytes()  # as warm as every other input
        (output / "done").touch()
    return output / "shards"


def shards_of(dataset: Path) -> list[Path]:
    """The dataset's shards, in the order of their names."""
    return sorted(dataset.rglob("*.tar"))


def _places(dataset: Path) -> Iterator[str]:
    """Lines of key, shard, and start and stop of its image and of its text."""
    for number, shard in enumerate(shards_of(dataset)):
        with tarfile.open(shard) as archive:
            members = archive.getmembers()
        for image, text in zip(members[::2], members[1::2], strict=True):
            ends = (image.offset_data, image.offset_data + image.size, text.offset_data, text.offset_data + text.size)
            yield "\t".join(map(str, (image.name.removesuffix(".jpg"), number, *ends))) + "\n"


def check(_output: Path, report: Mapping[str, Any]) -> Truth:
    """What the loop saw."""
    return Truth(report.get("samples", 0), report.get("payload_bytes", 0), report.get("digest"))


def drain(samples: Iterable[tuple[str, Any, Any]], work: Work) -> dict[str, Any]:
    """Take (key, jpg, json) of every sample: count them, or digest them in the warm-up run."""
    if work.proof:
        taker, num_samples = TruthTaker(), 0
        for key, image, text in samples:
            taker.add(f"{key}.jpg", image)
            taker.add(f"{key}.json", text)
            num_samples += 1
        truth = taker.truth(samples=num_samples)
        return {"samples": truth.samples, "payload_bytes": truth.payload_bytes, "digest": truth.digest}
    num_samples = payload_bytes = 0
    for _key, image, text in samples:
        num_samples += 1
        payload_bytes += len(image) + len(text)
    return {"samples": num_samples, "payload_bytes": payload_bytes}


def with_mmap(work: Work) -> dict[str, Any]:
    """Slices at known places: no library, no check, the list of places already in memory."""
    lines = [line.split("\t") for line in Path(work.values["places"]).read_text().splitlines()]
    places = [(key, int(shard), int(a), int(b), int(c), int(d)) for key, shard, a, b, c, d in lines]

    with work.timed():
        maps = []
        for shard in shards_of(work.data):
            with shard.open("rb") as file:
                maps.append(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        return drain(
            ((key, maps[shard][a:b], maps[shard][c:d]) for key, shard, a, b, c, d in places),
            work,
        )


def _with_datakit(work: Work, *, verify: str) -> dict[str, Any]:
    import pyarrow.ipc  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import open_dataset

    with work.timed():
        dataset = open_dataset(work.data, verify=verify)
        return drain(((sample.key, sample.parts["jpg"], sample.parts["json"]) for sample in dataset), work)


def with_datakit(work: Work) -> dict[str, Any]:
    """As shipped: every part checked against its crc32c."""
    return _with_datakit(work, verify="crc")


def with_datakit_unchecked(work: Work) -> dict[str, Any]:
    """The same without the check."""
    return _with_datakit(work, verify="none")


def with_webdataset(work: Work) -> dict[str, Any]:
    """The documented loop, without decoding."""
    import webdataset

    with work.timed():
        dataset = webdataset.WebDataset([str(shard) for shard in shards_of(work.data)], shardshuffle=False)
        return drain(((sample["__key__"], sample["jpg"], sample["json"]) for sample in dataset), work)


def with_mds(work: Work) -> dict[str, Any]:
    """The documented loop over a local folder."""
    stand_in_for_torchvision()
    from streaming import StreamingDataset

    with work.timed():
        # it looks ahead 8 batches and then sleeps 7 ms (streaming 0.13.0, `TICK`): of batches of one, 1,100 samples/s
        ahead = 4096
        dataset = StreamingDataset(
            local=work.values["mosaicml-streaming"], shuffle=False, batch_size=1, predownload=ahead
        )
        return drain(((sample["key"], sample["jpg"], sample["json"]) for sample in dataset), work)


def with_litdata(work: Work) -> dict[str, Any]:
    """The documented loop over a local folder."""
    from litdata import StreamingDataset

    with work.timed():
        dataset = StreamingDataset(work.values["litdata"])
        return drain(((sample["key"], sample["jpg"], sample["json"]) for sample in dataset), work)


DATAKIT_LIBRARIES = ("datakit", "pyarrow", "numpy", "google-crc32c")
CLAIM = Claim(
    name="read",
    sentence="Reading every sample of a dataset once, in order, in one process.",
    stage=stage,
    arms=(
        python_arm(with_mmap, name="raw mmap slices", note="places known beforehand, no payload byte is touched"),
        python_arm(with_datakit, name="datakit", libraries=DATAKIT_LIBRARIES, note="crc32c of every part checked"),
        python_arm(
            with_datakit_unchecked,
            name="datakit, unchecked",
            libraries=DATAKIT_LIBRARIES,
            note="verify='none': views into the shard, no payload byte is touched",
        ),
        python_arm(
            with_webdataset,
            name="webdataset",
            peer="webdataset",
            libraries=("webdataset",),
            note="bytes copied out of the tar, no checks, no decoding",
        ),
        python_arm(
            with_mds,
            name="MDS",
            peer="mosaicml-streaming",
            libraries=("mosaicml-streaming",),
            note="StreamingDataset with predownload=4096, its own format, no checks; "
            "its import of torchvision gets an empty stand-in",
        ),
        python_arm(
            with_litdata,
            name="litdata",
            peer="litdata",
            libraries=("litdata", "torch"),
            note="StreamingDataset, its own format, no checks; views of a mapped file",
        ),
    ),
    floor="raw mmap slices",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("webdataset", 12.0), Goal("litdata", 1.0)),
    note="MDS and litdata read what their own writers made of the same files, all others the same shards. Peak memory "
    "counts mapped pages of the shards, which are page cache.",
)

if __name__ == "__main__":
    run_arm(globals())
