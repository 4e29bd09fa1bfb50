"""commit: a directory that is there whole or not at all, made valid by its manifest.

Members are written into a temporary sibling, fsynced and digested; the manifest is written last; the sibling is renamed
onto its final name and the parent is fsynced. Killed at any moment it leaves either nothing under the final name or a
valid commit, and a temporary that the next commit of that name removes.

Where a commit of the same kind and name already stands, it is renewed in place, in this order: the new manifest as
`.manifest.json.next` and the old one as `.manifest.json.last`, the new members beside the old ones, the rename of the
manifest, the removal of members that only the old manifest named. By these two files the next commit recognises a
killed renewal and removes what no valid manifest names. A member never changes its bytes under its name, and who asks
for that is refused, unless both manifests call it derived: it is replaced before the manifest, and again after a kill.

What this room does not do: object storage (there, `sync` puts the members first and the manifest last).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.data.digest import PART_BYTES, Buffer, Digester, FileEntry, crc32c, damaged, mend_hint
from datakit.data.manifest import MANIFEST_NAME, Kind, Manifest
from datakit.errors import DatakitError, InputError, IntegrityError, NotFound, Refused
from datakit.machine import cores
from datakit.storage import disk
from datakit.storage.absent import no_commit
from datakit.storage.regular import open_regular, read_regular, refuse_folder

NEXT_NAME = f".{MANIFEST_NAME}.next"
"""Where the coming manifest stands while its members move in."""

LAST_NAME = f".{MANIFEST_NAME}.last"
"""Where the old manifest stands until the members that only it named are gone."""

_MAX_VERIFIERS = 16
"""Files verified at once, one a core, since sha256 leaves the GIL; 16 buffers of 16 MiB are a sync's window too."""


def lock_path(final: Path) -> Path:
    """The lock of whoever writes at `final`: commits and downloads of one place exclude each other."""
    return disk.lock_beside(Path(final).absolute())


@dataclass(slots=True)
class Staging:
    """A commit in the making.

    Attributes:
        path: Directory to put members into; becomes the commit.
        final: Where the commit will stand.
        about: What the manifest says besides its members; set it before the block ends.
        previous: The manifest of the commit that is being renewed, or None.
        manifest: The manifest, once the block has ended.
    """

    path: Path
    final: Path
    about: dict[str, Any] = field(default_factory=dict)
    previous: Manifest | None = None
    manifest: Manifest | None = None
    members: dict[str, FileEntry] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def write(self, name: str, data: Buffer) -> FileEntry:
        """Add a member whose bytes are at hand."""
        with self.open(name) as write:
            write(data)
        return self.members[name]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Callable[[Buffer], object]]:
        """Add a member that is written piece by piece; several may be open at once, in several threads."""
        path = self._place(name)
        digester = Digester()
        with disk.at_door(path):
            file = path.open("xb", buffering=0)
        with file:
            offset = 0

            def write(data: Buffer) -> None:
                nonlocal offset
                digester.update(data)
                with disk.at_door(path):
                    disk.write_all(file.fileno(), data, offset)
                offset += memoryview(data).nbytes

            yield write
            with disk.at_door(path):
                os.fsync(file.fileno())
        self.members[name] = digester.finish(name)

    def adopt(self, entry: FileEntry) -> None:
        """Add a member that lies in `path` already, fsynced, with digests that its writer vouches for.

        Raises:
            IntegrityError: The file is not there, or has another size than its entry.
        """
        path = self._place(entry.name)
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise damaged(f"{entry.name} was said to hold {entry.bytes} bytes and does not", entry.name)
        self.members[entry.name] = entry

    def keep(self, name: str) -> FileEntry:
        """Take a member over from the commit that is being renewed, without touching its bytes.

        Raises:
            NotFound: Nothing is being renewed, or it has no whole member of that name.
        """
        old = {entry.name: entry for entry in self.previous.members} if self.previous else {}
        path = self.final / name
        if name not in old or not path.is_file() or path.stat().st_size != old[name].bytes:
            raise NotFound(f"there is no {name} to keep in {self.final}", hint=mend_hint(self.final), subject=name)
        self._place(name)
        self.members[name] = old[name]
        self.kept.add(name)
        return old[name]

    def _place(self, name: str) -> Path:
        check_member(name)
        if name in self.members:
            raise InputError(f"{name} is added twice to one commit", hint="Give each a name of its own", subject=name)
        path = self.path / name
        if path.parent != self.path:
            disk.make_dirs(path.parent)
        return path


def check_member(name: str) -> None:
    """Refuse a member name that points outside the commit or at our own files.

    Raises:
        IntegrityError: With the rule.
    """
    steps = name.split("/")
    if any(step in ("", ".", "..") for step in steps) or "\0" in name or "\\" in name:
        raise damaged(f"{name!r} does not stay inside its commit", name)
    if name in (MANIFEST_NAME, NEXT_NAME, LAST_NAME) or disk.TEMPORARY.fullmatch(steps[-1]):
        raise damaged(f"{name!r} is a name that a commit needs for itself", name)


