"""retry: how patient we are with a store, and a store that is asked with that patience.

Only trouble of the way is tried again (no connection, a time-out, a body that broke off, 429, 5xx), with full jitter, a
bounded number of times. A store that has never answered is given up after a few seconds; one that says it is busy slows
down everyone who shares the pace, not only the request that it said it to. A small object whose bytes are not those of
its tag is asked for again too, and is an error when it stays so: a bit that flips on the way is not believed.

Source of the jitter: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from datakit.data.digest import Buffer
from datakit.errors import Interrupted, StoreUnavailable
from datakit.storage import etags
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Throttled
from datakit.storage.counts import Account, RequestCounts
from datakit.storage.limits import Gate
from datakit.storage.objects import Blob, Body, ObjectInfo, Patience, Store, joined

T = TypeVar("T")

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
"""Six tries wait 0.2 + 0.4 + ... + 6.4 = 12.6 s at most: a store recovers in that time or is in real trouble."""

DAMAGE_TRIES = 3
"""How often bytes are asked for that are wrong: a bit flipped on the way comes right, one at rest does not.

TCP lets a wrong packet through in 16 million at the worst (Stone and Partridge, SIGCOMM 2000); a part of 16 MiB is
11,500 of them, so it arrives wrong by chance once in 1,400 times, and three times in a row once in 3 billion.
"""

CONTACT_RETRIES = 2
"""Tries beyond the first while the store has never answered: a wrong endpoint should be said in seconds."""


class Pace:
    """Patience that is shared by all requests to one store.

    Args:
        retries: Tries beyond the first for one request.
        fraction: Gives numbers from 0 to 1, for the jitter.
        clock: Seconds that only grow.
        stopped: Set by `stop`; whoever waits, waits for it.
    """

    def __init__(
        self,
        *,
        retries: int,
        fraction: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        self._retries = retries
        self._fraction = fraction
        self._clock = clock
        self._guard = threading.Lock()
        self._answered = False
        self._resume_at = 0.0
        self._stopped = stopped or threading.Event()

    def stop(self) -> None:
        """Let nobody wait any longer: requests that would wait or be tried again raise Interrupted."""
        self._stopped.set()

    def call(self, act: Callable[[], T]) -> T:
        """Do something, again if need be.

        Raises:
            StoreUnavailable: It failed as often as the patience allows.
            Interrupted: The pace was stopped meanwhile.
        """
        attempt = 0
        while True:
            self._wait(self._resume_at - self._clock())
            try:
                result = act()
            except StoreUnavailable as error:
                throttled = isinstance(error, Throttled)
                self._answered = self._answered or throttled
                if attempt >= (self._retries if self._answered else min(self._retries, CONTACT_RETRIES)):
                    if throttled:
                        raise StoreUnavailable(error.message, hint=error.hint, subject=error.subject) from error
                    raise
                delay_s = self._fraction() * min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**attempt)
                if throttled:
                    with self._guard:
                        self._resume_at = max(self._resume_at, self._clock() + delay_s)
                else:
                    self._wait(delay_s)
                attempt += 1
            else:
                self._answered = True
                return result

    def _wait(self, delay_s: float) -> None:
        if self._stopped.is_set() or (delay_s > 0 and self._stopped.wait(delay_s)):
            raise Interrupted("the transfer was stopped", hint="Run the same command again: it continues")


class PatientStore:
    """A store whose every request has the patience of a pace."""

    def __init__(self, store: Store, *, pace: Pace) -> None:
        self._store = store
        self._pace = pace

    @property
    def url(self) -> str:
        """Of the store behind it."""
        return self._store.url

    @property
    def options(self) -> StoreOptions:
        """Of the store behind it."""
        return self._store.options

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Of the store behind it."""
        return self._store.accounts

    @property
    def requests(self) -> RequestCounts:
        """Of the store behind it: each try counts."""
        return self._store.requests

    def limit(self, gate: Gate) -> None:
        """See `Store.limit`; of the store behind it."""
        self._store.limit(gate)

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        return self._pace.call(lambda: self._store.head(key))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Store.list`."""
        return self._pace.call(lambda: self._store.list(prefix))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """See `Store.folders`."""
        return self._pace.call(lambda: self._store.folders(prefix))

    def fetch(self, key: str) -> Blob:
        """See `Store.fetch`; the bytes are those that the tag stands for, where it is an md5 of them.

        Raises:
            IntegrityError: They are others, however often they are asked for.
        """
        for attempt in range(1, DAMAGE_TRIES + 1):
            blob = self._pace.call(lambda: self._store.fetch(key))
            if etags.fits(blob.data, blob.info.etag) is not False or self._is_sealed(key, blob):
                break
            if attempt == DAMAGE_TRIES:
                raise etags.torn(f"{self.url}/{key}", subject=key)
        return blob

    def _is_sealed(self, key: str, blob: Blob) -> bool:
        """Whether an object's tag is none of its bytes, because it is encrypted: only the answer to a read says so."""
        if not blob.data:
            return False
        self.read(key, start=0, stop=1, etag=blob.info.etag)
        return not self.tags_bytes(key)

    def stream(self, key: str, *, start: int, stop: int, etag: str | None = None) -> Iterator[memoryview]:
        """See `Store.stream`; after a break it goes on at that byte, and every piece renews the patience."""
        position = start
        pieces: Iterator[memoryview] | None = None

        def next_piece() -> memoryview:
            nonlocal pieces
            try:
                pieces = pieces or self._store.stream(key, start=position, stop=stop, etag=etag)
                return next(pieces)
            except BaseException:
                pieces = None
                raise

        while position < stop:
            piece = self._pace.call(next_piece)
            position += len(piece)
            yield piece
        if pieces is not None:
            next(pieces, None)  # lets the store end its answer, and check what it checks at the end

    def read(self, key: str, *, start: int, stop: int, etag: str | None = None) -> bytes:
        """See `Store.read`."""
        return joined(self.stream(key, start=start, stop=stop, etag=etag))

    def write(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> ObjectInfo:
        """See `Store.write`."""
        return self._pace.call(lambda: self._store.write(key, data, create=create, replaces=replaces))

    def upload(
        self, key: str, body: Body, *, connections: int, create: bool = False, patience: Patience | None = None
    ) -> ObjectInfo:
        """See `Store.upload`; each request of it has the patience, where the store makes them one by one."""
        call = patience or self._pace.call
        return self._store.upload(key, body, connections=connections, create=create, patience=call)

    def tags_bytes(self, key: str) -> bool:
        """See `Store.tags_bytes`."""
        return self._store.tags_bytes(key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._pace.call(lambda: self._store.delete(key))
