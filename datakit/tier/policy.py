"""policy: which shards a tier drops when room is needed.

Training reads each shard once an epoch, in a fresh order each time, so what was used last is needed last: "least
recently used" drops nearly always what comes next. Where the order is known, the furthest next use goes first (Belady
1966, optimal); where it is not, a scan keeps a subset and streams the rest, which the most recently used going first
does by itself. Never dropped: what is leased, pinned, or has no verified copy in a colder tier (law 8).

Pure: it is given values and gives one. Counters of use and positions in the order are the caller's, any that grow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal["leased", "pinned", "only copy"]
"""Why something stays whatever is needed; the first that holds is said."""


@dataclass(frozen=True, slots=True)
class Held:
    """One object that lies in a tier.

    Attributes:
        digest: Its sha256.
        bytes: Its size.
        leased: Whether somebody reads it now.
        pinned: Whether a person said that it stays.
        copied: Whether a colder tier holds a verified copy.
        last_used: When it was used last: a counter that grows with each use.
    """

    digest: str
    bytes: int
    leased: bool = False
    pinned: bool = False
    copied: bool = True
    last_used: int = 0

    @property
    def reason(self) -> Reason | None:
        """Why it stays, or None where it may go."""
        return "leased" if self.leased else "pinned" if self.pinned else None if self.copied else "only copy"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of the reading to come.

    Attributes:
        next_use: Digest to the position of its next use in the announced order.
        scanned: Digests of the datasets that are being read now, over and over.
    """

    next_use: Mapping[str, int] = field(default_factory=dict)
    scanned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be dropped.

    Attributes:
        drop: The objects, in the order in which they go; none where even all of them would not do.
        short_bytes: Bytes that cannot be freed; 0 where there is room once the objects are gone.
        kept_bytes: What holds the rest: bytes by reason.
    """

    drop: tuple[Held, ...]
    short_bytes: int
    kept_bytes: Mapping[Reason, int]


def choose(held: Iterable[Held], need_bytes: int, *, reading: Reading | None = None) -> Choice:
    """Say what to drop so that `need_bytes` more are free.

    First what nobody reads now, least recently used first; then what is being read and has no announced use, most
    recently used first; then what has one, the furthest first. No object is dropped of which the room is not needed.

    Args:
        held: What lies there.
        need_bytes: Bytes to free; 0 or less drops nothing.
        reading: What is known of the reading to come.

    Example:
        >>> [each.digest for each in choose([Held("a", 5, last_used=1), Held("b", 5, last_used=2)], 4).drop]
        ['a']
    """
    reading = reading or Reading()
    kept: dict[Reason, int] = {}
    queue = []
    for each in held:
        if (reason := each.reason) is not None:
            kept[reason] = kept.get(reason, 0) + each.bytes
        elif each.bytes:
            queue.append((*_rank(each, reading), each.digest, each))
    heapq.heapify(queue)
    drop: list[Held] = []
    while need_bytes > 0 and queue:
        drop.append(heapq.heappop(queue)[-1])
        need_bytes -= drop[-1].bytes
    short_bytes = max(need_bytes, 0)
    return Choice(() if short_bytes else tuple(drop), short_bytes, kept)


def _rank(each: Held, reading: Reading) -> tuple[int, int]:
    """Its place among those that may go, lowest first."""
    position = reading.next_use.get(each.digest)
    if position is not None:
        return 2, -position
    return (1, -each.last_used) if each.digest in reading.scanned else (0, each.last_used)