@contextlib.contextmanager
def commit(final: Path, *, kind: Kind, name: str) -> Iterator[Staging]:
    """Make `final` a commit of the members added in the block, or leave it as it was.

    Args:
        final: Directory that becomes the commit, or a commit of the same kind and name that is renewed.
        kind: What it is.
        name: Its name, as it stands in the manifest.

    Raises:
        Refused: Another process writes there, something else stands there, or it lies inside another commit.
        NoSpace: The disk is full; nothing is left behind.

    Example:
        >>> with commit(Path("runs/a/adapter"), kind="adapter", name="a") as staging:  # doctest: +SKIP
        ...     staging.write("adapter_config.json", b"{}")
        ...     staging.about["steps"] = 30
    """
    final = Path(final).absolute()
    refuse_inside(final)
    with disk.exclusive(lock_path(final), purpose=f"writing {final}"):
        disk.sweep(final.parent, name=final.name)
        previous = check_place(final, kind=kind, name=name)
        if previous is not None:
            disk.sweep(final)
            _remove_unnamed(final, previous)
        staging = Staging(path=disk.temporary(final), final=final, previous=previous)
        try:
            with disk.at_door(final):
                staging.path.mkdir()
            yield staging  # an OSError of the block is none of this place: it leaves as it is
            members = tuple(staging.members.values())
            staging.manifest = Manifest(kind=kind, name=name, members=members, about=staging.about)
            with disk.at_door(final):
                if previous is None:
                    _settle(staging, final)
                else:
                    _renew(staging, final, previous)
        finally:
            # also of a kill by signal that Python sees; after a good end the name is gone and nothing happens
            with disk.at_door(final):
                disk.remove(staging.path)


def check_place(final: Path, *, kind: Kind, name: str) -> Manifest | None:
    """The commit at `final` that one of this kind and name would renew, or None; refuses what else is there."""
    refuse_inside(final)
    with disk.at_door(final):
        if final.is_symlink() or (final.exists() and not final.is_dir()):
            what = "a link" if final.is_symlink() else "not a directory"
            raise Refused(f"{final} is {what}", hint="Name another place", subject=str(final))
        if not final.exists() or not any(final.iterdir()):
            return None
    previous = manifest_at(final)
    if previous is None:
        message = f"{final} holds files that no manifest names"
        raise Refused(message, hint="Name an empty or a new directory", subject=str(final))
    if (previous.kind, previous.name) != (kind, name):
        message = f"{final} holds the {previous.kind} {previous.name}, not the {kind} {name}"
        raise Refused(message, hint="Name another directory, or remove this one", subject=str(final))
    return previous


def refuse_inside(final: Path) -> None:
    """Refuse a place inside a commit, which holds what its manifest names and nothing else.

    Raises:
        Refused: Names the commit.
    """
    for folder in Path(os.path.realpath(final)).parents:
        try:
            manifest = manifest_at(folder)
        except (DatakitError, OSError):
            continue  # another program's, or not ours to read
        if manifest is None:
            continue
        inside = f"inside the {manifest.kind} {manifest.name}, a commit at {folder}"
        raise Refused(f"{final} lies {inside}", hint="Name a place beside it", subject=str(final))


def _settle(staging: Staging, final: Path) -> None:
    """The first commit of a name: one rename makes it visible."""
    assert staging.manifest is not None
    disk.write_atomic(staging.path / MANIFEST_NAME, staging.manifest.to_bytes())
    _fsync_tree(staging.path)
    os.rename(staging.path, final)
    disk.fsync_dir(final.parent)


def _renew(staging: Staging, final: Path, previous: Manifest) -> None:
    """A further commit of a name: members beside the old ones, then the manifest, then the orphans go."""
    assert staging.manifest is not None
    old = {entry.name: entry for entry in previous.members}
    for name in sorted({*old, *staging.members}):
        refuse_folder(final / name)
    for entry in staging.manifest.members:
        if entry.name not in staging.manifest.derived & previous.derived:
            _check_clash(final / entry.name, entry, old.get(entry.name))
    disk.write_atomic(final / LAST_NAME, previous.to_bytes())
    disk.write_atomic(final / NEXT_NAME, staging.manifest.to_bytes())
    for name in sorted(set(staging.members) - staging.kept):
        target = final / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging.path / name, target)
    _fsync_tree(final)
    os.replace(final / NEXT_NAME, final / MANIFEST_NAME)
    disk.fsync_dir(final)
    _remove_unnamed(final, staging.manifest)


def _remove_unnamed(final: Path, manifest: Manifest) -> None:
    """Remove the members that only the manifests of a renewal name, which has ended well or was killed."""
    traces = [final / NEXT_NAME, final / LAST_NAME]
    ours = {entry.name for path in traces for entry in _members_at(path)}
    orphans = sorted(ours - {entry.name for entry in manifest.members})
    for path in (*(final / name for name in orphans), *traces):
        unlink_below(final, path)


