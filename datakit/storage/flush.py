"""flush: what the write-back of a run still has to do, in the time that is left: the newest commit first.

For a machine that is about to be reclaimed, and for a run whose trainer is gone: it starts an agent of its own, which
waits where that of a living trainer works already, and goes on by itself when the time is over. It copies what was
offered before, and makes no checkpoint.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from datakit.errors import DatakitError, Interrupted, NotFound
from datakit.events import Caution, Note, OnEvent, ignore
from datakit.storage.access import StoreOptions
from datakit.storage.copies import Copy, read_copies
from datakit.storage.store import ObstoreStore, open_location
from datakit.storage.writeback import Failed, Published, WriteBack


@dataclass(frozen=True, slots=True)
class Flushed:
    """What became of the commits of one run that had no copy.

    Attributes:
        queue: The run's queue directory.
        copied: Copies that are verified by now and were not before.
        left: Names of commits that have none, each with the last thing that is known of it.
        newest: The newest commit that was ever offered, or None.
        trouble: The error by which the newest has no copy; None where it has one.
        seconds: How long it took.
    """

    queue: Path
    copied: tuple[str, ...]
    left: Mapping[str, str]
    newest: str | None
    trouble: DatakitError | None = field(repr=False)
    seconds: float


def flush(
    queue_dir: Path,
    *,
    deadline_s: float,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> Flushed:
    """Have what a queue directory holds copied, the newest commit first, for so many seconds at most.

    Args:
        queue_dir: The run's.
        deadline_s: When it returns at the latest, but for a second; the agent goes on with what it has.
        stores: Named stores.
        on_event: Told what became of each.

    Raises:
        DatakitError: The queue directory cannot be written.
    """
    begun = time.monotonic()
    offered = sorted(read_copies(queue_dir), key=lambda copy: copy.made_ns)
    waiting = _waiting(queue_dir)
    newest = offered[-1].file.stem if offered else None
    if not waiting:
        return Flushed(queue_dir, (), {}, newest, None, 0.0)
    place = open_location(waiting[-1].place, stores=stores)
    options = place.store.options if isinstance(place.store, ObstoreStore) else None
    back = WriteBack(waiting[-1].place, queue_dir=queue_dir, options=options)
    back.start()
    missing = back.close(max(0.0, deadline_s - (time.monotonic() - begun)))
    late = time.monotonic() - begun >= deadline_s
    for said in back.poll():
        on_event(_told(said))
    left = {copy.file.stem: missing[copy.file.stem] for copy in waiting if copy.file.stem in missing}
    trouble: DatakitError | None = None
    if newest in left and newest is not None:
        message = f"{newest} has no verified copy below {waiting[-1].place} yet: {left[newest]}"
        kind = Interrupted if late else back.trouble(newest)
        trouble = kind(message, hint="Run the same command again: it continues", subject=str(queue_dir.parent))
    copied = tuple(copy.dest for copy in waiting if copy.file.stem not in left)
    return Flushed(queue_dir, copied, left, newest, trouble, time.monotonic() - begun)


def _told(said: Published | Failed) -> Note | Caution:
    if isinstance(said, Published):
        return Note(f"{said.path.name} is verified at {said.dest}")
    return Caution(f"{said.path.name} has no copy yet: {said.message}", said.hint)


def queues_below(place: Path, *, name: str) -> list[Path]:
    """Queue directories of a run, or of the runs in a directory or in its `runs`, those with the newest commit first.

    Args:
        place: A run, or a directory of runs.
        name: What a run calls its queue directory.

    Raises:
        NotFound: There is none.
    """
    found = [path for pattern in (name, f"*/{name}", f"runs/*/{name}") for path in place.glob(pattern) if path.is_dir()]
    if not found:
        message = f"{place} holds no run that is written back"
        hint = f"Name the --output of a training with --write-back: datakit sync --flush {shlex.quote('RUN')}"
        raise NotFound(message, hint=hint, subject=str(place))
    return sorted(found, key=lambda path: -max((copy.made_ns for copy in _waiting(path)), default=0))


def _waiting(queue_dir: Path) -> list[Copy]:
    """Commits that lie here and have no verified copy, the newest last."""
    copies = [copy for copy in read_copies(queue_dir) if copy.state != "verified" and copy.made_ns]
    return sorted(copies, key=lambda copy: copy.made_ns)
