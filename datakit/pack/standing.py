"""standing: what an earlier run left at a destination, and what of it a new run may keep.

A shard is kept only where its file and its index have the checksums that the old manifest names: a flipped bit would
otherwise live on under a new manifest. What is damaged is told and made again. Datasets of an earlier pack that a new
one would leave standing beside its own are refused, because their samples would be in two splits at once.

What it does not do: remove or mend anything (a commit replaces what it renews).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import FileEntry
from datakit.data.index import Index
from datakit.data.manifest import Manifest
from datakit.data.shard import Row
from datakit.errors import InputError, NotFound, Refused
from datakit.events import Caution, OnEvent
from datakit.pack.planning import PlannedSplit
from datakit.pack.writing import BuiltShard, Totals
from datakit.storage.commit import read_manifest
from datakit.storage.disk import map_file


@dataclass(frozen=True, slots=True)
class Standing:
    """A shard whose index is whole, and the rows of it; whether its own bytes are, `kept` finds out."""

    built: BuiltShard
    rows: Sequence[Row]


def standing_shards(previous: Manifest | None, final: Path, *, on_event: OnEvent) -> dict[str, Standing]:
    """The shards of the dataset at `final` whose indexes are what its manifest says, by name; damage is told."""
    standing: dict[str, Standing] = {}
    if previous is None:
        return standing
    for shard in previous.contents.shards:
        index = previous.member(shard.index_name)
        if _is_whole(final / index.name, index, on_event):
            rows = Index.from_buffer(map_file(final / index.name)).rows()
            standing[shard.name] = Standing(BuiltShard(previous.member(shard.name), index, Totals.of(rows)), rows)
    return standing


def kept(standing: Standing | None, final: Path, *, on_event: OnEvent) -> BuiltShard | None:
    """A shard that may be kept as it is, after a look at every byte; None where there is none, or a damaged one."""
    if standing is None or not _is_whole(final / standing.built.shard.name, standing.built.shard, on_event):
        return None
    return standing.built


def reusable(previous: Manifest | None, split: PlannedSplit, *, on_event: OnEvent) -> dict[int, BuiltShard]:
    """The planned shards, by ordinal, that the dataset at the destination has already, byte for byte."""
    there = {
        _signature((row.key, row.digest) for row in standing.rows): standing
        for standing in standing_shards(previous, split.path, on_event=on_event).values()
    }
    found = {}
    for ordinal, shard in enumerate(split.shards):
        if shard.digests is not None:
            standing = there.get(_signature(zip(shard.keys, shard.digests, strict=True)))
            if (built := kept(standing, split.path, on_event=on_event)) is not None:
                found[ordinal] = built
    return found


def refuse_leftovers(dest: Path, splits: Sequence[PlannedSplit]) -> None:
    """See that no dataset of an earlier pack into `dest` stays beside the planned ones.

    Raises:
        Refused: One would; all are named, with the command that removes them.
    """
    planned = {split.path for split in splits}
    places = {dest: None} | {path: path.name for path in _folders(dest)}
    left = [path for path, split in places.items() if path not in planned and _is_of_pack(path, split)]
    if left:
        raise Refused(
            f"an earlier pack made {', '.join(map(str, left))}, which this one would leave beside "
            f"{', '.join(map(str, sorted(planned)))}: the same samples would be in both",
            hint=f"Name another destination, or remove what is old: rm -r {' '.join(map(str, left))}",
            subject=str(left[0]),
        )


def _folders(dest: Path) -> list[Path]:
    return sorted(path for path in dest.iterdir() if path.is_dir()) if dest.is_dir() else []


def _is_of_pack(path: Path, split: str | None) -> bool:
    """Whether a dataset stands there that a pack made as this split (None: one made without splits)."""
    try:
        manifest = read_manifest(path)
    except (NotFound, InputError):  # nothing, or a manifest.json of others
        return False
    pack = manifest.about.get("pack")
    return manifest.kind == "dataset" and isinstance(pack, dict) and "split" in pack and pack["split"] == split


def _is_whole(path: Path, entry: FileEntry, on_event: OnEvent) -> bool:
    """Whether a file has the size and the checksums of its entry."""
    problem = "is missing"
    if path.is_file():
        if entry.difference(map_file(path)) is None:
            return True
        problem = "is not what the manifest says"
    on_event(Caution(f"{path} {problem}; what it held is made again"))
    return False


def _signature(samples: Iterable[tuple[str, bytes]]) -> bytes:
    """What decides a shard's bytes: its samples' keys and digests, in order."""
    digest = hashlib.sha256()
    for key, sample in samples:
        digest.update(key.encode() + b"\0" + sample)
    return digest.digest()
