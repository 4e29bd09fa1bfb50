"""upload: write-back while training goes on, seen from the trainer.

The trainer never loads an object-store client: the agent process of `storage.writeback` publishes commits, and brings a
newer checkpoint onto a fresh machine.

Promises: trouble is said as a caution, once each, and in the result, and is never raised into training; what has no
verified copy yet, or none any more, is offered again by the next attempt; a copy that was found damaged is put again
once its commit is here, and named in the result where it is not; one that only a newer datakit reads is passed over
and left alone; a commit whose state cannot be kept has no copy, and is named too; a local checkpoint may be dropped
only when it, or a newer one, has a verified copy. A destination that cannot be asked at the start ends the attempt
when nothing is here to continue: whether to begin anew beside a state that may exist is not for a program to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from datakit.errors import Busy, DatakitError
from datakit.events import Caution, Note, OnEvent
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import Pulled, address
from datakit.storage.counts import RequestCounts
from datakit.storage.store import ObstoreStore, open_location
from datakit.storage.writeback import Failed, Published, WriteBack
from datakit.train.shelf import (
    ADAPTER_DIR,
    CHECKPOINT_GLOB,
    CHECKPOINTS_NAME,
    QUEUE_NAME,
    copy_name,
    has_copy,
    step_name,
)
from datakit.train.signals import StopRequest

FINISH_S = 600.0
"""The most that a finished run waits for its last uploads; a store that is only slow gets there in this time."""

STOP_S = 20.0
"""The most that a stopped run waits: Kubernetes grants 30 s between SIGTERM and SIGKILL by default."""

BUSY_S = 30.0
"""The most that a start waits for the agent of a killed attempt, which ends its fetch; a checkpoint takes seconds."""

LEAVE_S = 2.0
"""What an attempt that ends by an error grants the agent; one without work leaves in a tenth of that."""


class Upload:
    """Where commits go, if anywhere.

    Args:
        url: URL or path below which commits are copied, or None.
        run: The run directory.
        stores: Named stores.
        on_event: Hears what becomes of uploads.
    """

    def __init__(
        self, url: str | None, *, run: Path, stores: Mapping[str, StoreOptions] | None, on_event: OnEvent
    ) -> None:
        self.url: str | None = None
        self._on_event = on_event
        self._back: WriteBack | None = None
        self._started = False
        self._told: set[tuple[str, str]] = set()
        self._verified: set[tuple[str, str]] = set()
        self._run = run
        self._adapter: str | None = None
        self._seen = self._rejected = False
        if url is not None:
            place = open_location(url, stores=stores)
            options = place.store.options if isinstance(place.store, ObstoreStore) else None
            self.url = address(place)
            self._back = WriteBack(self.url, queue_dir=run / QUEUE_NAME, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._back is not None and self._started:
            self._back.close(deadline_s=LEAVE_S)  # the agent goes on by itself with what it still has
            self._started = False

    def start(self) -> None:
        """Start the agent, which takes up what earlier attempts left; a second call does nothing."""
        if self._back is not None and not self._started:
            self._back.start()
            self._started = True

    def fetch(self, directory: Path, step: int, check: Callable[[Path], None] = lambda _commit: None) -> str | None:
        """Bring the newest checkpoint of the destination here if it is newer than a step; say from where, or None.

        Args:
            directory: Where checkpoints lie.
            step: The newest valid one that is here, -1 for none.
            check: Sees the checkpoint before it counts here.

        Raises:
            DatakitError: The destination cannot be asked, and nothing is here.
            Refused: By `check`; nothing was brought here.
        """
        if self._back is None:
            return None
        self.start()
        after = step_name(step) if step >= 0 else None
        try:
            pulled = self._fetch(self._back, directory, after, check)
        except DatakitError as error:
            if step < 0 or self._rejected:
                raise
            self._on_event(Caution(f"{self.url} cannot be asked for a newer checkpoint: {error.message}", error.hint))
            return None
        self._seen = True
        for each in pulled.skipped:
            self._on_event(each.caution(str(self.url)))
        return self.url if pulled.name is not None else None

    def _fetch(self, back: WriteBack, directory: Path, after: str | None, check: Callable[[Path], None]) -> Pulled:
        until, said = time.monotonic() + BUSY_S, False

        def see(commit: Path) -> None:
            self._rejected = True
            check(commit)
            self._rejected = False

        while True:
            try:
                return back.fetch_newest(directory, after=after, pattern=CHECKPOINT_GLOB, check=see)
            except Busy as error:
                if self._rejected or time.monotonic() > until:
                    raise
                if not said:
                    self._on_event(Note(f"waiting for an earlier attempt's fetch: {error.message}"))
                said = True
                time.sleep(0.5)

    def newest(self) -> str | None:
        """The URL of the newest checkpoint at the destination, or None; nothing is fetched.

        Raises:
            DatakitError: The destination cannot be asked.
        """
        if self._back is None:
            return None
        self.start()
        name = self._back.newest(pattern=CHECKPOINT_GLOB)
        self._seen = True
        return None if name is None else f"{self.url}/{name}"

    def offer(self, path: Path) -> None:
        """Have a commit copied; returns at once."""
        if self._back is None:
            return
        name = copy_name(path)
        if path.name == ADAPTER_DIR:
            self._adapter = name
        self._back.offer(path, name=name)

    @property
    def adapter_copy(self) -> str | None:
        """The URL of the adapter's verified copy, or None."""
        if self._back is None or self._adapter is None or self._back.state(self._adapter) != "verified":
            return None
        return f"{self.url}/{self._adapter}"

    @property
    def requests(self) -> RequestCounts:
        """Requests made for fetching and copying, as far as was told."""
        return self._back.requests if self._back is not None else RequestCounts()

    def poll(self) -> None:
        """Tell what became of offers; never waits."""
        for said in self._back.poll() if self._back is not None else ():
            self._tell(said)

    def _tell(self, said: Published | Failed) -> None:
        name = said.path.name
        if isinstance(said, Published):
            self._seen = True
            if (name, said.dest) not in self._verified:
                self._on_event(Note(f"{name} is verified at {said.dest}"))
            self._verified.add((name, said.dest))  # the last one is offered again at the end, and is no news then
            return
        self._verified = {known for known in self._verified if known[0] != name}
        if (name, said.message) not in self._told:
            self._told.add((name, said.message))
            going_on = "it is tried again" if said.waiting else "it is kept here"
            self._on_event(Caution(f"{name} is not at {self.url} yet, {going_on}: {said.message}", said.hint))

    def finish(self, stop: StopRequest) -> dict[str, str]:
        """Wait for what is under way, and say what has no verified copy, with the reason.

        Args:
            stop: Once it asks to stop, or if it does already, the wait is a short one.
        """
        if self._back is None or not self._started:
            return {}
        missing = self._back.close(FINISH_S, hurried=stop.__bool__, hurry_s=STOP_S)
        self._started = False
        self.poll()
        found, may_go = {}, self.may_go
        for name, reason in missing.items():
            if name == self._adapter:
                found[ADAPTER_DIR] = reason
            # a failed checkpoint with a newer verified one nobody will ask for; one that is damaged there is what the
            # next machine meets first
            elif name in self._back.damaged or (not may_go(name) and (self._run / CHECKPOINTS_NAME / name).is_dir()):
                found[name] = reason
        return found

    def kind_of(self, name: str) -> type[DatakitError]:
        """The class of what keeps a commit's copy from being there, by the name that `finish` gave it."""
        copy = self._adapter if name == ADAPTER_DIR and self._adapter is not None else name
        return self._back.trouble(copy) if self._back is not None else DatakitError

    @property
    def may_go(self) -> Callable[[str], bool]:
        """Tells, as of now, whether the local checkpoint of a name may be dropped, as far as write-back is concerned.

        None may before the destination has answered: what was verified yesterday need not be there today.
        """
        if self._back is None or not self._seen:
            return lambda _name: self._back is None
        return has_copy(self._run, lost={*self._back.damaged, *self._back.unkept})

    def status(self, name: str) -> str | None:
        """`verified`, or what stands in the way of a commit's copy; None where nothing is written back."""
        if self._back is None:
            return None
        # the reason first: the agent may write "verified" in between, and that has none
        return self._back.reason(name) or ("verified" if self._back.state(name) == "verified" else "not offered")
