"""data/shard: the same bytes everywhere, read by everybody, and no damage passed over."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit import InputError, IntegrityError
from datakit.data.digest import crc32c
from datakit.data.shard import (
    BLOCK_BYTES,
    END,
    MAX_PART_BYTES,
    NAME_DIGITS,
    Sample,
    first_difference,
    header,
    member_bytes,
    members,
    parse_shard_name,
    sample_digest,
    shard_name,
)
from support.peers import datasets_rows, webdataset_samples
from support.samples import CONTENTS, PARTS, SAMPLES, shard_of

SOME = [
    Sample("b/two", {"txt": b"second", "json": b"{}"}),
    Sample("a", {"jpg": bytes(range(256)) * 5}),
    Sample("中文/é " + "x" * 60, {"seg.png": b"", "cls": b"7"}),
    Sample("d" * 120 + "/deep", {"txt": b"in the prefix"}),
]


@given(SAMPLES)
def test_what_is_written_is_read(samples: list[Sample]) -> None:
    """Every part's offset, size and checksum lead to its bytes; members come back in order, parts sorted."""
    data, rows = shard_of(samples)

    names = [f"{sample.key}.{part}" for sample in samples for part in sorted(sample.parts)]
    assert [member.name for member in members(data)] == names
    assert [(row.key, row.tokens, row.source) for row in rows] == [(s.key, s.tokens, s.source) for s in samples]
    for sample, row in zip(samples, rows, strict=True):
        assert row.digest == sample_digest(sample.parts)
        for part, place in row.parts.items():
            content = data[place.offset : place.offset + place.size]
            assert content == sample.parts[part]
            assert crc32c(content) == place.crc32c


