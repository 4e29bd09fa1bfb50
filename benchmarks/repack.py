"""repack: one record of many has changed; the dataset anew, datakit's second pack against a whole ShardWriter run.

The first pack is made in the stage. Each of datakit's runs starts from hard links to it, so that every run renews the
same dataset; links and what pack remembers beside its dataset are not part of the time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frame.claim import Bench, Claim, Goal, Stage, Truth, Work, python_arm, run_arm
from frame.payload import lines
from pack_lines import DATAKIT_LIBRARIES, lines_in_tar, truth_of_lines, with_shard_writer_into

NUM_LINES = {"quick": 10_000, "full": 100_000}
LINE_BYTES = 2_000


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """The changed lines, and a dataset of what they were."""
    from datakit import pack

    num_lines = NUM_LINES[bench.size]
    before = lines(bench.data, num_lines=num_lines, line_bytes=LINE_BYTES)
    after = lines(bench.data, num_lines=num_lines, line_bytes=LINE_BYTES, edited=num_lines // 3)
    packed = bench.data / f"repack-{num_lines}"
    shutil.rmtree(packed, ignore_errors=True)
    pack(before, packed / "dataset")
    expected = truth_of_lines(after.read_bytes().splitlines())
    text = (
        f"{num_lines:,} JSON lines of {LINE_BYTES:,} bytes, {expected.payload_bytes / 1e6:,.0f} MB, one of them changed"
    )
    yield Stage(after, expected, text, {"packed": str(packed)})


def check(output: Path, _report: Mapping[str, Any]) -> Truth:
    """The lines in the shards that the dataset now has."""
    # in the folder or in the dataset; what pack remembers lies in a hidden folder beside it
    shards = (path for path in sorted(output.rglob("*.tar")) if path.parent in (output, output / "dataset"))
    return truth_of_lines(line for path in shards for line in lines_in_tar(path.read_bytes()))


def with_datakit(work: Work) -> dict[str, Any]:
    """The same command as the first time."""
    import pyarrow.ipc  # noqa: F401 -- datakit imports it when first used; an import is not the work

    from datakit import pack

    shutil.copytree(work.values["packed"], work.output, copy_function=os.link, dirs_exist_ok=True)
    with work.timed():
        result = pack(work.data, work.output / "dataset")
    return {"shards": result.shards, "reused": result.reused}


def with_shard_writer(work: Work) -> None:
    """Everything again: it has no other way."""
    with_shard_writer_into(work)


CLAIM = Claim(
    name="repack",
    sentence="Packing again after one record has changed.",
    stage=stage,
    arms=(
        python_arm(
            with_shard_writer, name="webdataset", peer="webdataset", libraries=("webdataset",), note="all of it again"
        ),
        python_arm(
            with_datakit,
            name="datakit",
            libraries=DATAKIT_LIBRARIES,
            note="reads and checks every line, builds what changed, keeps the other shards",
        ),
    ),
    floor="webdataset",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    goals=(Goal("webdataset", 10.0),),
)

if __name__ == "__main__":
    run_arm(globals())
