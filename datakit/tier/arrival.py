"""arrival: what is on its way into a pool, and how much room it was promised.

Whoever fetches has a directory of its own, `arriving/<machine>-<process>-<its start>-<8 hex>`, so that two writers
never meet in one file. In it lie its promises, empty files named `<sha256>.<bytes>`, and what has come so far: the
temporaries of `storage.partial` and whole files that wait for their place. It counts with the larger of promise and
file for each object.

Nobody depends on a lock. A promise is written first, then everything is summed, and it holds only if the sum is
within the budget: of two who ask at once, the later to write sees the other. Whoever moves a file moves it along the
order in which it is counted (arriving, objects, aside), so that a count may see it twice and never not at all;
whoever counts lists the directories until none is new.

The directory of a dead process is renamed to `left-<8 hex>`: its promises end, and its parts go on for whoever
fetches the same. Of a process that cannot be looked at (it is of another machine, or hidden by hidepid) it is known
when it was seen last. After `STALE_S` its directory is renamed to `gone-<8 hex>` and removed with its parts: should it
live, it finds that out, and what it wrote until then went into files that nobody has.

Source of a process's start: proc(5), field 22 of `/proc/PID/stat`; of the machine: `/proc/sys/kernel/random/boot_id`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datakit.errors import Refused
from datakit.storage import disk
from datakit.storage.partial import PARTIAL

STALE_S = 1800
"""A fetch says that it lives with every part that comes, and while it waits; a request is given up after minutes."""

_HOLDER = re.compile(r"(?P<machine>[0-9a-f]{12})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")
_LEFT = re.compile(r"left-[0-9a-f]{8}")
_GONE = re.compile(r"gone-[0-9a-f]{8}")
_PROMISE = re.compile(r"(?P<digest>[0-9a-f]{64})\.(?P<bytes>\d+)")
_FILE = re.compile(r"(?P<digest>[0-9a-f]{64})|\.(?P<name>[0-9a-f]{64})\.(?:[0-9a-f]{8}\.part|tmp-[0-9a-f]{8})")
_ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Incoming:
    """One directory of arriving objects, as it was seen.

    Attributes:
        path: The directory.
        promised: Bytes promised to each object, and when, in ns on the file system's clock; none where it is left.
        here: Bytes of what has come of each object, as its file's size says: an arriving file is made in its full size.
        is_left: Whether its owner is gone.
    """

    path: Path
    promised: Mapping[str, tuple[int, int]]
    here: Mapping[str, int]
    is_left: bool

    @property
    def bytes(self) -> int:
        """What it takes of the budget."""
        digests = {*self.promised, *self.here}
        return sum(max(self.promised.get(each, (0, 0))[0], self.here.get(each, 0)) for each in digests)


class Arrival:
    """The directory of one fetch.

    Args:
        top: The pool's `arriving`.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self.path = top / f"{machine_id()}-{os.getpid()}-{start_of(os.getpid())}-{secrets.token_hex(4)}"

    def open(self) -> None:
        """Make it."""
        disk.make_dirs(self.path)
        self.touch(new=True)

    def touch(self, *, new: bool = False) -> None:
        """Say that its owner lives.

        Raises:
            Refused: It was taken for dead, and its promises are given to others.
        """
        with self._there():
            os.close(os.open(self.path / _ALIVE, os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o666))
            os.utime(self.path / _ALIVE)

    def promise(self, sizes: Mapping[str, int]) -> None:
        """Ask for room: bytes by digest. It counts at once; who asked takes it back where the sum is too large.

        Raises:
            Refused: As of `touch`.
        """
        with self._there():
            for digest, size_bytes in sizes.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                os.close(os.open(self.path / f"{digest}.{size_bytes}", flags, 0o666))

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        with disk.at_door(self.path):
            try:
                yield
            except FileNotFoundError:
                message = f"this fetch said nothing for {STALE_S // 60} minutes, and its room was given to others"
                raise Refused(message, hint="Run it again: it goes on where it was", subject=str(self.path)) from None

    def withdraw(self, sizes: Mapping[str, int]) -> None:
        """Take promises back; what is not promised is fine."""
        with disk.at_door(self.path):
            for digest, size_bytes in sizes.items():
                (self.path / f"{digest}.{size_bytes}").unlink(missing_ok=True)

    def target(self, digest: str) -> Path:
        """Where an object is fetched to before it has its place."""
        return self.path / digest

    def earlier(self, digests: Iterable[str]) -> set[str]:
        """Which of these objects somebody else is fetching who lives, and asked before this one did, or alone."""
        self.sweep()
        found = look(self._top)
        own = next((each.promised for each in found if each.path == self.path), {})
        mine = {digest: (own[digest][1], self.path.name) for digest in digests if digest in own}
        return {
            digest
            for each in found
            if each.path != self.path
            for digest in digests
            if digest in each.promised
            and (digest not in mine or (each.promised[digest][1], each.path.name) < mine[digest])
        }

    def sweep(self) -> None:
        """End the promises of the dead: of processes that are gone, and of those that hide and are silent."""
        now_ns = _modified_ns(self.path / _ALIVE)
        for path in _folders(self._top):
            with disk.at_door(path), contextlib.suppress(FileNotFoundError):
                end = None if path == self.path or now_ns is None else fate(path, now_ns=now_ns)
                if end == "gone":
                    _remove(path if _GONE.fullmatch(path.name) else _renamed(path, "gone"))
                elif end == "left" and not _LEFT.fullmatch(path.name):
                    _leave(path)

    def adopt(self, digests: Iterable[str]) -> None:
        """Go on with what killed fetches have left of these objects, which must be promised; what cannot go on goes."""
        wanted = set(digests)
        for each in look(self._top):
            for digest in wanted & each.here.keys() if each.is_left else ():
                for name in _names(each.path):
                    if digest not in name:
                        continue
                    with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
                        if PARTIAL.fullmatch(name):
                            os.rename(each.path / name, self.path / name)
                        else:
                            (each.path / name).unlink()

    def close(self) -> None:
        """End all promises; parts that have come stay for a later fetch, and nothing else."""
        with disk.at_door(self.path), contextlib.suppress(FileNotFoundError):
            _leave(self.path)


