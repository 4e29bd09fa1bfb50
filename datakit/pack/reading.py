"""reading: what is in a dataset, and the bytes of one sample.

`inspect` reads manifest and indexes alone, never a shard; `cat` reads one part and checks its crc32c. What it does not
do: datasets in object storage, or decoding (bytes are given as they are).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.digest import crc32c
from datakit.data.keys import split_name
from datakit.data.manifest import Manifest
from datakit.data.shard import Row
from datakit.errors import InputError, IntegrityError, NotFound, UsageError
from datakit.pack.scan import local_directory
from datakit.storage.commit import read_manifest
from datakit.storage.disk import map_file
from datakit.storage.indexes import open_index


@dataclass(frozen=True, slots=True)
class PartSizes:
    """How large a part is over the samples that have it, in bytes; `histogram` counts sizes below powers of two.

    Attributes:
        samples: Samples that have it.
        total_bytes: Bytes of all of them.
        smallest_bytes: The smallest.
        median_bytes: The middle one (the lower of two).
        largest_bytes: The largest.
        histogram: For each power of two, ascending, the samples whose part is below it and not below its half.
    """

    samples: int
    total_bytes: int
    smallest_bytes: int
    median_bytes: int
    largest_bytes: int
    histogram: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SampleLook:
    """One sample as `inspect` shows it: its key, its shard, bytes of each part, tokens."""

    key: str
    shard: str
    parts: Mapping[str, int]
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a dataset.

    Attributes:
        path: The dataset.
        name: Its name.
        manifest_digest: Identity of the commit.
        content_digest: Same samples.
        layout_digest: Same shards, same order.
        samples: Its samples.
        shards: Its shards.
        shard_bytes: Bytes of the shards.
        payload_bytes: Bytes of the parts.
        tokens: Tokens, or None where samples are not tokenized.
        pack: Settings that it was packed with.
        parts: Sizes of each part.
        first_samples: The first few samples in the dataset's order.
    """

    path: Path
    name: str
    manifest_digest: str
    content_digest: str
    layout_digest: str
    samples: int
    shards: int
    shard_bytes: int
    payload_bytes: int
    tokens: int | None
    pack: Mapping[str, Any]
    parts: Mapping[str, PartSizes]
    first_samples: tuple[SampleLook, ...]


def inspect(dataset: str | Path, *, show: int = 3) -> Inspection:
    """Look at a dataset without reading its shards.

    Args:
        dataset: Its directory.
        show: Samples to list.

    Raises:
        NotFound: There is no dataset, or an index of it is missing.
        InputError: It is a file, or a commit of something else.
        IntegrityError: Manifest or an index is damaged.
    """
    import numpy as np

    root = _directory(dataset, verb="inspect")
    manifest = read_manifest(root)
    contents = manifest.contents
    sizes: dict[str, list[Any]] = {part: [] for part in contents.parts}
    looks: list[SampleLook] = []
    for shard in contents.shards:
        index = open_index(root, manifest, shard)
        for part in index.parts:
            sizes.setdefault(part, []).append(index.sizes(part)[index.has(part)])
        for position in range(min(len(index), show - len(looks))):
            row = index.row(position)
            looks.append(SampleLook(row.key, shard.name, {p: place.size for p, place in row.parts.items()}, row.tokens))
    return Inspection(
        path=root,
        name=manifest.name,
        manifest_digest=manifest.digest,
        content_digest=contents.content_digest,
        layout_digest=contents.layout_digest,
        samples=contents.samples,
        shards=len(contents.shards),
        shard_bytes=sum(manifest.member(shard.name).bytes for shard in contents.shards),
        payload_bytes=contents.payload_bytes,
        tokens=contents.tokens,
        pack=contents.pack,
        parts={part: _sizes(np.concatenate(arrays)) for part, arrays in sorted(sizes.items()) if arrays},
        first_samples=tuple(looks),
    )


def cat(dataset: str | Path, key: str, *, part: str | None = None) -> bytes:
    """The bytes of one part of one sample.

    Args:
        dataset: The dataset's directory.
        key: The sample's key, or `KEY.PART`.
        part: The part; not needed where `key` names it or the sample has only one.

    Raises:
        NotFound: There is no such dataset, sample or part.
        InputError: The dataset is a file, or a commit of something else.
        UsageError: The sample has several parts and none was named.
        IntegrityError: The bytes are not what the index says.
    """
    root = _directory(dataset, verb="cat")
    manifest = read_manifest(root)
    if part is None:
        key, after_dot = split_name(key)
        part = after_dot or None
    shard, row = _find(root, manifest, key)
    if part is None and len(row.parts) > 1:
        names = [f"{key}.{name}" for name in row.parts]
        raise UsageError(f"sample {key} has {len(names)} parts", hint=f"Name one: {', '.join(names)}", subject=key)
    name = part if part is not None else next(iter(row.parts))
    if name not in row.parts:
        raise NotFound(f"sample {key} has no part {name}, it has {', '.join(row.parts)}", subject=f"{key}.{name}")
    place = row.parts[name]
    data = bytes(map_file(root / shard)[place.offset : place.offset + place.size])
    if crc32c(data) != place.crc32c:
        raise IntegrityError(
            f"{root / shard}: part {name} of sample {key} has crc32c {crc32c(data):08x}, "
            f"the index says {place.crc32c:08x}",
            hint=f"See all damage: datakit verify {root}",
            subject=key,
        )
    return data


def _directory(dataset: str | Path, *, verb: str) -> Path:
    root = local_directory(dataset, verb=verb)
    if root.is_file():
        raise InputError(
            f"{root} is a file, not a dataset's directory", hint=f"Pack it: datakit pack {root} DEST", subject=str(root)
        )
    return root


def _find(root: Path, manifest: Manifest, key: str) -> tuple[str, Row]:
    for shard in manifest.contents.shards:
        index = open_index(root, manifest, shard)
        position = index.find(key)
        if position is not None:
            return shard.name, index.row(position)
    raise NotFound(
        f"{root} has no sample {key!r}", hint=f"See some that it has: datakit inspect {root} --show 10", subject=key
    )


def _sizes(values: Any) -> PartSizes:
    import numpy as np

    ordered = np.sort(values)
    bounds, counts = np.unique([int(size).bit_length() for size in ordered], return_counts=True)
    return PartSizes(
        samples=len(ordered),
        total_bytes=int(ordered.sum()),
        smallest_bytes=int(ordered[0]),
        median_bytes=int(ordered[(len(ordered) - 1) // 2]),
        largest_bytes=int(ordered[-1]),
        histogram={2 ** int(bits): int(count) for bits, count in zip(bounds, counts, strict=True)},
    )
