"""room: what goes of a pool so that so many bytes are free: a plan, made of what lies there.

Leftovers of killed fetches go first, then damaged files of which there is a whole copy, then what the policy says.
Nothing goes where even all of it would not do. Whoever has the plan carries it out: `Pool.free`, or `eviction`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from datakit.tier.policy import Choice, Held, Reading, choose
from datakit.tier.usage import Usage


@dataclass(frozen=True, slots=True)
class Room:
    """What goes.

    Attributes:
        left: Digests of parts that killed fetches have left.
        aside: Names of damaged files.
        other_bytes: Bytes of both.
        choice: The objects that go besides, or what is short.
    """

    left: tuple[str, ...]
    aside: tuple[str, ...]
    other_bytes: int
    choice: Choice


def plan_room(
    need_bytes: int,
    *,
    usage: Usage,
    held: Callable[[Usage, Collection[str]], Iterable[Held]],
    copied: Callable[[], Collection[str]],
    spare: Collection[str],
    reading: Reading,
) -> Room:
    """Say what goes; nothing where nothing need go.

    Args:
        need_bytes: Bytes to free.
        usage: What lies there.
        held: Gives the objects as the policy sees them, of what a colder tier holds.
        copied: What a colder tier holds; asked only where leftovers do not do.
        spare: Digests whose leftovers are wanted.
        reading: What is known of the reading to come.
    """
    if need_bytes <= 0:
        return Room((), (), 0, Choice((), 0, {}))
    left = sorted({digest for each in usage.incoming if each.is_left for digest in each.here} - set(spare))
    other_bytes = usage.left_bytes(left)
    there = copied() if need_bytes > other_bytes else ()
    aside = usage.spent(there) if need_bytes > other_bytes else []
    other_bytes += sum(usage.aside[name] for name in aside)
    choice = choose(held(usage, there), need_bytes - other_bytes, reading=reading)
    return Room((), (), 0, choice) if choice.short_bytes else Room(tuple(left), tuple(aside), other_bytes, choice)
