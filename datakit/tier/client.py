"""client: a reader's end of a cache: it finds the agent or starts it, asks it, and starts it again when it has died.

What a reader holds and announced is said anew to the agent that comes after a killed one, and the request that was
under way is asked again: every request may be. A client that finds itself in a forked child makes a connection of its
own, which holds nothing yet. Every answer has a deadline. No object-store client is loaded here, so loader workers may
use it. Threads take turns: who wants to ask while another waits uses a client of its own.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.manifest import Manifest
from datakit.errors import Busy, DatakitError
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import address
from datakit.storage.commit import read_manifest
from datakit.storage.store import open_location
from datakit.tier import door
from datakit.tier.pool import Pool
from datakit.tier.protocol import Decoder, Frame, encode, unwrap
from datakit.tier.starting import LOG_NAME, start

START_LOCK_NAME = ".start.lock"

DEADLINE_S = 900.0
"""For one answer: a shard of 64 MiB takes as long at 0.6 Mbit/s, and what takes longer is better said than awaited."""

START_S = 60.0
"""For an agent to start: half a second on an idle core, and many times that where a hundred processes start at once."""

POLL_S = 0.05
"""Between looks for an agent that somebody else starts."""

RESTART_S = 0.5
"""Before another agent is started where one did not come to serve: a start takes as long."""

MAX_DEATHS = 3
"""Agents that may die over one request; more is not bad luck, and the next would die too."""


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """A dataset that the agent has open.

    Attributes:
        digest: Of its manifest.
        manifest: Its manifest.
        place: Where it comes from.
    """

    digest: str
    manifest: Manifest
    place: str


class _Gone(Exception):
    """The agent has died, or ends."""


class CacheClient:
    """Asks the agent of a cache directory; nothing is connected before the first request.

    Args:
        root: The cache directory.
        budget_bytes: What it may hold, for an agent that has to be started.
        name: The tier's, for messages.
        deadline_s: Seconds that one answer may take.
        idle_s: Seconds after which an agent that is started here ends with nobody connected; its own default if None.
    """

    _leases: Counter[str]
    _order: dict[str, Any] | None
    _at: int | None
    _socket: socket.socket | None

    def __init__(
        self,
        root: Path | str,
        *,
        budget_bytes: int,
        name: str = "cache",
        deadline_s: float = DEADLINE_S,
        idle_s: float | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        self.budget_bytes = budget_bytes
        self.name = name
        self.deadline_s = deadline_s
        self.idle_s = idle_s
        self._datasets: dict[str, dict[str, Any]] = {}
        self._begin()

    def open(
        self, place: str | Path, *, digest: str | None = None, stores: Mapping[str, StoreOptions] | None = None
    ) -> CachedDataset:
        """Have a dataset open: its manifest and indexes are here then, and stay while this client is connected.

        Args:
            place: Its path or URL.
            digest: Of its manifest, where it must be that one; then nothing is asked of its place if it is known here.
            stores: Named stores of the settings.

        Raises:
            NotFound: Nothing is committed there.
            NoSpace: Its indexes have no room.
            StoreUnavailable, NotAllowed: Its place cannot be asked.
        """
        location, where = open_location(place, stores=stores), address(str(place), stores=stores)
        request: dict[str, Any] = {"op": "open", "place": where, "digest": digest}
        if location.store.url.startswith("s3://"):
            options = dataclasses.asdict(dataclasses.replace(location.store.options, url=location.store.url))
            request["options"] = {name: value for name, value in options.items() if value is not None}
        said = self._ask(request).value
        self._datasets[said["digest"]] = {**request, "digest": said["digest"]}
        return CachedDataset(said["digest"], read_manifest(self.root / "datasets" / said["digest"]), where)

    def path(self, digest: str) -> Path:
        """Where an object is while it is here."""
        return Pool(self.root, budget_bytes=self.budget_bytes).path(digest)

    def lease(self, digest: str, *, wait: bool = True) -> Path | None:
        """Hold a shard, once it is here.

        Args:
            digest: Its sha256.
            wait: Wait until it has come; else it is None where the shard is not here.

        Raises:
            NoSpace: It has no room, because others hold what is here; says who.
            NotFound, IntegrityError, StoreUnavailable, NotAllowed: As its place says.
        """
        said = self._ask({"op": "lease", "shard": digest, "wait": wait}).value["path"]
        if said is None:
            return None
        self._leases[digest] += 1
        return Path(said)

    def release(self, digest: str) -> None:
        """Hold a shard no more, once for each lease."""
        if self._own()[digest]:
            self._leases[digest] -= 1
            self._ask({"op": "release", "shard": digest})

    def order(self, shards: Sequence[str], *, steps: Sequence[int] | None = None) -> None:
        """Announce the shards that will be wanted, in order; they come ahead. Replaces what was announced.

        Args:
            shards: Their digests; one may come several times, as over several epochs.
            steps: The step at which each is wanted first, ascending; for the forecast and `step`.
        """
        request: dict[str, Any] = {"op": "order", "shards": list(shards)}
        if steps is not None:
            request["steps"] = [int(step) for step in steps]
        self._ask(request)
        self._order = request
        self._at = None

    def step(self, step: int) -> None:
        """Say that a step of the order begins: what was wanted before it is no longer."""
        self._ask({"op": "step", "step": step})
        self._at = step

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Bytes of a shard from where it lies, which need not be here; who asks compares them with the index.

        Args:
            digest: The shard's sha256.
            offset: First byte.
            size: How many.

        Raises:
            Refused: It was replaced since it was first read.
            NotFound, IntegrityError, StoreUnavailable, NotAllowed: As its place says.
        """
        return self._ask({"op": "read", "shard": digest, "offset": offset, "size": size}).raw

    def damaged(self, digest: str) -> Path:
        """Report a shard that is held and was found damaged: where it is once it is whole again.

        Raises:
            IntegrityError: It is damaged at its place too.
        """
        return Path(self._ask({"op": "damaged", "shard": digest}).value["path"])

    def status(self) -> dict[str, Any]:
        """What is here, who holds it, what comes at which rate, and who will have to wait at which step."""
        return self._ask({"op": "status"}).value

    def stop(self) -> None:
        """End the agent.

        Raises:
            Busy: Others are connected to it.
        """
        self._ask({"op": "stop"})
        self.close()

    def close(self) -> None:
        """Hold nothing any more, and go; the client connects again when it is used again."""
        self._own()
        with self._guard:
            self._hang_up()
            self._leases.clear()
            self._order = None
            self._at = None

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self._hang_up()

    def __reduce__(self) -> tuple[object, ...]:
        options = (self.budget_bytes, self.name, self.deadline_s, self.idle_s, self._datasets)
        return (_again, (self.root, *options))

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._tokens: list[str] = []
        self._leases = Counter()
        self._order = None
        self._at = None
        self._socket = None
        self._decoder = Decoder()

    def _own(self) -> Counter[str]:
        """What this process holds; in a forked child nothing, and the parent's connection is left to the parent."""
        if self._pid != os.getpid():
            inherited = self._socket
            self._begin()
            if inherited is not None:
                inherited.close()
        return self._leases

    def _ask(self, request: Mapping[str, Any]) -> Frame:
        """Ask the agent, and those that come after it.

        Raises:
            DatakitError: As it answers; or no answer came before the deadline, or agents die over it.
        """
        self._own()
        with self._guard:
            until_s = time.monotonic() + self.deadline_s
            for _ in range(MAX_DEATHS):
                try:
                    if self._socket is None:
                        self._connect(until_s)
                    return unwrap(self._exchange(request, until_s))
                except _Gone:
                    self._hang_up()
            message = f"{MAX_DEATHS} agents of {self.root} have died over the same request: {request['op']}"
            raise DatakitError(message, hint=self._log_hint, subject=str(self.root))

    def _exchange(self, request: Mapping[str, Any], until_s: float) -> Frame:
        assert self._socket is not None
        try:
            self._wait_at_most(until_s)
            self._socket.sendall(encode(Frame(dict(request))))
            while True:
                self._wait_at_most(until_s)
                data = self._socket.recv(2**20)
                if not data:
                    raise _Gone
                frames = self._decoder.feed(data)
                if frames:
                    return frames[0]
        except TimeoutError:
            self._hang_up()
            message = f"the agent of {self.root} did not answer {request['op']} within {self.deadline_s:g} s"
            raise DatakitError(message, hint=self._log_hint, subject=request["op"]) from None
        except OSError as error:
            if isinstance(error, DatakitError):
                self._hang_up()
                raise
            raise _Gone from None
        except BaseException:  # what answers a request that was left would be taken for that of the next
            self._hang_up()
            raise

    def _wait_at_most(self, until_s: float) -> None:
        assert self._socket is not None
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _connect(self, until_s: float) -> None:
        """Connect, and say all that was said on connections before this one."""
        self._socket = self._find(min(until_s, time.monotonic() + START_S))
        self._decoder = Decoder()
        earlier, self._tokens = self._tokens, [*self._tokens, secrets.token_hex(4)]
        unwrap(self._exchange({"op": "hello", "token": self._tokens[-1]}, until_s))
        for request in self._datasets.values():
            unwrap(self._exchange(request, until_s))
        for digest, count in list(self._leases.items()):
            for _ in range(count):
                said = unwrap(self._exchange({"op": "lease", "shard": digest, "wait": False}, until_s)).value
                if said["path"] is None:  # dropped between two agents; what is mapped of it stays readable
                    del self._leases[digest]
                    break
        if self._order is not None:
            unwrap(self._exchange(self._order, until_s))
            if self._at is not None:
                unwrap(self._exchange({"op": "step", "step": self._at}, until_s))
        unwrap(self._exchange({"op": "settled", "earlier": earlier}, until_s))
        self._tokens = self._tokens[-1:]

    def _find(self, until_s: float) -> socket.socket:
        """A connection to the agent, which is started where there is none.

        Raises:
            DatakitError: It cannot be started, or none came in time.
        """
        while True:
            found = door.dial(self.root, timeout_s=max(0.1, until_s - time.monotonic()))
            if found is not None:
                return found
            if time.monotonic() > until_s:
                message = f"no agent of {self.root} could be reached within {START_S:g} s"
                hint = f"{self._log_hint}; where one runs, both need the same XDG_RUNTIME_DIR"
                raise DatakitError(message, hint=hint, subject=str(self.root))
            Pool(self.root, budget_bytes=self.budget_bytes, name=self.name).open()
            try:
                with disk.exclusive(self.root / START_LOCK_NAME, purpose=f"starting the agent of {self.root}"):
                    found = door.dial(self.root, timeout_s=1.0)
                    if found is not None:
                        return found
                    if not start(self.root, self._options, until_s=until_s):
                        time.sleep(RESTART_S)
            except Busy:
                time.sleep(POLL_S)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def _options(self) -> tuple[str, ...]:
        given = ("--budget-bytes", str(self.budget_bytes), "--name", self.name)
        return given if self.idle_s is None else (*given, "--idle-s", str(self.idle_s))

    @property
    def _log_hint(self) -> str:
        return f"See {self.root / LOG_NAME}"


def _again(
    root: Path, budget_bytes: int, name: str, deadline_s: float, idle_s: float | None, datasets: Mapping[str, Any]
) -> CacheClient:
    client = CacheClient(root, budget_bytes=budget_bytes, name=name, deadline_s=deadline_s, idle_s=idle_s)
    client._datasets.update(datasets)
    return client
