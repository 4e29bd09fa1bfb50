"""preview: what a training would do, without doing it: `datakit train --dry-run`.

Promises: nothing is written, fetched or loaded onto a device; what would be refused for what lies here is refused here
too, under the same options, but for bytes: of a base model that is a commit, files and sizes are looked at. What lies
at a write-back destination is not asked, so that a preview needs no network.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from datakit.data.order import Cursor, Geometry
from datakit.events import OnEvent, ignore
from datakit.feed.dataset import open_dataset
from datakit.train.attempt import (
    Resume,
    check_empty,
    check_rehearsal,
    check_request,
    rehearsal_dir,
)
from datakit.train.batch import check_tokenized
from datakit.train.checkpoint import load_state
from datakit.train.identity import check_differences, identity_of
from datakit.train.model import identify
from datakit.train.recipe import Recipe
from datakit.train.shelf import CHECKPOINTS_NAME, newest_checkpoint
from datakit.version.guard import guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a training would do.

    Attributes:
        run: The run directory.
        data: Name and layout digest of the dataset.
        base_model: Name and digest of the base model.
        samples: Samples of the dataset.
        samples_per_step: Samples of an optimizer step.
        steps_per_epoch: Steps after which every sample was seen.
        left_out: Samples that an epoch leaves out at its end.
        steps: Steps in all.
        steps_done: Of these, done already.
        resumes_from: The local checkpoint that it would continue, or None.
        settings_digest: Of the settings that decide the result.
        write_back: Where commits would be copied to, or None.
    """

    run: Path
    data: str
    base_model: str
    samples: int
    samples_per_step: int
    steps_per_epoch: int
    left_out: int
    steps: int
    steps_done: int
    resumes_from: str | None
    settings_digest: str
    write_back: str | None


def preview(
    dataset: Path | str,
    *,
    model: Path | str,
    output: Path | str,
    settings: Recipe,
    resume: Resume = "auto",
    accept: Collection[str] = (),
    expect_data: str | None = None,
    verify: bool = False,
    smoke: bool = False,
    write_back: str | None = None,
    on_event: OnEvent = ignore,
) -> Preview:
    """Look at everything that `train` would look at; arguments and errors are those of `train`."""
    check_request(resume, accept, output=output, environ=os.environ)
    data, base, run = open_dataset(dataset), identify(model, quick=True), Path(output)
    check_tokenized(data)
    guard(data.path, data.manifest, expect=expect_data, read=verify, accept=accept, on_event=on_event)
    path = None
    if smoke:
        settings, run, write_back = settings.rehearsal(), rehearsal_dir(run), None
        check_rehearsal(run)
    elif resume == "never":
        check_empty(run)
    else:
        path = newest_checkpoint(run / CHECKPOINTS_NAME).path
    geometry = Geometry(len(data), settings.samples_per_step, tail=settings.tail)
    done = 0
    if path is not None:
        state = load_state(path)
        identity = identity_of(data=data, base=base, recipe=settings)
        check_differences(path, state, identity, accept=accept, on_event=on_event)
        done = state.step
    geometry.normal(Cursor())  # refuses a dataset that does not fill one step
    return Preview(
        run=run,
        data=f"{data.name} {data.digest}",
        base_model=f"{base.name} {base.digest}",
        samples=len(data),
        samples_per_step=geometry.global_batch,
        steps_per_epoch=geometry.steps_left(0),
        left_out=geometry.dropped(),
        steps=settings.steps,
        steps_done=done,
        resumes_from=None if path is None else path.name,
        settings_digest=settings.digest(),
        write_back=write_back,
    )
