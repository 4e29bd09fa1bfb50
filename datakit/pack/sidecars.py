"""sidecars: the side files by which Megatron Energon and NVIDIA DALI open our shards without preparing them.

All of them follow from the indexes, so no shard is read, and from the dataset alone, so the same dataset has the same
side files on any machine. Energon's are `<shard>.tar.idx` (where each sample begins, and the end) and, in `.nv-meta/`,
what shards there are, which of its split parts they are (each of our splits is a dataset of its own, whose only part is
called after it; `train` without splits), an SQLite database for access by key, and a `dataset.yaml` that reads samples
as they are, until a user names a sample type. DALI's is `<shard>.idx`, for `fn.readers.webdataset(index_paths=...)`. In
a bundled shard both see the members, so K lines are one sample to them.

Formats: Energon 7.4.1 (`itar.py`, `prepare.py`, `indexing.py`), DALI's `tools/wds2idx.py` and `webdataset_loader.cc`
(v1.2; v1.1, which leaves the names out, where a name has white space, which v1.2 cannot say).
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from datakit.data.digest import Buffer
from datakit.data.index import Index
from datakit.data.manifest import Contents, ShardEntry
from datakit.data.shard import BLOCK_BYTES, BUNDLE_PART
from datakit.errors import DatakitError, InputError, NoSpace, UsageError
from datakit.storage.disk import READ_BYTES, at_door, temporary

Reader: TypeAlias = Literal["energon", "dali"]
"""Readers that side files are made for."""

Opener: TypeAlias = Callable[[str], AbstractContextManager[Callable[[Buffer], object]]]
"""Opens a new file of the dataset and gives what writes to it, as `Staging.open` does."""

ENERGON_DIR = ".nv-meta"
DERIVED = tuple(f"{ENERGON_DIR}/{name}" for name in (".info.json", "split.yaml", "dataset.yaml", "index.uuid"))
DATABASE = f"{ENERGON_DIR}/index.sqlite"
"""Side files whose names do not follow from their bytes: another version of the dataset changes them."""

_TABLES = (
    """CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)""",
    """CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER)""",
)
_LOOKUPS = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    """CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name,
    content_byte_offset, content_byte_size)""",
)
_VERSION_AT = 96
_VERSION = (3_040_000).to_bytes(4, "big")
"""Which library wrote a database stands in its header, and would differ between machines (sqlite.org/fileformat2)."""

_PLAIN = ("train", "val", "test")
"""The parts that Energon itself knows, written as it writes them; any other name is quoted."""

_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Stored:
    """A sample as readers of plain tars see it.

    Attributes:
        key: What stands before the first dot of its members' names.
        start: Byte of the shard where its first header, or anything before it that is nobody's, begins.
        stop: Byte after its last member.
        parts: Name, byte offset and size of each part, in the order of the shard.
    """

    key: str
    start: int
    stop: int
    parts: tuple[tuple[str, int, int], ...]


def stored_samples(index: Index, shard: ShardEntry, *, bundle: int | None) -> Iterator[Stored]:
    """The samples of a shard as its members spell them: one a row, or one for each bundle of rows.

    Raises:
        InputError: The parts of a sample do not stand together, as in tars that others wrote.
    """
    places = [(part, index.has(part), index.offsets(part), index.sizes(part)) for part in index.parts]
    end = 0
    for first in range(0, len(index), bundle or 1):
        if bundle is None:
            parts = [(part, int(at[first]), int(size[first])) for part, has, at, size in places if has[first]]
            parts.sort(key=lambda place: place[1])
        else:
            (_, _, at, size) = places[0]
            last = min(first + bundle, len(index)) - 1
            parts = [(BUNDLE_PART, int(at[first]), int(at[last] + size[last]) + 1 - int(at[first]))]
        if parts[0][1] < end:
            message = f"{shard.name}: the parts of sample {index.key(first)} do not stand together"
            hint = "Repack it: datakit pack SRC DEST --input tar"
            raise InputError(message, hint=hint, subject=index.key(first))
        start, end = end, parts[-1][1] + parts[-1][2] + -parts[-1][2] % BLOCK_BYTES
        yield Stored(index.key(first), start, end, tuple(parts))


def energon_index(samples: Iterable[Stored]) -> bytes:
    """Energon's `<shard>.tar.idx`: for each sample where it begins, then where the last ends, as uint64."""
    starts, end = [], 0
    for sample in samples:
        starts.append(sample.start)
        end = sample.stop
    return np.array([*starts, end], "<u8").tobytes()


def dali_index(samples: Iterable[Stored], *, shard: str) -> bytes:
    """DALI's `<shard>.idx`: a line a sample, with extension, offset, size and name of each member.

    Raises:
        InputError: A part's name has white space, which no version of the format can say.
    """
    listed = list(samples)
    spaced = any(_SPACE.search(sample.key) for sample in listed)
    lines = [f"{'v1.1' if spaced else 'v1.2'} {len(listed)}"]
    for sample in listed:
        words: list[object] = []
        for part, offset, size in sample.parts:
            if _SPACE.search(part):
                hint = "Rename that part, or leave out --index dali"
                raise InputError(
                    f"{shard}: DALI cannot name the part {part!r}: it has white space", hint=hint, subject=part
                )
            words += [part, offset, size] if spaced else [part, offset, size, f"{sample.key}.{part}"]
        lines.append(" ".join(map(str, words)))
    return "".join(f"{line}\n" for line in lines).encode()


