"""counts: requests made to a store, by the class that prices them, and the bytes of their bodies.

A request is counted when it is sent, so that one that failed, or was tried again, counts as the bill does.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests made, by class, and the bytes of bodies that came in and went out."""

    get: int = 0
    head: int = 0
    put: int = 0
    list: int = 0
    delete: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        """Requests of all classes."""
        return self.get + self.head + self.put + self.list + self.delete

    def __str__(self) -> str:
        said = [
            f"{count} {name.upper()}"
            for name in ("get", "head", "put", "list", "delete")
            if (count := getattr(self, name))
        ]
        return ", ".join(said) or "none"


class Meter:
    """Counts requests from many threads; `PROCESS` counts them too."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._totals = {one.name: 0 for one in fields(RequestCounts)}

    def add(self, **more: int) -> None:
        """Count some."""
        with self._guard:
            for name, count in more.items():
                self._totals[name] += count
        if self is not PROCESS:
            PROCESS.add(**more)

    @property
    def counts(self) -> RequestCounts:
        """What was counted so far."""
        with self._guard:
            return RequestCounts(**self._totals)


PROCESS = Meter()
"""Counts what any meter of this process counts, also for work that ended by an error and has no result to tell it."""
