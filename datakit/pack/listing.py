"""listing: a source's table of records, whatever it holds, and whether what cannot be packed stops the pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from datakit.pack.fetching import Fetched
from datakit.pack.grouping import FoundFile, list_files
from datakit.pack.lines import list_lines
from datakit.pack.members import joined
from datakit.pack.naming import Naming
from datakit.pack.records import Records, Run, here
from datakit.pack.scan import Sources
from datakit.pack.spans import MANY, LineFile
from datakit.pack.tables import list_table, saved_files, table_tasks
from datakit.pack.tars import list_tar, tar_task
from datakit.pack.troubles import refusal


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
    """The records of a source; what cannot be packed is the table's troubles (see `troubles.settle`).

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
    """
    naming = naming or Naming()
    limit = MANY if on_error == "stop" else max_errors
    records: Records
    if sources.kind == "jsonl":
        records = list_lines(
            local.lines, naming=naming, limit=limit, run=run, troubles=sources.troubles, drop_twins=drop_twins
        )
    elif sources.kind == "tar":
        tars = [tar_task(file, local.root, naming) for file in local.lines]
        records = joined(list(run(list_tar, tars)), troubles=sources.troubles)
    elif sources.kind != "files":
        tables = table_tasks(_tables(sources, local), spool=local.spool, naming=naming, limit=limit)
        records = joined(list(run(list_table, tables)), troubles=sources.troubles)
    else:
        found = (FoundFile(file.name, file.bytes, file.stamp) for file in sources.files)
        records = list_files(
            local.root, files=found, naming=naming, timed=not sources.is_remote, troubles=sources.troubles
        )
    if records.troubles and on_error == "stop":
        raise refusal(records.troubles)
    return records


def _tables(sources: Sources, local: Fetched) -> Sequence[LineFile]:
    """The files that hold rows, in order; a saved dataset says which."""
    if sources.kind != "hf":
        return local.lines
    by_name = {file.name: file for file in local.lines}
    return [by_name[name] for name in saved_files(local.root, list(by_name))]
