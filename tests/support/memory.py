"""memory: a store in a dict, for tests that need no network; its tags are the md5 tags of S3."""

from __future__ import annotations

import builtins
import hashlib
import threading
from collections.abc import Iterator

from datakit.data.digest import Buffer
from datakit.errors import IntegrityError, NotFound
from datakit.storage import etags
from datakit.storage.access import StoreOptions
from datakit.storage.answers import already_there, changed
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.limits import Gate
from datakit.storage.objects import Blob, Body, ObjectInfo, Part, Patience, joined, once, shown
from datakit.storage.wire import PIECE_BYTES


class MemoryStore:
    """A store whose objects are a dict; `objects` may be looked at and changed by tests."""

    def __init__(self, url: str = "memory://bucket", *, plain_tags: bool = True) -> None:
        self._url = url
        self._plain_tags = plain_tags
        self._meter = Meter()
        self._guard = threading.Lock()
        self._versions = 0
        self.objects: dict[str, tuple[bytes, str]] = {}

    @property
    def url(self) -> str:
        return self._url

    @property
    def options(self) -> StoreOptions:
        return StoreOptions()

    @property
    def accounts(self) -> tuple[Account, ...]:
        return ()

    @property
    def requests(self) -> RequestCounts:
        return self._meter.counts

    def limit(self, gate: Gate) -> None:
        self._meter.gate = lambda more: gate.let_through(more, None)

    def head(self, key: str) -> ObjectInfo:
        self._meter.add(head=1)
        return self._info(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        self._meter.add(list=1)
        top = f"{prefix}/" if prefix else ""
        return [self._info(key) for key in sorted(self.objects) if key.startswith(top)]

    def folders(self, prefix: str) -> tuple[str, ...]:
        self._meter.add(list=1)
        top = f"{prefix}/" if prefix else ""
        rests = (key.removeprefix(top) for key in self.objects if key.startswith(top))
        return shown({rest.partition("/")[0] for rest in rests if "/" in rest})

    def fetch(self, key: str) -> Blob:
        self._meter.add(get=1)
        info = self._info(key)
        return Blob(info, self.objects[key][0])

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        if stop <= start:
            return
        self._meter.add(get=1, bytes_in=stop - start)
        info = self._info(key)
        if etag not in (None, info.etag):
            raise changed(key)
        if info.bytes < stop:
            raise IntegrityError(f"{key} is short")
        data = memoryview(self.objects[key][0])
        for offset in range(start, stop, PIECE_BYTES):
            yield data[offset : min(offset + PIECE_BYTES, stop)]

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        return joined(self.stream(key, start=start, stop=stop, etag=etag))

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:
        self._meter.add(put=1, bytes_out=len(data))
        with self._guard:
            if create and key in self.objects:
                raise already_there(key)
            if replaces is not None and self._info(key).etag != replaces:
                raise changed(key)
            return self._keep(key, bytes(data), [hashlib.md5(data).digest()], whole=True)

    def upload(
        self, key: str, body: Body, *, connections: int, create: bool = False, patience: Patience = once
    ) -> ObjectInfo:
        parts = list(body.parts())
        self._meter.add(put=2 + len(parts), bytes_out=sum(len(part.data) for part in parts))
        with self._guard:
            if create and key in self.objects:
                raise already_there(key)
            return self._keep(key, b"".join(part.data for part in parts), [part.md5 for part in parts], whole=False)

    def tags_bytes(self, key: str) -> bool:
        return True

    def delete(self, key: str) -> None:
        self._meter.add(delete=1)
        self.objects.pop(key, None)

    def _keep(self, key: str, data: bytes, md5s: list[bytes], *, whole: bool) -> ObjectInfo:
        self._versions += 1
        tag = etags.single(md5s[0].hex()) if whole else etags.multipart(md5s)
        self.objects[key] = (data, tag if self._plain_tags else f'"v{self._versions}"')
        return self._info(key)

    def _info(self, key: str) -> ObjectInfo:
        if key not in self.objects:
            raise NotFound(f"{key} is not there", subject=key)
        data, tag = self.objects[key]
        return ObjectInfo(key, len(data), tag)


class MemoryBody:
    """Bytes as the body of an upload."""

    def __init__(self, data: bytes, *, part_bytes: int) -> None:
        self.data = data
        self.bytes = len(data)
        self.part_bytes = part_bytes

    def parts(self) -> Iterator[Part]:
        for number in range(1, -(-self.bytes // self.part_bytes) + 1):
            yield Part(number, self._part(number), self.md5_of(number))

    def md5_of(self, number: int) -> builtins.bytes:
        return hashlib.md5(self._part(number)).digest()

    def _part(self, number: int) -> builtins.bytes:
        return self.data[(number - 1) * self.part_bytes : number * self.part_bytes]
