"""source/cells: a row of a table as parts, with the values that pyarrow reads."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from datasets import ClassLabel, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.source.cells import Cells, Row

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

PLAIN = {
    "flag": pa.bool_(),
    "small": pa.int8(),
    "large": pa.uint64(),
    "ratio": pa.float64(),
    "text": pa.string(),
    "tags": pa.list_(pa.string()),
    "turns": pa.list_(pa.struct([("role", pa.string()), ("weight", pa.float64())])),
}
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.fixed_dictionaries({
    "flag": st.none() | st.booleans(),
    "small": st.none() | st.integers(-128, 127),
    "large": st.none() | st.integers(0, 2**64 - 1),
    "ratio": st.none() | FLOATS,
    "text": st.none() | st.text(),
    "tags": st.none() | st.lists(st.none() | st.text(max_size=4), max_size=3),
    "turns": st.lists(
        st.fixed_dictionaries({"role": st.text(max_size=4), "weight": st.none() | FLOATS}), max_size=2
    ),
})  # fmt: skip


def rows(table: pa.Table, *, key_field: str = "id") -> list[Row]:
    """The rows of a table."""
    cells = Cells(table.schema, key_field=key_field)
    return [row for batch in table.to_batches() for row in cells.rows(batch)]


@given(st.lists(VALUES, max_size=5))
def test_a_row_is_json_with_the_values_of_the_columns(values: list[dict[str, Any]]) -> None:
    """In the columns' order; every value comes back as pyarrow reads it."""
    table = pa.Table.from_pylist(values, schema=pa.schema(PLAIN))

    found = rows(table)

    assert [json.loads(row.parts["json"]) for row in found] == table.to_pylist() == values
    assert all(list(json.loads(row.parts["json"])) == list(PLAIN) for row in found)
    assert all(row.key is None for row in found)


def test_the_field_names_the_row() -> None:
    """And stays in the object."""
    table = pa.table({"id": ["a", None], "n": [1, 2]})

    found = rows(table)

    assert [row.key for row in found] == ["a", None]
    assert found[0].parts == {"json": b'{"id":"a","n":1}'}
    assert [row.key for row in rows(table, key_field="n")] == [1, 2]


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ([dt.datetime(2026, 1, 2, 3, 4, 5)], pa.timestamp("us"), '"2026-01-02T03:04:05"'),
        ([dt.date(2026, 1, 2)], pa.date32(), '"2026-01-02"'),
        ([Decimal("1.10")], pa.decimal128(10, 2), '"1.10"'),
        ([1_700_000_000_123_456_789], pa.timestamp("ns"), '"2023-11-14T22:13:20.123456789"'),
        ([90], pa.duration("s"), "90"),
        ([0.5], pa.float16(), "0.5"),
        ([0.1], pa.float32(), "0.10000000149011612"),
        (["x"], pa.dictionary(pa.int8(), pa.string()), '"x"'),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int8()), '[["a",1]]'),
    ],
)
def test_every_kind_of_column_has_one_way_to_be_written(values: list[object], kind: pa.DataType, said: str) -> None:
    """Exact, whatever other libraries are installed."""
    table = pa.table({"x": pa.array(values, kind)})

    assert rows(table)[0].parts == {"json": f'{{"x":{said}}}'.encode()}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_told(bad: float) -> None:
    """Not turned into null; at any depth; the other rows are fine."""
    flat = pa.table({"x": [1.0, bad]})
    deep = pa.table({"x": pa.array([{"y": [[1.0]]}, {"y": [[bad]]}])})

    for table in (flat, deep):
        good, told = rows(table)
        assert good.problem is None
        assert told.problem == f"column x holds {bad}, which JSON cannot"
    hint = str(rows(flat)[1].hint)
    assert "compute.if_else(compute.is_finite(column), column, None)" in hint
    mended = pa.table({"x": pc.if_else(pc.is_finite(flat["x"]), flat["x"], None)})
    assert [row.parts["json"] for row in rows(mended)] == [b'{"x":1.0}', b'{"x":null}']


def remarks(schema: pa.Schema) -> list[str]:
    """What is said of a table's columns."""
    return [remark.message for remark in Cells(schema, key_field="id").remarks]


def test_the_unit_of_a_duration_is_told() -> None:
    """A number alone has none; at any depth, and of each unit once."""
    deep = pa.list_(pa.struct([("a", pa.duration("ms")), ("b", pa.duration("ms"))]))
    schema = pa.schema([("id", pa.string()), ("lag", pa.duration("us")), ("deep", deep)])

    assert remarks(schema) == [
        "column lag holds durations, which are written as a number of microseconds",
        "column deep holds durations, which are written as a number of milliseconds",
    ]


def test_names_of_classes_are_told() -> None:
    """`datasets` keeps them beside the columns, where no cell has them; those of a list are found too."""
    classes = ClassLabel(names=["n", "y", "s", "x"])
    features = Features({"id": Value("string"), "label": classes, "tags": List(ClassLabel(names=["a"]))})

    assert remarks(features.arrow_schema) == [
        "column label holds numbers of classes, of which the names are left out: 0 for 'n', 1 for 'y', 2 for 's', ...",
        "column tags holds numbers of classes, of which the names are left out: 0 for 'a'",
    ]


@pytest.mark.parametrize("note", [b"", b"[]", b'{"info": {}}', b'{"info": {"features": [1]}}'])
def test_a_note_that_is_none_of_ours_to_read_says_nothing(note: bytes) -> None:
    """Whatever another program keeps under that name."""
    assert remarks(pa.schema([("x", pa.int8())], metadata={b"huggingface": note})) == []


