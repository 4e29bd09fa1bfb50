"""fill: bring objects into a pool: room first, then the requests, and each object has its name once it is verified.

What another process is bringing is waited for, not fetched twice; where it gives up, this one goes on. The engine is
that of `storage.transfer`: 16 MiB at a time, checked against the manifest's crc32c while they are written, continued
after kill -9. A disk that is full though the budget is not is answered once: what may go is dropped, and it is tried
again. What a source has not, or has damaged, is asked of the next one. What it does not do: decide what is brought
from where (that is `fetch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from datakit.data.digest import FileEntry
from datakit.errors import DatakitError, IntegrityError, NoSpace, NotFound, Refused
from datakit.events import Caution, OnEvent, Progress, ignore
from datakit.storage import disk
from datakit.storage.moves import SyncSettings
from datakit.storage.objects import Store
from datakit.storage.partial import Fetch
from datakit.storage.retry import Pace
from datakit.storage.transfer import download
from datakit.tier.arrival import Arrival
from datakit.tier.pool import Copied, Pool
from datakit.units import format_number_of

POLL_S = 0.2
"""Between looks at what others are bringing: a shard of 64 MiB takes as long at 2.7 Gbit/s."""

MAX_LOST = 3
"""How often what came may be gone again before the end: others drop it as fast as it comes."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where objects can be had.

    Attributes:
        store: Their store.
        keys: By digest, where they are in it.
        reject: Told the digest of one that is damaged there.
        holds: Whether one is still there; asked of each once one is not.
    """

    store: Store
    keys: Mapping[str, str] = field(repr=False)
    reject: Callable[[str], object] = field(default=lambda _digest: None, repr=False)
    holds: Callable[[str], bool] = field(default=lambda _digest: True, repr=False)


@dataclass(slots=True)
class Brought:
    """What has come.

    Attributes:
        files: Objects that were fetched.
        bytes: Their bytes.
        waited_files: Objects that another process brought meanwhile.
    """

    files: int = 0
    bytes: int = 0
    waited_files: int = 0


def bring(
    pool: Pool,
    entries: Iterable[FileEntry],
    *,
    sources: Sequence[Source],
    copied: Copied,
    settings: SyncSettings | None = None,
    task: str = "fetch",
    on_event: OnEvent = ignore,
    sleep: Callable[[float], None] = time.sleep,
) -> Brought:
    """Have a pool hold some objects; those that it holds are not fetched, and none of them is dropped for another.

    Args:
        pool: The pool, opened.
        entries: What is to be there in the end.
        sources: Where to get it, the best first.
        copied: What a colder tier holds, for the room.
        settings: How.
        task: What progress calls it.
        on_event: Told about progress.
        sleep: Waits for others, in seconds.

    Raises:
        NoSpace: They do not fit, by budget or by disk; nothing was fetched, or what came stays.
        NotFound: No source has one of them.
        IntegrityError: The last source has damaged bytes.
        StoreUnavailable, NotAllowed: As of the store.
        Refused: What came is dropped by others again and again.
    """
    wanted = {entry.sha256: entry for entry in entries}
    with pool.hold(wanted), pool.arrival() as into:
        work = _Work(pool, into, wanted, list(sources), copied, settings or SyncSettings(), task, on_event, sleep)
        while missing := work.missing():
            others = into.earlier(missing)
            mine = {digest: entry for digest, entry in missing.items() if digest not in others}
            if mine:
                work.fetch(mine)
            else:
                into.touch()
                sleep(POLL_S)
        return work.done()


@dataclass(slots=True)
class _Work:
    pool: Pool
    into: Arrival
    wanted: Mapping[str, FileEntry]
    sources: list[Source]
    copied: Copied
    settings: SyncSettings
    task: str
    on_event: OnEvent
    sleep: Callable[[float], None]
    here: set[str] = field(default_factory=set)
    came: dict[str, int] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)
    num_bytes: int = 0
    is_full: bool = False

    def __post_init__(self) -> None:
        self.here = {digest for digest, entry in self.wanted.items() if self.pool.has(entry)}
        self._say()

    def missing(self) -> dict[str, FileEntry]:
        found = {digest: entry for digest, entry in self.wanted.items() if not self.pool.has(entry)}
        lost = [digest for digest in found if self.came.get(digest, 0) >= MAX_LOST]
        if lost:
            message = f"{self.pool.path(lost[0])} came {MAX_LOST} times and was dropped by another process each time"
            raise Refused(message, hint=f"Raise tiers.{self.pool.name}.budget, or let the other end", subject=lost[0])
        return found

    def done(self) -> Brought:
        others = len(self.wanted.keys() - self.here - self.came.keys())
        num_bytes = sum(self.wanted[digest].bytes * count for digest, count in self.came.items())
        return Brought(sum(self.came.values()), num_bytes, others)

    def fetch(self, mine: Mapping[str, FileEntry]) -> None:
        """Reserve, see that nobody was quicker, and fetch."""
        new = {digest: entry.bytes for digest, entry in mine.items() if digest not in self.promised}
        try:
            self.promised |= self.pool.reserve(self.into, new, copied=self.copied, sleep=self.sleep)
        except NoSpace:
            if self.into.earlier(mine) or any(map(self.pool.has, mine.values())):
                return  # it has come meanwhile, or is coming: then less room is needed
            raise
        there = {digest: entry.bytes for digest, entry in mine.items() if self.pool.has(entry)}
        self.into.withdraw(there)
        self.promised -= there.keys()
        todo = {digest: entry for digest, entry in mine.items() if digest in self.promised}
        try:
            self._download(todo)
        except NoSpace as error:
            self._make_room(todo, error)

    def _download(self, todo: Mapping[str, FileEntry]) -> None:
        source = next((each for each in self.sources if todo.keys() & each.keys.keys()), None)
        if not todo:
            return
        if source is None:
            entry = next(iter(todo.values()))
            hint = "Look at it: datakit verify, with the dataset's place"
            raise NotFound(f"no source holds {entry.name}, sha256 {entry.sha256}", hint=hint, subject=entry.name)
        rest = {digest: entry for digest, entry in todo.items() if digest in source.keys}
        fetches = [
            Fetch(source.keys[digest], self.into.target(digest), entry.bytes, entry=entry)
            for digest, entry in rest.items()
        ]
        # an object is believed by its size from then on: a power cut must not leave one of zeros
        knobs = self.settings.knobs(durable=self.settings.durability != "never")
        try:
            download(
                source.store,
                fetches,
                knobs=knobs,
                pace=Pace(retries=knobs.retries),
                on_bytes=self._count,
                on_file=self._land,
            )
        except (NotFound, IntegrityError) as error:
            if not self._pass_by(source, rest, error):
                raise

    def _pass_by(self, source: Source, rest: Iterable[str], error: DatakitError) -> bool:
        """Ask a later source for what this one has not, or has damaged; whether there is one."""
        at, url = self.sources.index(source), source.store.url
        named = {digest for digest in rest if error.subject in (key := source.keys[digest], f"{url}/{key}")}
        gone = {digest for digest in source.keys if isinstance(error, NotFound) and not source.holds(digest)}
        bad = named | gone or set(source.keys)  # all, where the error names none
        later = {digest for each in self.sources[at + 1 :] for digest in each.keys}
        if not bad.intersection(rest) <= later:
            return False
        if isinstance(error, IntegrityError):
            for digest in named:
                source.reject(digest)
        self.sources[at] = replace(
            source, keys={digest: key for digest, key in source.keys.items() if digest not in bad}
        )
        what = format_number_of(len(bad), "object")
        message = f"{url} cannot give {what}, and the next place is asked: {error.message}"
        self.on_event(Caution(message, hint=error.hint))
        return True

    def _make_room(self, todo: Mapping[str, FileEntry], error: NoSpace) -> None:
        """The disk is full: drop once, and try again."""
        lacking = {digest: entry.bytes for digest, entry in todo.items() if not self.pool.has(entry)}
        need_bytes = sum(lacking.values())
        short_bytes = max(need_bytes - disk.free_bytes(self.pool.root), max(lacking.values(), default=0))
        choice = self.pool.free(short_bytes, copied=self.copied, spare=lacking)
        if self.is_full or choice.short_bytes:
            raise self.pool.full(need_bytes, choice) from error
        self.is_full = True

    def _land(self, fetch: Fetch) -> None:
        assert fetch.entry is not None
        self.pool.land(self.into, fetch.entry)
        digest = fetch.entry.sha256
        self.came[digest] = self.came.get(digest, 0) + 1
        self.promised.discard(digest)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.into.touch()
        self._say()

    def _say(self) -> None:
        total_bytes = sum(entry.bytes for digest, entry in self.wanted.items() if digest not in self.here)
        self.on_event(Progress(self.task, min(self.num_bytes, total_bytes), total_bytes, "B"))
