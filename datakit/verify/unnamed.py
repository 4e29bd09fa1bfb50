"""unnamed: files in a commit's place that its manifest does not name, and whose they are.

Three kinds. What a killed writer of ours left is known by its name, or by the marker of the renewal that named it.
Shards of another version of the same dataset stay where a sync without `--delete` renewed it, and lie in a bucket
before the manifest that names them: `<dataset>-<hex>.tar` whose bytes are what its name says,
its index, and the side files called after it. Whatever else lies there is foreign: a reader that lists the place would
take it for data. Nothing is removed here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from datakit.data.index import Index, index_name
from datakit.data.manifest import MANIFEST_NAME
from datakit.data.shard import parse_shard_name
from datakit.errors import DatakitError
from datakit.machine import cores
from datakit.storage.commit import LAST_NAME, NEXT_NAME, parse_manifest
from datakit.storage.disk import TEMPORARY
from datakit.storage.locks import LOCK_NAME
from datakit.storage.objects import ObjectInfo
from datakit.storage.partial import PARTIAL
from datakit.storage.view import View


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Files that no manifest names, by whose they are; names sorted.

    Attributes:
        killed: What a killed pack or sync left.
        versions: Shards of other versions of the dataset, with their indexes and side files.
        foreign: All others.
    """

    killed: tuple[str, ...]
    versions: tuple[str, ...]
    foreign: tuple[str, ...]


def unnamed(view: View, there: Mapping[str, ObjectInfo], *, quick: bool) -> Unnamed:
    """Tell apart what lies in a commit's place besides its members.

    Args:
        view: The commit.
        there: What lies there.
        quick: Believe a shard of another version by its name and the index beside it, and read nothing.

    Raises:
        Refused: A file was replaced while it was read.
        StoreUnavailable, NotAllowed: The store cannot be asked.
    """
    known = {entry.name for entry in view.manifest.members} | {MANIFEST_NAME}
    renewal = _renewal(view.path) if view.path is not None else set()
    others = sorted(set(there) - known)
    killed = {name for name in others if name in renewal or _is_ours(name)}
    rest = [name for name in others if name not in killed]
    versions = _of_versions(view, there, rest, quick=quick) if view.manifest.kind == "dataset" else set()
    foreign = tuple(name for name in rest if name not in versions)
    return Unnamed(tuple(sorted(killed)), tuple(sorted(versions)), foreign)


def strange(root: Path) -> list[str]:
    """What lies in a directory and is neither a file nor a folder of its own, by its name there, sorted.

    A link to a folder, a pipe, a link that leads nowhere, and a folder called like a tar: whoever looks for tars below
    the directory finds them too, or what is behind them.
    """
    found = []
    for folder, folders, files in os.walk(root):
        found += [Path(folder, name) for name in folders if name.endswith(".tar") or Path(folder, name).is_symlink()]
        found += [Path(folder, name) for name in files if not Path(folder, name).is_file()]
    return sorted(path.relative_to(root).as_posix() for path in found)


def _is_ours(name: str) -> bool:
    last = name.rpartition("/")[2]
    return name == LOCK_NAME or any(pattern.fullmatch(last) for pattern in (TEMPORARY, PARTIAL))


def _renewal(root: Path) -> set[str]:
    """Files of a renewal that was killed: its markers, and what the manifests in them name."""
    names: set[str] = set()
    for marker in (NEXT_NAME, LAST_NAME):
        path = root / marker
        if path.is_file():
            names.add(marker)
            try:
                names |= {entry.name for entry in parse_manifest(path.read_bytes(), where=str(path)).members}
            except DatakitError:
                continue  # nothing of it can be told apart
    return names


def _of_versions(view: View, there: Mapping[str, ObjectInfo], rest: Collection[str], *, quick: bool) -> set[str]:
    """Of the files that nobody names those of other versions."""
    parsed = {name: parse_shard_name(name) for name in rest}
    digits = {name: its[1] for name, its in parsed.items() if its is not None and its[0] == view.manifest.name}

    def agrees(name: str) -> bool:
        return index_name(name) in there if quick else _sha256(view, name, there[name]).startswith(digits[name])

    with ThreadPoolExecutor(cores() if view.path is not None else view.concurrency) as pool:
        shards = [name for name, same in zip(digits, pool.map(agrees, digits), strict=True) if same]
    found, others = set(shards), set(rest)
    for shard in shards:
        found |= {f"{shard}.idx", f"{shard.removesuffix('.tar')}.idx"} & others  # Energon's and DALI's
        index = index_name(shard)
        if index in others and (quick or _is_index(view, index, there[index])):
            found.add(index)
    return found


def _sha256(view: View, name: str, info: ObjectInfo) -> str:
    digest = hashlib.sha256()
    for piece in view.pieces(name, 0, info.bytes):
        digest.update(piece)
    return digest.hexdigest()


def _is_index(view: View, name: str, info: ObjectInfo) -> bool:
    data = b"".join(map(bytes, view.pieces(name, 0, info.bytes)))
    try:
        Index.from_buffer(data)
    except DatakitError:
        return False
    return True
