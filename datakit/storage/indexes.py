"""indexes: opens the index of a shard, and only one whose bytes are what the dataset's manifest says.

An index says where each sample lies and what it is called, and is small, so it is compared whole (size, and the crc32c
of each part) each time that it is opened: what is read by a damaged one would be believed, and written on. Whether a
shard is whole is not looked at here; its parts are compared with the index when they are read.
"""

from __future__ import annotations

from pathlib import Path

from datakit.data.digest import Buffer, damaged
from datakit.data.index import Index
from datakit.data.manifest import Manifest, ShardEntry
from datakit.errors import DatakitError, IntegrityError
from datakit.storage.disk import map_file


def open_index(root: Path, manifest: Manifest, shard: ShardEntry) -> Index:
    """Open the index of one shard; it is mapped and stays valid as long as it is held.

    Args:
        root: The dataset's directory.
        manifest: Its manifest.
        shard: The shard, as the manifest lists it.

    Raises:
        NotFound: The index is not there.
        IntegrityError: Its bytes are not what the manifest says; the hint is the command that mends it.
        UsageError: It has a format that this version does not read.
    """
    return parse_index(map_file(root / shard.index_name), manifest, shard, where=str(root))


def parse_index(data: Buffer, manifest: Manifest, shard: ShardEntry, *, where: str) -> Index:
    """The index of a shard from its file's bytes, which are not copied and must outlive it.

    Args:
        data: The bytes.
        manifest: The dataset's manifest.
        shard: The shard, as the manifest lists it.
        where: The dataset's directory or URL, to be named in a sentence.

    Raises:
        IntegrityError, UsageError: As `open_index`.
    """
    path = f"{where}/{shard.index_name}"
    problem = manifest.member(shard.index_name).difference(data)
    if problem is not None:
        raise damaged(f"{path} {problem}", path, at=where)
    try:
        index = Index.from_buffer(data)
        index.check_texts()  # as quick as the checksums above
    except IntegrityError as error:
        raise damaged(f"{path}: {error.message}", path, at=where) from None
    except DatakitError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint, subject=path) from None
    if len(index) != shard.samples:
        raise damaged(f"{path} lists {len(index)} samples, the manifest says {shard.samples}", path, at=where)
    return index
