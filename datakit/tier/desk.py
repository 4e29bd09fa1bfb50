"""desk: what the agent of a cache does at each request; they are listed in `keeper`.

Any number of readers ask at once, each from a thread of its own. What is held for a reader ends with it, and so does
what it announced. Nothing that is held is dropped: when all is held and another object has no room, the answer says
who holds what, and the reader goes on by `read`.

What it does not do: sockets and processes (`keeper`).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import DatakitError, InputError, Interrupted, NoSpace
from datakit.storage import disk
from datakit.storage.counts import PROCESS
from datakit.storage.moves import SyncSettings
from datakit.tier.course import Course, Rate, merged, next_uses
from datakit.tier.fill import bring
from datakit.tier.ledger import Ledger, holder_of, pid_of
from datakit.tier.library import Library, source_of
from datakit.tier.origin import Copies
from datakit.tier.policy import Reading
from datakit.tier.pool import Pool
from datakit.tier.protocol import Frame
from datakit.tier.supply import Flight, Supply
from datakit.units import agree, format_bytes

COPIES_S = 600.0
"""How long a colder place is believed to hold what it was seen to hold: a look costs a GET and a LIST, and a cache that
data streams through would take one for each shard."""

AHEAD_PARTS = 8
"""What is fetched ahead takes an eighth of the budget, so that seven eighths stay what the epoch after finds here."""

LEAST_AHEAD = 2
"""Shards that are fetched ahead at least where half of the budget holds them: one that is read, one that comes."""

POLL_S = 0.2
"""Between looks whether a reader who waits still lives; five a second cost nothing that shows."""


@dataclass(eq=False)
class Reader:
    """One connection.

    Attributes:
        pid: The process at its other end.
        is_gone: Says whether it has closed.
        holder: Its name in the ledger, once it has said hello.
        course: What it announced.
        largest_bytes: Of the shards that it announced.
        rate: Bytes of shards that it takes.
    """

    pid: int
    is_gone: Callable[[], bool]
    holder: str | None = None
    course: Course | None = None
    largest_bytes: int = 0
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What colder places hold, and until when that is believed, in seconds of the desk's clock."""

    copied: Copies
    until_s: float = field(default=0.0)


