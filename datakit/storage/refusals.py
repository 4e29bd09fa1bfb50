"""refusals: what a sync must not begin, said before anything moves.

The destination may hold commits that the source knows nothing of, above the files that would come, around them or below
them. A commit holds what its manifest names, with the bytes that it says: no file is moved over a member or a manifest,
or into its folder, unless the source has a commit at that place too, by whose manifest the one there may be renewed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import InputError, IntegrityError, NotAllowed, NotFound, Refused, UsageError
from datakit.storage import disk
from datakit.storage.commit import parse_manifest
from datakit.storage.compare import Holding, Item
from datakit.storage.objects import Store
from datakit.storage.regular import refuse_folder
from datakit.storage.store import Location
from datakit.storage.strangers import refuse_strangers


def refuse_clashes(names: Iterable[str], place: Location) -> None:
    """Refuse names of which one is a file and a folder at once, which a store can hold and a disk cannot.

    Raises:
        Refused: With both.
    """
    known = set(names)
    for name in sorted(known):
        for folder in PurePosixPath(name).parents:
            if str(folder) in known:
                raise Refused(
                    f"{place.url} holds {folder} and {name}: no disk has a file and a folder of one name",
                    hint="Rename one of them",
                    subject=name,
                )


def refuse_unspeakable(names: Iterable[str], place: Location) -> None:
    """Refuse names that cannot be keys of a store: with control characters, or that are not UTF-8.

    Raises:
        UsageError: Names the first.
    """
    for name in sorted(names):
        if any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in name):
            shown = ascii(name)
            raise UsageError(
                f"{shown} cannot be the key of an object: it holds a character that is no text",
                hint=f"Rename it; nothing was moved to {place.url}",
                subject=shown,
            )


def refuse_nesting(origin: Location, target: Location, *, delete: bool) -> None:
    """Refuse a destination inside the source, which each run would copy once more into itself.

    A source inside the destination is fine, unless what the source has not is to be deleted: that would be the source.

    Raises:
        Refused: With both.
    """
    one, other = _spot(origin), _spot(target)
    if other.startswith(f"{one}/"):
        hint = "Name a place beside it"
        raise Refused(f"{target.url} lies inside {origin.url}, which it would be a copy of", hint=hint)
    if delete and one.startswith(f"{other}/"):
        hint = "Name a place beside it, or leave --delete out"
        raise Refused(f"{origin.url} lies inside {target.url}: --delete would delete it", hint=hint)


def _spot(place: Location) -> str:
    return place.url.rstrip("/") if place.path is None else os.path.realpath(place.path)


def refuse_many(extra: Sequence[Item], max_delete: int | None) -> None:
    """Refuse to delete more files than were allowed.

    Raises:
        Refused: Names the first three.
    """
    if len(extra) > (max_delete or 0):
        names = ", ".join(item.name for item in extra[:3])
        raise Refused(
            f"{len(extra)} files would be deleted, more than --max-delete {max_delete} (first: {names})",
            hint="Look at them with --dry-run and a larger --max-delete",
        )


def refuse_unlisted(held: Holding, origin: Location, store: Store, extra: Sequence[Item], *, connections: int) -> None:
    """Refuse to delete what the source has after all: its listing was not whole.

    A gateway may say that a listing goes on and not how; the client library ends there without a word. So each file
    that is to go is asked for by its name at the source; a commit needs no listing, its manifest says what it holds.

    Args:
        held: The source.
        origin: Where it is.
        store: Its store, asked with patience.
        extra: What is to be deleted.
        connections: Requests under way at once.

    Raises:
        IntegrityError: Names the first that is there.
    """
    if held.kind == "commit" or origin.path is not None or not extra:
        return

    def is_there(item: Item) -> bool:
        try:
            return store.head(origin.key(item.name)).bytes > 0 or item.bytes == 0  # an empty one may mark a folder
        except NotFound:
            return False

    with ThreadPoolExecutor(connections) as pool:
        for item, found in zip(extra, pool.map(is_there, extra), strict=True):
            if found:
                raise IntegrityError(
                    f"{origin.url} did not list {item.name}, which is there: its listing is not whole",
                    hint="Nothing was deleted. Run it without --delete, or ask whoever runs the store",
                    subject=item.name,
                )


def refuse_harm(
    held: Holding,
    target: Location,
    store: Store,
    here: Mapping[str, Item],
    moves: Sequence[Item],
    *,
    gone: Iterable[Item],
) -> None:
    """Refuse to move files over or into a commit that stands at the destination, over a folder, or below a file.

    A commit is refused a place of strangers' files too (see `strangers`).

    It asks for the manifests of folders that something moves into, and for those above the destination where something
    is there already that would be overwritten.

    Args:
        held: The files of the source, with the commits among them.
        target: The destination.
        store: Its store, asked with patience.
        here: What lies at the destination.
        moves: What would be moved.
        gone: What is deleted there.

    Raises:
        Refused: Names the commit, or the folder or file in the way, and the file that would come.
        NotAllowed: A folder of the destination may not be entered.
    """
    if target.path is not None:
        above = {folder: item.name for item in moves for folder in PurePosixPath(item.name).parents}
        for folder in sorted(above):
            _refuse_file(target.path / folder, above[folder])
        with disk.at_door(target.path):
            for name in (*(item.name for item in moves), *([MANIFEST_NAME] if held.kind == "commit" else [])):
                refuse_folder(target.path / name)
    names = {item.name for item in gone}
    refuse_strangers(held, target, {name: item for name, item in here.items() if name not in names})
    if held.kind != "files" or not moves:
        return
    standing = _Standing(target, store, here, listed=not held.single)
    for item in moves:
        for folder in PurePosixPath(item.name).parents:
            _check(held, item, _text(folder), standing.at(_text(folder)), target)
        if target.path is None and (item.name in here or held.single):  # a local place inside a commit was refused
            _check_above(target, item, standing, far=item.name in here)


def _refuse_file(path: Path, name: str) -> None:
    with disk.at_door(path):
        if path.exists() and not path.is_dir():
            hint = "Move it away, or choose another destination"
            raise Refused(f"{path} is not a directory, and {name} would lie in it", hint=hint, subject=str(path))


def _check_above(target: Location, item: Item, standing: _Standing, *, far: bool) -> None:
    for folder in list(PurePosixPath(target.prefix).parents)[: None if far else 1] if target.prefix else []:
        manifest = standing.above(_text(folder))
        if manifest is not None:
            raise _inside(f"{target.url}/{item.name}", manifest, f"{target.store.url}/{_text(folder)}".rstrip("/"))


def _text(folder: PurePosixPath) -> str:
    return "" if str(folder) == "." else str(folder)


class _Standing:
    """The commits at, below and above a destination, by their folders; each is asked for once."""

    def __init__(self, target: Location, store: Store, here: Mapping[str, Item], *, listed: bool) -> None:
        self._target = target
        self._store = store
        self._here = here
        self._listed = listed
        self._known: dict[str, Manifest | None] = {}

    def at(self, folder: str) -> Manifest | None:
        """The commit in a folder of the destination."""
        name = f"{folder}/{MANIFEST_NAME}".lstrip("/")
        if name not in self._here and (self._listed or self._target.path is not None):
            return None
        return self._read(self._target.key(name))

    def above(self, prefix: str) -> Manifest | None:
        """The commit at a prefix of the destination's store."""
        return self._read(f"{prefix}/{MANIFEST_NAME}".lstrip("/"))

    def _read(self, key: str) -> Manifest | None:
        if key not in self._known:
            try:
                data = self._store.fetch(key).data
                self._known[key] = parse_manifest(data, where=f"{self._target.store.url}/{key}")
            except (InputError, IntegrityError, NotAllowed, NotFound):
                self._known[key] = None  # none, a torn one, or another program's: no commit
        return self._known[key]


