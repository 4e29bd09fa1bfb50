"""pool: a directory that holds whole, verified files by their content, within a byte budget.

Layout, format 1: `tier.json` (made by us: a directory that has none and is not empty is refused), `objects/<2
hex>/<sha256>` (a shard that many datasets share is there once), `datasets/` and `pins/` (`roster`), `arriving/`
(`arrival`), `aside/` (damaged objects, `<sha256>.<8 hex>`). It promises: objects, arriving files, promises and what
lies aside never exceed the budget, whatever processes do (law 7); an object has its name only when it is whole and
verified (law 6); nothing is dropped that is leased, pinned or has no verified colder copy (law 8). No promise depends
on a lock; several processes may share a directory.

Bytes are those of file sizes, as `du --apparent-size` has them; journals and manifests are not counted. Leases are of
this process. Does not look at colder places (the caller says what is copied) and does not fetch (`fill` does).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from datakit.data.digest import FileEntry
from datakit.errors import NoSpace, Refused, UsageError
from datakit.storage import disk
from datakit.tier import arrival
from datakit.tier.arrival import Arrival
from datakit.tier.policy import Choice, Held, Reading
from datakit.tier.room import Room, plan_room
from datakit.tier.roster import Roster
from datakit.tier.usage import Usage, look_at
from datakit.units import format_bytes

FORMAT = 1
FORMAT_NAME = "tier.json"

RESERVE_TRIES = 8
FIRST_WAIT_S = 0.02
"""Two who ask at once both give way and wait up to 0.02, 0.04, ... s: seven such pauses are 2.5 s at most."""

MAX_ASIDE = 3
"""Damaged files that are kept to be looked at, the newest; what is damaged in numbers, the first three show as well."""

_FOREIGN = {"lost+found"}
"""What a file system itself makes in its root."""

Copied: TypeAlias = Callable[[], Collection[str]]
"""Gives the digests that a colder tier verifiably holds; asked only when room is needed."""


class Pool:
    """One tier's directory.

    Args:
        root: The directory.
        budget_bytes: What it may hold.
        name: The tier's, for messages and commands.
        fraction: Gives numbers from 0 to 1, for waiting.
    """

    def __init__(
        self, root: Path, *, budget_bytes: int, name: str = "cache", fraction: Callable[[], float] = random.random
    ) -> None:
        self.root = Path(root)
        self.budget_bytes = budget_bytes
        self.name = name
        self.roster = Roster(self.root)
        self.reading = Reading()
        self._fraction = fraction
        self._leases: Counter[str] = Counter()
        self._guard = threading.Lock()

    def open(self) -> Pool:
        """Make the directory a tier, or see that it is one. Errors as in `check`."""
        self.check()
        path = self.root / FORMAT_NAME
        disk.make_dirs(self.root)
        with disk.at_door(self.root):
            if not path.exists():
                disk.write_atomic(path, json.dumps({"format": FORMAT}).encode() + b"\n")
        return self

    @property
    def is_made(self) -> bool:
        """Whether the directory is a tier already."""
        return (self.root / FORMAT_NAME).exists()

    def check(self) -> None:
        """See that the directory is a tier, or may become one.

        Raises:
            Refused: Something else lies there.
            UsageError: It is of a newer format.
        """
        path = self.root / FORMAT_NAME
        with disk.at_door(self.root):
            if not path.exists():
                other = self._other()
                if other is None or path.exists():  # somebody may be making it right now
                    return
                raise Refused(
                    f"{self.root} is no tier, and not empty: {other} lies there",
                    hint=f"Name an empty or a new directory: tiers.{self.name}.place",
                    subject=str(self.root),
                )
            value = _value(path)
        found = value.get("format") if isinstance(value, dict) else None
        if found != FORMAT:
            message = f"{path} says format {found!r}; this datakit reads {FORMAT}"
            raise UsageError(message, hint="Use a newer datakit", subject=str(path))

    def _other(self) -> str | None:
        if not self.root.exists():
            return None
        names = (name for name in sorted(os.listdir(self.root)) if not disk.TEMPORARY.fullmatch(name))
        return next((name for name in names if name not in _FOREIGN), None)

    def path(self, digest: str) -> Path:
        """Where an object is, or would be."""
        return self.root / "objects" / digest[:2] / digest

    def has(self, entry: FileEntry) -> bool:
        """Whether an object is there in its size."""
        with disk.at_door(self.root):
            try:
                return self.path(entry.sha256).stat().st_size == entry.bytes
            except FileNotFoundError:
                return False

    @contextlib.contextmanager
    def hold(self, digests: Iterable[str]) -> Iterator[None]:
        """Keep objects, those that are yet to come too, from being dropped by this process while the block lasts."""
        held = list(digests)
        with self._guard:
            self._leases.update(held)
        try:
            yield
        finally:
            with self._guard:
                self._leases.subtract(held)
                self._leases += Counter()  # those at zero go

    def is_held(self, digest: str) -> bool:
        """Whether this process holds an object."""
        with self._guard:
            return self._leases[digest] > 0

    @contextlib.contextmanager
    def lease(self, digest: str) -> Iterator[Path]:
        """Read an object: its path, which stays while the block lasts. It counts as used now.

        Raises:
            NotFound: It is not there.
        """
        with self.hold([digest]):
            path = self.path(digest)
            with disk.at_door(path):
                status = path.stat()
                with contextlib.suppress(PermissionError):  # another user's file: then it counts as its reading does
                    os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
            yield path

    def usage(self) -> Usage:
        """What lies there now; what is moved meanwhile is counted at least once."""
        return look_at(self.root)

    @contextlib.contextmanager
    def arrival(self) -> Iterator[Arrival]:
        """A directory to fetch into, with which all its promises end; the pool must be opened."""
        found = Arrival(self.root / "arriving")
        found.open()
        try:
            yield found
        finally:
            found.close()

    def reserve(
        self,
        into: Arrival,
        sizes: Mapping[str, int],
        *,
        copied: Copied,
        sleep: Callable[[float], None] = time.sleep,
    ) -> set[str]:
        """Promise room to objects before the first request for them, and drop what may go where there is none.

        Gives the digests that have it: those that somebody else asked for earlier are left to them. Parts that killed
        fetches have left are taken over.

        Args:
            into: Where they will arrive.
            sizes: Bytes by digest.
            copied: What a colder tier holds.
            sleep: Waits for others who ask at once, in seconds.

        Raises:
            NoSpace: They do not fit, whatever is dropped; says what holds the room. Nothing was dropped for them, but
                where somebody else was quicker to take what that had freed.
            Refused: This fetch was taken for dead.
        """
        into.sweep()
        for attempt in range(RESERVE_TRIES):
            into.promise(sizes)
            quicker = into.earlier(sizes)
            into.withdraw({digest: sizes[digest] for digest in quicker})
            sizes = {digest: size_bytes for digest, size_bytes in sizes.items() if digest not in quicker}
            if not sizes:
                break
            usage = self.usage()
            if usage.total_bytes - usage.left_bytes(sizes) <= self.budget_bytes:
                into.touch()
                into.adopt(sizes)
                break
            into.withdraw(sizes)
            usage = self.usage()
            need_bytes = usage.total_bytes - usage.left_bytes(sizes) + sum(sizes.values()) - self.budget_bytes
            choice = self.free(need_bytes, copied=copied, spare=sizes, usage=usage)
            if choice.short_bytes:
                others = any(each.promised for each in usage.incoming if each.path != into.path)
                if not others or sum(sizes.values()) > self.budget_bytes or attempt == RESERVE_TRIES - 1:
                    raise self.no_room(sum(sizes.values()), choice, usage)
                sleep(FIRST_WAIT_S * 2**attempt * self._fraction())
        else:
            raise self.no_room(sum(sizes.values()), choice, usage)
        return set(sizes)

    def fits(self, sizes: Mapping[str, int], *, copied: Copied) -> Choice | None:
        """What would be dropped to have room for objects; None where nothing need be. Changes nothing.

        Those that another fetch is bringing need no more room than they have.

        Args:
            sizes: Bytes by digest.
            copied: What a colder tier holds; asked only where something must go.
        """
        usage = self.usage()
        coming = {digest for each in usage.incoming for digest in each.promised}
        new_bytes = sum(size_bytes for digest, size_bytes in sizes.items() if digest not in coming)
        need_bytes = usage.total_bytes - usage.left_bytes(sizes) + new_bytes - self.budget_bytes
        return self.room(need_bytes, copied=copied, spare=sizes, usage=usage).choice if need_bytes > 0 else None

    def room(self, need_bytes: int, *, copied: Copied, spare: Collection[str] = (), usage: Usage | None = None) -> Room:
        """Say what `free` would let go. Changes nothing."""
        usage = usage or self.usage()
        return plan_room(need_bytes, usage=usage, held=self.held, copied=copied, spare=spare, reading=self.reading)

    def free(
        self, need_bytes: int, *, copied: Copied, spare: Collection[str] = (), usage: Usage | None = None
    ) -> Choice:
        """Drop what may go until so much more is free; nothing where even all of it would not do.

        Args:
            need_bytes: Bytes.
            copied: What a colder tier holds.
            spare: Digests whose leftovers are wanted.
            usage: What lies there, where the caller has just looked.
        """
        room = self.room(need_bytes, copied=copied, spare=spare, usage=usage)
        self.remove_left(room.left)
        self.remove_aside(room.aside)
        for item in room.choice.drop:
            self.drop(item.digest)
        return room.choice

    def held(self, usage: Usage, copied: Collection[str]) -> list[Held]:
        """The objects as the policy sees them."""
        pinned = {digest for known in self.roster.known() if known.pinned for digest in known.objects}
        with self._guard:
            leased = set(self._leases)
        return [
            Held(
                digest,
                lying.bytes,
                leased=digest in leased,
                pinned=digest in pinned,
                copied=digest in copied,
                last_used=lying.used_ns,
            )
            for digest, lying in usage.objects.items()
        ]

    def drop(self, digest: str) -> bool:
        """Remove an object that the caller knows to be copied; whether it went: one that is leased by now stays."""
        with self._guard, disk.at_door(self.root):
            if self._leases[digest] > 0:
                return False
            self.path(digest).unlink(missing_ok=True)
        return True

    def land(self, into: Arrival, entry: FileEntry) -> None:
        """Give an object its place, once it is whole and verified; where it is already, the other stays.

        Raises:
            Refused: This fetch was taken for dead: the room for it was given to others.
        """
        into.touch()
        final = self.path(entry.sha256)
        disk.make_dirs(final.parent)
        with disk.at_door(final):
            if self.has(entry):
                into.target(entry.sha256).unlink()
            else:
                os.rename(into.target(entry.sha256), final)
        into.withdraw({entry.sha256: entry.bytes})

    def set_aside(self, digest: str) -> Path | None:
        """Take the name from a damaged object; where it lies now, or None where somebody else has taken it."""
        target = self.root / "aside" / f"{digest}.{secrets.token_hex(4)}"
        disk.make_dirs(target.parent)
        with disk.at_door(target):
            try:
                os.rename(self.path(digest), target)
            except FileNotFoundError:
                return None
        return target

    def tidy_aside(self, *, copied: Copied, most: int = MAX_ASIDE) -> list[str]:
        """Remove damaged files but the newest, as far as there is another copy of what they were; their names."""
        usage = self.usage()
        if len(usage.aside) <= most:
            return []
        spent = set(usage.spent(copied()))
        names = [name for name in list(usage.aside)[: len(usage.aside) - most] if name in spent]
        self.remove_aside(names)
        return names

    def remove_left(self, digests: Collection[str]) -> None:
        """Remove what killed fetches have left of some objects."""
        for each in self.usage().incoming if digests else ():
            if each.is_left:
                arrival.discard(each, keep=each.here.keys() - set(digests))

    def remove_aside(self, names: Iterable[str]) -> None:
        """Remove damaged files by their names."""
        with disk.at_door(self.root / "aside"):
            for name in names:
                (self.root / "aside" / name).unlink(missing_ok=True)

    def full(self, need_bytes: int, choice: Choice) -> NoSpace:
        """The error of a disk that is full though the budget is not."""
        usage, disk_bytes = self.usage(), os.statvfs(self.root)
        taken_bytes = (disk_bytes.f_blocks - disk_bytes.f_bfree) * disk_bytes.f_frsize
        other_bytes = max(taken_bytes - usage.total_bytes, 0)
        message = f"the disk of {self.root} has no room for {format_bytes(need_bytes)}: {_holders(usage, choice)}"
        return NoSpace(
            f"{message}; {format_bytes(other_bytes)} on that disk are not of this tier",
            hint=f"Free some of it: datakit tier evict {self.name} DATASET, or whatever else lies on that disk",
            subject=str(self.root),
        )

    def no_room(self, need_bytes: int, choice: Choice, usage: Usage) -> NoSpace:
        """The error of a budget that is too small."""
        budget = f"its budget of {format_bytes(self.budget_bytes)}"
        return NoSpace(
            f"{self.root} has no room for {format_bytes(need_bytes)} in {budget}: {_holders(usage, choice)}",
            hint=f"See datakit tier status {self.name}; unpin or evict a dataset, or raise tiers.{self.name}.budget",
            subject=str(self.root),
        )


def _holders(usage: Usage, choice: Choice) -> str:
    """What holds the room."""
    said = {str(reason): size for reason, size in choice.kept_bytes.items()}
    said |= {"arriving": usage.arriving_bytes, "aside": usage.aside_bytes}
    named = [f"{format_bytes(size)} {reason}" for reason, size in said.items() if size]
    return f"{format_bytes(usage.total_bytes)} are used" + (f", of them {', '.join(named)}" if named else "")


def _value(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None
