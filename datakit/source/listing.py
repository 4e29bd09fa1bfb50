"""listing: a source's table of records, whatever it holds, and whether what cannot be packed stops the pack."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import orjson

from datakit.errors import printable
from datakit.events import Caution, Note
from datakit.source.fetching import Fetched
from datakit.source.files import Files
from datakit.source.folders import list_files
from datakit.source.grouping import FoundFile
from datakit.source.lines import list_lines
from datakit.source.members import Piece, joined
from datakit.source.naming import JSON_PART, KEY_FIELD, Naming
from datakit.source.originals import version_of
from datakit.source.partitions import told as told_of_columns
from datakit.source.records import Records, Run, first_part, here
from datakit.source.scan import Sources
from datakit.source.spans import MANY, LineFile
from datakit.source.tables import list_table, read_back, saved_files, table_tasks
from datakit.source.tars import crowded_tars, list_tar, tar_tasks
from datakit.source.troubles import FETCH_AGAIN, Trouble, refusal
from datakit.source.vouching import damaged_manifests, lost_tars, named_in
from datakit.units import agree, format_number_of

_IN_PLACE = "Mend rows of tables, members of tars, objects in a store and what cannot be read where they are"


def list_records(
    sources: Sources,
    local: Fetched,
    *,
    naming: Naming | None = None,
    on_error: Literal["stop", "skip", "quarantine"] = "stop",
    max_errors: int = MANY,
    drop_twins: bool = False,
    run: Run = here,
) -> Records:
    """The records of a source; what cannot be packed is the table's troubles (see `reports.settle`).

    Args:
        sources: Its files.
        local: The same as plain local files.
        naming: How records get their keys.
        on_error: `stop` raises at offenders.
        max_errors: How many offenders are tolerated otherwise; one kind of source looks for no more.
        drop_twins: Whether lines that repeat an earlier one are left out.
        run: What runs the tasks of the listing.

    Raises:
        InputError: Records cannot be packed, and are listed.
        NoSpace: The spool's disk is full.
    """
    naming = naming or Naming()
    limit = MANY if on_error == "stop" else max_errors
    empty = {number for number, file in enumerate(local.lines) if not version_of(file.path).size}
    lines = [file for number, file in enumerate(local.lines) if number not in empty]
    told = [*sources.troubles, *(_empty(local.lines[number]) for number in sorted(empty))]
    told_of = _Told([*sources.hidden])
    records: Records
    if sources.kind == "jsonl":
        records = list_lines(
            lines, naming=naming, limit=limit, run=run, troubles=told, drop_twins=drop_twins, spill=local.spill
        )
    elif sources.kind == "tar":
        whole = [source for number, source in enumerate(sources.files) if number not in empty]
        named = cache(lambda folder: named_in(os.path.join(local.root, folder)))
        tasks = tar_tasks(list(zip(lines, whole, strict=True)), root=local.root, named=named, naming=naming)
        lost = lost_tars(sources.files, sources.beside, named=named)
        records = joined(told_of.by(run(list_tar, tasks)), troubles=[*told, *lost], spill=local.spill)
        told_too = [*damaged_manifests(sources.beside, named=named), *crowded_tars(records, naming)]
        records = replace(records, remarks=(*records.remarks, *told_too))
    elif sources.kind != "files":
        tables = table_tasks(_tables(sources, lines, local.root), spool=local.spool, naming=naming, limit=limit)
        records = joined(told_of.by(read_back(run(list_table, tables))), troubles=told, spill=local.spill)
        unnamed, total = told_of.unnamed, told_of.records
        naming.check_field(unnamed, total, first=lambda: first_part(records, JSON_PART))
        hashed = _hashed(unnamed, total, records, naming)
        records = replace(records, remarks=(*records.remarks, *naming.remarks(unnamed, total), *hashed))
    else:
        records = _folder(sources, local.root, naming=naming, run=run)
    if records.troubles and on_error == "stop":
        raise refusal(records.troubles, limit=None if sources.kind in ("files", "tar") else limit)
    names = [] if sources.kind in ("files", "hf") else [file.name for file in lines]
    columns = told_of_columns(names, as_columns=sources.kind in ("parquet", "csv"))
    uncopied = [trouble for trouble in records.troubles if not trouble.raws] if on_error == "quarantine" else []
    return replace(records, remarks=(*_left_out(told_of.hidden), *_not_copied(uncopied), *columns, *records.remarks))


@dataclass
class _Told:
    """What pieces tell beside their records: hidden names, records without a name, and how many there are."""

    hidden: list[str]
    unnamed: int = 0
    records: int = 0

    def by(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, each listened to on its way."""
        for piece in pieces:
            self.hidden += piece.hidden
            self.unnamed += piece.unnamed
            self.records += len(piece.keys)
            yield piece


def _folder(sources: Sources, root: str, *, naming: Naming, run: Run) -> Files:
    return list_files(
        root,
        files=(FoundFile(file.name, file.bytes, file.stamp) for file in sources.files),
        folders=sources.folders,
        naming=naming,
        timed=not sources.is_remote,
        troubles=sources.troubles,
        run=run,
    )


def _empty(file: LineFile) -> Trouble:
    if file.is_array:
        return Trouble(file.name, "is an array without items", hint="Write records into it, or move it away")
    return Trouble(file.name, "is empty", hint=FETCH_AGAIN)


def _hashed(unnamed: int, total: int, records: Records, naming: Naming) -> list[Note]:
    """What is said of a table without the usual column, whose author may not know that it has a name."""
    if not unnamed or unnamed < total or naming.key_field != KEY_FIELD:
        return []
    lack = naming.lack(orjson.loads(first_part(records, JSON_PART) or b"{}"))
    return [Note(f"{lack}: a hash of its content names each (--key-field names another)")]


def _left_out(hidden: Sequence[str]) -> list[Note]:
    """What is said of names with a leading dot."""
    if not hidden:
        return []
    count, are = format_number_of(len(hidden), "hidden name"), agree(len(hidden), "is", "are")
    return [Note(f"{count} {are} left out, the first is {printable(min(hidden))}")]


def _not_copied(troubles: Sequence[Trouble]) -> list[Caution]:
    """What is said of offenders of which quarantine holds nothing."""
    if not troubles:
        return []
    count, are = format_number_of(len(troubles), "offender"), agree(len(troubles), "is", "are")
    said = f"{count} {are} not copied to quarantine, the first is {troubles[0].where}"
    return [Caution(said, hint=_IN_PLACE)]


def _tables(sources: Sources, files: Sequence[LineFile], root: str) -> Sequence[LineFile]:
    """The files that hold rows, in order; a saved dataset says which."""
    if sources.kind != "hf":
        return files
    by_name = {file.name: file for file in files}
    return [by_name[name] for name in saved_files(root, list(by_name))]
