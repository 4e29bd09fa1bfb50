"""loop: batches to an adapter.

Promises (law 9 of docs/design.md): killed at any moment, any number of times, the same command ends with the same
adapter, optimizer state and sequence of consumed samples, bit for bit, as the undisturbed run (on a CPU, or on the same
kind of GPU in deterministic mode). What is not finite is never saved. Trouble with write-back never stops training and
is never silent. A finished run that is started again only makes sure of what is there.

Does not decode data, draw, or talk to object storage: a process started for it does that (`upload`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from datakit.data.order import Cursor, Geometry
from datakit.errors import DatakitError
from datakit.events import Note, OnEvent, Progress, ignore
from datakit.feed.dataset import Dataset, open_dataset
from datakit.feed.loader import Loader
from datakit.machine import cores
from datakit.storage import disk
from datakit.storage.access import StoreOptions
from datakit.storage.commit import commit, read_manifest, verify_commit
from datakit.train.attempt import (
    Resume,
    Start,
    begin,
    check_changes,
    check_request,
    clear_rehearsal,
    leave_nothing,
    record_attempt,
    rehearsal_dir,
    take_up,
)
from datakit.train.batch import Collate, check_tokenized
from datakit.train.checkpoint import State, save_checkpoint
from datakit.train.identity import identity_of
from datakit.train.metrics import METRICS_NAME, MetricsFile, Totals
from datakit.train.model import (
    BaseModel,
    adapter_config,
    attach_adapter,
    exact_arithmetic,
    geometry,
    identify,
    library_versions,
    load_base,
    pick_device,
    trainable,
)
from datakit.train.recipe import Recipe
from datakit.train.result import SavedCheckpoint, TrainResult
from datakit.train.shelf import (
    ADAPTER_DIR,
    CHECKPOINTS_NAME,
    LOCK_NAME,
    OF_ADAPTER,
    checkpoints,
    prune,
    set_aside,
    step_of,
)
from datakit.train.signals import StopRequest, WaitEnded, listen
from datakit.train.step import Stepper, first_state, make_optimizer
from datakit.train.upload import Upload
from datakit.version.guard import guard
from datakit.version.lineage import build_lineage, to_bytes


def train(
    dataset: Path | str,
    *,
    model: Path | str,
    output: Path | str,
    settings: Recipe | None = None,
    resume: Resume = "auto",
    accept: Collection[str] = (),
    expect_data: str | None = None,
    verify: bool = False,
    smoke: bool = False,
    write_back: str | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> TrainResult:
    """Train a LoRA adapter on a tokenized dataset; started again, it continues where it was.

    Args:
        dataset: Directory of a tokenized dataset on the local disk.
        model: Directory of the base model.
        output: The run directory; the adapter is at `<output>/adapter` when the run is done.
        settings: The recipe; its defaults when None.
        resume: `auto` continues from the newest valid checkpoint here or at `write_back`; `never` starts anew.
        accept: `data`, `model`, `settings`: what a resumed state may have been written for otherwise; `stale`: what the
            data was made from may have moved on.
        expect_data: The beginning of the dataset's content, layout or manifest digest, 8 digits at least.
        verify: Read every byte of the dataset first.
        smoke: Rehearse: three steps into `<output>-smoke`, always anew.
        write_back: URL below which checkpoints and the adapter are copied while training goes on.
        stores: Named stores of the settings, for `write_back`.
        on_event: Hears progress, notes and cautions.

    Raises:
        Refused: Another process trains there, the state there was written for something else, the data is not what was
            expected or what dvc.lock records, or the base model is replaced while it is loaded.
        IntegrityError: The files of the dataset, or of the base model, are not what the manifest says.
        InputError: The dataset is not tokenized, or the model cannot be loaded.
        DatakitError: The loss is not finite.
        Interrupted: SIGTERM or SIGHUP came; the state was saved, the same command continues.
        KeyboardInterrupt: Ctrl-C came; the state was saved.

    Example:
        >>> import datakit
        >>> result = datakit.train("data/tokens", model="models/base", output="runs/a")  # doctest: +SKIP
        >>> result.adapter  # doctest: +SKIP
    """
    # all that can be wrong with what was named is found before the run directory is made
    recipe, run = settings or Recipe(), check_request(resume, accept, output=output, environ=os.environ)
    if smoke:
        if write_back is not None:
            on_event(Note(f"a rehearsal is not written back: nothing goes to {write_back}"))
        recipe, run, write_back = recipe.rehearsal(), rehearsal_dir(run), None
    data, base = open_dataset(dataset), identify(model, quick=not smoke and _is_trained(run, recipe))
    check_tokenized(data)
    allowed = guard(data.path, data.manifest, expect=expect_data, read=verify, accept=accept, on_event=on_event)
    Geometry(len(data), recipe.samples_per_step, tail=recipe.tail).normal(Cursor())
    upload = Upload(write_back, run=run, stores=stores, on_event=on_event)
    lock, left = disk.exclusive(run / LOCK_NAME, purpose=f"training in {run}"), leave_nothing(run, new=not run.exists())
    with lock, left, listen() as stop, upload, stop.at_once():
        if smoke:
            clear_rehearsal(run)
        training = _Training(data=data, base=base, run=run, recipe=recipe, upload=upload, on_event=on_event)
        start = begin(
            run,
            identity=training.identity,
            resume=resume,
            accept=accept,
            allowed=allowed,
            fetch=upload.fetch,
            look=upload.newest,
            on_event=on_event,
        )
        upload.start()
        return training.go(start, stop, smoke=smoke)


def _is_trained(run: Path, recipe: Recipe) -> bool:
    """Whether the last step's checkpoint lies here: then no model will be loaded, if it is valid."""
    here = checkpoints(run / CHECKPOINTS_NAME)
    return bool(here) and step_of(here[-1]) >= recipe.steps


