"""tree: a version that DVC keeps, read as if it were a place: names lead to objects of a cache or remote by their md5.

The engine of `sync` and the readers ask it by name; it asks for `files/md5/ab/cdef...`. A chain of digests stands
behind each byte: dvc.lock names the md5 of the `.dir` object, that names the md5 of `manifest.json`, and the manifest
names size, sha256, md5 and the crc32c of each 16 MiB of every member. A link that does not fit the next is an error.
A file for which no manifest speaks is checked by its md5.

Does not write: what DVC keeps under an md5 never changes.
"""

from __future__ import annotations

import hashlib
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from datakit.data.digest import Buffer
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import IntegrityError, NotFound, Refused
from datakit.storage import etags
from datakit.storage.access import StoreOptions
from datakit.storage.answers import changed
from datakit.storage.commit import parse_manifest
from datakit.storage.counts import Account, RequestCounts
from datakit.storage.limits import Gate
from datakit.storage.objects import Blob, Body, LocalStore, ObjectInfo, joined
from datakit.storage.retry import DAMAGE_TRIES, Pace
from datakit.storage.store import Location
from datakit.version.dvc import Out, Tree, object_key
from datakit.version.project import DVC_DIR, Pointer, Project, open_remote

T = TypeVar("T")

LOOKS = 16
"""Objects looked at at once, as many as `sync` has requests under way."""

RETRIES = 6
"""Tries beyond the first for the `.dir` object; whoever reads on brings a patience of its own."""

_PUSH = "Push it from where it was made: dvc push (which leaves out an output that has cache: false)"


_AGAIN = "datakit sync DATA --to FILE.dvc"


