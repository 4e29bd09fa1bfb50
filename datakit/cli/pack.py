"""pack: `datakit pack`, raw records to a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.pack.build import PackResult

Source = Annotated[str, typer.Argument(metavar="SRC", help="JSON lines, a folder of files, or a URL of either.")]
Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="The dataset's directory; with splits, of all of them.")
]
ShardSize = Annotated[str | None, typer.Option(metavar="SIZE", help="Aim for a shard's size.  [default: 64MiB]")]
Layout = Annotated[
    str | None,
    typer.Option(metavar="LAYOUT", help="stable: small changes stay small; sequential; shuffle.  [default: stable]"),
]
Input = Annotated[str | None, typer.Option(metavar="KIND", help="jsonl, files (one stem, one sample) or auto.")]
KeyField = Annotated[str | None, typer.Option(metavar="FIELD", help="Field that names a JSON record.  [default: id]")]
Split = Annotated[list[str] | None, typer.Option(metavar="NAME=WEIGHT", help="A split by key; give it once for each.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="The dataset's name.  [default: DEST's last step]")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Processes; the bytes do not depend on it.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "pack", example="datakit pack raw/chat.jsonl data/chat --split train=95 --split held-out=5")
    def pack(
        src: Source,
        dest: Destination,
        shard_size: ShardSize = None,
        layout: Layout = None,
        input: Input = None,  # noqa: A002 -- the option's name
        key_field: KeyField = None,
        split: Split = None,
        name: Name = None,
        workers: Workers = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Pack raw records into shards with index and manifest.

        The same records and settings give the same bytes, on any machine. Nothing is visible under DEST before all of
        it is; packing over an older dataset of the same name keeps the shards that have not changed.
        """
        with frame.run("pack", json=json) as session:
            from datakit.pack.build import pack as pack_records

            flags = {
                "pack.shard_size": shard_size,
                "pack.layout": layout,
                "pack.input": input,
                "pack.key_field": key_field,
                "pack.splits": _splits(split),
                "pack.name": name,
            }
            settings = session.settings(params, flags=flags)
            result = pack_records(
                src,
                dest,
                settings=settings.pack,
                workers=workers,
                stores=settings.stores,
                on_event=session.on_event,
                dry_run=dry_run,
            )
            session.done(result, _sentence(result), facts=_facts(result))


def _splits(words: list[str] | None) -> dict[str, int] | None:
    from datakit.errors import UsageError

    if not words:
        return None
    splits = {}
    for word in words:
        name, sign, weight = word.partition("=")
        if not sign or not weight.isascii() or not weight.isdigit() or name in splits:
            raise UsageError(f"--split {word} is not NAME=WEIGHT, each name once", hint="Write --split train=95")
        splits[name] = int(weight)
    return splits


def _sentence(result: PackResult) -> str:
    from datakit.units import format_bytes, format_count

    verb = "Packed" if result.written else "Would pack"
    places = ", ".join(str(dataset.path) for dataset in result.datasets)
    return (
        f"{verb} {format_count(result.records)} records into {format_count(result.shards)} "
        f"shard{'s' if result.shards != 1 else ''} of {format_bytes(result.shard_bytes)} in {places}"
    )


def _facts(result: PackResult) -> dict[str, object]:
    from datakit.units import format_bytes, format_count

    facts: dict[str, object] = {
        dataset.name: f"{format_count(dataset.samples)} samples, {format_count(dataset.shards)} shards, "
        f"{format_bytes(dataset.shard_bytes)}, {format_count(dataset.reused)} reused"
        for dataset in result.datasets
    }
    if result.requests:
        facts["requests"] = format_count(result.requests)
    return facts
