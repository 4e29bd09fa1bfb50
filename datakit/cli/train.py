"""train: `datakit train`, a tokenized dataset to a LoRA adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datakit.cli import frame

if TYPE_CHECKING:
    from datakit.train.preview import Preview
    from datakit.train.result import TrainResult

DatasetPath = Annotated[str, typer.Argument(metavar="DATASET", help="Directory of a tokenized dataset.")]
Model = Annotated[str, typer.Option("--model", metavar="DIR", help="Directory of the base model.")]
Output = Annotated[str, typer.Option("--output", metavar="RUN", help="The run's directory, made when it isn't there.")]
Resume = Annotated[str, typer.Option(metavar="auto|never", help="Continue what is there, or insist on starting anew.")]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="WHAT", help="Go on although this differs: data, model, settings, stale."),
]
Expect = Annotated[
    str | None, typer.Option("--expect-data", metavar="DIGEST", help="Refuse any other dataset than this one.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Read every byte of DATASET first.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Rehearse: three steps, into RUN-smoke.")]
WriteBack = Annotated[
    str | None, typer.Option("--write-back", metavar="URL", help="Copy checkpoints and adapter below URL as they come.")
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Optimizer steps.  [default: 30]")]
BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Samples of a forward pass.  [default: 4]")]
Rate = Annotated[float | None, typer.Option(metavar="X", help="Learning rate.  [default: 0.0002]")]
Rank = Annotated[int | None, typer.Option(metavar="R", help="Rank of the adapter.  [default: 8]")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Of order, dropout and first values.  [default: 0]")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @frame.command(app, "train", example="datakit train data/tokens --model models/base --output runs/first")
    def train(
        dataset: DatasetPath,
        model: Model,
        output: Output,
        resume: Resume = "auto",
        accept: AcceptOption = None,
        expect_data: Expect = None,
        verify: Verify = False,
        smoke: Smoke = False,
        write_back: WriteBack = None,
        steps: Steps = None,
        batch_size: BatchSize = None,
        learning_rate: Rate = None,
        rank: Rank = None,
        seed: Seed = None,
        params: frame.ParamsOption = None,
        dry_run: frame.DryRunOption = False,
        json: frame.JsonOption = False,
    ) -> None:
        """Train a LoRA adapter on DATASET; the finished adapter is RUN/adapter, which stock peft loads.

        Killed at any moment, the same command goes on from the last checkpoint, here or below the write-back URL, and
        ends with the same bytes as an undisturbed run. A checkpoint of other data, another model or other settings is
        refused, and so is data that is not what dvc.lock records or whose sources have moved on. SIGTERM, SIGHUP and
        Ctrl-C save first.
        """
        with frame.run("train", json=json) as session:
            flags = {
                "steps": steps,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "rank": rank,
                "seed": seed,
            }
            settings = session.settings(params, flags={f"train.{name}": value for name, value in flags.items()})
            common: dict[str, Any] = {
                "model": model,
                "output": output,
                "settings": settings.train,
                "resume": resume,
                "accept": accept or (),
                "expect_data": expect_data,
                "verify": verify,
                "smoke": smoke,
                "write_back": write_back,
                "on_event": session.on_event,
            }
            if dry_run:
                from datakit.train.preview import preview

                plan = preview(dataset, stores=settings.stores, **common)
                session.done(plan, _intention(plan), facts=_plan_facts(plan))
                return
            from datakit.train.signals import listen

            with listen(to_the_end=True) as stop, stop.at_once():
                from datakit.train.loop import train as run  # its libraries take seconds to load

                result = run(dataset, stores=settings.stores, **common)
            session.done(result, _sentence(result), facts=_facts(result))
            _complain(result)


def _intention(plan: Preview) -> str:
    from datakit.units import format_number_of

    if plan.steps_done == plan.steps:
        return f"{plan.run} is finished: {format_number_of(plan.steps, 'step')}"
    begin = f"continue after step {plan.steps_done}" if plan.resumes_from else "begin"
    return f"Would {begin} and train to step {plan.steps} in {plan.run}"


def _plan_facts(plan: Preview) -> dict[str, object]:
    from datakit.units import format_count

    facts: dict[str, object] = {
        "data": f"{plan.data.split()[0]}, {format_count(plan.samples)} samples",
        "base model": plan.base_model.split()[0],
        "a step": f"{plan.samples_per_step} samples",
        "epochs": _epochs(plan.steps / plan.steps_per_epoch, plan.steps_per_epoch),
    }
    if plan.left_out:
        facts["left out"] = f"{plan.left_out} samples at the end of each epoch"
    if plan.resumes_from:
        facts["resumes from"] = plan.resumes_from
    return facts | ({"write-back": plan.write_back} if plan.write_back else {})


def _epochs(number: float, steps: int) -> str:
    """How often every sample is seen; of a part of an epoch, which part."""
    from datakit.units import format_number_of

    each = format_number_of(steps, "step")
    return f"{number:.1f}, each of {each}" if number >= 1 else f"{number:.2%} of one, which has {each}"


def _sentence(result: TrainResult) -> str:
    from datakit.units import format_number_of

    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    return f"Trained {format_number_of(result.steps, 'step')}{loss}; the adapter is {result.adapter}"


def _facts(result: TrainResult) -> dict[str, object]:
    from datakit.units import format_count, format_duration

    facts: dict[str, object] = {
        "tokens": f"{format_count(result.tokens)}, {format_count(result.supervised_tokens)} learned"
    }
    if result.tokens_per_s:
        facts["speed"] = f"{result.tokens_per_s:.0f} tokens/s, {result.data_wait_share:.1%} of it waiting for data"
        facts["saving"] = format_duration(result.save_stall_s)
    if result.resumed_from:
        facts["resumed from"] = f"{result.resumed_from}, attempt {result.attempt}"
    facts["checkpoints"] = ", ".join(saved.name for saved in result.checkpoints) or "none in this attempt"
    if result.write_back and result.adapter_copy and not result.unpublished:
        facts["written back"] = f"{result.write_back}, verified; the adapter is {result.adapter_copy}"
    return facts


def _complain(result: TrainResult) -> None:
    """A finished adapter whose copies are missing is not an orderly end: the code says so to scripts."""
    from datakit.errors import StoreUnavailable
    from datakit.units import agree, format_number_of

    if result.unpublished:
        # waiting mends a store that is away; anything else is what a person has to look at, so it is told first
        kinds = result.unpublished_kinds
        name = min(result.unpublished, key=lambda name: issubclass(kinds[name], StoreUnavailable))
        number = len(result.unpublished)
        raise kinds[name](
            f"the adapter is finished, but {format_number_of(number, 'commit')} {agree(number, 'has', 'have')} "
            f"no good copy at {result.write_back}; {name}: {result.unpublished[name]}",
            hint=_way_out(result, name),
            subject=result.write_back,
        )


def _way_out(result: TrainResult, name: str) -> str:
    """What to do about a commit without a good copy."""
    from datakit.errors import StoreUnavailable
    from datakit.train.shelf import ADAPTER_DIR, CHECKPOINTS_NAME

    if name != ADAPTER_DIR and not (result.run / CHECKPOINTS_NAME / name).is_dir():
        return f"Remove {result.write_back}/{name}: no whole one is here to be put in its place"
    again = "Run the same command again: it only uploads"
    return again if issubclass(result.unpublished_kinds[name], StoreUnavailable) else f"Mend that first. {again}"
