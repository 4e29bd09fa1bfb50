"""index: where each sample of a shard is, one row a sample, so that any part is one read.

An index is an Arrow IPC file beside its shard, uncompressed, meant to be mapped into memory: columns are numpy views
of the mapped bytes and nothing is copied. The column set follows from the rows (`key`, `digest`, and `<part>.offset`,
`<part>.size`, `<part>.crc32c` for each part; `tokens` and `source` only where a row has them), so the same rows give
the same bytes. A sample without a part has null there; numpy sees size 0 and `has(part)` tells it from an empty part.

Source: Apache Arrow columnar format 1.5, IPC file format.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from datakit.data.digest import Buffer
from datakit.data.rows import DIGEST_BYTES, Rows
from datakit.data.shard import Part, Row
from datakit.errors import IntegrityError, UsageError

INDEX_SUFFIX = ".index.arrow"
FORMAT_KEY = b"datakit.index.format"
FORMATS_READ = (b"1",)


def index_name(shard_name: str) -> str:
    """File name of a shard's index."""
    return shard_name + INDEX_SUFFIX


class Index:
    """The rows of one shard.

    Made by `from_rows` when packing and by `from_buffer` when reading; use one of them.
    """

    def __init__(self, table: Any) -> None:
        self._table = table

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Index:
        """Build the index of a shard's rows, in their order; while it lives, a `Rows` that it was made of stays."""
        import pyarrow as pa

        rows = Rows.of(rows)
        count = len(rows)
        columns = {
            "key": pa.Array.from_buffers(
                pa.string(), count, [None, pa.py_buffer(rows.key_ends), pa.py_buffer(rows.key_text)]
            ),
            "digest": pa.Array.from_buffers(pa.binary(DIGEST_BYTES), count, [None, pa.py_buffer(rows.digests)]),
        }
        for part in rows.part_names():
            places = rows.parts[part]
            at = None if len(places.rows) == count else np.array(places.rows, np.int64)
            columns[f"{part}.offset"] = _numbers(places.offsets, pa.int64(), at=at, count=count)
            columns[f"{part}.size"] = _numbers(places.sizes, pa.int64(), at=at, count=count)
            columns[f"{part}.crc32c"] = _numbers(places.crcs, pa.uint32(), at=at, count=count)
        if rows.tokens is not None:
            at = np.array([i for i, number in enumerate(rows.tokens) if number is not None], np.int64)
            numbers = array("i", (number for number in rows.tokens if number is not None))
            columns["tokens"] = _numbers(numbers, pa.int32(), at=None if len(at) == count else at, count=count)
        if rows.sources is not None:
            present = np.array([source is not None for source in rows.sources], np.bool_)
            columns["source"] = _texts([source or "" for source in rows.sources], present)
        return cls(pa.Table.from_arrays(list(columns.values()), names=list(columns), metadata={FORMAT_KEY: b"1"}))

    @classmethod
    def from_buffer(cls, data: Buffer) -> Index:
        """Read an index without copying it; the buffer must outlive it.

        Raises:
            IntegrityError: The buffer is not a whole index.
            UsageError: Its format number is one that this version does not read.
        """
        import pyarrow as pa

        try:
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data)))
            # a file of one batch, which all of ours are, stays where it is; combining would copy it
            table = reader.read_all() if reader.num_record_batches <= 1 else reader.read_all().combine_chunks()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(f"it is not a datakit index: {error}") from None
        number = (table.schema.metadata or {}).get(FORMAT_KEY)
        if number not in FORMATS_READ:
            raise UsageError(f"the index has format {number!r}; this datakit reads 1", hint="Use a newer datakit")
        index = cls(table)
        index._check_columns()
        return index

    def check_texts(self) -> None:
        """See that all keys and sources can be read, which `from_buffer` takes on trust: it would read every byte.

        Raises:
            IntegrityError: One is not UTF-8, lies outside the file, or is not there.
        """
        import pyarrow as pa

        try:
            self._table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _damaged(f"it holds what is no text: {error}") from None
        for name in ("key", "digest"):
            if self._table.column(name).null_count:
                raise _damaged(f"a row has no {name}", name)

    def to_bytes(self) -> memoryview:
        """The index as a file."""
        import pyarrow as pa

        length = pa.MockOutputStream()
        self._write(length)
        # into a buffer of its size: one that grows takes twice as much, and a copy on top
        buffer = pa.allocate_buffer(length.size())
        self._write(pa.FixedSizeBufferWriter(buffer))
        return memoryview(buffer).toreadonly()

    def write(self, write: Callable[[Buffer], object]) -> None:
        """Hand over the same bytes piece by piece, no more than a column at once."""
        import pyarrow as pa

        with pa.PythonFile(_Sink(write), mode="w") as sink:
            self._write(sink)

    def _write(self, sink: Any) -> None:
        import pyarrow as pa

        with pa.ipc.new_file(sink, self._table.schema) as writer:
            writer.write_table(self._table)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that any sample has, sorted."""
        names = self._table.schema.names
        return tuple(sorted(name.removesuffix(".offset") for name in names if name.endswith(".offset")))

    def keys(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The keys of the rows from `start` to `stop` (to the end when None), in order."""
        ends, blob = self._key_text
        places = ends[slice(start, None if stop is None else stop + 1)].tolist()
        if not places:
            return []
        text, base = bytes(blob[places[0] : places[-1]]).decode(), places[0]
        if len(text) == places[-1] - base:  # all ASCII: bytes are characters
            return [text[one - base : other - base] for one, other in pairwise(places)]
        return [bytes(blob[one:other]).decode() for one, other in pairwise(places)]

    def key(self, position: int) -> str:
        """The key of one row; costs no more than reading it."""
        ends, blob = self._key_text
        return str(blob[ends[position] : ends[position + 1]], "utf-8")

    @cached_property
    def _key_text(self) -> tuple[memoryview, memoryview]:
        """Where each key ends (the first item is where the first begins), and the bytes of all keys."""
        column = self._column("key")
        _, ends, blob = column.buffers()
        if not len(column):
            return np.zeros(1, np.int32).data, memoryview(b"")
        numbers = np.frombuffer(ends, np.int32, count=len(column) + 1, offset=column.offset * 4)
        return numbers.data, memoryview(b"" if blob is None else blob)

    def digests(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The digests of the rows from `start` to `stop` (to the end when None), 16 bytes each, in order."""
        column = self._column("digest")
        rows = range(column.offset, column.offset + len(column))[start:stop]
        data = bytes(column.buffers()[1])[rows.start * DIGEST_BYTES : rows.stop * DIGEST_BYTES] if rows else b""
        return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]

    def offsets(self, part: str) -> npt.NDArray[np.int64]:
        """Byte offset of the part in the shard, for each row; 0 where a sample lacks it."""
        return self._numbers(f"{part}.offset", np.dtype(np.int64))

    def sizes(self, part: str) -> npt.NDArray[np.int64]:
        """Size of the part in bytes, for each row; 0 where a sample lacks it."""
        return self._numbers(f"{part}.size", np.dtype(np.int64))

    def crcs(self, part: str) -> npt.NDArray[np.uint32]:
        """CRC-32C of the part, for each row; 0 where a sample lacks it."""
        return self._numbers(f"{part}.crc32c", np.dtype(np.uint32))

    def has(self, part: str) -> npt.NDArray[np.bool_]:
        """Whether each row's sample has the part."""
        column = self._column(f"{part}.offset")
        validity = column.buffers()[0]
        if validity is None:
            return np.ones(len(column), np.bool_)
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].astype(np.bool_)

    @property
    def tokens(self) -> npt.NDArray[np.int32] | None:
        """Tokens of each row's sample, or None where no sample is tokenized."""
        return self._numbers("tokens", np.dtype(np.int32)) if "tokens" in self._table.schema.names else None

    @property
    def num_tokens(self) -> int | None:
        """Tokens in all samples, or None where no sample is tokenized."""
        import pyarrow.compute as pc

        if "tokens" not in self._table.schema.names:
            return None
        number = pc.sum(self._table.column("tokens")).as_py()
        return None if number is None else int(number)

    def row_of_byte(self, data: Buffer, byte: int) -> int | None:
        """The row that a byte of the index's file belongs to; None for what belongs to all, such as names of columns.

        Args:
            data: The buffer that the index was read from, whole and undamaged.
            byte: Position in it.
        """
        import pyarrow as pa

        address, last = pa.py_buffer(data).address + byte, len(self) - 1
        for name in self._table.schema.names if len(self) else ():
            column = self._column(name)
            valid, values, texts = (*column.buffers(), None)[:3]
            for buffer in (valid, values, texts):
                if buffer is None or not buffer.address <= address < buffer.address + buffer.size:
                    continue
                at = int(address - buffer.address)
                if buffer is valid:  # a bit a row
                    return min(at * 8, last)
                if buffer is texts:
                    ends = np.frombuffer(values, np.int32, count=len(self) + 1)[1:]
                    return min(int(np.searchsorted(ends, at, side="right")), last)
                width = 4 if texts is not None else int(column.type.bit_width) // 8  # of texts, values are offsets
                return min(at // width, last)
        return None

    def find(self, key: str) -> int | None:
        """The row of a key, or None."""
        import pyarrow as pa
        import pyarrow.compute as pc

        row = int(pc.index(self._table.column("key"), pa.scalar(key, pa.string())).as_py())
        return row if row >= 0 else None

    def row(self, position: int) -> Row:
        """The row at a position, counted from 0.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= position < len(self):
            raise IndexError(position)
        values: Mapping[str, Any] = self._table.slice(position, 1).to_pylist()[0]
        parts = {
            part: Part(values[f"{part}.offset"], values[f"{part}.size"], values[f"{part}.crc32c"])
            for part in self.parts
            if values[f"{part}.offset"] is not None
        }
        return Row(values["key"], values["digest"], parts, values.get("tokens"), values.get("source"))

    def rows(self) -> list[Row]:
        """All rows, in order."""
        columns = self._table.to_pydict()
        empty = [None] * len(self)
        tokens, sources = columns.get("tokens", empty), columns.get("source", empty)
        places = {part: [columns[f"{part}.{field}"] for field in ("offset", "size", "crc32c")] for part in self.parts}
        rows = []
        for i, (key, digest) in enumerate(zip(columns["key"], columns["digest"], strict=True)):
            parts = {part: Part(o[i], s[i], c[i]) for part, (o, s, c) in places.items() if o[i] is not None}
            rows.append(Row(key, digest, parts, tokens[i], sources[i]))
        return rows

    def _column(self, name: str) -> Any:
        if name not in self._table.schema.names:
            raise KeyError(name)
        column = self._table.column(name)
        return column.chunk(0) if column.num_chunks else column.combine_chunks()

    def _numbers(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        column = self._column(name)
        values = column.buffers()[1]
        if values is None:
            return np.empty(0, dtype)
        return np.frombuffer(values, dtype, count=len(column), offset=column.offset * dtype.itemsize)

    def _check_columns(self) -> None:
        import pyarrow as pa

        known = {"key": pa.string(), "digest": pa.binary(DIGEST_BYTES), "tokens": pa.int32(), "source": pa.string()}
        for part in self.parts:
            known |= {f"{part}.offset": pa.int64(), f"{part}.size": pa.int64(), f"{part}.crc32c": pa.uint32()}
        for field in self._table.schema:
            if known.get(field.name) != field.type:
                raise _damaged(f"an index has no column {field.name} of type {field.type}", field.name)
        needed = {name for name in known if name not in ("tokens", "source")}
        if lost := needed - set(self._table.schema.names):
            raise _damaged(f"the index lacks its column {min(lost)}", min(lost))


class _Sink:
    """A file as Arrow writes to one, of a function that takes bytes."""

    closed = False

    def __init__(self, write: Callable[[Buffer], object]) -> None:
        self.write = write

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""


def _damaged(message: str, subject: object = None) -> IntegrityError:
    hint = "Mend its dataset from a copy (datakit sync --repair COPY DEST), or index its tars again (datakit reindex)"
    return IntegrityError(message, hint=hint, subject=subject)


# pa.array on a list or an array looks for pandas and imports it where it is installed: 0.5 s in each of pack's workers
# (measured 2026-11-30). From buffers nothing is looked for, and nothing copied twice.


def _numbers(values: array[int], kind: Any, *, at: npt.NDArray[np.int64] | None, count: int) -> Any:
    """A column of numbers; `at`: the rows that have one, None where all do."""
    import pyarrow as pa

    numbers = np.frombuffer(values, dtype=np.dtype(values.typecode))
    if at is None:
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])
    spread, present = np.zeros(count, numbers.dtype), np.zeros(count, np.bool_)
    spread[at], present[at] = numbers, True
    return pa.Array.from_buffers(kind, count, [_bits(present), pa.py_buffer(spread)])


def _texts(texts: Sequence[str], present: npt.NDArray[np.bool_]) -> Any:
    """A column of strings; `present`: which rows have one."""
    import pyarrow as pa

    blob = "".join(texts)
    encoded = blob.encode()
    sizes = map(len, texts) if len(encoded) == len(blob) else (len(text.encode()) for text in texts)
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(sizes, np.int64, len(texts)), out=ends[1:])
    validity = None if present.all() else _bits(present)
    return pa.Array.from_buffers(pa.string(), len(texts), [validity, pa.py_buffer(ends), pa.py_buffer(encoded)])


def _bits(present: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(present, bitorder="little"))
