"""waste: what a pool holds that nobody needs: a plan of what goes, and doing it.

Leftovers of killed fetches, once they are older than a day or of no known dataset; damaged files that were set aside,
where a whole copy is known; objects of no known dataset that a colder place holds too. All of it is listed, and so are
the objects of no known dataset that stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from datakit.tier import arrival
from datakit.tier.pool import Copied, Pool
from datakit.tier.roster import objects_of

OLD_S = 86_400
"""A fetch that was killed is begun again within a day, or not at all."""


@dataclass(frozen=True, slots=True)
class Waste:
    """What goes.

    Attributes:
        tier: The tier's name.
        place: Its directory.
        left: Digests of parts that killed fetches have left.
        aside: Names of damaged files.
        orphans: Digests of objects of no known dataset.
        bytes: Of all of it.
        kept_orphans: Digests of such objects that stay, because no colder place is known to hold them.
        kept_aside: Damaged files that stay, because nothing else is known to hold what they were.
    """

    tier: str
    place: str
    left: tuple[str, ...]
    aside: tuple[str, ...]
    orphans: tuple[str, ...]
    bytes: int
    kept_orphans: tuple[str, ...]
    kept_aside: int


def find_waste(pool: Pool, *, copied: Copied, now_s: float) -> Waste:
    """Say what goes. Changes nothing.

    Args:
        pool: The pool.
        copied: What a colder tier holds; asked only where something lies aside or is of no known dataset.
        now_s: The time, in seconds since 1970.

    Raises:
        IntegrityError: What stands of a dataset is torn, so that nobody knows which objects are of none.
    """
    usage, known = pool.usage(), objects_of(pool.roster.known())
    left: Counter[str] = Counter()
    for each in usage.incoming:
        end = arrival.fate(each.path, now_ns=int(now_s * 1e9))
        for digest, touched_s in arrival.touched(each).items() if end is not None else ():
            if end == "gone" or digest not in known or touched_s < now_s - OLD_S:
                left[digest] += each.here[digest]
    unknown = [digest for digest in usage.objects if digest not in known and not pool.is_held(digest)]
    there = copied() if usage.aside or unknown else ()
    aside = usage.spent(there)
    orphans = [digest for digest in unknown if digest in there]
    size_bytes = sum(left.values()) + sum(usage.aside[name] for name in aside)
    return Waste(
        tier=pool.name,
        place=str(pool.root),
        left=tuple(sorted(left)),
        aside=tuple(aside),
        orphans=tuple(sorted(orphans)),
        bytes=size_bytes + sum(usage.objects[digest].bytes for digest in orphans),
        kept_orphans=tuple(sorted(set(unknown) - set(orphans))),
        kept_aside=len(usage.aside) - len(aside),
    )


def remove_waste(pool: Pool, waste: Waste) -> None:
    """Do what the plan says."""
    if waste.left:
        with pool.arrival() as own:
            own.sweep()
    pool.remove_left(waste.left)
    pool.remove_aside(waste.aside)
    known = objects_of(pool.roster.known())
    for digest in waste.orphans:
        if digest not in known:  # a fetch that has begun meanwhile knows it again
            pool.drop(digest)