def unlink_below(top: Path, path: Path) -> None:
    """Remove a file, and the folders below `top` that this leaves empty."""
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == top or not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()


def _members_at(path: Path) -> tuple[FileEntry, ...]:
    try:
        return Manifest.from_bytes(read_regular(path)).members
    except FileNotFoundError:
        return ()


def _check_clash(target: Path, entry: FileEntry, old: FileEntry | None) -> None:
    if old is not None and old.sha256 != entry.sha256:
        message = f"{target} would change its bytes under its name (sha256 {old.sha256[:12]} to {entry.sha256[:12]})"
        raise Refused(message, hint="Commit to another directory, or remove this one first", subject=str(target))
    if old is None and target.exists():
        raise Refused(f"{target} is in the way and no manifest names it", hint="Move it away", subject=str(target))


def _fsync_tree(path: Path) -> None:
    for folder, _folders, _files in os.walk(path):
        disk.fsync_dir(Path(folder))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a commit.

    Raises:
        NotFound: The directory is not there, or holds no manifest, so that nothing is committed there.
        InputError: It is a file, or what stands there is another program's.
        IntegrityError, UsageError, NotAllowed: As `manifest_at`.
    """
    manifest = manifest_at(directory)
    if manifest is None:
        with disk.at_door(directory):
            raise no_commit(Path(directory))
    return manifest


def manifest_at(directory: Path) -> Manifest | None:
    """The same, or None where there is none; who only wants to know does not pay for a look at what lies there instead.

    Raises:
        InputError: What stands there is another program's.
        IntegrityError: The manifest is torn, or contradicts itself.
        UsageError: It is of a newer format.
        NotAllowed: It may not be read, or what it lies in not be entered.
    """
    path = Path(directory) / MANIFEST_NAME
    with disk.at_door(path):
        if not path.is_file():
            return None
        data = read_regular(path)
    return parse_manifest(data, where=str(path))


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """A manifest from bytes that came from `where`, with names that stay inside the commit.

    Raises:
        InputError, IntegrityError, UsageError: As `Manifest.from_bytes`, naming the place.
    """
    try:
        manifest = Manifest.from_bytes(data)
        for entry in manifest.members:
            check_member(entry.name)
    except DatakitError as error:
        hint = mend_hint(where.rpartition("/")[0] or ".") if isinstance(error, IntegrityError) else error.hint
        raise type(error)(f"{where}: {error.message}", hint=hint, subject=where) from error
    return manifest


def verify_commit(directory: Path, *, quick: bool = False) -> Manifest:
    """Check that every member is there with the bytes that the manifest names.

    Args:
        directory: The commit.
        quick: Only that each member is there with its size, without reading it.

    Raises:
        NotFound: Nothing is committed there.
        IntegrityError: Names the first member, and the part of it, that differs.
    """
    manifest = read_manifest(directory)
    for entry in manifest.members:
        path = directory / entry.name
        with disk.at_door(path):
            if not path.is_file():
                raise damaged(f"{path} is missing, the manifest names it", entry.name, at=directory)
            if (size := path.stat().st_size) != entry.bytes:
                raise damaged(f"{path} has {size} bytes, the manifest says {entry.bytes}", entry.name, at=directory)
    if not quick:
        with ThreadPoolExecutor(max_workers=min(_MAX_VERIFIERS, cores())) as pool:
            list(pool.map(lambda entry: verify_file(directory / entry.name, entry), manifest.members))
    return manifest


def verify_file(path: Path, entry: FileEntry) -> None:
    """Check one file against its entry: every crc32c, then the sha256.

    Raises:
        IntegrityError: Names the part by its number and bytes, and both checksums.
    """
    whole, directory = hashlib.sha256(), path.parents[entry.name.count("/")]
    with disk.at_door(path), open_regular(path) as file:
        view = memoryview(bytearray(min(PART_BYTES, max(entry.bytes, 1))))
        for part, expected in enumerate(entry.crc32c):
            piece = view[: min(PART_BYTES, entry.bytes - part * PART_BYTES)]
            count = 0
            while count < len(piece) and (got := file.readinto(piece[count:])):
                count += got
            found = f"{crc32c(piece[:count]):08x}"
            if found != expected:
                raise damaged(part_message(path, part, entry, found), entry.name, at=directory)
            whole.update(piece)
        if file.read(1) or whole.hexdigest() != entry.sha256:
            raise damaged(f"{path} has another sha256 than the manifest says", entry.name, at=directory)


def part_message(where: Path | str, part: int, entry: FileEntry, found: str) -> str:
    """The sentence about a part whose bytes are wrong."""
    start, stop = part * PART_BYTES, min((part + 1) * PART_BYTES, entry.bytes)
    return f"{where}: bytes {start} to {stop} have crc32c {found}, the manifest says {entry.crc32c[part]}"
