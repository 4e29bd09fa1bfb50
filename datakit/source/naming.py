"""naming: how records get their keys, from a field or from a file's name.

A key that cannot name a sample is refused with the rule that it breaks and what would help; where `percent` escaping is
chosen, what breaks a rule is written as %XX instead (see `stems`), and only what no escaping helps is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from datakit.data.keys import NAME_BYTES, check_key, ustar_name
from datakit.data.stems import KeyRule, cut_name, escaped, unescaped
from datakit.errors import InputError
from datakit.events import Caution
from datakit.units import agree, format_count, format_number_of

JSON_PART = "json"
KEY_FIELD = "id"
"""The field that names a record where no other is named; whole sources do without it."""

_FIELD_HINT = (
    "Name another field (--key-field; '' names them by a hash of their bytes), or write what a key may not hold as %XX "
    "(--escape percent)"
)
_NAME_HINT = (
    "Write what a key may not hold as %XX (--escape percent), or rename it; --key first-dot makes one sample of all "
    "files that share what stands before that dot"
)


_SHOWN_FIELDS, _SHOWN_LETTERS = 20, 40
"""Fields of a record that a message names, and letters of each: most tables have fewer, and all fit on a screen."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How records get their keys.

    Attributes:
        key_field: The field that names a record, where records have fields; empty where a hash of its bytes does.
        rule: Where a file's name is cut.
        escape: Whether what a key may not hold is written as %XX.
    """

    key_field: str = KEY_FIELD
    rule: KeyRule = "known"
    escape: Literal["none", "percent"] = "none"

    def key_of(self, value: Any, *, part: str = JSON_PART) -> str:
        """The key that the value of the field gives.

        Args:
            value: What the field holds.
            part: The longest part that will stand behind the key.

        Raises:
            InputError: It cannot name a sample.
        """
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise InputError(f"field {self.key_field} is {value!r:.80}, not a name", hint=_FIELD_HINT)
        key = escaped(str(value)) if self.escape == "percent" else str(value)
        try:
            check_key(key)
            # bytes of UTF-8 are at most four a letter: most names are told by that alone
            if 4 * (len(key) + 1 + len(part)) > NAME_BYTES:
                ustar_name(key, part)
        except InputError as error:
            raise InputError(error.message, hint=_FIELD_HINT) from None
        return key

    def field_of(self, record: Mapping[str, Any]) -> Any:
        """What the field that names a record holds; None where there is none."""
        return record.get(self.key_field) if self.key_field else None

    def check_field(self, unnamed: int, total: int, *, first: Callable[[], bytes]) -> None:
        """See that some record has the field that was named; a source may do without the usual one.

        Args:
            unnamed: Records that lack the field.
            total: All of them.
            first: Gives the JSON of the first.

        Raises:
            InputError: None has it.
        """
        if not unnamed or unnamed < total or self.key_field in ("", KEY_FIELD):
            return
        fields = [*orjson.loads(first() or b"{}")]
        shown = ", ".join(name[:_SHOWN_LETTERS] for name in fields[:_SHOWN_FIELDS])
        rest = f"; the first has {shown}" if fields and self.key_field not in fields else ""
        raise InputError(
            f"{self.lack(fields)}{rest}",
            hint="Name one that all have with --key-field, or '' to name records by a hash of their bytes",
            subject=self.key_field,
        )

    def lack(self, fields: Collection[str]) -> str:
        """That no record is named by the field; those of the first tell whether it is there and holds nothing."""
        return f"no record has {'a value in' if self.key_field in fields else 'the field'} {self.key_field}"

    def remarks(self, unnamed: int, total: int) -> list[Caution]:
        """What to say where so many of all records lack the field, and get their names from their content.

        A source that does without the field is nothing to speak of; one that lacks it here and there is.

        Args:
            unnamed: Records that lack the field.
            total: All of them.
        """
        if not unnamed or not self.key_field or unnamed == total:
            return []
        some = format_number_of(total, "record")
        lack, are = agree(unnamed, "lacks", "lack"), agree(unnamed, "is", "are")
        return [
            Caution(
                f"{format_count(unnamed)} of {some} {lack} the field {self.key_field} and {are} named by content",
                hint="An edit gives such a record another key; name a field that all have: --key-field",
            )
        ]

    def cut(self, name: str) -> tuple[str, str]:
        """Key and suffix of a file's name; the key is not checked."""
        stem, suffix = cut_name(name, rule=self.rule)
        return (escaped(stem) if self.escape == "percent" else stem), suffix

    def stem(self, key: str) -> str:
        """What a file is called up to the dot before its suffix."""
        return unescaped(key) if self.escape == "percent" else key

    def problem(self, key: str) -> tuple[str, str] | None:
        """Why a key from a file's name cannot name a sample, and what to do; None where it can."""
        try:
            check_key(key)
        except InputError as error:
            return error.message, _NAME_HINT
        return None
