"""result: how a training ended, as a value.

Units stand in the names; a share is between 0 and 1. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from datakit.errors import DatakitError
from datakit.storage.counts import RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that this attempt committed.

    Attributes:
        name: `step-<8 digits>`.
        local: Whether it is still on the local disk.
        remote: `verified`, or what stands in the way; None where nothing is written back.
    """

    name: str
    local: bool
    remote: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a training ended.

    Attributes:
        adapter: Directory of the finished adapter, a commit that stock `peft` loads.
        run: The run directory.
        steps: Steps that are done in all.
        attempt: Number of this process life of the run.
        resumed_from: The checkpoint that this attempt continued, with its source; None when it began anew.
        loss: Of the last step; None where this attempt took no step.
        loss_first: Of the run's first step, in whichever attempt; None where its state does not tell.
        loss_last: Of the run's last step so far; likewise.
        samples: Samples consumed in all.
        tokens: Their tokens.
        supervised_tokens: Their tokens that the loss counted.
        tokens_per_s: Of this attempt, saving not counted.
        data_wait_share: Share of this attempt's stepping that waited for data, 0 to 1.
        save_stall_s: Seconds that this attempt spent saving.
        seconds: From start to end of this attempt.
        order_digest: Digest of the sequence of consumed samples.
        checkpoints: Those committed by this attempt, oldest first.
        write_back: Where commits are written back to, or None.
        adapter_copy: URL of the adapter's verified copy there, or None.
        requests: Requests that this attempt made there, by class, and their bytes.
        unpublished: Commits that have no verified copy there, with the reason; empty when all have one.
        unpublished_kinds: The class of each of these reasons; that of a store that is away where nothing else is known.
    """

    adapter: Path
    run: Path
    steps: int
    attempt: int
    resumed_from: str | None
    loss: float | None
    loss_first: float | None
    loss_last: float | None
    samples: int
    tokens: int
    supervised_tokens: int
    tokens_per_s: float
    data_wait_share: float
    save_stall_s: float
    seconds: float
    order_digest: str
    checkpoints: tuple[SavedCheckpoint, ...]
    write_back: str | None
    adapter_copy: str | None
    requests: RequestCounts
    unpublished: Mapping[str, str]
    unpublished_kinds: Mapping[str, type[DatakitError]] = field(repr=False)
