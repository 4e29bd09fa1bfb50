"""flips: which bit of some bytes is flipped, told by what their checksum is and what it should be.

A CRC is linear: two checksums differ by the checksum of the damage alone. For one flipped bit that is a power of x
modulo the polynomial, and its exponent is the place of the bit counted from the end. The exponent is found by baby
steps and giant steps, so a part of 16 MiB takes some 20,000 steps and none of its bytes is read. Damage of more bits is
taken for a single one by chance in 8 n of 2**31 cases for n bytes, and never when their number is even (x + 1 divides
the polynomial).

Sources: CRC-32C is RFC 3720, B.4; baby steps and giant steps, Shanks 1971.
"""

from __future__ import annotations

from math import isqrt

_POLYNOMIAL = 0x82F63B78
"""CRC-32C's, its bits in reflected order: the lowest bit is x**31, the highest is 1."""

_ONE = 0x80000000
_MOST_BYTES = 2**28 - 8
"""Powers of x begin anew after 2**31 - 1 steps, so a longer part would have two candidates."""


def flipped_bit(size: int, *, found: int, expected: int) -> tuple[int, int] | None:
    """The byte and the bit that is flipped, if one flipped bit explains the difference of two checksums.

    Args:
        size: Bytes that the checksums are of.
        found: Their crc32c.
        expected: The crc32c that they should have.

    Returns:
        Position of the byte, and of the bit in it (0 is the lowest); None where no single bit explains it.

    Example:
        >>> from datakit.data.digest import crc32c
        >>> flipped_bit(3, found=crc32c(b"abb"), expected=crc32c(b"abc"))
        (2, 0)
    """
    syndrome = found ^ expected
    if not syndrome or not 0 < size <= _MOST_BYTES or syndrome.bit_count() % 2 == 0:
        return None
    exponent = _exponent(syndrome, least=32, most=31 + 8 * size)
    if exponent is None:
        return None
    # bit j of byte i is x**(31 - j), moved on by the 8 (n - i) bits that follow its byte's beginning
    from_end = -(-(exponent - 31) // 8)
    return size - from_end, 8 * from_end - (exponent - 31)


def _exponent(power: int, *, least: int, most: int) -> int | None:
    """The k between bounds for which x**k is this power, or None."""
    stride = isqrt(most - least) + 1
    babies: dict[int, int] = {}
    value = power
    for back in range(stride):
        babies[value] = back  # x**(k + back)
        value = _times_x(value)
    leap = _to_the(stride)
    reached, giant = least - 1, _to_the(least - 1)
    while reached < most:
        reached, giant = reached + stride, _product(giant, leap)  # x**reached
        steps_back = babies.get(giant)
        if steps_back is not None and reached - steps_back <= most:
            return reached - steps_back
    return None


def _times_x(value: int) -> int:
    return (value >> 1) ^ _POLYNOMIAL if value & 1 else value >> 1


def _product(one: int, other: int) -> int:
    """Of two polynomials, modulo CRC-32C's."""
    result = 0
    while one:
        if one & _ONE:
            result ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = _times_x(other)
    return result


def _to_the(exponent: int) -> int:
    """The power of x with this exponent."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result
