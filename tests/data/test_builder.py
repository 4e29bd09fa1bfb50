"""data/builder: a bundled shard holds every line where its row says, and any reader gets the same lines."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, UsageError
from datakit.data.builder import ShardBuilder
from datakit.data.digest import crc32c
from datakit.data.index import Index
from datakit.data.shard import BLOCK_BYTES, END, Sample, bundle_bytes, members, sample_digest
from support import golden
from support.packing import raw_lines, tree
from support.peers import datasets_rows, webdataset_samples
from support.samples import KEYS, shard_of

LINE = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")) | st.sampled_from([b"x" * 510, b"y" * 511])
LINES = st.lists(
    st.builds(lambda key, line: Sample(key, {"json": line}), KEYS, LINE), max_size=9, unique_by=lambda s: s.key
)
BUNDLE = st.integers(1, 5)
SOME = [Sample(f"r{number:02d}", {"json": b'{"n": %d}' % number}) for number in range(10)]


@given(LINES, BUNDLE)
def test_a_row_addresses_its_very_line(samples: list[Sample], bundle: int) -> None:
    """Offset, size and checksum lead to the line without its newline; the newline is the next byte."""
    data, rows = shard_of(samples, bundle=bundle)

    assert [row.key for row in rows] == [sample.key for sample in samples]
    for sample, row in zip(samples, rows, strict=True):
        place = row.parts["json"]
        line = data[place.offset : place.offset + place.size]
        assert set(row.parts) == {"json"}
        assert line == sample.parts["json"]
        assert crc32c(line) == place.crc32c
        assert data[place.offset + place.size : place.offset + place.size + 1] == b"\n"


@given(LINES, BUNDLE)
def test_every_byte_follows_from_the_rows(samples: list[Sample], bundle: int) -> None:
    """Bundle i is rows i*K to (i+1)*K, named after its first; names and sizes of members follow from rows alone."""
    data, rows = shard_of(samples, bundle=bundle)

    starts = range(0, len(rows), bundle)
    groups = [rows[start : start + bundle] for start in starts]
    assert [(member.name, member.size) for member in members(data)] == [
        (f"{group[0].key}.jsonl", sum(row.parts["json"].size + 1 for row in group)) for group in groups
    ]


@given(LINES, BUNDLE)
def test_a_bundled_size_is_known_beforehand(samples: list[Sample], bundle: int) -> None:
    """`bundle_bytes` of the lines' sizes is the shard, which is what a plan promises."""
    data, _rows = shard_of(samples, bundle=bundle)

    sizes = np.array([len(sample.parts["json"]) for sample in samples], np.int64)
    assert bundle_bytes(sizes, bundle) == len(data)


@given(LINES, BUNDLE)
def test_a_bundle_changes_no_sample(samples: list[Sample], bundle: int) -> None:
    """Digest and content are those of the unbundled sample, so the content digest of a dataset is the same."""
    _data, rows = shard_of(samples, bundle=bundle)
    _plain, plain_rows = shard_of(samples)

    assert [(row.key, row.digest, row.parts["json"].crc32c) for row in rows] == [
        (row.key, row.digest, row.parts["json"].crc32c) for row in plain_rows
    ]
    assert [row.digest for row in rows] == [sample_digest(sample.parts) for sample in samples]


