"""addresses: signed URLs of objects, kept as long as they are good; signing one takes less than a request does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

SIGNED_S = 300
"""How long a signed address is used; it is valid for twice that. Stores refuse what was signed over 15 minutes ago."""

MAX_ADDRESSES = 10_000
"""Signed addresses kept, some 5 MB."""


class Addresses:
    """The addresses of one store's objects, by key; any thread may ask."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: dict[str, tuple[str, float]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: str, sign: Callable[[timedelta], str]) -> str:
        """An address that is good for a while.

        Args:
            key: Of the object.
            sign: Makes one that is valid for so long.
        """
        with self._guard:
            url, expires_at = self._kept.get(key, ("", 0.0))
        if time.monotonic() > expires_at:
            url = sign(timedelta(seconds=2 * SIGNED_S))
            with self._guard:
                if len(self._kept) >= MAX_ADDRESSES:
                    self._kept.clear()
                self._kept[key] = (url, time.monotonic() + SIGNED_S)
        return url

    def forget(self, key: str) -> None:
        """Drop one that was refused: signed by a clock that stood still, or with credentials that have ended since."""
        with self._guard:
            self._kept.pop(key, None)
