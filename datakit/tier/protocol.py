"""protocol: the frames that go between a reader and the agent of a cache.

A frame is a head of 16 bytes, one JSON object and, where there are any, raw bytes: `dktk`, the protocol's number (2
bytes), two bytes of zero, the length of the JSON (4 bytes), that of the raw bytes (4 bytes); numbers are big-endian.
Each request gets one answer, in order. An answer to what cannot be done is an error, told so that the reader raises it
again (`storage.copies.told`).

Pure: bytes in, frames out. A head that is none, or of another number, is an error with a sentence, and nothing behind
it is believed. Does not know what is asked (that is `keeper`).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

from datakit.errors import DatakitError, InputError, Refused
from datakit.storage.copies import error_of, told

VERSION = 1

_HEAD = struct.Struct(">4sHHII")
_MAGIC = b"dktk"

MAX_JSON_BYTES = 64 * 2**20
"""An order of five million shards; more is no request of ours."""

MAX_RAW_BYTES = 2**30
"""One read; a sample is far smaller, and both ends hold it in memory."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        value: The JSON object.
        raw: Bytes beside it.
    """

    value: dict[str, Any]
    raw: bytes = field(default=b"", repr=False)


def encode(frame: Frame) -> bytes:
    """A frame's bytes."""
    text = json.dumps(frame.value, separators=(",", ":")).encode()
    return _HEAD.pack(_MAGIC, VERSION, 0, len(text), len(frame.raw)) + text + frame.raw


class Decoder:
    """Takes in bytes as they come, and gives the frames in them."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def is_torn(self) -> bool:
        """Whether a frame has begun that has not ended."""
        return bool(self._data)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now.

        Args:
            data: What came next.

        Raises:
            InputError: These bytes are no frame.
            Refused: They are one of another version.
        """
        self._data += data
        found = []
        while len(self._data) >= _HEAD.size:
            json_bytes, raw_bytes = _lengths(bytes(self._data[: _HEAD.size]))
            end = _HEAD.size + json_bytes + raw_bytes
            if len(self._data) < end:
                break
            text = bytes(self._data[_HEAD.size : _HEAD.size + json_bytes])
            found.append(Frame(_object(text), bytes(self._data[_HEAD.size + json_bytes : end])))
            del self._data[:end]
        if len(self._data) < _HEAD.size and not _MAGIC.startswith(self._data[: len(_MAGIC)]):
            raise _no_frame(f"they begin with {bytes(self._data)!r}")
        return found


def failure(error: DatakitError) -> Frame:
    """The answer that something cannot be done."""
    return Frame(told(error))


def unwrap(frame: Frame) -> Frame:
    """An answer, if it is none of an error.

    Raises:
        DatakitError: The one that it tells of, with its own class.
    """
    if "error" in frame.value:
        try:
            error = error_of(frame.value)
        except (KeyError, AttributeError, TypeError):
            raise _no_frame(f"an error is told as {frame.value!r:.200}") from None
        raise error
    return frame


def _lengths(head: bytes) -> tuple[int, int]:
    magic, version, zero, json_bytes, raw_bytes = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise _no_frame(f"they begin with {head[:8]!r}")
    if version != VERSION:
        message = f"the other end speaks version {version} of the cache's protocol, this one {VERSION}"
        raise Refused(message, hint="Use one datakit on this machine, and end the agent of the other", subject=version)
    if zero or json_bytes > MAX_JSON_BYTES or raw_bytes > MAX_RAW_BYTES:
        raise _no_frame(f"they tell of {json_bytes} and {raw_bytes} bytes")
    return json_bytes, raw_bytes


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _no_frame(f"they hold {text[:40]!r}")
    return value


def _no_frame(why: str) -> InputError:
    hint = "Something else speaks on the socket; end it, or the agent, and run the same command again"
    return InputError(f"bytes came that are no frame of the cache's protocol: {why}", hint=hint)