def write_side_files(
    contents: Contents,
    index_of: Callable[[ShardEntry], Index],
    readers: Iterable[Reader],
    *,
    write: Opener,
    scratch: Path,
) -> tuple[str, ...]:
    """Write the side files of a dataset; one shard's index is held at a time.

    Args:
        contents: The dataset.
        index_of: Gives the index of a shard.
        readers: For whom.
        write: Opens a new file of the dataset, such as `Staging.open`.
        scratch: A directory for a temporary file of this function's own.

    Returns:
        Names whose bytes another version of the dataset changes: they belong under `derived` in the manifest's about.

    Raises:
        UsageError: A reader that nobody knows.
        InputError: The dataset has what that reader cannot read.
    """
    wanted = set(readers)
    if unknown := wanted - set(get_args(Reader)):
        raise UsageError(f"there are no side files for {min(unknown)}", hint="Name energon or dali", subject="index")
    bundle = contents.pack.get("bundle")
    counts: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(_Database.building(scratch)) if "energon" in wanted else None
        for number, shard in enumerate(contents.shards if wanted else ()):
            samples = list(stored_samples(index_of(shard), shard, bundle=bundle))
            counts[shard.name] = len(samples)
            if "dali" in wanted:
                with write(f"{shard.name.removesuffix('.tar')}.idx") as put:
                    put(dali_index(samples, shard=shard.name))
            if database is not None:
                _check_energon_name(shard.name)
                with write(f"{shard.name}.idx") as put:
                    put(energon_index(samples))
                database.add(number, samples)
        if database is None:
            return ()
        for name, data in _energon_files(contents, counts).items():
            with write(name) as put:
                put(data)
        with write(DATABASE) as put:
            for piece in database.finish():
                put(piece)
    return (*DERIVED, DATABASE)


def _check_energon_name(shard: str) -> None:
    if set(shard) & set("{}") or not shard.endswith(".tar"):
        rule = "it expands braces in the names of shards, which end with .tar"
        hint = "Rename it, or leave out --index energon"
        raise InputError(f"Energon cannot name the shard {shard}: {rule}", hint=hint, subject=shard)


def _energon_files(contents: Contents, counts: dict[str, int]) -> dict[str, bytes]:
    names = "".join(f"  - {_quoted(name)}\n" for name in counts) if counts else "  []\n"
    part = str(contents.pack.get("split") or "train")
    files = {
        ".info.json": json.dumps({"shard_counts": counts}, indent=2) + "\n",
        "split.yaml": f"split_parts:\n  {part if part in _PLAIN else _quoted(part)}:\n{names}exclude: []\n",
        "dataset.yaml": "__module__: megatron.energon\n__class__: CrudeWebdataset\n",
        "index.uuid": str(uuid.UUID(hex=contents.layout_digest[:32])),
    }
    return {f"{ENERGON_DIR}/{name}": text.encode() for name, text in files.items()}


def _quoted(name: str) -> str:
    """A name in YAML: as JSON has it, but a letter beyond 16 bits, which is two escapes there, stands as it is."""
    letters = (letter if ord(letter) > 0xFFFF else json.dumps(letter)[1:-1] for letter in name)
    return f'"{"".join(letters)}"'


class _Database:
    """Energon's `index.sqlite` in the making, in a file of its own because it may be larger than memory."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    @contextlib.contextmanager
    def building(cls, scratch: Path) -> Iterator[_Database]:
        path = temporary(scratch / "index.sqlite")  # recognised, and removed, by the next start if we are killed
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            # nobody reads it before it is whole: no journal; one transaction, so that its counters do not differ
            for setting in ("page_size = 4096", "journal_mode = OFF", "synchronous = OFF"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN")
            for table in _TABLES:
                connection.execute(table)
            yield cls(path, connection)
        except sqlite3.OperationalError as error:
            kind = NoSpace if "full" in str(error) else DatakitError
            raise kind(f"{path} cannot be written: {error}", subject=str(path)) from None
        finally:
            connection.close()
            path.unlink(missing_ok=True)

    def add(self, shard: int, samples: Iterable[Stored]) -> None:
        """The samples of a shard, by its number."""
        held = list(enumerate(samples))
        self._connection.executemany(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
            ((shard, sample.key, i, sample.start, sample.stop - sample.start) for i, sample in held),
        )
        self._connection.executemany(
            "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
            ((shard, i, *place) for i, sample in held for place in sample.parts),
        )

    def finish(self) -> Iterator[bytes]:
        """Its bytes, in pieces."""
        for lookup in _LOOKUPS:
            self._connection.execute(lookup)
        self._connection.execute("COMMIT")
        self._connection.close()
        with at_door(self._path), open(self._path, "rb") as file:
            head = file.read(_VERSION_AT + len(_VERSION))
            yield head[:_VERSION_AT] + _VERSION
            while piece := file.read(READ_BYTES):
                yield piece
