"""doctor: what about this machine would go wrong later, and the command that mends it.

First it looks (`look`: a value with what the machine says of itself), then it judges (`judge`: pure, from that value),
and it knocks at the stores it is given (`knock`: one small request each). A finding is `ok`, `warn` (will be slow or
may fail) or `fail` (will fail). It changes nothing and installs nothing.

Sources: cgroup v2, "CPU Interface Files" and "Memory Interface Files" of the Linux kernel's documentation; the limits
below carry theirs.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.errors import DatakitError, NotFound
from datakit.machine import cores, memory_bytes
from datakit.storage.access import StoreOptions
from datakit.units import format_bytes, format_count

Status: TypeAlias = Literal["ok", "warn", "fail"]

SCARCE_DISK_BYTES = 10 * 2**30  # a base model of 7B in bf16 is 14 GB; below ten nothing but a demo fits
FULL_DISK_BYTES = 2**30  # a checkpoint and the temporaries of one shard no longer fit
SCARCE_FILES = 10_000  # inodes; shared file systems of GPU platforms allow about 200,000 in all
SMALL_SHM_BYTES = 2**30  # DataLoader workers pass batches through it; container engines give 64 MiB
SMALL_MEMORY_BYTES = 4 * 2**30  # what `make demo` needs at most
FEW_OPEN_FILES = 4096  # 1,024 is the usual default, and a DataLoader with a few workers passes it
PROBE = ".datakit-doctor"  # an object that nobody has: asking for it shows whether the bucket is there and lets us in


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: What was looked at: `disk`, `extra s3`, `store r2`.
        status: `ok`, `warn` or `fail`.
        what: What was found.
        fix: A command, or words, that mend it; None where there is nothing to mend.
    """

    name: str
    status: Status
    what: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library that datakit asks for, and the version that is here.

    Attributes:
        library: Its name in the package index.
        extra: The extra that asks for it; None for the core.
        minimum: The lowest version that is asked for, such as `0.12`.
        version: The installed version, or None.
    """

    library: str
    extra: str | None
    minimum: str
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine says of itself.

    Attributes:
        python: Version of the interpreter, such as `3.11.7`.
        num_cpus: CPUs that the process may be scheduled on.
        cores: Of these, as many as the control group allows the time of.
        memory_bytes: Memory that the process may use, its control group's limit included.
        shm_bytes: Size of `/dev/shm`, or None where there is none.
        directory: Where files would be written.
        disk_free_bytes: Free there for this user.
        disk_free_files: Inodes free there; None where the file system does not count them.
        open_files: Files that the process may have open.
        requirements: Libraries that datakit asks for; empty when it runs without being installed.
    """

    python: str
    num_cpus: int
    cores: int
    memory_bytes: int
    shm_bytes: int | None
    directory: Path
    disk_free_bytes: int
    disk_free_files: int | None
    open_files: int
    requirements: tuple[Requirement, ...]


def look(directory: Path, *, root: Path = Path("/")) -> Machine:
    """Read what the machine says.

    Args:
        directory: Where files would be written.
        root: Where `/proc`, `/sys` and `/dev` are.

    Raises:
        NotFound: The directory is not there.
    """
    if not directory.is_dir():
        raise NotFound(
            f"there is no directory {directory}", hint=f"mkdir -p {shlex.quote(str(directory))}", subject=str(directory)
        )
    room = os.statvfs(directory)
    shm = root / "dev/shm"
    return Machine(
        python=sys.version.split()[0],
        num_cpus=len(os.sched_getaffinity(0)),
        cores=cores(root=root),
        memory_bytes=memory_bytes(root=root),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        directory=directory.resolve(),
        disk_free_bytes=room.f_bavail * room.f_frsize,
        disk_free_files=room.f_favail if room.f_files else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        requirements=tuple(_requirements()),
    )


def judge(machine: Machine) -> tuple[Finding, ...]:
    """What a machine's words mean for the work to come."""
    return (
        Finding("python", "ok", machine.python),
        *_judge_libraries(machine.requirements),
        _judge_cpu(machine),
        _judge(
            "memory",
            format_bytes(machine.memory_bytes),
            warn=machine.memory_bytes < SMALL_MEMORY_BYTES,
            fix="Keep train.batch_size and tokenize.seq_len small, or take a machine with more memory",
        ),
        _judge_shm(machine.shm_bytes),
        *_judge_disk(machine),
        _judge(
            "open files",
            f"{format_count(machine.open_files)} at most",
            warn=machine.open_files < FEW_OPEN_FILES,
            fix="ulimit -n 65535",
        ),
    )


