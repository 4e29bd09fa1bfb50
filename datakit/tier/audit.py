"""audit: is what a pool holds what its datasets' manifests say.

Quick, by sizes; otherwise every byte, by the crc32c of each 16 MiB, which also names the byte of a single flipped
bit. An object of no known dataset has only its name to be measured by, its sha256. What is damaged is set aside, so
that nobody reads it and whoever needs it fetches it again; where it is not to be touched, it is only named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datakit.data.digest import PART_BYTES, FileEntry, crc32c
from datakit.data.flips import flipped_bit
from datakit.errors import IntegrityError
from datakit.events import Caution, OnEvent, Progress, ignore
from datakit.storage import disk
from datakit.storage.regular import open_regular
from datakit.tier.pool import Copied, Pool
from datakit.tier.roster import Known, objects_of
from datakit.units import agree, format_number_of


@dataclass(frozen=True, slots=True)
class Damage:
    """One object that is not what it should be.

    Attributes:
        digest: Its name, the sha256 of what it should be.
        file: What a dataset calls it; its own name where none does.
        problem: What is wrong.
        aside: Where it lies now; None where it was not moved.
    """

    digest: str
    file: str
    problem: str
    aside: str | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        tier: The tier's name.
        place: Its directory.
        quick: Whether only sizes were looked at.
        objects: Objects that were looked at.
        bytes: Bytes that were read.
        absent: Objects of the datasets asked for that are not here, which is no damage.
        damage: What is damaged.
    """

    tier: str
    place: str
    quick: bool
    objects: int
    bytes: int
    absent: int
    damage: tuple[Damage, ...]

    def raise_damage(self) -> None:
        """End by an error where something is damaged.

        Raises:
            IntegrityError: Names the first.
        """
        if not self.damage:
            return
        first, are = self.damage[0], agree(len(self.damage), "is", "are")
        hint = "Fetch it again: datakit tier fetch DATASET"
        message = f"{format_number_of(len(self.damage), 'object')} of {self.place} {are} damaged: {first.file}"
        raise IntegrityError(f"{message}: {first.problem}", hint=hint, subject=first.digest)


def audit(
    pool: Pool,
    *,
    dataset: Known | None = None,
    quick: bool = False,
    copied: Copied | None = None,
    on_event: OnEvent = ignore,
) -> Audit:
    """Look at the objects of one dataset, or at all.

    Args:
        pool: The pool.
        dataset: The dataset; None for all that lies there.
        quick: Look at sizes only.
        copied: What a colder tier holds, for what may go of older damaged files; None moves nothing.
        on_event: Told about progress, and of each object that is set aside.
    """
    usage = pool.usage()
    entries = objects_of(pool.roster.known() if dataset is None else [dataset])
    names = [*entries, *(usage.objects.keys() - entries.keys() if dataset is None else ())]
    here = [digest for digest in names if digest in usage.objects]
    total_bytes = 0 if quick else sum(usage.objects[digest].bytes for digest in here)
    done_bytes, found = 0, []
    for digest in here:
        entry = entries.get(digest)
        path = pool.path(digest)
        with disk.at_door(path):
            try:
                problem = _wrong_size(path, entry) or (None if quick else _wrong_bytes(path, digest, entry))
            except FileNotFoundError:
                continue  # dropped meanwhile
        done_bytes += 0 if quick else usage.objects[digest].bytes
        on_event(Progress("verify", done_bytes, total_bytes, "B"))
        if problem is not None:
            found.append(_reported(pool, digest, entry, problem, touch=copied is not None, on_event=on_event))
    if found and copied is not None:
        pool.tidy_aside(copied=copied)
    return Audit(pool.name, str(pool.root), quick, len(here), done_bytes, len(names) - len(here), tuple(found))


def _reported(
    pool: Pool, digest: str, entry: FileEntry | None, problem: str, *, touch: bool, on_event: OnEvent
) -> Damage:
    aside = pool.set_aside(digest) if touch else None
    damage = Damage(digest, digest if entry is None else entry.name, problem, None if aside is None else str(aside))
    if aside is not None:
        on_event(Caution(f"{damage.file} is damaged and set aside as {aside}", hint="It is fetched when it is needed"))
    return damage


def _wrong_size(path: Path, entry: FileEntry | None) -> str | None:
    size_bytes = path.stat().st_size
    if entry is None or size_bytes == entry.bytes:
        return None
    return f"has {size_bytes} bytes, the manifest says {entry.bytes}"


def _wrong_bytes(path: Path, digest: str, entry: FileEntry | None) -> str | None:
    if entry is None:
        found = disk.hash_file(path).sha256
        return None if found == digest else f"has sha256 {found}, and no dataset that is known here names it"
    for number, piece in enumerate(_parts(path)):
        found_crc, start = crc32c(piece), number * PART_BYTES
        if f"{found_crc:08x}" != entry.crc32c[number]:
            what = f"bytes {start} to {start + len(piece)} have crc32c {found_crc:08x}"
            flip = flipped_bit(len(piece), found=found_crc, expected=int(entry.crc32c[number], 16))
            said = "" if flip is None else f": one bit of byte {start + flip[0]} is flipped"
            return f"{what}, the manifest says {entry.crc32c[number]}{said}"
    return None


def _parts(path: Path) -> Iterator[memoryview]:
    with open_regular(path) as file:
        buffer = memoryview(bytearray(min(PART_BYTES, max(os.fstat(file.fileno()).st_size, 1))))
        while True:
            count = 0
            while count < len(buffer) and (got := file.readinto(buffer[count:])):
                count += got
            if not count:
                return
            yield buffer[:count]
