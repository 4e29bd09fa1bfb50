"""source/arrays: items of an array as lines with their own bytes."""

from __future__ import annotations

import io
import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.source.arrays import is_array, write_items

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='a"\\\\[]{},\n\u00e9'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


class Dripping(io.BytesIO):
    """A file that gives a few bytes at a time, as any may."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        """Fewer bytes than were asked for."""
        return super().read(self._most if size is None or size < 0 else min(size, self._most))


def items(data: bytes, *, most: int = 2**20) -> list[bytes]:
    """The lines that an array gives."""
    out = io.BytesIO()
    write_items(Dripping(data, most), out, name="x.json")
    return out.getvalue().splitlines()


@given(
    st.lists(VALUES, max_size=6),
    st.sampled_from([None, 0, 1, 4]),
    st.sampled_from(["", "\n", " \r\n"]),
    st.sampled_from([1, 2, 3, 7, 1000]),
)
def test_items_are_what_a_parser_finds(values: list[object], indent: int | None, around: str, most: int) -> None:
    """However the array is laid out and read: brackets, commas and quotes inside strings are letters."""
    data = (around + json.dumps(values, indent=indent) + around).encode()

    assert [json.loads(item) for item in items(data, most=most)] == values
    assert is_array(Dripping(data, most))


def test_memory_holds_an_item_and_not_the_array() -> None:
    """Of 16 MB in items of 1 kB, and of one string of 4 MB, no more than a few megabytes or twice the string."""
    small = b"[" + b",".join([json.dumps({"t": "x" * 1000}).encode()] * 16_000) + b"]"
    large = b"[" + json.dumps("y" * 2**22).encode() + b"]"

    for data, most in ((small, 5 * 2**20), (large, 5 * 2**22)):
        with open(os.devnull, "wb") as out:
            tracemalloc.start()
            try:
                write_items(io.BytesIO(data), out, name="x.json")
                assert tracemalloc.get_traced_memory()[1] < most
            finally:
                tracemalloc.stop()


def test_an_item_keeps_its_bytes() -> None:
    """Numbers and escapes stay as they were written; only line feeds between tokens go, with the indentation."""
    data = b'[{"a": 1.10, "b": 12345678901234567890123, "c": "\\u00e9"},\n {\n  "d" :  [1,\n 2]\n }]'

    assert items(data) == [b'{"a": 1.10, "b": 12345678901234567890123, "c": "\\u00e9"}', b'{"d" :  [1,2]}']


@pytest.mark.parametrize("data", [b"[]", b" [ \n ] \n"])
def test_an_empty_array_has_no_items(data: bytes) -> None:
    """Nor is there an error."""
    assert items(data) == []


@pytest.mark.parametrize("data", [b'[{"a": 1}', b'[{"a": 1},', b"[", b'[{"a": "x}]', b'[{"a": [1}'])
def test_an_array_that_is_cut_short_is_refused(data: bytes) -> None:
    """Its end is missing."""
    with pytest.raises(InputError, match=r"x\.json begins as a JSON array, which does not end"):
        items(data)


@pytest.mark.parametrize(
    ("data", "at"), [(b'[{"id": "a"}}', 12), (b"[1}", 2), (b"[}", 1), (b'[{"a": 1]}', 9), (b" [[1],\n2} ", 8)]
)
@pytest.mark.parametrize("most", [1, 2**20])
def test_an_array_that_another_bracket_closes_is_refused(data: bytes, at: int, most: int) -> None:
    """A brace ends an object; what was meant is not guessed."""
    with pytest.raises(InputError, match=rf"x\.json begins as a JSON array, which closes at byte {at} with '}}'"):
        items(data, most=most)


def test_an_array_that_goes_on_behind_its_end_is_refused() -> None:
    """Two arrays, or lines that are arrays: which was meant is not guessed."""
    with pytest.raises(InputError, match=r"is a JSON array up to byte 10, and goes on behind it: b'\[2\]'"):
        items(b'[{"a": 1}]\n[2]\n')


@pytest.mark.parametrize(
    ("data", "bad"), [(b'[{"a": "x\ny"}]', b'{"a": "x\x1fy"}'), (b"[1,,2]", b","), (b"[1,]", b","), (b"[no]", b"no")]
)
def test_what_is_no_json_does_not_become_some(data: bytes, bad: bytes) -> None:
    """A raw line feed in a string, nothing between commas: the listing of lines will say so."""
    found = items(data)

    assert bad in found
    with pytest.raises(json.JSONDecodeError):
        json.loads(bad)


@pytest.mark.parametrize(
    ("head", "array"),
    [
        (b"\xef\xbb\xbf [", True),
        (b" " * 3 * 2**20 + b"[", True),
        (b"\xef\xbb\xbf" + b"\n" * 2**20 + b"[", True),
        (b"\n\t[1", True),
        (b'{"a": []}', False),
        (b"", False),
    ],
)
def test_an_array_is_told_by_its_first_letter(head: bytes, array: bool) -> None:
    """Behind blanks and a byte-order mark."""
    assert is_array(io.BytesIO(head)) == array
