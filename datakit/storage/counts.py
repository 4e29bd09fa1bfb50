"""counts: requests made to a store, by the class that prices them, and the bytes of their bodies.

A request is counted before it is sent, with its body, so that one that failed, or was tried again, counts as the bill
does; of a body that was asked for and did not come whole the rest is given back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from datakit.storage.access import StoreOptions
from datakit.storage.limits import regardless


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


class Account(NamedTuple):
    """Whose requests are counted together: a store's URL, and how it is reached."""

    url: str
    options: StoreOptions


class Meter:
    """Counts requests from many threads, before they are sent; `PROCESS` counts them too.

    Args:
        store: Whose requests they are, for `by_store`; None where nobody is to be told.

    Attributes:
        gate: Lets requests and bytes through before they are counted, or raises.
    """

    def __init__(self, store: Account | None = None) -> None:
        self._guard = threading.Lock()
        self._totals = {one.name: 0 for one in fields(RequestCounts)}
        self._above = _meter_of(store)
        self.gate: Callable[[Mapping[str, int]], None] | None = None

    def add(self, **more: int) -> None:
        """Count some, once the gate has let them through; numbers below 0 give back.

        Raises:
            LimitExceeded: It has not; nothing is counted, and nothing may be sent.
            Interrupted: The work has ended while they waited; nothing may be sent.
        """
        if self.gate is not None:
            self.gate(more)
        with self._guard:
            for name, count in more.items():
                self._totals[name] += count
        if self._above is not None:
            self._above.add(**more)

    @contextlib.contextmanager
    def coming(self, size_bytes: int) -> Iterator[Callable[[int], None]]:
        """Count a GET and the body that it asks for, around the request; what does not come of it is given back.

        Args:
            size_bytes: Of the body.

        Yields:
            What is told the bytes of each piece that comes.

        Raises:
            LimitExceeded, Interrupted: As `add`.
        """
        self.add(get=1, bytes_in=size_bytes)
        left = size_bytes

        def came(count: int) -> None:
            nonlocal left
            left -= count

        try:
            yield came
        finally:
            if left:
                with regardless():
                    self.add(bytes_in=-left)

    @property
    def counts(self) -> RequestCounts:
        """What was counted so far."""
        with self._guard:
            return RequestCounts(**self._totals)


_all: Meter | None = None
_stores: dict[Account, Meter] = {}
_stores_guard = threading.Lock()


def _meter_of(store: Account | None) -> Meter | None:
    """Who counts what a meter of a store counts: that of all meters of that store, or of the process."""
    if store is None:
        return _all
    with _stores_guard:
        return _stores.setdefault(store, Meter())


PROCESS = _all = Meter()
"""Counts what any meter of this process counts, also for work that ended by an error and has no result to tell it."""


def by_store() -> dict[Account, RequestCounts]:
    """What this process has counted so far by store; a store that was asked nothing is left out."""
    with _stores_guard:
        return {store: meter.counts for store, meter in _stores.items() if meter.counts.total}
