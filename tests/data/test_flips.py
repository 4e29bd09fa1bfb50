"""data/flips: one flipped bit is named by two checksums; more of them are not taken for one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.digest import PART_BYTES, crc32c
from datakit.data.flips import flipped_bit


def told(data: bytes, damaged: bytes) -> tuple[int, int] | None:
    """What the checksums of some bytes, before and after, tell."""
    return flipped_bit(len(data), found=crc32c(damaged), expected=crc32c(data))


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_any_flipped_bit_is_named(data: bytes, draw: st.DataObject) -> None:
    """Byte and bit, wherever it is."""
    at, bit = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 7))
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit

    assert told(data, bytes(damaged)) == (at, bit)


@given(st.binary(min_size=2, max_size=3000), st.data())
def test_an_even_number_of_bits_is_never_taken_for_one(data: bytes, draw: st.DataObject) -> None:
    """By law, not by chance."""
    bits = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 7))
    count = 2 * draw.draw(st.integers(1, 4))
    damaged = bytearray(data)
    for at, bit in draw.draw(st.lists(bits, min_size=count, max_size=count, unique=True)):
        damaged[at] ^= 1 << bit

    assert told(data, bytes(damaged)) is None


def test_other_damage_is_not_taken_for_one_bit() -> None:
    """Three bits and zeroed stretches of 4 KB: chance would explain one of 65,000 by a single bit."""
    rng = random.Random(2)
    data = rng.randbytes(4096)

    for number in range(200):
        damaged = bytearray(data)
        at = rng.randrange(4000)
        if number % 2:
            damaged[at : at + 60] = bytes(60)
        else:
            for place in rng.sample(range(4096), 3):
                damaged[place] ^= 1 << rng.randrange(8)
        assert told(data, bytes(damaged)) is None


@pytest.mark.parametrize("at", [0, 1, PART_BYTES // 3, PART_BYTES - 1])
def test_a_bit_of_a_large_part_is_named(at: int) -> None:
    """16 MiB, at its ends as well."""
    data = bytes(PART_BYTES)
    damaged = bytearray(data)
    damaged[at] = 0x20

    assert told(data, bytes(damaged)) == (at, 5)


@pytest.mark.parametrize(("size", "found"), [(0, 1), (3, 7), (2**28, 1)])
def test_nothing_is_told_of_what_cannot_be(size: int, found: int) -> None:
    """No bytes, equal checksums, and parts for which there would be two answers."""
    assert flipped_bit(size, found=found, expected=7) is None