def test_bytes_inside_are_told() -> None:
    """Only columns of bytes become parts."""
    table = pa.table({"x": pa.array([[b"a"]], pa.list_(pa.binary()))})

    assert "cannot be written as JSON" in str(rows(table)[0].problem)


def test_a_binary_column_is_a_part_called_as_it_is() -> None:
    """In lower case, as readers turn it; an empty cell leaves it out; no other column, no object."""
    table = pa.table({"Wave": pa.array([b"a", None], pa.large_binary()), "n": [1, 2]})

    assert [row.parts for row in rows(table)] == [{"json": b'{"n":1}', "wave": b"a"}, {"json": b'{"n":2}'}]
    assert rows(table.select(["Wave"]))[0].parts == {"wave": b"a"}
    assert rows(table.select(["Wave"]))[1].problem == "it has no value at all"


def test_an_image_is_a_part_called_by_its_extension() -> None:
    """Of a single such column; where the path says nothing, by the column."""
    cells = [("x/cat.JPG", b"1"), (None, b"2"), ("noext", b"3"), ("a.b c", b"4"), ("v1.0/.png", b"5")]
    table = pa.table({"image": pa.array([{"bytes": data, "path": path} for path, data in cells], MEDIA)})

    assert [list(row.parts) for row in rows(table)] == [["jpg"], ["image"], ["image"], ["image"], ["image"]]


def test_several_images_are_told_apart_by_their_columns() -> None:
    """Whatever their extensions."""
    cell = pa.array([{"bytes": b"1", "path": "x.png"}], MEDIA)
    table = pa.table({"before": cell, "after": cell, "mask": pa.array([b"m"])})

    assert sorted(rows(table)[0].parts) == ["after.png", "before.png", "mask"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"bytes": None, "path": "x.jpg"}, "column image names the file x.jpg and holds no bytes"),
        ({"bytes": b"", "path": "x.jpg"}, "column image is empty"),
        ({"bytes": b"1", "path": "x.json"}, "column image would be the part json, which another column is"),
    ],
)
def test_an_image_that_is_none_is_told(cell: dict[str, object], said: str) -> None:
    """A file that was not embedded, no bytes, a name that is taken."""
    table = pa.table({"image": pa.array([cell], MEDIA), "n": [1]})

    assert rows(table)[0].problem == said


@pytest.mark.parametrize("name", ["__x__", "a..b", "a/b", ""])
def test_a_binary_column_whose_name_is_no_part_is_refused(name: str) -> None:
    """Before a row is looked at."""
    with pytest.raises(InputError, match="cannot be the name of a sample's part"):
        Cells(pa.schema([(name, pa.binary())]), key_field="id")


def test_two_columns_of_one_name_are_refused() -> None:
    """One of them would be lost."""
    with pytest.raises(InputError, match="two columns are called x"):
        Cells(pa.schema([("x", pa.int8()), ("x", pa.int8())]), key_field="id")


def test_an_extension_type_is_what_it_is_stored_as() -> None:
    """Of fixed shape, or of another library."""
    kind = pa.fixed_shape_tensor(pa.int8(), [2])
    storage = pa.array([[1, 2]], pa.list_(pa.int8(), 2))
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})

    assert rows(table)[0].parts == {"json": b'{"x":[1,2]}'}


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.timestamp("us", "Europe/Berlin"), 0, '"1970-01-01T00:00:00+00:00"'),
        (pa.timestamp("ns", "Asia/Kathmandu"), 1, '"1970-01-01T00:00:00.000000001Z"'),
        (pa.list_(pa.timestamp("ns")), [1], '["1970-01-01T00:00:00.000000001"]'),
        (pa.large_list(pa.timestamp("ns")), [1, None], '["1970-01-01T00:00:00.000000001",null]'),
        (pa.list_(pa.timestamp("ns"), 1), [1], '["1970-01-01T00:00:00.000000001"]'),
        (pa.struct([("t", pa.timestamp("s", "Asia/Tokyo"))]), {"t": 0}, '{"t":"1970-01-01T00:00:00+00:00"}'),
        (pa.struct([("t", pa.list_(pa.duration("s")))]), {"t": [5]}, '{"t":[5]}'),
        (pa.struct([("t", pa.timestamp("ns")), ("s", pa.string())]), {"s": "a b"}, '{"t":null,"s":"a b"}'),
        (pa.map_(pa.string(), pa.timestamp("ns")), [("k", 1)], '[["k","1970-01-01T00:00:00.000000001"]]'),
    ],
)
def test_times_are_the_same_bytes_on_every_machine(kind: pa.DataType, value: object, written: str) -> None:
    """Nested, to the nanosecond, or of a zone: not by pandas, where it is installed, nor by this machine's zones."""
    table = pa.table({"c": pa.array([value], kind)})

    (row,) = Cells(table.schema, key_field="id").rows(table.to_batches()[0])

    assert row.parts["json"].decode() == f'{{"c":{written}}}'


def test_a_time_that_python_has_not_is_told() -> None:
    """A year of six digits: an error with the column, not a traceback."""
    table = pa.table({"c": pa.array([2**42], pa.timestamp("s"))})

    with pytest.raises(InputError, match="column c has values that cannot be taken"):
        list(Cells(table.schema, key_field="id").rows(table.to_batches()[0]))
