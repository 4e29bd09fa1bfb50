"""lineage: `datakit lineage`, what something was made from."""

from __future__ import annotations

from typing import Annotated

import typer

from datakit.cli import frame, splits

Thing = Annotated[str, typer.Argument(metavar="PATH", help="Directory of an adapter, checkpoint, run or dataset.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "lineage", example="datakit lineage runs/first/adapter")
    def lineage(path: Thing, json: frame.JsonOption = False) -> None:
        """Show what PATH was made from: data, base model, settings, versions, and what was allowed to differ.

        Where a dvc.lock records the data, the chain goes on through its stages down to the listing of the raw files.
        Of a folder of splits it shows each.
        """
        with frame.run("lineage", json=json) as session:
            from datakit.storage.access import local_path
            from datakit.version.lineage import render
            from datakit.version.origins import trace

            links = splits.each(path, lambda place: trace(local_path(place)))
            session.show(splits.result(links, path), lambda: splits.report(links, path, render))
