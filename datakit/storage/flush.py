"""flush: what the write-back of runs still has to do, in the time that is left: the newest commit first.

For a machine that is about to be reclaimed, and for a run whose trainer is gone. One commit goes up after the other, by
an agent's work in this process; where the agent of a living trainer is at it, that one is waited for. A store that
cannot be had is tried again until the time is over. It copies what was offered before, and makes no checkpoint.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.errors import DatakitError, Interrupted, NotFound
from datakit.events import Caution, Note, OnEvent, ignore
from datakit.storage.access import StoreOptions
from datakit.storage.agent import SETTINGS, Agent
from datakit.storage.copies import Copy, error_of, read_copies, read_copy
from datakit.storage.inbox import Inbox
from datakit.storage.moves import SyncSettings
from datakit.units import format_number_of

LOOK_S = 0.2
"""How often it is looked whether another agent has verified what is waited for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A commit without a verified copy.

    Attributes:
        path: Its directory here.
        dest: Where its copy will be.
        here: Whether it is here still.
    """

    path: Path
    dest: str
    here: bool
    copy: Copy = field(repr=False)


@dataclass(frozen=True, slots=True)
class Flushed:
    """What became of the commits that had no copy.

    Attributes:
        copied: Their copies that are verified by now, in the order in which they were made.
        left: Those that are not, each with the last thing that is known of it.
        newest: Where the newest commit of all is to be copied to; None where none was ever offered.
        trouble: The error by which that one has no copy; None where it has one.
        seconds: How long it took.
    """

    copied: tuple[str, ...]
    left: Mapping[str, str]
    newest: str | None
    trouble: DatakitError | None = field(repr=False)
    seconds: float


def plan_flush(queues: Iterable[Path]) -> tuple[Waiting, ...]:
    """Commits that have no verified copy, the newest first.

    Args:
        queues: Queue directories of runs.
    """
    copies = [copy for place in queues for copy in read_copies(place)]
    copies.sort(key=lambda copy: copy.made_ns, reverse=True)
    return tuple(
        Waiting(copy.path, copy.dest, copy.path.is_dir(), copy)
        for copy in copies
        if copy.state != "verified" and not copy.is_replaced
    )


def flush(
    queues: Iterable[Path],
    *,
    deadline_s: float,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> Flushed:
    """Copy what has no verified copy, the newest first, for so many seconds at most.

    Args:
        queues: Queue directories of runs.
        deadline_s: When it returns; what is under way then goes on as long as the process does.
        settings: How bytes move; as a training moves them when None.
        stores: Named stores.
        on_event: Told what becomes of each.
    """
    begun = time.monotonic()
    places = list(queues)
    everything = [copy for place in places for copy in read_copies(place)]
    newest = max(everything, key=lambda copy: copy.made_ns, default=None)
    hands = {place: _Hand(place, settings or SETTINGS, stores) for place in places}
    copied: list[str] = []
    troubles: dict[str, DatakitError] = {}
    todo = plan_flush(places)
    if todo:
        on_event(Note(f"{format_number_of(len(todo), 'commit')} without a copy, the newest for {todo[0].dest}"))
    for waiting in todo:
        left_s = deadline_s - (time.monotonic() - begun)
        trouble = hands[waiting.copy.file.parent].copy(waiting, left_s)
        if trouble is None:
            copied.append(waiting.dest)
            on_event(Note(f"{waiting.path.name} is verified at {waiting.dest}"))
        else:
            troubles[waiting.dest] = trouble
            on_event(Caution(f"{waiting.dest} is not there yet: {trouble.message}", trouble.hint))
    for hand in hands.values():
        hand.end()
    return Flushed(
        copied=tuple(copied),
        left={dest: error.message for dest, error in troubles.items()},
        newest=None if newest is None else newest.dest,
        trouble=None if newest is None else troubles.get(newest.dest),
        seconds=time.monotonic() - begun,
    )


class _Hand:
    """An agent for one queue directory, working in a thread once there is something to do."""

    def __init__(self, queue_dir: Path, settings: SyncSettings, stores: Mapping[str, StoreOptions] | None) -> None:
        self._inbox = Inbox()
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        agent = Agent(self._inbox, self, queue_dir=queue_dir, settings=settings, stores=stores)
        self._thread = threading.Thread(target=agent.run, name="datakit-flush", daemon=True)

    def write(self, line: str, /) -> None:
        """Hear an answer of the agent."""
        self._heard.put(json.loads(line))

    def flush(self) -> None:
        """Nothing is kept back."""

    def copy(self, waiting: Waiting, left_s: float) -> DatakitError | None:
        """Have one commit copied, in so many seconds; what went wrong, or None."""
        copy, until = waiting.copy, time.monotonic() + left_s
        if not waiting.here:
            return NotFound(
                f"{waiting.path} is not here any more", hint="Nothing is left to copy", subject=waiting.dest
            )
        last = "the time was over before its turn"
        if left_s > 0:
            request = {"op": "publish", "path": str(waiting.path), "dest": waiting.dest, "state": str(copy.file)}
            self._inbox.put(request | {"manifest_digest": copy.manifest_digest, "repair": copy.repair})
            if not self._thread.is_alive():
                self._thread.start()
        while (rest_s := until - time.monotonic()) > 0:
            now = read_copy(copy.file)
            if now is not None and now.state == "verified" and now.manifest_digest is not None:
                return None  # an agent of the trainer's own may have done it
            try:
                answer = self._heard.get(timeout=min(rest_s, LOOK_S))
            except queue.Empty:
                continue
            if answer.get("dest") != waiting.dest:
                continue
            if answer["event"] == "failed":
                return error_of(answer, subject=waiting.dest)
            last = answer.get("message") or last
        hint = "Run the same command again: it continues"
        return Interrupted(f"{waiting.dest} has no verified copy yet: {last}", hint=hint, subject=waiting.dest)

    def end(self) -> None:
        """Say that no more will come."""
        self._inbox.end()
