"""supply: the fetches of a cache's agent: one for an object, however many want it.

A few threads fetch. What a reader waits for goes first; while nobody waits, they fetch ahead what readers will want
next, as far as there is room for it without asking twice. What finds no room waits until the other fetches are done
and have taken theirs, and is then an error that says who holds what.

What it does not do: decide what goes when room is needed (`policy`), or keep what has come (its holders do).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from datakit.data.digest import FileEntry
from datakit.errors import DatakitError, NoSpace
from datakit.events import Event, OnEvent, Progress, ignore
from datakit.storage.moves import SyncSettings
from datakit.tier.course import Rate
from datakit.tier.fill import Source, bring
from datakit.tier.pool import Copied, Pool

NUM_THREADS = 4
"""Objects that come at once: with four connections each they have the sixteen of a sync."""

SETTINGS = SyncSettings(concurrency=4, window="64MiB")
"""For each of them: four parts of 16 MiB are a shard of the default size."""


@dataclass(slots=True, eq=False)
class Flight:
    """A fetch under way, or waiting for its turn.

    Attributes:
        digest: Of the object.
        is_wanted: Whether a reader waits for it; else it is fetched ahead.
        done: Set at its end.
        error: Why it failed, if it did.
    """

    digest: str
    is_wanted: bool
    done: threading.Event = field(default_factory=threading.Event)
    error: DatakitError | None = None


class Supply:
    """Fetches objects into a pool.

    Args:
        pool: The pool.
        entry: Gives what a manifest says of an object.
        source: Gives where it can be had.
        copied: What a colder tier holds.
        prepare: Called before each fetch, so that the pool knows what will be read.
        ahead: What readers will want next, the next first.
        settings: How to fetch one.
        clock: Seconds that only grow.
        on_event: Told of damage at a source.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        entry: Callable[[str], FileEntry],
        source: Callable[[str], Source],
        copied: Copied,
        prepare: Callable[[], object],
        ahead: Callable[[], Iterable[str]],
        settings: SyncSettings = SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        on_event: OnEvent = ignore,
    ) -> None:
        self._pool = pool
        self._entry = entry
        self._source = source
        self._copied = copied
        self._prepare = prepare
        self._ahead = ahead
        self._settings = settings
        self._clock = clock
        self._on_event = on_event
        self._turn = threading.Condition()
        self._queue: deque[Flight] = deque()
        self._flights: dict[str, Flight] = {}
        self._waiting: list[Flight] = []
        self._refused: set[str] = set()
        self._wishes: dict[str, None] = {}
        self._num_active = 0
        self.rate = Rate(clock())
        self.fetched_files = 0
        self.fetched_bytes = 0

    def start(self) -> None:
        """Begin to fetch; the threads end with the process."""
        for number in range(NUM_THREADS):
            threading.Thread(target=self._work, name=f"datakit-supply-{number}", daemon=True).start()

    def want(self, digest: str) -> Flight:
        """Have an object fetched for a reader who waits; joins the fetch that is under way."""
        with self._turn:
            flight = self._flights.get(digest)
            if flight is None:
                flight = self._flights[digest] = Flight(digest, is_wanted=True)
                self._queue.append(flight)
            flight.is_wanted = True
            self._turn.notify_all()
            return flight

    def wish(self, digest: str) -> None:
        """Have an object fetched when nobody waits, if there is room for it."""
        with self._turn:
            if digest not in self._flights and digest not in self._refused:
                self._wishes[digest] = None
                self._turn.notify()

    def look(self) -> None:
        """Look again what to fetch ahead: something was released, or will be wanted."""
        with self._turn:
            self._refused.clear()
            self._turn.notify_all()

    @property
    def coming(self) -> list[str]:
        """Objects that are on their way, or wait for their turn."""
        with self._turn:
            return list(self._flights)

    def _work(self) -> None:
        while True:
            with self._turn:
                while (flight := self._next()) is None:
                    self._turn.wait()
                self._num_active += 1
            error = self._fetch(flight)
            with self._turn:
                self._num_active -= 1
                if isinstance(error, NoSpace) and flight.is_wanted and self._num_active:
                    self._waiting.append(flight)  # others are taking their room: what they leave is known afterwards
                else:
                    self._finish(flight, error)
                    self._queue.extendleft(self._waiting)
                    self._waiting.clear()
                self._turn.notify_all()

    def _next(self) -> Flight | None:
        """What to fetch now; nothing ahead while somebody waits for room."""
        if self._queue:
            return self._queue.popleft()
        if self._waiting:
            return None
        wishes, self._wishes = self._wishes, {}
        for digest in (*self._ahead(), *wishes):
            if digest not in self._flights and digest not in self._refused and not self._pool.has(self._entry(digest)):
                flight = self._flights[digest] = Flight(digest, is_wanted=False)
                self._wishes = {each: None for each in wishes if each != digest}
                return flight
        return None

    def _fetch(self, flight: Flight) -> DatakitError | None:
        try:
            entry = self._entry(flight.digest)
            self._prepare()
            come = bring(
                self._pool,
                [entry],
                sources=[self._source(flight.digest)],
                copied=self._copied,
                settings=self._settings,
                on_event=self._hear,
            )
        except DatakitError as error:
            return error
        except Exception as error:  # noqa: BLE001 -- one object that nobody foresaw must not end the fetches of others
            return DatakitError(f"{type(error).__name__}: {error}", hint="Please report it", subject=flight.digest)
        with self._turn:
            self.fetched_files += come.files
            self.fetched_bytes += come.bytes
            self.rate.add(come.bytes, self._clock())
        return None

    def _finish(self, flight: Flight, error: DatakitError | None) -> None:
        del self._flights[flight.digest]
        if error is not None:
            self._refused.add(flight.digest)
        flight.error = error
        flight.done.set()

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Progress):
            self._on_event(event)
