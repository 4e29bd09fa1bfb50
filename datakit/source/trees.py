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
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Tree:
    """What lies below a folder."""

    files: list[SourceFile] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def walk(root: Path, *, fingerprints: bool) -> Tree:
    """List a folder, or a file by itself.

    Args:
        root: The folder.
        fingerprints: Whether files are read for their md5.

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
            tree.files.append(_file(root.name, str(root), status, fingerprints=fingerprints))
            return tree
        if not root.is_dir():
            raise no_file(root)
        try:
            _walk(root, tree, fingerprints=fingerprints)
        except FileNotFoundError as error:
            raise changed(str(error.filename or root)) from error
    tree.troubles.sort(key=lambda trouble: trouble.where)
    return tree


def _walk(root: Path, tree: Tree, *, fingerprints: bool) -> None:
    real, prefix, pending = os.path.realpath(root), len(str(root).rstrip("/")) + 1, [str(root)]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except PermissionError:
            tree.troubles.append(Trouble(printable(folder[prefix:] or str(root)), "may not be listed", hint=_MODE))
            continue
        for entry in entries:
            if entry.name.startswith("."):
                tree.hidden.append(entry.path[prefix:])
                continue
            if not fingerprints and entry.is_file(follow_symlinks=False) and _is_open(entry.stat()):
                # what most entries are: a listing of 100,000 files is half as long for it
                status = entry.stat()
                tree.files.append(SourceFile(entry.path[prefix:], status.st_size, None, changed_ns(status)))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif (trouble := _trouble(entry, entry.path[prefix:], real)) is not None:
                tree.troubles.append(trouble)
            else:
                name = entry.path[prefix:]
                tree.files.append(_file(name, entry.path, entry.stat(), fingerprints=fingerprints))


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
    if not _is_open(entry.stat()) and not os.access(entry.path, os.R_OK):
        return Trouble(printable(name), "may not be read", hint=_MODE, file=name)
    return None


def _is_open(status: os.stat_result) -> bool:
    """Whether everybody may read it, which the status that is needed anyway says without asking the system again."""
    return status.st_mode & _ANYBODY == _ANYBODY


def _file(name: str, path: str, status: os.stat_result, *, fingerprints: bool) -> SourceFile:
    return SourceFile(name, status.st_size, _md5(path) if fingerprints else None, changed_ns(status))


def _md5(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with reading(path) as file:
        while data := file.read(disk.READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
