"""source/clashes: equal keys, and keys that a file system would merge."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.source.clashes import clashes, folded
from datakit.source.records import KeyColumn

FEW = st.lists(st.text(alphabet="aAbB1\u00e9\u00c9\u0301e", max_size=3), max_size=30)


@given(FEW)
def test_a_clash_is_found_exactly_where_a_plain_search_finds_one(keys: list[str]) -> None:
    """Every record whose key an earlier one has, exactly or in other letters, and no other."""
    earlier: set[str] = set()
    expected = []
    for position, key in enumerate(keys):
        if folded(key) in earlier:
            expected.append(position)
        earlier.add(folded(key))

    found = clashes(KeyColumn.of(keys))

    assert [clash.position for clash in found] == expected
    for clash in found:
        assert clash.earlier < clash.position
        assert keys[clash.position] == clash.key
        assert keys[clash.earlier] == clash.earlier_key
        assert folded(clash.key) == folded(clash.earlier_key)
        assert clash.earlier_key == clash.key or clash.key not in keys[: clash.position]


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("IMG_1", "img_1", True),
        ("Caf\u00e9", "cafe\u0301", True),
        ("\u00c9", "\u00e9", True),
        ("a", "b", False),
        ("stra\u00dfe", "strasse", False),
        ("a", "a ", False),
    ],
)
def test_what_file_systems_merge(one: str, other: str, *, clash: bool) -> None:
    """Case, and how an accent is composed; not what only looks alike."""
    assert bool(clashes(KeyColumn.of([one, other]))) == clash


def test_a_thousand_keys_with_capitals_do_not_clash() -> None:
    """Most cameras name files in capitals: what matters is two that differ by them alone."""
    keys = [f"IMG_{number:04d}" for number in range(1000)]

    assert clashes(KeyColumn.of(keys)) == []
    assert [clash.position for clash in clashes(KeyColumn.of([*keys, "img_0500"]))] == [1000]


def test_looking_leaves_the_hashes_alone() -> None:
    """Layouts are cut by them."""
    column = KeyColumn.of(["B", "a", "A"])
    before = column.hashes().copy()

    clashes(column)

    assert np.array_equal(column.hashes(), before)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("\u00e9", "e\u0301", "the way an accent is composed"),
        ("\u00c9", "\u00e9", "case"),
        ("E\u0301", "e\u0301", "case"),
        ("\u00c9", "e\u0301", "case and the way an accent is composed"),
    ],
)
def test_a_clash_says_in_what_the_keys_differ(one: str, other: str, said: str) -> None:
    """Two that look the same on a screen do not differ by case."""
    (clash,) = clashes(KeyColumn.of([one, other]))

    assert clash.trouble(where="x:2", earlier="x:1", hint="h", raws=()).problem.endswith(f"(x:1) only by {said}")


def test_a_clash_says_both_places() -> None:
    """By key, or by what the key would be taken for."""
    same, merged = clashes(KeyColumn.of(["a", "a", "A"]))

    told = [str(clash.trouble(where="x:2", earlier="x:1", hint="h", raws=())) for clash in (same, merged)]

    assert told == ["x:2: its key a is that of x:1", "x:2: its key A differs from a (x:1) only by case"]
    assert unicodedata.is_normalized("NFC", folded("e\u0301"))
