"""copies: how far the copy of each commit in a colder tier is: staged, uploading, verified or failed.

One JSON file a commit, in the queue directory of a run, so that nothing is lost with the trainer, its agent or the
machine's patience; where the commit lies stands there relative to the run, which may be moved between attempts.
`verified` tells of the moment when the copy was made; whether the store holds it still, only the store knows. `lost`
compares the two, and what is lost is staged again or forgotten. Does not talk to a store.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError
from datakit.storage import disk
from datakit.storage.commit import read_manifest

STATE_FORMAT = 2
"""Of the state files; 1 had absolute paths and is still read."""

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
    def is_here(self) -> bool:
        """Whether the very commit still lies here."""
        try:
            return read_manifest(self.path).digest == self.manifest_digest
        except DatakitError:
            return False

    @property
    def is_replaced(self) -> bool:
        """Whether another commit stands where the one of this state did."""
        try:
            return self.manifest_digest is not None and read_manifest(self.path).digest != self.manifest_digest
        except DatakitError:
            return False  # what is wrong with it, the agent says

    def is_there(self, shelf: Shelf) -> bool:
        """Whether a listing of its place holds the copy: its manifest and, where they are known, all its members."""
        files = shelf.get(self.name, {})
        if MANIFEST_NAME not in files:
            return False
        return not self.is_here or all(files.get(each.name) == each.bytes for each in read_manifest(self.path).members)


def read_copy(file: Path) -> Copy | None:
    """What one file says; None where it is not there, is torn, or is not ours."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    texts = ("state", "path", "dest")
    maybe = ("manifest_digest", "message", "error")
    if not isinstance(said, dict) or not all(isinstance(said.get(name), str) for name in texts):
        return None
    if not all(isinstance(said.get(name), str | None) for name in maybe):
        return None
    if said.get("format") not in (1, STATE_FORMAT):
        return None
    digest, message, error = (said.get(name) for name in maybe)
    path, repair = _path_here(file, said["path"]), said.get("repair") is True
    return Copy(file, said["state"], path, said["dest"], digest, message, error, repair)


def _run_of(file: Path) -> Path:
    """What the paths of a state file start from: the directory that the queue directory lies in."""
    return file.absolute().parent.parent


def _path_here(file: Path, said: str) -> Path:
    """Where a commit lies today; an absolute path of format 1 may be that of a run that was moved since."""
    run, path = _run_of(file), Path(said)
    if path.is_absolute():
        inside = (run.joinpath(*path.parts[-count:]) for count in (2, 1))
        return next((place for place in inside if place.is_dir()), path)
    return run / path


def read_copies(queue_dir: Path) -> list[Copy]:
    """What all files of a queue directory say, in the order of their names."""
    found = (read_copy(file) for file in sorted(Path(queue_dir).glob("*.json")))
    return [copy for copy in found if copy is not None]


def write_state(file: Path, *, path: str, dest: str, state: str, **more: object) -> None:
    """Keep the state of one commit: `staged`, `uploading`, `verified` or `failed`."""
    place, run = Path(path).absolute(), _run_of(file)
    kept = str(place.relative_to(run)) if place.is_relative_to(run) else str(place)
    value = {"format": STATE_FORMAT, "state": state, "path": kept, "dest": dest, **more}
    disk.write_atomic(file, json.dumps(value, indent=2).encode() + b"\n")


def drop_state(file: Path) -> None:
    """Forget what was said: no word is better than a wrong one, and this needs no room on the disk."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def mark_damaged(file: Path, *, path: Path, dest: str, message: str) -> None:
    """Say of a copy that it was found damaged, whatever was said of it before: nobody believes it from now on.

    Args:
        file: Where its state stands.
        path: Where the commit is here, or will be once it is made again.
        dest: The copy.
        message: What is wrong with it.

    Raises:
        DatakitError: That cannot be kept; then nothing is said of it any more.
    """
    try:
        write_state(file, path=str(path), dest=dest, state="failed", message=message, repair=True)
    except DatakitError:
        drop_state(file)
        raise


def verified_at(queue_dir: Path, place: str) -> list[Copy]:
    """The copies directly below a place that were verified; ask before the place is listed, not after."""
    return [copy for copy in read_copies(queue_dir) if copy.state == "verified" and copy.place == place.rstrip("/")]


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
