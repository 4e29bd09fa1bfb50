"""foreign: any store that fsspec knows, behind the protocol of `objects`, to read from; fsspec's door.

What obstore carries goes through obstore, which is quicker and pins versions in the request itself. This is the lane
for everything else: `http://`, `ftp://`, `hf://`, `memory://`, and S3 through s3fs where a store's options say so.
fsspec has no common way to ask for a version, so a read that wants one looks after it whether the object is still the
one that was listed: two requests instead of one, both counted, as far as fsspec tells its requests at all.

What it does not do: write. Its error texts are never passed on, because they may tell more than they should.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from datakit.data.digest import Buffer
from datakit.errors import DatakitError, IntegrityError, MissingExtra, NotAllowed, NotFound, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked, changed, no_answer
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.limits import Gate, regardless
from datakit.storage.objects import Blob, Body, ObjectInfo, shown
from datakit.storage.prices import price_by
from datakit.storage.wire import PIECE_BYTES

LIST_PAGE = 1000
"""Objects that one LIST request is counted for; fsspec does not tell how many it made."""

CONCURRENCY = 64
"""Sizes asked for at once, where a listing does not have them."""

_VERSIONS = ("ETag", "etag", "md5Hash", "Content-MD5", "content_hash", "Last-Modified")
"""Where file systems of fsspec keep what tells a version, the surest first (s3fs, gcsfs, adlfs, http; 2026.9)."""

_TIMES = ("LastModified", "last_modified", "mtime", "modify", "modified", "created")


def known_schemes() -> frozenset[str]:
    """The URL schemes that fsspec has a file system for, installed or not."""
    from fsspec.registry import known_implementations

    return frozenset(known_implementations)


class FsspecStore:
    """A store that fsspec reaches.

    Args:
        url: Scheme and host or bucket: `ftp://host`.
        options: How to reach it, for S3; other file systems have their own environment variables.
    """

    def __init__(self, url: str, *, options: StoreOptions | None = None) -> None:
        self._url = url
        self._options = options or StoreOptions()
        self._meter = Meter(Account(url, self._options))
        self._fs: Any = None
        self._root = ""

    @property
    def url(self) -> str:
        """Scheme and host or bucket."""
        return self._url

    @property
    def options(self) -> StoreOptions:
        """How it is reached."""
        return self._options

    @property
    def accounts(self) -> tuple[Account, ...]:
        """What it is opened at."""
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
        """One request."""
        with self._door(key) as fs:
            self._meter.add(head=1)
            return self._info(key, fs.info(self._path(key)))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """One request for each thousand objects, and one for each object whose size the listing does not have."""
        with self._door(prefix) as fs:
            top = self._path(prefix) if prefix else self._root
            if self._is_web and prefix and not self._is_page(fs, top):
                return []
            self._meter.add(list=1)
            try:
                found: dict[str, Any] = fs.find(f"{top.rstrip('/')}/" if self._is_web else top, detail=True)
            except FileNotFoundError:
                return []
            with regardless():  # fsspec has made them all
                self._meter.add(list=max(len(found) - 1, 0) // LIST_PAGE)
            below = f"{prefix}/" if prefix else ""
            keys = {self._key(path): info for path, info in found.items()}
            named = {key: info for key, info in keys.items() if key.startswith(below) and not key.endswith("/")}
        bare = [key for key, info in named.items() if info.get("size") is None]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            sized = dict(zip(bare, pool.map(self.head, bare), strict=True))
        return [sized.get(key) or self._info(key, named[key]) for key in sorted(named)]

    def folders(self, prefix: str) -> tuple[str, ...]:
        """One request; none where a web server has no page of links."""
        with self._door(prefix) as fs:
            top = self._path(prefix) if prefix else self._root
            if self._is_web and not self._is_page(fs, top):
                return ()
            self._meter.add(list=1)
            found = fs.ls(f"{top.rstrip('/')}/" if self._is_web else top, detail=True)
        paths = [str(info["name"]).rstrip("/") for info in found if info.get("type") == "directory"]
        return shown(path.rpartition("/")[2] for path in paths)

    def fetch(self, key: str) -> Blob:
        """Two requests: the bytes, and what they are a version of."""
        with self._door(key) as fs:
            self._meter.add(get=1)
            data = fs.cat_file(self._path(key))
            with regardless():
                self._meter.add(bytes_in=len(data))
        return Blob(self.head(key), data)

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """One request for each piece of `PIECE_BYTES`, and one more where a version is asked for."""
        for offset in range(start, stop, PIECE_BYTES):
            end = min(offset + PIECE_BYTES, stop)
            with self._door(key) as fs, self._meter.coming(end - offset) as came:
                data = fs.cat_file(self._path(key), start=offset, end=end)
                came(len(data))
            if len(data) > end - offset:
                raise UsageError(
                    f"{self._url}/{key}: the server gives no part of an object",
                    hint="Download it, and name the file",
                    subject=key,
                )
            if len(data) < end - offset:
                short = f"{self._url}/{key} ends at byte {offset + len(data)}, it should hold {stop} at least"
                raise IntegrityError(short, hint="It was replaced, or is not whole", subject=key)
            yield memoryview(data)
        if etag is not None and self.head(key).etag != etag:
            raise changed(f"{self._url}/{key}")

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """The same, as one."""
        return b"".join(self.stream(key, start=start, stop=stop, etag=etag))

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:  # noqa: ARG002 -- of the protocol
        """Refused."""
        raise self._read_only(key)

    def upload(self, key: str, body: Body, **how: Any) -> ObjectInfo:  # noqa: ARG002 -- of the protocol
        """Refused."""
        raise self._read_only(key)

    def delete(self, key: str) -> None:
        """Refused."""
        raise self._read_only(key)

    def tags_bytes(self, key: str) -> bool:  # noqa: ARG002 -- the same for every object
        """Nothing is known of what a tag is made of."""
        return False

    @property
    def _is_web(self) -> bool:
        return self._url.startswith(("http://", "https://"))

    def _is_page(self, fs: Any, path: str) -> bool:
        """Whether a web address is a page of links; reading any other to look for links would fetch it whole."""
        self._meter.add(head=1)
        return str(fs.info(path).get("mimetype", "")).startswith("text/html")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _key(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    def _info(self, key: str, info: Mapping[str, Any]) -> ObjectInfo:
        if info.get("type") == "directory":
            raise NotFound(f"{self._url}/{key} is a folder, not an object", hint="Name what is in it", subject=key)
        if info.get("size") is None:
            raise UsageError(
                f"{self._url}/{key}: the server does not say how large it is",
                hint="Download it, and name the file",
                subject=key,
            )
        version = next((str(info[name]) for name in _VERSIONS if info.get(name)), None)
        if version is None:
            moment = next((info[name] for name in _TIMES if info.get(name)), None)
            if isinstance(moment, datetime):  # as one method of a file system gives it, and another a number
                moment = moment.timestamp()
            version = None if moment is None else f"{moment}-{info['size']}"
        return ObjectInfo(key, int(info["size"]), version)

    def _read_only(self, key: str) -> UsageError:
        return UsageError(
            f"{self._url}/{key}: datakit reads from such stores, and does not write to them",
            hint="Write to a directory, s3://, gs:// or az://",
            subject=key,
        )

    @contextlib.contextmanager
    def _door(self, key: str) -> Iterator[Any]:
        try:
            if self._fs is None:
                self._fs, self._root = self._connect()
            yield self._fs
        except DatakitError:
            raise
        except Exception as error:
            raise translated(error, Asked(self._url, key, self._options)) from error

    def _connect(self) -> tuple[Any, str]:
        import fsspec

        # no cache of listings, and no connection of others: what is asked is asked of the store
        fs, root = fsspec.url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False, **self._words())
        return fs, str(root).rstrip("/")

    def _words(self) -> dict[str, Any]:
        """The options as s3fs calls them."""
        if not self._url.startswith("s3://"):
            return {}
        options = self._options
        client = {"endpoint_url": options.endpoint_url, "region_name": options.region}
        style = {"s3": {"addressing_style": "virtual" if options.profile(self._url).virtual_hosted else "path"}}
        return {
            "anon": options.anonymous,
            "key": options.access_key_id,
            "secret": options.secret_access_key,
            "token": options.session_token,
            "client_kwargs": {name: value for name, value in client.items() if value is not None},
            "config_kwargs": style if options.endpoint_url else {},
        }


def translated(error: Exception, asked: Asked) -> DatakitError:
    """The error of our tree for an exception of fsspec, or of the file system behind it."""
    kind, status = type(error).__name__, getattr(error, "status", None)
    if isinstance(error, ImportError):
        library = (getattr(error, "name", None) or "its library").partition(".")[0]
        return MissingExtra(library, extra="s3") if library == "s3fs" else _not_installed(library, asked)
    if isinstance(error, FileNotFoundError) or status == 404:
        return NotFound(
            f"{asked.where} is not there", hint="Check its name, and what was put there", subject=asked.where
        )
    if isinstance(error, PermissionError) or status in (401, 403):
        return NotAllowed(
            f"{asked.where}: the store does not allow it", hint="Check the credentials", subject=asked.where
        )
    if isinstance(error, (NotImplementedError, ValueError, TypeError)):
        hint = "Check the address, or download it and name the file; DATAKIT_DEBUG=1 shows what fsspec says"
        return UsageError(f"{asked.where}: fsspec cannot do this ({kind})", hint=hint, subject=asked.where)
    return no_answer(asked, kind)


def _not_installed(library: str, asked: Asked) -> DatakitError:
    scheme = asked.url.partition("://")[0]
    return (
        MissingExtra(library, extra="s3")
        if library == "fsspec"
        else UsageError(
            f"{scheme}:// needs {library}, which is not installed", hint=f"pip install {library}", subject=library
        )
    )


def unknown_scheme(place: str, url: str, *, known: Iterable[str]) -> UsageError:
    """The error of a URL that no store here and no file system of fsspec answers to."""
    accepted = ", ".join(f"{name}://" for name in known)
    store = f"stores: {{{url.partition('://')[0]}: {{url: s3://BUCKET, endpoint_url: https://HOST}}}}"
    hint = f"It knows {accepted}, paths, and to read from what fsspec knows; or name a store so in params.yaml: {store}"
    return UsageError(f"{place} has a scheme that datakit does not know", hint=hint, subject=url)
