"""data/changes: what became of samples, against a plain comparison of dictionaries."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.changes import Roll, SampleChanges, sample_changes, shard_changes
from datakit.data.digest import entry_of
from datakit.data.index import Index
from datakit.data.manifest import Contents, Manifest, ShardEntry, layout_digest
from datakit.data.shard import Sample
from support.samples import shard_of

Layout = list[list[tuple[str, int]]]
"""Shards of samples: a key, and a number that decides the contents."""

KEYS = st.integers(0, 40).map(lambda number: f"k{number}")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Samples with unique keys, cut into shards."""
    items = list(draw(st.dictionaries(KEYS, st.integers(0, 3), max_size=25)).items())
    cuts = sorted(draw(st.lists(st.integers(0, len(items)), max_size=4)))
    bounds = [0, *cuts, len(items)]
    return [items[start:stop] for start, stop in pairwise(bounds)]


def roll(layout: Layout) -> Roll:
    result = Roll()
    for number, shard in enumerate(layout):
        _, rows = shard_of([Sample(key, {"n": b"%d" % value}) for key, value in shard])
        result.add(number, Index.from_rows(rows))
    return result


def compare(old: Layout, new: Layout) -> SampleChanges:
    return sample_changes(roll(old), roll(new))


def places(layout: Layout) -> dict[str, tuple[int, int, int]]:
    return {key: (number, row, value) for number, shard in enumerate(layout) for row, (key, value) in enumerate(shard)}


@given(layouts(), layouts())
def test_every_sample_is_accounted_for_as_in_two_dictionaries(old: Layout, new: Layout) -> None:
    """Added, removed, changed and kept are what sets of keys and values say, each with its place, in order."""
    before, after = places(old), places(new)

    found = compare(old, new)

    both = before.keys() & after.keys()
    changed = sorted(after[key][:2] + before[key][:2] for key in both if before[key][2] != after[key][2])
    assert [tuple(row) for row in found.added.tolist()] == sorted(
        after[key][:2] for key in after.keys() - before.keys()
    )
    assert [tuple(row) for row in found.removed.tolist()] == sorted(
        before[key][:2] for key in before.keys() - after.keys()
    )
    assert [(*row[2:], *row[:2]) for row in found.changed.tolist()] == changed
    assert found.kept == len(both) - len(changed)
    gone = {before[key][2] for key in before.keys() - after.keys()}
    assert found.renamed == len(gone & {after[key][2] for key in after.keys() - before.keys()})


@given(layouts())
def test_nothing_differs_from_itself(layout: Layout) -> None:
    """Whatever the shards."""
    found = compare(layout, layout)

    assert (len(found.added), len(found.removed), len(found.changed), len(found.moved)) == (0, 0, 0, 0)
    assert found.kept == sum(map(len, layout))


@given(layouts(), layouts())
def test_what_is_added_one_way_is_removed_the_other_way(old: Layout, new: Layout) -> None:
    """And what changed there changed back."""
    there, back = compare(old, new), compare(new, old)

    assert there.added.tolist() == back.removed.tolist()
    assert there.kept == back.kept
    assert len(there.changed) == len(back.changed)


def test_an_edit_moves_none_of_its_neighbours() -> None:
    """Its shard is written anew, and goes back to the one that it was."""
    shard = [(f"k{number}", 0) for number in range(9)]
    other = [(f"m{number}", 0) for number in range(9)]

    found = compare([shard, other], [[("k0", 1), *shard[1:]], [*other[:-1]]])

    assert found.changed.tolist() == [[0, 0, 0, 0]]
    assert found.removed.tolist() == [[1, 8]]
    assert found.moved.tolist() == []
    assert found.kept == 16


def test_samples_that_a_cut_has_carried_over_have_moved() -> None:
    """Two shards are cut at another place: those that crossed over are named with both places."""
    items = [(f"k{number}", 0) for number in range(10)]

    found = compare([items[:5], items[5:]], [items[:7], items[7:]])

    assert found.moved.tolist() == [[1, 0, 0, 5], [1, 1, 0, 6]]
    assert found.kept == 10


def test_a_shard_that_was_torn_apart_moves_nothing() -> None:
    """Each half goes back to it."""
    items = [(f"k{number}", 0) for number in range(10)]

    assert compare([items], [items[:5], items[5:]]).moved.tolist() == []
    assert compare([items[:6], items[6:]], [items]).moved.tolist() == [[1, row, 0, 6 + row] for row in range(4)]


def test_contents_under_another_key_are_renamed() -> None:
    """They are removed and added, and counted once more as what they are; equal contents count by themselves."""
    found = compare([[("a", 1), ("b", 2), ("c", 3)]], [[("x", 1), ("y", 1), ("c", 3)]])

    assert (len(found.added), len(found.removed), found.renamed, found.kept) == (2, 2, 1, 1)


def test_two_empty_datasets_are_equal() -> None:
    """No row, and no shard at all."""
    found = compare([], [[]])

    assert found.kept == 0
    assert found.added.dtype == np.int64


def test_keys_that_share_their_beginning_are_not_mixed_up() -> None:
    """The whole key is hashed, in UTF-8, whatever its script."""
    found = compare([[("k1", 0), ("é", 0)]], [[("k10", 0), ("e\u0301", 0)]])

    assert (len(found.added), len(found.removed), found.kept) == (2, 2, 0)


def manifest(*shards: tuple[str, bytes], keys: bytes = b"") -> Manifest:
    entries = [entry_of(name, data) for name, data in shards]
    listed = tuple(ShardEntry(name, 1, f"{name}.index") for name, _ in shards)
    layout = layout_digest((entry.name, entry.sha256, 1) for entry in entries)
    about = Contents("0" * 64, layout, len(shards), 0, {}, listed, {}).to_about()
    return Manifest("dataset", "ds", (*entries, *(entry_of(f"{name}.index", keys) for name, _ in shards)), about)


def test_shards_are_known_by_their_bytes() -> None:
    """A name says nothing: the same bytes under another are reused, other bytes under the same are new."""
    old = manifest(("a", b"1"), ("b", b"2"), ("c", b"3"))
    new = manifest(("x", b"2"), ("a", b"9"), ("c", b"3"))

    found = shard_changes(old, new)

    assert (found.reused, found.new, found.dropped) == ((0, 2), (1,), (0,))


def test_equal_bytes_under_another_index_are_another_shard() -> None:
    """An index may give its samples other keys (`reindex --keys tar`); the tar does not tell."""
    found = shard_changes(manifest(("a", b"1"), keys=b"first"), manifest(("a", b"1"), keys=b"second"))

    assert (found.reused, found.new, found.dropped) == ((), (0,), (0,))
