"""tiers: small datasets in a place, pools to hold them, and what must be true of a pool whatever happens to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.manifest import Manifest
from datakit.storage.objects import LocalStore
from datakit.tier.fill import Source
from datakit.tier.pool import Pool
from support.commits import make_commit, noise


@dataclass(frozen=True)
class Cold:
    """A commit in a directory that stands for the cold tier."""

    path: Path
    manifest: Manifest

    @property
    def source(self) -> Source:
        """It as a source."""
        return Source(LocalStore(self.path), {entry.sha256: entry.name for entry in self.manifest.members})

    @property
    def digests(self) -> list[str]:
        """Of its objects, in the order of their names."""
        return [entry.sha256 for entry in self.manifest.members]


def cold(path: Path, sizes: Sequence[int], *, seed: int = 0) -> Cold:
    """A commit of files of these sizes, in bytes; the n-th has the bytes of `noise(size, 100 * seed + n)`."""
    members = {f"{path.name}-{n}.tar": noise(size, 100 * seed + n) for n, size in enumerate(sizes)}
    return Cold(path, make_commit(path, members))


def pool_at(root: Path, budget_bytes: int) -> Pool:
    """An opened pool that does not wait."""
    return Pool(root, budget_bytes=budget_bytes, fraction=lambda: 0.0).open()


def know(pool: Pool, *datasets: Cold) -> None:
    """Have a pool know datasets and where they are."""
    for each in datasets:
        pool.roster.add(each.manifest, place=str(each.path))


def disk_bytes(root: Path) -> int:
    """Bytes on disk by file sizes: objects, arriving files and what lies aside, without journals."""
    folders = ("objects", "arriving", "aside")
    # os.walk passes over directories that go meanwhile
    paths = [Path(top) / name for folder in folders for top, _, names in os.walk(root / folder) for name in names]
    return sum(_size(path) for path in paths if path.suffix != ".journal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wrong_objects(root: Path) -> Mapping[str, str]:
    """Files under the name of an object that have other bytes: path to the sha256 that they have."""
    found = {}
    for path in (root / "objects").rglob("*"):
        if path.is_file() and (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != path.name:
            found[str(path)] = digest
    return found
