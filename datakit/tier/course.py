"""course: what readers will want next, by the orders that they announced, and when one of them will have to wait.

A reader announces the shards in the order in which it will want them, and is followed along it. Fetched ahead is what
several readers want within a bounded stretch before them, the nearest first; who is the last to come, waits no longer
for that. The forecast takes present rates for granted: what is missing comes one after another at the rate of the
fetches, while the reader goes on at its own.

Pure: positions, sizes, rates and times are given to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

RATE_S = 60.0
"""Rates are those of the last minute: some dozen shards of 64 MiB at 100 Mbit/s."""


class Course:
    """The order that one reader announced, and how far along it the reader is.

    Args:
        digests: Of the shards, in the order in which they will be wanted; one may come several times.
        steps: The reader's step at which each is wanted first, ascending; their positions when not given.
    """

    def __init__(self, digests: Sequence[str], *, steps: Sequence[int] | None = None) -> None:
        assert steps is None or len(steps) == len(digests)
        self.digests = tuple(digests)
        self.steps = tuple(range(len(digests)) if steps is None else steps)
        self.position = 0
        self._places: dict[str, list[int]] = {}
        for place, digest in enumerate(self.digests):
            self._places.setdefault(digest, []).append(place)

    def reach(self, digest: str) -> bool:
        """The reader has this shard now: what stands before its next use is behind it. Whether it is on the course."""
        place = self.next_use(digest)
        if place is None:
            return False
        self.position = max(self.position, place + 1)
        return True

    def reach_step(self, step: int) -> None:
        """The reader begins this step: what was wanted before it is behind it."""
        self.position = max(self.position, bisect_left(self.steps, step))

    def next_use(self, digest: str) -> int | None:
        """The position of a shard's next use, or None."""
        places = self._places.get(digest, [])
        at = bisect_left(places, self.position)
        return places[at] if at < len(places) else None

    def next_uses(self) -> dict[str, int]:
        """How many positions each shard that is still wanted is away."""
        found = ((digest, self.next_use(digest)) for digest in self._places)
        return {digest: place - self.position for digest, place in found if place is not None}

    def within(self, window_bytes: int, size_of: Callable[[str], int]) -> list[str]:
        """The next shards, each once, as far as they fit into so many bytes."""
        found: dict[str, None] = {}
        for place in range(self.position, len(self.digests)):
            digest = self.digests[place]
            if digest not in found:
                window_bytes -= size_of(digest)
                if window_bytes < 0:
                    break
                found[digest] = None
        return list(found)

    def starves_at(
        self, *, here: Callable[[str], bool], size_of: Callable[[str], int], use_rate: float, fetch_rate: float
    ) -> int | None:
        """The step at which the reader will wait for the first time if all goes on as now; None where it will not.

        Args:
            here: Whether a shard is there.
            size_of: Its bytes.
            use_rate: Bytes of shards a second that the reader takes; 0 where it takes none.
            fetch_rate: Bytes a second that come.
        """
        used_bytes = fetched_bytes = 0
        coming: set[str] = set()
        for place in range(self.position, len(self.digests)):
            digest = self.digests[place]
            if digest not in coming and not here(digest):
                coming.add(digest)
                fetched_bytes += size_of(digest)
                if use_rate > 0 and fetched_bytes * use_rate > used_bytes * fetch_rate:
                    return self.steps[place]
            used_bytes += size_of(digest)
        return None


def merged(courses: Iterable[Course], window_bytes: int, size_of: Callable[[str], int]) -> list[str]:
    """What to have here next for all readers, in turn, each shard once, as far as it fits into so many bytes."""
    turns = zip_longest(*(course.within(window_bytes, size_of) for course in courses))
    found = []
    for digest in dict.fromkeys(digest for turn in turns for digest in turn if digest is not None):
        window_bytes -= size_of(digest)
        if window_bytes < 0:
            break
        found.append(digest)
    return found


def next_uses(courses: Iterable[Course]) -> Mapping[str, int]:
    """How far away the nearest use of each shard is, whoever wants it."""
    found: dict[str, int] = {}
    for course in courses:
        for digest, away in course.next_uses().items():
            found[digest] = min(away, found.get(digest, away))
    return found


class Rate:
    """Bytes a second over the last minute.

    Args:
        now_s: The time, in seconds that only grow.
    """

    def __init__(self, now_s: float) -> None:
        self._begun_s = now_s
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, num_bytes: int, now_s: float) -> None:
        """So many more came now."""
        self._seen.append((now_s, num_bytes))
        self._forget(now_s)

    def bytes_per_s(self, now_s: float) -> float:
        """The rate now; 0 where nothing came."""
        self._forget(now_s)
        elapsed_s = min(RATE_S, now_s - self._begun_s)
        return sum(size for _, size in self._seen) / elapsed_s if elapsed_s > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        while self._seen and self._seen[0][0] < now_s - RATE_S:
            self._seen.popleft()
