"""spans: stretches of JSON lines files, each listed by a pure task.

A span is the lines that begin between two bytes of a file, so any cut of a file into spans gives the same lines. A task
reads its lines once: it sees that each is a JSON object with a usable key, and notes place, size, key hash and digest.

A byte-order mark at a file's start is passed over and said. Line numbers are not kept: spans count their lines, and
offenders theirs within a span.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from datakit.data.keys import key_hash
from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import SampleDigest
from datakit.errors import InputError
from datakit.events import Caution
from datakit.source.kinds import lines_name
from datakit.source.naming import JSON_PART, Naming
from datakit.source.originals import Version, reading, version_of
from datakit.source.troubles import Raw, Trouble
from datakit.storage.disk import READ_BYTES, at_door

TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},"]', re.DOTALL)
"""A string of JSON, or what opens, closes or parts; a lone quote begins a string that has no end."""

BOM = b"\xef\xbb\xbf"

_JSON_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}

MAX_LINE_BYTES = 2**32 - 1
"""A size takes four bytes of the table."""

SPAN_BYTES = 16 * 2**20
"""Bytes of a file that one task lists: some tenths of a second, and a few megabytes of columns."""

MANY = 1000
"""Offenders after which a span is given up, where none is tolerated: a file of another kind has one a line."""


class LineFile(NamedTuple):
    """A plain file on a local disk that records are read from while they are listed.

    Attributes:
        name: What messages call it.
        path: Where it is.
        is_array: Whether its lines are the items of an array.
        version: As it was listed; None for a copy of ours.
    """

    name: str
    path: str
    is_array: bool = False
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A task: the lines that begin between two places of a file, how they are named, offenders before it gives up."""

    number: int
    file: LineFile
    start: int
    stop: int
    naming: Naming
    limit: int = MANY


class Bad(NamedTuple):
    """A line that is no record: how many lines of its span stand before it, where it begins, its bytes, and why."""

    line: int
    offset: int
    size: int
    problem: str
    hint: str | None


@dataclass(slots=True)
class Piece:
    """The columns of a span's records, how many lines begin in it, how many records lack the field that names them, and
    the lines that are no records.
    """

    keys: bytes
    lengths: npt.NDArray[np.uint8]
    hashes: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.integer[Any]]
    sizes: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.uint8]
    num_lines: int = 0
    unnamed: int = 0
    bad: list[Bad] = field(default_factory=list)
    remarks: list[Caution] = field(default_factory=list)


def spans_of(files: Sequence[LineFile], *, naming: Naming, limit: int = MANY) -> list[Span]:
    """The tasks that list files."""
    spans = []
    for number, file in enumerate(files):
        size = version_of(file.path).size
        spans += [
            Span(number, file, start, min(start + SPAN_BYTES, size), naming, limit)
            for start in range(0, size, SPAN_BYTES)
        ]
    return spans


def list_span(span: Span) -> Piece:
    """List the lines of a span."""
    keys: list[bytes] = []
    hashes, offsets, sizes, digests = array("Q"), array("q"), array("I"), bytearray()
    bad, word = list[Bad](), orjson.dumps(span.naming.key_field)
    marked, num_lines, unnamed, digest = False, 0, 0, SampleDigest()
    with at_door(span.file.path), reading(span.file.path, version=span.file.version) as file:
        offset = _seek_first(file, span.start, span.stop)
        for data in file if offset < span.stop else ():
            record, begins = data.removesuffix(b"\n"), offset
            if not offset and record.startswith(BOM):
                record, begins, marked = record[len(BOM) :], len(BOM), True
            if record.strip():
                try:
                    key = _key_of(record, span.naming, word)
                except InputError as error:
                    bad.append(Bad(num_lines, begins, len(record), error.message, error.hint))
                else:
                    if key is None:
                        key, unnamed = blake2b(record, digest_size=8).hexdigest(), unnamed + 1
                    keys.append(key.encode())
                    hashes.append(key_hash(key))
                    offsets.append(begins)
                    sizes.append(len(record))
                    digests += digest.of_one(JSON_PART, record)
            offset += len(data)
            num_lines += 1
            if offset >= span.stop or len(bad) > span.limit:
                break
        num_lines += _lines_between(file, offset, span.stop)
    return Piece(
        keys=b"".join(keys),
        lengths=np.array([len(key) for key in keys], np.uint8),
        hashes=np.array(hashes, np.uint64),
        offsets=np.array(offsets, np.uint32 if span.stop <= 2**32 else np.int64),
        sizes=np.array(sizes, np.uint32),
        digests=np.frombuffer(bytes(digests), np.uint8).reshape(-1, DIGEST_BYTES),
        num_lines=num_lines,
        unnamed=unnamed,
        bad=bad,
        remarks=[Caution(f"{span.file.name} begins with a byte-order mark, which is left out")] if marked else [],
    )


