"""tokenize: `datakit tokenize`, records to token ids and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.pack.tokenize import TokenizeResult

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="A dataset whose samples have a part json.")]
Destination = Annotated[str, typer.Argument(metavar="DEST", help="Directory of the new dataset.")]
Model = Annotated[str, typer.Option(metavar="DIR", help="Model directory with the tokenizer's files.")]
SeqLen = Annotated[int | None, typer.Option(metavar="N", help="Longest sample in tokens.  [default: 2048]")]
Template = Annotated[
    str | None, typer.Option(metavar="auto|FILE", help="Chat template: the tokenizer's own, or a Jinja file.")
]

Date = Annotated[
    str | None, typer.Option(metavar="DATE", help="Date that a template sees; without it, one that asks is refused.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "tokenize", example="datakit tokenize data/chat data/tokens --model models/base --seq-len 512")
    def tokenize(
        dataset: Dataset,
        dest: Destination,
        model: Model,
        seq_len: SeqLen = None,
        template: Template = None,
        date: Date = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Turn a dataset of records into a dataset of token ids, with a mask of the tokens that are learned.

        A record is a chat (`messages`), a `prompt` with its `completion`, or a `text`. Learned are the answers, each
        with its end token. Shards whose records have not changed since the last time are kept.
        """
        with frame.run("tokenize", json=json) as session:
            from datakit.pack.tokenize import tokenize as tokenize_dataset

            flags = {"tokenize.seq_len": seq_len, "tokenize.template": template, "tokenize.date": date}
            result = tokenize_dataset(
                dataset,
                dest,
                model=model,
                settings=session.settings(params, flags=flags).tokenize,
                on_event=session.on_event,
                dry_run=dry_run,
            )
            session.done(result, _sentence(result), facts=_facts(result))


def _sentence(result: TokenizeResult) -> str:
    from datakit.units import format_number_of

    return (
        f"{'Tokenized' if result.written else 'Would tokenize'} {format_number_of(result.samples, 'sample')} into "
        f"{format_number_of(result.tokens, 'token')} in {result.path}"
    )


def _facts(result: TokenizeResult) -> dict[str, object]:
    from datakit.units import format_bytes, format_count, format_number_of

    return {
        "learned": format_number_of(result.supervised_tokens, "token"),
        "cut": format_number_of(result.truncated, "sample"),
        "left out": format_number_of(result.dropped, "record"),
        "shards": f"{format_count(result.shards)}, {format_bytes(result.shard_bytes)}, "
        f"{format_count(result.reused)} reused",
    }
