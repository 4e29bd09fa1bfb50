"""records: raw items as tables of keys and places; no byte is copied until a shard is built.

Two kinds of input, two tables. `Lines`: JSON lines, where a record is a line whose bytes pass through untouched as the
part `json`. `Files`: a folder, where a record is the files that share a stem (cut at the first dot, as webdataset
does). Tables are columns, because a dataset may have millions of records; a batch of a table is what travels to a
worker. Every record is checked while it is listed, so that a bad line or name stops a pack before anything is written,
and again when it is read: a line whose bytes have changed in between is refused, and a file whose size has. What a file
of the same size holds is taken as it is then; digests are of those bytes.

What it does not do: object storage and decompression (`scan` lays such sources down as plain local files first).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from datakit.data.keys import NAME_BYTES, check_key, check_part, split_name
from datakit.data.shard import BLOCK_BYTES, MAX_PART_BYTES, Sample, header, member_bytes, sample_digest
from datakit.errors import InputError
from datakit.storage.disk import at_door

JSON_PART = "json"
BOM = b"\xef\xbb\xbf"
DIGEST_BYTES = 16
_LISTED = 10
"""Offenders that a message lists; it says how many more there are."""


class LineFile(NamedTuple):
    """A plain JSON lines file on a local disk: the name that messages use, and its path."""

    name: str
    path: str


class Batch(Protocol):
    """Some records of a table, in order, as a value that travels to a worker."""

    def __len__(self) -> int: ...

    def samples(self) -> Iterator[Sample]:
        """The records with their bytes.

        Raises:
            InputError: A source is not what it was when it was listed.
        """
        ...


class Records(Protocol):
    """A table of raw records; their order is the source's."""

    @property
    def keys(self) -> Sequence[str]:
        """The unique name of each."""
        ...

    @property
    def part_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each."""
        ...

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard."""
        ...

    def digests(self, positions: npt.NDArray[np.int64]) -> list[bytes] | None:
        """`sample_digest` of some, where listing them meant reading them anyway, else None."""
        ...

    def take(self, positions: npt.NDArray[np.int64]) -> Batch:
        """Some of them, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class Lines:
    """Records of JSON lines: for each its key, file, line, place in the file, and sample digest (16 bytes each)."""

    files: tuple[LineFile, ...]
    keys: list[str]
    file_of: npt.NDArray[np.int32]
    line_of: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    part_bytes: npt.NDArray[np.int64]
    all_digests: bytes

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard."""
        return self.part_bytes + BLOCK_BYTES + -self.part_bytes % BLOCK_BYTES

    def where(self, position: int) -> str:
        """Where a record came from, as a person would look it up: `chat.jsonl:12`."""
        return f"{self.files[self.file_of[position]].name}:{self.line_of[position]}"

    def digests(self, positions: npt.NDArray[np.int64]) -> list[bytes]:
        """`sample_digest` of some."""
        starts = (positions * DIGEST_BYTES).tolist()
        return [self.all_digests[start : start + DIGEST_BYTES] for start in starts]

    def take(self, positions: npt.NDArray[np.int64]) -> LineBatch:
        """Some of them, in this order."""
        return LineBatch(
            files=self.files,
            keys=[self.keys[position] for position in positions.tolist()],
            file_of=self.file_of[positions],
            line_of=self.line_of[positions],
            offsets=self.offsets[positions],
            sizes=self.part_bytes[positions],
            digests=self.digests(positions),
        )


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Some lines."""

    files: tuple[LineFile, ...]
    keys: list[str]
    file_of: npt.NDArray[np.int32]
    line_of: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    digests: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def samples(self) -> Iterator[Sample]:
        """The lines' bytes, each compared with the digest that it was listed with."""
        rows = zip(
            self.keys, self.file_of.tolist(), self.offsets.tolist(), self.sizes.tolist(), self.digests, strict=True
        )
        opened, descriptor = -1, -1
        try:
            for position, (key, number, offset, size, digest) in enumerate(rows):
                if number != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                        descriptor = -1  # if the next file is gone, none is open
                    descriptor, opened = os.open(self.files[number].path, os.O_RDONLY | os.O_CLOEXEC), number
                parts = {JSON_PART: os.pread(descriptor, size, offset)}
                if sample_digest(parts) != digest:
                    raise _changed(f"{self.files[number].name}:{self.line_of[position]}")
                yield Sample(key, parts)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


