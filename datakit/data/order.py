"""order: the sequence in which an epoch visits samples, and how far along it we are.

Promises: the order depends on (dataset digest, seed, epoch) alone, never on ranks, workers or batch size; any position
is computed directly, so that memory is constant in the number of samples and resuming costs the same anywhere; an epoch
is a permutation, so each sample is visited exactly once, and what the tail leaves out or repeats is counted.

Does not read data and does not know files: it maps a position in an epoch to the number of a sample.

Source of the permutation: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: a generalised
Feistel network over Z_a x Z_b with cycle walking; here a = ceil(sqrt(n)) and b = ceil(n / a), so that fewer than a
values lie outside the domain. Round keys are SHAKE128 (FIPS 202) of the three inputs; the round function is the last
mix of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014). It is a shuffle, not a secret.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from datakit.errors import InputError, UsageError
from datakit.units import agree, format_number_of

Tail: TypeAlias = Literal["drop", "pad", "exact"]
"""What happens to the samples of an epoch that do not fill a last global batch: left out; filled up by repeating the
epoch's first samples, which `Geometry.repeated` counts; or delivered as a shorter last batch, in which later ranks may
have none."""

ORDER_FORMAT = 1
"""Changes whenever the same (digest, seed, epoch) would give another order; part of every stored cursor."""

# Even, so that both halves are changed equally often. With 8 rounds, 5 samples showed some of their 120 orders twice as
# often as others (chi-square 242 over 6000 seeds, 119 expected); with 32 none. tests/data/test_order.py compares.
_ROUNDS = 8
_ROUNDS_OF_FEW = 32
_FEW_SAMPLES = 1024
_KEY_BYTES = 8
_Values: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a dataset under a seed: a permutation of `range(num_samples)` for each epoch.

    Args:
        num_samples: Samples in the dataset, at least 1.
        digest: What identifies the dataset (its layout digest).
        seed: The user's seed; any integer.

    Example:
        >>> order = Order(5, digest="", seed=7)
        >>> sorted(order.span(0, 0, 5).tolist())
        [0, 1, 2, 3, 4]

    Raises:
        InputError: There are no samples to order.
    """

    num_samples: int
    digest: str
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise InputError(
                f"an order needs at least one sample, the dataset has {self.num_samples}",
                hint="Name a dataset that holds samples",
            )

    def at(self, epoch: int, position: int) -> int:
        """The number of the sample that the epoch visits at a position."""
        return int(self.span(epoch, position, position + 1)[0])

    def span(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The numbers of the samples that the epoch visits at positions start to stop, as int64 [stop - start].

        Raises:
            UsageError: The positions are not within 0 .. num_samples, or the epoch is negative.
        """
        if not 0 <= start <= stop <= self.num_samples or epoch < 0:
            raise UsageError(
                f"epoch {epoch} has no positions {start} to {stop}: it has {self.num_samples} samples",
                hint=f"Ask for positions from 0 to {self.num_samples}, of epochs from 0",
            )
        keys = self._round_keys(epoch)
        values = self._permute(np.arange(start, stop, dtype=np.uint64), keys)
        outside = np.flatnonzero(values >= self.num_samples)
        while outside.size:
            values[outside] = self._permute(values[outside], keys)
            outside = outside[values[outside] >= self.num_samples]
        return values.astype(np.int64)

    def _round_keys(self, epoch: int) -> list[np.uint64]:
        text = f"datakit.order.{ORDER_FORMAT}\0{self.digest}\0{self.seed}\0{epoch}"
        rounds = _ROUNDS_OF_FEW if self.num_samples < _FEW_SAMPLES else _ROUNDS
        raw = hashlib.shake_128(text.encode()).digest(rounds * _KEY_BYTES)
        return [np.uint64(int.from_bytes(raw[i : i + _KEY_BYTES], "little")) for i in range(0, len(raw), _KEY_BYTES)]

    def _permute(self, values: _Values, keys: list[np.uint64]) -> _Values:
        rows = math.isqrt(self.num_samples - 1) + 1
        columns = -(-self.num_samples // rows)
        size_left, size_right = np.uint64(rows), np.uint64(columns)
        left, right = values // size_right, values % size_right
        for i, key in enumerate(keys):
            if i % 2 == 0:
                left = (left + _mix(right + key) % size_left) % size_left
            else:
                right = (right + _mix(left + key) % size_right) % size_right
        return left * size_right + right


def _mix(values: _Values) -> _Values:
    """The last mix of SplitMix64; uint64 arithmetic wraps."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a run has come: so many samples of an epoch are consumed, by all ranks together.

    Attributes:
        epoch: The epoch under way, from 0.
        samples: Samples of it that were consumed (not: fetched ahead).
    """

    epoch: int = 0
    samples: int = 0

    def to_json(self) -> dict[str, int]:
        """As two integers."""
        return {"epoch": self.epoch, "samples": self.samples}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cursor:
        """From what `to_json` gave.

        Raises:
            InputError: The value is not a cursor.
        """
        epoch, samples = value.get("epoch"), value.get("samples")
        if not (type(epoch) is int and type(samples) is int and epoch >= 0 and samples >= 0):
            raise InputError(
                f"not a cursor: {dict(value)!r}",
                hint="A cursor has epoch and samples, whole numbers from 0: take it as it was saved",
                subject=value,
            )
        return cls(epoch, samples)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How an epoch is cut into steps: which positions each rank takes at each step.

    Args:
        num_samples: Samples in an epoch.
        batch_size: Samples that one rank takes at a step.
        world_size: Ranks.
        tail: What happens to the last, incomplete global batch.

    Raises:
        UsageError: A size is not positive or the tail has no such name.
    """

    num_samples: int
    batch_size: int
    world_size: int = 1
    tail: Tail = "drop"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.world_size < 1:
            raise UsageError(
                f"batch_size {self.batch_size} and world_size {self.world_size} make no batch",
                hint="Both must be 1 or more",
            )
        if self.tail not in get_args(Tail):
            raise UsageError(f"no tail policy is called {self.tail!r}", hint=f"Choose {', '.join(get_args(Tail))}")

    @property
    def global_batch(self) -> int:
        """Samples that all ranks take at a step."""
        return self.batch_size * self.world_size

    def steps_left(self, samples: int) -> int:
        """Steps until the epoch ends when so many of its samples are consumed; the same for every rank."""
        return steps_per_epoch(self.num_samples - samples, global_batch=self.global_batch, tail=self.tail)

    def dropped(self, samples: int = 0) -> int:
        """Samples that the epoch leaves out at its end when it is continued from so many consumed samples."""
        return (self.num_samples - samples) % self.global_batch if self.tail == "drop" else 0

    def repeated(self, samples: int = 0) -> int:
        """Samples that the epoch delivers twice at its end when it is continued from so many consumed samples."""
        return -(self.num_samples - samples) % self.global_batch if self.tail == "pad" else 0

    def share(self, samples: int, *, rank: int) -> tuple[int, int]:
        """The positions [start, stop) that a rank takes at the step that begins after so many consumed samples.

        Under `pad`, positions from `num_samples` on stand for the epoch's beginning (`position % num_samples`).
        """
        start, stop = samples + rank * self.batch_size, samples + (rank + 1) * self.batch_size
        if self.tail == "pad":
            return start, stop
        return min(start, self.num_samples), min(stop, self.num_samples)

    def after(self, cursor: Cursor) -> Cursor:
        """Where the next step begins once the step that begins at `cursor` is consumed."""
        return self.normal(Cursor(cursor.epoch, min(cursor.samples + self.global_batch, self.num_samples)))

    def normal(self, cursor: Cursor) -> Cursor:
        """The same place in the one way it is written: an epoch with no step left is the next epoch's beginning.

        Raises:
            InputError: An epoch has no step at all, or the cursor lies beyond the epoch's end.
        """
        if self.steps_left(0) < 1:
            some = format_number_of(self.num_samples, "sample")
            raise InputError(
                f"{some} {agree(self.num_samples, 'does', 'do')} not fill one batch of {self.global_batch}",
                hint="Lower the batch size, or choose the tail policy pad or exact",
                subject=self.num_samples,
            )
        if cursor.samples > self.num_samples:
            raise InputError(
                f"a cursor at sample {cursor.samples} lies beyond the epoch's {self.num_samples}",
                hint="Take the cursor that was saved for this dataset",
            )
        return cursor if self.steps_left(cursor.samples) else Cursor(cursor.epoch + 1)


def steps_per_epoch(num_samples: int, *, global_batch: int, tail: Tail = "drop") -> int:
    """Steps that an epoch of so many samples takes, for every rank alike."""
    return num_samples // global_batch if tail == "drop" else -(-num_samples // global_batch)
