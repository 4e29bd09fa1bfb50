"""arrays: the items of a JSON array as JSON lines, each with its own bytes.

What stands in a file as one array is often meant as records. Items are found by their brackets and commas, outside
strings, in one pass over a mapped file; an item is copied as it is written, but for line feeds between its tokens,
which JSON does not mind. Whether an item is valid is seen where lines are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from datakit.data.digest import Buffer
from datakit.errors import InputError

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},"]', re.DOTALL)
_SPACE = b" \t\r\n"
_BREAK = re.compile(rb"[ \t]*[\r\n][ \t\r\n]*")
_BAD_BREAK = re.compile(rb"[\r\n]")


def is_array(head: bytes) -> bool:
    """Whether a file that begins so is an array."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE).startswith(b"[")


def write_items(data: Buffer, out: BinaryIO, *, name: str) -> None:
    """Write the items of an array as lines.

    Args:
        data: The whole file.
        out: Where the lines go.
        name: What the file is called in messages.

    Raises:
        InputError: The array has no end, or something behind it.
    """
    for start, stop in _items(data, name):
        item = bytes(data[start:stop]).strip(_SPACE)
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


def _items(data: Buffer, name: str) -> Iterator[tuple[int, int]]:
    depth, start, any_item = 0, 0, False
    for found in _TOKEN.finditer(data):
        token = found[0]
        if token in b"[{":
            depth += 1
            if depth == 1:
                start = found.end()
        elif token in b"]}":
            depth -= 1
            if depth == 0:
                if any_item or bytes(data[start : found.start()]).strip(_SPACE):
                    yield start, found.start()
                if rest := bytes(data[found.end() : found.end() + 200]).strip(_SPACE):
                    raise InputError(
                        f"{name} is a JSON array up to byte {found.end()}, and goes on behind it: {rest[:20]!r}",
                        hint="Write one array, or one object a line",
                        subject=name,
                    )
                return
        elif token == b"," and depth == 1:
            yield start, found.start()
            start, any_item = found.end(), True
        elif token == b'"':
            break
    raise InputError(f"{name} begins as a JSON array, which does not end", hint="Fetch it again", subject=name)
