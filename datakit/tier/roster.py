"""roster: which datasets a pool knows, where each was seen whole, and which are pinned.

A dataset stands there under the digest of its manifest, not of its layout, which two can share whose indexes differ:
`datasets/<digest>/manifest.json`, and `origin.json` with the places that hold it. A pin is a file, `pins/<digest>`.
Each is written in one step, so that any process may read at any time, and restarts lose nothing.

What it does not do: look whether a place still holds what it held (that is `origin`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datakit.data.digest import FileEntry
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import InputError, IntegrityError, NotFound, Refused
from datakit.storage import disk
from datakit.storage.commit import read_manifest

ORIGIN_NAME = "origin.json"
ORIGIN_FORMAT = 1
SHORT_DIGITS = 12
"""Hex digits of a digest that are shown."""


@dataclass(frozen=True)
class Known:
    """A dataset, or another commit, of which a pool may hold some or all.

    Attributes:
        digest: Of its manifest, 64 hex digits.
        manifest: What belongs to it.
        places: Paths and URLs where it was seen whole.
        pinned: Whether a person said that what is here of it stays.
    """

    digest: str
    manifest: Manifest
    places: tuple[str, ...]
    pinned: bool

    @property
    def name(self) -> str:
        """As its manifest calls it."""
        return self.manifest.name

    @cached_property
    def objects(self) -> dict[str, FileEntry]:
        """Its files by content: two names with the same bytes are one object."""
        return {entry.sha256: entry for entry in self.manifest.members}

    def answers_to(self, word: str) -> bool:
        """Whether a person may mean it: by its name, a place, or eight digits or more of one of its digests."""
        about = self.manifest.about
        digests = [self.digest, *(str(about.get(f"{kind}_digest", "")) for kind in ("layout", "content"))]
        is_digest = len(word) >= 8 and any(digest.startswith(word) for digest in digests)
        return word == self.name or word.rstrip("/") in self.places or is_digest

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:SHORT_DIGITS]})"


class Roster:
    """The datasets of one pool.

    Args:
        root: The pool's directory.
    """

    def __init__(self, root: Path) -> None:
        self.datasets = root / "datasets"
        self.pins = root / "pins"
        self._manifests: dict[str, Manifest] = {}  # what stands under a digest never changes

    def add(self, manifest: Manifest, *, place: str | None = None) -> Known:
        """Know a dataset, and a place where it was seen whole.

        Args:
            manifest: Its manifest.
            place: Path or URL, or None where no place was seen.
        """
        folder = self.datasets / manifest.digest
        places = list(_places(folder))
        if not (folder / MANIFEST_NAME).exists():
            disk.make_dirs(folder)
            disk.write_atomic(folder / MANIFEST_NAME, manifest.to_bytes())
        if place is not None and place not in places:
            places.append(place)
            value = {"format": ORIGIN_FORMAT, "places": places}
            disk.write_atomic(folder / ORIGIN_NAME, json.dumps(value, indent=2).encode() + b"\n")
        return Known(manifest.digest, manifest, tuple(places), self._is_pinned(manifest.digest))

    def known(self) -> list[Known]:
        """All of them, by name.

        Raises:
            IntegrityError: What stands of one of them is torn.
        """
        found = []
        for folder in sorted(self.datasets.iterdir()) if self.datasets.is_dir() else ():
            try:
                manifest = self._manifests.get(folder.name) or read_manifest(folder)
                self._manifests[folder.name] = manifest
            except NotFound:
                continue  # being made, or being forgotten
            except (InputError, IntegrityError) as error:
                hint = f"Remove {folder}, and fetch the dataset again: datakit tier fetch DATASET"
                raise IntegrityError(error.message, hint=hint, subject=str(folder)) from error
            found.append(Known(folder.name, manifest, _places(folder), self._is_pinned(folder.name)))
        return sorted(found, key=lambda known: (known.name, known.digest))

    def find(self, word: str) -> Known:
        """The one that a person means: a name, a place, or the beginning of a digest.

        Raises:
            NotFound: None is.
            Refused: Several are.
        """
        known = self.known()
        found = [each for each in known if each.answers_to(word)]
        if not found:
            there = ", ".join(map(str, known)) or "none"
            hint = f"Known here: {there}"
            raise NotFound(f"{self.datasets.parent} knows no dataset {word}", hint=hint, subject=word)
        if len(found) > 1:
            hint = f"Name one of them by its digest: {', '.join(each.digest[:SHORT_DIGITS] for each in found)}"
            raise Refused(f"{word} is {len(found)} datasets in {self.datasets.parent}", hint=hint, subject=word)
        return found[0]

    def forget(self, digest: str) -> None:
        """Know a dataset no more; its pin goes too."""
        self.unpin(digest)
        self._manifests.pop(digest, None)
        folder = self.datasets / digest
        with disk.at_door(folder):
            for name in (MANIFEST_NAME, ORIGIN_NAME):  # the manifest first: without it nothing stands there
                (folder / name).unlink(missing_ok=True)
            if folder.is_dir():
                disk.sweep(folder)
                folder.rmdir()

    def pin(self, digest: str) -> None:
        """Have what is here of a dataset, and what comes, stay."""
        disk.make_dirs(self.pins)
        disk.write_atomic(self.pins / digest, b"")

    def unpin(self, digest: str) -> None:
        """Let it go again; one that is not pinned is fine."""
        with disk.at_door(self.pins):
            (self.pins / digest).unlink(missing_ok=True)

    def _is_pinned(self, digest: str) -> bool:
        return (self.pins / digest).exists()


def objects_of(known: Iterable[Known]) -> dict[str, FileEntry]:
    """All objects of some datasets, by content."""
    return {digest: entry for each in known for digest, entry in each.objects.items()}


def _places(folder: Path) -> tuple[str, ...]:
    """What stands of its origin; what cannot be read names no place, so that nothing is dropped on its word."""
    try:
        value: Any = json.loads((folder / ORIGIN_NAME).read_bytes())
    except (OSError, ValueError):
        return ()
    if not isinstance(value, dict) or value.get("format") != ORIGIN_FORMAT or not isinstance(value.get("places"), list):
        return ()
    return tuple(str(place) for place in value["places"])