def _check(held: Holding, item: Item, folder: str, old: Manifest | None, target: Location) -> None:
    if old is None:
        return
    where = f"{target.url}/{folder}".rstrip("/")
    new = held.nested.get(folder)
    if new is None:
        raise _inside(f"{target.url}/{item.name}", old, where)
    if (new.kind, new.name) != (old.kind, old.name):
        raise Refused(
            f"{where} holds the {old.kind} {old.name}, and would get the {new.kind} {new.name}",
            hint="Choose another destination, or remove the old commit first",
            subject=where,
        )
    name = item.name.removeprefix(f"{folder}/")
    vouched = next((entry for entry in old.members if entry.name == name), None)
    if vouched is None or name in old.derived & new.derived:
        return
    if item.entry is None or item.entry.sha256 != vouched.sha256:
        raise Refused(
            f"{target.url}/{item.name} is a member of the {old.kind} {old.name}, a commit at {where}, "
            "and would get other bytes under its name",
            hint="Choose another destination, or remove the old commit first",
            subject=item.name,
        )


def _inside(what: str, manifest: Manifest, where: str) -> Refused:
    return Refused(
        f"{what} lies inside the {manifest.kind} {manifest.name}, a commit at {where}, which no file is moved into",
        hint="Choose another destination, or remove the commit first",
        subject=what,
    )
