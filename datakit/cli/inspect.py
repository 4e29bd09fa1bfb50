"""inspect: `datakit inspect`, what is in a dataset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame, splits

if TYPE_CHECKING:
    from datakit.pack.reading import Inspection

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's directory or URL.")]
Show = Annotated[int, typer.Option(metavar="N", min=0, help="Samples to list.")]

_BAR_CELLS = 30


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "inspect", example="datakit inspect data/chat --show 5")
    def inspect(
        dataset: Dataset, show: Show = 3, params: frame.ParamsOption = None, json: frame.JsonOption = False
    ) -> None:
        """Show a dataset's totals, digests, settings, sizes of its parts and a few samples.

        Reads the manifest and the indexes, never a shard; in object storage that is one request for each. Of a folder
        of splits it shows each.
        """
        with frame.run("inspect", json=json) as session:
            from datakit.pack.reading import inspect as inspect_dataset

            stores = session.stores(dataset, params)
            found = splits.each(dataset, partial(inspect_dataset, show=show, stores=stores), stores=stores)
            session.show(splits.result(found, dataset), lambda: splits.report(found, dataset, _text))


def _text(inspection: Inspection) -> str:
    import json

    from datakit.console import format_facts, format_table
    from datakit.units import format_bytes, format_count, format_number_of

    pack = {name: value for name, value in inspection.pack.items() if name != "from"}
    facts: dict[str, object] = {
        "name": inspection.name,
        "samples": format_count(inspection.samples),
        "shards": f"{format_count(inspection.shards)}, {format_bytes(inspection.shard_bytes)}",
        "payload": format_bytes(inspection.payload_bytes),
        **({} if inspection.tokens is None else {"tokens": format_count(inspection.tokens)}),
        "content digest": inspection.content_digest,
        "layout digest": inspection.layout_digest,
        "manifest digest": inspection.manifest_digest,
        "packed with": json.dumps(pack, sort_keys=True),
    }
    blocks = [format_facts(facts)]
    for part, sizes in inspection.parts.items():
        most = max(sizes.histogram.values())
        rows = [
            (f"below {format_bytes(bound)}", format_count(count), "#" * max(1, count * _BAR_CELLS // most))
            for bound, count in sizes.histogram.items()
        ]
        spread = ", ".join(map(format_bytes, (sizes.smallest_bytes, sizes.median_bytes, sizes.largest_bytes)))
        held = f"{format_number_of(sizes.samples, 'sample')}, {format_bytes(sizes.total_bytes)}"
        blocks.append(f"part {part}: {held}; smallest, median, largest {spread}\n{format_table(rows)}")
    if inspection.first_samples:
        lines = [
            (look.key, ", ".join(f"{part} {format_bytes(size)}" for part, size in look.parts.items()), look.shard)
            for look in inspection.first_samples
        ]
        blocks.append(format_table(lines, header=("SAMPLE", "PARTS", "SHARD")))
    return "\n\n".join(blocks)
