"""reports: what a pack left out, as a file beside its destination, and copies of it to be mended.

`<dest>.errors.jsonl` has one object an offender: where it is, its key where it has one, what is wrong; and one for each
record that was left out as the twin of an earlier one. With quarantine,
`<dest>.quarantine/` also holds its bytes, to be mended and packed: lines in a plain file of their source's name, files
as they were. A pack without offenders removes the report of an earlier one, and nothing else of that name; what is in
quarantine is the user's, and is only ever written over by a copy of the same name. Rows of tables, members of tars,
objects in a store and records of which a file cannot be read are named and not copied: they are still there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import orjson

from datakit.errors import InputError, Refused, printable
from datakit.source.originals import reading
from datakit.source.troubles import Raw, Trouble, listing
from datakit.storage import disk

_FIELDS = ("where", "key", "problem")
"""What each line of a report has, by which one is told from a file of the user's own."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a pack left out.

    Attributes:
        count: How many offenders.
        report: Where they are listed, and the twins that `--dedupe drop` left out.
        quarantine: Where bytes of theirs are, if any are.
        offenders: Of a dry run, which writes no report, each as it would be told.
        old_copies: How many files are in quarantine that an earlier pack put there, and this one did not.
    """

    count: int = 0
    report: Path | None = None
    quarantine: Path | None = None
    offenders: tuple[str, ...] = ()
    old_copies: int = 0


def settle(
    troubles: Sequence[Trouble],
    *,
    dest: Path,
    on_error: Literal["stop", "skip", "quarantine"],
    max_errors: int,
    dry_run: bool = False,
) -> LeftOut:
    """Report what was left out, and see that it is not too much.

    Args:
        troubles: The offenders.
        dest: The destination, which the report is named after.
        on_error: `quarantine` copies the bytes of those that have some of their own.
        max_errors: How many may be left out.
        dry_run: Write nothing.

    Raises:
        InputError: There are more than may be left out; the report is written all the same.
        Refused: Something else stands where the report would be.
    """
    report, folder = dest.with_name(f"{dest.name}.errors.jsonl"), dest.with_name(f"{dest.name}.quarantine")
    if not troubles:
        if not dry_run and _is_ours(report):
            with disk.at_door(report):
                report.unlink(missing_ok=True)
        return LeftOut(old_copies=_others(folder, set()))
    _refuse_others(report)
    if not dry_run:
        disk.make_dirs(dest.parent)
        disk.write_atomic(report, b"".join(map(_line, troubles)))
    if len(troubles) > max_errors:
        places = listing(troubles, "offender", limit=max_errors)
        raise InputError(
            f"{places} cannot be packed, which --max-errors {max_errors} does not allow",
            hint="Mend them, or allow more"
            if dry_run
            else f"Those found are listed in {report}: mend them, or allow more",
            subject=len(troubles),
        )
    if dry_run:
        return LeftOut(len(troubles), offenders=tuple(map(str, troubles)))
    raws = [raw for trouble in troubles for raw in trouble.raws] if on_error == "quarantine" else []
    _copy(raws, folder)
    others = _others(folder, {raw.name for raw in raws})
    return LeftOut(len(troubles), report, folder if raws else None, old_copies=others)


def add_twins(left_out: LeftOut, twins: Iterable[tuple[str, str]], *, dest: Path) -> LeftOut:
    """List records that were left out because an earlier one holds their bytes, behind the offenders.

    Args:
        left_out: What `settle` gave.
        twins: The key of each, after that of the earlier one; at least one.
        dest: The destination.

    Raises:
        Refused: Something else stands where the report would be.
    """
    report = dest.with_name(f"{dest.name}.errors.jsonl")
    if left_out.report is None:
        _refuse_others(report)
    disk.make_dirs(dest.parent)
    before = report.read_bytes() if left_out.report is not None else b""
    lines = (_line(Trouble(twin, f"holds the bytes of {first}", key=twin)) for first, twin in twins)
    with disk.atomic_file(report) as file:
        file.write(before)
        file.writelines(lines)
    return replace(left_out, report=report)


def _others(folder: Path, names: Collection[str]) -> int:
    """How many files lie in a quarantine besides those of these names."""
    with disk.at_door(folder):
        files = (path for path in folder.rglob("*") if path.is_file())
        return sum(path.relative_to(folder).as_posix() not in names for path in files)


def _refuse_others(report: Path) -> None:
    if not _is_ours(report):
        said = f"{report} is no list of offenders that a pack wrote, and would be overwritten"
        raise Refused(said, hint="Move it away, or name another destination", subject=str(report))


def _is_ours(report: Path) -> bool:
    """Whether a pack wrote what stands where a report will, as its first line tells; nothing is nobody's."""
    with disk.at_door(report):
        if not os.path.lexists(report):
            return True
        if not report.is_file():
            return False
        with reading(str(report)) as file:
            first = file.readline(disk.READ_BYTES)
    try:
        return tuple(orjson.loads(first)) == _FIELDS
    except (orjson.JSONDecodeError, TypeError):
        return False


def _line(trouble: Trouble) -> bytes:
    # names may hold bytes that are no UTF-8, and so no JSON that others read
    key = None if trouble.key is None else printable(trouble.key)
    value = dict(zip(_FIELDS, (printable(trouble.where), key, printable(trouble.problem)), strict=True))
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _copy(raws: Sequence[Raw], folder: Path) -> None:
    """Copy each once: files whole, lines behind each other."""
    by_name: dict[str, list[Raw]] = {}
    for raw in dict.fromkeys(raws):
        by_name.setdefault(raw.name, []).append(raw)
    for name, its in by_name.items():
        target = folder / name
        disk.make_dirs(target.parent)
        with disk.atomic_file(target) as copy:
            for raw in its:
                with disk.at_door(raw.path), reading(raw.path) as source:
                    _copy_bytes(source, raw, copy)


def _copy_bytes(source: BinaryIO, raw: Raw, copy: BinaryIO) -> None:
    if raw.size is None:
        shutil.copyfileobj(source, copy, disk.READ_BYTES)
        return
    source.seek(raw.offset, os.SEEK_SET)
    left = raw.size
    while left and (data := source.read(min(left, disk.READ_BYTES))):
        copy.write(data)
        left -= len(data)
    copy.write(b"\n")
