"""store: object storage behind the protocol of `objects`, and the place that a path or a URL names.

Promises: requests are counted by class as they are made (but for retries inside a multipart upload to other stores than
S3, which obstore does not tell); a read gets exactly the bytes of the version that it asked for, or an error; whatever
obstore says leaves as an error of ours, with a sentence and without a secret.

obstore hangs in a forked child, so it is imported here alone, inside functions, and a child that was forked from a
process that had used a store is refused instead of hanging.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from datakit.data.digest import Buffer
from datakit.errors import DatakitError, IntegrityError, NotAllowed, UsageError
from datakit.storage.access import SCHEMES, StoreOptions, nearest, refuse_reserved, refuse_s3_options, refuse_slips
from datakit.storage.addresses import Addresses
from datakit.storage.answers import Asked, already_there, changed, is_mute, no_answer, no_key, translated
from datakit.storage.client import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, connect
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.foreign import FsspecStore, known_schemes, unknown_scheme
from datakit.storage.limits import Gate, regardless
from datakit.storage.multipart import Multipart
from datakit.storage.objects import Blob, Body, LocalStore, ObjectInfo, Patience, Store, joined, once, shown
from datakit.storage.prices import price_by
from datakit.storage.s3 import S3Calls
from datakit.storage.wire import PIECE_BYTES, Wire, is_direct, is_weak

__all__ = ["Location", "ObjectInfo", "ObstoreStore", "Store", "StoreOptions", "open_location"]

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore, S3Store

LIST_PAGE = 1000
"""Objects in one answer to a LIST request, the most that S3 gives."""


UPLOAD_RETRIES = 5
"""Tries of obstore's own for one part of a multipart upload: one lost part must not begin the whole upload anew."""


