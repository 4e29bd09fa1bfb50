"""reupload: what a change of the records costs to upload again, by layout, in shares of the dataset's bytes.

Keys and sizes alone decide, so nothing is packed: `datakit.pack.cut` deals 150,000 samples to shards before and after
each change, and the bytes in shards that were not there before are what would be sent. The population is that of the
simulation which chose the layout: 1,500 source files, log-normal sizes, shards of 16 MiB. An edited sample gets another
content and another size. Sequential filling is what ShardWriter, MDSWriter and plain tar do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frame.claim import Bench, Claim, Stage, Truth, Work, python_arm, run_arm

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NUM_SAMPLES = {"quick": 15_000, "full": 150_000}
FILE_SAMPLES = 100
MEAN_BYTES = 36_000  # 5 GiB in all
TARGET_BYTES = 16 * 1024**2
CHANGES = ("5 % appended", "15 edits", "150 edits", "150 removed", "3 files edited")
SHARES = ("spread of sizes", *CHANGES)


class Population:
    """Samples in source order: key hashes, versions and sizes in a shard, as arrays of one length."""

    def __init__(
        self, numbers: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64], versions: npt.NDArray[np.int64]
    ) -> None:
        self.numbers, self.hashes, self.versions = numbers, hashes, versions

    @classmethod
    def of(cls, count: int) -> Population:
        """So many samples in files of a hundred."""
        import numpy as np

        from datakit.data.keys import key_hash

        keys = (f"file-{number // FILE_SAMPLES:05d}/{number % FILE_SAMPLES:03d}" for number in range(count))
        hashes = np.fromiter((key_hash(key) for key in keys), np.uint64, count)
        return cls(np.arange(count), hashes, np.zeros(count, np.int64))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard: log-normal by its number and version, plus header and padding."""
        import numpy as np

        drawn = np.empty(len(self.numbers), np.int64)
        for version in np.unique(self.versions).tolist():
            # one stream a version: a sample's size does not depend on which others there are
            generator = np.random.Generator(np.random.PCG64(version))
            every = generator.lognormal(np.log(MEAN_BYTES) - 0.5, 1.0, int(self.numbers.max()) + 1).astype(np.int64)
            its = self.versions == version
            drawn[its] = every[self.numbers[its]]
        return drawn + 512 + -drawn % 512

    def edited(self, chosen: npt.NDArray[np.int64]) -> Population:
        """The same with another version of some."""
        versions = self.versions.copy()
        versions[chosen] += 1
        return Population(self.numbers, self.hashes, versions)

    def without(self, chosen: npt.NDArray[np.int64]) -> Population:
        """The same without some."""
        import numpy as np

        return Population(*(np.delete(column, chosen) for column in (self.numbers, self.hashes, self.versions)))


