"""cached: a dataset that is read through a cache on this machine, which brings its shards while they are read.

Its manifest and indexes are here; shards come by lease of the cache's agent (`tier/client`). A sample whose shard is
here is a slice of its map, as in `dataset`. One whose shard is not is read by one ranged request from where it lies
while the shard comes, so that the first batch waits for no whole shard; where the cache is full of what is read, the
rest is read so for good. A shard that is found damaged here is set aside and fetched again, and the read goes on.

Promises as `dataset`; a process that is forked from it, or gets it pickled, has a connection of its own. Never imports
an object-store client: the agent has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from datakit.data.digest import crc32c, damaged
from datakit.data.index import Index
from datakit.data.shard import Row
from datakit.errors import InputError, IntegrityError, NoSpace, NotFound, UsageError
from datakit.feed.dataset import Dataset
from datakit.feed.mapped import Item, MappedShard, Verify
from datakit.storage.access import StoreOptions, local_path
from datakit.storage.disk import map_file
from datakit.storage.indexes import parse_index
from datakit.storage.retry import DAMAGE_TRIES
from datakit.tier.client import CacheClient, CachedDataset
from datakit.units import parse_bytes


class Cached(Dataset):
    """A dataset in a cache; made by `open_cached`.

    Args:
        client: Asks the cache's agent.
        opened: What the agent has open.
        verify: `crc` or `none`; what is read from afar is compared all the same.
    """

    def __init__(self, client: CacheClient, opened: CachedDataset, *, verify: Verify) -> None:
        super().__init__(Path(opened.place), opened.manifest, verify=verify)
        self._client = client
        self._opened = opened
        self._indexes: OrderedDict[int, Index] = OrderedDict()

    @property
    def shards(self) -> tuple[Path, ...]:
        """Where its tars are while they are here; one that is not read now may not be."""
        return tuple(self._client.path(self._digest(place)) for place in range(len(self._contents.shards)))

    def __iter__(self) -> Iterator[Item]:
        places = range(len(self._contents.shards))
        self._client.order([self._digest(place) for place in places])
        for place in places:
            kept = place in self._shards
            try:
                yield from self._samples(place)
            finally:
                if not kept:
                    self._let_go(place)

    def close(self) -> None:
        """Hold nothing of it any more; it is opened again when it is used again."""
        with self._guard:
            self._shards.clear()
        self._client.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self._client, self._opened, self.verify))

    def __repr__(self) -> str:
        return f"Cached({self._opened.place!r}, samples={len(self)}, cache={str(self._client.root)!r})"

    def _samples(self, place: int) -> Iterator[Item]:
        """The samples of one shard, which is waited for; one by one where it has no room, or one of them is damaged."""
        done = 0
        try:
            shard = self._mapped(place, wait=True)
            assert shard is not None
            for item in shard.samples():
                done += 1
                yield item
        except (NoSpace, IntegrityError):
            for row in range(done, self._contents.shards[place].samples):
                yield self._read(place, row)

    def _read(self, place: int, row: int) -> Item:
        try:
            shard = self._mapped(place, wait=False)
            return self._far(place, row) if shard is None else shard.read(row)
        except IntegrityError:
            if place not in self._shards:
                raise  # it is damaged where it lies
            self._client.damaged(self._digest(place))
            self._let_go(place)
            shard = self._mapped(place, wait=True)
            assert shard is not None
            return shard.read(row)

    def _mapped(self, place: int, *, wait: bool) -> MappedShard | None:
        with self._guard:
            shard = self._shards.get(place)
            if shard is not None:
                self._shards.move_to_end(place)
                return shard
        index, digest = self._index(place), self._digest(place)
        path = self._client.lease(digest, wait=wait)
        if path is None:
            return None
        entry = self.manifest.member(self._contents.shards[place].name)
        shard = MappedShard(path, entry=entry, index=index, first=self._starts[place], verify=self.verify)
        with self._guard:
            if place in self._shards:  # another thread was quicker
                self._client.release(digest)
            while len(self._shards) >= self._most:
                self._client.release(self._digest(self._shards.popitem(last=False)[0]))
            return self._shards.setdefault(place, shard)

    def _let_go(self, place: int) -> None:
        with self._guard:
            if self._shards.pop(place, None) is not None:
                self._client.release(self._digest(place))

    def _far(self, place: int, row: int) -> Item:
        """One sample from where its shard lies, all its parts by one request."""
        wanted = self._index(place).row(row)
        start = min((part.offset for part in wanted.parts.values()), default=0)
        size = max((part.offset + part.size for part in wanted.parts.values()), default=0) - start
        for _ in range(DAMAGE_TRIES):
            data = memoryview(self._client.read(self._digest(place), start, size) if size else b"")
            parts = {
                name: data[part.offset - start : part.offset - start + part.size] for name, part in wanted.parts.items()
            }
            wrong = _wrong(wanted, parts)
            if wrong is None:
                return Item(self._starts[place] + row, wanted.key, parts)
        where = f"{self._opened.place}/{self._contents.shards[place].name}"
        raise damaged(f"{where}: {wrong}", wanted.key, at=self._opened.place)

    def _index(self, place: int) -> Index:
        with self._guard:
            index = self._indexes.get(place)
        if index is None:
            shard = self._contents.shards[place]
            path = self._client.path(self.manifest.member(shard.index_name).sha256)
            try:
                data = map_file(path)
            except NotFound:  # nobody has had it open since it was dropped
                self._client.open(self._opened.place, digest=self._opened.digest)
                data = map_file(path)
            index = parse_index(data, self.manifest, shard, where=self._opened.place)
            with self._guard:
                while len(self._indexes) >= self._most:
                    self._indexes.popitem(last=False)
                self._indexes[place] = index
        return index

    def _digest(self, place: int) -> str:
        return self.manifest.member(self._contents.shards[place].name).sha256


def open_cached(
    place: Path | str,
    *,
    cache: Path | str,
    budget: str | int,
    verify: Verify = "crc",
    stores: Mapping[str, StoreOptions] | None = None,
) -> Cached:
    """Open a dataset that lies elsewhere, and read it through a cache on this machine.

    The cache may be smaller than the dataset, and is shared by all processes that name it.

    Args:
        place: The dataset's URL or path.
        cache: A directory of the cache's own, on a local disk.
        budget: Bytes that it may hold, such as `500GB`; the first who opens it says so.
        verify: `crc` hands out no byte that was not compared with its checksum; `none` trusts the local disk.
        stores: Named stores of the settings.

    Raises:
        NotFound: Nothing is committed there.
        InputError: What is there is not a dataset, or holds no sample.
        UsageError: A place is wrong, or `verify` is no such word.
        NoSpace: Not even its indexes have room.
        StoreUnavailable, NotAllowed: Its place cannot be asked.

    Example:
        >>> ds = open_cached("s3://bucket/train", cache="/nvme/datakit", budget="500GB")  # doctest: +SKIP
    """
    if verify not in get_args(Verify):
        raise UsageError(f"verify is {verify!r}", hint="Choose crc or none", subject=verify)
    client = CacheClient(local_path(cache), budget_bytes=parse_bytes(budget))
    opened = client.open(place, stores=stores)
    if opened.manifest.contents.samples == 0:
        raise InputError(f"the dataset {place} holds no sample", hint="Name one that does", subject=str(place))
    return Cached(client, opened, verify=verify)


def _reopen(client: CacheClient, opened: CachedDataset, verify: Verify) -> Cached:
    return Cached(client, opened, verify=verify)


def _wrong(row: Row, parts: Mapping[str, memoryview]) -> str | None:
    """What is wrong with a sample's bytes, as the end of a sentence."""
    for name, part in row.parts.items():
        found = crc32c(parts[name])
        if found != part.crc32c or len(parts[name]) != part.size:
            return f"part {name} of sample {row.key} has crc32c {found:08x}, the index says {part.crc32c:08x}"
    return None