class ObstoreStore:
    """A bucket of S3 (or what speaks like it), Google Cloud Storage or Azure.

    Args:
        url: `s3://bucket`, without a prefix.
        options: How to reach it; for `gs://` and `az://` the environment variables of their own tools count instead.
    """

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        self._url = url
        self._options = options
        self._meter = Meter(Account(url, options))
        self._client: ObjectStore | None = None
        self._uploader: ObjectStore | None = None
        self._wire = Wire(connect_timeout_s=CONNECT_TIMEOUT_S, read_timeout_s=READ_TIMEOUT_S)
        self._addresses = Addresses()
        self._guard = threading.Lock()
        is_s3 = url.startswith("s3://")
        self._calls = S3Calls(url, options, meter=self._meter) if is_s3 else None
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """The bucket."""
        return self._url

    @property
    def options(self) -> StoreOptions:
        """How it is reached; for whoever has another process reach it."""
        return self._options

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The bucket."""
        return (Account(self._url, self._options),)

    @property
    def requests(self) -> RequestCounts:
        """Requests made so far."""
        return self._meter.counts

    def limit(self, gate: Gate) -> None:
        """See `Store.limit`."""
        price = price_by(self._url, self._options)
        self._meter.gate = lambda more: gate.let_through(more, price)

    def head(self, key: str) -> ObjectInfo:
        """One HEAD; one GET more where the store refuses it for a reason that only a body tells."""
        with self._door(key) as client:
            import obstore

            self._meter.add(head=1)
            try:
                return _info(key, obstore.head(client, key))
            except Exception as error:
                if is_mute(error):
                    self._meter.add(get=1)
                    obstore.get(client, key, options={"range": (0, 1)})  # the answer to a HEAD has no body to say why
                raise

    def list(self, prefix: str, *, pages: int | None = None) -> list[ObjectInfo]:
        """One LIST for each thousand objects, so many at the most."""
        found: dict[str, ObjectInfo] = {}
        with self._door(prefix) as client:
            import obstore

            listing = obstore.list(client, prefix or None, chunk_size=LIST_PAGE)
            for _ in count() if pages is None else range(pages):
                self._meter.add(list=1)
                page = next(listing, ())
                # by key, because stores have been seen to repeat objects at page borders, and to give them unsorted
                found.update((meta["path"], _info(meta["path"], meta)) for meta in page)
                if len(page) < LIST_PAGE:
                    if found and not page:
                        self._meter.add(list=-1)  # the one before was full, and the last
                    break
        # consoles mark a folder by an empty object of its name
        folders = {str(folder) for key in found for folder in PurePosixPath(key).parents}
        return [found[key] for key in sorted(found) if found[key].bytes or key not in folders]

    def folders(self, prefix: str) -> tuple[str, ...]:
        """One LIST for each thousand objects and folders right below."""
        with self._door(prefix) as client:
            import obstore

            self._meter.add(list=1)
            found = obstore.list_with_delimiter(client, prefix or None)
            with regardless():  # obstore has made them all
                self._meter.add(list=(max(len(found["objects"]) + len(found["common_prefixes"]), 1) - 1) // LIST_PAGE)
        return shown(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def fetch(self, key: str) -> Blob:
        """One GET."""
        with self._door(key) as client:
            import obstore

            self._meter.add(get=1)
            result = obstore.get(client, key)
            self._meter.add(bytes_in=result.meta["size"])  # its body has not been read yet
            return Blob(_info(key, result.meta), bytes(result.bytes()))

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """One ranged GET, with If-Match when a version is given."""
        if stop <= start:
            return  # a range request for no byte is an error in HTTP
        asked = Asked(self._url, key, self._options)
        with self._door(key) as client:
            known = key in self._addresses
            try:
                pieces = self._pieces(client, asked, start=start, stop=stop, etag=etag)
                piece = next(pieces, None)
            except NotAllowed:
                if not known:
                    raise
                self._addresses.forget(key)
                pieces = self._pieces(client, asked, start=start, stop=stop, etag=etag)
                piece = next(pieces, None)
            while piece is not None:
                yield piece
                piece = next(pieces, None)

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """The same, as one."""
        return joined(self.stream(key, start=start, stop=stop, etag=etag))

    def _pieces(
        self, client: ObjectStore, asked: Asked, *, start: int, stop: int, etag: str | None
    ) -> Iterator[memoryview]:
        with self._meter.coming(stop - start) as came:
            url = self._signed(client, asked.key)
            if url is None:
                pieces = _stream(client, asked, start=start, stop=stop, etag=etag)
            else:
                pieces = self._wire.stream(url, asked, start=start, stop=stop, etag=etag)
            for piece in pieces:
                came(len(piece))
                yield piece

    def _signed(self, client: ObjectStore, key: str) -> str | None:
        """An address of the object that needs nothing else, or None where obstore itself has to ask."""
        import obstore

        if not self._url.startswith("s3://") or self._options.anonymous:
            return None
        url = self._addresses.of(key, lambda life: obstore.sign(cast("S3Store", client), "GET", key, life))
        return url if is_direct(url) else None

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:
        """One PUT, with If-None-Match or If-Match where asked."""
        with self._door(key) as client:
            import obstore

            if (
                (create or replaces)
                and self._url.startswith("s3://")
                and not self._options.profile(self._url).conditional
            ):
                self._look(client, key, create=create, replaces=replaces)
            self._meter.add(put=1, bytes_out=len(data))
            mode: Any = "create" if create else {"e_tag": replaces} if replaces else "overwrite"
            result = obstore.put(client, key, bytes(data), mode=mode, use_multipart=False)
            return ObjectInfo(key, len(data), result["e_tag"])

    def _look(self, client: ObjectStore, key: str, *, create: bool, replaces: str | None) -> None:
        """See that the condition of a PUT holds, where the store is not known to look itself: one HEAD."""
        import obstore

        self._meter.add(head=1)
        try:
            etag = obstore.head(client, key)["e_tag"]
        except FileNotFoundError:
            if create:
                return
            raise
        if create:
            raise already_there(f"{self._url}/{key}")
        if etag != replaces:
            raise changed(f"{self._url}/{key}")

    def upload(
        self, key: str, body: Body, *, connections: int, create: bool = False, patience: Patience = once
    ) -> ObjectInfo:
        """A multipart upload. Of S3: see `multipart`; of others one PUT to begin, one a part, one to complete."""
        if self._calls is not None:
            return Multipart(
                self._calls, key, body, head=self.head, connections=connections, create=create, patience=patience
            ).put()
        return patience(lambda: self._upload(key, body, connections=connections))

    def _upload(self, key: str, body: Body, *, connections: int) -> ObjectInfo:
        """By obstore: an error aborts it, and another try begins anew."""

        def counted() -> Iterator[bytes]:
            for part in body.parts():
                self._meter.add(put=1, bytes_out=len(part.data))
                yield part.data

        with self._door(key):
            import obstore

            with self._guard:
                self._uploader = self._uploader or connect(self._url, self._options, retries=UPLOAD_RETRIES)
            self._meter.add(put=2)  # begins the multipart upload, and completes it
            size = body.part_bytes
            result = obstore.put(self._uploader, key, counted(), chunk_size=size, max_concurrency=connections)
            return ObjectInfo(key, body.bytes, result["e_tag"])

    def delete(self, key: str) -> None:
        """One DELETE."""
        with self._door(key) as client, contextlib.suppress(FileNotFoundError):
            import obstore

            self._meter.add(delete=1)
            obstore.delete(client, key)

    def tags_bytes(self, key: str) -> bool:
        """False once an answer has said that the object is encrypted by KMS or a customer's key."""
        return key not in self._wire.sealed

    @contextlib.contextmanager
    def _door(self, key: str) -> Iterator[ObjectStore]:
        if os.getpid() != self._pid:
            raise DatakitError(
                f"{self._url} was opened before this process was forked, and would hang in it",
                hint="Start processes that use a store by spawn or exec",
            )
        with self._guard:
            self._client = self._client or connect(self._url, self._options)
        from obstore.exceptions import BaseError

        try:
            yield self._client
        except DatakitError:
            raise
        except (BaseError, OSError) as error:  # a missing object is a plain FileNotFoundError
            raise translated(error, Asked(self._url, key, self._options)) from error
        except ValueError as error:
            raise no_key(key) from error


