"""strangers: files at a commit's place that are neither its own nor of another version of it.

A commit holds what its manifest names and nothing else. A place of strangers' files that became one would from then on
be carried on without them, and whoever lists it would take them for data. So none is made there, and of a source they
are told. They are known by their names alone, and nothing is read: `verify` looks at the bytes of what is called like
a shard of another version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from datakit.data.index import index_name
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.data.shard import parse_shard_name
from datakit.errors import DatakitError, Refused
from datakit.events import Caution
from datakit.storage.compare import Holding, Item, begun_at, listed, visible
from datakit.storage.store import Location
from datakit.units import agree, format_count, format_number_of

_SHOWN = 3
"""Names that a sentence shows; it says how many there are."""


def strangers(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Of the names at a commit's place those of strangers, sorted.

    Args:
        manifest: The commit.
        names: What lies there.

    Example:
        >>> strangers(Manifest("dataset", "chat", (), {}), ["chat-3f2a9c1e.tar", "labels.csv"])
        ['labels.csv']
    """
    own = {entry.name for entry in manifest.members} | {MANIFEST_NAME}
    return sorted(name for name in names if name not in own and not _is_of_version(name, manifest))


def _is_of_version(name: str, manifest: Manifest) -> bool:
    """Whether a file is called like a shard of the dataset, the index of one, or a side file of one."""
    bare = name.removesuffix(".idx")
    shards = {name, name.removesuffix(index_name("")), bare, f"{bare}.tar"}
    return manifest.kind == "dataset" and any(
        parsed is not None and parsed[0] == manifest.name for parsed in map(parse_shard_name, shards)
    )


def refuse_strangers(held: Holding, target: Location, here: Mapping[str, Item]) -> None:
    """Refuse to make a place a commit that holds files of strangers; where one stands, it is renewed all the same.

    Args:
        held: The source: a commit, or files with commits among them.
        target: The destination.
        here: What lies there.

    Raises:
        Refused: Names the first of them.
    """
    commits = held.nested if held.manifest is None else {"": held.manifest}
    found: dict[str, list[str]] = {}
    for name in here:
        folder = next((text for text in _folders(name) if text in commits), None)
        if folder is not None and name not in held.items and _in(folder, MANIFEST_NAME) not in here:
            found.setdefault(folder, []).append(name.removeprefix(_in(folder, "")))
    for folder, names in found.items():
        manifest = commits[folder]
        arrived = set() if target.path is None else set(begun_at(target.path / folder))
        if others := strangers(manifest, set(names) - arrived):
            where = f"{target.url}/{folder}".rstrip("/")
            raise Refused(
                f"{where} holds {_listing(others)}, and would become the {manifest.kind} {manifest.name}, "
                f"to which {agree(len(others), 'it does', 'they do')} not belong",
                hint="Name an empty or a new place, or move them away; to have them deleted: --delete --max-delete N",
                subject=where,
            )


def left_behind(held: Holding, origin: Location) -> list[Caution]:
    """What to say of a source's strangers, which do not move with its commit; nothing where there are none.

    A source in a store is not listed for it.
    """
    if held.manifest is None or origin.path is None:
        return []
    others: list[str] = []
    with contextlib.suppress(DatakitError):  # a listing that cannot be made is no reason not to move what is named
        others = strangers(held.manifest, visible(listed(origin, origin.store)))
    if not others:
        return []
    said = f"{origin.url} also holds {_listing(others)}, which its manifest does not name: left behind"
    return [Caution(said, hint="Move what is yours to a place of its own, and sync that too")]


def in_commit(held: Holding, name: str) -> bool:
    """Whether a file at the destination lies where the source has a commit."""
    return held.manifest is not None or any(folder in held.nested for folder in _folders(name))


def _folders(name: str) -> list[str]:
    """The folders that a file lies in, the nearest first, the place itself last."""
    return ["" if str(folder) == "." else str(folder) for folder in PurePosixPath(name).parents]


def _in(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _listing(names: list[str]) -> str:
    more = f", and {format_count(len(names) - _SHOWN)} more" if len(names) > _SHOWN else ""
    return f"{format_number_of(len(names), 'file')} ({', '.join(names[:_SHOWN])}{more})"