def changed(before: Population, change: str) -> Population:
    """The records after a change, the same for every layout."""
    import numpy as np

    count = len(before.numbers)
    draw = np.random.Generator(np.random.PCG64(hashlib.sha256(change.encode()).digest()[0]))
    if change == "5 % appended":
        return Population.of(count + count // 20)
    if change == "3 files edited":
        files = draw.choice(count // FILE_SAMPLES, 3, replace=False)
        return before.edited((files[:, None] * FILE_SAMPLES + np.arange(FILE_SAMPLES)).ravel())
    number, _, verb = change.partition(" ")
    chosen = np.sort(draw.choice(count, int(number), replace=False))
    return before.edited(chosen) if verb == "edits" else before.without(chosen)


Layout = Callable[[Population, "list[npt.NDArray[np.int64]]", Population], "list[npt.NDArray[np.int64]]"]
"""Positions of each shard's samples: of a population, by the shards that a population before it had."""


def shares_of(layout: Layout, *, count: int) -> dict[str, float]:
    """What each change sends again, and how uneven the shards are (standard deviation over mean)."""
    before = Population.of(count)
    shards = layout(before, [], before)
    sizes = before.sizes()
    filled = [int(sizes[shard].sum()) for shard in shards]
    mean = sum(filled) / len(filled)
    spread = (sum((size - mean) ** 2 for size in filled) / len(filled)) ** 0.5 / mean
    known = {_identity(before, shard) for shard in shards}
    shares = {"spread of sizes": round(spread, 4)}
    for change in CHANGES:
        after = changed(before, change)
        sizes = after.sizes()
        new = [shard for shard in layout(after, shards, before) if _identity(after, shard) not in known]
        shares[change] = round(sum(int(sizes[shard].sum()) for shard in new) / int(sizes.sum()), 4)
    return shares


def _identity(samples: Population, shard: npt.NDArray[np.int64]) -> bytes:
    return samples.numbers[shard].tobytes() + samples.versions[shard].tobytes()


def _run(work: Work, layout: Layout) -> dict[str, Any]:
    count = int(work.values["count"])
    with work.timed():
        shares = shares_of(layout, count=count)
    return {"shares": shares, **report_of(count)}


def report_of(count: int) -> dict[str, Any]:
    """What every arm worked on, so that none works on other samples."""
    population = Population.of(count)
    sizes = population.sizes()
    digest = hashlib.sha256(population.hashes.tobytes() + sizes.tobytes()).hexdigest()
    return {"samples": count, "payload_bytes": int(sizes.sum()), "digest": digest}


def _cut(name: str) -> Layout:
    from datakit.pack.cut import cut

    def layout(samples: Population, _shards: object, _before: object) -> list[npt.NDArray[np.int64]]:
        return list(cut(samples.hashes, sizes=samples.sizes(), target_bytes=TARGET_BYTES, layout=name))  # type: ignore[arg-type]  # one of three

    return layout


def with_sequential(work: Work) -> dict[str, Any]:
    """Filled in the source's order."""
    return _run(work, _cut("sequential"))


def with_shuffle(work: Work) -> dict[str, Any]:
    """`--layout shuffle`."""
    return _run(work, _cut("shuffle"))


def with_datakit(work: Work) -> dict[str, Any]:
    """`--layout stable`, the default."""
    return _run(work, _cut("stable"))


def with_parent(work: Work) -> dict[str, Any]:
    """`--parent`: samples stay in the shards that they are in."""
    import numpy as np

    from datakit.pack.cut import stick

    stable = _cut("stable")

    def layout(
        samples: Population, shards: list[npt.NDArray[np.int64]], before: Population
    ) -> list[npt.NDArray[np.int64]]:
        if not shards:
            return stable(samples, shards, before)
        most = int(max(samples.numbers.max(), before.numbers.max())) + 1
        at = np.full(most, -1, np.int64)
        at[samples.numbers] = np.arange(len(samples.numbers))
        theirs = [at[before.numbers[shard]] for shard in shards]
        return list(
            stick(
                [its[its >= 0] for its in theirs],
                lost=np.array([bool((its < 0).any()) for its in theirs], np.bool_),
                hashes=samples.hashes,
                sizes=samples.sizes(),
                target_bytes=TARGET_BYTES,
                layout="stable",
            )
        )

    return _run(work, layout)


@contextmanager
def stage(bench: Bench) -> Iterator[Stage]:
    """The samples as every arm makes them."""
    count = NUM_SAMPLES[bench.size]
    report = report_of(count)
    size = f"{report['payload_bytes'] / 1024**3:.1f} GiB in shards of {TARGET_BYTES // 1024**2} MiB"
    text = f"{count:,} samples of {count // FILE_SAMPLES:,} source files, log-normal sizes, {size}"
    bench.data.mkdir(parents=True, exist_ok=True)
    yield Stage(bench.data, check(bench.data, report), text, {"count": str(count)})


def check(_output: Path, report: Mapping[str, Any]) -> Truth:
    """The samples that an arm worked on."""
    return Truth(report.get("samples", 0), report.get("payload_bytes", 0), report.get("digest"))


CLAIM = Claim(
    name="reupload",
    sentence="What a change of the records makes to upload again, as a share of all bytes.",
    stage=stage,
    arms=(
        python_arm(
            with_sequential, name="filled in order", libraries=("datakit", "numpy"), note="--layout sequential; tar"
        ),
        python_arm(with_datakit, name="datakit", libraries=("datakit", "numpy"), note="--layout stable, the default"),
        python_arm(with_parent, name="datakit, --parent", libraries=("datakit", "numpy")),
        python_arm(with_shuffle, name="datakit, shuffle", libraries=("datakit", "numpy"), note="--layout shuffle"),
    ),
    floor="filled in order",
    reference="datakit",
    ratio_on="inner_s",
    unit="samples",
    check=check,
    shares=SHARES,
    note="k scattered edits in S shards change at least 1 - (1 - 1/S)^k of them, whatever the layout.",
)

if __name__ == "__main__":
    run_arm(globals())
