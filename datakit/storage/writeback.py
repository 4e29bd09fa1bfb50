"""writeback: commits go to a colder tier while training goes on.

The trainer's side. It starts the agent (a process of its own, by exec), offers commits to it, and hears what became of
them; it never loads an object-store client and never waits for the network, except in `fetch_newest` and `close`. The
state of each commit lies in a file of the queue directory (`copies`), so that a new start offers again whatever is not
verified; and whatever was, and the store holds no more: the agent looks when it is asked for the newest commit, and
after each one that went up. A copy that was found damaged is never believed again: the commit goes up over it once it
is here, byte by byte compared, in this attempt or a later one. A commit whose state cannot be kept has no copy.

Trouble with an upload is told (`poll`, `unpublished`), never raised: it must not stop training and must not be silent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit import errors
from datakit.errors import DatakitError, MissingExtra, StoreUnavailable
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import Pulled, settle_commit
from datakit.storage.commit import read_manifest
from datakit.storage.copies import State, drop_state, mark_damaged, read_copies, read_copy, write_state
from datakit.storage.counts import RequestCounts

MAX_STARTS = 4
"""How often an agent that died is started in one attempt; more is not bad luck."""

AGENT_LOG = "agent.log"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A commit is whole and verified at `dest`: the local one may go."""

    path: Path
    dest: str
    bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A commit could not be published; `waiting` says that it is tried again by itself."""

    path: Path
    message: str
    hint: str | None
    waiting: bool


class WriteBack:
    """Publishes commits below a URL in the background.

    Args:
        dest_url: Where commits go: each to `<dest_url>/<its name>`.
        queue_dir: Directory for the states; the run's own.
        options: How to reach the store, handed to the agent in its environment, or None for what is there.
        env: More variables for the agent.

    Example:
        >>> back = WriteBack("s3://bucket/runs/a", queue_dir=Path("runs/a/write-back"))  # doctest: +SKIP
        >>> back.start()  # doctest: +SKIP
        >>> back.offer(Path("runs/a/checkpoints/step-00000010"))  # doctest: +SKIP
        >>> back.close(deadline_s=60)  # doctest: +SKIP
    """

    def __init__(
        self,
        dest_url: str,
        *,
        queue_dir: Path,
        options: StoreOptions | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.dest_url = dest_url.rstrip("/")
        self.queue_dir = Path(queue_dir)
        self._options = options
        self._env = dict(env or {})
        self._agent: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._pending: dict[Path, dict[str, Any]] = {}
        self._damaged: dict[str, str] = {}
        self._offered: set[str] = set()
        self._unrecorded: dict[str, tuple[Path, str]] = {}
        self._heard = b""
        self._said: list[Published | Failed] = []
        self._answers: list[dict[str, Any]] = []
        self._requests = RequestCounts()

    @property
    def requests(self) -> RequestCounts:
        """Requests that agents of this object told of so far, those that failed included."""
        return self._requests

    def start(self) -> None:
        """Start the agent, and offer again what an earlier attempt left unverified and is still there.

        Raises:
            DatakitError: The queue directory cannot be written.
        """
        disk.make_dirs(self.queue_dir)
        self._start_agent()
        for copy in read_copies(self.queue_dir):
            if copy.state == "verified" or not copy.path.is_dir():
                continue
            if copy.is_replaced:
                drop_state(copy.file)  # nobody has its bytes any more: there is nothing left to publish
                self._offered.discard(copy.file.stem)
                continue
            self._send_offer(copy.path, copy.dest, copy.file, copy.manifest_digest, repair=copy.repair)

    def offer(self, commit: Path, *, name: str | None = None) -> None:
        """Have a commit published; returns at once. What goes wrong is told by `poll`.

        Args:
            commit: Its directory.
            name: Its name at the destination; that of the directory when None.
        """
        commit = Path(commit).absolute()
        name = name or commit.name
        file = self._state_file(name)
        dest = f"{self.dest_url}/{name}"
        try:
            digest = read_manifest(commit).digest
        except DatakitError as error:
            self._said.append(Failed(commit, error.message, error.hint, waiting=False))
            return
        self._offered.add(name)
        try:
            copy = read_copy(file)
            known = None if copy is None else (copy.state, copy.dest, copy.manifest_digest)
            repair = name in self._damaged or (copy is not None and copy.repair and copy.dest == dest)
            if known == ("verified", dest, digest) and not repair:
                return
            about = {"manifest_digest": digest, **({"repair": True} if repair else {})}
            write_state(file, path=str(commit), dest=dest, state="staged", **about)
            self._unrecorded.pop(name, None)
        except DatakitError as error:
            self._unrecorded[name] = (commit, error.message)
            drop_state(file)  # what it says is of another commit or another place
            self._said.append(Failed(commit, error.message, error.hint, waiting=False))
            return
        self._send_offer(commit, dest, file, digest, repair=repair)

    def poll(self) -> list[Published | Failed]:
        """What became of offers since the last call; never waits."""
        self._listen(0.0)
        said, self._said = self._said, []
        return said

    def state(self, name: str) -> State | None:
        """How far the commit of this name is, also from an earlier attempt; None when it was never offered."""
        copy = read_copy(self._state_file(name))
        if name in self._unrecorded or (name in self._damaged and (copy is None or copy.state == "verified")):
            return "failed"
        return None if copy is None else copy.state

    @property
    def damaged(self) -> dict[str, str]:
        """Names of copies that this object has seen damaged and that are not whole again, each with the reason."""
        return self._damaged

    @property
    def unrecorded(self) -> dict[str, str]:
        """Names of commits that were offered and whose state cannot be kept, so have no copy, each with the reason."""
        return {name: reason for name, (_commit, reason) in self._unrecorded.items()}

    def trouble(self, name: str) -> type[DatakitError]:
        """The class of the error that a commit's last try ended with; `StoreUnavailable` where it had none yet."""
        copy = None if name in self._unrecorded else read_copy(self._state_file(name))
        kind = getattr(errors, str(copy and copy.error), StoreUnavailable)
        return DatakitError if kind is MissingExtra else kind  # which library it is, its message says

    def unpublished(self) -> dict[str, str]:
        """Commits that were offered and are not verified, each with the last thing that is known of it."""
        copies = read_copies(self.queue_dir)
        found = {copy.file.stem: copy.message or copy.state for copy in copies if copy.state != "verified"}
        vanished = self._offered - {copy.file.stem for copy in copies}
        gone = {name: f"its state is not at {self._state_file(name)} any more" for name in sorted(vanished)}
        return gone | self._damaged | found | self.unrecorded

    def fetch_newest(
        self,
        directory: Path,
        *,
        after: str | None = None,
        pattern: str = "step-*",
        check: Callable[[Path], None] = lambda _commit: None,
    ) -> Pulled:
        """Bring the newest commit of the destination here, if it is newer than `after`; waits for it.

        Args:
            directory: Where it is brought to.
            after: The newest that is here, or None.
            pattern: Which names count.
            check: Sees the commit before it has its name here; what it raises ends the fetch, and nothing stays.

        Raises:
            NotFound, NotAllowed, StoreUnavailable, ...: As `datakit sync` would; this is before training.
        """
        pulled = self._ask({"op": "pull", "dest": str(directory), "pattern": pattern, "after": after})
        for name, reason in pulled.skipped:
            self._damaged[name] = reason
            with contextlib.suppress(DatakitError):  # a full disk: this object knows it all the same
                path, dest = Path(directory).absolute() / name, f"{self.dest_url}/{name}"
                mark_damaged(self._state_file(name), path=path, dest=dest, message=reason)
        self._forget_damage()
        if pulled.name is not None:
            settle_commit(Path(directory) / pulled.name, pattern=pattern, check=check)
        return pulled

    def newest(self, *, pattern: str = "step-*") -> str | None:
        """The name of the newest commit at the destination, without bringing it; errors as in `fetch_newest`."""
        return self._ask({"op": "look", "pattern": pattern}).name

    def _forget_damage(self) -> None:
        """Drop what an earlier attempt said of damage where the commit is not here and this look met no damage."""
        for copy in read_copies(self.queue_dir):
            if copy.repair and copy.file.stem not in self._damaged and not copy.path.is_dir():
                drop_state(copy.file)

    def _ask(self, request: dict[str, Any]) -> Pulled:
        self._answers.clear()
        starts = 0
        while not self._answers:
            if self._agent is None:
                message = f"the agent ended again and again while it looked at {self.dest_url}"
                raise DatakitError(message, hint=self._log_hint())
            if self._starts != starts:  # a new agent knows nothing of what the one before was asked
                starts = self._starts
                self._send(request | {"source": self.dest_url})
            self._listen(1.0)
        answer = self._answers.pop()
        if answer["event"] == "failed":
            raise _error_of(answer, subject=self.dest_url)
        return Pulled(answer["name"], tuple((name, reason) for name, reason in answer["skipped"]))

    def close(
        self, deadline_s: float, *, hurried: Callable[[], bool] = lambda: False, hurry_s: float = 0.0
    ) -> dict[str, str]:
        """Let the agent finish what it has, and say what is not published when the time is over.

        Args:
            deadline_s: Seconds to wait; the agent goes on by itself after that, and the next start takes up the rest.
            hurried: Whether the wait is to be cut short; asked twice a second.
            hurry_s: Seconds to wait at most from when it is.
        """
        for name, (commit, _reason) in list(self._unrecorded.items()):
            self.offer(commit, name=name)  # there may be room by now
        until, in_a_hurry = time.monotonic() + deadline_s, False
        agent, self._agent = self._agent, None
        if agent is not None and agent.stdin is not None and agent.stdout is not None:
            with contextlib.suppress(BrokenPipeError):
                agent.stdin.close()
            while agent.poll() is None and (left := until - time.monotonic()) > 0:
                self._hear(agent, min(left, 0.5))
                if not in_a_hurry and hurried():
                    in_a_hurry, until = True, min(until, time.monotonic() + hurry_s)
            self._hear(agent, 0.0)
            agent.stdout.close()
        return self.unpublished()

    def _start_agent(self) -> None:
        self._starts += 1
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        there = os.environ if self._options is None else self._options.to_environment(os.environ)
        env = {**there, **self._env, "PYTHONPATH": path, "TOKIO_WORKER_THREADS": "2"}
        with disk.at_door(self.queue_dir), open(self.queue_dir / AGENT_LOG, "ab") as log:
            self._agent = subprocess.Popen(
                # -P: a file of the working directory must not stand in for one of the library
                [sys.executable, "-P", "-m", "datakit.storage.agent", str(self.queue_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._heard = b""

    def _state_file(self, name: str) -> Path:
        return self.queue_dir / f"{name}.json"

    def _send_offer(self, commit: Path, dest: str, file: Path, digest: str | None, *, repair: bool) -> None:
        request: dict[str, Any] = {"op": "publish", "path": str(commit), "dest": dest, "state": str(file)}
        request |= {"manifest_digest": digest, "repair": repair}
        self._pending[commit] = request
        self._send(request)

    def _send(self, request: dict[str, Any]) -> None:
        if self._agent is None or self._agent.stdin is None:
            return  # not started or closed: the state file says `staged`, the next start offers it
        try:
            self._agent.stdin.write(json.dumps(request).encode() + b"\n")
            self._agent.stdin.flush()
        except BrokenPipeError:
            self._revive()

    def _listen(self, timeout_s: float) -> bool:
        """Take in what the agent says; start it again if it has died. Whether something was heard."""
        if self._agent is None:
            return False
        heard = self._hear(self._agent, timeout_s)
        if not heard and self._agent.poll() is not None:
            self._revive()
        return heard

    def _revive(self) -> None:
        if self._agent is not None:
            _bury(self._agent)
        self._agent, reason = None, "the agent ends again and again"
        if self._starts < MAX_STARTS:
            try:
                self._start_agent()
            except DatakitError as error:  # the queue directory is gone, or its disk is full
                reason = error.message
        if self._agent is None:
            self._said += (Failed(commit, reason, self._log_hint(), waiting=False) for commit in self._pending)
            self._pending.clear()
        for request in list(self._pending.values()):
            self._send(request)

    def _hear(self, agent: subprocess.Popen[bytes], timeout_s: float) -> bool:
        assert agent.stdout is not None
        heard = False
        while select.select([agent.stdout], [], [], timeout_s)[0]:
            data = os.read(agent.stdout.fileno(), 65536)
            if not data:
                break
            heard, timeout_s = True, 0.0
            *lines, self._heard = (self._heard + data).split(b"\n")
            for line in lines:
                try:
                    self._take(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    # something that a library of the agent prints: training does not end for that
                    logger.warning("the write-back agent said what is no answer: %r", line[:200])
        return heard

    def _take(self, answer: dict[str, Any]) -> None:
        requests = RequestCounts(**answer["requests"])
        self._requests += requests
        if answer["op"] != "publish":
            self._answers.append(answer)
            return
        path = Path(answer["path"])
        if answer["event"] == "verified":
            if self._pending.pop(path, {}).get("repair"):
                self._damaged.pop(answer["dest"].rpartition("/")[2], None)
            self._said.append(Published(path, answer["dest"], answer["bytes"], requests.total))
            return
        waiting = answer["event"] in ("waiting", "lost")
        if answer["event"] == "lost":
            names = ("op", "path", "dest", "state", "manifest_digest", "repair")
            self._pending[path] = {name: answer[name] for name in names}
            self._damaged[answer["dest"].rpartition("/")[2]] = answer["message"]
        elif not waiting:
            self._pending.pop(path, None)
        self._said.append(Failed(path, answer["message"], answer["hint"], waiting=waiting))

    def _log_hint(self) -> str:
        return f"See {self.queue_dir / AGENT_LOG}"


def _bury(agent: subprocess.Popen[bytes]) -> None:
    """Take leave of an agent that has ended."""
    for pipe in (agent.stdin, agent.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was not sent any more is offered to the next
                pipe.close()
    agent.wait()


def _error_of(answer: Mapping[str, Any], *, subject: str) -> DatakitError:
    """The error that the agent met, with its own class."""
    if answer["error"] == MissingExtra.__name__:
        return MissingExtra(answer["library"], extra=answer["extra"])
    kind = getattr(errors, answer["error"])
    error: DatakitError = kind(answer["message"], hint=answer["hint"], subject=subject)
    return error
