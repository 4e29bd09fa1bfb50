"""local: what lies on this disk, in DVC's words: the md5 of a file, the list of a directory, the values of settings.

A commit is not hashed: its manifest says the md5 of each member, and is believed where the size fits (`verify` and the
loader look at the bytes). Other files are hashed. Changes nothing.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.digest import FileEntry
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import InputError, UsageError
from datakit.storage.absent import not_there
from datakit.storage.commit import parse_manifest
from datakit.storage.disk import at_door, hash_file
from datakit.version.document import read_yaml
from datakit.version.dvc import Out, Tree

IGNORED = (".dvc", ".git", ".hg")
"""Folders that DVC leaves out whatever `.dvcignore` says (dvc 3.67.1, `dvc/ignore.py`)."""

IGNORE_NAME = ".dvcignore"

READ_BYTES = 16 * 2**20
"""Bytes of one dependency that are hashed in passing: 20 ms at 0.85 GB/s, what md5 does on one core."""

LISTED_FILES = 20_000
"""Files of one dependency that are looked at in passing: 0.1 s at 5 us a file."""

MISSING = object()
"""The value of a setting that a file does not have."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file below a directory.

    Attributes:
        name: Its path below the directory, with `/`.
        path: The file.
        bytes: Its size.
        entry: What a manifest says of it, or None where none does.
    """

    name: str
    path: Path
    bytes: int
    entry: FileEntry | None


def find(path: Path) -> list[Found]:
    """The files of a directory, by name; of a file, that file. A `.dvcignore` is not read: what it names is in here.

    Raises:
        NotFound: Nothing is there, or a link in it leads nowhere.
        NotAllowed: It, or a folder below it, may not be read.
        IntegrityError: A manifest below it is torn.
    """
    with at_door(path):
        if path.is_file():
            return [Found(path.name, path, path.stat().st_size, None)]
        if not path.is_dir():
            raise not_there(path)
        return _find_below(path)


def _find_below(path: Path) -> list[Found]:
    names = []
    for folder, folders, files in os.walk(path, onerror=_stop):
        folders[:] = [name for name in folders if name not in IGNORED]
        names += [os.path.relpath(os.path.join(folder, name), path).replace(os.sep, "/") for name in files]
    entries: dict[str, FileEntry] = {}
    for name in names:
        if name.rpartition("/")[2] == MANIFEST_NAME:
            top = name.removesuffix(MANIFEST_NAME)
            entries.update((top + entry.name, entry) for entry in _members(path / name))
    found = []
    for name in sorted(names):
        size = (path / name).stat().st_size
        entry = entries.get(name)
        found.append(Found(name, path / name, size, entry if entry and entry.bytes == size else None))
    return found


def linked_folders(path: Path) -> list[str]:
    """Links to folders below a directory, by name: DVC and `find` follow none, so what is behind them is left out.

    Raises:
        NotAllowed: A folder below it may not be read.
    """
    found = []
    with at_door(path):
        for folder, folders, _ in os.walk(path, onerror=_stop):
            folders[:] = [name for name in folders if name not in IGNORED]
            paths = [os.path.join(folder, name) for name in folders]
            found += [os.path.relpath(each, path) for each in paths if os.path.islink(each)]
    return sorted(found)


def _stop(error: OSError) -> None:
    raise error


def _members(path: Path) -> Iterable[FileEntry]:
    with at_door(path):
        data = path.read_bytes()
    try:
        return parse_manifest(data, where=str(path)).members
    except (InputError, UsageError):
        return ()  # another program's


def md5_of(found: Found) -> str:
    """The file's md5: the manifest's, or by reading it."""
    return found.entry.md5 if found.entry is not None else hash_file(found.path).md5


def record_of(path: Path, *, written: str) -> Out:
    """What DVC would record of a file or directory now.

    Args:
        path: Where it is.
        written: Its path as the record names it.
    """
    found = find(path)
    total = sum(each.bytes for each in found)
    if not path.is_dir():
        return Out(written, md5_of(found[0]), total)
    return Out(written, Tree({each.name: md5_of(each) for each in found}).md5, total, len(found))


def glance(path: Path, recorded: Out, *, most_files: int | None = LISTED_FILES) -> str | None:
    """What a recorded path is now, as far as that costs little: its md5, else its size where that differs, else None.

    Args:
        path: Where it is.
        recorded: What is recorded of it.
        most_files: A directory of more is not looked at; None looks at any.

    Raises:
        NotAllowed: It may not be read, or lies where nobody may look.
    """
    with at_door(path):
        if not path.exists() or path.is_dir() != recorded.is_dir:
            return None
    if most_files is not None and (recorded.nfiles or 0) > most_files:
        return None
    found = find(path)
    if _is_read_in_passing(found):
        md5s = {each.name: md5_of(each) for each in found}
        return Tree(md5s).md5 if recorded.is_dir else md5s[path.name]
    total = sum(each.bytes for each in found)
    if recorded.size is not None and total != recorded.size:
        return f"another ({total} bytes, not {recorded.size})"
    return None


def glance_tree(path: Path) -> Tree | None:
    """A directory as DVC sees it now, or None where it is not there or that costs much."""
    if not path.is_dir():
        return None
    found = find(path)
    return Tree({each.name: md5_of(each) for each in found}) if _is_read_in_passing(found) else None


def committed_tree(path: Path) -> Tree:
    """What of a directory is committed: members of manifests, and the manifests; nothing is hashed but these."""
    told = [each for each in find(path) if each.entry is not None or each.path.name == MANIFEST_NAME]
    return Tree({each.name: md5_of(each) for each in told})


def is_damaged(recorded: Tree, committed: Tree) -> bool:
    """Whether a record has the manifests that are here and other bytes of what they name: one of the two is damaged.

    Args:
        recorded: What DVC recorded of a directory.
        committed: Its `committed_tree` now. What was packed anew has another manifest.
    """
    differing = [name for name, md5 in committed.members.items() if recorded.members.get(name, md5) != md5]
    return bool(differing) and all(name.rpartition("/")[2] != MANIFEST_NAME for name in differing)


def ignores(root: Path, path: Path) -> bool:
    """Whether a `.dvcignore` leaves out anything of a path: one in the directory, or above it in the project."""
    files = [folder / IGNORE_NAME for folder in (path, *path.parents) if folder == root or root in folder.parents]
    for file in files:
        if file.is_file():
            with at_door(file):
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(line.strip() and not line.startswith("#") for line in lines):
                return True
    return False


def _is_read_in_passing(found: Iterable[Found]) -> bool:
    return sum(each.bytes for each in found if each.entry is None) <= READ_BYTES


def settings_now(path: Path, names: Iterable[str]) -> dict[str, Any] | None:
    """The values that a params file has under these names now; `MISSING` where it has none.

    Args:
        path: YAML, JSON or TOML.
        names: Such as `train` or `train.rank`.

    Returns:
        None where the file is of another kind (a Python file), or is not there.

    Raises:
        InputError: It cannot be read as what its name says.
        NotAllowed: It may not be read.
    """
    with at_door(path):
        if not path.is_file() or path.suffix not in (".yaml", ".yml", ".json", ".toml"):
            return None
        data = path.read_bytes()
    try:
        if path.suffix == ".json":
            value = json.loads(data)
        elif path.suffix == ".toml":
            value = tomllib.loads(data.decode())
        else:
            value = read_yaml(data, where=str(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}", hint="Mend that file", subject=str(path)) from None
    return {name: _at(value, name) for name in names}


def _at(value: Any, name: str) -> Any:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return MISSING
        value = value[step]
    return value
