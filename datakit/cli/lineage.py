"""lineage: `datakit lineage`, what something was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame, splits

if TYPE_CHECKING:
    from datakit.version.lineage import Link

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
            from datakit.version.origins import trace

            links = splits.each(path, lambda place: trace(local_path(place)))
            session.show(splits.result(links, path), lambda: splits.report(links, path, _text))


def _text(link: Link) -> str:
    from datakit.version.lineage import render

    # the same records make the same bytes anywhere and at any time: a manifest knows no path, no time and no machine
    ends = link.kind == "dataset" and not link.made_from
    return render(link) + ("\n  from what, no dvc.lock around it or here records" if ends else "")
