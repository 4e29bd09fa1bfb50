"""listing: a source's table of records, whatever it holds."""

from __future__ import annotations

from datakit.pack.files import FoundFile, list_files
from datakit.pack.lines import list_lines
from datakit.pack.records import Records, Run, here
from datakit.pack.scan import Fetched, Sources
from datakit.pack.troubles import refusal


def list_records(sources: Sources, local: Fetched, *, key_field: str = "id", run: Run = here) -> Records:
    """The records of a source.

    Args:
        sources: Its files.
        local: The same as plain local files.
        key_field: The field that names a record, where records have fields.
        run: What runs the tasks of the listing.

    Raises:
        InputError: Records cannot be packed, and are listed.
    """
    records: Records
    if sources.kind == "jsonl":
        records = list_lines(local.lines, key_field=key_field, run=run)
    else:
        found = (FoundFile(file.name, file.bytes, file.stamp) for file in sources.files)
        records = list_files(local.root, files=found, timed=not sources.is_remote)
    if records.troubles:
        raise refusal(records.troubles)
    return records