@given(SAMPLES)
def test_the_bytes_are_those_of_pythons_ustar(samples: list[Sample]) -> None:
    """CPython's tarfile, told the same names, writes the same bytes; only its end is padded to 10,240."""
    data, _rows = shard_of(samples)
    theirs = io.BytesIO()

    with tarfile.open(fileobj=theirs, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for part in sorted(sample.parts):
                info = tarfile.TarInfo(f"{sample.key}.{part}")
                info.size = len(sample.parts[part])
                tar.addfile(info, io.BytesIO(sample.parts[part]))

    assert theirs.getvalue()[: len(data)] == data
    assert not any(theirs.getvalue()[len(data) :])


@given(SAMPLES)
def test_the_size_is_known_beforehand(samples: list[Sample]) -> None:
    """Members and the end add up to the shard, which is what a plan promises."""
    data, _rows = shard_of(samples)

    sizes = [member_bytes(len(content)) for sample in samples for content in sample.parts.values()]
    assert sum(sizes) + len(END) == len(data)
    assert len(data) % BLOCK_BYTES == 0


def test_gnu_tar_reads_every_part_bit_for_bit(tmp_path: Path) -> None:
    """GNU tar lists the names and extracts the bytes, without a warning."""
    data, _rows = shard_of(SOME)
    (tmp_path / "s.tar").write_bytes(data)
    (tmp_path / "out").mkdir()

    done = subprocess.run(
        ["tar", "--extract", "--file", "s.tar", "--directory", "out"], cwd=tmp_path, capture_output=True, check=True
    )

    assert done.stderr == b""
    found = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {f"{sample.key}.{part}": data for sample in SOME for part, data in sample.parts.items()}


def test_headers_carry_no_trace_of_the_machine() -> None:
    """Mode 0644, owner 0 without a name, time 0, plain files."""
    data, _rows = shard_of(SOME)

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            traits = (member.mode, member.uid, member.gid, member.uname, member.gname, member.mtime, member.type)
            assert traits == (0o644, 0, 0, "", "", 0, tarfile.REGTYPE)
            assert member.pax_headers == {}


def test_webdataset_reads_every_sample_bit_for_bit(tmp_path: Path) -> None:
    """Stock webdataset groups the same keys and parts."""
    data, _rows = shard_of(SOME)
    (tmp_path / "s.tar").write_bytes(data)

    found = webdataset_samples(tmp_path / "s.tar")

    assert found == SOME


def test_hugging_face_datasets_reads_every_sample_bit_for_bit(tmp_path: Path) -> None:
    """`load_dataset("webdataset")` gives the same keys in the same order, bytes as they are and JSON as it says."""
    samples = [Sample(f"k/{n}", {"bin": bytes([n]) * n, "json": b'{"n": %d}' % n}) for n in range(20)]
    (tmp_path / "s.tar").write_bytes(shard_of(samples)[0])

    rows = datasets_rows([tmp_path / "s.tar"], cache=tmp_path / "cache")

    assert rows == [{"key": f"k/{n}", "parts": {"bin": (bytes([n]) * n).hex(), "json": {"n": n}}} for n in range(20)]


@given(st.dictionaries(PARTS, CONTENTS, min_size=1), st.data())
def test_a_sample_digest_tells_names_sizes_and_bytes_apart(parts: dict[str, bytes], data: st.DataObject) -> None:
    """Order of the parts plays no part; a renamed part, a moved byte or a missing one does."""
    digest = sample_digest(parts)
    part = data.draw(st.sampled_from(sorted(parts)))

    assert sample_digest(dict(reversed(parts.items()))) == digest
    assert sample_digest({**parts, part: parts[part] + b"\0"}) != digest
    assert sample_digest({("n" if name == part else name): content for name, content in parts.items()}) != digest
    assert sample_digest({name: content for name, content in parts.items() if name != part}) != digest


def test_a_sample_digest_never_changes() -> None:
    """It stands in indexes and content digests, so it is fixed by value."""
    assert sample_digest({"json": b"{}", "txt": b""}).hex() == "66108c00e7a8624119e77bf58efefb90"


def test_the_longest_and_highest_names_have_the_right_checksum() -> None:
    """Two full fields of the highest bytes that UTF-8 has: the sum in the header is that of tarfile."""
    key = "\U0010ffff" * 38 + "/" + "\U0010ffff" * 23

    head = header(key, "abc", 8**11 - 1)

    info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    assert (info.name, info.size) == (f"{key}.abc", 8**11 - 1)


def test_a_part_of_8_gib_is_refused() -> None:
    """Eleven octal digits end just below 8 GiB; there is no silent extension header."""
    assert len(header("a", "bin", MAX_PART_BYTES)) == BLOCK_BYTES

    with pytest.raises(InputError, match="a part can have 8589934591"):
        header("a", "bin", MAX_PART_BYTES + 1)


@settings(max_examples=300)
@given(st.integers(0, 2**40), st.integers(1, 255))
def test_no_flipped_byte_outside_the_contents_passes(where: int, flip: int) -> None:
    """Headers, padding and end blocks: any changed byte there is found; one in a content is not members' business."""
    data, rows = shard_of(SOME)
    byte = where % len(data)
    damaged = bytearray(data)
    damaged[byte] ^= flip

    inside = any(p.offset <= byte < p.offset + p.size for row in rows for p in row.parts.values())
    if inside:
        assert len(list(members(damaged))) == 6
        return
    with pytest.raises(IntegrityError) as caught:
        list(members(damaged))

    # the named byte is that of the damage, of its header, or where a wrong size led to
    assert isinstance(caught.value.subject, int)
    assert str(caught.value.subject) in caught.value.message


@settings(max_examples=200)
@given(st.integers(0, 2**40))
def test_no_cut_passes(where: int) -> None:
    """A shard cut anywhere, at a member's boundary too, is not a shard."""
    data, _rows = shard_of(SOME)

    with pytest.raises(IntegrityError, match="it ends at byte"):
        list(members(data[: where % len(data)]))


def test_a_hole_and_a_tail_are_found() -> None:
    """A member of zeros, and bytes after the end: tarfile stops at the first and ignores the second."""
    data, rows = shard_of(SOME)
    start = rows[1].parts["jpg"].offset - BLOCK_BYTES
    holed = data[:start] + bytes(member_bytes(1280)) + data[start + member_bytes(1280) :]

    with pytest.raises(IntegrityError, match=f"zeros end it at byte {start}, but it goes on to byte {len(data)}"):
        list(members(holed))
    with pytest.raises(IntegrityError, match=f"zeros end it at byte {len(data) - 1024}, but it goes on"):
        list(members(data + bytes(512)))
    with tarfile.open(fileobj=io.BytesIO(holed)) as tar:
        assert len(tar.getnames()) == 2  # of six, without a word


def test_a_foreign_tar_is_not_taken_for_a_shard(tmp_path: Path) -> None:
    """A tar with an owner, a time or a folder in it is refused at its first header."""
    (tmp_path / "x.txt").write_bytes(b"x")
    subprocess.run(["tar", "--create", "--file", "t.tar", "x.txt"], cwd=tmp_path, check=True)

    with pytest.raises(IntegrityError, match="datakit writes"):
        list(members((tmp_path / "t.tar").read_bytes()))


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_the_first_difference_is_the_first(one: bytes, other: bytes) -> None:
    """Up to it buffers agree; None means equal."""
    at = first_difference(one, other)

    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@pytest.mark.parametrize("digits", NAME_DIGITS)
@pytest.mark.parametrize("dataset", ["train", "a-b", "x-deadbeef", "x-deadbeef.tar", "中"])
def test_the_name_of_a_shard_tells_its_dataset_and_digits(dataset: str, digits: int) -> None:
    """Whatever the dataset is called, itself like a shard too."""
    name = shard_name(dataset, "0123456789abcdef" * 4, digits=digits)

    assert parse_shard_name(name) == (dataset, ("0123456789abcdef" * 4)[:digits])


@pytest.mark.parametrize(
    "name", ["a.tar", "-01234567.tar", "a-0123456.tar", "a-012345678.tar", "a-0123456G.tar", "a-01234567.tar.idx", "a"]
)
def test_other_names_are_not_taken_for_a_shards(name: str) -> None:
    """No dataset, another number of digits, another ending."""
    assert parse_shard_name(name) is None
