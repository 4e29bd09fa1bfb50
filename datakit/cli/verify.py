"""verify: `datakit verify`, is a dataset whole."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame, splits

if TYPE_CHECKING:
    from datakit.verify.verify import VerifyReport

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's directory or URL.")]
Quick = Annotated[bool, typer.Option("--quick", help="Look at names, sizes and indexes only; read no shard.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "verify", example="datakit verify data/chat")
    def verify(
        dataset: Dataset, quick: Quick = False, params: frame.ParamsOption = None, json: frame.JsonOption = False
    ) -> None:
        """Compare a dataset with its manifest and name every shard, sample and byte that is wrong.

        Finds what Python's tarfile, and readers built on it, pass over in silence: a shard cut between two members, a
        damaged header, a hole of zeros. In object storage shards stream by and nothing is kept; --quick costs a listing
        and a request for each index. Exits with 4 when anything is wrong. Of a folder of splits it looks at each, and
        sees that none is missing.
        """
        with frame.run("verify", json=json) as session:
            from datakit.verify.siblings import refuse_gaps
            from datakit.verify.verify import verify as verify_dataset

            stores = session.stores(dataset, params)
            look = partial(verify_dataset, quick=quick, stores=stores, on_event=session.on_event)
            reports = splits.each(dataset, look, stores=stores)
            session.show(splits.result(reports, dataset), lambda: splits.report(reports, dataset, _text))
            for report in reports.values():
                report.raise_findings()
            if dataset not in reports:
                refuse_gaps(reports, stores=stores)


def _text(report: VerifyReport) -> str:
    from datakit.units import format_bytes, format_number_of

    if report.findings:
        return "\n".join(map(str, report.findings))
    looked = "sizes and indexes" if report.quick else "every byte"
    if report.kind != "dataset":
        looked, held = "sizes" if report.quick else looked, format_number_of(report.files, "file")
        read = format_bytes(report.checked_bytes)
        return f"{report.kind} {report.name} is whole: {held}, {looked} checked ({read} read)"
    held = f"{format_number_of(report.samples, 'sample')} in {format_number_of(report.shards, 'shard')}"
    return f"{report.name} is whole: {held}, {looked} checked ({format_bytes(report.checked_bytes)} read)"
