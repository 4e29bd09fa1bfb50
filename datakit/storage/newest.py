"""newest: of the commits below a local directory, the newest that is whole."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datakit.data.manifest import Kind, Manifest
from datakit.errors import DatakitError
from datakit.storage import disk
from datakit.storage.commit import verify_commit


@dataclass(frozen=True, slots=True)
class Newest:
    """What `newest` found.

    Attributes:
        path: The newest valid commit, or None.
        manifest: Its manifest, or None.
        skipped: Newer ones that are not valid, newest first, each with the reason.
    """

    path: Path | None
    manifest: Manifest | None
    skipped: tuple[tuple[Path, str], ...]


def newest(parent: Path, *, pattern: str = "step-*", kind: Kind | Literal["any"] = "checkpoint") -> Newest:
    """The newest commit below a directory that verifies, by reading manifests; a listing alone proves nothing.

    Args:
        parent: Directory of commits; one that is not there holds none.
        pattern: Their names; later in the alphabet is newer.
        kind: Their kind.

    Raises:
        NotAllowed: The directory may not be read: what it holds is not known.
    """
    skipped = []
    for path in reversed(named(parent, pattern)):
        try:
            (manifest := verify_commit(path)).check_name(path.name)
        except DatakitError as error:
            skipped.append((path, error.message))
            continue
        if kind in ("any", manifest.kind):
            return Newest(path, manifest, tuple(skipped))
        skipped.append((path, f"{path} is a {manifest.kind}, not a {kind}"))
    return Newest(None, None, tuple(skipped))


def named(parent: Path, pattern: str) -> list[Path]:
    """What lies directly below a directory under names of a pattern, sorted; nothing where there is no directory.

    Raises:
        NotAllowed: The directory may not be read; a glob would call it empty.
    """
    with disk.at_door(parent):
        try:
            names = os.listdir(parent)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [Path(parent) / name for name in sorted(fnmatch.filter(names, pattern))]
