"""splits: what a command does with a dataset, done with each of those that lie right below a folder.

`pack --split` makes several datasets below DEST, and who names DEST means them all. A folder is taken for one of these
only where no dataset is at the place itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from datakit.errors import NotFound

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions

T = TypeVar("T")


def each(place: str, look: Callable[[str], T], *, stores: Mapping[str, StoreOptions] | None = None) -> dict[str, T]:
    """What is found at a place, or at each of the datasets right below it, by where that is.

    Args:
        place: A directory or URL.
        look: Looks at one.
        stores: Named stores of the settings.

    Raises:
        NotFound: No dataset is at the place, and none right below it.
    """
    try:
        return {place: look(place)}
    except NotFound:
        if not (below := _below(place, stores)):
            raise
    return {each: look(each) for each in below}


def result(found: Mapping[str, T], place: str) -> T | Mapping[str, T]:
    """What `--json` says of it: of one dataset what was found, of several an object with that for each place."""
    return found.get(place, found)


def report(found: Mapping[str, T], place: str, text: Callable[[T], str]) -> str:
    """What people read of it: of several, each under its place."""
    if place in found:
        return text(found[place])
    return "\n\n".join(f"{where}:\n{text(each)}" for where, each in found.items())


def _below(place: str, stores: Mapping[str, StoreOptions] | None) -> list[str]:
    from datakit.data.manifest import MANIFEST_NAME
    from datakit.storage.absent import commits_below
    from datakit.storage.store import open_location

    location = open_location(place, stores=stores)
    try:
        location.store.head(location.key(MANIFEST_NAME))
    except NotFound:
        return [f"{place.rstrip('/')}/{name}" for name in commits_below(location.store, location.prefix)]
    return []  # what is missing is in the dataset that is there
