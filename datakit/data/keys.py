"""keys: what a sample and its parts may be called, and the numbers that follow from a key.

A member of a shard is called `<key>.<part>`. The rules below are what USTAR can hold and what every reader of such
tars (webdataset, Hugging Face `datasets`, Energon, DALI) takes for the same key and part; a name outside them is
refused with its rule, never mended in silence. The numbers are 64-bit and integer, so every machine and engine finds
the same layout.

Sources: field widths are POSIX.1-1988 (USTAR); splitting at the first dot after the last slash, lower-case parts and
the skipping of `__x__` are what webdataset 1.0 and datasets 4 do; BLAKE2b is RFC 7693.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

from datakit.errors import InputError, UsageError

NAME_BYTES = 100
PREFIX_BYTES = 155
"""Widths of USTAR's two name fields, in bytes of UTF-8."""

_SET_ASIDE = re.compile(r"__[^/]*__(?:$|/)")
"""Names that Energon, and webdataset at the top, keep for themselves."""

_ORDINARY = re.compile(r"[A-Za-z0-9-][A-Za-z0-9 _-]*(?:/[A-Za-z0-9-][A-Za-z0-9 _-]*)*")
"""Keys that break no rule, as most look: told by one match, where the rules take ten times as long."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def key_hash(key: str) -> int:
    """The 64-bit number by which layouts sort and cut: BLAKE2b-64 of the key, big endian."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


def split_of(key: str, splits: Mapping[str, int]) -> str:
    """The split that a key falls into, by weights.

    It comes from another hash than `key_hash`, so that a split takes no part of a layout more often than another.

    Args:
        key: A sample's key.
        splits: Weight of each split, at least one, each 1 or more; the order they are written in plays no part, but
            that of their names does: a split that is renamed may take other samples.

    Raises:
        UsageError: The weights are not positive whole numbers.
    """
    if not splits or any(not isinstance(weight, int) or weight < 1 for weight in splits.values()):
        raise UsageError(
            f"splits need whole weights of 1 or more, not {dict(splits)}", hint="Write train: 95, held-out: 5"
        )
    hashed = int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"split").digest(), "big")
    place = hashed * sum(splits.values()) >> 64
    for name, weight in sorted(splits.items()):
        if place < weight:
            return name
        place -= weight
    raise AssertionError(place)


def split_name(path: str) -> tuple[str, str]:
    """Key and part of a member's name: cut at the first dot after the last slash.

    Example:
        >>> split_name("v1.0/cat.seg.png")
        ('v1.0/cat', 'seg.png')
    """
    slash = path.rfind("/") + 1
    dot = path.find(".", slash)
    return (path, "") if dot < 0 else (path[:dot], path[dot + 1 :])


def part_of(name: str) -> tuple[str, str] | None:
    """The key and the part that readers take a member for; None where they skip it."""
    key, part = split_name(name)
    return (key, part.lower()) if part and skipped_as(name) is None else None


def skipped_as(name: str) -> str | None:
    """As what readers skip a member of this name; None where they do not."""
    if _SET_ASIDE.match(name):
        return "names of the form __x__"
    key, part = split_name(name)
    if not key or key.endswith("/"):
        return "hidden files"
    return "names without a dot" if not part and not name.endswith(".") else None


def check_key(key: str) -> None:
    """See that a key can name a sample.

    Raises:
        InputError: It cannot; the message says which rule it breaks.
    """
    if rule := _broken_rule_of_key(key):
        raise InputError(f"{key!r:.200} cannot be a sample's key: {rule}", hint="Rename that record", subject=key)


def check_part(part: str) -> None:
    """See that a part's name can follow a key.

    Raises:
        InputError: It cannot; the message says which rule it breaks.
    """
    if rule := _broken_rule_of_part(part):
        raise InputError(
            f"{part!r:.200} cannot be the name of a sample's part: {rule}", hint="Rename that part", subject=part
        )


def ustar_name(key: str, part: str) -> tuple[bytes, bytes]:
    """USTAR's prefix and name fields for a member, not padded.

    Raises:
        InputError: The name is longer than the two fields hold.
    """
    name = f"{key}.{part}".encode()
    if len(name) <= NAME_BYTES:
        return b"", name
    # the shortest prefix that leaves a name that fits, as CPython's tarfile cuts it
    cut = name.find(b"/", len(name) - NAME_BYTES - 1)
    if not 0 < cut <= PREFIX_BYTES:
        raise InputError(
            f"{key}.{part} is {len(name)} bytes long, more than a tar (USTAR) name holds",
            hint=f"Keep names to {NAME_BYTES} bytes, or folders to {PREFIX_BYTES} and the rest to {NAME_BYTES}",
            subject=key,
        )
    return name[:cut], name[cut + 1 :]


def _broken_rule_of_key(key: str) -> str | None:
    if _ORDINARY.fullmatch(key):
        return None
    steps = key.split("/")
    if "." in steps[-1]:
        return "readers cut a name at its first dot, so a key has no dot after its last slash"
    if any(step in ("", ".", "..") for step in steps):
        return "it is empty, or a folder in it is empty, `.` or `..`"
    if any(step.startswith("__") and step.endswith("__") for step in steps):
        return "webdataset skips names of the form __x__"
    return _broken_rule_of_text(key)


def _broken_rule_of_part(part: str) -> str | None:
    if "/" in part or not all(part.split(".")):
        return "it is empty, has a slash, or two dots or a dot at an end"
    if part != part.lower():
        return "readers turn it into lower case"
    if part.startswith("__") or part.endswith("__"):
        return "webdataset keeps names of the form __x__ for itself"
    return _broken_rule_of_text(part)


def _broken_rule_of_text(text: str) -> str | None:
    if _CONTROL.search(text):
        return "it has a control character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode (a lone surrogate)"
    return None
