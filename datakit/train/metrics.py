"""metrics: `metrics.jsonl`, one JSON object a step, and what a run adds up to.

Promises: after a resume no step stands there twice and none of this disk's is missing: lines after the resumed step are
removed, a line cut by a kill is too. It is not written back: on a machine that fetched its checkpoint it begins with
the step after that, and what the run was before stands in the checkpoint's state. Does not draw.

Fields carry their units; a share is between 0 and 1.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from datakit.storage.disk import at_door, write_atomic

METRICS_NAME = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one optimizer step was like.

    Attributes:
        step: From 1; the number of steps done.
        attempt: Which process life of the run did it, from 1.
        epoch: The epoch of its samples, from 0.
        loss: Mean cross entropy in nats over the step's supervised tokens.
        learning_rate: The rate that was applied.
        grad_norm: 2-norm of the gradient before clipping.
        samples: Samples of the step.
        tokens: Tokens of the step, without padding.
        supervised_tokens: Tokens that the loss counts.
        step_s: From the end of the step before to its own end, without saving.
        data_wait_s: Of that, waiting for the batch.
        save_stall_s: Saving between the step before and this one.
        tokens_per_s: tokens / step_s.
    """

    step: int
    attempt: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    samples: int
    tokens: int
    supervised_tokens: int
    step_s: float
    data_wait_s: float
    save_stall_s: float
    tokens_per_s: float


class MetricsFile:
    """The metrics of a run, continued behind a step.

    Args:
        path: The file; it need not be there.
        after_step: Lines of later steps are removed.
    """

    def __init__(self, path: Path, *, after_step: int) -> None:
        self.path = path
        self.after_step = after_step
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Cut the file behind the step and stand ready to add."""
        kept = [line for line in read_metrics(self.path) if line.get("step", 0) <= self.after_step]
        write_atomic(self.path, b"".join(_line(line) for line in kept))
        with at_door(self.path):
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 -- open for the length of the run

    def add(self, metrics: StepMetrics) -> None:
        """Add a step; it survives the death of the process at once."""
        assert self._file is not None
        with at_door(self.path):
            self._file.write(_line(dataclasses.asdict(metrics)))

    def sync(self) -> None:
        """Put what was added onto the disk; done before a checkpoint that stands for these steps."""
        assert self._file is not None
        with at_door(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, in order; one that a kill cut in two is left out."""
    if not path.is_file():
        return []
    with at_door(path):
        data = path.read_bytes()
    rows = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=False, allow_nan=True).encode() + b"\n"


@dataclass(slots=True)
class Totals:
    """What an attempt adds up to while it runs."""

    steps: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    step_s: float = 0.0
    data_wait_s: float = 0.0
    save_stall_s: float = 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Count a step."""
        self.steps += 1
        self.tokens += metrics.tokens
        self.supervised_tokens += metrics.supervised_tokens
        self.step_s += metrics.step_s
        self.data_wait_s += metrics.data_wait_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of stepping, without saving."""
        return self.tokens / self.step_s if self.step_s else 0.0

    @property
    def data_wait_share(self) -> float:
        """Share of stepping that waited for batches, 0 to 1."""
        return self.data_wait_s / self.step_s if self.step_s else 0.0
