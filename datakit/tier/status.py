"""status: what a pool holds, told for people and programs; asks no store and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.storage import disk
from datakit.tier.pool import Pool
from datakit.tier.roster import Known
from datakit.tier.usage import Lying


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """How much of a dataset is here.

    Attributes:
        name: Its name.
        digest: Of its manifest.
        objects: Objects that are here.
        of_objects: Of so many.
        bytes: Their bytes.
        of_bytes: Of so many.
        pinned: Whether what is here stays.
        places: Where it was seen whole.
    """

    name: str
    digest: str
    objects: int
    of_objects: int
    bytes: int
    of_bytes: int
    pinned: bool
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TierStatus:
    """What a tier holds.

    Attributes:
        tier: Its name.
        place: Its directory.
        budget_bytes: What it may hold.
        used_bytes: What counts against that: objects, what arrives, what lies aside.
        object_bytes: Of whole objects.
        arriving_bytes: Of what is promised or coming, leftovers included.
        left_bytes: Of what killed fetches have left.
        aside_bytes: Of damaged files.
        disk_free_bytes: Free on its disk.
        datasets: By name.
    """

    tier: str
    place: str
    budget_bytes: int
    used_bytes: int
    object_bytes: int
    arriving_bytes: int
    left_bytes: int
    aside_bytes: int
    disk_free_bytes: int
    datasets: tuple[DatasetStatus, ...]


def status(pool: Pool) -> TierStatus:
    """Look at a pool; one that was not made yet is empty.

    Raises:
        Refused: Something else lies there.
    """
    pool.check()
    usage = pool.usage()
    return TierStatus(
        tier=pool.name,
        place=str(pool.root),
        budget_bytes=pool.budget_bytes,
        used_bytes=usage.total_bytes,
        object_bytes=usage.object_bytes,
        arriving_bytes=usage.arriving_bytes,
        left_bytes=usage.left_bytes(),
        aside_bytes=usage.aside_bytes,
        disk_free_bytes=disk.free_bytes(pool.root),
        datasets=tuple(_dataset(known, usage.objects) for known in pool.roster.known()),
    )


def _dataset(known: Known, objects: Mapping[str, Lying]) -> DatasetStatus:
    here = [entry.bytes for digest, entry in known.objects.items() if digest in objects]
    return DatasetStatus(
        name=known.name,
        digest=known.digest,
        objects=len(here),
        of_objects=len(known.objects),
        bytes=sum(here),
        of_bytes=sum(entry.bytes for entry in known.objects.values()),
        pinned=known.pinned,
        places=known.places,
    )
