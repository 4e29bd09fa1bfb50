"""reindex: `datakit reindex`, index and manifest for tars that others wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.pack.reindex import ReindexResult

Source = Annotated[str, typer.Argument(metavar="SRC", help="The directory that holds the tars.")]
Destination = Annotated[
    str | None, typer.Argument(metavar="[DEST]", help="Where the dataset will be.  [default: SRC itself]")
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="The dataset's name.  [default: the last step]")]
Keys = Annotated[
    str, typer.Option(metavar="RULE", help="plain, or tar: put the tar's name before each key, where tars number anew.")
]
Index = Annotated[list[str] | None, typer.Option(metavar="READER", help="Also write side files: energon, dali.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Processes; the bytes do not depend on it.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "reindex", example="datakit reindex cc3m data/cc3m --index energon")
    def reindex(
        src: Source,
        dest: Destination = None,
        name: Name = None,
        keys: Keys = "plain",
        index: Index = None,
        workers: Workers = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Make tars that others wrote a dataset: index and manifest, without changing a byte of them.

        webdataset's, GNU tar's and others' tars of any kind of header. With DEST the dataset is there, with hard links
        to the tars; without it, it is SRC itself. What cannot be indexed is listed, with the command that packs it.
        """
        with frame.run("reindex", json=json) as session:
            from datakit.pack.reindex import reindex as reindex_tars

            result = reindex_tars(
                src,
                dest,
                name=name,
                keys=keys,  # type: ignore[arg-type]  # it says itself which there are
                readers=tuple(index or ()),  # type: ignore[arg-type]  # it says itself which there are
                workers=workers,
                on_event=session.on_event,
                dry_run=dry_run,
            )
            session.done(result, _sentence(result), facts=_facts(result))


def _sentence(result: ReindexResult) -> str:
    from datakit.units import format_bytes, format_number_of

    verb = "Would index" if result.manifest_digest is None else "Indexed"
    what = f"{format_number_of(result.samples, 'sample')} in {format_number_of(result.shards, 'tar')}"
    return f"{verb} {what}, {format_bytes(result.shard_bytes)}: {result.path}"


def _facts(result: ReindexResult) -> dict[str, object]:
    from datakit.units import format_bytes, format_count, format_number_of

    facts: dict[str, object] = {"payload": format_bytes(result.payload_bytes)}
    facts |= {f"part {part}": format_number_of(count, "sample") for part, count in result.parts.items()}
    facts |= {f"skipped {what}": format_count(count) for what, count in result.skipped.items()}
    return facts | ({"manifest": result.manifest_digest[:12]} if result.manifest_digest else {})