class TreeStore:
    """A version as a store; made by `open_tree`.

    Args:
        url: What it is called in messages: the pointer as it was written.
        out: What the pointer points at.
        places: Caches and remotes, asked in turn.
        again: The command that publishes it again, where it is whole.
    """

    def __init__(self, url: str, out: Out, *, places: Sequence[Location], again: str = _AGAIN) -> None:
        self._url = url
        self._out = out
        self._again = again
        self._listed = False
        self._places = list(places)
        self._guard = threading.Lock()
        self._blobs: dict[str, Blob] = {}
        self._sizes: dict[str, int] = {}
        name = Path(out.path).name
        self.tree = self._read_tree() if out.is_dir else Tree({name: out.md5})
        self._listed = out.is_dir

    @property
    def url(self) -> str:
        """The pointer."""
        return self._url

    @property
    def options(self) -> StoreOptions:
        """Of no store: each place has its own."""
        return StoreOptions()

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Of all places."""
        return tuple(account for place in self._places for account in place.store.accounts)

    @property
    def requests(self) -> RequestCounts:
        """Requests made so far, to all places."""
        return sum((place.store.requests for place in self._places), RequestCounts())

    def limit(self, gate: Gate) -> None:
        """See `Store.limit`; of all places."""
        for place in self._places:
            place.store.limit(gate)

    @property
    def path(self) -> str:
        """The output's path, as it is recorded."""
        return self._out.path

    @property
    def is_dir(self) -> bool:
        """Whether the version is a directory."""
        return self._out.is_dir

    def head(self, key: str) -> ObjectInfo:
        """Size of a file; its tag is its md5, which the engine compares with the bytes that come."""
        md5 = self._md5(key)
        size = self._sizes.get(key)
        if size is None:
            size = self._ask(key, lambda place: place.store.head(place.key(object_key(md5))).bytes)
            self._sizes[key] = size
        return ObjectInfo(key, size, etags.single(md5))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The files below a folder; a request for each file of which no manifest tells the size."""
        top = f"{prefix}/" if prefix else ""
        names = [name for name in sorted(self.tree.members) if name.startswith(top)]
        for name in names:
            if name.rpartition("/")[2] == MANIFEST_NAME:
                self._sizes |= self._told_by(name)
        with ThreadPoolExecutor(LOOKS) as pool:
            return list(pool.map(self.head, names))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Folders in a folder, by the list; no request."""
        return tuple(sorted({name.partition("/")[0] for name in self.tree.below(prefix).members if "/" in name}))

    def fetch(self, key: str) -> Blob:
        """A small file whole, compared with its md5; asked for once."""
        with self._guard:
            blob = self._blobs.get(key)
        if blob is None:
            md5 = self._md5(key)
            blob = Blob(ObjectInfo(key, 0, etags.single(md5)), self._object(key, md5))
            blob = Blob(ObjectInfo(key, len(blob.data), blob.info.etag), blob.data)
            with self._guard:
                self._blobs[key] = blob
                self._sizes[key] = len(blob.data)
        return blob

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """Bytes of a file; what lies under an md5 has no other version."""
        md5 = self._md5(key)
        if etag is not None and not etags.same(etag, md5):
            raise changed(f"{self._url}/{key}")
        place = self._holder(key, md5)
        try:
            yield from place.store.stream(place.key(object_key(md5)), start=start, stop=stop)
        except NotFound as error:
            raise self._absent(key, place, error) from error
        except (IntegrityError, Refused) as error:  # another version there is not: the object ends too early
            short = f"{place.url}/{object_key(md5)} ends before byte {stop}"
            raise self._damaged(key, short) from error

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """The same, as one."""
        return joined(self.stream(key, start=start, stop=stop, etag=etag))

    def tags_bytes(self, key: str) -> bool:  # noqa: ARG002 -- the same for every file
        """Its tags are md5s of bytes, whatever the store's own are."""
        return True

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:  # noqa: ARG002 -- never done
        """A version is not written to."""
        raise self._fixed()

    def upload(self, key: str, body: Body, **how: Any) -> ObjectInfo:  # noqa: ARG002 -- never done
        """A version is not written to."""
        raise self._fixed()

    def delete(self, key: str) -> None:  # noqa: ARG002 -- never done
        """A version is not written to."""
        raise self._fixed()

    def check(self, manifest: Manifest, *, folder: str = "") -> None:
        """Compare a manifest of this version with what DVC records.

        Args:
            manifest: Of a commit.
            folder: Where in the directory it lies.

        Raises:
            IntegrityError: Names the first member whose md5 differs or that is missing.
        """
        recorded = self.tree.below(folder).members
        for entry in manifest.members:
            if (md5 := recorded.get(entry.name)) != entry.md5:
                where = f"{self._url}/{folder}/{entry.name}".replace("//", "/")
                told = "is not in DVC's list" if md5 is None else f"has md5 {md5} in DVC's list"
                raise IntegrityError(
                    f"{where} {told}, its manifest says {entry.md5}",
                    hint="Take another revision: this one was recorded while it was being written",
                    subject=entry.name,
                )

    def blame(self, error: IntegrityError) -> IntegrityError:
        """The error of bytes that came from here, with the object that holds them; the very same of other bytes."""
        key = str(error.subject).removeprefix(f"{self._url}/")
        md5 = self.tree.members.get(key)
        if md5 is None or key == error.subject:
            return error
        held = " or ".join(f"{place.url}/{object_key(md5)}" for place in self._places)
        return self._damaged(key, f"{held}: {error.message}")

    def _told_by(self, name: str) -> dict[str, int]:
        """Sizes of files that a manifest in this version tells, by their names here."""
        manifest = parse_manifest(self.fetch(name).data, where=f"{self._url}/{name}")
        folder = name.removesuffix(MANIFEST_NAME)
        self.check(manifest, folder=folder.rstrip("/"))
        return {folder + entry.name: entry.bytes for entry in manifest.members}

    def _read_tree(self) -> Tree:
        name = f"{self._out.path} ({self._out.md5})"
        data = Pace(retries=RETRIES).call(lambda: self._object(name, self._out.md5))
        return Tree.from_bytes(data, where=f"{self._url} ({self._out.md5})")

    def _object(self, key: str, md5: str) -> bytes:
        damaged: list[str] = []

        def whole(place: Location) -> bytes:
            at = place.key(object_key(md5))
            for _ in range(DAMAGE_TRIES):
                data = place.store.fetch(at).data
                found = hashlib.md5(data, usedforsecurity=False).hexdigest()
                if found == md5.partition(".")[0]:
                    return data
            damaged.append(f"{place.url}/{object_key(md5)} has md5 {found}")
            raise NotFound(f"{place.url} has it damaged", hint=self._push(), subject=key)  # the next may have it whole

        try:
            return self._ask(key, whole)
        except NotFound:
            if not damaged:
                raise
        raise self._damaged(key, ", ".join(damaged))

    def _holder(self, key: str, md5: str) -> Location:
        """The place to read a file from: the only one, or the first that has it in the size that its manifest says."""
        if len(self._places) == 1:
            return self._places[0]

        def look(place: Location) -> Location:
            found = place.store.head(place.key(object_key(md5))).bytes
            if found != self._sizes.get(key, found):
                raise NotFound(
                    f"{place.url} has it cut short", hint=self._push(), subject=key
                )  # the next may have it whole
            return place

        return self._ask(key, look)

    def _ask(self, key: str, question: Callable[[Location], T]) -> T:
        for place in self._places:
            try:
                return question(place)
            except NotFound as error:
                absent = self._absent(key, place, error)
                if absent is error:
                    raise
        asked = " and ".join(place.url for place in self._places)
        raise NotFound(f"{self._url}: {key} is not in {asked}", hint=self._push(), subject=key)

    def _absent(self, key: str, place: Location, error: NotFound) -> NotFound:
        """The error of an object that a place does not have; the very same where its bucket is not there."""
        if place.path is None and error.subject == place.store.url:
            return error
        return NotFound(f"{self._url}: {key} is not in {place.url}", hint=self._push(), subject=key)

    def _damaged(self, key: str, said: str) -> IntegrityError:
        hint = f"Remove that object. {self._push()}"
        return IntegrityError(f"{self._url}: the object of {key} is damaged: {said}", hint=hint, subject=key)

    def _push(self) -> str:
        """How an object comes into a remote. `dvc push` asks for a `.dir` alone, which vouches for the rest."""
        if not self._listed:
            return _PUSH
        return f"Put it there from where {self._out.path} is whole: {self._again} (dvc push may take it for there)"

    def _md5(self, key: str) -> str:
        md5 = self.tree.members.get(key)
        if md5 is None:
            raise NotFound(f"{self._url} has no file {key}", hint=_holds(self.tree), subject=f"{self._url}/{key}")
        return md5

    def _fixed(self) -> Refused:
        message = f"{self._url} is a version that DVC records, and is not written to"
        return Refused(message, hint="Record another: datakit sync SRC --to FILE.dvc", subject=self._url)


