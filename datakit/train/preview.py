"""preview: what a training would do, without doing it: `datakit train --dry-run`.

Promises: nothing is written, fetched or loaded onto a device; what would be refused for what lies here is refused here
too, under the same options, but for bytes: of a base model that is a commit, files and sizes are looked at. A
write-back destination is asked by one listing which checkpoints it holds, as the training asks it, and its trouble is
the training's; what stands in them is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from datakit.data.order import Cursor, Geometry
from datakit.errors import DatakitError
from datakit.events import Caution, Note, OnEvent, ignore
from datakit.feed.dataset import open_dataset
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import address, commits_at
from datakit.train.attempt import (
    Resume,
    check_empty,
    check_nothing_there,
    check_rehearsal,
    check_request,
    rehearsal_dir,
)
from datakit.train.batch import check_tokenized
from datakit.train.checkpoint import load_state
from datakit.train.identity import check_differences, identity_of
from datakit.train.model import identify
from datakit.train.recipe import Recipe
from datakit.train.shelf import CHECKPOINT_GLOB, CHECKPOINTS_NAME, newest_checkpoint, step_of
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
        resumes_from: The checkpoint that it would continue, by its name here or its URL, or None.
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
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> Preview:
    """Look at everything that `train` would look at; arguments and errors are those of `train`."""
    run = check_request(resume, accept, output=output, environ=os.environ)
    data, base = open_dataset(dataset), identify(model, quick=True)
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
    there = None if write_back is None else _newest_there(write_back, path, resume, stores=stores, on_event=on_event)
    geometry = Geometry(len(data), settings.samples_per_step, tail=settings.tail)
    done = 0
    if there is not None:
        on_event(Note(f"{there} is newer than what is here; whether it is of this training is seen once it is fetched"))
        done = step_of(Path(there))
    elif path is not None:
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
        resumes_from=there or (None if path is None else path.name),
        settings_digest=settings.digest(),
        write_back=write_back,
    )


def _newest_there(
    place: str, here: Path | None, resume: Resume, *, stores: Mapping[str, StoreOptions] | None, on_event: OnEvent
) -> str | None:
    """The URL of the newest checkpoint there, if newer than what is here; trouble is told as a training tells it."""
    url = address(place, stores=stores)
    try:
        names = commits_at(place, pattern=CHECKPOINT_GLOB, stores=stores)
    except DatakitError as error:
        if here is None:
            raise
        on_event(Caution(f"{url} cannot be asked for a newer checkpoint: {error.message}", error.hint))
        return None
    newest = f"{url}/{names[0]}" if names and (here is None or names[0] > here.name) else None
    if resume == "never":
        check_nothing_there(newest)
    return newest
