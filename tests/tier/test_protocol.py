"""Frames go through a stream of bytes as they were, whatever pieces it comes in, and nothing else does."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import InputError, NoSpace, Refused
from datakit.storage.copies import told
from datakit.tier.protocol import Decoder, Frame, encode, failure, unwrap

frames = st.builds(Frame, st.dictionaries(st.text(), st.integers() | st.text(), max_size=3), st.binary(max_size=50))


@given(sent=st.lists(frames, max_size=4), cuts=st.lists(st.integers(0, 400)))
def test_frames_come_whole_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    """The same frames in the same order, and nothing is left."""
    data = b"".join(map(encode, sent))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Decoder()

    got = [frame for start, stop in itertools.pairwise(places) for frame in decoder.feed(data[start:stop])]

    assert got == sent
    assert not decoder.is_torn


@given(frame=frames, cut=st.integers(1, 10**6))
def test_a_torn_frame_is_none(frame: Frame, cut: int) -> None:
    """What has not come whole is not given, and is told from nothing."""
    data = encode(frame)
    decoder = Decoder()

    assert decoder.feed(data[: cut % len(data) or 1]) == []
    assert decoder.is_torn


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "begin with b'GET / HT'"),
        (b"x", "begin with b'x'"),
        (struct.pack(">4sHHII", b"dktk", 1, 0, 2, 0) + b"[]", r"hold b'\[\]'"),
        (struct.pack(">4sHHII", b"dktk", 1, 0, 3, 0) + b"{{{", "hold b'{{{'"),
        (struct.pack(">4sHHII", b"dktk", 1, 7, 2, 0), "tell of 2 and 0 bytes"),
        (struct.pack(">4sHHII", b"dktk", 1, 0, 2**31, 0), "tell of 2147483648"),
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes, said: str) -> None:
    """With the first of its bytes, and before memory is taken for what it tells of."""
    with pytest.raises(InputError, match=said):
        Decoder().feed(data)


def test_another_version_is_refused() -> None:
    """Both numbers are said."""
    with pytest.raises(Refused, match=r"speaks version 2 of the cache's protocol, this one 1"):
        Decoder().feed(struct.pack(">4sHHII", b"dktk", 2, 0, 2, 0) + b"{}")


def test_an_error_comes_out_as_it_went_in() -> None:
    """With class, message and hint."""
    error = NoSpace("no room", hint="make some")

    with pytest.raises(NoSpace) as caught:
        unwrap(failure(error))

    assert told(caught.value) == told(error)
    assert unwrap(Frame({"path": "x"})) == Frame({"path": "x"})


def test_an_error_of_no_class_is_no_frame() -> None:
    """An agent of another version may know others."""
    with pytest.raises(InputError, match="an error is told as"):
        unwrap(Frame({"error": "NoSuchClass", "message": "x", "hint": None}))
