"""scan: what a source holds, as a value that can be printed, compared and kept beside a dataset.

A source is a file, a folder, or a prefix of a store. Names are below the source and sorted, so the listing of the same
files is the same bytes anywhere; a fingerprint is a local file's md5, or the ETag that the store gave without a request
of its own. Nothing is read for a listing but what fingerprints of local files need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import orjson

from datakit.data.index import index_name
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import InputError, NotFound, printable
from datakit.source.kinds import Kind, kind_of, only_files, plain_name, used
from datakit.source.trees import Folder, SourceFile, Tree, looked_at, sketch, walk, with_fingerprints
from datakit.source.troubles import Trouble
from datakit.storage.access import SCHEMES, local_path, refuse_slips
from datakit.storage.retry import Pace, PatientStore

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

MANY_FILES = 2**14
"""Files of a folder from which on workers look at them; fewer are looked at before a worker has started (0.1 s)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of a source, sorted by name.

    Attributes:
        url: The source as it was named.
        kind: What it holds.
        files: The files that records are read from.
        requests: Requests that listing it took.
        single: Whether the source is one object, not what lies below a prefix.
        beside: Indexes that lie beside tars and tell what is in them, and manifests.
        troubles: What lies there and cannot be read.
        hidden: Names with a leading dot, which are left out.
        folders: More files, of which no more than the names is known; of a large folder of files, nearly all.
    """

    url: str
    kind: Kind
    files: tuple[SourceFile, ...]
    requests: int = 0
    single: bool = False
    beside: tuple[SourceFile, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    hidden: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store."""
        return is_remote(self.url)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files but those of which no more than the names is known."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Deterministic JSON of the files, for `pipelines/scan.py`; the place they lie in is left out."""
        files = [
            {"name": printable(file.name), "bytes": file.bytes, "fingerprint": file.fingerprint} for file in self.files
        ]
        value: dict[str, Any] = {"format": 1, "kind": self.kind, "files": files}
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def scan(
    src: str | Path,
    *,
    input: Kind | Literal["auto"] = "auto",  # noqa: A002 -- the setting's name
    fingerprints: bool = True,
    stores: Mapping[str, StoreOptions] | None = None,
) -> Sources:
    """List a source.

    Args:
        src: A file, a folder, or a URL such as `s3://bucket/raw`.
        input: What it holds; `auto` tells by the names where they agree, takes a folder of files where they say
            nothing, and refuses a mix.
        fingerprints: Whether local files are read for their md5.
        stores: Named stores of the settings.

    Raises:
        NotFound: Nothing is there.
        InputError: There are no files, or files of several kinds.
    """
    requests, single = 0, False
    tree = Tree()
    if is_remote(src):
        store, prefix = open_source(src, stores)
        tree.files = _list_remote(store, prefix, tree.hidden, tree.troubles)
        if not tree.files and prefix:
            tree.files, single = [_head(store, prefix, src), *_index_beside(store, prefix)], True
        requests = store.requests.total
        alone = single
    else:
        root = Path(str(src).removeprefix("file://"))
        tree = _list_local(root, input, fingerprints=fingerprints)
        alone = root.is_file()
    files, troubles = tree.files, tree.troubles
    if not files and not troubles and not tree.folders:
        hint = "Look at the path; names that begin with a dot are left out"
        raise InputError(f"{src} is empty: it holds no files", hint=hint, subject=str(src))
    files.sort(key=lambda file: file.name)
    names = [file.name for file in files[: 1 if single else None]]
    # of what lies beside tars, those tell that cannot be read
    telling = names if used(names, "tar") else [*names, *(trouble.where for trouble in troubles)]
    kind: Kind = "files" if tree.folders else kind_of(telling, wanted=input, src=src, single=alone)
    wanted = used(names, kind)
    beside = _indexes(files) if kind == "tar" else ()
    if len(wanted) < len(files):
        chosen = set(wanted)
        files = [file for file in files if file.name in chosen]
    return Sources(
        url=str(src),
        kind=kind,
        files=tuple(files),
        requests=requests,
        single=single,
        beside=beside,
        troubles=tuple(troubles),
        hidden=tuple(tree.hidden),
        folders=tuple(tree.folders),
    )


