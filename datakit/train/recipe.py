"""recipe: the settings of one training, and the numbers that follow from them.

Promises: importing this room loads no heavy library; a recipe that exists is valid; equal `digest()` means equal
results on the same data, base model and kind of machine. What changes only speed or safety (workers, threads, how often
to save and how much to keep) is not part of the digest and may change at a resume.

Does not train. The schedules are those of `transformers.get_scheduler` (constant_with_warmup, linear, cosine), so that
a curve can be compared with one from the Hugging Face Trainer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from datakit.errors import UsageError

SCHEDULES = Literal["cosine", "linear", "constant"]
PRECISIONS = Literal["auto", "fp32", "bf16"]
TAILS = Literal["drop", "pad", "exact"]  # those of data/order, which needs numpy; a test compares them

_FREE = frozenset({"save_every_steps", "keep", "num_workers", "threads"})
_SMOKE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to train; section `train` of params.yaml.

    Args:
        rank: Rank r of the LoRA matrices.
        alpha: LoRA's alpha; the update is scaled by alpha / rank.
        dropout: Probability in [0, 1) with which LoRA's input features are dropped.
        targets: Names of the linear layers that get an adapter.
        steps: Optimizer steps in all.
        batch_size: Samples of one forward pass.
        grad_accum: Forward passes of one optimizer step.
        learning_rate: AdamW's rate after the warm-up.
        schedule: What the rate does after the warm-up: falls as a cosine or a line to 0, or stays.
        warmup_steps: Steps over which the rate rises from 0.
        weight_decay: AdamW's decoupled decay.
        max_grad_norm: Gradients are scaled down to this 2-norm; None leaves them.
        seed: Of the order, the initial adapter and the dropout.
        tail: What happens to an epoch's samples that do not fill a last step: drop, pad or exact.
        precision: Of the base model: bf16 on a GPU and fp32 on a CPU when auto. The adapter is always fp32.
        save_every_steps: A checkpoint is committed every so many steps, and at the end.
        keep: Newest checkpoints that stay on the local disk, at least 1.
        num_workers: Processes that read samples; 0 reads in the trainer.
        threads: CPU threads of the arithmetic; None means all the process may use, or what a resumed run began with.

    Raises:
        UsageError: A value is out of its range; the message names it.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.05
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    steps: int = 30
    batch_size: int = 4
    grad_accum: int = 1
    learning_rate: float = 2e-4
    schedule: SCHEDULES = "cosine"
    warmup_steps: int = 3
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    seed: int = 0
    tail: TAILS = "drop"
    precision: PRECISIONS = "auto"
    save_every_steps: int = 10
    keep: int = 3
    num_workers: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("rank", "alpha", "steps", "batch_size", "grad_accum", "save_every_steps", "keep"):
            _need(name, getattr(self, name), "at least 1", ok=getattr(self, name) >= 1)
        for name in ("warmup_steps", "weight_decay", "num_workers"):
            _need(name, getattr(self, name), "at least 0", ok=getattr(self, name) >= 0)
        for name, kinds in (("schedule", SCHEDULES), ("precision", PRECISIONS), ("tail", TAILS)):
            choices = get_args(kinds)
            _need(name, getattr(self, name), f"one of {', '.join(choices)}", ok=getattr(self, name) in choices)
        _need("dropout", self.dropout, "at least 0 and below 1", ok=0 <= self.dropout < 1)
        _need("learning_rate", self.learning_rate, "above 0 and finite", ok=0 < self.learning_rate < math.inf)
        _need(
            "max_grad_norm",
            self.max_grad_norm,
            "above 0, or null",
            ok=self.max_grad_norm is None or self.max_grad_norm > 0,
        )
        _need("threads", self.threads, "at least 1, or null", ok=self.threads is None or self.threads >= 1)
        _need("targets", self.targets, "at least one name", ok=bool(self.targets) and all(self.targets))

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step."""
        return self.batch_size * self.grad_accum

    def learning_rate_at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        if self.schedule == "cosine":
            return self.learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
        if self.schedule == "linear":
            return self.learning_rate * max(0.0, 1.0 - done)
        return self.learning_rate

    def to_json(self) -> dict[str, Any]:
        """Every setting under its name, as JSON values."""
        return {**dataclasses.asdict(self), "targets": list(self.targets)}

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the result; two runs may share a state only if these are equal."""
        return {name: value for name, value in self.to_json().items() if name not in _FREE}

    def digest(self) -> str:
        """The sha256 (64 hex) of the deciding settings."""
        text = json.dumps(self.deciding(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def rehearsal(self) -> Recipe:
        """The recipe of `--smoke`: the same in small, three steps of few samples with a checkpoint in between."""
        return dataclasses.replace(
            self,
            steps=_SMOKE_STEPS,
            warmup_steps=1,
            batch_size=min(self.batch_size, 2),
            grad_accum=1,
            save_every_steps=2,
        )


def _need(name: str, value: object, rule: str, *, ok: bool) -> None:
    if not ok:
        raise UsageError(f"train.{name} is {value!r}", hint=f"It must be {rule}", subject=name)
