"""verify/walk: what reads a tape by offsets goes back as far as its last read, and never gives other bytes."""

from __future__ import annotations

import pytest

from datakit.verify.tape import Tape
from datakit.verify.walk import TapeReader

DATA = bytes(range(200))


def test_the_last_read_can_be_had_again() -> None:
    """The whole or its end, and what follows it."""
    reader = TapeReader(Tape([DATA], 0), len(DATA))

    assert reader.read(50, 10) == DATA[50:60]
    assert reader.read(50, 20) == DATA[50:70]
    assert reader.read(190, 20) == DATA[190:]


@pytest.mark.parametrize(("taken", "offset"), [(0, 45), (30, 55), (30, 85)])
def test_what_is_no_longer_held_is_refused(taken: int, offset: int) -> None:
    """Bytes before the last read, or of it once others were taken from the tape: a mistake of ours."""
    tape = Tape([DATA], 0)
    reader = TapeReader(tape, len(DATA))
    reader.read(50, 10)
    tape.take(taken)

    with pytest.raises(AssertionError):
        reader.read(offset, 10)
