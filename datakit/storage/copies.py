"""copies: how far the copy of each commit in a colder tier is: staged, uploading, verified or failed.

One JSON file a commit, in the queue directory of a run, so that nothing is lost with the trainer, its agent or the
machine's patience; where the commit lies stands there relative to the run, which may be moved between attempts.
`verified` tells of the moment when the copy was made; whether the store holds it still, only the store knows. `lost`
compares the two, and what is lost is staged again or forgotten. Damage is remembered until the copy is seen whole or
gone. Does not talk to a store.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from datakit import errors
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import DatakitError, MissingExtra
from datakit.storage import disk
from datakit.storage.commit import read_manifest

STATE_FORMAT = 2
"""Of the state files."""

State: TypeAlias = Literal["staged", "uploading", "verified", "failed"]

Shelf: TypeAlias = Mapping[str, Mapping[str, int]]
"""What a listing says of a place: for each folder directly below it, the size of each file by its name in there."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What is known of one commit's copy.

    Attributes:
        file: Where this stands.
        state: How far it is.
        path: The commit's directory here.
        dest: URL or path of the copy.
        manifest_digest: The commit's, or None where it is not known.
        message: What its last try ended with, or None.
        error: The class of that, or None.
        repair: Whether the copy was found damaged or gone, so that what stands there is not to be believed.
    """

    file: Path
    state: State
    path: Path
    dest: str
    manifest_digest: str | None
    message: str | None
    error: str | None
    repair: bool = False

    @property
    def place(self) -> str:
        """What the copy lies directly below."""
        return self.dest.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The copy's name there."""
        return self.dest.rpartition("/")[2]

    @property
    def made_ns(self) -> int:
        """When the commit was made; if it is not here any more, when this was last said of it; else 0."""
        for path in (self.path / MANIFEST_NAME, self.file):
            with contextlib.suppress(OSError):
                return os.stat(path).st_mtime_ns
        return 0

    @property
    def is_here(self) -> bool:
        """Whether the very commit still lies here."""
        manifest = self._manifest()
        return manifest is not None and manifest.digest == self.manifest_digest

    @property
    def is_replaced(self) -> bool:
        """Whether another commit stands where the one of this state did."""
        manifest = self._manifest()
        return manifest is not None and self.manifest_digest not in (None, manifest.digest)

    def is_below(self, place: str) -> bool:
        """Whether it lies directly below a place, through whatever links that is named."""
        return _real(self.place) == _real(place)

    def is_there(self, shelf: Shelf) -> bool:
        """Whether a listing of its place holds the copy: its manifest and all its members, each whole by its size.

        Of a commit that is not here any more only the manifest's name is known.
        """
        files = shelf.get(self.name, {})
        if MANIFEST_NAME not in files:
            return False
        manifest = self._manifest()
        if manifest is None or manifest.digest != self.manifest_digest:
            return True
        sizes = {MANIFEST_NAME: len(manifest.to_bytes())} | {each.name: each.bytes for each in manifest.members}
        return all(files.get(name) == size for name, size in sizes.items())

    def _manifest(self) -> Manifest | None:
        """What stands where the commit does; what is wrong with it, the agent says."""
        try:
            return read_manifest(self.path)
        except DatakitError:
            return None


def _real(place: str) -> str:
    return place.rstrip("/") if "://" in place else os.path.realpath(place)


def told(error: DatakitError) -> dict[str, Any]:
    """What is said of an error, in a state and by the agent, from which `error_of` makes it again."""
    kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == DatakitError.__module__)
    extra = {"library": error.library, "extra": error.extra} if isinstance(error, MissingExtra) else {}
    return {"error": kind, "message": error.message, "hint": error.hint, **extra}


def error_of(said: Mapping[str, Any], *, subject: object = None) -> DatakitError:
    """The error that `told` told of, with its own class; its public one, where it has a private one."""
    if said["error"] == MissingExtra.__name__:
        return MissingExtra(said["library"], extra=said["extra"])
    kind: type[DatakitError] = getattr(errors, said["error"])
    return kind(said["message"], hint=said["hint"], subject=subject)


