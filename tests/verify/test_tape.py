"""verify/tape: bytes pass by once, in whatever pieces they come, and a stream that ends early is said to."""

from __future__ import annotations

import pytest

from datakit import IntegrityError
from datakit.data.digest import crc32c
from datakit.verify.tape import Tape

DATA = bytes(range(100))


@pytest.mark.parametrize("size", [1, 7, 33, 100, 1000])
def test_pieces_of_any_size_are_the_same_bytes(size: int) -> None:
    """Empty ones between them too."""
    pieces = [piece for at in range(0, len(DATA), size) for piece in (DATA[at : at + size], b"")]
    tape = Tape(pieces, 500)

    head = tape.take(10)
    tape.skip(5)
    crc, zeros = tape.crc(20)
    rest = b"".join(map(bytes, tape.pieces(65)))

    assert (head, crc, zeros, rest) == (DATA[:10], crc32c(DATA[15:35]), False, DATA[35:])
    assert tape.at == 600


def test_a_stream_that_ends_early_is_an_error_with_its_place() -> None:
    """And none of the interpreter's, which a generator would make of it."""
    tape = Tape([b"abc"], 10)

    with pytest.raises(IntegrityError, match="the bytes end at 13, where 2 more should follow"):
        tape.take(5)
