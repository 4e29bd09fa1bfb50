"""data/index: rows in, the same rows out, without a copy, and the same bytes for the same rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import IntegrityError, UsageError
from datakit.data.index import FORMAT_KEY, Index, index_name
from datakit.data.shard import Part, Row, Sample
from support.cli import environment
from support.samples import SAMPLES, shard_of

ROWS = [
    Row("a", b"0" * 16, {"json": Part(512, 3, 7), "jpg": Part(1536, 0, 0)}, tokens=5),
    Row("b", b"1" * 16, {"json": Part(2048, 2**40, 2**32 - 1)}, source="chat.jsonl"),
]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"longer", b"l\xffnger", "UTF8"),
        (b"\x06\0\0\0\x07\0\0\0", b"\x06\0\0\x7f\x07\0\0\0", "outside|non-monotonic|out of bounds"),
    ],
)
def test_what_is_no_text_is_damage(old: bytes, new: bytes, said: str) -> None:
    """A flipped byte of a key, or of where one ends, which would be read from beyond the file."""
    data = bytes(Index.from_rows([Row("longer", b"0" * 16, {}), Row("b", b"1" * 16, {})]).to_bytes())
    assert data.count(old) == 1
    Index.from_buffer(data).check_texts()

    with pytest.raises(IntegrityError, match=rf"no text: .*({said})"):
        Index.from_buffer(data.replace(old, new)).check_texts()


@pytest.mark.parametrize("name", ["key", "digest"])
def test_a_row_without_a_key_is_damage(name: str) -> None:
    """No writer of ours leaves one out."""
    index = Index.from_rows([Row("a", b"0" * 16, {})])
    table = index._table.set_column(
        index._table.schema.get_field_index(name), name, pa.nulls(1, index._table.column(name).type)
    )

    with pytest.raises(IntegrityError, match=f"a row has no {name}"):
        Index(table).check_texts()


@given(SAMPLES)
def test_rows_survive_the_file(samples: list[Sample]) -> None:
    """Written, read by mapping and turned into rows again, one by one or all at once, nothing has changed."""
    _data, rows = shard_of(samples)

    index = Index.from_buffer(memoryview(Index.from_rows(rows).to_bytes()))

    assert index.rows() == rows
    assert [index.row(position) for position in range(len(index))] == rows
    assert [index.find(row.key) for row in rows] == list(range(len(rows)))
    assert index.keys() == [row.key for row in rows]
    assert index.digests() == [row.digest for row in rows]


@given(SAMPLES)
def test_columns_are_views_that_agree_with_the_rows(samples: list[Sample]) -> None:
    """Offsets, sizes and checksums as numpy arrays of the documented types; absent parts are told by `has`."""
    _data, rows = shard_of(samples)
    index = Index.from_buffer(Index.from_rows(rows).to_bytes())

    assert index.parts == tuple(sorted({part for row in rows for part in row.parts}))
    for part in index.parts:
        columns = index.offsets(part), index.sizes(part), index.crcs(part)
        assert [column.dtype for column in columns] == [np.int64, np.int64, np.uint32]
        assert index.has(part).tolist() == [part in row.parts for row in rows]
        for row, *values in zip(rows, *(column.tolist() for column in columns), strict=True):
            place = row.parts.get(part, Part(0, 0, 0))
            assert values == [place.offset, place.size, place.crc32c]


def test_the_same_rows_give_the_same_bytes() -> None:
    """Nothing but the rows goes into an index; one read back is written the same."""
    data = Index.from_rows(ROWS).to_bytes()

    assert Index.from_rows(list(ROWS)).to_bytes() == data
    assert Index.from_buffer(data).to_bytes() == data
    pieces: list[bytes] = []
    Index.from_rows(ROWS).write(lambda piece: pieces.append(bytes(piece)))
    assert b"".join(pieces) == bytes(data)


@given(SAMPLES)
def test_the_bytes_are_those_that_arrow_makes_of_python_values(samples: list[Sample]) -> None:
    """Columns made from buffers write the same file as `pa.array` of the values one by one."""
    _data, rows = shard_of(samples)

    columns = {"key": pa.array([row.key for row in rows], pa.string())}
    columns["digest"] = pa.array([row.digest for row in rows], pa.binary(16))
    for part in sorted({part for row in rows for part in row.parts}):
        places = [row.parts.get(part) for row in rows]
        for field, kind in (("offset", pa.int64()), ("size", pa.int64()), ("crc32c", pa.uint32())):
            columns[f"{part}.{field}"] = pa.array([place and getattr(place, field) for place in places], kind)
    for field, kind in (("tokens", pa.int32()), ("source", pa.string())):
        if any(getattr(row, field) is not None for row in rows):
            columns[field] = pa.array([getattr(row, field) for row in rows], kind)
    table = pa.table(columns).replace_schema_metadata({FORMAT_KEY: b"1"})
    assert Index.from_rows(rows).to_bytes() == Index(table).to_bytes()


def test_an_index_is_made_without_pandas() -> None:
    """pa.array would import it where it is installed, and every worker of a pack would pay half a second for it."""
    script = (
        "import sys; from datakit.data.index import Index; from datakit.data.shard import Part, Row\n"
        "rows = [Row('a', b'0' * 16, {'json': Part(512, 3, 7)}, 1), Row('b', b'1' * 16, {}, None, 'x.jsonl')]\n"
        "index = Index.from_buffer(Index.from_rows(rows).to_bytes())\n"
        "assert index.rows() == rows and index.keys() == ['a', 'b'] and index.has('json').tolist() == [True, False]\n"
        "sys.exit('pandas' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", script], env=environment(), check=False, timeout=60)

    assert done.returncode == 0


def test_nothing_is_copied() -> None:
    """A column's memory is the buffer's: changing the one shows in the other."""
    size = 0x0123456789ABCDEF
    data = bytearray(Index.from_rows([Row("a", b"0" * 16, {"json": Part(512, size, 7)})]).to_bytes())
    sizes = Index.from_buffer(data).sizes("json")

    data[data.index(size.to_bytes(8, "little"))] -= 1

    assert sizes.tolist() == [size - 1]


def test_arrow_reads_the_documented_columns() -> None:
    """Whoever has Arrow reads an index: names, types, nulls and the format number are the page's."""
    table = pa.ipc.open_file(pa.BufferReader(Index.from_rows(ROWS).to_bytes())).read_all()

    assert {field.name: field.type for field in table.schema} == {
        "key": pa.string(),
        "digest": pa.binary(16),
        "jpg.offset": pa.int64(),
        "jpg.size": pa.int64(),
        "jpg.crc32c": pa.uint32(),
        "json.offset": pa.int64(),
        "json.size": pa.int64(),
        "json.crc32c": pa.uint32(),
        "tokens": pa.int32(),
        "source": pa.string(),
    }
    assert table.column("jpg.size").to_pylist() == [0, None]
    assert table.column("tokens").to_pylist() == [5, None]
    assert table.schema.metadata == {FORMAT_KEY: b"1"}


