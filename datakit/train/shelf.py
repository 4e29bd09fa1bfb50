"""shelf: the checkpoints of a run on the local disk: which there are, which verify, which may go.

Promises: a checkpoint to go on from counts when its manifest and every byte verify, never by its name alone; pruning
keeps the newest `keep` of those that verify (by their sizes where it is asked to be quick, by every byte otherwise), so
never removes the last one, and removes nothing that a colder tier still needs or that another trainer made under such a
name; what is damaged or replaced is set aside under a name of its own and never deleted. Does not load torch, so that
listing needs no trainer.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError, InputError, IntegrityError, NotFound, Refused, UsageError
from datakit.storage import disk
from datakit.storage.commit import manifest_at, read_manifest, verify_commit
from datakit.storage.copies import Shelf, State, lost, read_copies, verified_below
from datakit.storage.newest import Newest, named, newest
from datakit.version.lineage import LINEAGE_NAME, read_lineage, read_run

CHECKPOINTS_NAME = "checkpoints"
ADAPTER_DIR = "adapter"
QUEUE_NAME = "write-back"
LOCK_NAME = ".lock"
CHECKPOINT_GLOB = "step-" + "[0-9]" * 8

ADAPTER_NAME = "adapter_model.safetensors"
CONFIG_NAME = "adapter_config.json"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"

OF_ADAPTER = (ADAPTER_NAME, CONFIG_NAME, LINEAGE_NAME)
"""What of a checkpoint is the adapter."""

_MEMBERS = {*OF_ADAPTER, OPTIMIZER_NAME, STATE_NAME}

UNFINISHED = "unfinished-"
_DAMAGED = "damaged-"

_NAMES = re.compile(rf"({_DAMAGED}|{UNFINISHED})?step-\d{{8}}(-\d+)?")
"""Of checkpoints, and of those that are set aside."""


def step_name(step: int) -> str:
    """Name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def copy_name(path: Path) -> str:
    """The name of a commit's copy in a colder tier: a checkpoint's own; an adapter's tells its step and its bytes.

    A commit is never overwritten in place, and a run that is trained on makes another adapter.

    Raises:
        NotFound: There is no commit.
        DatakitError: Its manifest cannot be read.
    """
    if path.name != ADAPTER_DIR:
        return path.name
    manifest = read_manifest(path)
    return f"{ADAPTER_DIR}-{manifest.about.get('step', 0):08d}-{manifest.digest[:8]}"


@dataclass(frozen=True, slots=True)
class Held:
    """One commit of a run, as it lies on the local disk.

    Attributes:
        name: `step-<8 digits>` or `adapter`.
        step: Optimizer steps it stands for.
        bytes: Of all members.
        problem: Why it is not valid, or None.
        remote: How far write-back is with it: `staged`, `uploading`, `verified`, `failed`; None without write-back.
        digest: Of its manifest, or None where that cannot be read.
    """

    name: str
    step: int | None
    bytes: int
    problem: str | None
    remote: str | None
    digest: str | None


def checkpoints(directory: Path) -> list[Path]:
    """The directories named like checkpoints, oldest first; whether one is valid, its manifest says.

    Raises:
        NotAllowed: The directory may not be read.
    """
    return [path for path in named(directory, CHECKPOINT_GLOB) if path.is_dir()]


def is_ours(path: Path) -> bool:
    """Whether a directory is a commit, or holds members of a checkpoint alone, as a killed prune or copy leaves it.

    Other trainers call directories `step-00000100` too, and stock peft gives its files two of these names; what a link
    leads to is somebody else's.

    Raises:
        NotAllowed: It may not be read.
    """
    if path.is_symlink():
        return False
    try:
        if manifest_at(path) is not None:
            return True
    except (IntegrityError, UsageError):  # a torn one, or a newer datakit's
        return True
    except InputError:
        return False
    with disk.at_door(path):
        names = {name for name in os.listdir(path) if not disk.TEMPORARY.fullmatch(name)} if path.is_dir() else {""}
    return names <= _MEMBERS and not (names and names <= {ADAPTER_NAME, CONFIG_NAME})