def _is_of(adapter: Path, checkpoint: Path) -> bool:
    """Whether an adapter is whole and the one of a checkpoint, whichever versions are installed by now."""
    try:
        have = {entry.name: entry.sha256 for entry in verify_commit(adapter).members}
    except (DatakitError, OSError):
        return False
    want = {entry.name: entry.sha256 for entry in read_manifest(checkpoint).members if entry.name in OF_ADAPTER}
    return have == want


class _Training:
    """One attempt, from the decision where to start to the finished adapter."""

    def __init__(
        self, *, data: Dataset, base: BaseModel, run: Path, recipe: Recipe, upload: Upload, on_event: OnEvent
    ) -> None:
        self.data = data
        self.base = base
        self.run = run
        self.recipe = recipe
        self.upload = upload
        self.on_event = on_event
        self.began = time.perf_counter()
        self.totals = Totals()
        self.loss: float | None = None
        self.saved: list[str] = []

    @property
    def identity(self) -> dict[str, Any]:
        return identity_of(data=self.data, base=self.base, recipe=self.recipe)

    def go(self, start: Start, stop: StopRequest, *, smoke: bool) -> TrainResult:
        device = pick_device()
        before = start.checkpoint.state.geometry if start.checkpoint else {}
        threads = self.recipe.threads or before.get("threads") or cores()
        now = geometry(device=device, threads=threads, precision=self.recipe.precision)
        facts = {
            "settings": self.recipe.to_json(),
            "settings_digest": self.recipe.digest(),
            "identity": self.identity,
            "data_path": str(self.data.path.resolve()),
            "geometry": now,
            "versions": library_versions(),
            "write_back": self.upload.url,
            "smoke": smoke,
        }
        record_attempt(self.run, start, facts=facts)
        if start.checkpoint is not None and start.step >= self.recipe.steps:
            with stop.save_first():
                return self._finish(start, start.checkpoint.path, start.checkpoint.state, stop)
        with exact_arithmetic(threads=threads):
            stepper = self._prepare(start, now, device, stop)
            with stop.save_first():
                try:
                    last = self._steps(stepper, start, stop)
                finally:
                    stepper.loader.close()
                return self._finish(start, last, stepper.state, stop)

    def _finish(self, start: Start, last: Path, state: State, stop: StopRequest) -> TrainResult:
        """Make the adapter of the last checkpoint, where it is not there, and see it and what came before published."""
        adapter = self.run / ADAPTER_DIR
        if _is_of(adapter, last):
            self.on_event(
                Note(f"{self.run} is finished: {state.step} of {self.recipe.steps} steps, its adapter verifies")
            )
        else:
            self._commit_adapter(adapter, last, state)
        self.upload.offer(last)
        self.upload.offer(adapter)
        unpublished = self.upload.finish(stop)
        if stop and unpublished:
            stop.raise_it(
                f"stopped while {', '.join(unpublished)} went to {self.upload.url}; the adapter is {adapter}",
                hint="Run the same command again: it only uploads",
            )
        return self._result(start, state, adapter, unpublished)

    def _commit_adapter(self, final: Path, last: Path, state: State) -> None:
        if final.exists():
            aside = set_aside(final, prefix="previous-")
            self.on_event(Note(f"the adapter that was here before is kept as {aside.name}"))
        with commit(final, kind="adapter", name=self.run.resolve().name) as staging:
            for name in OF_ADAPTER:
                staging.write(name, (last / name).read_bytes())
            staging.about["step"] = state.step

    def _prepare(self, start: Start, now: Mapping[str, Any], device: Any, stop: StopRequest) -> Stepper:
        loader = Loader(
            self.data,
            batch_size=self.recipe.samples_per_step,
            seed=self.recipe.seed,
            num_workers=self.recipe.num_workers,
            collate=Collate(self.recipe.batch_size),
            tail=self.recipe.tail,
            pin_memory=device.type == "cuda",
            on_wait=stop.end_wait,
        )
        loader.seek(start.cursor)
        self._tell_tail(loader.geometry)
        model = load_base(self.base, precision=self.recipe.precision, device=device)
        model = attach_adapter(model, self.recipe)
        model.train()
        parameters = trainable(model)
        optimizer = make_optimizer(parameters, self.recipe)
        state = first_state(identity=self.identity, geometry=now, overrides=start.overrides)
        if start.checkpoint is not None:
            take_up(start, start.checkpoint, parameters=parameters, optimizer=optimizer)
            before = start.checkpoint.state
            changes = check_changes(start.checkpoint, now, library_versions(), on_event=self.on_event)
            state = dataclasses.replace(
                before,
                cursor=loader.cursor,
                identity=self.identity,
                geometry=now,
                overrides=start.overrides,
                changes=(*before.changes, *changes),
            )
        return Stepper(
            model,
            parameters=parameters,
            optimizer=optimizer,
            loader=loader,
            recipe=self.recipe,
            state=state,
            attempt=start.number,
        )

    def _tell_tail(self, cut: Geometry) -> None:
        if left := cut.dropped():
            self.on_event(Note(f"each epoch leaves out {left} of {len(self.data)} samples (train.tail drop)"))
        if again := cut.repeated():
            self.on_event(Note(f"each epoch repeats {again} of {len(self.data)} samples at its end (train.tail pad)"))

    def _steps(self, stepper: Stepper, start: Start, stop: StopRequest) -> Path:
        """Take the steps that are left; gives the last checkpoint."""
        metrics = MetricsFile(self.run / METRICS_NAME, after_step=start.step)
        metrics.open()
        stall_s, saved_step = 0.0, start.step
        path = self.run / CHECKPOINTS_NAME
        stepper.restart_clock()
        try:
            while stepper.state.step < self.recipe.steps:
                with contextlib.suppress(WaitEnded):  # asked to stop while workers had no batch: saved below
                    if not stop:
                        row = stepper.take(save_stall_s=stall_s)
                        metrics.add(row)
                        self.totals.add(row)
                        self.loss, stall_s = row.loss, 0.0
                        self.on_event(Progress("train", row.step, self.recipe.steps, "steps"))
                step = stepper.state.step
                due = step % self.recipe.save_every_steps == 0 or step == self.recipe.steps or bool(stop)
                if due and step > saved_step:
                    metrics.sync()
                    began = time.perf_counter()
                    path, saved_step = self._save(stepper), step
                    stall_s = time.perf_counter() - began
                    self.totals.save_stall_s += stall_s
                self.upload.poll()
                if stop and step < self.recipe.steps:
                    self._stopped(stop, saved_step)
        finally:
            metrics.close()
        return path

    def _stopped(self, stop: StopRequest, step: int) -> None:
        self.upload.finish(stop)
        self.on_event(Note(f"stopped at step {step} of {self.recipe.steps}; the same command continues"))
        stop.raise_it(
            f"stopped by {stop.signal.name if stop.signal else 'a signal'} at step {step} of {self.recipe.steps}",
            hint="Run the same command again: it continues from there",
        )

    def _save(self, stepper: Stepper) -> Path:
        """Commit a checkpoint, offer it, drop old ones."""
        path = save_checkpoint(
            self.run / CHECKPOINTS_NAME,
            parameters=stepper.parameters,
            optimizer=stepper.optimizer,
            state=stepper.state,
            config=adapter_config(stepper.model, base_name=self.base.name),
            lineage=self._lineage(stepper.state),
        )
        self.saved.append(path.name)
        self.upload.offer(path)
        prune(path.parent, keep=self.recipe.keep, may_go=self.upload.may_go, quick=True)
        self.on_event(Note(f"committed {path.name}" + ("" if self.loss is None else f", loss {self.loss:.4f}")))
        return path

    def _lineage(self, state: State) -> bytes:
        return to_bytes(
            build_lineage(
                run=self.run.resolve().name,
                data=self.data.manifest,
                base_model=self.identity["base_model"],
                settings=self.recipe.deciding(),
                settings_digest=self.recipe.digest(),
                versions=library_versions(),
                consumed={
                    "steps": state.step,
                    **state.cursor.to_json(),
                    "samples_in_all": state.samples,
                    "tokens": state.tokens,
                    "supervised_tokens": state.supervised_tokens,
                    "order_digest": state.order_digest,
                },
                overrides=state.overrides,
                changes=state.changes,
            )
        )

    def _result(self, start: Start, state: State, adapter: Path, unpublished: Mapping[str, str]) -> TrainResult:
        here = self.run / CHECKPOINTS_NAME
        return TrainResult(
            adapter=adapter,
            run=self.run,
            steps=state.step,
            attempt=start.number,
            resumed_from=f"{start.checkpoint.path.name} ({start.source})" if start.checkpoint else None,
            loss=self.loss,
            loss_first=state.loss_first,
            loss_last=state.loss_last,
            samples=state.samples,
            tokens=state.tokens,
            supervised_tokens=state.supervised_tokens,
            tokens_per_s=self.totals.tokens_per_s,
            data_wait_share=self.totals.data_wait_share,
            save_stall_s=self.totals.save_stall_s,
            seconds=time.perf_counter() - self.began,
            order_digest=state.order_digest,
            checkpoints=tuple(
                SavedCheckpoint(name=name, local=(here / name).is_dir(), remote=self.upload.status(name))
                for name in self.saved
            ),
            write_back=self.upload.url,
            adapter_copy=self.upload.adapter_copy,
            requests=self.upload.requests,
            unpublished=unpublished,
            unpublished_kinds={name: self.upload.kind_of(name) for name in unpublished},
        )
