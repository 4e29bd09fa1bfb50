"""source/records: columns of keys give back what was put into them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.keys import key_hash
from datakit.source.records import KeyColumn, here, lacking, rows_of

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


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["jj"] * 6 + ["j"] * 4, ["of 10 samples, 4 lack json (k6, k7, k8, ...)"]),
        (["j", "s"] + ["jst"] + ["jj"] * 7, ["of 10 samples, 1 lacks jpg (k1), 3 lack json (k0, k1, k2)"]),
        (["j"] * 6 + ["s"] * 4, ["of 10 samples, 4 lack jpg (k6, k7, k8, ...)"]),
        (["j"] * 5 + ["s"] * 5, ["of 10 samples, 5 lack jpg (k5, k6, k7, ...), 5 lack seg (k0, k1, k2, ...)"]),
        (["jj"] * 10, []),
        ([], []),
    ],
)
def test_parts_that_most_records_have_are_missed_where_they_lack(kinds: list[str], said: list[str]) -> None:
    """By the first names; what only a few have is theirs."""
    parts = {"j": ["jpg"], "jj": ["jpg", "json"], "s": ["seg"], "jst": ["jpg", "seg", "txt"]}
    order = list(dict.fromkeys(kinds))
    kind_of = np.array([order.index(kind) for kind in kinds], np.int32)
    keys = KeyColumn.of(f"k{number}" for number in range(len(kinds)))

    assert [remark.message for remark in lacking([parts[kind] for kind in order], kind_of, keys)] == said


def test_tasks_run_here_one_after_the_other() -> None:
    """Where no engine is given."""
    assert list(here(len, ["a", "bc"])) == [1, 2]
