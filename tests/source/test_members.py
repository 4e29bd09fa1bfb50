"""source/members: records inside other files, in any choice, and none that changed."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.data.shard import Sample, member_bytes, sample_digest
from datakit.source.members import Holder, Members, Piece, joined
from datakit.source.records import KeyColumn

SAMPLES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.binary(min_size=1, max_size=9), min_size=1), max_size=6
)


def laid(path: Path, samples: list[Sample], *, exact: bool = True) -> Piece:
    """A file with the samples' parts one behind the other, and its piece."""
    kinds: dict[tuple[str, ...], int] = {}
    kind_of, offsets, sizes, data, digests = [], [], [], b"", b""
    for sample in samples:
        names = tuple(sorted(sample.parts))
        kind_of.append(kinds.setdefault(names, len(kinds)))
        for name in names:
            offsets.append(len(data))
            sizes.append(len(sample.parts[name]))
            data += sample.parts[name]
        digests += sample_digest(sample.parts)
    path.write_bytes(data)
    return Piece(
        holder=Holder.at(path.name, str(path), exact=exact),
        keys=KeyColumn.of([sample.key for sample in samples]),
        kinds=tuple(kinds),
        kind_of=np.array(kind_of, np.int32),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        signatures=np.frombuffer(digests, np.uint8).reshape(-1, 16),
        rows=np.arange(1, len(samples) + 1),
    )


def table_of(root: Path, *files: list[Sample], exact: bool = True) -> Members:
    """The table of some files."""
    return joined([laid(root / f"f{number}", samples, exact=exact) for number, samples in enumerate(files)])


@given(st.lists(SAMPLES, max_size=4), st.randoms(use_true_random=False))
def test_any_choice_of_records_is_read_over_files(
    tmp_path_factory: pytest.TempPathFactory, contents: list[list[dict[str, bytes]]], random: object
) -> None:
    """In any order, pickled; sizes, digests and counts are those of the samples."""
    files = [[Sample(f"{f}-{n}", parts) for n, parts in enumerate(samples)] for f, samples in enumerate(contents)]
    everything = [sample for samples in files for sample in samples]
    table = table_of(tmp_path_factory.mktemp("members"), *files)
    chosen = [random.randrange(len(everything)) for _ in range(8)] if everything else []  # type: ignore[attr-defined]  # a Random
    positions = np.array(chosen, np.int64)

    batch = pickle.loads(pickle.dumps(table.take(positions)))

    assert list(batch.samples()) == [everything[position] for position in chosen]
    assert table.signatures(positions) == [sample_digest(everything[position].parts) for position in chosen]
    sizes = [[len(data) for data in sample.parts.values()] for sample in everything]
    assert table.part_bytes(slice(0, len(table.keys))).tolist() == [sum(each) for each in sizes]
    assert table.shard_bytes(slice(0, len(table.keys))).tolist() == [sum(map(member_bytes, each)) for each in sizes]
    assert table.part_counts == {
        part: count for part in "abc" if (count := sum(part in sample.parts for sample in everything))
    }


def test_records_that_clash_over_files_are_told(tmp_path: Path) -> None:
    """The first stays, and the others still have their own bytes."""
    one = [Sample("a", {"x": b"1"}), Sample("b", {"x": b"22", "y": b"3"})]
    two = [Sample("B", {"x": b"4"}), Sample("c", {"y": b"5"}), Sample("a", {"x": b"6"})]

    table = table_of(tmp_path, one, two)

    assert list(table.take(np.arange(3)).samples()) == [*one, two[1]]
    assert [str(trouble) for trouble in table.troubles] == [
        "f1:1: its key B differs from b (f0:2) only by case",
        "f1:3: its key a is that of f0:1",
    ]


def test_records_that_lack_a_part_are_counted(tmp_path: Path) -> None:
    """Where most have it."""
    table = table_of(tmp_path, [Sample("a", {"x": b"1"}), Sample("b", {"x": b"2", "y": b"3"})])

    assert [remark.message for remark in table.remarks] == ["of 2 samples, 1 lacks y (a)"]


