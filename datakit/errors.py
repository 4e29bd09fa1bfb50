"""errors: everything that can go wrong, in one tree.

Each error carries a `message` (what happened, the value, where), a `hint` (what to do next, a command if there is one)
and the `subject` it is about. Each also subclasses the built-in that a caller would catch, and knows the exit code that
the command line ends with (docs/errors.md).

    DatakitError                       1   failed
    ├── InputError        ValueError   1   what you named is there and cannot be used (empty, not JSON, duplicate keys)
    ├── MissingExtra      ImportError  1   a library of an optional extra is not installed
    ├── UsageError        ValueError   2   an option or setting is wrong
    │   └── NotFound      FileNotFoundError  2   what you named is not there (path, bucket, object, sample)
    ├── Refused           RuntimeError 3   it could be done and would be wrong (other state, foreign place)
    │   └── Busy          RuntimeError 3   another process is at it, and holds the lock
    ├── IntegrityError    ValueError   4   bytes are not what the manifest says
    ├── NoSpace           OSError      5   the disk is full, or a tier's byte budget would be exceeded
    ├── NotAllowed        PermissionError  6   credentials or permission
    ├── StoreUnavailable  ConnectionError  7   the store is unreachable or throttles
    ├── LimitExceeded     RuntimeError 8   over the cost or request limit
    └── Interrupted       RuntimeError 75  stopped half-way in an orderly manner; the same command continues
"""

from __future__ import annotations

import re
from typing import ClassVar

__all__ = [
    "Busy",
    "DatakitError",
    "InputError",
    "IntegrityError",
    "Interrupted",
    "LimitExceeded",
    "MissingExtra",
    "NoSpace",
    "NotAllowed",
    "NotFound",
    "Refused",
    "StoreUnavailable",
    "UsageError",
]


# U+2028 and 2029 break a line; the last two ranges turn the text behind them around (UAX #9, sections 2.1 to 2.4)
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    r"""A text as it can be shown in one line, whatever names stand in it.

    Escaped are control characters, what breaks a line or turns its direction, and what `printable` escapes.

    Example:
        >>> one_line("a\x07b")
        'a\\x07b'
    """
    return _NO_TEXT.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str) -> str:
    """A text as it can be encoded: lone surrogates, which stand for bytes that are no UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class DatakitError(Exception):
    """The root: catch this to catch everything that datakit raises on purpose.

    Args:
        message: What happened, with the value and the place; one sentence in one line, no trailing advice.
        hint: What to do next, a command if there is one.
        subject: The object the error is about (a path, a shard name, a key), for programs.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, subject: object = None) -> None:
        self.message = one_line(message)
        super().__init__(self.message)
        self.hint = None if hint is None else one_line(hint)
        self.subject = subject

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # errors travel from worker processes; the default would lose hint and subject
        return (_rebuild, (type(self), self.message, self.hint, self.subject))


def _rebuild(kind: type[DatakitError], message: str, hint: str | None, subject: object) -> DatakitError:
    return kind(message, hint=hint, subject=subject)


class InputError(DatakitError, ValueError):
    """What the user named is there and cannot be used, for example a record that is not JSON."""


class MissingExtra(DatakitError, ImportError):
    """A library of an optional extra is not installed.

    Args:
        library: The library that could not be imported.
        extra: The extra of datakit that brings it.
    """

    def __init__(self, library: str, *, extra: str) -> None:
        super().__init__(f"{library} is not installed", hint=f"pip install 'datakit[{extra}]'", subject=library)
        self.library = library
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_extra, (self.library, self.extra))


def _rebuild_extra(library: str, extra: str) -> MissingExtra:
    return MissingExtra(library, extra=extra)


class UsageError(DatakitError, ValueError):
    """An option or a setting is wrong."""

    exit_code = 2


class NotFound(UsageError, FileNotFoundError):
    """What the user named is not there: a path, a bucket, an object, a sample."""

    exit_code = 2


class Refused(DatakitError, RuntimeError):
    """It could be done and would be wrong: other data, other settings, a foreign destination."""

    exit_code = 3


class Busy(Refused):
    """Another process is at it, and holds the lock; that goes when its process ends, however it ends."""


class IntegrityError(DatakitError, ValueError):
    """Bytes are not what the manifest or the index says."""

    exit_code = 4


class NoSpace(DatakitError, OSError):
    """The disk is full, or a byte budget would be exceeded."""

    exit_code = 5


class NotAllowed(DatakitError, PermissionError):
    """Credentials are wrong or a permission is missing."""

    exit_code = 6


class StoreUnavailable(DatakitError, ConnectionError):
    """The store is unreachable, or throttles for longer than the retry budget allows."""

    exit_code = 7


class LimitExceeded(DatakitError, RuntimeError):
    """Going on would exceed the cost or request limit that the user set."""

    exit_code = 8


class Interrupted(DatakitError, RuntimeError):
    """Stopped half-way in an orderly manner; the same command continues."""

    exit_code = 75
