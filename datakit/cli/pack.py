"""pack: `datakit pack`, raw records to a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.pack.result import PackResult
    from datakit.settings import Settings

Source = Annotated[
    str, typer.Argument(metavar="SRC", help="JSON lines, files, Parquet, CSV, tars, a saved dataset: path or URL.")
]
Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="The dataset's directory; with splits, of all of them.")
]
ShardSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Aim for a shard's size, or auto.  [default: 64MiB]")
]
Edits = Annotated[int | None, typer.Option(metavar="K", help="Scattered edits in a usual change, for auto.")]
Layout = Annotated[
    str | None,
    typer.Option(metavar="LAYOUT", help="stable: small changes stay small; sequential; shuffle.  [default: stable]"),
]
Parent = Annotated[str | None, typer.Option(metavar="DATASET", help="Keep its samples in the shards they are in.")]
Input = Annotated[str | None, typer.Option(metavar="KIND", help="jsonl, files, parquet, csv, tar, hf or auto.")]
KeyField = Annotated[str | None, typer.Option(metavar="FIELD", help="Field that names a JSON record.  [default: id]")]
Key = Annotated[
    str | None, typer.Option(metavar="RULE", help="Cut file names at first-dot, last-dot or known extensions.")
]
Escape = Annotated[str | None, typer.Option(metavar="RULE", help="percent: write what a key may not hold as %XX.")]
Bundle = Annotated[int | None, typer.Option(metavar="K", help="JSON lines that share one member of a shard.")]
Dedupe = Annotated[str | None, typer.Option(metavar="RULE", help="report exact duplicates by content, or drop them.")]
OnError = Annotated[
    str | None, typer.Option(metavar="RULE", help="stop, skip or quarantine a record that cannot be packed.")
]
MaxErrors = Annotated[int | None, typer.Option(metavar="N", help="Stop when more records are left out.")]
Index = Annotated[list[str] | None, typer.Option(metavar="READER", help="Also write side files: energon, dali.")]
Split = Annotated[list[str] | None, typer.Option(metavar="NAME=WEIGHT", help="A split by key; give it once for each.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="The dataset's name.  [default: DEST's last step]")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Processes; the bytes do not depend on it.")]
Engine = Annotated[str, typer.Option(metavar="ENGINE", help="local processes, or a ray cluster.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="Also a dataset at DEST that has no sample in common with SRC.")
]
Part = Annotated[str | None, typer.Option(metavar="I/N", help="Build share I of 0 to N-1 only, commit nothing.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "pack", example="datakit pack raw/chat.jsonl data/chat --split train=95 --split held-out=5")
    def pack(
        src: Source,
        dest: Destination,
        shard_size: ShardSize = None,
        expected_edits: Edits = None,
        layout: Layout = None,
        parent: Parent = None,
        input: Input = None,  # noqa: A002 -- the option's name
        key_field: KeyField = None,
        key: Key = None,
        escape: Escape = None,
        bundle: Bundle = None,
        dedupe: Dedupe = None,
        on_error: OnError = None,
        max_errors: MaxErrors = None,
        index: Index = None,
        split: Split = None,
        name: Name = None,
        workers: Workers = None,
        engine: Engine = "local",
        part: Part = None,
        replace: Replace = False,
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

            flags: dict[str, object] = {
                "pack.shard_size": shard_size,
                "pack.expected_edits": expected_edits,
                "pack.layout": layout,
                "pack.input": input,
                "pack.key_field": key_field,
                "pack.key": key,
                "pack.escape": escape,
                "pack.bundle": bundle,
                "pack.dedupe": dedupe,
                "pack.on_error": on_error,
                "pack.max_errors": max_errors,
                "pack.index": index or None,
                "pack.splits": _splits(split),
                "pack.name": name,
            }
            settings = session.settings(params, flags=flags)
            result = pack_records(
                src,
                dest,
                settings=settings.pack,
                workers=workers,
                engine=engine,  # type: ignore[arg-type]  # pack itself says which there are
                part=_part(part),
                parent=parent,
                stores=settings.stores,
                on_event=session.on_event,
                replace=replace,
                dry_run=dry_run,
            )
            engines = None if engine == "local" else engine
            others = {"parent": parent, "workers": workers, "engine": engines, "params": params, "replace": replace}
            whole = _command(src, dest, flags | others)
            session.done(result, _sentence(result, whole), facts=_facts(result, settings) | _origin_of_splits(settings))


def _splits(words: list[str] | None) -> dict[str, int] | None:
    from datakit.errors import UsageError

    if not words:
        return None
    splits = {}
    for word in words:
        name, sign, weight = word.partition("=")
        if not (name and sign):
            raise UsageError(f"--split {word} is not NAME=WEIGHT", hint="Write --split train=95")
        if not weight.isascii() or not weight.isdigit():
            hint = f"Write weights that stand in that proportion: --split {name}=95 --split held-out=5"
            raise UsageError(f"--split {word}: a weight is a whole number", hint=hint, subject=word)
        if name in splits:
            raise UsageError(f"--split {name} is given twice", hint="Give each name once", subject=word)
        splits[name] = int(weight)
    return splits


def _origin_of_splits(settings: Settings) -> dict[str, object]:
    """The splits and who asked for them: a params.yaml that lies here by chance makes folders of a dataset too."""
    from datakit.settings import DEFAULT, flag_of

    if not settings.pack.splits:
        return {}
    weights = ", ".join(f"{name} {weight}" for name, weight in settings.pack.splits.items())
    origin = settings.origins.get("pack.splits", DEFAULT)
    return {"splits": f"{weights} ({origin if origin == flag_of('pack.splits') else f'pack.splits, {origin}'})"}


def _part(word: str | None) -> tuple[int, int] | None:
    from datakit.errors import UsageError

    if word is None:
        return None
    share, sign, shares = word.partition("/")
    if not sign or not all(number.isascii() and number.isdigit() for number in (share, shares)):
        raise UsageError(f"--part {word} is not I/N", hint="Write --part 0/4, 1/4, 2/4 and 3/4", subject=word)
    return int(share), int(shares)


def _command(src: str, dest: str, given: Mapping[str, object]) -> str:
    """The command that was given, as words for a shell: options that were, by their names, with their values."""
    from datakit.settings import flag_of

    words = ["datakit", "pack", src, dest]
    for name, value in given.items():
        option = flag_of(name)
        if isinstance(value, dict):
            value = [f"{split}={weight}" for split, weight in value.items()]
        if value is True:
            words.append(option)
        elif value is not None and value is not False:  # 0 is a value
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
    return shlex.join(words)


def _sentence(result: PackResult, command: str) -> str:
    from datakit.units import format_bytes, format_number_of

    if result.part is not None:
        return _part_sentence(result, command)
    verb = "Packed" if result.written else "Would pack"
    places = ", ".join(str(dataset.path) for dataset in result.datasets)
    return (
        f"{verb} {format_number_of(result.records, 'record')} into {format_number_of(result.shards, 'shard')} "
        f"of {format_bytes(result.shard_bytes)} in {places}"
    )


def _part_sentence(result: PackResult, command: str) -> str:
    from datakit.units import format_count, format_number_of

    assert result.part is not None
    verb = "Would build" if result.dry_run else "Built"
    return (
        f"{verb} {format_count(result.built)} of {format_number_of(result.shards, 'shard')}, part {result.part[0]} of "
        f"{result.part[1]}; when all parts are built, the same command without --part commits: "
        f"{command}"
    )


def _change(result: PackResult) -> str:
    """What the upload of this version sends where the one before was uploaded."""
    from datakit.units import agree, format_bytes, format_count, format_number_of

    assert result.new_bytes is not None
    if not result.new_bytes:
        return "nothing to upload but the manifest, if that"
    planned, count = result.dry_run or result.part is not None, result.shards - result.reused
    upto, are, of = ("up to ", "would be", " of shards") if planned else ("", agree(count, "is", "are"), "")
    new = f"{format_count(count)} of {format_number_of(result.shards, 'shard')} {are} new"
    look = f"datakit sync --dry-run {shlex.quote(str(result.dest))} PLACE"
    return f"{upto}{new}, {upto}{format_bytes(result.new_bytes)}{of} to upload; what a place lacks: {look}"


def _facts(result: PackResult, settings: Settings) -> dict[str, object]:
    from datakit.data.shard import LINE_PART
    from datakit.pack.advice import bundling, sentence
    from datakit.units import format_bytes, format_count, format_number_of

    facts: dict[str, object] = {
        dataset.name: f"{format_number_of(dataset.samples, 'sample')}, {format_number_of(dataset.shards, 'shard')}, "
        f"{format_bytes(dataset.shard_bytes)}, {format_count(dataset.reused)} reused"
        for dataset in result.datasets
    }
    # a derived size was told with its reason before the work began
    facts["shards of"] = format_bytes(result.size.bytes) + (
        "" if settings.pack.shard_size == "auto" else f", {result.size.reason}"
    )
    payload = sum(dataset.payload_bytes for dataset in result.datasets)
    said = bundling(result.shard_bytes, payload_bytes=payload, samples=result.samples)
    if (
        said is not None
        and set(result.part_counts) == {LINE_PART}
        and not (settings.pack.bundle or settings.pack.index)
    ):
        facts["payload"] = f"{format_bytes(payload)}, {said}"
    if result.new_bytes is not None:
        facts["this change"] = _change(result)
    facts["next change"] = sentence(result.changes, total_bytes=result.shard_bytes)
    return facts
