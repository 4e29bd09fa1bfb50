"""agent: the process that moves commits for a trainer. `python -m datakit.storage.agent QUEUE_DIR`

It owns the object-store client, so that the trainer and its workers never load it: obstore hangs in forked children,
and its threads would take the training's cores. It is started by exec, never by fork, in a session of its own: Ctrl-C
at the trainer's terminal does not reach it, and the trainer's death does not end it before its queue is empty.

One JSON object a line. It reads:

    {"op": "publish", "path": DIR, "dest": URL, "state": FILE, "manifest_digest": HEX or null, "repair": BOOL}
    {"op": "pull", "source": URL, "dest": DIR, "pattern": "step-*", "after": NAME or null}
    {"op": "look", "source": URL, "pattern": "step-*"}             as a pull that brings nothing

and answers, with the `op` and `source` of the request or all that one to publish says, and the `requests` made since:

    {"event": "verified", ..., "bytes": N}       the commit is whole and verified at its destination
    {"event": "waiting", ..., ERROR}             the store cannot be had; it is tried again
    {"event": "failed", ..., ERROR}
    {"event": "pulled", ..., "name": NAME or null, "skipped": [{"name": NAME, ERROR}, ...]}
    {"event": "lost", ..., ERROR}                a copy is gone or damaged; it goes up again

An ERROR is as `copies.told` says it.

What a pull brings waits beside its name, for the trainer to look at and to settle. Each listing of a place, at a pull
and after each commit that went up, is compared with what the state files call verified; and of the commit itself that
is said only once the listing holds it. A commit whose manifest is damaged here is failed at once: no other try heals
it.

The newest offer goes first, a pull before any. The state of each commit is in its state file, for whoever comes later:
a commit counts as verified when that stands there, and as failed when it cannot be written.
When stdin ends it does what it still has, each once more at most, and leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import Busy, DatakitError, InputError, IntegrityError, NotFound, Refused, StoreUnavailable
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import commits_on, pull_newest, shelf_at
from datakit.storage.commit import parse_manifest, read_manifest
from datakit.storage.copies import (
    Copy,
    Shelf,
    State,
    drop_state,
    forget_damage,
    lost,
    read_copy,
    take_back,
    told,
    verified_below,
    write_state,
)
from datakit.storage.counts import PROCESS, RequestCounts
from datakit.storage.inbox import Inbox
from datakit.storage.moves import SyncSettings
from datakit.storage.store import open_location
from datakit.storage.sync import SyncResult, sync

LOCK_NAME = ".agent.lock"

GONE = "it was there, verified, and is not there any more"

UNLISTED = "the store took it, and does not list it"

DELETES_HINT = "See what deletes there, such as a rule of the bucket; then run the same command again"

_OFFERED = ("op", "path", "dest", "state", "manifest_digest", "repair")
"""What a request to publish says, and each answer to it repeats."""

SETTINGS = SyncSettings(concurrency=8, window="128MiB")
"""Half of a sync's connections and memory: training has the right of way."""

NICENESS = 5
"""Processor time goes to the trainer first: on a core that both want, the agent gets a quarter of it.

Weights 335 to 1024 (Linux, kernel/sched/core.c, sched_prio_to_weight).
"""

RETRY_S = 20.0
"""Between tries for a store that could not be had; each try is patient in itself.

The longest pause of botocore's standard retries too (boto3's guide, "Retries").
"""

LOCK_RETRY_S = 0.2
"""Between looks at the agent of an earlier attempt that still has work: five a second cost nothing that shows."""


class Answers(Protocol):
    """Where an agent's answers go, a line each."""

    def write(self, line: str, /) -> object:
        """Take one in."""
        ...

    def flush(self) -> object:
        """Pass on what was taken in."""
        ...