def test_optional_columns_are_there_only_where_a_row_has_them() -> None:
    """A dataset without tokens and sources pays nothing for them."""
    plain = Index.from_rows([Row("a", b"0" * 16, {"json": Part(512, 3, 7)})])

    assert plain.tokens is None
    assert Index.from_rows(ROWS).tokens is not None
    assert plain.row(0).source is None


def test_an_index_of_nothing_is_an_index() -> None:
    """No rows, no parts, nothing found."""
    index = Index.from_buffer(Index.from_rows([]).to_bytes())

    assert (len(index), index.parts, index.rows(), index.find("a")) == (0, (), [], None)


def test_what_is_not_there_is_said() -> None:
    """A missing key gives None, a missing row or part raises."""
    index = Index.from_rows(ROWS)

    assert index.find("c") is None
    for position in (-1, 2):
        with pytest.raises(IndexError):
            index.row(position)
    with pytest.raises(KeyError, match=r"png\.offset"):
        index.offsets("png")


@given(st.data())
def test_a_cut_index_is_an_integrity_error(data: st.DataObject) -> None:
    """However short the file, the error is ours."""
    whole = Index.from_rows(ROWS).to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(IntegrityError, match="not a datakit index"):
        Index.from_buffer(whole[:cut])


@pytest.mark.parametrize("metadata", [None, {FORMAT_KEY: b"2"}, {b"other": b"1"}])
def test_another_format_number_is_refused_by_name(metadata: dict[bytes, bytes] | None) -> None:
    """A newer index, or an Arrow file of something else, is not guessed at."""
    table = pa.table({"key": pa.array(["a"])}).replace_schema_metadata(metadata)

    with pytest.raises(UsageError, match="this datakit reads 1"):
        Index.from_buffer(Index(table).to_bytes())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": pa.array([1, 2])}, "no column key of type int64"),
        ({"extra": pa.array([1, 2])}, "no column extra"),
        ({"json.size": None}, r"lacks its column json\.size"),
        ({"digest": None}, "lacks its column digest"),
        ({"tokens": pa.array([1, 2])}, "no column tokens of type int64"),
    ],
)
def test_a_table_with_other_columns_is_refused(change: dict[str, object], said: str) -> None:
    """Readers rely on names and types, so both are checked once, at the door."""
    table = pa.ipc.open_file(pa.BufferReader(Index.from_rows(ROWS).to_bytes())).read_all()
    columns = {name: table.column(name) for name in table.schema.names} | change
    changed = pa.table({name: column for name, column in columns.items() if column is not None})

    with pytest.raises(IntegrityError, match=said):
        Index.from_buffer(Index(changed.replace_schema_metadata(table.schema.metadata)).to_bytes())