@pytest.mark.parametrize("exact", [True, False])
def test_a_file_that_changed_is_refused(tmp_path: Path, exact: bool) -> None:
    """By its time or size when it is opened and when it is left; by a digest where there are some."""
    table = table_of(tmp_path, [Sample("a", {"x": b"abc"})], exact=exact)
    os.utime(tmp_path / "f0", ns=(1, 1))

    with pytest.raises(InputError, match="f0 is not what it was when it was listed"):
        list(table.take(np.arange(1)).samples())


def test_bytes_that_do_not_match_their_digest_are_refused(tmp_path: Path) -> None:
    """Same size, as if listed since: a digest tells, as an index of ours has them."""
    table = table_of(tmp_path, [Sample("a", {"x": b"abc"}), Sample("b", {"x": b"def"})])
    (tmp_path / "f0").write_bytes(b"abcdeF")
    table = replace(table, holders=(Holder.at("f0", str(tmp_path / "f0"), exact=True),))

    with pytest.raises(InputError, match="f0:2 is not what it was when it was listed, or not what its index says"):
        list(table.take(np.arange(2)).samples())


def test_a_file_that_is_written_to_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """It is looked at again when it is left, even for the last record."""
    table = table_of(tmp_path, [Sample("a", {"x": b"abc"}), Sample("b", {"x": b"def"})], exact=False)
    samples = table.take(np.arange(2)).samples()
    next(samples)
    os.utime(tmp_path / "f0", ns=(1, 1))
    next(samples)

    with pytest.raises(InputError, match="f0 is not what it was"):
        next(samples)


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    """Nor is a file without records any."""
    for table in (table_of(tmp_path), table_of(tmp_path, [])):
        assert len(table.keys) == len(table.part_bytes(slice(0, 0))) == len(table.shard_bytes(slice(0, 0))) == 0
        assert table.part_counts == {}


def test_digests_need_no_times_and_places_do(tmp_path: Path) -> None:
    """When the source of what a record lies in was changed; 0 where its digest tells what it holds."""
    pieces = [laid(tmp_path / name, [Sample(name, {"x": b"1"})], exact=False) for name in "abc"]
    pieces = [replace(piece, holder=piece.holder._replace(source_ns=n)) for n, piece in enumerate(pieces, start=5)]
    table, sure = joined(pieces), joined([replace(piece, holder=piece.holder._replace(exact=True)) for piece in pieces])

    assert table.newest_ns(np.array([0, 1])) == 6
    assert table.newest_ns(np.array([2, 0])) == 7
    assert table.newest_ns(np.array([], np.int64)) == 0
    assert sure.newest_ns(np.array([0, 1, 2])) == 0


def test_a_digest_that_an_index_says_holds_for_one_version_of_its_file(tmp_path: Path) -> None:
    """What is remembered of such records tells those versions, and their times; of others there is none to tell."""
    said, found, timed = (laid(tmp_path / name, [Sample(name, {"x": b"1"})], exact=name != "c") for name in "abc")
    said = replace(said, holder=said.holder._replace(source_ns=7, version=b"10 7"))
    table = joined([said, found, timed])

    assert table.versions(np.array([0])) == table.versions(np.array([2, 0, 1])) == b"10 7"
    assert table.versions(np.array([1, 2])) == b""
    assert table.newest_ns(np.array([0, 1])) == 7


def test_records_of_many_files_are_read_in_any_order(tmp_path: Path) -> None:
    """One file is open at a time, however often a batch goes back and forth."""
    table = table_of(tmp_path, *[[Sample(f"k{f}{n}", {"x": b"%d" % n}) for n in range(3)] for f in range(5)])
    order = np.array([n * 3 + f for f in range(3) for n in range(5)])

    samples = list(table.take(order).samples())

    assert [sample.key for sample in samples] == [f"k{n}{f}" for f in range(3) for n in range(5)]


def test_a_part_larger_than_one_read_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read gives 2 GiB at most, a part may have 8: it is read on, and not taken for one that changed."""
    samples = [Sample("a", {"x": b"abcdefgh", "y": b"ij"})]
    table = table_of(tmp_path, samples)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: whole(descriptor, min(size, 3), offset))

    assert list(table.take(np.arange(1)).samples()) == samples
