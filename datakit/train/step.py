"""step: one optimizer step, and the counters that it moves.

The loss is the mean cross entropy over the supervised tokens of the whole step, however it is cut into passes: 1x4, 2x2
and 4x1 give the same gradient. Dropout is seeded anew in every pass from (seed, step, pass), so that nothing random has
to be remembered. A loss or a gradient that is not finite stops the run before it reaches the adapter; an update that
overflows is found by the next save, which then keeps nothing.

Does not save and does not decide how long to train. AdamW is torch's, with the betas and the epsilon of arXiv
1711.05101, which are also the defaults of the Hugging Face Trainer; the norm is clipped over all gradients together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from datakit.data.order import Cursor
from datakit.errors import DatakitError, InputError, MissingExtra
from datakit.feed.loader import Loader
from datakit.train.batch import StepBatch
from datakit.train.checkpoint import State
from datakit.train.metrics import StepMetrics
from datakit.train.model import derived_seed, loss_sum
from datakit.train.recipe import Recipe

try:
    import torch
except ImportError:
    raise MissingExtra("torch", extra="train") from None

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
NOTHING_CONSUMED = hashlib.sha256().hexdigest()
"""The order digest of a run that has not begun."""


def make_optimizer(parameters: Mapping[str, torch.nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over the adapter."""
    return torch.optim.AdamW(
        list(parameters.values()),
        lr=recipe.learning_rate,
        betas=_BETAS,
        eps=_EPSILON,
        weight_decay=recipe.weight_decay,
    )


class Stepper:
    """Takes optimizer steps.

    Args:
        model: The base model with the adapter.
        parameters: What trains, by name.
        optimizer: Over these parameters.
        loader: Gives one `StepBatch` a step.
        recipe: The settings.
        state: Where the run stands; replaced at each step.
        attempt: Number of the attempt, for the metrics.
    """

    def __init__(
        self,
        model: Any,
        *,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        loader: Loader[StepBatch],
        recipe: Recipe,
        state: State,
        attempt: int,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.optimizer = optimizer
        self.loader = loader
        self.recipe = recipe
        self.state = state
        self.attempt = attempt
        self._device = next(iter(parameters.values())).device
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._batches = self._endless()
        self._ended = time.perf_counter()

    def take(self, *, save_stall_s: float = 0.0) -> StepMetrics:
        """One step: batch, passes, clipping, update.

        Args:
            save_stall_s: How long the run was saving since the step before; not counted as this step's time.

        Raises:
            InputError: The step's samples have no supervised token, or tokens that the model does not know.
            DatakitError: The loss or the gradient is not finite; the adapter is as it was before the step.
        """
        began, epoch = self._ended + save_stall_s, self.loader.epoch
        asked = time.perf_counter()
        batch = next(self._batches)
        data_wait_s = time.perf_counter() - asked
        loss, grad_norm, rate = self._update(batch)
        self.state = self._after(batch, loss)
        self._ended = time.perf_counter()
        step_s = self._ended - began
        return StepMetrics(
            step=self.state.step,
            attempt=self.attempt,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            grad_norm=grad_norm,
            samples=len(batch.numbers),
            tokens=batch.tokens,
            supervised_tokens=batch.supervised_tokens,
            step_s=step_s,
            data_wait_s=data_wait_s,
            save_stall_s=save_stall_s,
            tokens_per_s=batch.tokens / step_s,
        )

    def restart_clock(self) -> None:
        """Count the next step's time from now: loading the model belongs to no step."""
        self._ended = time.perf_counter()

    def _endless(self) -> Iterator[StepBatch]:
        while True:
            yield from self.loader

    def _update(self, batch: StepBatch) -> tuple[float, float, float]:
        """The step's loss, gradient norm and learning rate."""
        if batch.supervised_tokens == 0:
            raise InputError(
                f"no token of step {self.state.step + 1} is supervised: {self._named(batch)}",
                hint="Look at the mask of these samples, or raise train.batch_size",
            )
        self._check_vocabulary(batch)
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        for number, part in enumerate(batch.passes):
            torch.manual_seed(derived_seed(self.recipe.seed, "dropout", self.state.step, number))
            loss = loss_sum(self.model, part.to(self._device)) / batch.supervised_tokens
            loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types here
            total += loss.detach()
        limit = self.recipe.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), math.inf if limit is None else limit)
        self._check_finite(batch, loss=float(total), grad_norm=float(norm))
        rate = self.recipe.learning_rate_at(self.state.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(total), float(norm), rate

    def _check_vocabulary(self, batch: StepBatch) -> None:
        if batch.largest_id >= self._vocabulary:
            raise InputError(
                f"token {batch.largest_id} is beyond the vocabulary of {self._vocabulary}: {self._named(batch)}",
                hint="Tokenize the dataset with this model's tokenizer: datakit tokenize DATASET DEST --model M",
            )

    def _check_finite(self, batch: StepBatch, *, loss: float, grad_norm: float) -> None:
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                self.optimizer.zero_grad(set_to_none=True)
                raise DatakitError(
                    f"the {name} of step {self.state.step + 1} is {value}; nothing of this step is kept",
                    hint=f"Lower train.learning_rate, or look at its samples: {self._named(batch)}",
                    subject=self.state.step + 1,
                )

    def _named(self, batch: StepBatch) -> str:
        keys = [self.loader.dataset[int(number)].key for number in batch.numbers[:8]]
        return ", ".join(keys) + (", ..." if len(batch.numbers) > len(keys) else "")

    def _after(self, batch: StepBatch, loss: float) -> State:
        state = self.state
        numbers = batch.numbers.numpy().astype("<i8").tobytes()
        return dataclasses.replace(
            state,
            step=state.step + 1,
            cursor=self.loader.cursor,
            samples=state.samples + len(batch.numbers),
            tokens=state.tokens + batch.tokens,
            supervised_tokens=state.supervised_tokens + batch.supervised_tokens,
            order_digest=hashlib.sha256(bytes.fromhex(state.order_digest) + numbers).hexdigest(),
            loss_first=loss if state.step == 0 else state.loss_first,
            loss_last=loss,
        )


def first_state(
    *, identity: Mapping[str, Any], geometry: Mapping[str, Any], overrides: tuple[Mapping[str, Any], ...] = ()
) -> State:
    """The state of a run that has not begun."""
    return State(
        step=0,
        cursor=Cursor(),
        samples=0,
        tokens=0,
        supervised_tokens=0,
        order_digest=NOTHING_CONSUMED,
        identity=identity,
        geometry=geometry,
        overrides=overrides,
    )