class Agent:
    """Does what the inbox says.

    Args:
        inbox: What to do.
        out: Where answers go.
        queue_dir: Directory of the state files and of the lock that lets one agent publish at a time.
        settings: How bytes move.
        stores: Named stores; the process's environment alone where there are none.
    """

    def __init__(
        self,
        inbox: Inbox,
        out: Answers,
        *,
        queue_dir: Path,
        settings: SyncSettings = SETTINGS,
        stores: Mapping[str, StoreOptions] | None = None,
    ) -> None:
        self._how: dict[str, Any] = {"settings": settings, "stores": stores}
        self._inbox = inbox
        self._out = out
        self._queue_dir = queue_dir
        self._told = RequestCounts()
        self._taken_back: set[str] = set()

    def run(self) -> None:
        """Work until no more will come and nothing is left."""
        with contextlib.ExitStack() as held:
            if not self._lock(held):
                return
            while (request := self._inbox.take(offers=True)) is not None:
                if request["op"] != "publish":
                    self._pull(request)
                elif not self._publish(request):
                    self._inbox.wait(RETRY_S)
                    self._put_back(request | {"last": self._inbox.ended})

    def _lock(self, held: contextlib.ExitStack) -> bool:
        """Answer pulls until commits may be published; False when no more will come before that."""
        told_of: dict[str, str] = {}
        while True:
            ended = self._inbox.ended
            while (request := self._inbox.take(offers=False)) is not None:
                self._pull(request)
            offers = self._inbox.offers
            if ended and not offers:
                return False
            try:
                held.enter_context(disk.exclusive(self._queue_dir / LOCK_NAME, purpose="publishing"))
            except Busy:  # the agent of an earlier attempt
                self._inbox.pause(LOCK_RETRY_S)
            except DatakitError as error:  # a full disk, which may have room by and by
                for offer in offers:
                    if ended:
                        self._fail(offer, error)
                    elif told_of.get(offer["dest"]) != error.message:
                        told_of[offer["dest"]] = error.message
                        self._delay(offer, error)
                if ended:
                    return False
                self._inbox.wait(RETRY_S)
            else:
                return True

    def _put_back(self, offer: dict[str, Any]) -> None:
        """Take an offer in again, unless its directory holds another commit by now, which is offered itself."""
        try:
            _check_digest(offer)
        except DatakitError as error:
            self._fail(offer, error)
        else:
            self._inbox.put_back(offer)

    def _publish(self, request: dict[str, Any]) -> bool:
        """Publish one commit; False when it should be tried again."""
        copy = read_copy(Path(request["state"]))
        done = (copy.state, copy.manifest_digest, copy.dest) if copy is not None else None
        if done == ("verified", request["manifest_digest"], request["dest"]) and not request["repair"]:
            self._say("verified", request, bytes=0)  # by another agent, while this one waited for it
            return True
        self._mark(request, "uploading")
        try:
            _check_digest(request)
        except DatakitError as error:
            return self._fail(request, error)
        try:
            result = sync(request["path"], request["dest"], repair=request["repair"], **self._how)
        except (InputError, IntegrityError) as error:
            if request["repair"]:  # then it is not the copy that is damaged
                return self._fail(request, error)
            self._mark(request | {"repair": True}, "staged", message=error.message)
            self._put_again(request, error)
            return True
        except StoreUnavailable as error:
            if request.get("last"):
                return self._fail(request, error)
            return self._delay(request, error)
        except DatakitError as error:
            return self._fail(request, _explained(error, request["dest"], self._how))
        except Exception as error:  # noqa: BLE001 -- one commit that nobody foresaw must not hold up the others
            return self._fail(request, DatakitError(f"{type(error).__name__}: {error}", hint="Please report it"))
        return self._conclude(request, result)

    def _conclude(self, request: dict[str, Any], result: SyncResult) -> bool:
        """Believe what went up once a listing of its place holds it, and compare what else is said to be there."""
        digest = result.manifest_digest
        place = request["dest"].rpartition("/")[0]
        known, shelf = verified_below(self._queue_dir, place), None
        with contextlib.suppress(DatakitError):  # who may not list believes the store's answers
            shelf = shelf_at(place, **self._how)
        if shelf is not None and not _copy_of(request, digest).is_there(shelf):
            if request["repair"]:
                return self._fail(request, StoreUnavailable(f"{UNLISTED}, twice", hint=DELETES_HINT))
            self._mark(request | {"repair": True}, "staged", message=UNLISTED)
            self._put_again(request, IntegrityError(UNLISTED, hint="It goes up again by itself"))
            return True
        if (trouble := self._mark(request, "verified", manifest_digest=digest)) is not None:
            self._say("failed", request, **told(trouble))
            return True
        self._say("verified", request, bytes=result.moved_bytes)
        if shelf is not None:
            self._compare([copy for copy in known if copy.dest != request["dest"]], shelf)
        return True

    def _fail(self, request: dict[str, Any], error: DatakitError) -> bool:
        """Give a commit up, until it is offered again; True, as `_publish` says of what is done with."""
        self._mark(request, "failed", **told(error))
        self._say("failed", request, **told(error))
        return True

    def _delay(self, request: dict[str, Any], error: DatakitError) -> bool:
        """Say why a commit is not published yet; False, as `_publish` says of what is tried again."""
        self._mark(request, "staged", **told(error))
        self._say("waiting", request, **told(error))
        return False

    def _put_again(self, request: dict[str, Any], error: DatakitError) -> None:
        """Have a commit go up again whose copy is gone, damaged or torn; if the damage is here, that try says so."""
        again = {name: request[name] for name in _OFFERED} | {"repair": True}
        self._say("lost", again, **told(error))
        self._put_back(again)

    def _look(self, place: str) -> Shelf:
        """List a place, and compare with it what is said to be there."""
        known = verified_below(self._queue_dir, place)
        shelf = shelf_at(place, **self._how)
        self._compare(known, shelf)
        return shelf

    def _compare(self, known: list[Copy], shelf: Shelf) -> None:
        """Have copies that a listing lacks put again: each once, so that a store that loses them makes no circle."""
        for copy in lost(known, shelf):
            where = {"path": str(copy.path), "dest": copy.dest, "state": str(copy.file)}
            request = {"op": "publish", **where, "manifest_digest": copy.manifest_digest, "repair": True}
            if copy.dest in self._taken_back:
                self._fail(request, StoreUnavailable(f"{GONE}, for the second time", hint=DELETES_HINT))
                if not copy.is_here:
                    drop_state(copy.file)  # there is nothing left that could be put
                continue
            self._taken_back.add(copy.dest)
            if take_back(copy, GONE):
                self._put_again(request, IntegrityError(GONE, hint="It goes up again by itself"))

    def _pull(self, request: dict[str, Any]) -> None:
        about = {"op": request["op"], "source": request["source"]}
        try:
            shelf = self._look(request["source"])
            if request["op"] == "look":
                names = commits_on(shelf, pattern=request["pattern"])
                self._answer({"event": "pulled", **about, "name": names[0] if names else None, "skipped": []})
                return
            pulled = pull_newest(
                request["source"],
                Path(request["dest"]),
                after=request["after"],
                pattern=request["pattern"],
                **self._how,
                shelf=shelf,
                settle=False,
            )
        except DatakitError as error:
            self._answer({"event": "failed", **about, **told(error)})
        else:
            seen = {pulled.name, *(each.name for each in pulled.skipped if not each.is_damaged)}
            forget_damage(self._queue_dir, request["source"], unseen={*shelf} - seen)
            skipped = [{"name": each.name, **told(each.error)} for each in pulled.skipped]
            self._answer({"event": "pulled", **about, "name": pulled.name, "skipped": skipped})

    def _mark(self, request: dict[str, Any], state: State, **more: object) -> DatakitError | None:
        """Keep a state. Gives the error where it cannot be kept: an older one stands then, so that it is done again."""
        more = {"manifest_digest": request["manifest_digest"], **more}
        if request["repair"] and state != "verified":
            more["repair"] = True  # until it is there whole, also in later attempts
        try:
            write_state(Path(request["state"]), path=request["path"], dest=request["dest"], state=state, **more)
        except DatakitError as error:
            return error
        return None

    def _say(self, event: str, request: dict[str, Any], **more: object) -> None:
        self._answer({"event": event, **{name: request[name] for name in _OFFERED}, **more})

    def _answer(self, answer: dict[str, Any]) -> None:
        made = PROCESS.counts
        answer["requests"], self._told = dataclasses.asdict(made - self._told), made
        with contextlib.suppress(BrokenPipeError):  # the trainer is gone; the state file says the same
            self._out.write(json.dumps(answer) + "\n")
            self._out.flush()


