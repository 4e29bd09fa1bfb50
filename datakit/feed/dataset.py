"""dataset: a committed dataset on the local disk, any sample of it by number or by key.

Shards and their indexes are mapped: opening costs the manifest only, an index is compared with the manifest when its
shard is first read, a part is one slice of the map, and its crc32c is compared with the index unless that is switched
off. A map holds a file descriptor as long as it lives, so the
shards that were used last stay mapped, as many as the process's limit allows (`_most_mapped`), and the others are let
go; parts that were handed out stay valid. Samples are numbered in layout order: shards as the
manifest lists them, rows as the index lists them.

Promises: no byte of a damaged sample is handed out while `verify` is on; the object may be pickled (workers map the
files anew) and shared by threads. Does not decode, shuffle or fetch: an object store's dataset is brought here by
`datakit sync` first. Never imports an object-store client.
"""

from __future__ import annotations

import functools
import resource
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from datakit.data.digest import crc32c
from datakit.data.index import Index
from datakit.data.manifest import Manifest
from datakit.errors import InputError, IntegrityError, NotFound, UsageError
from datakit.storage.commit import read_manifest
from datakit.storage.disk import map_file
from datakit.storage.indexes import open_index

Verify: TypeAlias = Literal["crc", "none"]
"""Whether each part that is read is compared with its checksum in the index."""


_MOST_SHARDS = 8192
"""Mapped at once at the most: Linux grants a process 65530 maps (vm.max_map_count), and torch wants some too."""

_RUN_ROWS = 4096
"""Rows unpacked at once when samples are read in order: 0.5 MB, and 0.1 us a row instead of 2 (measured 2026-11-30)."""


class Item(NamedTuple):
    """A sample as it is read (a tuple, because a frozen dataclass takes three times as long to make).

    Attributes:
        number: Its number in the dataset, from 0, in layout order.
        key: Its unique name.
        parts: The bytes of each part; views of the mapped shard, nothing is copied.
    """

    number: int
    key: str
    parts: Mapping[str, memoryview]