def test_an_index_is_named_after_its_shard() -> None:
    """`<shard>.index.arrow`, beside it."""
    assert index_name("chat-0a1b2c3d.tar") == "chat-0a1b2c3d.tar.index.arrow"


def test_a_byte_of_an_index_leads_to_its_row() -> None:
    """Keys, digests, places and sources: the row that a byte is part of; none for the file's own head and end."""
    rows = [
        Row(f"key-{n}" * (1 + n % 3), bytes([n]) * 16, {"txt": Part(512 * n, 100 + n, 7 * n)}, tokens=n, source=f"s{n}")
        for n in range(9)
    ]
    data = bytes(Index.from_rows(rows).to_bytes())
    index = Index.from_buffer(data)

    for value, name in ((b"key-4", "key"), (bytes([4]) * 16, "digest"), (b"s4", "source")):
        at = data.index(value)
        assert [index.row_of_byte(data, at), index.row_of_byte(data, at + len(value) - 1)] == [4, 4], name
    offsets = data.index(b"".join((512 * n).to_bytes(8, "little") for n in range(9)))
    assert [index.row_of_byte(data, offsets + 8 * n + byte) for n in range(9) for byte in (0, 7)] == [
        n for n in range(9) for _ in range(2)
    ]
    assert index.row_of_byte(data, 0) is None
    assert index.row_of_byte(data, len(data) - 1) is None


def test_a_byte_of_an_index_with_gaps_leads_near_its_row() -> None:
    """A validity bitmap has eight rows a byte: the first of them is named; an empty index has no row."""
    rows = [Row(f"k{n}", bytes(16), {"txt" if n % 2 else "cls": Part(512, 1, 1)}) for n in range(20)]
    data = bytes(Index.from_rows(rows).to_bytes())
    index, empty = Index.from_buffer(data), Index.from_rows([]).to_bytes()
    bitmap = data.index(bytes([0xAA, 0xAA, 0x0A]))

    assert [index.row_of_byte(data, bitmap + n) for n in range(3)] == [0, 8, 16]
    assert Index.from_buffer(empty).row_of_byte(empty, len(empty) // 2) is None
