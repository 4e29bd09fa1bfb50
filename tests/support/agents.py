"""agents: agents of caches, as tests start, watch, kill and end them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from datakit.data.manifest import Manifest
from datakit.errors import NoSpace
from datakit.tier.client import CacheClient
from datakit.tier.door import SIGN_NAME

T = TypeVar("T")

WAIT_S = 60.0
"""As other waits of the tests for a process."""


@dataclass
class Cache:
    """A cache directory, and the clients of its agent that a test made."""

    root: Path
    budget_bytes: int = 10**9
    clients: list[CacheClient] = field(default_factory=list)

    def client(self, **options: Any) -> CacheClient:
        """A client."""
        found = CacheClient(self.root, **{"budget_bytes": self.budget_bytes, "deadline_s": WAIT_S, **options})
        self.clients.append(found)
        return found

    @property
    def pid(self) -> int:
        """The agent's process."""
        return int(json.loads((self.root / SIGN_NAME).read_bytes())["pid"])

    def kill(self) -> int:
        """Kill -9 the agent, and wait until it is dead."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid))
        return pid

    def end(self) -> None:
        """Leave no agent behind."""
        for client in self.clients:
            client.close()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            self.kill()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary directory whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="dk"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for something that must come."""
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)


def once_free(act: Callable[[], T]) -> T:
    """Do something that needs room which is about to be given back."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except NoSpace:
            assert time.monotonic() < until, "no room comes"
            time.sleep(0.01)


def shards_of(manifest: Manifest) -> list[str]:
    """Digests of a dataset's shards, in its order."""
    return [manifest.member(shard.name).sha256 for shard in manifest.contents.shards]


def index_bytes(manifest: Manifest) -> int:
    """Bytes of a dataset's indexes."""
    return sum(manifest.member(shard.index_name).bytes for shard in manifest.contents.shards)


def is_whole(path: Path) -> bool:
    """Whether an object's bytes are those of its name."""
    return hashlib.sha256(path.read_bytes()).hexdigest() == path.name
