"""ledger: who holds which objects of a pool, in memory and on the disk beside it.

A lease ends with its holder, a connection to the agent. It is also an empty file, `leases/<process>-<its start>-<8
hex>.<sha256>`, so that an agent that takes the place of a killed one drops nothing that a living reader holds: it
inherits these leases until the reader has come back and taken what it still has, or its process is dead.
Where the disk has no room for such a file, the lease is of memory alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from datakit.errors import DatakitError
from datakit.storage import disk
from datakit.tier.arrival import is_gone, machine_id, start_of
from datakit.tier.pool import Pool

_FILE = re.compile(
    r"(?P<holder>(?P<machine>[0-9a-f]{12})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8})\.(?P<digest>[0-9a-f]{64})"
)


def holder_of(pid: int, token: str) -> str:
    """The name of one who holds: a process and a word of its connection's own, eight hex digits."""
    return f"{machine_id()}-{pid}-{start_of(pid) or 0}-{token}"


def pid_of(holder: str) -> int:
    """The process of a holder."""
    return int(holder.split("-")[1])


class Ledger:
    """The leases of one pool.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._top = pool.root / "leases"
        self._guard = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._holds: dict[tuple[str, str], ExitStack] = {}
        self._inherited: set[str] = set()

    def inherit(self) -> None:
        """Hold what readers of a killed agent hold, as far as they live."""
        for path in self._files():
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            with self._guard:
                self._hold(match["holder"], match["digest"])
                self._counts.setdefault(match["holder"], Counter())
                self._inherited.add(match["holder"])
        self.sweep()

    def take(self, holder: str, digest: str) -> None:
        """Have an object held, also one that is yet to come."""
        with self._guard:
            if (holder, digest) not in self._holds:
                self._hold(holder, digest)
                with contextlib.suppress(DatakitError):  # a full disk: then it is not inherited
                    self._write(holder, digest)
            self._counts.setdefault(holder, Counter())[digest] += 1

    def give_back(self, holder: str, digest: str) -> None:
        """End one hold of an object; one that is not held is fine."""
        with self._guard:
            counts = self._counts.get(holder, Counter())
            counts[digest] -= 1
            if counts[digest] <= 0:
                del counts[digest]
                self._release(holder, digest)

    def end(self, holder: str) -> None:
        """End all that a reader holds."""
        with self._guard:
            self._inherited.discard(holder)
            self._counts.pop(holder, None)
            for one, digest in list(self._holds):
                if one == holder:
                    self._release(holder, digest)

    def sweep(self) -> None:
        """End what was inherited for readers who have died since."""
        with self._guard:
            inherited = list(self._inherited)
        for holder in inherited:
            machine, pid, start, _ = holder.split("-")
            if machine != machine_id() or is_gone(machine, int(pid), start):
                self.end(holder)

    def held(self) -> Mapping[str, list[str]]:
        """The objects that each reader holds."""
        found: dict[str, list[str]] = {}
        with self._guard:
            for holder, digest in self._holds:
                found.setdefault(holder, []).append(digest)
        return found

    def _hold(self, holder: str, digest: str) -> None:
        stack = ExitStack()
        stack.enter_context(self._pool.hold([digest]))
        self._holds[holder, digest] = stack

    def _release(self, holder: str, digest: str) -> None:
        stack = self._holds.pop((holder, digest), None)
        if stack is not None:
            stack.close()
            with contextlib.suppress(OSError):
                self._path(holder, digest).unlink()

    def _write(self, holder: str, digest: str) -> None:
        disk.make_dirs(self._top)
        path = self._path(holder, digest)
        with disk.at_door(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def _path(self, holder: str, digest: str) -> Path:
        return self._top / f"{holder}.{digest}"

    def _files(self) -> list[Path]:
        with disk.at_door(self._top):
            return sorted(self._top.iterdir()) if self._top.is_dir() else []
