"""What people write for sizes and times, and what they read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import UsageError
from datakit.units import (
    agree,
    format_bytes,
    format_count,
    format_duration,
    format_number_of,
    format_rate,
    parse_bytes,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1024", 1024),
        ("64MiB", 64 * 2**20),
        ("64 MiB", 64 * 2**20),
        ("500GB", 500 * 10**9),
        ("1.5KiB", 1536),
        ("2tb", 2 * 10**12),
        ("1_000_000", 1_000_000),
        ("1,000,000 B", 1_000_000),
        (7, 7),
        (0, 0),
    ],
)
def test_a_size_is_read_with_decimal_and_binary_prefixes(text: str | int, size_bytes: int) -> None:
    """KiB is 1024 bytes and kB is 1000 (IEC 80000-13), whatever the case of the letters."""
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "64 XB", "-1", "1e9", "64MiB/s", "1.2.3", "64 Mi B", "1_0"])
def test_what_is_not_a_size_is_refused_with_the_accepted_forms(text: str) -> None:
    """The message quotes the text and the hint shows how to write it."""
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)

    assert str(caught.value) == f"{text!r} is not a size. Write a number and a unit, such as 64MiB or 500GB"


def test_a_negative_number_of_bytes_is_refused() -> None:
    """An int below zero is no size either."""
    with pytest.raises(UsageError, match="a size cannot be negative: -5"):
        parse_bytes(-5)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_number_of_bytes_reads_as_itself(size_bytes: int) -> None:
    """A size in plain digits is exact."""
    assert parse_bytes(str(size_bytes)) == size_bytes


@given(st.integers(min_value=0, max_value=2**60))
def test_a_printed_size_reads_back_within_its_precision(size_bytes: int) -> None:
    """What `format_bytes` prints, `parse_bytes` reads, off by at most half of the last digit shown."""
    back = parse_bytes(format_bytes(size_bytes))

    assert abs(back - size_bytes) <= max(0, size_bytes * 0.05 + 1) if size_bytes >= 1024 else back == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_a_size_prints_with_one_decimal(size_bytes: int, text: str) -> None:
    """People read three or four digits and a unit."""
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.03, "30 ms"),
        (0.9996, "1.0 s"),
        (4.2, "4.2 s"),
        (59.96, "1 min 00 s"),
        (95, "1 min 35 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_a_duration_prints_in_the_unit_that_people_would_use(seconds: float, text: str) -> None:
    """No value prints as 60 s or as 1000 ms."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("count", "said"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards"), (1234, "1,234 shards")])
def test_one_is_said_in_the_singular(count: int, said: str) -> None:
    """And everything else, nothing too, in the plural."""
    assert format_number_of(count, "shard") == said


def test_counts_and_rates_print_with_separators_and_units() -> None:
    """Thousands are apart, and a rate is a size a second."""
    assert format_count(1234567) == "1,234,567"
    assert format_rate(12 * 2**20) == "12.0 MiB/s"


def test_a_word_goes_with_its_count() -> None:
    """None and many are several."""
    assert [agree(count, "is", "are") for count in (0, 1, 2)] == ["are", "is", "are"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("25s", 25), ("2m", 120), ("1.5h", 5400), (" 10 min ", 600), ("3", 3), (4, 4)]
)
def test_a_length_of_time_is_read_as_people_write_it(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "0", "5 d", "1h30m", "inf"])
def test_what_is_no_length_of_time_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is no length of time"):
        parse_duration(text)