class Kind(NamedTuple):
    """The parts that a sample of a folder has, sorted, and how each file's name goes on after the key and a dot."""

    parts: tuple[str, ...]
    suffixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """Records of a folder: for each its key, which parts it has (most have the same), and their sizes in bytes."""

    root: str
    keys: list[str]
    kinds: tuple[Kind, ...]
    kind_of: list[int]
    sizes: list[tuple[int, ...]]

    @property
    def part_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of all parts of each."""
        return np.array([sum(sizes) for sizes in self.sizes], np.int64)

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each takes in a shard."""
        return np.array([sum(map(member_bytes, sizes)) for sizes in self.sizes], np.int64)

    def digests(self, positions: npt.NDArray[np.int64]) -> None:  # noqa: ARG002 -- of the protocol
        """Not known: files are not read while they are listed."""
        return

    def take(self, positions: npt.NDArray[np.int64]) -> FileBatch:
        """Some of them, in this order."""
        chosen = positions.tolist()
        return FileBatch(
            root=self.root,
            kinds=self.kinds,
            keys=[self.keys[position] for position in chosen],
            kind_of=[self.kind_of[position] for position in chosen],
            sizes=[self.sizes[position] for position in chosen],
        )


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Some records of a folder."""

    root: str
    kinds: tuple[Kind, ...]
    keys: list[str]
    kind_of: list[int]
    sizes: list[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.keys)

    def samples(self) -> Iterator[Sample]:
        """The files' bytes, each of the size that it was listed with."""
        for key, kind, sizes in zip(self.keys, self.kind_of, self.sizes, strict=True):
            names, suffixes = self.kinds[kind]
            stem = f"{self.root}/{key}."
            yield Sample(
                key,
                {name: _read(stem + suffix, size) for name, suffix, size in zip(names, suffixes, sizes, strict=True)},
            )


def list_lines(files: Sequence[LineFile], *, key_field: str) -> Lines:
    """The records of JSON lines, in order; blank lines are none.

    Args:
        files: Plain JSON lines files.
        key_field: The field that names a record; one without it is named by a hash of its bytes.

    Raises:
        InputError: A line is not a JSON object, or its key cannot name a sample (the message names file and line); or
            keys are duplicate (the first ten are listed with their places).
    """
    keys: list[str] = []
    file_of, line_of, offsets, sizes, digests = array("i"), array("q"), array("q"), array("q"), bytearray()
    for number, source in enumerate(files):
        with at_door(source.path), open(source.path, "rb") as file:
            offset = 0
            for line, data in enumerate(file, start=1):
                record = data.removesuffix(b"\n")
                if record.strip():
                    keys.append(_key_of(record, key_field, source.name, line))
                    file_of.append(number)
                    line_of.append(line)
                    offsets.append(offset)
                    sizes.append(len(record))
                    digests += sample_digest({JSON_PART: record})
                offset += len(data)
    lines = Lines(
        files=tuple(files),
        keys=keys,
        file_of=np.array(file_of, np.int32),
        line_of=np.array(line_of, np.int64),
        offsets=np.array(offsets, np.int64),
        part_bytes=np.array(sizes, np.int64),
        all_digests=bytes(digests),
    )
    _check_unique(lines)
    return lines


