"""Every error says what happened, knows its exit code, and travels between processes."""

from __future__ import annotations

import ast
import os
import pickle
from typing import Any

import pytest

import datakit
from datakit import errors

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "MissingExtra"]

# the table of docs/errors.md, which scripts rely on, and the built-in that a caller would catch
CONTRACT = {
    "DatakitError": (1, Exception),
    "InputError": (1, ValueError),
    "MissingExtra": (1, ImportError),
    "UsageError": (2, ValueError),
    "NotFound": (2, FileNotFoundError),
    "Refused": (3, RuntimeError),
    "Busy": (3, RuntimeError),
    "IntegrityError": (4, ValueError),
    "NoSpace": (5, OSError),
    "NotAllowed": (6, PermissionError),
    "StoreUnavailable": (7, ConnectionError),
    "LimitExceeded": (8, RuntimeError),
    "Interrupted": (75, RuntimeError),
}


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_ends_the_command_line_with_the_code_of_its_kind(name: str) -> None:
    """The exit code and the built-in parent of each error are those of the design."""
    kind = getattr(errors, name)

    code, built_in = CONTRACT[name]

    assert kind.exit_code == code
    assert issubclass(kind, built_in)
    assert issubclass(kind, datakit.DatakitError)


def test_the_tree_in_the_docstring_names_every_error_with_its_code() -> None:
    """A reader of errors.py sees the whole tree at its top."""
    lines = (errors.__doc__ or "").splitlines()

    drawn = {
        words[0]: line
        for line in lines
        if (words := line.replace("│", " ").replace("└──", " ").replace("├──", " ").split())
    }

    for name, (code, _) in CONTRACT.items():
        assert f" {code} " in drawn[name], name


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_reads_as_what_happened_then_what_to_do(kind: type[errors.DatakitError]) -> None:
    """The text is the message, then the hint."""
    error = kind("/data/raw is empty", hint="Put a record into it", subject="/data/raw")

    text = str(error)

    assert text == "/data/raw is empty. Put a record into it"
    assert str(kind("/data/raw is empty")) == "/data/raw is empty"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_a_process_boundary_whole(kind: type[errors.DatakitError]) -> None:
    """Pickling keeps kind, message, hint and subject, as worker processes need it."""
    error = kind("shard is short", hint="Fetch it again", subject="train-3f2a9c1e.tar")

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is kind
    assert (back.message, back.hint, back.subject) == ("shard is short", "Fetch it again", "train-3f2a9c1e.tar")


def test_a_missing_extra_names_the_command_that_brings_it() -> None:
    """The hint is a pip command that a user can paste, and it survives pickling."""
    error = errors.MissingExtra("obstore", extra="s3")

    back = pickle.loads(pickle.dumps(error))

    assert str(error) == "obstore is not installed. pip install 'datakit[s3]'"
    assert (str(back), back.library, back.extra) == (str(error), "obstore", "s3")


def test_the_extra_named_by_a_missing_extra_exists(pyproject: dict[str, Any]) -> None:
    """Every `MissingExtra(..., extra=X)` in the library names an extra of pyproject.toml."""
    from support.house import calls, rooms

    named = {
        keyword.value.value
        for room in rooms()
        for call in calls(room, "MissingExtra")
        for keyword in call.keywords
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Constant)
    }

    assert named
    assert named <= set(pyproject["project"]["optional-dependencies"])


def test_a_message_is_one_line_whatever_names_stand_in_it() -> None:
    """A newline in a file's name does not end the sentence, an escape moves no terminal, bytes are letters."""
    error = errors.InputError("a\nb\x1b[1m.jpg is caf\udce9", hint="Rename a\r\nb")

    assert error.message == r"a\x0ab\x1b[1m.jpg is caf\udce9"
    assert str(error) == error.message + r". Rename a\x0d\x0ab"
    assert pickle.loads(pickle.dumps(error)).message == error.message


@pytest.mark.parametrize("code", [0x85, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_no_name_breaks_a_line_or_turns_it_around(code: int) -> None:
    """Also what is no control character: separators of Unicode, and marks that make an ending read as another."""
    error = errors.InputError(f"a{chr(code)}gpj.exe is empty")

    assert error.message.isprintable()
    assert f"{code:x}gpj.exe" in error.message


def test_every_line_break_that_python_knows_is_escaped() -> None:
    """A text from `one_line` is one line to `splitlines`, and can be encoded."""
    everything = "".join(map(chr, range(0x110000)))

    assert len(errors.one_line(everything).splitlines()) == 1
    assert errors.one_line(everything).encode()


def test_any_name_can_be_shown() -> None:
    """On a terminal, in JSON, in a log."""
    assert errors.printable(os.fsdecode(b"caf\xe9")).encode() == b"caf\\udce9"
    assert errors.printable("caf\u00e9") == "caf\u00e9"
