"""tape: the bytes of a file as they pass by in order, whatever pieces a stream gives them in.

Each piece is used before the next is asked for, so a stream may fill the same buffer again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from datakit.data.digest import Buffer, crc32c
from datakit.errors import IntegrityError


class Tape:
    """Bytes that pass by once; where more are asked for than there are, that is an IntegrityError.

    Args:
        pieces: They, from `at` on.
        at: Position of the first in the file.
    """

    def __init__(self, pieces: Iterable[Buffer], at: int) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")
        self.at = at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size <= len(self._held):
            taken, self._held = bytes(self._held[:size]), self._held[size:]
            self.at += size
            return taken
        return b"".join(map(bytes, self.pieces(size)))

    def crc(self, size: int) -> tuple[int, bool]:
        """The crc32c of the next bytes, and whether all of them are zero."""
        value, zeros = 0, True
        for piece in self.pieces(size):
            value = crc32c(piece, value)
            zeros = zeros and not np.frombuffer(piece, np.uint8).any()
        return value, zeros

    def skip(self, size: int) -> None:
        """Let the next bytes pass."""
        for _ in self.pieces(size):
            pass

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next bytes, as they come; a piece is good until the next is asked for.

        Raises:
            IntegrityError: There are no more.
        """
        while size:
            while not self._held:
                if (more := next(self._pieces, None)) is None:
                    message = f"the bytes end at {self.at}, where {size} more should follow"
                    raise IntegrityError(message, hint="Run the same command again; the store sent less than it holds")
                self._held = memoryview(more)
            piece, self._held = self._held[:size], self._held[size:]
            size -= len(piece)
            self.at += len(piece)
            yield piece

    def run_out(self) -> None:
        """Let all the rest pass."""
        self.at += len(self._held)
        self._held = memoryview(b"")
        for piece in self._pieces:
            self.at += len(piece)