def _copy_of(request: dict[str, Any], manifest_digest: str | None) -> Copy:
    """The copy that a request asks for, as it is when that is done."""
    where = {"file": Path(request["state"]), "path": Path(request["path"]), "dest": request["dest"]}
    return Copy(**where, state="verified", manifest_digest=manifest_digest, message=None, error=None)


def _explained(error: DatakitError, dest: str, how: Mapping[str, Any]) -> DatakitError:
    """A refusal at a commit's own place, with the way out where another upload left what is there."""
    if not isinstance(error, Refused) or isinstance(error, Busy):
        return error
    place, _, name = dest.rpartition("/")
    try:
        if not shelf_at(place, **how).get(name):
            return error
        there = open_location(dest, stores=how["stores"])
        with contextlib.suppress(NotFound, InputError, IntegrityError):  # none, another program's, or a torn one
            parse_manifest(there.store.fetch(there.key(MANIFEST_NAME)).data, where=dest)
            return error
    except DatakitError:
        return error
    said = f"{dest} holds no commit, but what another upload has left: {error.message}"
    remove = f"aws s3 rm --recursive {dest}" if dest.startswith("s3://") else f"all below {dest}/"
    return Refused(said, hint=f"If nothing writes there any more, remove it: {remove}", subject=dest)


def _check_digest(request: dict[str, Any]) -> None:
    """Refuse to publish other bytes than were offered: the directory may have got another commit meanwhile."""
    offered, now = request["manifest_digest"], read_manifest(Path(request["path"])).digest
    if offered not in (None, now):
        raise Refused(
            f"{request['path']} is another commit now (manifest {now[:12]}, offered {offered[:12]})",
            hint="The newer one is published under a name of its own",
            subject=request["path"],
        )


def requests_from(stream: TextIO) -> Iterator[list[dict[str, Any]]]:
    """Requests by the line; a torn last line, of a trainer that was killed while it wrote, is dropped."""
    for line in stream:
        with contextlib.suppress(ValueError):
            requests = json.loads(line)
            yield requests if isinstance(requests, list) else [requests]


def main(arguments: list[str]) -> int:
    """Run the agent on stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when to stop
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    inbox = Inbox()

    def read() -> None:
        try:
            for requests in requests_from(sys.stdin):
                inbox.put(*requests)
        finally:
            inbox.end()

    threading.Thread(target=read, name="datakit-agent-inbox", daemon=True).start()
    Agent(inbox, sys.stdout, queue_dir=Path(arguments[0])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
