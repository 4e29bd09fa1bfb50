"""dataset: a committed dataset on the local disk, any sample of it by number or by key.

Shards and their indexes are mapped: opening costs the manifest only, an index is compared with the manifest when its
shard is first read, a part is one slice of the map, and what is handed out is compared with its checksum unless that
is switched off (`feed/mapped` says how). A map holds a file descriptor as long as it lives, so the
shards that were used last stay mapped, as many as the process's limit allows (`_most_mapped`), and the others are let
go; parts that were handed out stay valid. Samples are numbered in layout order: shards as the
manifest lists them, rows as the index lists them.

Promises: no byte of a damaged sample is handed out while `verify` is on; the object may be pickled (workers map the
files anew) and shared by threads. Does not decode, shuffle or fetch: an object store's dataset is brought here by
`datakit sync` first, or read through a cache (`cached`). Never imports an object-store client.
"""

from __future__ import annotations

import resource
import shlex
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import get_args

from datakit.data.index import Index
from datakit.data.manifest import Manifest
from datakit.errors import InputError, NotFound, UsageError
from datakit.feed.mapped import Item, MappedShard, Verify
from datakit.storage.access import local_path
from datakit.storage.commit import read_manifest
from datakit.storage.indexes import open_index
from datakit.units import format_number_of

_MOST_SHARDS = 8192
"""Mapped at once at the most: Linux grants a process 65530 maps (vm.max_map_count), and torch wants some too."""


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
        self._shards: OrderedDict[int, MappedShard] = OrderedDict()
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

    @property
    def shards(self) -> tuple[Path, ...]:
        """Its tars, in order, for readers of tars; a listing of the directory may hold those of an older version."""
        return tuple(self.path / shard.name for shard in self._contents.shards)

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
            raise IndexError(f"{self.path} has {format_number_of(len(self), 'sample')}, none has number {which}")
        place = bisect_right(self._starts, number) - 1
        return self._read(place, number - self._starts[place])

    def __iter__(self) -> Iterator[Item]:
        for place in range(len(self._contents.shards)):
            yield from self._shard(place).samples()

    def number_of(self, key: str) -> int:
        """The number of the sample with this key.

        Raises:
            NotFound: No sample has this key.
        """
        for place in range(len(self._contents.shards)):
            row = self._index(place).find(key)
            if row is not None:
                return self._starts[place] + row
        raise NotFound(
            f"{self.path} has no sample {key}",
            hint=f"List its keys: datakit inspect {shlex.quote(str(self.path))}",
            subject=key,
        )

    def __reduce__(self) -> tuple[object, ...]:
        # maps do not travel: whoever unpickles opens them anew
        return (_reopen, (self.path, self.manifest, self.verify))

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, samples={len(self)}, digest={self.digest[:12]})"

    def _read(self, place: int, row: int) -> Item:
        return self._shard(place).read(row)

    def _index(self, place: int) -> Index:
        return self._shard(place).index

    def _shard(self, place: int) -> MappedShard:
        with self._guard:
            shard = self._shards.get(place)
            if shard is None:
                while len(self._shards) >= self._most:
                    self._shards.popitem(last=False)
                entry = self._contents.shards[place]
                self._shards[place] = shard = MappedShard(
                    self.path / entry.name,
                    entry=self.manifest.member(entry.name),
                    index=open_index(self.path, self.manifest, entry),
                    first=self._starts[place],
                    verify=self.verify,
                )
            else:
                self._shards.move_to_end(place)
            return shard


def _most_mapped() -> int:
    """Shards that one dataset keeps mapped: two descriptors each, a quarter of what the process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_SHARDS if limit == resource.RLIM_INFINITY else min(_MOST_SHARDS, max(1, limit // 8))


def _reopen(path: Path, manifest: Manifest, verify: Verify) -> Dataset:
    return Dataset(path, manifest, verify=verify)


def open_dataset(path: Path | str, *, verify: Verify = "crc") -> Dataset:
    """Open a committed dataset on the local disk; reads its manifest only.

    Args:
        path: The dataset's directory.
        verify: `crc` hands out no byte that was not compared with its checksum; `none` trusts the disk.
            Indexes, which are small, are always compared with the manifest.

    Raises:
        NotFound: Nothing is there, or nothing is committed there.
        InputError: What is there is not a dataset, or holds no sample.
        UsageError: The path is a URL, or `verify` is no such word.

    Example:
        >>> ds = open_dataset("data/train")  # doctest: +SKIP
        >>> bytes(ds["conversation-7"].parts["json"])  # doctest: +SKIP
    """
    path = local_path(path)
    if verify not in get_args(Verify):
        raise UsageError(f"verify is {verify!r}", hint="Choose crc or none", subject=verify)
    manifest = read_manifest(path)
    if manifest.contents.samples == 0:
        raise InputError(f"the dataset {path} holds no sample", hint="Name one that does", subject=str(path))
    return Dataset(path, manifest, verify=verify)