def knock(places: Iterable[str], *, stores: Mapping[str, StoreOptions]) -> tuple[Finding, ...]:
    """Ask each store for an object that nobody has, and tell what it says.

    Args:
        places: Paths and URLs, besides the named stores, which are all asked.
        stores: Named stores of the settings.
    """
    named = [_knock(f"store {name}", f"{name}://", stores) for name in stores]
    return (*named, *(_knock(f"place {text}", text, stores) for text in places))


def _knock(name: str, place: str, stores: Mapping[str, StoreOptions]) -> Finding:
    from datakit.storage.store import open_location  # the door of obstore, which doctor without stores does not need

    try:
        location = open_location(place, stores=stores)
        if location.path is not None and not location.path.exists():
            return Finding(name, "fail", f"{location.url} is not there", f"mkdir -p {shlex.quote(location.url)}")
        location.store.fetch(location.key(PROBE))
    except NotFound as error:
        if PROBE not in error.message:
            return Finding(name, "fail", error.message, error.hint)
    except DatakitError as error:
        return Finding(name, "fail", error.message, error.hint)
    return Finding(name, "ok", f"{location.url} answers and lets us read")


def _judge(name: str, what: str, *, warn: bool, fix: str) -> Finding:
    return Finding(name, "warn", what, fix) if warn else Finding(name, "ok", what)


def _judge_cpu(machine: Machine) -> Finding:
    if machine.cores == machine.num_cpus:
        return Finding("cpu", "ok", f"{machine.num_cpus} usable")
    what = f"{machine.num_cpus} shown, but the control group allows the time of {machine.cores} at most"
    return Finding("cpu", "warn", what, f"export OMP_NUM_THREADS={machine.cores}")


def _judge_shm(shm_bytes: int | None) -> Finding:
    fix = "docker run --shm-size=16g ..., or read in the trainer: export DATAKIT_TRAIN__NUM_WORKERS=0"
    if shm_bytes is None:
        return Finding("shared memory", "warn", "there is no /dev/shm", fix)
    return _judge("shared memory", f"{format_bytes(shm_bytes)} in /dev/shm", warn=shm_bytes < SMALL_SHM_BYTES, fix=fix)


def _judge_disk(machine: Machine) -> Iterable[Finding]:
    free = machine.disk_free_bytes
    what = f"{format_bytes(free)} free at {machine.directory}"
    if free < FULL_DISK_BYTES:
        yield Finding(
            "disk", "fail", what, f"du -xh --max-depth=2 {shlex.quote(str(machine.directory))} | sort -h | tail"
        )
    else:
        yield _judge(
            "disk", what, warn=free < SCARCE_DISK_BYTES, fix="Work on a larger disk: datakit doctor --directory DIR"
        )
    files = machine.disk_free_files
    if files is not None and files < SCARCE_FILES:
        what = f"{format_count(files)} inodes free at {machine.directory}"
        yield Finding("files", "warn", what, "Pack small files into shards: datakit pack SRC DEST")


def _judge_libraries(requirements: Sequence[Requirement]) -> Iterable[Finding]:
    if not requirements:
        yield Finding("datakit", "warn", "runs from its source and is not installed", "pip install --editable .")
    for extra in dict.fromkeys(requirement.extra for requirement in requirements):
        asked = [requirement for requirement in requirements if requirement.extra == extra]
        name = "core" if extra is None else f"extra {extra}"
        install = "pip install " + ("datakit" if extra is None else f"'datakit[{extra}]'")
        here = ", ".join(f"{each.library} {each.version}" for each in asked if each.version)
        lacking = [
            each for each in asked if each.version is None or _number_of(each.version) < _number_of(each.minimum)
        ]
        if not lacking:
            yield Finding(name, "ok", here)
        elif not here and extra is not None:
            yield Finding(name, "ok", "not installed", install)
        else:
            what = ", ".join(
                f"{each.library} {each.version or 'is missing'} (needs {each.minimum})" for each in lacking
            )
            yield Finding(name, "fail" if extra is None else "warn", what, install)


def _requirements() -> Iterable[Requirement]:
    """What the installed package's own description asks for, in its order; the `dev` extra left out."""
    try:
        lines = metadata.requires("datakit") or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[\w,-]*\])?\s*>=([\w.]+)(?:;.*extra == ['\"]([\w-]+)['\"])?", line)
        if match and match[3] != "dev":
            try:
                version = metadata.version(match[1])
            except metadata.PackageNotFoundError:
                version = None
            yield Requirement(match[1], match[3], match[2], version)


def _number_of(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13, 0); enough to compare with a lower bound."""
    return tuple(int(digits) for digits in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0]))