def list_files(root: str, *, files: Iterable[tuple[str, int]]) -> Files:
    """The records of a folder: files that share a stem, in the order of their keys.

    Args:
        root: The folder.
        files: Name below the folder and size in bytes of each.

    Raises:
        InputError: A file has no part name, or a name that a sample cannot have; offenders are listed.
    """
    samples: dict[str, list[tuple[str, str, int]]] = {}
    troubles: list[str] = []
    lower: dict[str, str] = {}
    for name, size in files:
        key, suffix = split_name(name)
        part = lower.get(suffix)
        if part is None:
            part = lower[suffix] = suffix.lower()  # as every reader of such tars will
            troubles += _broken_rules(check_part, part, name)
        samples.setdefault(key, []).append((part, suffix, size))
    keys = sorted(samples)
    kinds: dict[Kind, int] = {}
    kind_of, all_sizes = [], []
    for key in keys:
        names, suffixes, sizes = zip(*sorted(samples[key]), strict=True)
        if len(set(names)) < len(names):
            troubles.append(f"{key}.{suffixes[-1]}: another file is the same part of sample {key}")
        troubles += _broken_rules(check_key, key, f"{key}.{suffixes[0]}") or _beyond_ustar(key, names, sizes)
        kind_of.append(kinds.setdefault(Kind(names, suffixes), len(kinds)))
        all_sizes.append(sizes)
    if troubles:
        raise InputError(
            f"{_listing(troubles, 'file')} cannot be packed", hint="Rename or move them", subject=troubles[:_LISTED]
        )
    return Files(root, keys, tuple(kinds), kind_of, all_sizes)


def _read(path: str, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # one byte more than listed shows a file that has grown
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if len(data) != size:
        raise _changed(path)
    return data


def _changed(where: str) -> InputError:
    return InputError(
        f"{where} changed while it was packed", hint="Pack again when nothing writes there", subject=where
    )


def _key_of(data: bytes, key_field: str, name: str, line: int) -> str:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        said = "it starts with a byte-order mark" if data.startswith(BOM) else str(error).split(":")[0]
        where = f"{name}:{line}"
        hint = "Mend that line, or take it out, and pack again"
        raise InputError(f"{where} is not JSON: {said}", hint=hint, subject=where) from None
    if not isinstance(value, dict):
        where = f"{name}:{line}"
        found = _JSON_KINDS.get(type(value), "null")
        raise InputError(f"{where} is {found}, not a JSON object", hint="Write one object a line", subject=where)
    key = value.get(key_field)
    if key is None:
        return blake2b(data, digest_size=8).hexdigest()
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        where = f"{name}:{line}"
        raise InputError(f"{where}: field {key_field} is {key!r:.80}, not a name", subject=where)
    try:
        check_key(str(key))
        header(str(key), JSON_PART, len(data))
    except InputError as error:
        where = f"{name}:{line}"
        hint = "Set pack.key_field to another field; one that no record has names records by a hash of their bytes"
        raise InputError(f"{where}: {error.message}", hint=hint, subject=where) from None
    return str(key)


_JSON_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}


def _check_unique(lines: Lines) -> None:
    if len(set(lines.keys)) == len(lines.keys):
        return
    first: dict[str, int] = {}
    twins = []
    for position, key in enumerate(lines.keys):
        earlier = first.setdefault(key, position)
        if earlier != position:
            twins.append(f"{key} ({lines.where(earlier)} and {lines.where(position)})")
    raise InputError(
        _listing(twins, "duplicate key"),
        hint="Give each record a key of its own, or set pack.key_field to the field that does",
        subject=twins[:_LISTED],
    )


def _beyond_ustar(key: str, parts: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """What a tar cannot hold of a sample: names too long, parts too large. Told before anything is written."""
    # bytes of UTF-8 are at most four a letter: most names are told by that alone
    if max(sizes) <= MAX_PART_BYTES and 4 * (len(key) + 1 + max(map(len, parts))) <= NAME_BYTES:
        return []
    troubles = []
    for part, size in zip(parts, sizes, strict=True):
        try:
            header(key, part, size)
        except InputError as error:
            troubles.append(f"{error.message}")
    return troubles


def _broken_rules(check: Callable[[str], None], value: str, where: str) -> list[str]:
    try:
        check(value)
    except InputError as error:
        return [f"{where}: {error.message}"]
    return []


def _listing(items: Sequence[str], noun: str) -> str:
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''} ({', '.join(items[:_LISTED])}{more})"
