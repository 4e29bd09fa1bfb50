"""compare: what two places hold, and what has to move for the second to hold what the first does.

A place with a manifest is a commit, and its manifest alone says what belongs to it. Other places are files, compared by
size and checksum, never by time. Nothing is changed here, and local files are read only where no listing can tell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.data.digest import FileEntry, damaged
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import InputError, IntegrityError, NotFound, Refused
from datakit.storage import absent, disk, etags
from datakit.storage.commit import NEXT_NAME, parse_manifest, read_manifest, verify_file
from datakit.storage.objects import Blob, Store, no_file
from datakit.storage.store import Location

Kind: TypeAlias = Literal["commit", "files"]
Verdict: TypeAlias = Literal["whole", "absent", "damaged"]
Locate: TypeAlias = Callable[[str], Path | None]
Reads: TypeAlias = Callable[["Item", FileEntry], bool]


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a place: its name there, its size, the tag of its version, and its digests if a manifest has them."""

    name: str
    bytes: int
    etag: str | None = None
    entry: FileEntry | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a place holds.

    Attributes:
        kind: A commit, or files.
        items: Name to item; of a commit, its members.
        manifest: The manifest of a commit.
        manifest_etag: Its version in a store.
        single: Whether the place is itself one file or object.
        nested: Manifests of commits that lie among files, by their folders.
    """

    kind: Kind
    items: Mapping[str, Item]
    manifest: Manifest | None = None
    manifest_etag: str | None = None
    single: bool = False
    nested: Mapping[str, Manifest] = field(default_factory=dict)


@dataclass(slots=True)
class Difference:
    """What has to move, what stays, and what the destination holds besides."""

    move: list[Item] = field(default_factory=list)
    keep: list[Item] = field(default_factory=list)
    extra: list[Item] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)


def look_at_source(place: Location, store: Store) -> Holding:
    """What is to be brought to the destination.

    Args:
        place: Where it is.
        store: Its store, asked with patience.

    Raises:
        NotFound: Nothing is there.
    """
    if place.path is not None:
        return _look_at_path(place)
    committed = look_for_manifest(place, store)
    if committed is not None:
        return committed
    everything = listed(place, store)
    items = visible(everything)
    if items:
        return _with_entries(place, store, items, everything)
    if place.prefix:
        try:
            info = store.head(place.prefix)
        except NotFound:
            pass
        else:
            name = place.prefix.rpartition("/")[2]
            return Holding("files", {name: Item(name, info.bytes, info.etag)}, single=True)
    raise NotFound(f"nothing is at {place.url}", hint="Check the spelling, and what was put there", subject=place.url)


def look_for_manifest(place: Location, store: Store) -> Holding | None:
    """The commit at a place in a store, by one request; None when there is none.

    Raises:
        NotFound: The bucket is not there.
    """
    blob = _manifest_at(place, store)
    if blob is None:
        return None
    return _committed(parse_manifest(blob.data, where=f"{place.url}/{MANIFEST_NAME}"), blob.info.etag)


def look_at_destination(place: Location, store: Store, *, repair: bool) -> Holding | None:
    """The commit at a destination; None when there is none.

    Args:
        place: The destination.
        store: Its store, asked with patience.
        repair: Take a torn manifest for one that names nothing, to be replaced; another program's never.

    Raises:
        NotFound: The bucket is not there.
        InputError, IntegrityError: The manifest is torn, or another program's.
    """
    if place.path is not None and not (place.path / MANIFEST_NAME).is_file():
        return None
    blob = _manifest_at(place, store)
    if blob is None:
        return None
    where = f"{place.url}/{MANIFEST_NAME}"
    try:
        return _committed(parse_manifest(blob.data, where=where), blob.info.etag)
    except (InputError, IntegrityError) as error:
        if isinstance(error, InputError) and _is_json(blob.data):
            raise
        if not repair:
            hint = "Replace it by the source's: run the same command with --repair"
            raise type(error)(error.message, hint=hint, subject=where) from error
    return Holding("commit", {}, manifest_etag=blob.info.etag)


def _manifest_at(place: Location, store: Store) -> Blob | None:
    try:
        return store.fetch(place.key(MANIFEST_NAME))
    except NotFound as error:
        if error.subject == place.store.url:
            raise
        return None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def listed(place: Location, store: Store) -> dict[str, Item]:
    """All files below a place, by listing it."""
    top = f"{place.prefix}/" if place.prefix else ""
    return {
        info.key.removeprefix(top): Item(info.key.removeprefix(top), info.bytes, info.etag)
        for info in store.list(place.prefix)
        # keys that end in a slash are the folders of consoles: empty, and no file could have their name
        if info.key.startswith(top) and not info.key.endswith("/")
    }


def visible(items: Mapping[str, Item], *, also: Iterable[str] = ()) -> dict[str, Item]:
    """Items of which no step is hidden by a dot, as at a local place, and those that are named."""
    named = set(also)
    return {
        name: item
        for name, item in items.items()
        if name in named or not any(step.startswith(".") for step in name.split("/"))
    }


def _hidden(place: Location, store: Store, name: str) -> Item | None:
    """A file of a local place that its listing leaves out."""
    if place.path is None or not any(step.startswith(".") for step in name.split("/")):
        return None
    try:
        info = store.head(place.key(name))
    except NotFound:
        return None
    return Item(name, info.bytes, info.etag)


def _look_at_path(place: Location) -> Holding:
    path = place.path
    assert path is not None
    if path.is_file():
        return Holding("files", {path.name: Item(path.name, path.stat().st_size)}, single=True)
    if not path.is_dir():
        raise no_file(path) if path.exists() else absent.not_there(path)
    if (path / MANIFEST_NAME).is_file():
        return _committed(read_manifest(path), None)
    items = listed(place, place.store)
    if not items:
        raise NotFound(f"{path} is empty", hint="Name a directory that holds files", subject=str(path))
    return _with_entries(place, place.store, items, items)


def _committed(manifest: Manifest, etag: str | None) -> Holding:
    if manifest.kind == "dataset" and "layout_digest" in manifest.about:
        _ = manifest.contents  # what contradicts itself is not carried on
    items = {entry.name: Item(entry.name, entry.bytes, entry=entry) for entry in manifest.members}
    return Holding("commit", items, manifest=manifest, manifest_etag=etag)


def _with_entries(place: Location, store: Store, items: dict[str, Item], everything: Mapping[str, Item]) -> Holding:
    """Files below which commits lie (the splits of a dataset): their manifests speak for their members.

    Members that a dot hides (`.gitattributes` of a model) move with their commit; other hidden files stay behind.
    """
    nested: dict[str, Manifest] = {}
    for name in [name for name in items if name.endswith(f"/{MANIFEST_NAME}")]:
        folder = name.removesuffix(MANIFEST_NAME)
        manifest = parse_manifest(store.fetch(place.key(name)).data, where=f"{place.url}/{name}")
        nested[folder.rstrip("/")] = manifest
        for entry in manifest.members:
            item = everything.get(folder + entry.name) or _hidden(place, store, folder + entry.name)
            if item is None or item.bytes != entry.bytes:
                raise damaged(f"{place.url}/{folder}{entry.name} is not what {name} says", entry.name)
            items[item.name] = Item(item.name, item.bytes, item.etag, entry)
    return Holding("files", items, nested=nested)


def compare_commits(
    source: Holding,
    destination: Holding | None,
    here: Mapping[str, Item],
    *,
    original: Locate,
    copy: Locate,
    reads: Reads,
    repair: bool,
) -> Difference:
    """What of a commit has to move.

    Args:
        source: The commit.
        destination: The commit at the destination, or None.
        here: What lies at the destination, by listing or by looking.
        original: Gives the path of a member of the source, or None where that is not local.
        copy: The same for the destination.
        reads: Whether an object at the destination has the bytes of an entry, by reading it.
        repair: Whether members that the manifest there vouches for are read, and moved again when damaged.

    Raises:
        Refused: The destination is another commit, or holds other bytes under a member's name.
        IntegrityError: An object there has not the size that the manifest there says, and nothing is to be repaired.
    """
    assert source.manifest is not None
    old = _renewable(source.manifest, destination)
    derived = source.manifest.derived & (
        destination.manifest.derived if destination and destination.manifest else set()
    )
    begun: dict[str, FileEntry] = {}
    difference = Difference()
    for name, item in source.items.items():
        vouched = old.get(name)
        entry = item.entry
        assert entry is not None
        changed = vouched is not None and vouched.sha256 != entry.sha256
        if vouched is not None and changed and name not in derived:
            raise Refused(
                f"{name} would get other bytes under its name (sha256 {vouched.sha256[:12]} to {entry.sha256[:12]})",
                hint="Choose another destination, or remove the old commit first",
                subject=name,
            )
        there, path = here.get(name), copy(name)
        if there is None or changed:
            verdict: Verdict = "absent"
        elif path is not None:
            begun = begun or begun_at(path.parents[name.count("/")])
            verdict = _file_here(path, there, entry, vouched=vouched is not None, repair=repair, begun=begun.get(name))
        elif vouched is None:
            verdict = _object_here(there, entry, original(name))
        else:
            verdict = _member_there(there, entry, original(name), repair=repair, reads=reads)
        (difference.keep if verdict == "whole" else difference.move).append(item)
        if verdict == "damaged":
            difference.damaged.append(name)
        elif changed:
            difference.derived.append(name)
    difference.extra = [item for name, item in here.items() if name not in source.items and name != MANIFEST_NAME]
    return difference


def _renewable(manifest: Manifest, destination: Holding | None) -> dict[str, FileEntry]:
    if destination is None or destination.manifest is None:
        return {}
    old = destination.manifest
    if (old.kind, old.name) != (manifest.kind, manifest.name):
        raise Refused(
            f"the destination holds the {old.kind} {old.name}, not the {manifest.kind} {manifest.name}",
            hint="Choose another destination, or remove the old commit first",
            subject=old.name,
        )
    return {entry.name: entry for entry in old.members}


def begun_at(top: Path) -> dict[str, FileEntry]:
    """Members of a commit whose arrival at this place was begun and killed."""
    try:
        data = bytes(disk.map_file(top / NEXT_NAME))
    except FileNotFoundError:
        return {}
    return {entry.name: entry for entry in parse_manifest(data, where=str(top / NEXT_NAME)).members}


def _file_here(
    path: Path, item: Item, entry: FileEntry, *, vouched: bool, repair: bool, begun: FileEntry | None
) -> Verdict:
    if vouched and not repair:
        return "whole" if item.bytes == entry.bytes else "damaged"
    try:
        if item.bytes == entry.bytes:
            verify_file(path, entry)
            return "whole"
    except IntegrityError:
        pass
    if vouched:
        return "damaged"
    if begun is not None and item.bytes == begun.bytes and disk.hash_file(path).sha256 == begun.sha256:
        return "absent"  # we have fetched it, for a commit that never came to be
    raise _in_the_way(str(path))


def _member_there(item: Item, entry: FileEntry, original: Path | None, *, repair: bool, reads: Reads) -> Verdict:
    """An object that the manifest there names: believed by its size, or looked at."""
    if item.bytes != entry.bytes and not repair:
        raise IntegrityError(
            f"{item.name} at the destination has {item.bytes} bytes, the manifest there says {entry.bytes}",
            hint="Put it again: run the same command with --repair",
            subject=item.name,
        )
    if not repair or (item.bytes == entry.bytes and etags.prove(item.etag, entry, original)):
        return "whole"
    return "whole" if item.bytes == entry.bytes and reads(item, entry) else "damaged"


def _object_here(item: Item, entry: FileEntry, original: Path | None) -> Verdict:
    if item.bytes == entry.bytes:
        if etags.same(item.etag, etags.single(entry.md5)):
            return "whole"
        # put by a run that was killed before its manifest, or somebody else's: where its tag cannot tell (parts, or an
        # encrypted object), the upload reads it back, and refuses other bytes
        return "whole" if original is not None and etags.matches(original, item.etag) else "absent"
    raise _in_the_way(item.name)


def _in_the_way(where: str) -> Refused:
    return Refused(
        f"{where} is in the way: it has other bytes, and no manifest there names it",
        hint="Choose another destination, or move it away",
        subject=where,
    )


def compare_files(source: Holding, here: Mapping[str, Item], *, original: Locate, copy: Locate) -> Difference:
    """What of a folder of files has to move: what differs in size or checksum, and what no checksum can tell.

    Args:
        source: The files.
        here: What lies at the destination.
        original: Gives the path of a file of the source, or None where that is not local.
        copy: The same for the destination.
    """
    difference = Difference()
    for name, item in source.items.items():
        there = here.get(name)
        same = there is not None and there.bytes == item.bytes and _same_file(item, there, original(name), copy(name))
        (difference.keep if same else difference.move).append(item)
    difference.extra = [item for name, item in here.items() if name not in source.items]
    return difference


def _same_file(item: Item, there: Item, original: Path | None, copy: Path | None) -> bool:
    if copy is None and original is None:
        return etags.same(item.etag, there.etag)
    if copy is not None and original is not None:
        return disk.hash_file(copy).sha256 == disk.hash_file(original).sha256
    if copy is not None:
        if item.entry is not None:
            return disk.hash_file(copy).sha256 == item.entry.sha256
        return etags.matches(copy, item.etag) is True
    assert original is not None
    if item.entry is not None and etags.same(there.etag, etags.single(item.entry.md5)):
        return True
    return etags.matches(original, there.etag) is True


def total_bytes(items: Iterable[Item]) -> int:
    """Bytes of these items together."""
    return sum(item.bytes for item in items)
