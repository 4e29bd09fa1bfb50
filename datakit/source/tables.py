"""tables: rows of Parquet files, CSV files and saved Hugging Face datasets as a table of records.

A row's parts (see `cells`) are laid down in the spool, one file for each task, so that a shard reads what it needs by
place, whatever the table's own layout; that takes as much free disk as the rows do, for as long as the pack runs. A
Parquet file is a task for each row group, an Arrow or CSV file one for itself.

Columns that stand in the names of folders are read too (see `partitions`). CSV: UTF-8, with a header; values stay text;
`.tsv` is separated by tabs; quotes as RFC 4180 has them. Parquet and Arrow are read by pyarrow, whose door this is too.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import sample_digest
from datakit.errors import InputError
from datakit.events import Note
from datakit.source.cells import Cells, Row
from datakit.source.kinds import plain_name
from datakit.source.members import Holder, Piece
from datakit.source.naming import JSON_PART, Naming
from datakit.source.originals import PLACES_BYTES, reading
from datakit.source.partitions import Value, texts_of, values_of
from datakit.source.records import KeyColumn
from datakit.source.spans import LineFile
from datakit.source.troubles import Trouble
from datakit.storage import disk
from datakit.units import format_number_of

BATCH_ROWS = 128
"""Rows that are looked at at once: few enough for rows of megabytes, enough to spread what a batch costs."""

HELD_ROWS = 2**17
"""Rows of a task whose columns are in memory; those of all before them are laid down: a file may have any number."""

_END_OF_ROWS = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a stream (Arrow Columnar Format 1.5, IPC Streaming Format); older than 0.15 of 2019 has no file of
`datasets`."""

_MEND = "Mend that row, or take it out, and pack again"


@dataclass(frozen=True, slots=True)
class TableTask:
    """A task: rows of a file, and the file that their parts are laid down in.

    Attributes:
        file: The table, plain.
        group: The row group, of a Parquet file.
        first: Number of its first row in the file, from 1.
        target: Where the parts go.
        naming: How rows are named.
        limit: More offenders than this end it.
        columns: Those that its folders name (see `partitions`), with the value in all its rows.
    """

    file: LineFile
    group: int | None
    first: int
    target: str
    naming: Naming
    limit: int
    columns: Mapping[str, Value] = field(default_factory=dict)


def table_tasks(files: Sequence[LineFile], *, spool: Path, naming: Naming, limit: int) -> list[TableTask]:
    """The tasks that list tables.

    Raises:
        InputError: A file is no Parquet file, or two of its folders name one column.
    """
    columns = values_of(file.name for file in files)
    tasks: list[TableTask] = []
    folder = spool / "rows"
    disk.make_dirs(folder)
    for file in files:
        first = 1
        groups: Sequence[tuple[int | None, int]] = [(None, 0)]
        if file.name.endswith(".parquet"):
            groups = list(enumerate(_group_sizes(file)))
        for group, rows in groups:
            target = str(folder / f"{len(tasks):08d}")
            tasks.append(TableTask(file, group, first, target, naming, limit, columns[file.name]))
            first += rows
    return tasks


def list_table(task: TableTask) -> Piece:
    """Lay down the rows of a task, and list them; `read_back` gives those that are laid down.

    Raises:
        InputError: The file cannot be read as what it is, or is damaged.
        NoSpace: The spool's disk is full.
    """
    columns = _Columns(task)
    with disk.at_door(task.target), open(task.target, "wb") as spool:
        for number, row in _rows(task, columns.remarks):
            if len(columns.troubles) > task.limit:
                break
            columns.add(number, row, spool)
    return columns.piece()


