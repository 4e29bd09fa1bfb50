"""cat: `datakit cat`, the bytes of one part of one sample."""

from __future__ import annotations

from typing import Annotated

import typer

from datakit.cli import frame

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's directory or URL.")]
Key = Annotated[str, typer.Argument(metavar="KEY[.PART]", help="The sample, and its part where it has more than one.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "cat", example="datakit cat data/chat greeting-017.json")
    def cat(dataset: Dataset, key: Key, params: frame.ParamsOption = None, json: frame.JsonOption = False) -> None:
        """Write one part of one sample to stdout, byte for byte, checked against the index.

        From object storage too: indexes are fetched until one has the key, then the part alone. What that cost is said
        on stderr. With --json, what was read is described and not written.
        """
        with frame.run("cat", json=json) as session:
            from datakit.pack.reading import find_part

            found = find_part(dataset, key, stores=session.stores(dataset, params))
            described = {name: getattr(found, name) for name in ("part", "shard", "offset", "indexes_read", "requests")}
            result = {"dataset": dataset, "key": key, "bytes": len(found.data), **described}
            session.show_bytes(result, found.data)
