"""diff: `datakit diff`, what became of the samples between two datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.version.diff import Difference, Samples, Shown, Side

PLACES = "Dataset, adapter, checkpoint, run; dvc.lock:STAGE; REV:PATH."

Old = Annotated[str, typer.Argument(metavar="OLD", help=PLACES)]
New = Annotated[str, typer.Argument(metavar="NEW", help="The same; each as a path or URL.")]
Show = Annotated[int, typer.Option(metavar="N", min=0, help="Samples to show of each kind, before and after.")]
Remote = Annotated[str | None, typer.Option(metavar="R", help="DVC remote, by name or URL.  [default: the project's]")]

_SIGNS = {"changed": "~", "added": "+", "removed": "-", "moved": ">"}


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "diff", example="datakit diff HEAD~1:data/chat/train data/chat/train --show 5")
    def diff(
        old: Old,
        new: New,
        show: Show = 0,
        remote: Remote = None,
        params: frame.ParamsOption = None,
        json: frame.JsonOption = False,
    ) -> None:
        """Show which samples were added, removed and changed, which shards are new, and what has to be uploaded.

        Shards that both have are passed over, so only the indexes of the others are read, also from object storage. An
        adapter, checkpoint or run stands for the data that it was trained on.
        """
        with frame.run("diff", json=json) as session:
            from datakit.version.diff import diff as compare

            settings = session.settings(params)
            result = compare(old, new, show=show, remote=remote, stores=settings.stores)
            session.show(result, lambda: _text(result))


def _text(result: Difference) -> str:
    from datakit.console import format_facts

    blocks = [format_facts({"old": _side(result.old), "new": _side(result.new), **_facts(result)})]
    blocks += [_sample(each) for each in result.shown]
    return "\n\n".join(blocks)


def _side(side: Side) -> str:
    from datakit.units import format_number_of

    tokens = "" if side.tokens is None else f", {format_number_of(side.tokens, 'token')}"
    trained = "" if side.trained is None else f", data of {side.trained}"
    digests = f"content {side.content_digest[:12]}, layout {side.layout_digest[:12]}"
    return f"{side.place}{trained}: {side.name}, {format_number_of(side.samples, 'sample')}{tokens}; {digests}"


def _facts(result: Difference) -> dict[str, object]:
    from datakit.units import format_bytes, format_count

    same = "the same" if result.same_samples else "different"
    facts: dict[str, object] = {}
    if result.samples is None or result.shards is None:
        facts["samples"] = f"{same} by content digest"
        for side in (result.old, result.new):
            if side.missing is not None:
                facts[f"samples of {side.place}"] = side.missing
    else:
        facts["samples"] = "the same" if result.same_samples else _samples(result.samples)
        if result.samples.moved or result.samples.renamed:
            moved = f"{format_count(result.samples.moved)} moved to another shard"
            facts["of these"] = f"{moved}, {format_count(result.samples.renamed)} under another key"
        facts["shards"] = (
            f"{format_count(result.shards.new)} new, {format_count(result.shards.reused)} reused, "
            f"{format_count(result.shards.dropped)} dropped"
        )
        facts["to upload"] = f"{format_bytes(result.shards.bytes_to_upload)} of {format_bytes(result.shards.bytes)}"
    for name, (before, after) in result.settings.items():
        facts[f"setting {name}"] = f"{_value(before)} -> {_value(after)}"
    facts["looked at"] = f"{format_count(result.indexes_read)} indexes"
    return facts


def _samples(samples: Samples) -> str:
    from datakit.units import format_count

    return (
        f"+{format_count(samples.added)} -{format_count(samples.removed)} ~{format_count(samples.changed)}, "
        f"{format_count(samples.kept)} as before"
    )


def _value(value: Any) -> str:
    import json

    text = "not set" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _sample(shown: Shown) -> str:
    where = " -> ".join(name for name in dict.fromkeys((shown.before, shown.after)) if name)
    lines = [f"{_SIGNS[shown.what]} {shown.what} {shown.key}  {where}"]
    for part in sorted({*shown.old, *shown.new}):
        lines += _lines(part, "-", shown.old)
        lines += _lines(part, "+", shown.new)
    return "\n".join(lines)


def _lines(part: str, sign: str, texts: Mapping[str, str]) -> list[str]:
    if part not in texts:
        return []
    first, *rest = texts[part].splitlines() or [""]
    return [f"  {sign} {part}: {first}", *(f"  {sign}   {line}" for line in rest)]
