"""data/rows: columns that are the rows they were made of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.rows import Rows
from datakit.data.shard import Part, Row, Sample
from support.samples import SAMPLES, shard_of

ROWS = [
    Row("a", b"0" * 16, {"json": Part(512, 3, 7), "jpg": Part(1536, 0, 0)}),
    Row("b", b"1" * 16, {"json": Part(2048, 2**40, 2**32 - 1)}, tokens=5),
    Row("c", b"2" * 16, {"jpg": Part(4096, 1, 1)}, source="chat.jsonl"),
    Row("d", b"3" * 16, {}),
]


@given(SAMPLES)
def test_columns_hold_the_rows(samples: list[Sample]) -> None:
    """All at once, one by one, from the end or as a slice: the rows that the builder saw."""
    _data, rows = shard_of(samples)
    listed = list(rows)

    assert [(row.key, row.tokens, row.source) for row in listed] == [(s.key, s.tokens, s.source) for s in samples]
    assert [set(row.parts) for row in listed] == [set(sample.parts) for sample in samples]
    assert [rows[position] for position in range(len(rows))] == listed
    assert [rows[position - len(rows)] for position in range(len(rows))] == listed
    assert rows[1:3] == listed[1:3]
    assert list(rows.each_key()) == [sample.key for sample in samples]
    assert list(rows.each_digest()) == [row.digest for row in listed]


def test_rows_are_equal_to_any_sequence_of_the_same() -> None:
    """Lists and columns compare either way; another row, another length or no sequence is unequal."""
    columns = Rows.of(ROWS)

    assert columns == ROWS
    assert list.__eq__(ROWS, columns) is NotImplemented  # so that a list asks the columns
    assert columns == Rows.of(tuple(ROWS))
    assert columns != ROWS[:-1]
    assert columns != [*ROWS[:-1], ROWS[0]]
    assert columns != 4


def test_columns_are_not_made_twice() -> None:
    """What is columns already is handed back."""
    columns = Rows.of(ROWS)

    assert Rows.of(columns) is columns


def test_tokens_and_sources_are_there_only_where_a_row_has_them() -> None:
    """A column begins with the first row that has a value, and counts those before it as without."""
    columns = Rows.of(ROWS)

    assert (columns.tokens, columns.sources) == ([None, 5, None, None], [None, None, "chat.jsonl", None])
    assert (Rows.of(ROWS[:1]).tokens, Rows.of(ROWS[:1]).sources) == (None, None)


def test_a_part_that_no_row_has_is_no_part() -> None:
    """Asking for a column does not make a part."""
    columns = Rows.of(ROWS[:2])

    columns.column("png")

    assert columns.part_names() == ["jpg", "json"]
    assert columns == ROWS[:2]


@pytest.mark.parametrize("position", [4, -5])
def test_a_row_that_is_not_there_is_an_index_error(position: int) -> None:
    """As of any sequence."""
    with pytest.raises(IndexError):
        Rows.of(ROWS)[position]


@given(st.lists(st.sampled_from(ROWS)))
def test_rows_count_and_contain_as_a_list_does(rows: list[Row]) -> None:
    """It is a sequence in full."""
    columns: Sequence[Row] = Rows.of(rows)

    assert len(columns) == len(rows)
    assert [row in columns for row in ROWS] == [row in rows for row in ROWS]
    assert list(reversed(columns)) == rows[::-1]
