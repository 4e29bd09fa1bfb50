"""catalog: which commits lie below a place, and bringing the newest of them here.

It finds candidates by one listing and believes manifests only: a folder without one is no commit, and one that cannot
be had whole is passed over for the next older, with the reason, which need not be damage. What is brought arrives
beside its name, as `.NAME.arriving`: a directory under the name itself is a whole commit, so nothing stands in the way
of the run that makes that step again. Killed, the same question goes on where it was.
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
from datakit.events import Caution
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.commit import read_manifest, verify_commit
from datakit.storage.copies import Shelf
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.store import Location, open_location
from datakit.storage.sync import sync

ARRIVING = re.compile(r"\.(?P<name>.+)\.arriving")
"""Names of commits that are being brought."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A commit that was passed over.

    Attributes:
        name: Its folder's.
        error: Why.
    """

    name: str
    error: DatakitError

    @property
    def is_damaged(self) -> bool:
        """Whether what lies there is bad: not gone since the listing, nor of a format that a newer datakit reads."""
        return isinstance(self.error, InputError | IntegrityError)

    def caution(self, place: str) -> Caution:
        """What is said of it to whoever asked for the newest commit below `place`."""
        what = "is not valid" if self.is_damaged else "cannot be read here"
        return Caution(f"{place}/{self.name} {what} and is passed over: {self.error.message}", self.error.hint)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was brought here.

    Attributes:
        name: The commit's folder name, or None when nothing newer was there.
        skipped: Newer ones that cannot be had whole, newest first.
    """

    name: str | None
    skipped: tuple[Skipped, ...] = ()

    @property
    def damaged(self) -> dict[str, DatakitError]:
        """Names of those that were passed over for damage, each with what is wrong."""
        return {each.name: each.error for each in self.skipped if each.is_damaged}


def address(place: str | Location, *, stores: Mapping[str, StoreOptions] | None = None) -> str:
    """A place as it is kept and compared: an absolute path, or a URL of the store itself, not of its name here.

    Args:
        place: A path or URL, as a person may write it.
        stores: Named stores.

    Raises:
        UsageError: It is no place.
    """
    location = open_location(place, stores=stores)
    return location.url if location.path is None else str(location.path.absolute())


def shelf_at(
    place: str, *, settings: SyncSettings | None = None, stores: Mapping[str, StoreOptions] | None = None
) -> Shelf:
    """What lies in the folders directly below a place, by one listing.

    Args:
        place: A path or URL; one where nothing is yet holds none.
        settings: Whose patience is used.
        stores: Named stores.
    """
    location = open_location(place, stores=stores)
    top = f"{location.prefix}/" if location.prefix else ""
    found: dict[str, dict[str, int]] = {}
    try:
        for info in patient(location, settings or SyncSettings()).list(location.prefix):
            folder, inside, name = info.key.removeprefix(top).partition("/")
            if inside:
                found.setdefault(folder, {})[name] = info.bytes
    except NotFound:
        if location.path is None or location.path.exists():
            raise
    return found


def commits_on(shelf: Shelf, *, pattern: str = "step-*") -> list[str]:
    """Names of the folders of a listing that hold a manifest, later in the alphabet first."""
    return sorted(fnmatch.filter((name for name in shelf if MANIFEST_NAME in shelf[name]), pattern), reverse=True)


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
    return commits_on(shelf_at(place, settings=settings, stores=stores), pattern=pattern)


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
    shelf: Shelf | None = None,
    settle: bool = True,
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
        shelf: A listing of the place, where the caller has one.
        settle: Whether it gets its name here; otherwise it stays where `arriving` says, for the caller to see and then
            to `settle` or to `reject`.

    Raises:
        NotFound: The bucket is not there.
        StoreUnavailable: The store cannot be asked.
        NotAllowed, NoSpace, Refused: It, or the directory here, cannot be used; an older commit would not help.
            Something damaged lies under its name, and nobody sets it aside.
    """
    skipped: list[Skipped] = []
    base = str(place).rstrip("/")
    if shelf is None:
        shelf = shelf_at(base, settings=settings, stores=stores)
    for name in commits_on(shelf, pattern=pattern):
        if after is not None and name <= after:
            break
        final = Path(directory) / name
        try:
            _bring(f"{base}/{name}", final, settings=settings, stores=stores)
        except (InputError, IntegrityError, UsageError) as error:  # damaged, a member gone, a format of a newer datakit
            skipped.append(Skipped(name, error))
            continue
        if settle:
            settle_commit(final, pattern=pattern, check=check, set_aside=set_aside)
        return Pulled(name, tuple(skipped))
    return Pulled(None, tuple(skipped))


def arriving(final: Path) -> Path:
    """Where a commit is brought to before it has its name."""
    return final.with_name(f".{final.name}.arriving")


def _bring(
    source: str, final: Path, *, settings: SyncSettings | None, stores: Mapping[str, StoreOptions] | None
) -> None:
    """Bring a commit to where it waits for its name."""
    fresh = arriving(final)
    try:
        sync(source, fresh, settings=settings, stores=stores)
        read_manifest(fresh).check_name(final.name)
    except (InputError, IntegrityError, UsageError):
        with disk.at_door(fresh):
            disk.remove(fresh)  # nothing of it will ever be whole
        raise


def settle_commit(
    final: Path,
    *,
    pattern: str = "step-*",
    check: Callable[[Path], None] = lambda _commit: None,
    set_aside: Callable[[Path], object] | None = None,
) -> None:
    """Give a commit that has arrived its name, and remove others whose bringing was killed.

    Args:
        final: The name; the commit waits where `arriving` says.
        pattern: Which names count.
        check: Sees it first; what it raises ends this, and nothing of it stays.
        set_aside: Takes the name from a damaged commit that lies here.

    Raises:
        Refused: Something else has the name.
    """
    fresh = arriving(final)
    try:
        check(fresh)
        if final.exists():
            _clear(final, set_aside)
    except DatakitError:
        with disk.at_door(fresh):
            disk.remove(fresh)
        raise
    with disk.at_door(final):
        os.rename(fresh, final)
        disk.fsync_dir(final.parent)
        for path in list(final.parent.iterdir()):  # others, which nobody waits for any more
            match = ARRIVING.fullmatch(path.name)
            if match and fnmatch.fnmatch(match["name"], pattern):
                disk.remove(path)


def _clear(final: Path, set_aside: Callable[[Path], object] | None) -> None:
    problem = "a whole commit"
    try:
        verify_commit(final)
    except DatakitError as error:
        if set_aside is not None:
            set_aside(final)
            return
        problem = f"no whole commit: {error.message}"
    raise Refused(f"{final} is in the way and is {problem}", hint="Move it away", subject=str(final))