def is_remote(src: str | Path) -> bool:
    """Whether a source is a URL of a store, not a path; what is nearly a URL is refused."""
    refuse_slips(str(src), (*SCHEMES, "file"))
    return "://" in str(src) and not str(src).startswith("file://")


def local_directory(place: str | Path, *, verb: str) -> Path:
    """The path of a dataset for a verb that works on local ones.

    Raises:
        UsageError: It is in object storage; the hint says how to get at it.
    """
    return local_path(place, message=f"{verb} works on a local directory, not on {place}")


def open_source(src: str | Path, stores: Mapping[str, StoreOptions] | None) -> tuple[PatientStore, str]:
    """The store that a source is in, asked with patience, and the place inside it."""
    from datakit.storage.store import open_location
    from datakit.storage.transfer import Knobs

    location = open_location(src, stores=stores)
    return PatientStore(location.store, pace=Pace(retries=Knobs().retries)), location.prefix


def _list_local(root: Path, wanted: Kind | Literal["auto"], *, fingerprints: bool) -> Tree:
    """What lies on a local disk; of a large folder that holds nothing but files, no more than their names."""
    if fingerprints:
        return with_fingerprints(root, walk(root))
    tree = sketch(root)
    is_large = sum(len(folder.names) for folder in tree.folders) >= MANY_FILES
    names = [[PurePosixPath(file.name).name for file in tree.files], *(folder.names for folder in tree.folders)]
    is_told = wanted == "files" or (wanted == "auto" and all(map(only_files, names)))
    return tree if is_large and is_told else looked_at(root, tree)


def _list_remote(store: PatientStore, prefix: str, hidden: list[str], troubles: list[Trouble]) -> list[SourceFile]:
    files = []
    for info in store.list(prefix):
        name = _below(info.key, prefix)
        if name is None:
            continue
        steps = name.split("/")
        if not {".", ".."}.isdisjoint(steps):  # a step, on the disk that it would be laid down on
            troubles.append(Trouble(printable(name), "has a folder `.` or `..` in its name", hint="Rename that object"))
        elif any(step.startswith(".") for step in steps):
            hidden.append(name)
        else:
            files.append(SourceFile(name, info.bytes, info.etag))
    # consoles mark a folder by an empty object of its name
    folders = {str(folder) for file in files for folder in PurePosixPath(file.name).parents}
    return [file for file in files if file.bytes or file.name not in folders]


def _head(store: PatientStore, key: str, src: str | Path) -> SourceFile:
    try:
        info = store.head(key)
    except NotFound as error:
        raise NotFound(
            f"there is nothing at {src}", hint="Check the spelling, and what was put there", subject=str(src)
        ) from error
    return SourceFile(key.rpartition("/")[2], info.bytes, info.etag)


def _index_beside(store: PatientStore, key: str) -> list[SourceFile]:
    """The index beside a tar that is named by itself, if there is one."""
    if not plain_name(key).endswith(".tar"):
        return []
    try:
        info = store.head(index_name(key))
    except NotFound:
        return []
    return [SourceFile(index_name(key).rpartition("/")[2], info.bytes, info.etag)]


def _indexes(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    names = {index_name(file.name) for file in files}
    names |= {file.name for file in files if PurePosixPath(file.name).name == MANIFEST_NAME}
    return tuple(file for file in files if file.name in names)


def _below(key: str, prefix: str) -> str | None:
    """A key's name below the prefix, or None where it is elsewhere or a folder's mark."""
    folder = f"{prefix}/" if prefix else ""
    if not key.startswith(folder) or key.endswith("/"):
        return None
    return key.removeprefix(folder)