def places(file: LineFile, offsets: Sequence[int]) -> list[str]:
    """Places of records as a person would look them up, `chat.jsonl:12` or `chat.json[11]`; one pass over line feeds.

    Args:
        file: Where they lie.
        offsets: Where they begin, in ascending order.
    """
    found, number, at = [], 1, 0
    with at_door(file.path), reading(file.path, version=file.version) as opened:
        for offset in offsets:
            while at < offset and (data := opened.read(min(offset - at, READ_BYTES))):
                number += data.count(b"\n")
                at += len(data)
            found.append(_place(file, number))
    return found


def troubles_of(spans: Sequence[Span], pieces: Iterable[Piece]) -> list[Trouble]:
    """The lines that are no records, with their places; spans know how many lines they have, so nothing is read."""
    told, before, last = [], 0, -1
    for span, piece in zip(spans, pieces, strict=True):
        before, last = before if span.number == last else 0, span.number
        for line, offset, size, problem, hint in piece.bad:
            raw = Raw(lines_name(span.file.name), span.file.path, offset, size)
            told.append(Trouble(_place(span.file, before + line + 1), problem, hint=hint, raws=(raw,)))
        before += piece.num_lines
    return told


def _place(file: LineFile, number: int) -> str:
    return f"{file.name}[{number - 1}]" if file.is_array else f"{file.name}:{number}"


def _seek_first(file: BinaryIO, start: int, stop: int) -> int:
    """Go to the first line that begins at `start` or later, and give its offset; `stop` where none begins before it."""
    if not start:
        return 0
    file.seek(start - 1)
    # the line that an earlier span began, which may be longer than this one
    return start - 1 + len(file.readline(stop - start + 1))


def _lines_between(file: BinaryIO, start: int, stop: int) -> int:
    """How many lines begin from `start`, where one does, to before `stop`."""
    if start >= stop:
        return 0
    file.seek(start)
    return 1 + file.read(stop - 1 - start).count(b"\n")


def _key_of(data: bytes, naming: Naming, word: bytes) -> str | None:
    """The key of a line; None where nothing names it. `word` is the naming field as JSON."""
    if len(data) > MAX_LINE_BYTES:
        raise InputError(f"a line of {len(data)} bytes, more than {MAX_LINE_BYTES}", hint="Split that record")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if data.strip() == b"{":
            said = "an object begins that goes on in the next lines"
            raise InputError(said, hint="Write one object a line: jq -c . FILE > LINES.jsonl") from None
        raise InputError(
            f"not JSON: {_said(data, error)}", hint="Mend that line, or take it out, and pack again"
        ) from None
    if not isinstance(value, dict):
        found = _JSON_KINDS.get(type(value), "null")
        raise InputError(f"{found}, not a JSON object", hint="Write one object a line")
    key = naming.field_of(value)
    if key is None:
        return None
    if data.count(word) > 1 and _is_twice(word, data, value):
        raise InputError(f"it has the field {naming.key_field} twice", hint="Leave one of them in that line")
    return naming.key_of(key)


def _is_twice(word: bytes, data: bytes, value: object) -> bool:
    """Whether an object has a field twice, of which every parser takes one without a word (RFC 8259, section 4)."""
    with contextlib.suppress(orjson.JSONEncodeError):  # it goes deeper than orjson writes
        if data.count(word) == orjson.dumps(value).count(word):  # nothing was lost: the others stand in objects inside
            return False
    depth, times, before = 0, 0, b""
    for found in TOKEN.finditer(data):
        token = found[0]
        if token in b"[{":
            depth += 1
        elif token in b"]}":
            depth -= 1
        elif depth == 1 and token == word and before in (b"{", b","):  # and no value
            times += 1
        before = token
    return times > 1


def _said(data: bytes, error: orjson.JSONDecodeError) -> str:
    """Why a line is no JSON, in plain words."""
    words = str(error).split(":")[0]
    if data.startswith(BOM):
        return "it has a byte-order mark"
    if "UTF-8" in words:
        return "it is not UTF-8"
    if not error.pos:
        return f"it begins with {error.doc[:20]!r}"
    return words if "end of data" in words else f"{words} (character {error.pos + 1})"
