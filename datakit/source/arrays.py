"""arrays: the items of a JSON array as JSON lines, each with its own bytes.

What stands in a file as one array is often meant as records. Items are found by their brackets and commas, outside
strings, in one pass over the file; an item is copied as it is written, but for line feeds between its tokens,
which JSON does not mind. Whether an item is valid is seen where lines are listed. Memory holds an item, not the array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from datakit.errors import InputError
from datakit.source.spans import TOKEN
from datakit.storage.disk import READ_BYTES

_SPACE = b" \t\r\n"
_BREAK = re.compile(rb"[ \t]*[\r\n][ \t\r\n]*")
_BAD_BREAK = re.compile(rb"[\r\n]")


def is_array(file: BinaryIO) -> bool:
    """Whether a file, read from its beginning, is an array."""
    data = file.read(READ_BYTES).removeprefix(b"\xef\xbb\xbf")
    while data and not data.lstrip(_SPACE):
        data = file.read(READ_BYTES)
    return data.lstrip(_SPACE).startswith(b"[")


def write_items(file: BinaryIO, out: BinaryIO, *, name: str) -> None:
    """Write the items of an array as lines.

    Args:
        file: Where it is read from, from its beginning.
        out: Where the lines go.
        name: What the file is called in messages.

    Raises:
        InputError: The array has no end, another bracket for one, or something behind it.
    """
    for item in _items(file, name):
        if b"\n" in item or b"\r" in item:
            # a raw line feed inside a string is no JSON, and must not become some
            item = _BREAK.sub(b"", item) if _is_json(item) else _BAD_BREAK.sub(b"\x1f", item)
        out.write((item or b",") + b"\n")  # nothing between two commas is no JSON either


def _is_json(item: bytes) -> bool:
    try:
        orjson.loads(item)
    except orjson.JSONDecodeError:
        return False
    return True


def _items(file: BinaryIO, name: str) -> Iterator[bytes]:
    held, before = bytearray(), 0  # what was read from the item on that is being read, and how much was let go before
    depth, start, at, any_item = 0, 0, 0, False
    # as much again as is held and not understood: a string may be of any length, and is looked at from its beginning
    while piece := file.read(max(READ_BYTES, len(held) - at)):
        held += piece
        for found in TOKEN.finditer(held, at):
            token = found[0]
            if token in b"[{":
                depth += 1
                if depth == 1:
                    start = found.end()
            elif token in b"]}":
                depth -= 1
                if depth == 0:
                    if token == b"}":
                        raise _unclosed(name, f"closes at byte {before + found.start()} with '}}'")
                    if (item := bytes(held[start : found.start()]).strip(_SPACE)) or any_item:
                        yield item
                    _check_end(file, bytes(held[found.end() :]), before + found.end(), name)
                    return
            elif token == b"," and depth == 1:
                yield bytes(held[start : found.start()]).strip(_SPACE)
                start, any_item = found.end(), True
            elif token == b'"':  # of a string that goes on
                at = found.start()
                break
        else:
            at = len(held)
        gone = min(at, start) if depth else at
        del held[:gone]
        before, at, start = before + gone, at - gone, start - gone
    raise _unclosed(name, "does not end")


def _unclosed(name: str, said: str) -> InputError:
    return InputError(f"{name} begins as a JSON array, which {said}", hint="Fetch it again", subject=name)


def _check_end(file: BinaryIO, rest: bytes, end: int, name: str) -> None:
    while not (other := rest.strip(_SPACE)):
        if not (rest := file.read(READ_BYTES)):
            return
    raise InputError(
        f"{name} is a JSON array up to byte {end}, and goes on behind it: {other[:20]!r}",
        hint="Write one array, or one object a line",
        subject=name,
    )
