"""source/columns: a column in a file gives what it would give in memory, and takes none."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import NoSpace
from datakit.source import columns
from datakit.source.columns import (
    IN_MEMORY,
    Spill,
    having,
    kept,
    later,
    let_go,
    picked,
    repeated,
    subset,
    tally,
    thinned,
    within,
)
from datakit.source.records import KeyColumn, Keys

PIECES = st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=20), max_size=6)


@pytest.fixture(scope="module", autouse=True)
def few(tmp_path_factory: pytest.TempPathFactory) -> Spill:
    """A spill for columns of more than three numbers, which are looked at by sevens."""
    with pytest.MonkeyPatch.context() as patch:
        for name, rows in (("LIMIT_BYTES", 24), ("STRETCH", 7), ("NEAR", 5), ("SORTED", 4)):
            patch.setattr(columns, name, rows)
        yield Spill(tmp_path_factory.mktemp("spool"))


def column(pieces: list[list[int]], spill: Spill) -> np.ndarray:
    """A column of numbers."""
    growing = spill.column(np.uint64)
    for piece in pieces:
        growing.append(np.array(piece, np.uint64))
    return growing.done()


@given(PIECES, st.randoms(use_true_random=False))
def test_a_column_in_a_file_is_one_in_memory(few: Spill, pieces: list[list[int]], random: object) -> None:
    """Whatever is asked of it, in any order, also after it was let go of."""
    plain = np.array([number for piece in pieces for number in piece], np.uint64)
    count = len(plain)
    some = np.array([random.randrange(count) for _ in range(9)] if count else [], np.int64)  # type: ignore[attr-defined]  # a Random
    gone = [np.unique(some)[::2], np.unique(some)[1::2]]

    ours = column(pieces, few)

    assert ours.tolist() == column(pieces, IN_MEMORY).tolist() == plain.tolist()
    let_go(ours)
    assert picked(ours, some).tolist() == plain[some].tolist()
    assert picked(ours, slice(2, 6)).tolist() == plain[2:6].tolist()
    assert subset(ours, some, spill=few).tolist() == plain[some].tolist()
    assert thinned(ours, gone, spill=few).tolist() == np.delete(plain, some).tolist()
    assert [position for its in kept(count, gone) for position in its] == np.delete(np.arange(count), some).tolist()
    twice = [its.tolist() for its in repeated(ours)]
    found = list(itertools.chain.from_iterable(twice))
    assert sorted(found) == [at for at, number in enumerate(plain) if (plain == number).sum() > 1]
    assert all(its == sorted(its) for its in twice)
    assert sum(len(set(plain[its])) for its in twice) == len(set(plain[found]))
    inside = within(ours, 3, 2**63, rows=slice(count // 3, count))
    assert inside.tolist() == [at for at in range(count // 3, count) if 3 <= plain[at] <= 2**63]


@given(st.lists(st.integers(0, 3)))
def test_rows_are_counted_and_found_by_their_kind(few: Spill, kinds: list[int]) -> None:
    """Wherever the column is."""
    ours = few.column(np.int32)
    ours.append(np.array(kinds, np.int32))
    kind_of = ours.done()

    assert tally(kind_of, 4).tolist() == [kinds.count(kind) for kind in range(4)]
    wanted = np.array([False, True, True, False])
    assert list(having(kind_of, wanted)) == [at for at, kind in enumerate(kinds) if kind in (1, 2)]


@given(st.lists(st.lists(st.text(max_size=40), max_size=20), max_size=5), st.randoms(use_true_random=False))
def test_keys_in_a_file_are_keys_in_memory(few: Spill, pieces: list[list[str]], random: object) -> None:
    """Any choice of them with their hashes, near or far, and what is left when some go."""
    keys = [key for piece in pieces for key in piece]
    some = np.array([random.randrange(len(keys)) for _ in range(9)] if keys else [], np.int64)  # type: ignore[attr-defined]  # a Random
    growing, plain = Keys(few), KeyColumn.of(keys)

    for piece in pieces:
        growing.append(KeyColumn.of(piece))
    ours = growing.done()

    assert list(ours) == keys
    assert ours.take(some) == plain.take(some)
    assert ours.chosen(some).hashes().tolist() == plain.chosen(some).hashes().tolist()
    gone = np.unique(some)
    left = ours.without([gone], spill=few)
    assert list(left) == np.delete(np.array(keys, object), gone).tolist()
    assert left.hashes().tolist() == np.delete(plain.hashes(), gone).tolist()


@given(st.lists(st.integers(0, 5), max_size=20), st.booleans())
def test_rows_that_repeat_earlier_ones_are_found(values: list[int], heads_equal: bool) -> None:
    """All but the first of equal ones, whichever half differs."""
    rows = [(b"\0" * 8 if heads_equal else bytes([value]) * 8) + bytes([value]) * 8 for value in values]

    found = later(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 16))

    assert found.tolist() == [at for at, value in enumerate(values) if value in values[:at]]


def test_a_column_keeps_its_rows_and_their_kind(few: Spill) -> None:
    """Rows of digests stay rows, and an empty column has them too."""
    digests = np.arange(64, dtype=np.uint8).reshape(4, 16)
    ours = few.column(np.uint8, width=16)
    ours.append(digests[:1])
    ours.append(digests[1:])

    assert np.array_equal(ours.done(), digests)
    assert ours.done() is ours.done()
    assert few.column(np.uint8, width=16).done().shape == (0, 16)
    assert few.column(np.int32).done().dtype == np.int32


def test_a_file_of_a_column_has_no_name(few: Spill) -> None:
    """So a kill leaves nothing; the folder is one that Git leaves alone."""
    growing = few.column(np.uint64)
    growing.append(np.arange(1000))

    ours = growing.done()

    assert few.folder is not None
    assert os.listdir(few.folder) == [".gitignore"]
    assert ours[-1] == 999
    with pytest.raises(ValueError, match="read-only"):
        ours[0] = 1


def test_a_column_that_is_given_up_closes_its_file(few: Spill) -> None:
    """At once, and without a warning."""
    before = len(os.listdir("/proc/self/fd"))
    growing = few.column(np.uint64)
    growing.append(np.arange(1000))
    during = len(os.listdir("/proc/self/fd"))

    del growing

    assert (during, len(os.listdir("/proc/self/fd"))) == (before + 1, before)


def test_a_full_disk_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    """Rows are written through the file, where a full disk answers, and not through a map, where it kills."""
    growing = Spill(tmp_path).column(np.uint64)
    growing.append(np.arange(10))
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), growing._descriptor)

    with pytest.raises(NoSpace, match="no space to write"):
        growing.append(np.arange(10))
