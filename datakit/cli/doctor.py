"""doctor: `datakit doctor`, what would go wrong on this machine, and which setting is in force from where."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.operate.doctor import Finding
    from datakit.settings import Setting

Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="PLACE", help="Paths and URLs to try, besides the stores of the settings."),
]
Directory = Annotated[
    Path, typer.Option("--directory", metavar="DIR", help="Where the work will be done, for its free space.")
]
ListSettings = Annotated[
    bool, typer.Option("--settings", help="Print each setting with its value and origin instead, secrets masked.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "doctor", example="datakit doctor s3://my-bucket/datasets")
    def doctor(
        places: Places = None,
        directory: Directory = Path(),
        list_settings: ListSettings = False,
        params: frame.ParamsOption = None,
        json: frame.JsonOption = False,
    ) -> None:
        """Look at this machine and say what would go wrong, each with the command that mends it.

        Looks at Python, the libraries of each extra, CPUs and memory as the container limits them, shared memory,
        free space, and whether the stores of the settings answer. Exits with 1 when something would fail.
        """
        with frame.run("doctor", json=json) as session:
            settings = session.settings(params)
            if list_settings:
                listing = settings.listing()
                session.show(listing, lambda: _settings_table(listing))
                return
            from datakit.errors import DatakitError
            from datakit.operate.doctor import judge, knock, look

            findings = (*judge(look(directory)), *knock(places or [], stores=settings.stores))
            session.show(findings, lambda: _findings_table(findings))
            failing = [finding.name for finding in findings if finding.status == "fail"]
            if failing:
                raise DatakitError(f"this machine would fail: {', '.join(failing)}", hint="The fixes are in the report")


def _findings_table(findings: Sequence[Finding]) -> str:
    from datakit.console import format_table

    rows = [(finding.status, finding.name, finding.what) for finding in findings]
    fixes = [f"{finding.name}: {finding.fix}" for finding in findings if finding.fix and finding.status != "ok"]
    return "\n".join([format_table(rows), *(["", "To mend:", *(f"  {fix}" for fix in fixes)] if fixes else [])])


def _settings_table(listing: Sequence[Setting]) -> str:
    from datakit.console import format_table

    rows = [(each.name, _in_words(each.value), each.origin) for each in listing]
    return format_table(rows, header=("SETTING", "VALUE", "ORIGIN"))


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else jsonlib.dumps(frame.plain(value), ensure_ascii=False)
