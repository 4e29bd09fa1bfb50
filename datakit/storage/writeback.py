"""writeback: commits go to a colder tier while training goes on.

The trainer's side. It offers commits to the agent (a process of its own, behind `pipe`), and hears what became of them;
it never loads an object-store client and never waits for the network, except in `fetch_newest` and `close`. The state
of each commit lies in a file of the queue directory (`copies`), so that a new start offers again whatever is not
verified; and whatever was, and the store holds no more: the agent looks when it is asked for the newest commit, and
after each one that went up. A copy that was found damaged is never believed again: the commit goes up over it once it
is here, byte by byte compared, in this attempt or a later one. A commit whose state cannot be kept has no copy.

What is known of a commit here is one value, an `_Offer`. Its problem counts before what the state file says; where it
has none the state file counts, which the agent writes too and which outlives both.

Trouble with an upload is told (`poll`, `unpublished`), never raised: it must not stop training and must not be silent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datakit import errors
from datakit.errors import DatakitError, MissingExtra, StoreUnavailable
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import Pulled, Skipped, settle_commit
from datakit.storage.commit import read_manifest
from datakit.storage.copies import (
    Copy,
    State,
    drop_state,
    error_of,
    note_damage,
    read_copies,
    read_copy,
    write_state,
)
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.pipe import AgentPipe


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


@dataclass(frozen=True, slots=True)
class _Offer:
    """What is known of one commit's copy, beside what its state file says.

    Attributes:
        path: The commit's directory.
        dest: The copy.
        digest: Of the manifest that was offered; None where it is not known, or only the copy was met.
        repair: Whether the copy was found damaged or gone, and is not whole again.
        asked: Whether the agent has it and has not answered for good.
        problem: Why there is no copy, whatever the state file says, or None.
    """

    path: Path
    dest: str
    digest: str | None
    repair: bool = False
    asked: bool = False
    problem: DatakitError | None = None


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
        self._agent = AgentPipe(self.queue_dir, options=options, env=env or {}, take=self._take)
        self._given_up: DatakitError | None = None
        self._offers: dict[str, _Offer] = {}
        self._said: list[Published | Failed] = []
        self._answers: list[dict[str, Any]] = []
        self._meter = Meter(Account(self.dest_url, options or StoreOptions()))

    @property
    def requests(self) -> RequestCounts:
        """Requests that agents of this object told of so far, those that failed included."""
        return self._meter.counts

    def start(self) -> None:
        """Start the agent, and offer again what an earlier attempt left unverified and is still there.

        Raises:
            DatakitError: The queue directory cannot be written.
        """
        disk.make_dirs(self.queue_dir)
        self._agent.start()
        found: dict[str, _Offer] = {}
        for copy in sorted(read_copies(self.queue_dir), key=lambda copy: copy.made_ns):
            if copy.state == "verified" or not copy.path.is_dir():
                continue
            name = copy.file.stem
            if copy.is_replaced:
                drop_state(copy.file)  # nobody has its bytes any more: there is nothing left to publish
                self._offers.pop(name, None)
                continue
            found[name] = _Offer(copy.path, copy.dest, copy.manifest_digest, repair=copy.repair)
        self._publish(found)

    def offer(self, commit: Path, *, name: str | None = None) -> None:
        """Have a commit published; returns at once. What goes wrong is told by `poll`.

        Args:
            commit: Its directory.
            name: Its name at the destination; that of the directory when None.
        """
        commit = Path(commit).absolute()
        name = name or commit.name
        file, dest = self._state_file(name), f"{self.dest_url}/{name}"
        copy, known = read_copy(file), self._offers.get(name)
        copy = copy if copy is not None and copy.dest == dest else None
        repair = any(each is not None and each.dest == dest and each.repair for each in (copy, known))
        offer = _Offer(commit, dest, None, repair=repair)
        try:
            offer = replace(offer, digest=read_manifest(commit).digest)
            if copy is not None and (copy.state, copy.manifest_digest, repair) == ("verified", offer.digest, False):
                self._offers[name] = offer
                return
            about = {"manifest_digest": offer.digest, **({"repair": True} if repair else {})}
            write_state(file, path=str(commit), dest=dest, state="staged", **about)
        except DatakitError as error:
            if offer.digest is not None:
                drop_state(file)  # what it says is of another commit or another place
            self._fail(name, offer, error)
            return
        self._publish({name: offer})

    def poll(self) -> list[Published | Failed]:
        """What became of offers since the last call; never waits."""
        self._listen(0.0)
        said, self._said = self._said, []
        return said

    def state(self, name: str) -> State | None:
        """How far the commit of this name is, also from an earlier attempt; None when it was never offered."""
        if self._problem(name) is not None:
            return "failed"
        copy = read_copy(self._state_file(name))
        return None if copy is None else copy.state

    @property
    def damaged(self) -> frozenset[str]:
        """Names of copies that this object knows to be damaged or gone, and that are not whole again."""
        return frozenset(name for name, offer in self._offers.items() if offer.repair)

    @property
    def unkept(self) -> frozenset[str]:
        """Names of commits that have no copy and whose states could not be kept: `close` offers them once more."""
        problems = [name for name, each in self._offers.items() if each.digest is not None and each.problem is not None]
        said = {copy.file.stem: copy.state for copy in read_copies(self.queue_dir)} if problems else {}
        return frozenset(name for name in problems if self._given_up is None and said.get(name) != "failed")

    def trouble(self, name: str) -> type[DatakitError]:
        """The class of the error that a commit's last try ended with; `StoreUnavailable` where it had none yet."""
        problem, copy = self._problem(name), read_copy(self._state_file(name))
        kind = getattr(errors, str(copy and copy.error), StoreUnavailable) if problem is None else type(problem)
        return DatakitError if kind is MissingExtra else kind  # which library it is, its message says

    def reason(self, name: str) -> str | None:
        """The last thing that is known of a commit that was offered and is not verified; None of any other."""
        return self._reason(name, read_copy(self._state_file(name)))

    def unpublished(self) -> dict[str, str]:
        """Commits that were offered and are not verified, each with the last thing that is known of it."""
        copies = {copy.file.stem: copy for copy in read_copies(self.queue_dir)}
        reasons = {name: self._reason(name, copies.get(name)) for name in sorted({*copies, *self._offers})}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def _reason(self, name: str, copy: Copy | None) -> str | None:
        if (problem := self._problem(name)) is not None:
            return problem.message
        if copy is None:
            return f"its state is not at {self._state_file(name)} any more" if name in self._offers else None
        return None if copy.state == "verified" else copy.message or copy.state

    def _problem(self, name: str) -> DatakitError | None:
        offer = self._offers.get(name)
        return None if offer is None else offer.problem

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
        here = Path(directory).absolute()
        for name, error in pulled.damaged.items():
            self._offers[name] = _Offer(here / name, f"{self.dest_url}/{name}", None, repair=True, problem=error)
        with contextlib.suppress(DatakitError):  # a full disk: this object knows it all the same
            note_damage(self.queue_dir, self.dest_url, pulled.damaged, directory=here)
        if pulled.name is not None:
            settle_commit(here / pulled.name, pattern=pattern, check=check)
        return pulled

    def newest(self, *, pattern: str = "step-*") -> str | None:
        """The name of the newest commit at the destination, without bringing it; errors as in `fetch_newest`."""
        return self._ask({"op": "look", "pattern": pattern}).name

    def _ask(self, request: dict[str, Any]) -> Pulled:
        self._answers.clear()
        starts = 0
        while not self._answers:
            if self._agent.process is None:
                message = f"the agent ended again and again while it looked at {self.dest_url}"
                raise DatakitError(message, hint=self._agent.log_hint)
            if self._agent.starts != starts:  # a new agent knows nothing of what the one before was asked
                starts = self._agent.starts
                self._send(request | {"source": self.dest_url})
            self._listen(1.0)
        answer = self._answers.pop()
        if answer["event"] == "failed":
            raise error_of(answer, subject=self.dest_url)
        return Pulled(answer["name"], tuple(Skipped(each["name"], error_of(each)) for each in answer["skipped"]))

    def close(
        self, deadline_s: float, *, hurried: Callable[[], bool] = lambda: False, hurry_s: float = 0.0
    ) -> dict[str, str]:
        """Let the agent, and another where it dies, finish what it has, and say what is not published in the end.

        Args:
            deadline_s: Seconds to wait; the agent goes on by itself after that, and the next start takes up the rest.
            hurried: Whether the wait is to be cut short; asked twice a second.
            hurry_s: Seconds to wait at most from when it is.
        """
        until = time.monotonic() + deadline_s
        for name in self.unkept:
            self.offer(self._offers[name].path, name=name)  # there may be room by now
        while not self._agent.close(until - time.monotonic(), hurried=hurried, hurry_s=hurry_s):
            if hurried() or not any(offer.asked for offer in self._offers.values()):
                break  # the next start takes up the rest, if there is any
            self._revive()
        return self.unpublished()

    def _state_file(self, name: str) -> Path:
        return self.queue_dir / f"{name}.json"

    def _publish(self, offers: Mapping[str, _Offer]) -> None:
        """Have commits published; the agent hears of all at once, and begins with the last."""
        self._offers |= {name: replace(offer, asked=True) for name, offer in offers.items()}
        if self._given_up is not None:
            for name, offer in offers.items():
                self._fail(name, offer, self._given_up)
        elif offers:
            self._send([self._request(name) for name in offers])

    def _request(self, name: str) -> dict[str, Any]:
        offer, file = self._offers[name], self._state_file(name)
        request: dict[str, Any] = {"op": "publish", "path": str(offer.path), "dest": offer.dest, "state": str(file)}
        return request | {"manifest_digest": offer.digest, "repair": offer.repair}

    def _fail(self, name: str, offer: _Offer, error: DatakitError) -> None:
        """Have no copy of a commit, until it is offered again, and say so."""
        self._offers[name] = replace(offer, asked=False, problem=error)
        self._said.append(Failed(offer.path, error.message, error.hint, waiting=False))

    def _send(self, request: dict[str, Any] | list[dict[str, Any]]) -> None:
        if not self._agent.send(request):
            self._revive()

    def _listen(self, timeout_s: float) -> None:
        """Take in what the agent says; start it again if it has died."""
        if not self._agent.hear(timeout_s):
            self._revive()

    def _revive(self) -> None:
        self._given_up = self._agent.restart()
        self._publish({name: offer for name, offer in self._offers.items() if offer.asked})

    def _take(self, answer: dict[str, Any]) -> None:
        requests = RequestCounts(**answer["requests"])
        self._meter.add(**answer["requests"])
        if answer["op"] != "publish":
            self._answers.append(answer)
            return
        path, dest = Path(answer["path"]), answer["dest"]
        name = dest.rpartition("/")[2]
        offer = _Offer(path, dest, answer["manifest_digest"], repair=answer["repair"])
        known = self._offers.get(name, offer)
        if answer["event"] == "verified":
            if known.dest == dest:  # else it went to where an earlier attempt sent it
                self._offers[name] = replace(known, repair=known.repair and not offer.repair, asked=False, problem=None)
            self._said.append(Published(path, dest, answer["bytes"], requests.total))
            return
        error = error_of(answer)
        if answer["event"] == "failed" and known.dest == dest:
            self._fail(name, known, error)
            return
        if answer["event"] == "lost" and known.dest == dest:
            self._offers[name] = replace(offer, asked=True)
        self._said.append(Failed(path, error.message, error.hint, waiting=answer["event"] != "failed"))
