"""What `storage/etags` promises: the tags that S3 gives, computed from the bytes; moto is the oracle."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.storage import etags

MIB = 2**20


def reference(data: bytes, part_bytes: int) -> str:
    parts = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)] or [b""]
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(joined).hexdigest()}-{len(parts)}"'


@given(data=st.binary(max_size=400), part_bytes=st.integers(1, 100))
def test_the_tag_of_a_file_in_parts_is_that_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, part_bytes: int
) -> None:
    """For every size and part size, also where the file ends with a part."""
    path = tmp_path_factory.mktemp("tag") / "file"
    path.write_bytes(data)

    tag = etags.tag_of(path, part_bytes=part_bytes)

    assert tag == reference(data, part_bytes)


@given(data=st.binary(max_size=400))
def test_the_tag_of_a_whole_file_is_its_md5(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Put by one request: the md5 in quotes."""
    path = tmp_path_factory.mktemp("tag") / "file"
    path.write_bytes(data)

    assert etags.tag_of(path, part_bytes=0) == f'"{hashlib.md5(data).hexdigest()}"'


def test_a_multipart_tag_is_recognised_without_its_part_size(tmp_path: Path) -> None:
    """The part sizes of the usual tools are tried; an unusual one cannot be told, which is not a mismatch."""
    data = random.Random(0).randbytes(20 * MIB + 17)
    path = tmp_path / "file"
    path.write_bytes(data)

    verdicts = {part: etags.matches(path, reference(data, part)) for part in (5 * MIB, 8 * MIB, 16 * MIB, 7 * MIB)}

    assert verdicts == {5 * MIB: True, 8 * MIB: True, 16 * MIB: True, 7 * MIB: None}


def test_a_plain_tag_that_differs_is_another_file(tmp_path: Path) -> None:
    """A plain md5 says yes or no."""
    path = tmp_path / "file"
    path.write_bytes(b"hello")

    assert etags.matches(path, '"5d41402abc4b2a76b9719d911017c592"') is True
    assert etags.matches(path, "5d41402abc4b2a76b9719d911017c592") is True
    assert etags.matches(path, '"00000000000000000000000000000000"') is False


@pytest.mark.parametrize("tag", [None, "", '"0x8DC0A1B2C3D4E5F"', '"v1"', "5d41402abc4b2a76b9719d911017c59"])
def test_a_tag_that_is_no_md5_cannot_tell(tmp_path: Path, tag: str | None) -> None:
    """Azure, GCS and encrypted objects have tags that say nothing about the bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"hello")

    assert etags.matches(path, tag) is None
    assert etags.part_sizes(tag, 5) == ()


def test_quotes_do_not_make_tags_differ() -> None:
    """Listings and headers of some stores disagree about them; no tag equals no tag."""
    assert etags.same('"a"', "a")
    assert not etags.same('"a"', '"b"')
    assert not etags.same(None, None)


@given(data=st.binary(max_size=400), bit=st.integers(0, 3199))
def test_bytes_fit_their_tag_and_no_flipped_bit_does(data: bytes, bit: int) -> None:
    """Of a plain tag and of one part, whose size does not matter: yes, and no for every other content."""
    tags = [etags.single(hashlib.md5(data).hexdigest())] + ([reference(data, 400)] if data else [])
    wrong = bytearray(data or b"x")
    wrong[bit // 8 % len(wrong)] ^= 1 << bit % 8

    assert [etags.fits(data, tag) for tag in tags] == [True] * len(tags)
    assert [etags.fits(bytes(wrong), tag) for tag in tags] == [False] * len(tags)


def test_bytes_of_several_parts_fit_a_usual_part_size() -> None:
    """A part size that nobody uses cannot tell; a tag that is no md5 cannot either."""
    data = random.Random(0).randbytes(9 * MIB)

    assert etags.fits(data, reference(data, 5 * MIB)) is True
    assert etags.fits(data, reference(data, 3 * MIB)) is None
    assert etags.fits(data[:-1] + b"x", reference(data, 8 * MIB)) is None
    assert etags.fits(data, '"v1"') is None
    assert etags.fits(data, None) is None


@pytest.mark.parametrize(
    ("tag", "parts"), [('"' + "a" * 32 + '-2"', True), ("a" * 32, False), ("v1-2", False), (None, False)]
)
def test_a_tag_of_parts_is_told_by_its_look(tag: str | None, parts: bool) -> None:
    """An md5 and a number of parts."""
    assert etags.is_multipart(tag) is parts
