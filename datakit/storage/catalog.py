"""catalog: which commits lie below a place, and bringing the newest of them here.

It finds candidates by one listing and believes manifests only: a folder without one is no commit, and one that cannot
be had whole is passed over for the next older, with the reason. What is brought arrives beside its name, as
`.NAME.arriving`: a directory under the name itself is a whole commit, so nothing stands in the way of the run that
makes that step again. Killed, the same question goes on where it was.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError, InputError, IntegrityError, NotFound, Refused, UsageError
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.commit import verify_commit
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.store import open_location
from datakit.storage.sync import sync

ARRIVING = re.compile(r"\.(?P<name>.+)\.arriving")
"""Names of commits that are being brought."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was brought here.

    Attributes:
        name: The commit's folder name, or None when nothing newer was there.
        skipped: Newer ones that cannot be had whole, each with the reason.
    """

    name: str | None
    skipped: tuple[tuple[str, str], ...] = ()


def commits_at(
    place: str,
    *,
    pattern: str = "step-*",
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
) -> list[str]:
    """Names of the folders directly below a place that hold a manifest, later in the alphabet first.

    Args:
        place: A path or URL; one where nothing is yet holds none.
        pattern: Which names count.
        settings: Whose patience is used.
        stores: Named stores.
    """
    location = open_location(place, stores=stores)
    top = f"{location.prefix}/" if location.prefix else ""
    try:
        keys = [info.key for info in patient(location, settings or SyncSettings()).list(location.prefix)]
    except NotFound as error:
        if location.path is None or location.path.exists():
            raise
        del error
        return []
    steps = (key.removeprefix(top).split("/") for key in keys)
    names = {step[0] for step in steps if len(step) == 2 and step[1] == MANIFEST_NAME}
    return sorted(fnmatch.filter(names, pattern), reverse=True)


def pull_newest(
    place: str,
    directory: Path,
    *,
    after: str | None = None,
    pattern: str = "step-*",
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    check: Callable[[Path], None] = lambda _commit: None,
    set_aside: Callable[[Path], object] | None = None,
) -> Pulled:
    """Bring the newest commit below a place into a directory, under its own name, if it is newer than `after`.

    Args:
        place: A path or URL.
        directory: Where it is brought to.
        after: The newest that is here, or None.
        pattern: Which names count.
        settings: How it is moved.
        stores: Named stores.
        check: Sees the whole commit before it has its name here; what it raises ends the pull, and nothing stays.
        set_aside: Takes the name from a damaged commit that lies here, once the whole one has come and was checked.

    Raises:
        NotFound: The bucket is not there.
        StoreUnavailable: The store cannot be asked.
        NotAllowed, NoSpace, Refused: It, or the directory here, cannot be used; an older commit would not help.
            Something damaged lies under its name, and nobody sets it aside.
    """
    skipped: list[tuple[str, str]] = []
    base = str(place).rstrip("/")
    for name in commits_at(base, pattern=pattern, settings=settings, stores=stores):
        if after is not None and name <= after:
            break
        try:
            bring = _Bring(f"{base}/{name}", Path(directory) / name, settings, stores)
            bring.run(check=check, set_aside=set_aside)
        except (InputError, IntegrityError, UsageError) as error:  # damaged, a member gone, a format of a newer datakit
            skipped.append((name, error.message))
            continue
        _remove_arriving(Path(directory), pattern)
        return Pulled(name, tuple(skipped))
    return Pulled(None, tuple(skipped))


@dataclass(frozen=True, slots=True)
class _Bring:
    """One commit on its way here."""

    source: str
    final: Path
    settings: SyncSettings | None
    stores: Mapping[str, StoreOptions] | None

    def run(self, *, check: Callable[[Path], None], set_aside: Callable[[Path], object] | None) -> None:
        problem = self._problem()
        if problem is None:
            check(self.final)
            sync(self.source, self.final, settings=self.settings, stores=self.stores)
            return
        arriving = self.final.with_name(f".{self.final.name}.arriving")
        try:
            sync(self.source, arriving, settings=self.settings, stores=self.stores)
        except (InputError, IntegrityError, UsageError):
            with disk.at_door(arriving):
                disk.remove(arriving)  # nothing of it will ever be whole
            raise
        try:
            check(arriving)
            if self.final.exists():
                self._clear(problem, set_aside)
        except DatakitError:
            with disk.at_door(arriving):
                disk.remove(arriving)
            raise
        with disk.at_door(self.final):
            os.rename(arriving, self.final)
            disk.fsync_dir(self.final.parent)

    def _problem(self) -> DatakitError | None:
        """Why no whole commit lies here under that name; None when one does."""
        try:
            verify_commit(self.final)
        except DatakitError as error:
            return error
        return None

    def _clear(self, problem: DatakitError, set_aside: Callable[[Path], object] | None) -> None:
        if set_aside is None:
            raise Refused(
                f"{self.final} is in the way and is no whole commit: {problem.message}",
                hint="Move it away",
                subject=str(self.final),
            )
        set_aside(self.final)


def _remove_arriving(directory: Path, pattern: str) -> None:
    """Older ones whose bringing was killed, and which nobody wants any more."""
    with disk.at_door(directory):
        for path in list(directory.iterdir()):
            match = ARRIVING.fullmatch(path.name)
            if match and fnmatch.fnmatch(match["name"], pattern):
                disk.remove(path)
