"""train/batch: targets one to the left, only where the mask says so, nothing counted that is padding."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.feed.dataset import Item
from datakit.train.batch import IGNORED, Collate, Pass, StepBatch, read_tokens
from support.tiny import npy

SAMPLES = st.lists(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 1)), min_size=1, max_size=12), min_size=1, max_size=7
)


def item(pairs: list[tuple[int, int]], number: int = 0) -> Item:
    parts = {"ids.npy": npy([i for i, _ in pairs], "<i4"), "mask.npy": npy([m for _, m in pairs], "|u1")}
    return Item(number, f"k{number}", {name: memoryview(data) for name, data in parts.items()})


def test_the_target_of_a_position_is_the_token_after_it() -> None:
    """Shift, mask and padding of two samples, written out."""
    batch = Collate(2)([item([(8, 0), (9, 1)]), item([(5, 0), (6, 1), (7, 1)], 3)])

    (one,) = batch.passes
    assert one.ids.tolist() == [[8, 9], [5, 6]]
    assert one.targets.tolist() == [[9, IGNORED], [6, 7]]
    assert one.kept.tolist() == [0, 1]
    assert (batch.tokens, batch.supervised_tokens, batch.largest_id) == (5, 3, 9)
    assert batch.numbers.tolist() == [0, 3]


@given(samples=SAMPLES, batch_size=st.integers(1, 8))
def test_every_supervised_token_is_a_target_once(samples: list[list[tuple[int, int]]], batch_size: int) -> None:
    """Whatever the cut into passes, the targets are the masked tokens (the first of a sample has no context)."""
    batch = Collate(batch_size)([item(pairs, number) for number, pairs in enumerate(samples)])

    wanted = [token for pairs in sorted(samples, key=len) for token, mask in pairs[1:] if mask]
    found = [int(t) for part in batch.passes for row in part.targets for t in row if t != IGNORED]
    assert found == wanted
    assert batch.supervised_tokens == len(wanted)
    assert batch.tokens == sum(map(len, samples))
    assert [len(part.ids) for part in batch.passes] == [
        min(batch_size, len(samples) - start) for start in range(0, len(samples), batch_size)
    ]


@given(samples=SAMPLES, batch_size=st.integers(1, 8))
def test_passes_hold_samples_of_like_length(samples: list[list[tuple[int, int]]], batch_size: int) -> None:
    """No sample of a pass is longer than any of the next; padding is never more than in the order of arrival."""
    supervised = [[(token, 1) for token, _ in pairs] for pairs in samples]
    batch = Collate(batch_size)([item(pairs) for pairs in supervised])

    lengths = sorted(map(len, samples))
    longest = [lengths[min(start + batch_size, len(lengths)) - 1] for start in range(0, len(lengths), batch_size)]
    assert [part.ids.shape[1] for part in batch.passes] == [max(1, length - 1) for length in longest]


@given(samples=SAMPLES)
def test_kept_positions_are_those_with_a_target(samples: list[list[tuple[int, int]]]) -> None:
    """Logits are made at these positions and no others; nothing lies behind the last of them."""
    (part,) = Collate(8)([item(pairs) for pairs in samples]).passes

    has_target = (part.targets != IGNORED).any(dim=0)
    assert part.kept.tolist() == torch.nonzero(has_target).flatten().tolist()
    assert part.ids.shape[1] == max([1, *(position + 1 for position in part.kept.tolist())])


def test_what_is_no_tokenized_sample_is_named() -> None:
    """A missing part, a part that is no npy, pickled data, lengths that differ, fractions, nothing at all."""
    good, odd = npy([1, 2], "<i4"), npy([1], "|u1")
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)

    for parts, words in (
        ({"ids.npy": good}, r"sample k has no part mask\.npy"),
        ({"ids.npy": b"x", "mask.npy": odd}, r"part ids\.npy of sample k is not an npy array"),
        ({"ids.npy": pickled.getvalue(), "mask.npy": odd}, "is not an npy array"),
        ({"ids.npy": good, "mask.npy": odd}, "same length"),
        ({"ids.npy": npy([1, 2], "<f4"), "mask.npy": npy([1, 1], "|u1")}, "must be integers"),
        ({"ids.npy": npy([], "<i4"), "mask.npy": npy([], "|u1")}, "at least one"),
    ):
        with pytest.raises(InputError, match=words):
            read_tokens(Item(0, "k", {name: memoryview(data) for name, data in parts.items()}))


def test_a_rank_without_samples_gets_a_step_of_no_pass() -> None:
    """Under `exact` a trailing rank has none in the last step, and takes it with the others."""
    batch = Collate(4)([])

    assert (batch.passes, batch.tokens, batch.supervised_tokens, batch.largest_id) == ((), 0, 0, -1)
    assert len(batch.numbers) == 0


def test_torch_pins_the_passes_of_a_step() -> None:
    """Oracle: the function that its DataLoader calls on each batch."""
    from torch.utils.data._utils.pin_memory import pin_memory

    class Lockable(torch.Tensor):
        def pin_memory(self, device: Any = None) -> Any:
            return "pinned"

    tensors = [torch.zeros(1, 2).as_subclass(Lockable) for _ in range(3)]
    batch = StepBatch((Pass(*tensors),), torch.zeros(1), 2, 1, 0)

    pinned = pin_memory(batch)

    assert (pinned.passes[0].ids, pinned.passes[0].targets, pinned.passes[0].kept) == ("pinned",) * 3
