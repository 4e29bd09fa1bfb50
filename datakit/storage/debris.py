"""debris: what a killed upload left at a commit's own place in a store, where no manifest says that it is a commit.

Who writes a commit back owns the place of that name, and the machine that makes it again may give it other bytes: they
replace what lies there. A commit is never touched, and no manifest is ever put over a mixture of two uploads, also when
the other is only slow: first all debris is emptied, each object under If-Match of what was seen, then the right bytes
are put over the emptied; and whoever uploads to such a place compares a listing with what it has put before it puts the
manifest. Between that listing and the manifest lies one request in which nobody can be heard, since a store decides
about one object at a time; a commit that is hit there is found damaged by its manifest, and never believed.

A directory needs none of this: it keeps the coming manifest beside what has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from datakit.data.digest import FileEntry
from datakit.errors import Busy, Refused
from datakit.storage import etags
from datakit.storage.commit import read_manifest
from datakit.storage.compare import Item, listed, look_at_destination
from datakit.storage.moves import SyncPlan, SyncSettings, patient
from datakit.storage.objects import ObjectInfo, Store
from datakit.storage.retry import Pace
from datakit.storage.store import Location, open_location
from datakit.storage.upload import Put, reads_as, upload


def replace_debris(commit: Path, destination: str, *, settings: SyncSettings, repair: bool = False) -> bool:
    """Put members of a commit over the objects of their names that have other bytes, where no commit is.

    Args:
        commit: The local directory.
        destination: Its own place: nobody else's objects lie there.
        settings: How.
        repair: Whether a torn manifest there is none.

    Returns:
        Whether there was debris; each of it is a verified member now.

    Raises:
        Refused: An object was replaced since it was seen: somebody else is at work there.
        IntegrityError: The commit's files are not what its manifest says, or a manifest there is torn.
        DatakitError: The store, as in `sync.sync`.
    """
    place = open_location(destination)
    store = patient(place, settings)
    if place.path is not None or _is_commit(place, store, repair=repair):
        return False
    there = listed(place, store)
    met = [(each, item) for each in read_manifest(commit).members if (item := there.get(each.name)) is not None]
    wrong = [(entry, item) for entry, item in met if not _is_right(item, entry, commit / entry.name, place, store)]
    if any(item.etag is None for _, item in wrong):  # then nothing tells whether it is still the one that was seen
        return False
    if not wrong or _is_commit(place, store, repair=repair):  # the look at much of it may have taken long
        return False
    emptied = [(entry, _empty(store, place.key(entry.name), item.etag)) for entry, item in wrong]
    puts = [Put(commit / each.name, info.key, each.bytes, each, replaces=info.etag) for each, info in emptied]
    pace = Pace(retries=settings.retries)
    upload(place.store, puts, knobs=settings.knobs(durable=True), pace=pace, on_bytes=lambda _count: None)
    return True


def _is_commit(place: Location, store: Store, *, repair: bool) -> bool:
    found = look_at_destination(place, store, repair=repair)
    return found is not None and found.manifest is not None


def _empty(store: Store, key: str, etag: str | None) -> ObjectInfo:
    try:
        return store.write(key, b"", replaces=etag)
    except Refused:
        there = store.head(key)
        if there.bytes:
            raise
        return there  # the answer to an earlier try was lost


def refuse_mixture(plan: SyncPlan, tags: Mapping[str, str | None]) -> None:
    """Refuse the manifest of a commit of which another has replaced members since they were put.

    Args:
        plan: The upload, of which only the manifest is still to come.
        tags: What the store said of each object that was put.

    Raises:
        Busy: With the first that has other bytes. What the store does not list is no other's doing.
    """
    store = patient(plan.target, plan.settings)
    there = listed(plan.target, store)
    for name, item in plan.held.items.items():
        found = there.get(name)
        if found is None or etags.same(found.etag, tags.get(plan.target.key(name))):
            continue
        assert item.entry is not None
        if not _is_right(found, item.entry, plan.original(name), plan.target, store):
            raise Busy(
                f"{plan.destination}/{name} was replaced while the commit went up: another process writes there",
                hint="Let one run at a time write to a place; then run the same command again",
                subject=plan.destination,
            )


def _is_right(item: Item, entry: FileEntry, original: Path | None, place: Location, store: Store) -> bool:
    if item.bytes != entry.bytes:
        return False
    info = ObjectInfo(place.key(item.name), item.bytes, item.etag)
    return etags.prove(item.etag, entry, original) or reads_as(store, info, entry)