def queues_below(place: Path) -> list[Path]:
    """Queue directories of a run, or of the runs that lie in a directory or in its `runs`.

    Raises:
        NotFound: There is none.
    """
    patterns = (QUEUE_NAME, f"*/{QUEUE_NAME}", f"runs/*/{QUEUE_NAME}")
    found = {path for pattern in patterns for path in place.glob(pattern) if path.is_dir()}
    if not found:
        hint = "Name the --output of a training with --write-back: datakit sync --flush RUN"
        raise NotFound(f"{place} holds no run that is written back", hint=hint, subject=str(place))
    return sorted(found)


def strangers(run: Path) -> list[str]:
    """What lies in the folders of a run, by which no run is known, and is not what a training leaves there.

    Raises:
        NotAllowed: One may not be read.
    """
    found = [
        f"{CHECKPOINTS_NAME}/{path.name}"
        for path in named(run / CHECKPOINTS_NAME, "[!.]*")
        if not is_ours(path) or not (_NAMES.fullmatch(path.name) or (path / MANIFEST_NAME).is_file())
    ]
    adapter = run / ADAPTER_DIR
    if inside := named(adapter, "[!.]*"):  # stock peft gives its files the same names: the manifest alone tells
        found += [] if (adapter / MANIFEST_NAME).is_file() and is_ours(adapter) else [f"{ADAPTER_DIR}/{inside[0].name}"]
    return found


def look(run: Path, *, quick: bool = True) -> list[Held]:
    """Every checkpoint of a run, oldest first, and its adapter.

    Args:
        run: The run directory.
        quick: Compare sizes only; otherwise every byte is read.

    Raises:
        NotFound: There is no such directory, or it is no run.
        InputError: It is a file.
        NotAllowed: It may not be read.
    """
    hint = "Name the --output of a training"
    with disk.at_door(run):
        if not run.is_dir():
            kind = InputError if run.exists() else NotFound
            raise kind(f"no run at {run}", hint=hint, subject=str(run))
        paths = checkpoints(run / CHECKPOINTS_NAME)
        if (run / ADAPTER_DIR).is_dir():
            paths.append(run / ADAPTER_DIR)
        if not paths and not (run / CHECKPOINTS_NAME).is_dir() and not (run / "run.json").is_file():
            raise NotFound(f"{run} is not the directory of a run", hint=hint, subject=str(run))
    states: dict[str, State] = {copy.file.stem: copy.state for copy in read_copies(run / QUEUE_NAME)}
    return [_look_at(path, states, quick=quick) for path in paths]


def _look_at(path: Path, states: Mapping[str, State], *, quick: bool) -> Held:
    try:
        manifest = read_manifest(path)
        remote = states.get(copy_name(path))
    except DatakitError as error:
        return Held(path.name, None, 0, error.message, states.get(path.name), None)
    step = manifest.about.get("step")
    problem = None
    try:
        verify_checkpoint(path, quick=quick)
    except DatakitError as error:
        problem = error.message
    known = step if isinstance(step, int) else None
    return Held(path.name, known, manifest.total_bytes, problem, remote, manifest.digest)


def newest_checkpoint(directory: Path) -> Newest:
    """The newest checkpoint that verifies under its own name, and newer ones that do not, each with the reason."""
    return newest(directory, pattern=CHECKPOINT_GLOB, kind="checkpoint")


def verify_checkpoint(path: Path, *, quick: bool = False) -> None:
    """Check a checkpoint, or the adapter of a run, as `verify_commit` does, and that it stands under its own name.

    Raises:
        IntegrityError: A member is damaged.
        InputError: It is the checkpoint of another step, renamed.
        NotFound: It has no manifest.
    """
    verify_commit(path, quick=quick).check_name(path.name)


def check_of_run(run: Path, checkpoint: Path, *, accept: Collection[str] = ()) -> None:
    """See that a checkpoint was made by the run that lies at `run`; a directory that holds no run yet takes any.

    Args:
        run: The run directory.
        checkpoint: The checkpoint's directory.
        accept: `data` or `model`, where the run goes on with another.

    Raises:
        Refused: Another run made it, or it is of other data or another base model.
    """
    here = read_run(run)
    if not here or not (checkpoint / LINEAGE_NAME).is_file():
        return
    made, identity = read_lineage(checkpoint), here.get("identity", {})
    facts = [
        ("run", "", made["run"], run.resolve().name if made["run"] == run.resolve().name else here.get("name")),
        ("data", "data", made["data"]["layout_digest"], identity.get("data", {}).get("layout_digest")),
        ("base model", "model", made["base_model"]["digest"], identity.get("base_model", {}).get("digest")),
    ]
    for what, word, theirs, ours in facts:
        if ours is not None and theirs != ours and word not in accept:
            raise Refused(
                f"the checkpoint is of another run: its {what} is {theirs:.20}, that of {run} is {ours:.20}",
                hint="Name a directory of its own for it, as RUN",
                subject=str(run),
            )