def read_copy(file: Path) -> Copy | None:
    """What one file says; None where it is not there, is torn, or is not ours."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    maybe = ("manifest_digest", "message", "error")
    if not isinstance(said, dict) or said.get("format") != STATE_FORMAT or said.get("state") not in get_args(State):
        return None
    if not all(isinstance(said.get(name), str) for name in ("path", "dest")):
        return None
    if not all(isinstance(said.get(name), str | None) for name in maybe):
        return None
    digest, message, error = (said.get(name) for name in maybe)
    path, repair = _run_of(file) / said["path"], said.get("repair") is True
    return Copy(file, said["state"], path, said["dest"], digest, message, error, repair)


def _run_of(file: Path) -> Path:
    """What the paths of a state file start from: the directory that the queue directory lies in."""
    return file.absolute().parent.parent


def read_copies(queue_dir: Path) -> list[Copy]:
    """What all files of a queue directory say, in the order of their names."""
    found = (read_copy(file) for file in sorted(Path(queue_dir).glob("*.json")))
    return [copy for copy in found if copy is not None]


def write_state(file: Path, *, path: str, dest: str, state: State, **more: object) -> None:
    """Keep the state of one commit.

    Raises:
        DatakitError: It cannot be kept; what stood there stands there still.
    """
    place, run = Path(path).absolute(), _run_of(file)
    kept = str(place.relative_to(run)) if place.is_relative_to(run) else str(place)
    value = {"format": STATE_FORMAT, "state": state, "path": kept, "dest": dest, **more}
    disk.write_atomic(file, json.dumps(value, indent=2).encode() + b"\n")


def drop_state(file: Path) -> None:
    """Forget what was said: no word is better than a wrong one, and this needs no room on the disk."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def note_damage(
    queue_dir: Path, place: str, damaged: Mapping[str, DatakitError], *, directory: Path | None = None
) -> None:
    """Say of copies that they were found damaged, whatever was said of them before: nobody believes them from now on.

    Args:
        queue_dir: Where the states stand.
        place: What the copies lie directly below; what was copied elsewhere is not touched.
        damaged: Their names, each with what is wrong.
        directory: Where the commits will be once they are made again, to say it also of copies that have no state
            yet; None to leave those out.

    Raises:
        DatakitError: That cannot be kept of each; of those where it cannot, nothing is said any more.
    """
    trouble = None
    for name, error in damaged.items():
        file = queue_dir / f"{name}.json"
        copy = read_copy(file)
        if copy is not None and copy.is_below(place):
            path, dest = copy.path, copy.dest
        elif directory is not None:
            path, dest = Path(directory) / name, f"{place}/{name}"
        else:
            continue
        try:
            write_state(file, path=str(path), dest=dest, state="failed", repair=True, **told(error))
        except DatakitError as full:
            drop_state(file)
            trouble = full
    if trouble is not None:
        raise trouble


def forget_damage(queue_dir: Path, place: str, *, unseen: Collection[str]) -> None:
    """Drop what was said of damage of copies that are whole by now, or gone, where no commit is here to replace them.

    Args:
        queue_dir: Where the states stand.
        place: What the copies lie directly below.
        unseen: Names of those that are there, and were not seen whole: what was said of them holds.
    """
    for copy in read_copies(queue_dir):
        if copy.repair and copy.is_below(place) and copy.name not in unseen and not copy.path.is_dir():
            drop_state(copy.file)


def verified_below(queue_dir: Path, place: str) -> list[Copy]:
    """The copies directly below a place that were verified; ask before the place is listed, not after."""
    return [copy for copy in read_copies(queue_dir) if copy.state == "verified" and copy.is_below(place)]


def lost(copies: list[Copy], shelf: Shelf) -> list[Copy]:
    """Those of some verified copies that a later listing of their place does not hold any more."""
    return [copy for copy in copies if not copy.is_there(shelf)]


def take_back(copy: Copy, message: str) -> bool:
    """Say of a lost copy that it is not there: staged again where the commit is here, forgotten where it is not.

    Args:
        copy: The lost one.
        message: What is said of it until it is there again.

    Returns:
        Whether the commit is here, so that it can be offered again.
    """
    if not copy.is_here:
        drop_state(copy.file)
        return False
    about = {"manifest_digest": copy.manifest_digest, "message": message, "repair": True}
    try:
        write_state(copy.file, path=str(copy.path), dest=copy.dest, state="staged", **about)
    except DatakitError:
        drop_state(copy.file)
    return True
