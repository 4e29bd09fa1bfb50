"""cache: files of a workspace as objects of DVC's local cache, by hard links: no byte is copied.

A cached object shares its inode with the file in the workspace, as with DVC's own `cache.type hardlink`, and like there
both become read-only, for whoever wrote into one would change the other. datakit replaces files and never writes into
one that stands. Nothing is linked whose bytes do not have the md5 that it is called by.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from datakit.storage.commit import verify_file
from datakit.storage.disk import at_door, make_dirs, write_atomic
from datakit.storage.links import link
from datakit.storage.regular import open_regular
from datakit.storage.upload import other_md5
from datakit.version.dvc import DIR_SUFFIX, Tree, object_key
from datakit.version.local import Found, find, md5_of

READ_ONLY = 0o444
"""The mode of DVC's cached objects; one of another mode it hashes again each time (dvc-objects 5.2, `db.py`)."""


@dataclass(frozen=True)
class Snapshot:
    """A file or directory of the workspace, as it was looked at once.

    Attributes:
        path: Where it is.
        found: Its files.
        md5s: Of each, by name.
        tree: Its list, or None for a file.
    """

    path: Path
    found: tuple[Found, ...]
    md5s: dict[str, str]
    tree: Tree | None

    @classmethod
    def of(cls, path: Path) -> Snapshot:
        """Look at it.

        Raises:
            NotFound: Nothing is there.
        """
        found = tuple(find(path))
        md5s = {each.name: md5_of(each) for each in found}
        return cls(path, found, md5s, Tree(md5s) if path.is_dir() else None)

    @property
    def md5(self) -> str:
        """Its address."""
        return self.tree.md5 if self.tree is not None else self.md5s[self.found[0].name]

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(each.bytes for each in self.found)


def listed(cache: Path, md5: str) -> Tree | None:
    """The list of a recorded directory, or None where the cache has none that is whole."""
    path = cache / object_key(md5)
    if not path.is_file():
        return None
    with at_door(path):
        data = path.read_bytes()
    if hashlib.md5(data, usedforsecurity=False).hexdigest() + DIR_SUFFIX != md5:
        return None
    return Tree.from_bytes(data, where=str(path))


def link_into_cache(snapshot: Snapshot, cache: Path, *, verified: Iterable[str] = ()) -> int | None:
    """Give the cache what it has not yet of a snapshot; the number of files that were linked.

    Args:
        snapshot: What to link.
        cache: DVC's cache, which need not be there.
        verified: Names whose bytes have been compared with their checksums just now.

    Returns:
        None where the cache cannot have links: on another disk nothing was done; where a file has as many links as it
        may have, those before it are linked.

    Raises:
        IntegrityError: A file is not what it was looked at for.
    """
    known, count = set(verified), 0
    for each in snapshot.found:
        target = cache / object_key(snapshot.md5s[each.name])
        if target.is_file() and target.stat().st_size == each.bytes:
            continue
        if each.name not in known:
            _verify(each, snapshot.md5s[each.name])
        if not _link(each.path, target):
            return None
        count += 1
    if snapshot.tree is not None:
        target = cache / object_key(snapshot.md5)
        if not target.is_file():
            make_dirs(target.parent)
            write_atomic(target, snapshot.tree.to_bytes())
            target.chmod(READ_ONLY)
    return count


def _verify(found: Found, md5: str) -> None:
    with at_door(found.path), open_regular(found.path) as file:
        now = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if now != md5:
        if found.entry is not None:
            verify_file(found.path, found.entry)  # which part it is, where a member is not what it should be
        raise other_md5(found.path, now, md5, is_member=found.entry is not None)


def _link(path: Path, target: Path) -> bool:
    with at_door(target):
        make_dirs(target.parent)
        target.unlink(missing_ok=True)  # one of another size, cut short by whoever made it
        try:
            # whole from the first moment; two processes that link the same file do the same
            linked = link(os.path.realpath(path), target)
        except FileExistsError:
            return True
        if linked:
            target.chmod(READ_ONLY)
    return linked
