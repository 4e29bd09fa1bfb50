"""records: raw items, each with a key and the places of its bytes; nothing is copied until a shard is built.

Two kinds of input: JSON lines (plain or .gz), where a record is a line whose bytes pass through untouched as the part
`json`, and a folder of files, where a record is the files that share a stem (cut at the first dot, as webdataset
does). Every record is checked while it is listed, so that a bad line stops a pack before anything is written; a file
that changes between listing and reading is refused.

What it does not do: object storage and decompression (`scan` lays such sources down as plain local files first).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import orjson

from datakit.data.keys import check_key, check_part, split_name
from datakit.data.shard import Sample, member_bytes, sample_digest
from datakit.errors import InputError
from datakit.storage.disk import at_door

JSON_PART = "json"
BOM = b"\xef\xbb\xbf"
_LISTED = 10
"""Offenders that a message lists; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a part's bytes are: in a file at `path`, from `offset` on, or the whole file where `offset` is None."""

    path: str
    offset: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """One raw item.

    Attributes:
        key: Its unique name.
        parts: Name and place of each part.
        source: Where it came from, as a person would look it up: `chat.jsonl:12`, or a path.
        digest: `sample_digest` of its parts where listing it meant reading it anyway, else None.
    """

    key: str
    parts: tuple[tuple[str, Extent], ...]
    source: str
    digest: bytes | None = None

    @property
    def shard_bytes(self) -> int:
        """Bytes that it takes in a shard."""
        return sum(member_bytes(extent.size) for _part, extent in self.parts)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A source that lies on a local disk: the name that messages use, its path and size in bytes."""

    name: str
    path: str
    bytes: int


def jsonl_records(files: Iterable[LocalFile], *, key_field: str) -> Iterator[Record]:
    """The records of JSON lines, in order; blank lines are none.

    Args:
        files: Plain JSON lines files.
        key_field: The field that names a record.

    Raises:
        InputError: A line is not a JSON object, or its key cannot name a sample; the message names file and line.
    """
    for source in files:
        with at_door(source.path), open(source.path, "rb") as file:
            offset = 0
            for number, line in enumerate(file, start=1):
                data = line.removesuffix(b"\n")
                if data.strip():
                    key = _key_of(data, key_field, f"{source.name}:{number}")
                    extent = Extent(source.path, offset, len(data))
                    where = f"{source.name}:{number}"
                    yield Record(key, ((JSON_PART, extent),), where, sample_digest({JSON_PART: data}))
                offset += len(line)


def file_records(files: Iterable[LocalFile]) -> Iterator[Record]:
    """The records of a folder: files that share a stem, in the order of their keys.

    Args:
        files: The files, with names below the folder.

    Raises:
        InputError: A file has no part name, or a name that a sample cannot have; offenders are listed.
    """
    samples: dict[str, dict[str, Extent]] = {}
    troubles = []
    for file in files:
        key, part = split_name(file.name)
        part = part.lower()  # as every reader of such tars will
        parts = samples.setdefault(key, {})
        try:
            check_part(part)
            if not parts:
                check_key(key)
            if part in parts:
                raise InputError(f"{file.name} and another file are both part {part} of sample {key}")
        except InputError as error:
            troubles.append(f"{file.name}: {error.message}")
            continue
        parts[part] = Extent(file.path, None, file.bytes)
    if troubles:
        raise InputError(f"{_listing(troubles, 'file')} cannot be packed", hint="Rename or move them", subject=troubles)
    for key in sorted(samples):
        parts = samples[key]
        yield Record(key, tuple(sorted(parts.items())), next(iter(parts.values())).path)


def check_unique(records: Sequence[Record]) -> None:
    """See that no two records have one key.

    Raises:
        InputError: Some do; the first ten keys are listed with their places.
    """
    first: dict[str, int] = {}
    twins = []
    for position, record in enumerate(records):
        earlier = first.setdefault(record.key, position)
        if earlier != position:
            twins.append(f"{record.key} ({records[earlier].source} and {record.source})")
    if twins:
        raise InputError(
            f"{_listing(twins, 'duplicate key')}",
            hint="Give each record a key of its own, or set pack.key_field to the field that does",
            subject=twins[:_LISTED],
        )


class Reader:
    """Read records' bytes; keeps the last sliced file open."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def sample(self, record: Record) -> Sample:
        """The record with its bytes.

        Raises:
            InputError: A file has another size than when it was listed.
        """
        parts = {}
        for part, extent in record.parts:
            data = (
                self._whole(extent) if extent.offset is None else self._slice(extent.path, extent.offset, extent.size)
            )
            if len(data) != extent.size:
                raise InputError(
                    f"{extent.path} changed while it was packed: {extent.size} bytes were listed, {len(data)} read",
                    hint="Pack again when nothing writes there",
                    subject=extent.path,
                )
            parts[part] = data
        if record.digest is not None and sample_digest(parts) != record.digest:
            raise InputError(
                f"{record.source} changed while it was packed",
                hint="Pack again when nothing writes there",
                subject=record.source,
            )
        return Sample(record.key, parts)

    def _whole(self, extent: Extent) -> bytes:
        descriptor = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # one byte more than listed shows a file that has grown
            data = os.read(descriptor, extent.size + 1)
            while len(data) < extent.size and (more := os.read(descriptor, extent.size + 1 - len(data))):
                data += more
            return data
        finally:
            os.close(descriptor)

    def _slice(self, path: str, offset: int, size: int) -> bytes:
        if path != self._path:
            self._close()
            self._descriptor, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path
        return os.pread(self._descriptor, size, offset)

    def _close(self) -> None:
        if self._path is not None:
            os.close(self._descriptor)
            self._path = None


def _key_of(data: bytes, key_field: str, where: str) -> str:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        said = "it starts with a byte-order mark" if data.startswith(BOM) else str(error).split(":")[0]
        raise InputError(
            f"{where} is not JSON: {said}", hint="Mend that line, or take it out, and pack again", subject=where
        ) from None
    if not isinstance(value, dict):
        kinds = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
        raise InputError(
            f"{where} is {kinds.get(type(value), 'null')}, not a JSON object",
            hint="Write one object a line",
            subject=where,
        )
    name = value.get(key_field)
    if name is None:
        return blake2b(data, digest_size=8).hexdigest()
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise InputError(f"{where}: field {key_field} is {name!r:.80}, not a name", subject=where)
    try:
        check_key(str(name))
    except InputError as error:
        hint = "Set pack.key_field to another field; one that no record has names records by a hash of their bytes"
        raise InputError(f"{where}: {error.message}", hint=hint, subject=where) from None
    return str(name)


def _listing(items: Sequence[str], noun: str) -> str:
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''} ({', '.join(items[:_LISTED])}{more})"