def look(top: Path) -> list[Incoming]:
    """What is arriving in a pool, by the names and sizes of files alone.

    A directory that gets another name meanwhile stands in a later listing, so it is seen once more, or twice.
    """
    found: dict[Path, Incoming] = {}
    while new := [path for path in _folders(top) if path not in found]:
        found |= {path: _look_into(path) for path in new}
    return list(found.values())


def _look_into(path: Path) -> Incoming:
    is_held, is_left = (pattern.fullmatch(path.name) is not None for pattern in (_HOLDER, _LEFT))
    promised: dict[str, tuple[int, int]] = {}
    here: dict[str, int] = {}
    for name, status in _files(path):
        if match := _PROMISE.fullmatch(name):
            if is_held:
                promised[match["digest"]] = (int(match["bytes"]), status.st_mtime_ns)
        elif match := _FILE.fullmatch(name):
            digest = match["digest"] or match["name"]
            here[digest] = here.get(digest, 0) + status.st_size
    return Incoming(path, promised, here, is_left)


def fate(path: Path, *, now_ns: int) -> Literal["left", "gone"] | None:
    """What becomes of a directory: its parts are left for others, or they go too; None while its owner lives.

    Args:
        path: The directory.
        now_ns: The time on its file system's clock, in ns since 1970.
    """
    match = _HOLDER.fullmatch(path.name)
    if match is None:
        return "left" if _LEFT.fullmatch(path.name) else "gone"
    ended = is_gone(match["machine"], int(match["pid"]), match["start"])
    if ended is None:
        seen_ns = _modified_ns(path / _ALIVE)
        return "gone" if seen_ns is not None and now_ns - seen_ns > STALE_S * 10**9 else None
    return "left" if ended else None


def touched(left: Incoming) -> dict[str, float]:
    """When the parts that a dead fetch has left were written last, in seconds since 1970, by digest."""
    found: dict[str, float] = {}
    for name, status in _files(left.path):
        if match := _FILE.fullmatch(name):
            digest = match["digest"] or match["name"]
            found[digest] = max(found.get(digest, 0.0), status.st_mtime)
    return found


def discard(left: Incoming, *, keep: Iterable[str] = ()) -> int:
    """Remove what a dead fetch has left, but of some objects; the bytes that this frees."""
    assert left.is_left
    kept, freed_bytes = set(keep), 0
    with disk.at_door(left.path):
        for digest in left.here.keys() - kept:
            for name in _names(left.path):
                if digest in name:
                    (left.path / name).unlink(missing_ok=True)
            freed_bytes += left.here[digest]
        _remove_empty(left.path)
    return freed_bytes


def _leave(path: Path) -> None:
    """Make a directory nobody's, and keep of it what a later fetch can go on with."""
    left = _renamed(path, "left")
    for each in list(left.iterdir()):
        if not PARTIAL.fullmatch(each.name):
            each.unlink(missing_ok=True)
    _remove_empty(left)


def _renamed(path: Path, word: str) -> Path:
    return path.rename(path.with_name(f"{word}-{secrets.token_hex(4)}"))


def _remove(path: Path) -> None:
    for each in list(path.iterdir()):
        each.unlink(missing_ok=True)
    _remove_empty(path)


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):  # something is in it, or it is gone
        path.rmdir()


def _folders(top: Path) -> list[Path]:
    with disk.at_door(top):
        try:
            patterns = _HOLDER, _LEFT, _GONE
            return sorted(each for each in top.iterdir() if any(known.fullmatch(each.name) for known in patterns))
        except FileNotFoundError:
            return []


def _names(folder: Path) -> list[str]:
    """What is in a directory; nothing in one that is gone by now."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Names and what is known of them; what moves on meanwhile is counted where it goes."""
    with disk.at_door(folder):
        for name in _names(folder):
            with contextlib.suppress(FileNotFoundError):
                yield name, os.stat(folder / name)


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def machine_id() -> str:
    """Twelve hex digits of this machine's boot and the namespace that process numbers are of."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]


def start_of(pid: int) -> str | None:
    """When a process began, in ticks since the machine's start; None of one that is dead, or waits to be buried."""
    fields = _fields(pid)
    return None if not fields or fields[0] in "ZX" else fields[19]


def is_gone(machine: str, pid: int, start: str) -> bool | None:
    """Whether a process has ended; None where that cannot be told: of another machine, or one that the system hides."""
    if machine != machine_id():
        return None
    if fields := _fields(pid):
        return fields[0] in "ZX" or fields[19] != start
    try:
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return None


def _fields(pid: int) -> list[str]:
    """What the system says of a process, from its state on; nothing where there is none, or it is hidden (hidepid)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
