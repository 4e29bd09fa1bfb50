"""scan: what a source holds, as a value that can be printed, compared and kept beside a dataset.

A source is a file, a folder, or an object-store prefix. Names are below the source and sorted, so the listing of the
same files is the same bytes anywhere; a fingerprint is a local file's md5, or the ETag that the store gave without a
request of its own. Hidden files are left out; links to folders are refused, because following them may leave the tree.

`fetched` lays down as plain local files what cannot be read in place: objects and `.gz` files. It counts its requests.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from datakit.data.keys import key_hash
from datakit.errors import InputError, NotFound, UsageError
from datakit.pack.spans import LineFile
from datakit.storage import disk
from datakit.storage.retry import Pace, PatientStore

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CONCURRENCY = 16
"""Objects fetched at once: small objects are bound by latency, not by bandwidth."""

RETRIES = 5
"""Tries beyond the first for one request, as in `sync`."""

_COPY_BYTES = 2**20


class SourceFile(NamedTuple):
    """A file of a source: its name below it, bytes, md5 or ETag where known, and a local one's time of change in ns."""

    name: str
    bytes: int
    fingerprint: str | None
    mtime_ns: int | None = None

    @property
    def stamp(self) -> int:
        """A number that tells its version: the time of its change, or a hash of its tag."""
        return key_hash(str(self.fingerprint)) if self.mtime_ns is None else self.mtime_ns


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of a source, sorted by name.

    Attributes:
        url: The source as it was named.
        kind: `jsonl` or `files`.
        files: Its files.
        requests: Requests that listing it took.
        single: Whether the source is one object, not what lies below a prefix.
    """

    url: str
    kind: Literal["jsonl", "files"]
    files: tuple[SourceFile, ...]
    requests: int = 0
    single: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store."""
        return is_remote(self.url)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Deterministic JSON of the files; the place they lie in is left out, so that a copy lists the same."""
        files = [{"name": file.name, "bytes": file.bytes, "fingerprint": file.fingerprint} for file in self.files]
        value: dict[str, Any] = {"format": 1, "kind": self.kind, "files": files}
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def scan(
    src: str | Path,
    *,
    input: Literal["auto", "jsonl", "files"] = "auto",  # noqa: A002 -- the setting's name
    fingerprints: bool = True,
    stores: Mapping[str, StoreOptions] | None = None,
) -> Sources:
    """List a source.

    Args:
        src: A file, a folder, or a URL such as `s3://bucket/raw`.
        input: What it holds; `auto` takes JSON lines where all files are, else a folder of files, and refuses a mix.
        fingerprints: Whether local files are read for their md5.
        stores: Named stores of the settings.

    Raises:
        NotFound: Nothing is there.
        InputError: There are no files, or files of both kinds.
    """
    requests, single = 0, False
    if is_remote(src):
        store, prefix = _open(src, stores)
        files = _list_remote(store, prefix)
        if not files and prefix:
            files, single = [_head(store, prefix, src)], True
        requests = store.requests.total
    else:
        files = _list_local(Path(str(src).removeprefix("file://")), fingerprints=fingerprints)
    if not files:
        raise InputError(f"{src} is empty: it holds no files", subject=str(src))
    return Sources(
        str(src), _kind(files, input, src), tuple(sorted(files, key=lambda file: file.name)), requests, single
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """A source on a local disk.

    Attributes:
        root: The folder that the source's names lie in.
        lines: For JSON lines, each file in plain form.
        requests: Requests that fetching took.
    """

    root: str
    lines: tuple[LineFile, ...]
    requests: int


@contextlib.contextmanager
def fetched(sources: Sources, spool: Path, *, stores: Mapping[str, StoreOptions] | None = None) -> Iterator[Fetched]:
    """Give a source's files as plain local files for the length of the block.

    Args:
        sources: From `scan`.
        spool: A directory that does not exist yet, for what cannot be read in place; removed afterwards.
        stores: Named stores of the settings.

    Raises:
        InputError: A compressed file is damaged.
        NoSpace: The spool's disk is full.
    """
    try:
        root, requests = _local_root(sources.url), 0
        if is_remote(sources.url):
            root, requests = str(spool), _fetch_remote(sources, spool, stores)
        lines = [_plain(root, file.name, spool) for file in sources.files] if sources.kind == "jsonl" else []
        yield Fetched(root, tuple(lines), requests)
    finally:
        disk.remove(spool)


def is_remote(src: str | Path) -> bool:
    """Whether a source is a URL of a store, not a path."""
    return "://" in str(src) and not str(src).startswith("file://")


def local_directory(place: str | Path, *, verb: str) -> Path:
    """The path of a dataset for a verb that works on local ones.

    Raises:
        UsageError: It is in object storage; the hint says how to get at it.
    """
    if is_remote(place):
        raise UsageError(
            f"{verb} works on a local directory, not on {place}",
            hint=f"First: datakit sync {place} DIRECTORY",
            subject=str(place),
        )
    return Path(str(place).removeprefix("file://"))


def _kind(files: list[SourceFile], wanted: str, src: str | Path) -> Literal["jsonl", "files"]:
    lines = [file.name for file in files if file.name.endswith(JSONL_SUFFIXES)]
    if wanted == "files" or (wanted == "auto" and not lines):
        return "files"
    if len(lines) < len(files):
        other = next(file.name for file in files if not file.name.endswith(JSONL_SUFFIXES))
        hint = "Take one kind out; or, to pack lines as whole files, set --input files"
        raise InputError(
            f"{src} holds JSON lines ({lines[0]}) and other files ({other})"
            if lines
            else f"{src} holds no JSON lines, but {other}",
            hint=hint,
            subject=other,
        )
    return "jsonl"


def _list_local(root: Path, *, fingerprints: bool) -> list[SourceFile]:
    if not root.exists():
        raise NotFound(f"{root} is not there", hint="Look at the path", subject=str(root))
    found: list[SourceFile] = []
    with disk.at_door(root):
        if root.is_file():
            return [_local_file(root.name, str(root), root.stat(), fingerprints=fingerprints)]
        pending = [str(root)]
        prefix = len(str(root).rstrip("/")) + 1
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file():
                        name = entry.path[prefix:]
                        found.append(_local_file(name, entry.path, entry.stat(), fingerprints=fingerprints))
                    else:
                        raise InputError(f"{entry.path} is neither a file nor a folder of its own", subject=entry.path)
    return found


def _local_file(name: str, path: str, status: os.stat_result, *, fingerprints: bool) -> SourceFile:
    return SourceFile(name, status.st_size, _md5(path) if fingerprints else None, status.st_mtime_ns)


def _md5(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _local_root(url: str) -> str:
    path = url.removeprefix("file://")
    return os.path.dirname(path) or "." if os.path.isfile(path) else path


def _plain(root: str, name: str, spool: Path) -> LineFile:
    path = os.path.join(root, name)
    return _unpacked(path, name, spool) if name.endswith(".gz") else LineFile(name, path)


def _unpacked(path: str, name: str, spool: Path) -> LineFile:
    target = _spool_path(spool, f"plain/{name}")
    with disk.at_door(target), open(target, "wb") as plain:
        try:
            with gzip.open(path, "rb") as packed:
                while data := packed.read(_COPY_BYTES):
                    plain.write(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{name} is not a whole gzip file: {error}", hint="Fetch it again", subject=name) from None
    return LineFile(name, str(target))


def _spool_path(spool: Path, name: str) -> Path:
    target = spool / name
    disk.make_dirs(target.parent)
    return target


def _open(src: str | Path, stores: Mapping[str, StoreOptions] | None) -> tuple[PatientStore, str]:
    from datakit.storage.store import open_location

    location = open_location(src, stores=stores)
    return PatientStore(location.store, pace=Pace(retries=RETRIES)), location.prefix


def _list_remote(store: PatientStore, prefix: str) -> list[SourceFile]:
    files = []
    for info in store.list(prefix):
        name = _below(info.key, prefix)
        if name is not None and not any(step.startswith(".") for step in name.split("/")):
            files.append(SourceFile(name, info.bytes, info.etag))
    # consoles mark a folder by an empty object of its name
    folders = {str(folder) for file in files for folder in PurePosixPath(file.name).parents}
    return [file for file in files if file.bytes or file.name not in folders]


def _head(store: PatientStore, key: str, src: str | Path) -> SourceFile:
    try:
        info = store.head(key)
    except NotFound as error:
        raise NotFound(f"there is nothing at {src}", hint=f"Look: aws s3 ls {src}", subject=str(src)) from error
    return SourceFile(key.rpartition("/")[2], info.bytes, info.etag)


def _below(key: str, prefix: str) -> str | None:
    """A key's name below the prefix, or None where it is elsewhere or a folder's mark."""
    folder = f"{prefix}/" if prefix else ""
    if not key.startswith(folder) or key.endswith("/"):
        return None
    return key.removeprefix(folder)


def _fetch_remote(sources: Sources, spool: Path, stores: Mapping[str, StoreOptions] | None) -> int:
    store, prefix = _open(sources.url, stores)

    def fetch(file: SourceFile) -> None:
        key = prefix if sources.single else f"{prefix}/{file.name}".lstrip("/")
        target = _spool_path(spool, file.name)
        with disk.at_door(target), open(target, "wb") as out:
            # in pieces, each of the very version that was listed
            for start in range(0, file.bytes, _PIECE_BYTES):
                stop = min(start + _PIECE_BYTES, file.bytes)
                out.write(store.read(key, start=start, stop=stop, etag=file.fingerprint))

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(fetch, sources.files))
    return store.requests.total


_PIECE_BYTES = 16 * 2**20
"""Bytes of one ranged read, as in downloads."""