def _stream(client: ObjectStore, asked: Asked, *, start: int, stop: int, etag: str | None) -> Iterator[memoryview]:
    """A range through obstore: where URLs cannot be signed, or a proxy is in between."""
    import obstore

    options: GetOptions = {"range": (start, stop)}
    if etag is not None and not is_weak(etag):
        options["if_match"] = etag
    result = obstore.get(client, asked.key, options=options)
    if is_weak(etag) and result.meta["e_tag"] != etag:
        raise changed(asked.where)
    if result.meta["size"] < stop:
        short = f"{asked.where} holds {result.meta['size']} bytes, it should hold {stop} at least"
        raise IntegrityError(short, hint="It was replaced, or is not whole", subject=asked.key)
    if tuple(result.range) != (start, stop):
        raise no_answer(asked, f"asked for bytes {start} to {stop}, got {result.range[0]} to {result.range[1]}")
    left = stop - start
    for piece in result.stream(min_chunk_size=PIECE_BYTES):
        view = memoryview(piece)
        left -= len(view)
        yield view
    if left:
        raise no_answer(asked, "the body broke off")


def _info(key: str, meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, meta["size"], meta["e_tag"])


@dataclass(frozen=True, slots=True)
class Location:
    """A place inside a store: where a commit or a folder of files is or will be."""

    store: Store
    prefix: str = ""

    @property
    def url(self) -> str:
        """The place as a person would write it."""
        return f"{self.store.url}/{self.prefix}" if self.prefix else self.store.url

    @property
    def path(self) -> Path | None:
        """The directory, or None when it is not on a local file system."""
        return self.store.root / self.prefix if isinstance(self.store, LocalStore) else None

    def key(self, name: str) -> str:
        """The key of a name at this place."""
        return f"{self.prefix}/{name}" if self.prefix else name


def open_location(
    place: str | Path | Location,
    *,
    stores: Mapping[str, StoreOptions] | None = None,
    env: Mapping[str, str] | None = None,
) -> Location:
    """The place that a path or URL names; nothing is asked of any network yet.

    Args:
        place: A path, `file://...`, `s3://bucket/prefix`, `gs://...`, `az://...`, `NAME://prefix` for a named store, or
            any URL of fsspec to read from; a location stays as it is.
        stores: Named stores of the settings.
        env: The environment to find options in; the process's own when not given.

    Raises:
        UsageError: Another scheme, or a URL without a bucket.
    """
    if isinstance(place, Location):
        return place
    text = str(place)
    scheme, separator, rest = text.partition("://")
    refuse_slips(text, (*SCHEMES, "file", *(stores or {})))
    if not separator:
        return Location(LocalStore(Path(text)))
    if scheme == "file":
        return Location(LocalStore(Path(rest)))
    named = stores or {}
    refuse_reserved(named, (*SCHEMES, "file"))
    chosen = named.get(scheme)
    if chosen is not None:
        if chosen.url is None:
            hint = f"Set stores.{scheme}.url"
            raise UsageError(f"store {scheme} has no url in the settings", hint=hint, subject=scheme)
        text = f"{chosen.url.rstrip('/')}/{rest}"
        scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES and scheme not in known_schemes():
        raise unknown_scheme(str(place), text, known=(*SCHEMES, "file", *named))
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise UsageError(f"{place} names no bucket", hint=f"Write {scheme}://BUCKET/PREFIX", subject=text)
    url = f"{scheme}://{bucket}"
    chosen = chosen or nearest(text, named)
    if chosen is not None and scheme != "s3":
        refuse_s3_options(chosen, scheme)
    # an endpoint or provider of AWS's environment is nothing to the others
    speaks_s3 = scheme in ("s3", "s3a")
    found = StoreOptions.from_environment(os.environ if env is None else env) if speaks_s3 else StoreOptions()
    options = found if chosen is None else chosen.over(found)
    if scheme not in SCHEMES or options.client == "fsspec":
        return Location(FsspecStore(url, options=options), prefix.strip("/"))
    return Location(ObstoreStore(url, options=options), prefix.strip("/"))
