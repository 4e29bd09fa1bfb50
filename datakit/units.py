"""units: bytes, counts, durations and rates, printed as people read; sizes also parsed from what people write.

Binary prefixes (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones (kB, MB, GB, TB) powers of 1000 (IEC 80000-13).
"""

from __future__ import annotations

import re

from datakit.errors import UsageError

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)?")
_NUMBER = re.compile(r"\s*(\d+(?:[_,]\d{3})*(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """A number of bytes from `64MiB`, `500GB`, `1024` or an int.

    Raises:
        UsageError: The text is not a size; the message names the accepted forms.
    """
    if isinstance(text, int):
        if text < 0:
            raise UsageError(f"a size cannot be negative: {text}", hint="Write 0 or more bytes", subject=text)
        return text
    match = _NUMBER.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        hint = "Write a number and a unit, such as 64MiB or 500GB"
        raise UsageError(f"{text!r} is not a size", hint=hint, subject=text)
    return round(float(re.sub(r"[_,]", "", match.group(1))) * factor)


def format_bytes(size_bytes: float) -> str:
    """`1536` as `1.5 KiB`, with at most one decimal and none below 1 KiB."""
    value, sign = abs(float(size_bytes)), "-" if size_bytes < 0 else ""
    if value < 1024:
        return f"{sign}{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95:
            return f"{sign}{value:.1f} {unit}"
    return f"{sign}{value / 1024:.1f} TiB"


def format_count(count: float) -> str:
    """`1234567` as `1,234,567`."""
    return f"{count:,.0f}"


def format_number_of(count: int, noun: str) -> str:
    """`1 file`, `1,200 files`: a count with a noun whose plural ends in s."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def agree(count: int, one: str, many: str) -> str:
    """The word that goes with a count: `is` or `are`."""
    return one if count == 1 else many


def parse_duration(text: str | float) -> float:
    """Seconds that a person wrote: `25s`, `2m`, `1.5h`, or a plain number.

    Raises:
        UsageError: It is none, or not above 0.
    """
    match = _DURATION.fullmatch(str(text).strip())
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{text!r} is no length of time", hint="Write one such as 25s, 2m or 1h", subject=text)
    return seconds


def format_duration(seconds: float) -> str:
    """`3725` as `1 h 02 min`, `95` as `1 min 35 s`, `4.2` as `4.2 s`, `0.03` as `30 ms`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_rate(rate_bytes_per_s: float) -> str:
    """Bytes a second, as `12.0 MiB/s`."""
    return f"{format_bytes(rate_bytes_per_s)}/s"