@given(LINES, BUNDLE)
def test_the_bundled_bytes_are_those_of_pythons_ustar(samples: list[Sample], bundle: int) -> None:
    """CPython's tarfile, told the same members, writes the same bytes; only its end is padded to 10,240."""
    data, _rows = shard_of(samples, bundle=bundle)
    theirs = io.BytesIO()

    with tarfile.open(fileobj=theirs, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for start in range(0, len(samples), bundle):
            group = samples[start : start + bundle]
            content = b"".join(sample.parts["json"] + b"\n" for sample in group)
            info = tarfile.TarInfo(f"{group[0].key}.jsonl")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

    assert theirs.getvalue()[: len(data)] == data
    assert not any(theirs.getvalue()[len(data) :])


@given(LINES, BUNDLE)
def test_the_index_of_a_bundled_shard_is_an_index_like_any(samples: list[Sample], bundle: int) -> None:
    """It has the columns of a JSONL dataset, and comes back as it was."""
    _data, rows = shard_of(samples, bundle=bundle)

    index = Index.from_buffer(Index.from_rows(rows).to_bytes())

    assert index.rows() == list(rows)
    assert index.parts == (("json",) if rows else ())


def test_webdataset_and_datasets_read_k_lines_a_member(tmp_path: Path) -> None:
    """Stock readers see a sample for each bundle, with the lines as its part `jsonl`."""
    (tmp_path / "s.tar").write_bytes(shard_of(SOME, bundle=4)[0])

    found = webdataset_samples(tmp_path / "s.tar")
    rows = datasets_rows([tmp_path / "s.tar"], cache=tmp_path / "cache")

    expected = [SOME[0:4], SOME[4:8], SOME[8:10]]
    assert [(sample.key, list(sample.parts)) for sample in found] == [(group[0].key, ["jsonl"]) for group in expected]
    assert [sample.parts["jsonl"].splitlines() for sample in found] == [
        [sample.parts["json"] for sample in group] for group in expected
    ]
    assert [row["key"] for row in rows] == ["r00", "r04", "r08"]


def test_gnu_tar_extracts_json_lines(tmp_path: Path) -> None:
    """A bundle unpacks as a file of JSON lines, without a warning."""
    (tmp_path / "s.tar").write_bytes(shard_of(SOME, bundle=4)[0])

    done = subprocess.run(["tar", "--extract", "--file", "s.tar"], cwd=tmp_path, capture_output=True, check=True)

    assert done.stderr == b""
    unpacked = sorted(tmp_path.glob("*.jsonl"))
    assert [path.name for path in unpacked] == ["r00.jsonl", "r04.jsonl", "r08.jsonl"]
    assert b"".join(path.read_bytes() for path in unpacked) == b"".join(s.parts["json"] + b"\n" for s in SOME)


def test_short_lines_take_a_fraction_of_the_room() -> None:
    """Sixty-four lines of 200 bytes: 1 KiB each as members, a little over 200 bytes each in a bundle."""
    samples = [Sample(f"{number:04d}", {"json": b"x" * 200}) for number in range(640)]

    plain, bundled = len(shard_of(samples)[0]), len(shard_of(samples, bundle=64)[0])

    assert plain == 640 * 2 * BLOCK_BYTES + len(END)
    assert bundled == 10 * (BLOCK_BYTES + 64 * 201 + -(64 * 201) % BLOCK_BYTES) + len(END)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (Sample("a", {}), "no parts"),
        (Sample("a", {"txt": b""}), "parts txt; in a bundle each is one JSON line"),
        (Sample("a", {"json": b"{}", "txt": b""}), "parts json, txt; in a bundle"),
        (Sample("a", {"json": b"{\n}"}), "a newline at byte 1 of its line"),
        (Sample("k" * 95, {"json": b"{}"}), "k.jsonl is 101 bytes long, more than a tar"),
        (Sample("a.b", {"json": b"{}"}), "first dot"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_what_a_bundle_cannot_hold_is_refused(sample: Sample, said: str, before: int) -> None:
    """First in its bundle or second, a refused sample leaves nothing behind, and the builder goes on."""
    data = bytearray()
    builder = ShardBuilder(data.extend, bundle=2)
    for good in SOME[:before]:
        builder.add(good)

    with pytest.raises(InputError, match=said):
        builder.add(sample)
    for good in SOME[before:]:
        builder.add(good)
    rows = builder.finish()

    assert (bytes(data), list(rows)) == (shard_of(SOME, bundle=2)[0], list(shard_of(SOME, bundle=2)[1]))


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (Sample("a", {}), "no parts"),
        (Sample("a.b", {"txt": b""}), "first dot"),
        (Sample("a", {"TXT": b""}), "lower case"),
        (Sample("k" * 200, {"txt": b""}), "more than a tar"),
    ],
)
def test_what_a_shard_cannot_hold_is_refused_before_a_byte_is_written(sample: Sample, said: str) -> None:
    """A refused sample leaves no half member behind; the builder goes on."""
    pieces: list[bytes] = []
    builder = ShardBuilder(pieces.append)

    with pytest.raises(InputError, match=said):
        builder.add(sample)

    assert pieces == []
    builder.add(SOME[1])
    assert [row.key for row in builder.finish()] == ["r01"]


def test_a_bundle_of_no_line_is_refused() -> None:
    """Zero and less are no bundle; a shard without bundles has None."""
    for bundle in (0, -1):
        with pytest.raises(UsageError, match=f"a bundle needs 1 line or more, not {bundle}"):
            ShardBuilder(len, bundle=bundle)


def test_golden_bundles_are_what_they_were(tmp_path: Path) -> None:
    """A bundled shard of format 1 and its index, byte for byte."""
    golden.make_bundle(tmp_path)

    assert tree(tmp_path) == tree(golden.BUNDLE)


def test_the_golden_bundle_is_read() -> None:
    """Each row of the golden index leads to the line that it was made from."""
    (path,) = golden.BUNDLE.glob("*.tar")
    data = path.read_bytes()

    rows = Index.from_buffer((golden.BUNDLE / f"{path.name}.index.arrow").read_bytes()).rows()

    places = [row.parts["json"] for row in rows]
    assert [data[place.offset : place.offset + place.size] for place in places] == raw_lines(24)
