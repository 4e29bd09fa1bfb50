"""data/digest: one pass, four words for the bytes of a file."""

from __future__ import annotations

import hashlib
import json

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import IntegrityError
from datakit.data.digest import PART_BYTES, Digester, FileEntry, crc32c, entry_of


@given(st.lists(st.binary(max_size=200), max_size=12))
def test_pieces_give_the_entry_of_the_whole(pieces: list[bytes]) -> None:
    """However a file arrives, its entry is the same."""
    digester = Digester()

    for piece in pieces:
        digester.update(piece)

    assert digester.finish("f") == entry_of("f", b"".join(pieces))


@pytest.mark.parametrize("step", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_each_16_mib_has_its_own_crc(step: int) -> None:
    """Parts are cut at multiples of 16 MiB, wherever the pieces that arrive are cut."""
    data = bytes(range(256)) * (2 * PART_BYTES // 256) + b"tail"
    digester = Digester()

    for start in range(0, len(data), step):
        digester.update(data[start : start + step])
    entry = digester.finish("f")

    expected = [google_crc32c.value(data[start : start + PART_BYTES]) for start in range(0, len(data), PART_BYTES)]
    assert [int(part, 16) for part in entry.crc32c] == expected
    assert entry.bytes == len(data)


def test_an_entry_holds_the_digests_that_others_compute() -> None:
    """sha256 and md5 are hashlib's, crc32c is RFC 3720's: the check value of 123456789 is e3069283."""
    entry = entry_of("check", b"123456789")

    assert entry.sha256 == hashlib.sha256(b"123456789").hexdigest()
    assert entry.md5 == hashlib.md5(b"123456789").hexdigest()
    assert entry.crc32c == ("e3069283",)


def test_an_empty_file_has_no_parts() -> None:
    """Nothing to check has no checksum."""
    entry = entry_of("empty", b"")

    assert (entry.bytes, entry.crc32c) == (0, ())
    assert entry.md5 == "d41d8cd98f00b204e9800998ecf8427e"


@given(st.binary(max_size=70_000), st.integers(0, 70_000))
def test_a_crc_goes_on_from_another(data: bytes, cut: int) -> None:
    """crc32c of a beginning, continued over the rest, is that of the whole, for any kind of buffer."""
    begun = crc32c(memoryview(data)[:cut])

    assert crc32c(bytearray(data[cut:]), begun) == crc32c(data) == google_crc32c.value(data)


@given(st.binary(max_size=100), st.sampled_from(["a", "a/b.tar", "ids.npy", "中.tar"]))
def test_an_entry_survives_json(data: bytes, name: str) -> None:
    """An entry read back from JSON is the entry."""
    entry = entry_of(name, data)

    assert FileEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a\\b", "a\0b", 7, None])
def test_a_name_that_leaves_its_commit_is_refused(name: object) -> None:
    """A manifest from anywhere cannot name a file outside its directory."""
    value = {**entry_of("x", b"1").to_json(), "name": name}

    with pytest.raises(IntegrityError, match=r"not the name of a commit's member|stay inside its commit"):
        FileEntry.from_json(value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("bytes", -1, "not a size"),
        ("bytes", True, "not a size"),
        ("bytes", "1", "not a size"),
        ("sha256", "abc", "not a sha256"),
        ("sha256", "G" * 64, "not a sha256"),
        ("md5", None, "not a md5"),
        ("crc32c", [], "one crc32c for each"),
        ("crc32c", "e3069283", "one crc32c for each"),
        ("crc32c", ["E3069283"], "not a crc32c"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, said: str) -> None:
    """The message says which file and which field."""
    entry = {**entry_of("x.tar", b"1").to_json(), field: value}

    with pytest.raises(IntegrityError, match=rf"x\.tar: .*{said}"):
        FileEntry.from_json(entry)


@pytest.mark.parametrize("value", [{}, {"name": "x"}, [], None, {**entry_of("x", b"").to_json(), "extra": 1}])
def test_an_entry_has_exactly_its_fields(value: object) -> None:
    """A field too few or too many is another format."""
    with pytest.raises(IntegrityError, match="needs name, bytes, sha256, md5, crc32c"):
        FileEntry.from_json(value)  # type: ignore[arg-type]  # what a stranger's JSON may hold


def test_the_difference_is_told_as_a_sentence_ends() -> None:
    """Size first, then the first 16 MiB part whose checksum differs; nothing for the same bytes."""
    data = bytearray(PART_BYTES + 10)
    entry = entry_of("f", bytes(data))
    same = entry.difference(data)
    data[-1] ^= 1

    assert same is None
    assert entry.difference(data[:-1]) == f"has {PART_BYTES + 9} bytes, the manifest says {PART_BYTES + 10}"
    assert str(entry.difference(memoryview(data))).endswith(
        f"in its bytes {PART_BYTES} to {PART_BYTES + 10}, the manifest says {entry.crc32c[1]}"
    )