class Desk:
    """Answers requests about a pool.

    Args:
        pool: The pool, opened.
        settings: How datasets are looked at; how shards are fetched is `supply`'s.
        clock: Seconds that only grow.
    """

    def __init__(
        self, pool: Pool, *, settings: SyncSettings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._settings = settings or SyncSettings()
        self._clock = clock
        self._guard = threading.Lock()
        self._looking = threading.Lock()
        self._inspecting = threading.Lock()
        self._readers: set[Reader] = set()
        self._look: Look | None = None
        self._library = Library(pool, settings=self._settings)
        self._ledger = Ledger(pool)
        self._supply = Supply(
            pool,
            entry=self._library.entry,
            source=self._library.source,
            copied=self._copied,
            prepare=self._prepare,
            ahead=self._ahead,
            clock=clock,
        )
        self._hits = 0
        self._read_bytes = 0

    @property
    def root(self) -> Path:
        """The pool's directory."""
        return self._pool.root

    def start(self) -> None:
        """Hold what living readers of an earlier agent hold, and begin to fetch."""
        self._ledger.inherit()
        self._supply.start()

    def sweep(self) -> None:
        """Forget readers of an earlier agent who have died."""
        self._ledger.sweep()

    def leave(self, reader: Reader) -> None:
        """Free what a reader holds, and forget what it announced."""
        with self._guard:
            self._readers.discard(reader)
        if reader.holder is not None:
            self._ledger.end(reader.holder)
        self._supply.look()

    def answer(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        """Do what is asked.

        Raises:
            DatakitError: It cannot be done; any of the tree.
            KeyError, TypeError, ValueError: The request is not as it should be.
        """
        op = request["op"]
        if op == "hello":
            return self._hello(request, reader)
        if reader.holder is None:
            raise InputError(f"{op} came before hello", hint="Use one datakit on this machine")
        answers: dict[str, Callable[[Mapping[str, Any], Reader], Frame]] = {
            "open": self._open,
            "lease": self._lease,
            "release": self._release,
            "order": self._order,
            "step": self._step,
            "read": self._read,
            "damaged": self._damaged,
            "settled": self._settled,
            "status": self._status,
        }
        if op not in answers:
            raise InputError(f"{op!r} is no request", hint=f"There are: hello, {', '.join(answers)}, stop", subject=op)
        return answers[op](request, reader)

    def _hello(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        reader.holder = holder_of(reader.pid, _token(request["token"]))
        reader.rate = Rate(self._clock())
        with self._guard:
            self._readers.add(reader)
        return Frame({"root": str(self.root), "budget_bytes": self._pool.budget_bytes})

    def _open(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        opened = self._library.open(request["place"], digest=request.get("digest"), options=request.get("options"))
        manifest = opened.view.manifest
        indexes = [manifest.member(shard.index_name) for shard in opened.view.contents.shards]
        assert reader.holder is not None
        for entry in indexes:
            self._ledger.take(reader.holder, entry.sha256)
        self._prepare()
        source = source_of(opened.view, indexes)
        bring(self._pool, indexes, sources=[source], copied=self._copied, settings=self._settings)
        return Frame({"digest": opened.digest, "name": manifest.name})

    def _lease(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        digest, entry = request["shard"], self._library.entry(request["shard"])
        assert reader.holder is not None
        self._ledger.take(reader.holder, digest)  # first, so that it stays from the moment it is here
        try:
            if self._pool.has(entry):
                self._hits += 1
            elif request["wait"]:
                self._await(self._supply.want(digest), reader)
            else:
                self._ledger.give_back(reader.holder, digest)
                self._supply.wish(digest)
                return Frame({"path": None})
        except BaseException:
            self._ledger.give_back(reader.holder, digest)
            raise
        with self._pool.lease(digest) as path:
            self._follow(reader, digest, entry.bytes)
            return Frame({"path": str(path)})

    def _await(self, flight: Flight, reader: Reader) -> None:
        while not flight.done.wait(POLL_S):
            if reader.is_gone():
                raise Interrupted("the reader is gone", hint="Nobody waits for this answer")
        if isinstance(flight.error, NoSpace):
            raise NoSpace(f"{flight.error.message}{self._holders()}", hint=flight.error.hint, subject=flight.digest)
        if flight.error is not None:
            raise flight.error

    def _follow(self, reader: Reader, digest: str, size_bytes: int) -> None:
        with self._guard:
            if reader.rate is not None:
                reader.rate.add(size_bytes, self._clock())
            moved = reader.course is not None and reader.course.reach(digest)
        if moved:
            self._supply.look()

    def _release(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        assert reader.holder is not None
        self._ledger.give_back(reader.holder, request["shard"])
        self._supply.look()
        return Frame({})

    def _order(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        shards, steps = [str(each) for each in request["shards"]], request.get("steps")
        for digest in set(shards):
            self._library.entry(digest)
        if steps is not None and len(steps) != len(shards):
            raise InputError(f"{len(steps)} steps for {len(shards)} shards", hint="Give one for each", subject="steps")
        course = Course(shards, steps=steps)
        with self._guard:
            reader.course = course
            reader.largest_bytes = max(map(self._library.size, shards), default=0)
        self._supply.look()
        return Frame({})

    def _step(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        with self._guard:
            if reader.course is not None:
                before = reader.course.position
                reader.course.reach_step(int(request["step"]))
                used = reader.course.digests[before : reader.course.position]
                if reader.rate is not None:
                    reader.rate.add(sum(map(self._library.size, used)), self._clock())
        self._supply.look()
        return Frame({})

    def _read(self, request: Mapping[str, Any], _reader: Reader) -> Frame:
        (view, shard), entry = self._library.shard(request["shard"]), self._library.entry(request["shard"])
        offset, size = int(request["offset"]), int(request["size"])
        if offset < 0 or size < 1 or offset + size > entry.bytes:
            message = f"{shard.name} has no {size} bytes at {offset}"
            raise InputError(message, hint="Ask within the size that the manifest says", subject=shard.name)
        with self._pool.hold([request["shard"]]):  # so that it is not dropped between the look and the read
            if self._pool.has(entry):
                return Frame({}, bytes(disk.map_file(self._pool.path(entry.sha256))[offset : offset + size]))
        data = view.read(shard, offset, size)
        with self._guard:
            self._read_bytes += size
        return Frame({}, data)

    def _damaged(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        digest, entry = request["shard"], self._library.entry(request["shard"])
        with self._inspecting:
            there = self._pool.has(entry)
            problem = entry.difference(disk.map_file(self._pool.path(digest))) if there else None
            if problem is not None:
                self._pool.set_aside(digest)
                self._pool.tidy_aside(copied=self._copied)
        answer = self._lease({"shard": digest, "wait": True}, reader)
        assert reader.holder is not None
        self._ledger.give_back(reader.holder, digest)  # it is held as often as before
        return Frame({**answer.value, "was_damaged": problem is not None})

    def _settled(self, request: Mapping[str, Any], reader: Reader) -> Frame:
        for token in request["earlier"]:
            self._ledger.end(holder_of(reader.pid, _token(token)))
        self._supply.look()
        return Frame({})

    def _status(self, _request: Mapping[str, Any], _reader: Reader) -> Frame:
        usage, now_s = self._pool.usage(), self._clock()
        fetch_rate = self._supply.rate.bytes_per_s(now_s)
        with self._guard:
            readers = [self._seen(each, now_s, fetch_rate, usage.objects) for each in self._readers]
        held = {holder: digests for holder, digests in self._ledger.held().items() if digests}
        return Frame(
            {
                "root": str(self.root),
                "budget_bytes": self._pool.budget_bytes,
                "objects": len(usage.objects),
                "object_bytes": usage.object_bytes,
                "arriving_bytes": usage.arriving_bytes,
                "aside_bytes": usage.aside_bytes,
                "leases": [{"pid": pid_of(holder), "objects": len(digests)} for holder, digests in held.items()],
                "coming": self._supply.coming,
                "fetched_files": self._supply.fetched_files,
                "fetched_bytes": self._supply.fetched_bytes,
                "read_bytes": self._read_bytes,
                "hits": self._hits,
                "rate_bytes_per_s": fetch_rate,
                "requests": dataclasses.asdict(PROCESS.counts),
                "readers": sorted(readers, key=lambda said: (said["pid"], said["position"])),
            }
        )

    def _seen(self, reader: Reader, now_s: float, fetch_rate: float, here: Collection[str]) -> dict[str, Any]:
        course, use_rate = reader.course, reader.rate.bytes_per_s(now_s) if reader.rate else 0.0
        starves = None
        if course is not None:
            starves = course.starves_at(
                here=here.__contains__, size_of=self._library.size, use_rate=use_rate, fetch_rate=fetch_rate
            )
        return {
            "pid": reader.pid,
            "position": course.position if course else 0,
            "shards": len(course.digests) if course else 0,
            "rate_bytes_per_s": use_rate,
            "starves_at_step": starves,
        }

    def _ahead(self) -> list[str]:
        with self._guard:
            courses = [each.course for each in self._readers if each.course is not None]
            if not courses:
                return []
            largest_bytes = max(each.largest_bytes for each in self._readers)
            budget_bytes = self._pool.budget_bytes
            window_bytes = min(max(budget_bytes // AHEAD_PARTS, LEAST_AHEAD * largest_bytes), budget_bytes // 2)
            return merged(courses, max(window_bytes, largest_bytes), self._library.size)

    def _prepare(self) -> None:
        with self._guard:
            courses = [each.course for each in self._readers if each.course is not None]
            self._pool.reading = Reading(next_uses(courses), self._library.scanned())

    def _copied(self) -> Collection[str]:
        with self._looking:
            now_s = self._clock()
            if self._look is None or self._look.until_s < now_s:
                copies = Copies(self._pool, settings=self._settings, stores=self._library.stores, on_event=self._doubt)
                self._look = Look(copies, now_s + COPIES_S)
            return self._look.copied()

    def _doubt(self, _event: object) -> None:
        """A place could not be asked: it is asked again at the next need."""
        self._look = None

    def _holders(self) -> str:
        held = self._ledger.held()
        said = []
        for holder, digests in sorted(held.items(), key=lambda item: -len(item[1]))[:3]:
            size_bytes = sum(self._size(digest) for digest in digests)
            said.append(f"process {pid_of(holder)} holds {len(digests)} objects of {format_bytes(size_bytes)}")
        return f"; {agree(len(said), 'it', 'they')} {', '.join(said)}" if said else ""

    def _size(self, digest: str) -> int:
        try:
            return self._library.size(digest)
        except DatakitError:
            return 0


def _token(text: str) -> str:
    """Eight hex digits, which are part of a file's name."""
    return int(text, 16).to_bytes(4, "big").hex()
