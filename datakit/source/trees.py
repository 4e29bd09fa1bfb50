"""trees: the files below a local folder, and what in it cannot be read as one.

Hidden names (a leading dot) are left out, and told. A link to a file inside the folder is followed, and so is one into
a DVC cache, because DVC lays data down as such links and what they lead to never changes. Any other link is an
offender: it may lead out of what was meant to be packed, in a circle, or to nothing. So are sockets, pipes and devices,
and what this user may not read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from datakit.data.keys import key_hash
from datakit.errors import printable
from datakit.source.originals import Version, changed, changed_ns, reading
from datakit.source.troubles import Trouble
from datakit.storage import disk
from datakit.storage.absent import not_there
from datakit.storage.objects import no_file

_DVC_CACHE = re.compile(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}(?:\.dir)?$")
"""Where DVC keeps a file by the md5 of its bytes (dvc 3: `files/md5` below the cache's directory)."""

_ANYBODY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_PLAIN = stat.S_IFREG | _ANYBODY
_KIND_AND_ANYBODY = 0o170000 | _ANYBODY
"""What tells a plain file that everybody may read, in the status that is needed anyway; S_IFMT is that of inode(7)."""

_MODE = "Let this user read it: chmod u+rX"

_SPECIAL = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


class SourceFile(NamedTuple):
    """A file of a source: its name below it, bytes, md5 or ETag where known, and a local one's time of change in ns."""

    name: str
    bytes: int
    fingerprint: str | None
    changed_ns: int | None = None

    @property
    def stamp(self) -> int:
        """A number that tells its version: the time of its change, or a hash of its tag."""
        return key_hash(str(self.fingerprint)) if self.changed_ns is None else self.changed_ns

    @property
    def version(self) -> Version | None:
        """What a local file must be when it is read; None of one in a store, whose copies are ours."""
        return None if self.changed_ns is None else Version(self.bytes, self.changed_ns)


class Folder(NamedTuple):
    """Plain files of a folder, of which no more than their names is known yet.

    Attributes:
        path: The folder below the source, with a slash at its end; empty for the source itself.
        names: What they are called in it.
    """

    path: str
    names: list[str]


@dataclass(slots=True)
class Tree:
    """What lies below a folder; plain files that nobody has looked at are in `folders`."""

    files: list[SourceFile] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)


def walk(root: Path) -> Tree:
    """List a folder, or a file by itself.

    Args:
        root: The folder.

    Raises:
        NotFound, NotAllowed, InputError: As `sketch` and `look`.
    """
    return looked_at(root, sketch(root))


def sketch(root: Path) -> Tree:
    """List a folder, or a file by itself, and leave plain files to `look`: that is most of the work.

    Args:
        root: The folder.

    Raises:
        NotFound: Nothing is there.
        NotAllowed: The way to it is closed.
        InputError: It is a pipe, a device or a socket, or something in it vanished while it was listed.
    """
    tree = Tree()
    with disk.at_door(root):
        try:
            status = root.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise not_there(root) from None
        if root.is_file():
            tree.files.append(_file(root.name, status))
            return tree
        if not root.is_dir():
            raise no_file(root)
        try:
            _sketch(root, tree)
        except FileNotFoundError as error:
            raise changed(str(error.filename or root)) from error
    tree.troubles.sort(key=lambda trouble: trouble.where)
    return tree


def looked_at(root: Path, tree: Tree) -> Tree:
    """A tree with all its files looked at; errors as of `look`.

    Args:
        root: The folder.
        tree: From `sketch`.
    """
    seen = [look(str(root), folder) for folder in tree.folders]
    troubles = [*tree.troubles, *(trouble for one in seen for trouble in one.troubles)]
    return Tree(
        files=[*tree.files, *(file for one in seen for file in one.files)],
        troubles=sorted(troubles, key=lambda trouble: trouble.where),
        hidden=tree.hidden,
    )


def with_fingerprints(root: Path, tree: Tree) -> Tree:
    """A tree with the md5 of each of its files, which are read for it.

    Args:
        root: The folder.
        tree: From `walk`.

    Raises:
        InputError: A file is not there any more.
        NotAllowed: One may not be read.
    """
    below = root.parent if root.is_file() else root
    return replace(tree, files=[file._replace(fingerprint=_md5(f"{below}/{file.name}")) for file in tree.files])


def look(root: str, folder: Folder) -> Tree:
    """Look at the plain files of a folder; a pure task for any process.

    Args:
        root: The source.
        folder: From `sketch`.

    Raises:
        NotAllowed: The way to one is closed.
        InputError: One is not there any more, or something else than a file is.
    """
    tree, path = Tree(), os.path.join(root, folder.path)
    files = tree.files
    with disk.at_door(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise changed(path) from error
        try:
            for name in folder.names:
                # by its name alone, which is found faster than a path is
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if status.st_mode & _KIND_AND_ANYBODY != _PLAIN:
                    if not stat.S_ISREG(status.st_mode):
                        raise changed(os.path.join(path, name))
                    if not os.access(os.path.join(path, name), os.R_OK):
                        tree.troubles.append(_closed(folder.path + name))
                        continue
                files.append(SourceFile(folder.path + name, status.st_size, None, changed_ns(status)))
        except FileNotFoundError as error:
            raise changed(os.path.join(path, name)) from error
        finally:
            os.close(descriptor)
    return tree


def _sketch(root: Path, tree: Tree) -> None:
    real, prefix, pending = os.path.realpath(root), len(str(root).rstrip("/")) + 1, [str(root)]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except PermissionError:
            tree.troubles.append(Trouble(printable(folder[prefix:] or str(root)), "may not be listed", hint=_MODE))
            continue
        plain = []
        for entry in entries:
            if entry.name.startswith("."):
                tree.hidden.append(entry.path[prefix:])
            elif entry.is_file(follow_symlinks=False):
                plain.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif (trouble := _trouble(entry, entry.path[prefix:], real)) is not None:
                tree.troubles.append(trouble)
            else:
                tree.files.append(_file(entry.path[prefix:], entry.stat()))
        if plain:
            tree.folders.append(Folder(f"{folder[prefix:]}/" if folder[prefix:] else "", plain))


def _trouble(entry: os.DirEntry[str], name: str, root: str) -> Trouble | None:
    """Why an entry that is no folder cannot be read as a file, or None."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        inside = target.startswith(f"{root}{os.sep}") or _DVC_CACHE.search(target) is not None
        if os.path.isdir(target):
            return Trouble(printable(name), "a link to a folder", hint="Pack its target as a source of its own")
        if not os.path.exists(target):
            return Trouble(printable(name), "a link to nothing", hint="Remove it", file=name)
        if not inside:
            said = f"a link out of the source, to {printable(target)}"
            return Trouble(printable(name), said, hint="Put a copy, or a hard link, in its place", file=name)
    if not entry.is_file():
        what = _SPECIAL.get(stat.S_IFMT(entry.stat().st_mode), "no file")
        return Trouble(printable(name), f"{what}, not a file", hint="Remove it", file=name)
    is_open = entry.stat().st_mode & _ANYBODY == _ANYBODY
    return None if is_open or os.access(entry.path, os.R_OK) else _closed(name)


def _closed(name: str) -> Trouble:
    return Trouble(printable(name), "may not be read", hint=_MODE, file=name)


def _file(name: str, status: os.stat_result) -> SourceFile:
    return SourceFile(name, status.st_size, None, changed_ns(status))


def _md5(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with reading(path) as file:
        while data := file.read(disk.READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
