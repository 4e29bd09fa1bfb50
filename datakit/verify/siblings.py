"""siblings: the splits of one dataset, which lie beside each other, compared with what their manifests say of them.

A pack with splits makes them all, and each manifest tells of all by name. It is looked at whether they are there and
in their places; whether each is whole is `verify`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import IntegrityError
from datakit.storage.access import StoreOptions
from datakit.storage.commit import parse_manifest
from datakit.storage.store import open_location
from datakit.units import agree


def refuse_gaps(places: Iterable[str], *, stores: Mapping[str, StoreOptions] | None = None) -> None:
    """See that each split stands in its place, and that none is missing which another one names.

    Args:
        places: Datasets that lie beside each other.
        stores: Named stores.

    Raises:
        IntegrityError: Names the splits that are not there, or the one that lies in another's place.
    """
    wanted: dict[str, str] = {}
    there = set()
    for place in places:
        location = open_location(place, stores=stores)
        data = location.store.fetch(location.key(MANIFEST_NAME)).data
        pack = parse_manifest(data, where=place).about.get("pack")
        split, splits = (pack.get("split"), pack.get("splits")) if isinstance(pack, dict) else (None, None)
        if not isinstance(split, str) or not isinstance(splits, dict):
            continue
        name = place.rpartition("/")[2]
        if name != split and name in splits:
            message = f"{place} holds the split {split}: it lies in the place of {name}"
            raise IntegrityError(message, hint="Give each the name of its split, or pack again", subject=place)
        there.add(split)
        wanted |= dict.fromkeys(splits, place)
    if missing := sorted(wanted.keys() - there):
        folder = wanted[missing[0]].rpartition("/")[0]
        message = f"{folder} lacks the {agree(len(missing), 'split', 'splits')} {', '.join(missing)}, "
        message += f"of which {wanted[missing[0]]} tells"
        raise IntegrityError(message, hint="Bring it there, or pack again", subject=folder)