class Dataset:
    """A local dataset; made by `open_dataset`.

    Args:
        path: The dataset's directory.
        manifest: Its manifest.
        verify: `crc` or `none`.
    """

    def __init__(self, path: Path, manifest: Manifest, *, verify: Verify) -> None:
        self.path = path
        self.manifest = manifest
        self.verify: Verify = verify
        self._contents = manifest.contents
        self._starts = [0, *accumulate(shard.samples for shard in self._contents.shards)]
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._most = _most_mapped()
        self._guard = threading.Lock()

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.manifest.name

    @property
    def digest(self) -> str:
        """The layout digest: the same samples in the same shards in the same order."""
        return self._contents.layout_digest

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that any sample has, sorted."""
        return tuple(sorted(self._contents.parts))

    def __len__(self) -> int:
        return self._contents.samples

    def __getitem__(self, which: int | str) -> Item:
        """A sample by its number or by its key.

        Raises:
            IndexError: There is no sample of this number.
            NotFound: No sample has this key.
            IntegrityError: A part's bytes are not what the index says.
        """
        number = self.number_of(which) if isinstance(which, str) else int(which)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path} has {len(self)} samples, none has number {which}")
        place = bisect_right(self._starts, number) - 1
        return self._shard(place).read(number - self._starts[place], number)

    def __iter__(self) -> Iterator[Item]:
        for place, first in enumerate(self._starts[:-1]):
            shard = self._shard(place)
            for row in range(0, len(shard.index), _RUN_ROWS):
                yield from shard.read_run(row, row + _RUN_ROWS, first + row)

    def number_of(self, key: str) -> int:
        """The number of the sample with this key.

        Raises:
            NotFound: No sample has this key.
        """
        for place in range(len(self._contents.shards)):
            row = self._shard(place).index.find(key)
            if row is not None:
                return self._starts[place] + row
        raise NotFound(
            f"{self.path} has no sample {key}", hint=f"List its keys: datakit inspect {self.path}", subject=key
        )

    def __reduce__(self) -> tuple[object, ...]:
        # maps do not travel: whoever unpickles opens them anew
        return (_reopen, (self.path, self.manifest, self.verify))

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, samples={len(self)}, digest={self.digest[:12]})"

    def _shard(self, place: int) -> _Shard:
        with self._guard:
            shard = self._shards.get(place)
            if shard is None:
                while len(self._shards) >= self._most:
                    self._shards.popitem(last=False)
                entry = self._contents.shards[place]
                shard = _Shard(self.path / entry.name, open_index(self.path, self.manifest, entry), verify=self.verify)
                expected = self.manifest.member(entry.name).bytes
                if len(shard.data) != expected:
                    raise _damaged(
                        f"{shard.path} has {len(shard.data)} bytes, the manifest says {expected}", shard.path
                    )
                self._shards[place] = shard
            else:
                self._shards.move_to_end(place)
            return shard


def _most_mapped() -> int:
    """Shards that one dataset keeps mapped: two descriptors each, a quarter of what the process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_SHARDS if limit == resource.RLIM_INFINITY else min(_MOST_SHARDS, max(1, limit // 8))


def _reopen(path: Path, manifest: Manifest, verify: Verify) -> Dataset:
    return Dataset(path, manifest, verify=verify)


class _Shard:
    """One shard, mapped."""

    def __init__(self, path: Path, index: Index, *, verify: Verify) -> None:
        self.path = path
        self.index = index
        self.verify = verify
        self.data = map_file(path)

    @functools.cached_property
    def columns(self) -> list[tuple[str, Any, Any, Any, Any]]:
        """For each part: its name, offsets, sizes, checksums, and which rows have it (None: all of them)."""
        index = self.index
        places = []
        for part in index.parts:
            has = index.has(part)
            places.append((part, index.offsets(part), index.sizes(part), index.crcs(part), None if has.all() else has))
        return places

    def read(self, row: int, number: int) -> Item:
        """One sample."""
        parts = {}
        for part, offsets, sizes, crcs, has in self.columns:
            if has is None or has[row]:
                parts[part] = self._part(row, part, int(offsets[row]), int(sizes[row]), int(crcs[row]))
        return Item(number, self.index.key(row), parts)

    def read_run(self, start: int, stop: int, number: int) -> Iterator[Item]:
        """Samples that follow each other; the index's columns are unpacked once for all of them."""
        keys = self.index.keys(start, stop)
        columns = [
            (part, *(column[start:stop].tolist() for column in (offsets, sizes, crcs)), has)
            for part, offsets, sizes, crcs, has in self.columns
        ]
        for step, key in enumerate(keys):
            parts = {}
            for part, offsets, sizes, crcs, has in columns:
                if has is None or has[start + step]:
                    parts[part] = self._part(start + step, part, offsets[step], sizes[step], crcs[step])
            yield Item(number + step, key, parts)

    def _part(self, row: int, part: str, start: int, size: int, expected: int) -> memoryview:
        data = self.data[start : start + size]
        if self.verify == "crc":
            found = crc32c(data)
            if found != expected or len(data) != size:
                key = self.index.key(row)
                said = f"part {part} of sample {key} has crc32c {found:08x}, the index says {expected:08x}"
                raise _damaged(f"{self.path}: {said}", key)
        return data


def _damaged(message: str, subject: object) -> IntegrityError:
    return IntegrityError(message, hint="Fetch the dataset again: datakit sync SRC DEST", subject=str(subject))


def open_dataset(path: Path | str, *, verify: Verify = "crc") -> Dataset:
    """Open a committed dataset on the local disk; reads its manifest only.

    Args:
        path: The dataset's directory.
        verify: `crc` compares each part that is read with its checksum in the index; `none` trusts the disk.
            Indexes, which are small, are always compared with the manifest.

    Raises:
        NotFound: Nothing is there, or nothing is committed there.
        InputError: What is there is not a dataset, or holds no sample.
        UsageError: The path is a URL, or `verify` is no such word.

    Example:
        >>> ds = open_dataset("data/train")  # doctest: +SKIP
        >>> bytes(ds["conversation-7"].parts["json"])  # doctest: +SKIP
    """
    if "://" in str(path):
        raise UsageError(
            f"{path} is not on a local disk", hint=f"Bring it here: datakit sync {path} DEST", subject=path
        )
    if verify not in get_args(Verify):
        raise UsageError(f"verify is {verify!r}; it must be crc or none", subject=verify)
    path = Path(path)
    manifest = read_manifest(path)
    if manifest.contents.samples == 0:
        raise InputError(f"the dataset {path} holds no sample", subject=str(path))
    return Dataset(path, manifest, verify=verify)
