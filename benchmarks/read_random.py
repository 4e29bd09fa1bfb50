"""read_random: every sample of a packed dataset once, by number in a random order, one process.

The order is the same for all arms. webdataset has no access by number. The input is that of the claim `read` in its
quick size, whatever the size asked for: litdata takes milliseconds for each sample that lies in another chunk.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from frame.claim import Bench, Claim, Goal, Stage, Work, python_arm, run_arm
from frame.standin import stand_in_for_torchvision
from read import DATAKIT_LIBRARIES, check, drain, shards_of, stage


def few(bench: Bench) -> AbstractContextManager[Stage]:
    """The quick input of `read`."""
    return stage(replace(bench, size="quick"))


def in_random_order(read: Callable[[int], tuple[str, Any, Any]], *, count: int, work: Work) -> dict[str, Any]:
    """Take each of so many samples once, in the order that every arm takes."""
    numbers = list(range(count))
    Random("order").shuffle(numbers)
    return drain(map(read, numbers), work)


def with_mmap(work: Work) -> dict[str, Any]:
    """Slices at known places: no library, no check, the list of places already in memory."""
    lines = [line.split("\t") for line in Path(work.values["places"]).read_text().splitlines()]
    places = [(key, int(shard), int(a), int(b), int(c), int(d)) for key, shard, a, b, c, d in lines]

    def read(number: int) -> tuple[str, Any, Any]:
        key, shard, a, b, c, d = places[number]
        return key, maps[shard][a:b], maps[shard][c:d]

    with work.timed():
        maps = []
        for shard in shards_of(work.data):
            with shard.open("rb") as file:
                maps.append(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        return in_random_order(read, count=len(places), work=work)


def with_datakit(work: Work) -> dict[str, Any]:
    """As shipped: every part checked against its crc32c."""
    import pyarrow.ipc  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import open_dataset

    def read(number: int) -> tuple[str, Any, Any]:
        _, key, parts = dataset[number]
        return key, parts["jpg"], parts["json"]

    with work.timed():
        dataset = open_dataset(work.data)
        return in_random_order(read, count=len(dataset), work=work)


def with_mds(work: Work) -> dict[str, Any]:
    """The documented access by number over a local folder."""
    stand_in_for_torchvision()
    from streaming import StreamingDataset

    def read(number: int) -> tuple[str, Any, Any]:
        sample = dataset[number]
        return sample["key"], sample["jpg"], sample["json"]

    with work.timed():
        dataset = StreamingDataset(local=work.values["mosaicml-streaming"], shuffle=False, batch_size=1)
        return in_random_order(read, count=len(dataset), work=work)


def with_litdata(work: Work) -> dict[str, Any]:
    """The documented access by number over a local folder."""
    from litdata import StreamingDataset

    def read(number: int) -> tuple[str, Any, Any]:
        sample = dataset[number]
        return sample["key"], sample["jpg"], sample["json"]

    with work.timed():
        dataset = StreamingDataset(work.values["litdata"])
        return in_random_order(read, count=len(dataset), work=work)


CLAIM = Claim(
    name="read_random",
    sentence="Reading every sample of a dataset once, by its number, in a random order, in one process.",
    stage=few,
    arms=(
        python_arm(with_mmap, name="raw mmap slices", note="places known beforehand, no payload byte is touched"),
        python_arm(with_datakit, name="datakit", libraries=DATAKIT_LIBRARIES, note="crc32c of every part checked"),
        python_arm(
            with_mds,
            name="MDS",
            peer="mosaicml-streaming",
            libraries=("mosaicml-streaming",),
            note="its own format, no checks; its import of torchvision gets an empty stand-in",
        ),
        python_arm(
            with_litdata,
            name="litdata",
            peer="litdata",
            libraries=("litdata", "torch"),
            note="its own format, no checks; made for chunks in order, it opens one anew when a sample lies in another",
        ),
    ),
    floor="raw mmap slices",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("MDS", 1.0), Goal("litdata", 1.0)),
    note="MDS and litdata read what their own writers made of the same files.",
)

if __name__ == "__main__":
    run_arm(globals())
