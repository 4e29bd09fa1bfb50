"""loader: the batches of an epoch, in the dataset's order, from the consumed position on.

Promises (laws 1 to 3 of docs/design.md): over any world size, worker count, batch size and cut point an epoch delivers
each sample exactly once and gives all ranks the same number of steps, what the tail drops or repeats is chosen by name;
the state is a few integers, counts what was handed out and not what was fetched ahead, and costs the same anywhere.

Workers get arrays of sample numbers and give back what `collate` made (torch tensors travel through shared memory).
How they live and end is for `workers`. Does not decode and does not mix datasets.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from datakit.data.order import ORDER_FORMAT, Cursor, Geometry, Order, Tail
from datakit.errors import InputError, MissingExtra, Refused, UsageError
from datakit.feed.dataset import Dataset
from datakit.feed.mapped import Item
from datakit.feed.workers import Workers
from datakit.units import format_count, format_number_of

try:
    import torch
except ImportError:
    raise MissingExtra("torch", extra="train") from None


T = TypeVar("T")
Numbers = npt.NDArray[np.int64]

STATE_FORMAT = 1
_BLOCK_SAMPLES = 8192
"""Positions permuted at once: one permuted alone costs 110 us, one in a block 0.2 us (measured 2026-11-30)."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Byte strings of any length, as two tensors that travel between processes without being copied or pickled.

    Attributes:
        data: All bytes behind each other, uint8.
        ends: Where each string ends in `data`, int64.
    """

    data: torch.Tensor
    ends: torch.Tensor

    def pin_memory(self) -> Ragged:
        """The same in page-locked memory; torch's DataLoader asks for it by this name."""
        return Ragged(self.data.pin_memory(), self.ends.pin_memory())

    @classmethod
    def of(cls, pieces: Sequence[bytes | memoryview]) -> Ragged:
        """Join byte strings."""
        joined = np.frombuffer(bytearray().join(pieces), np.uint8)
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        return cls(torch.from_numpy(joined), torch.from_numpy(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, position: int) -> memoryview:
        if not 0 <= position < len(self):
            raise IndexError(position)
        start = int(self.ends[position - 1]) if position else 0
        return self.data.numpy()[start : int(self.ends[position])].data


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loader yields when no `collate` is given.

    Attributes:
        keys: The samples' keys.
        numbers: Their numbers in the dataset, int64.
        parts: For each part, the bytes of all samples; a sample without the part has none there.
    """

    keys: tuple[str, ...]
    numbers: torch.Tensor
    parts: Mapping[str, Ragged]

    def pin_memory(self) -> Batch:
        """The same in page-locked memory."""
        parts = {name: ragged.pin_memory() for name, ragged in self.parts.items()}
        return Batch(self.keys, self.numbers.pin_memory(), parts)


def as_bytes(items: Sequence[Item]) -> Batch:
    """The default `collate`: the samples' bytes, undecoded."""
    names = sorted({part for item in items for part in item.parts})
    return Batch(
        keys=tuple(item.key for item in items),
        numbers=torch.tensor([item.number for item in items], dtype=torch.int64),
        parts={name: Ragged.of([item.parts.get(name, b"") for item in items]) for name in names},
    )


class Loader(Generic[T]):
    """Batches of a dataset; each `for` runs to the end of the epoch that is under way.

    Args:
        dataset: What `open_dataset` gave.
        batch_size: Samples of a batch of this rank.
        seed: Of the order; any integer.
        num_workers: Processes that read and collate; 0 reads here.
        prefetch_factor: Batches that each worker prepares ahead.
        collate: Makes a batch of a list of `Item`; None gives `Batch`. It is pickled for the workers.
        tail: `drop`, `pad` or `exact`: what happens to samples that do not fill a last global batch. Under `exact` the
            last batch of later ranks may hold no sample: `collate` gets an empty list, and all ranks take the step.
            None is `drop`, with a `UserWarning` on rank 0 that tells how many an epoch leaves out.
        rank: This process among those that read together.
        world_size: How many read together.
        pin_memory: Put what workers made into page-locked memory, by the `pin_memory()` of its class; needs a GPU.
        on_wait: Called about once a second while workers have no batch yet; what it raises ends the iteration, and the
            batch that was waited for is not consumed.

    Raises:
        UsageError: A number is out of its range.
        InputError: The dataset does not fill one batch.

    Example:
        >>> loader = Loader(dataset, batch_size=16, seed=7)  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     state = loader.state_dict()
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        seed: int = 0,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        collate: Callable[[Sequence[Item]], T] | None = None,
        tail: Tail | None = None,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UsageError(
                f"rank {rank} is not one of {world_size} ranks", hint="Ranks count from 0 to world_size - 1"
            )
        if num_workers < 0 or prefetch_factor < 1:
            raise UsageError(
                f"a loader cannot have num_workers {num_workers} with prefetch_factor {prefetch_factor}",
                hint="num_workers must be at least 0, prefetch_factor at least 1",
            )
        self.dataset = dataset
        self.order = Order(len(dataset), digest=dataset.digest, seed=seed)
        self.geometry = Geometry(len(dataset), batch_size, world_size=world_size, tail="drop" if tail is None else tail)
        self.rank = rank
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        # without a collate T is Batch; a type checker cannot know what a default binds
        self._fetch = _Fetch(dataset, collate or cast("Callable[[Sequence[Item]], T]", as_bytes))
        self._cursor = self.geometry.normal(Cursor())
        self._turn = 0
        self._pool: Workers[T] | None = None
        self._on_wait = on_wait or _wait_on
        self._plan: Iterator[Numbers] = iter(())
        if tail is None and rank == 0 and (left := self.geometry.dropped()):
            said = f"{format_number_of(left, 'sample')} of {format_count(len(dataset))}, which do not fill a last batch"
            choose = "Choose by name: tail='drop', 'pad' or 'exact'"
            warnings.warn(f"each epoch leaves out {said} of {self.geometry.global_batch}. {choose}", stacklevel=2)

    @property
    def cursor(self) -> Cursor:
        """Where the next batch begins: what was handed out is consumed, what was fetched ahead is not."""
        return self._cursor

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` delivers, or goes on with."""
        return self._cursor.epoch

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.geometry.steps_left(0)

    def __iter__(self) -> Iterator[T]:
        self._turn += 1
        turn, cursor = self._turn, self._cursor
        for batch in self._batches(cursor):
            cursor = self.geometry.after(cursor)
            self._cursor = cursor
            yield batch
            if turn != self._turn:
                raise UsageError(
                    "the loader was started anew, moved or closed while this iteration was under way",
                    hint="Use one iteration at a time, and begin a new one: for batch in loader",
                )

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON: integers and the dataset's digest."""
        return {
            "format": STATE_FORMAT,
            "order_format": ORDER_FORMAT,
            "digest": self.dataset.digest,
            "num_samples": len(self.dataset),
            "seed": self.order.seed,
            **self._cursor.to_json(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, also with another batch size, worker count or world size.

        Raises:
            Refused: The state belongs to other data, another seed or another way of ordering; both values are named.
            InputError: It is not a loader's state.
        """
        own = self.state_dict()
        if set(state) != set(own):
            hint = "Give what a loader's state_dict() gave"
            raise InputError(f"not a loader's state: it has {', '.join(sorted(state))}", hint=hint, subject=dict(state))
        names = {"digest": "data", "num_samples": "samples", "seed": "seed"}
        for field in ("format", "order_format", "digest", "num_samples", "seed"):
            if state[field] != own[field]:
                raise Refused(
                    f"the state was taken with {names.get(field, field)} {state[field]}, this loader has {own[field]}",
                    hint="Open the dataset that the state names, or begin anew without a state",
                    subject=field,
                )
        self.seek(Cursor.from_json(state))

    def seek(self, cursor: Cursor) -> None:
        """Go to a position."""
        self._cursor = self.geometry.normal(cursor)
        self._turn += 1

    def close(self) -> None:
        """End the workers and the loop that is under way; the loader starts new ones when it is used again."""
        self._turn += 1
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def numbers(self, cursor: Cursor) -> Iterator[Numbers]:
        """The sample numbers of each batch of this rank, from a cursor to the end of its epoch."""
        return _numbers(self.order, self.geometry, cursor, rank=self.rank)

    def _batches(self, cursor: Cursor) -> Iterator[T]:
        if self.num_workers == 0:
            return map(self._fetch.__getitem__, self.numbers(cursor))
        self._plan = self.numbers(cursor)
        if self._pool is None:
            self._pool = self._start()
        return self._pool.batches()

    def _start(self) -> Workers[T]:
        return Workers(
            self._fetch,
            plan=_Plan(self),
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            pin_memory=self.pin_memory,
            on_wait=self._on_wait,
        )


def _numbers(order: Order, geometry: Geometry, cursor: Cursor, *, rank: int) -> Iterator[Numbers]:
    size = geometry.num_samples
    low, block = 0, np.empty(0, np.int64)
    for step in range(geometry.steps_left(cursor.samples)):
        begin = cursor.samples + step * geometry.global_batch
        start, stop = geometry.share(begin, rank=rank)
        if stop > size:
            # a padded tail repeats the epoch's beginning
            yield np.array([order.at(cursor.epoch, at % size) for at in range(start, stop)], np.int64)
            continue
        if stop > low + len(block):
            low = start
            block = order.span(cursor.epoch, start, min(size, max(stop, start + _BLOCK_SAMPLES)))
        yield block[start - low : stop - low]


class _Fetch(Generic[T]):
    """What a worker holds: the dataset, and how to make a batch of its samples."""

    def __init__(self, dataset: Dataset, collate: Callable[[Sequence[Item]], T]) -> None:
        self.dataset = dataset
        self.collate = collate

    def __getitem__(self, numbers: Numbers) -> T:
        return self.collate([self.dataset[int(number)] for number in numbers])


class _Plan:
    """The sampler that torch asks for index arrays; follows wherever the loader was put."""

    def __init__(self, loader: Loader[Any]) -> None:
        # without a cycle a loader that nobody holds any more takes its workers along at once; when the collector finds
        # one in a cycle, the queues are closed before torch tells the workers, and it waits 5 s for each of them
        self._loader = weakref.ref(loader)

    def __iter__(self) -> Iterator[Numbers]:
        return self._living()._plan

    def __len__(self) -> int:
        loader = self._living()
        return loader.geometry.steps_left(loader.cursor.samples)

    def _living(self) -> Loader[Any]:
        loader = self._loader()
        assert loader is not None, "the DataLoader is its loader's own"
        return loader


def _wait_on() -> None:
    """Go on waiting."""
