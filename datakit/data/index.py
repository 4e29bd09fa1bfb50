"""index: where each sample of a shard is, one row a sample, so that any part is one read.

An index is an Arrow IPC file beside its shard, uncompressed, meant to be mapped into memory: columns are numpy views
of the mapped bytes and nothing is copied. The column set follows from the rows (`key`, `digest`, and `<part>.offset`,
`<part>.size`, `<part>.crc32c` for each part; `tokens` and `source` only where a row has them), so the same rows give
the same bytes. A sample without a part has null there; numpy sees size 0 and `has(part)` tells it from an empty part.

Source: Apache Arrow columnar format 1.5, IPC file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from datakit.data.digest import Buffer
from datakit.data.shard import Part, Row
from datakit.errors import IntegrityError, UsageError

INDEX_SUFFIX = ".index.arrow"
FORMAT_KEY = b"datakit.index.format"
FORMATS_READ = (b"1",)

_DIGEST_BYTES = 16


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
        """Build the index of a shard's rows, in their order."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "key": pa.array([row.key for row in rows], pa.string()),
            "digest": pa.array([row.digest for row in rows], pa.binary(_DIGEST_BYTES)),
        }
        for part in sorted({part for row in rows for part in row.parts}):
            places = [row.parts.get(part) for row in rows]
            missing = np.array([place is None for place in places], bool)
            for field, dtype in (("offset", np.int64), ("size", np.int64), ("crc32c", np.uint32)):
                values = np.array([getattr(place, field) if place else 0 for place in places], dtype)
                columns[f"{part}.{field}"] = pa.array(values, mask=missing if missing.any() else None)
        if any(row.tokens is not None for row in rows):
            columns["tokens"] = pa.array([row.tokens for row in rows], pa.int32())
        if any(row.source is not None for row in rows):
            columns["source"] = pa.array([row.source for row in rows], pa.string())
        return cls(pa.table(columns).replace_schema_metadata({FORMAT_KEY: b"1"}))

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
            raise IntegrityError(f"it is not a datakit index: {error}") from None
        number = (table.schema.metadata or {}).get(FORMAT_KEY)
        if number not in FORMATS_READ:
            raise UsageError(
                f"the index has format {number!r}; this datakit reads 1", hint="Upgrade: pip install --upgrade datakit"
            )
        index = cls(table)
        index._check_columns()
        return index

    def to_bytes(self) -> bytes:
        """The index as a file."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return bytes(sink.getvalue())

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that any sample has, sorted."""
        names = self._table.schema.names
        return tuple(sorted(name.removesuffix(".offset") for name in names if name.endswith(".offset")))

    def keys(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The keys of the rows from `start` to `stop` (to the end when None), in order."""
        keys: list[str] = self._key_column[start:stop].to_pylist()
        return keys

    def key(self, position: int) -> str:
        """The key of one row; costs no more than reading it."""
        return str(self._key_column[position].as_py())

    @cached_property
    def _key_column(self) -> Any:
        return self._column("key")

    def digests(self) -> list[bytes]:
        """The samples' digests, 16 bytes each, in row order."""
        return [bytes(digest) for digest in self._table.column("digest").to_pylist()]

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
        validity: npt.NDArray[np.bool_] = self._column(f"{part}.offset").is_valid().to_numpy(zero_copy_only=False)
        return validity

    @property
    def tokens(self) -> npt.NDArray[np.int32] | None:
        """Tokens of each row's sample, or None where no sample is tokenized."""
        return self._numbers("tokens", np.dtype(np.int32)) if "tokens" in self._table.schema.names else None

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

        known = {"key": pa.string(), "digest": pa.binary(_DIGEST_BYTES), "tokens": pa.int32(), "source": pa.string()}
        for part in self.parts:
            known |= {f"{part}.offset": pa.int64(), f"{part}.size": pa.int64(), f"{part}.crc32c": pa.uint32()}
        for field in self._table.schema:
            if known.get(field.name) != field.type:
                raise IntegrityError(f"an index has no column {field.name} of type {field.type}", subject=field.name)
        needed = {name for name in known if name not in ("tokens", "source")}
        if lost := needed - set(self._table.schema.names):
            raise IntegrityError(f"the index lacks its column {min(lost)}", subject=min(lost))