def set_aside(path: Path, *, prefix: str = _DAMAGED) -> Path:
    """Rename a commit so that nobody takes it for what it was; a number follows the new name where that is taken."""
    name = prefix + path.name
    aside = next(
        free
        for free in (path.with_name(name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
        if not free.exists()
    )
    with disk.at_door(path):
        path.rename(aside)
    return aside


def prunable(
    directory: Path, *, keep: int, may_go: Callable[[str], bool] = lambda _name: True, quick: bool = False
) -> list[Path]:
    """Checkpoints that may be removed: older than the newest `keep` valid ones, ours, and allowed by `may_go`.

    Args:
        directory: Where checkpoints lie.
        keep: Valid ones that stay, at least 1.
        may_go: Whether the one of this name may be removed, as far as colder tiers are concerned.
        quick: Compare sizes only. For who has just committed the newest one: its bytes are known, and reading them
            again at every save would keep training waiting.
    """
    found = checkpoints(directory)
    left, oldest_kept = max(1, keep), None
    for path in reversed(found):
        if left == 0:
            break
        try:
            verify_checkpoint(path, quick=quick)
        except DatakitError:
            continue
        left, oldest_kept = left - 1, path
    if left or oldest_kept is None:
        return []
    return [path for path in found if path < oldest_kept and may_go(path.name) and is_ours(path)]


def prune(
    directory: Path, *, keep: int, may_go: Callable[[str], bool] = lambda _name: True, quick: bool = False
) -> list[Path]:
    """Remove what `prunable` names, and say what it was; arguments are the same."""
    gone = prunable(directory, keep=keep, may_go=may_go, quick=quick)
    for path in gone:
        with disk.at_door(path):
            # without its manifest it is no commit any more, at whatever moment this is killed
            (path / MANIFEST_NAME).unlink(missing_ok=True)
            disk.remove(path)
    return gone


def has_copy(run: Path, *, lost: Collection[str] = ()) -> Callable[[str], bool]:
    """Tells whether write-back needs a local checkpoint no more: it or, if it failed, a newer one there is verified.

    Args:
        run: The run directory, of a run that is written back; its states are read now, once.
        lost: Those that are to go up again, whatever their states say: they stay until then.
    """
    copies = {
        copy.file.stem: copy for copy in read_copies(run / QUEUE_NAME) if fnmatch(copy.file.stem, CHECKPOINT_GLOB)
    }
    whole = {name: copy.place for name, copy in copies.items() if copy.state == "verified" and name not in lost}

    def tell(name: str) -> bool:
        if name in lost or name in whole:
            return name in whole
        copy = copies.get(name)
        if copy is not None and copy.state != "failed":
            return False
        # of another place no machine resumes that looks at this one
        return any(name < newer and (copy is None or copy.place == place) for newer, place in whole.items())

    return tell


def droppable(run: Path, *, lost: Collection[str] = ()) -> Callable[[str], bool]:
    """As `has_copy`, of any run: where nothing is written back, nothing has to stay for it."""
    return has_copy(run, lost=lost) if is_written_back(run) else lambda _name: True


def is_written_back(run: Path) -> bool:
    """Whether commits of a run are or were copied elsewhere: by its last attempt, or by one that left a state."""
    return bool(read_run(run).get("write_back") or read_copies(run / QUEUE_NAME))


def lost_copies(run: Path, shelf_of: Callable[[str], Shelf]) -> set[str]:
    """Names of checkpoints whose copy was verified and is not where it was any more.

    Args:
        run: The run directory.
        shelf_of: Lists a place; asked once for each place that copies went to.
    """
    places = {copy.place for copy in read_copies(run / QUEUE_NAME) if copy.state == "verified"}
    gone = (copy for place in sorted(places) for copy in lost(verified_below(run / QUEUE_NAME, place), shelf_of(place)))
    return {copy.file.stem for copy in gone}