def _holds(tree: Tree) -> str:
    tops = sorted({name.partition("/")[0] for name in tree.members})
    return f"It holds {', '.join(tops[:5])}{', ...' if tops[5:] else ''}"


def open_tree(
    pointer: Pointer,
    *,
    remote: str | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    data: bytes | None = None,
    cache: bool = False,
    called: str | None = None,
) -> Location:
    """The version that a pointer points at, as the place that `sync` takes as its source.

    Args:
        pointer: Where to look.
        remote: Name of a remote, or its URL; the project's default when None.
        stores: Named stores of the settings.
        data: The bytes of the pointer's file, where they are not those on the disk (a Git revision).
        cache: Look into the local cache first.
        called: Its name in messages, when it is not the pointer's.

    Raises:
        NotFound: The pointer's file, the stage, the output, the remote or an object is not there.
        IntegrityError: An object is not what its md5 says.
    """
    out, inside = pointer.follow(pointer.read() if data is None else data)
    project = Project.around(pointer.file)
    if cache and project is not None:
        places = places_of(project, remote=remote, stores=stores)
    else:
        places = [remote_of(pointer, remote=remote, stores=stores)]
    whole = str(pointer).removesuffix(f"/{inside}") if inside else str(pointer)
    again = f"datakit sync {shlex.quote(str(pointer.file.parent / out.path))} --to {shlex.quote(whole)}"
    store = TreeStore(called or whole, out, places=places, again=again)
    if inside and not store.tree.below(inside).members:
        raise NotFound(f"{whole} holds no folder {inside}", hint=_holds(store.tree), subject=str(pointer))
    return Location(store, inside if store.is_dir else Path(out.path).name)


def places_of(
    project: Project, *, remote: str | None = None, stores: Mapping[str, StoreOptions] | None = None
) -> list[Location]:
    """The local cache, where there is one, and the remote, where one is named.

    Raises:
        NotFound: There is neither, or no remote of the name that was given.
    """
    local = [Location(LocalStore(project.cache_dir))] if project.cache_dir.is_dir() else []
    if remote is not None and "://" in remote:
        return [*local, open_remote(remote, stores=stores)]
    if remote is None and project.default_remote is None and local:
        return local
    return [*local, project.remote(remote, stores=stores)]


def remote_of(
    pointer: Pointer, *, remote: str | None = None, stores: Mapping[str, StoreOptions] | None = None
) -> Location:
    """The remote that a pointer's objects are in.

    Args:
        pointer: It lies in the project.
        remote: Name of a remote, or its URL; the project's default when None.
        stores: Named stores of the settings.

    Raises:
        NotFound: There is no project around it, or no such remote.
    """
    if remote is not None and "://" in remote:
        return open_remote(remote, stores=stores)
    project = Project.around(pointer.file)
    if project is None:
        where = pointer.file.absolute().parent / DVC_DIR / "config"
        hint = f"Copy it beside {pointer.file}, or name the remote: --remote s3://BUCKET/PREFIX"
        raise NotFound(f"{where} is not there, so no remote is known", hint=hint, subject=str(where))
    return project.remote(remote, stores=stores)
