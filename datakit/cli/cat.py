"""cat: `datakit cat`, the bytes of one part of one sample."""

from __future__ import annotations

from typing import Annotated

import typer

from datakit.cli import frame

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's directory.")]
Key = Annotated[str, typer.Argument(metavar="KEY[.PART]", help="The sample, and its part where it has more than one.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "cat", example="datakit cat data/chat greeting-017.json")
    def cat(dataset: Dataset, key: Key, json: frame.JsonOption = False) -> None:
        """Write one part of one sample to stdout, byte for byte, checked against the index.

        With --json, what was read is described and not written.
        """
        with frame.run("cat", json=json) as session:
            from datakit.pack.reading import cat as read_part

            data = read_part(dataset, key)
            session.show_bytes({"dataset": dataset, "key": key, "bytes": len(data)}, data)