def read_back(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, each with those before it that were laid down."""
    for piece in pieces:
        for path in piece.laid:
            keys, columns = _Held.read(path)
            os.unlink(path)
            yield replace(piece, keys=keys, **columns, troubles=(), unnamed=0, laid=())
        yield replace(piece, laid=())


def saved_files(root: str, names: Sequence[str]) -> list[str]:
    """The Arrow files of a saved dataset, in its order.

    Raises:
        InputError: Its `state.json` is torn, or a file that it names is not there.
    """
    hint = "Bring it there, or save the dataset again: save_to_disk"
    with reading(os.path.join(root, "state.json")) as file:
        try:
            listed = [str(one["filename"]) for one in orjson.loads(file.read())["_data_files"]]
        except (ValueError, KeyError, TypeError):
            said = f"{root}/state.json does not say in which files the rows are"
            raise InputError(said, hint=hint, subject="state.json") from None
    if missing := [name for name in listed if name not in names]:
        raise InputError(f"{root}/state.json names {missing[0]}, which is not there", hint=hint, subject=missing[0])
    return listed


def _rows(task: TableTask, remarks: list[Note]) -> Iterator[tuple[int, Row]]:
    if task.file.name.endswith(".arrow"):
        return _arrow_rows(task, _arrow_batches, remarks)
    if task.group is not None:
        return _arrow_rows(task, _parquet_batches, remarks)
    return _csv_rows(task)


def _arrow_rows(
    task: TableTask, read: Callable[[TableTask], Iterator[Any]], remarks: list[Note]
) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa

    number, cells = task.first, None
    try:
        for batch in (_widened(batch, task.columns) for batch in read(task)):
            if cells is None:
                cells = Cells(batch.schema, key_field=task.naming.key_field)
                remarks += cells.remarks
            for row in cells.rows(batch):
                yield number, row
                number += 1
    except InputError as error:
        raise InputError(f"{task.file.name}: {error.message}", hint=error.hint, subject=task.file.name) from None
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(task.file, error) from None


def _widened(batch: Any, columns: Mapping[str, Value]) -> Any:
    """A batch with the columns that its folders name; one that the file has itself stays as it is."""
    import pyarrow as pa

    for name, value in columns.items():
        if name not in batch.schema.names:
            kind = pa.int32() if isinstance(value, int) else pa.string()
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), batch.num_rows))
    return batch


def _parquet_batches(task: TableTask) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(task.file.path, version=task.file.version, buffer_bytes=PLACES_BYTES) as opened:
        # pages may carry a CRC-32, which pyarrow looks at only where it is asked to
        file = pq.ParquetFile(pa.PythonFile(opened, mode="r"), page_checksum_verification=True)
        yield from file.iter_batches(batch_size=BATCH_ROWS, row_groups=[task.group])


def _arrow_batches(task: TableTask) -> Iterator[Any]:
    import pyarrow as pa

    # one batch is in memory at a time, as large as whoever wrote it held: `datasets` writes 1000 rows at once
    with reading(task.file.path, version=task.file.version) as opened, pa.ipc.open_stream(opened) as stream:
        end = opened.tell()
        for batch in stream:
            end = opened.tell()
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)
        opened.seek(end)
        if opened.read(len(_END_OF_ROWS) + 1) != _END_OF_ROWS:  # pyarrow takes the end of the file for that of the rows
            said = f"the mark that ends its rows does not stand at byte {end}, where they end: it is cut, or goes on"
            raise InputError(said, hint="Fetch it again, or save the dataset again: save_to_disk")


def _group_sizes(file: LineFile) -> list[int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with reading(file.path, version=file.version, buffer_bytes=PLACES_BYTES) as opened:
            metadata = pq.ParquetFile(pa.PythonFile(opened, mode="r")).metadata
            return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: LineFile, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return disk.translated(error, file.path)
    said = str(error).splitlines()[0]
    return InputError(f"{file.name} cannot be read: {said}", hint="Fetch it again", subject=file.name)


def _csv_rows(task: TableTask) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(sys.maxsize)  # of the whole process: a field may be as long as memory is
    besides = texts_of(task.file.name)
    name, tabs = task.file.name, plain_name(task.file.name).endswith(".tsv")
    with reading(task.file.path, version=task.file.version) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
        line = 1
        try:
            header = next(reader, None)
            if header is None:
                return
            _check_header(name, header)
            line = reader.line_num + 1
            for values in reader:
                begins, line = line, reader.line_num + 1
                if values:
                    yield begins, _csv_row(header, values, task.naming, besides)
        except (csv.Error, UnicodeDecodeError) as error:
            said = str(error)
            if isinstance(error, UnicodeDecodeError):  # of a stretch that was decoded ahead
                said, line = "it is not UTF-8", _first_undecodable(task.file.path) or line
                hint = "Save it as UTF-8; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE > NEW.csv"
            else:
                hint = "Save it with quotes doubled inside quotes"
            raise InputError(f"{name} cannot be read from line {line} on: {said}", hint=hint, subject=name) from None


def _first_undecodable(path: str) -> int | None:
    """Number of the first line that is not UTF-8; a line feed is no part of a longer letter."""
    with reading(path) as file:
        for number, data in enumerate(file, start=1):
            try:
                data.decode()
            except UnicodeDecodeError:
                return number
    return None


def _check_header(name: str, header: Sequence[str]) -> None:
    if twice := [column for column in header if header.count(column) > 1]:
        raise InputError(f"{name}: two columns are called {twice[0]}", hint="Rename one of them", subject=name)
    if len(header) == 1 and ";" in header[0]:
        hint = "Write it with commas, or as .tsv with tabs"
        raise InputError(
            f"{name}: its header is one column, {header[0]!r:.60}, with semicolons", hint=hint, subject=name
        )


def _csv_row(header: Sequence[str], values: Sequence[str], naming: Naming, besides: Mapping[str, str | None]) -> Row:
    if len(values) != len(header):
        return Row(None, {}, f"it has {format_number_of(len(values), 'field')}, the header {len(header)}")
    row: dict[str, str | None] = dict(zip(header, values, strict=True))
    row |= {name: text for name, text in besides.items() if name not in row}
    return Row(naming.field_of(row), {JSON_PART: orjson.dumps(row)})


@dataclass
class _Held:
    """Columns of rows, in memory."""

    keys: list[str] = field(default_factory=list)
    kind_of: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    rows: array[int] = field(default_factory=lambda: array("q"))
    digests: bytearray = field(default_factory=bytearray)

    def columns(self) -> dict[str, Any]:
        """Those of a piece but for its keys."""
        return {
            "kind_of": np.array(self.kind_of, np.int32),
            "offsets": np.array(self.offsets, np.int64),
            "sizes": np.array(self.sizes, np.int64),
            "signatures": np.frombuffer(bytes(self.digests), np.uint8).reshape(-1, DIGEST_BYTES),
            "rows": np.array(self.rows, np.int64),
        }

    def write(self, path: str) -> None:
        """Write keys and columns to a file, each behind its size in 8 bytes."""
        keys = KeyColumn.of(self.keys)
        with open(path, "wb") as file:
            for column in (keys.text, keys.lengths, keys.hashes(), *self.columns().values()):
                file.write(column.nbytes.to_bytes(8))
                file.write(column.tobytes())

    @staticmethod
    def read(path: str) -> tuple[KeyColumn, dict[str, Any]]:
        """What `write` has written; without `numpy.save`, whose headers leave work to the garbage collector."""

        def column(like: npt.NDArray[Any]) -> npt.NDArray[Any]:
            size = int.from_bytes(file.read(8))
            return np.frombuffer(file.read(size), like.dtype).reshape(-1, *like.shape[1:])

        empty, none = _Held().columns(), KeyColumn.of(())
        with disk.at_door(path), open(path, "rb") as file:
            keys = KeyColumn.joined(column(none.text), column(none.lengths), column(none.hashes()))
            return keys, {name: column(like) for name, like in empty.items()}


@dataclass
class _Columns:
    """What becomes a piece, row by row."""

    task: TableTask
    kinds: dict[tuple[str, ...], int] = field(default_factory=dict)
    held: _Held = field(default_factory=_Held)
    laid: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    remarks: list[Note] = field(default_factory=list)
    end: int = 0
    unnamed: int = 0

    def add(self, number: int, row: Row, spool: BinaryIO) -> None:
        """Lay a row down, or tell what is wrong with it."""
        where = f"{self.task.file.name}:{number}"
        if row.problem is not None:
            self.troubles.append(Trouble(where, row.problem, hint=row.hint or _MEND))
            return
        names = tuple(sorted(row.parts))
        digest = sample_digest(row.parts)
        try:
            key = blake2b(digest, digest_size=8).hexdigest()
            if row.key is not None:
                key = self.task.naming.key_of(row.key, part=max(names, key=len))
        except InputError as error:
            self.troubles.append(Trouble(where, error.message, hint=error.hint))
            return
        self.unnamed += row.key is None
        if len(self.held.keys) == HELD_ROWS:
            self.laid.append(f"{self.task.target}.{len(self.laid)}")
            self.held.write(self.laid[-1])
            self.held = _Held()
        held = self.held
        held.keys.append(key)
        held.kind_of.append(self.kinds.setdefault(names, len(self.kinds)))
        held.rows.append(number)
        held.digests += digest
        for name in names:
            held.offsets.append(self.end)
            held.sizes.append(len(row.parts[name]))
            spool.write(row.parts[name])
            self.end += len(row.parts[name])

    def piece(self) -> Piece:
        """The rows that were added, and what was told."""
        return Piece(
            holder=Holder.at(self.task.file.name, self.task.target, exact=True),
            keys=KeyColumn.of(self.held.keys),
            kinds=tuple(self.kinds),
            **self.held.columns(),
            troubles=tuple(self.troubles),
            remarks=tuple(self.remarks),
            unnamed=self.unnamed,
            laid=tuple(self.laid),
        )
