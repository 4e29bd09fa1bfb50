"""source/records: columns of keys give back what was put into them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.keys import key_hash
from datakit.source.records import KeyColumn, here, rows_of

KEYS = st.lists(st.text(max_size=60), max_size=200)


@given(KEYS, st.randoms(use_true_random=False))
def test_a_column_gives_back_its_keys(keys: list[str], random: object) -> None:
    """One by one, all, and any choice in any order; pickled too."""
    column = pickle.loads(pickle.dumps(KeyColumn.of(keys)))
    chosen = np.array([random.randrange(len(keys)) for _ in range(30)] if keys else [], np.int64)  # type: ignore[attr-defined]  # a Random

    some, bare = column.chosen(chosen), column.chosen(chosen, hashed=False)

    assert list(column) == [column[position] for position in range(len(column))] == keys
    assert column.take(chosen) == list(some) == [keys[position] for position in chosen.tolist()]
    assert column.hashes().tolist() == [key_hash(key) for key in keys]
    assert (list(bare), bare.known_hashes) == (list(some), None)
    assert some.hashes().tolist() == [key_hash(keys[position]) for position in chosen.tolist()]


@given(st.lists(st.text(max_size=8), max_size=300), st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_neighbours_are_those_of_a_list(keys: list[str], bounds: tuple[int, int]) -> None:
    """From any place to any other."""
    start, stop = (min(bound, len(keys)) for bound in sorted(bounds))

    found = KeyColumn.of(keys).between(slice(start, stop))

    assert found == keys[start:stop]


def test_keys_are_found_wherever_they_lie() -> None:
    """Far from each other, where each is looked up, and near, where lengths are added up once; none is no key."""
    keys = [f"{number:0{number % 9}d}é" for number in range(20_000)]
    column = KeyColumn.of(keys)
    far, near = np.array([19_999, 0, 7_777]), np.array([130, 64, 63, 127, 64])

    assert column.take(far) == [keys[position] for position in far.tolist()]
    assert column.take(near) == [keys[position] for position in near.tolist()]
    assert column.take(np.zeros(0, np.int64)) == []


def test_a_column_is_no_list_beyond_its_ends() -> None:
    """Neither behind the last key nor before the first."""
    column = KeyColumn.of(["a", "b"])

    for position in (2, -1):
        with pytest.raises(IndexError):
            column[position]


def test_a_key_takes_9_bytes_besides_its_own() -> None:
    """Length, hash and a share of a place, however many there are."""
    column = KeyColumn.of([f"{number:09d}" for number in range(10_000)])

    overhead = column.lengths.nbytes + column.hashes().nbytes + column.places.nbytes

    assert overhead / len(column) < 9.2
    assert len(column.text) == 9 * len(column)


def test_keys_of_255_bytes_fit() -> None:
    """The longest that USTAR can hold is shorter."""
    assert list(KeyColumn.of(["x" * 255, "", "\u00e9" * 127])) == ["x" * 255, "", "\u00e9" * 127]


def test_rows_are_cut_out_of_a_table() -> None:
    """In the order that they are asked for."""
    table = np.arange(12, dtype=np.uint8).reshape(4, 3)

    assert rows_of(table, np.array([3, 0])) == [b"\x09\x0a\x0b", b"\x00\x01\x02"]
    assert rows_of(table, np.array([], np.int64)) == []


def test_the_longest_columns_take_no_more_than_the_keys_they_hold() -> None:
    """A choice of a few keys out of many looks at their neighbours alone, wherever they stand."""
    keys = [f"{'x' * (number % 200)}{number}" for number in range(5000)]
    column = KeyColumn.of(keys)
    chosen = np.array([4999, 0, 63, 64, 65, 127, 128, 4999])

    some = column.chosen(chosen)

    assert list(some) == [keys[position] for position in chosen.tolist()]
    assert len(some.text) == sum(len(keys[position]) for position in chosen.tolist())


def test_tasks_run_here_one_after_the_other() -> None:
    """Where no engine is given."""
    assert list(here(len, ["a", "bc"])) == [1, 2]
