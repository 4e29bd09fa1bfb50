"""samples: strategies for keys, parts and samples, and the shard of some samples."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from datakit.data.builder import ShardBuilder
from datakit.data.shard import Row, Sample

# letters of several scripts and widths, and the punctuation that file names have; no dot, no slash
STEM = st.text(st.sampled_from("abcxyzABC019-_ +~é中文ß"), min_size=1, max_size=24).filter(
    lambda stem: not (stem.startswith("__") and stem.endswith("__"))
)
FOLDER = st.text(st.sampled_from("abc019._é中"), min_size=1, max_size=12).filter(
    lambda step: step not in (".", "..") and not (step.startswith("__") and step.endswith("__"))
)
KEYS = st.builds(lambda folders, stem: "/".join([*folders, stem]), st.lists(FOLDER, max_size=2), STEM)
PARTS = st.sampled_from(["json", "jpg", "txt", "cls", "seg.png", "ids.npy", "a", "0"])
CONTENTS = st.binary(max_size=40) | st.sampled_from([b"", b"\0" * 512, b"x" * 511, b"y" * 512, b"z" * 513, bytes(2000)])
SAMPLES = st.lists(
    st.builds(
        Sample,
        KEYS,
        st.dictionaries(PARTS, CONTENTS, min_size=1, max_size=4),
        st.none() | st.just("chat.jsonl"),
        st.none() | st.integers(0, 2**31 - 1),
    ),
    max_size=8,
    unique_by=lambda sample: sample.key,
)


def shard_of(samples: Sequence[Sample], *, bundle: int | None = None) -> tuple[bytes, list[Row]]:
    """The bytes of a shard and the rows of its index."""
    data = bytearray()
    builder = ShardBuilder(data.extend, bundle=bundle)
    for sample in samples:
        builder.add(sample)
    rows = builder.finish()
    return bytes(data), rows
