"""reading: what is in a dataset, and the bytes of one sample.

`inspect` reads manifest and indexes alone, never a shard; `cat` reads one part and checks its crc32c. Both work on the
disk and in object storage, and tell the requests that they cost. They decode nothing: bytes are given as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.data.digest import crc32c
from datakit.data.index import Index
from datakit.data.keys import split_name
from datakit.data.manifest import ShardEntry
from datakit.data.shard import Row
from datakit.errors import IntegrityError, NotFound, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.view import View, open_view


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
        path: The dataset's directory or URL.
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
        requests: Requests that it cost, by class; none on the disk.
    """

    path: Path | str
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
    requests: RequestCounts


def inspect(dataset: str | Path, *, show: int = 3, stores: Mapping[str, StoreOptions] | None = None) -> Inspection:
    """Look at a dataset without reading its shards.

    Args:
        dataset: Its directory or URL.
        show: Samples to list.
        stores: Named stores of the settings.

    Raises:
        NotFound: There is no dataset, or an index of it is missing.
        InputError: It is a file, or a commit of something else.
        IntegrityError: Manifest or an index is damaged.
        StoreUnavailable, NotAllowed: The store cannot be asked.
    """
    import numpy as np

    view = open_view(dataset, stores=stores)
    manifest, contents = view.manifest, view.contents
    sizes: dict[str, list[Any]] = {part: [] for part in contents.parts}
    looks: list[SampleLook] = []
    for shard, index in view.indexes():
        for part in index.parts:
            sizes.setdefault(part, []).append(index.sizes(part)[index.has(part)])
        for position in range(min(len(index), show - len(looks))):
            row = index.row(position)
            looks.append(SampleLook(row.key, shard.name, {p: place.size for p, place in row.parts.items()}, row.tokens))
    return Inspection(
        path=view.path or view.where,
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
        requests=view.requests,
    )


@dataclass(frozen=True, slots=True)
class FoundPart:
    """One part of one sample, and what it took to find it.

    Attributes:
        dataset: The dataset's directory or URL.
        key: The sample's key.
        part: The part's name.
        shard: The shard that it lies in.
        offset: Byte of the shard where it begins.
        data: Its bytes, compared with the index.
        indexes_read: Indexes that were looked through.
        requests: Requests that it cost, by class; none on the disk.
    """

    dataset: str
    key: str
    part: str
    shard: str
    offset: int
    data: bytes = field(repr=False)
    indexes_read: int
    requests: RequestCounts


def cat(
    dataset: str | Path,
    key: str,
    *,
    part: str | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
) -> bytes:
    """The bytes of one part of one sample; arguments and errors as in `find_part`."""
    return find_part(dataset, key, part=part, stores=stores).data


def find_part(
    dataset: str | Path,
    key: str,
    *,
    part: str | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
) -> FoundPart:
    """Find one part of one sample, and read it.

    Indexes are looked through until one has the key, several ahead of each other in object storage; where shards are
    in the order of their keys, the right one is guessed first. So it costs one request for the manifest, one for each
    index that was read, and two for the part.

    Args:
        dataset: The dataset's directory or URL.
        key: The sample's key, or `KEY.PART`.
        part: The part; not needed where `key` names it or the sample has only one.
        stores: Named stores of the settings.

    Raises:
        NotFound: There is no such dataset, sample or part.
        InputError: The dataset is a file, or a commit of something else.
        UsageError: The sample has several parts and none was named.
        IntegrityError: The bytes are not what the index says.
        StoreUnavailable, NotAllowed: The store cannot be asked.
    """
    view = open_view(dataset, stores=stores)
    if part is None:
        key, after_dot = split_name(key)
        part = after_dot or None
    search = _Search(view, key)
    shard, row = search.run()
    if part is None and len(row.parts) > 1:
        names = [f"{key}.{name}" for name in row.parts]
        raise UsageError(f"sample {key} has {len(names)} parts", hint=f"Name one: {', '.join(names)}", subject=key)
    name = part if part is not None else next(iter(row.parts))
    if name not in row.parts:
        hint = f"Name one that it has: {', '.join(f'{key}.{each}' for each in row.parts)}"
        raise NotFound(f"sample {key} has no part {name}", hint=hint, subject=f"{key}.{name}")
    place = row.parts[name]
    data = view.read(shard, place.offset, place.size)
    if crc32c(data) != place.crc32c:
        raise IntegrityError(
            f"{view.where}/{shard.name}: part {name} of sample {key} has crc32c {crc32c(data):08x}, "
            f"the index says {place.crc32c:08x}",
            hint=f"See all damage: datakit verify {shlex.quote(str(view.where))}",
            subject=key,
        )
    return FoundPart(view.where, key, name, shard.name, place.offset, data, len(search.seen), view.requests)


class _Search:
    """The way to a key through the indexes of a dataset."""

    def __init__(self, view: View, key: str) -> None:
        self._view = view
        self._key = key
        self.seen: set[str] = set()

    def run(self) -> tuple[ShardEntry, Row]:
        """The shard and the row."""
        view = self._view
        found = self._guess() if view.contents.pack.get("layout") != "stable" else None
        if found is not None:
            return found
        for shard, index in view.indexes([s for s in view.contents.shards if s.name not in self.seen]):
            if (row := self._look(shard, index)) is not None:
                return shard, row
        escaped = "Its keys are escaped, a dot is %2E. " if view.contents.pack.get("escape") == "percent" else ""
        raise NotFound(
            f"{view.where} has no sample {self._key!r}",
            hint=f"{escaped}See some that it has: datakit inspect {shlex.quote(str(view.where))} --show 10",
            subject=self._key,
        )

    def _guess(self) -> tuple[ShardEntry, Row] | None:
        """By halves, as if shards were in the order of their keys; where they are not, it finds nothing."""
        shards = self._view.contents.shards
        low, high = 0, len(shards)
        while low < high:
            middle = (low + high) // 2
            index = self._view.index(shards[middle])
            if (row := self._look(shards[middle], index)) is not None:
                return shards[middle], row
            if not len(index) or index.key(0) <= self._key <= index.key(len(index) - 1):
                return None
            low, high = (middle + 1, high) if self._key > index.key(0) else (low, middle)
        return None

    def _look(self, shard: ShardEntry, index: Index) -> Row | None:
        self.seen.add(shard.name)
        position = index.find(self._key)
        return None if position is None else index.row(position)


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
