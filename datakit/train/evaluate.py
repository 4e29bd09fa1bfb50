"""evaluate: whether training helped: the loss over a dataset, and an answer to a question.

Promises: the same data, model and adapter give the same number: no sampling, no dropout, every sample once, fixed
order, and a chat template sees no clock. The loss is what training minimises, the mean cross entropy in nats over the
supervised tokens, and only the positions that count get logits, so that memory stays that of one batch. Does not train
and does not write.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.errors import InputError, MissingExtra
from datakit.events import OnEvent, Progress, ignore
from datakit.feed.dataset import Dataset, open_dataset
from datakit.machine import cores
from datakit.pack.tokenizer import Tokenizer
from datakit.train.batch import Collate, StepBatch, read_tokens
from datakit.train.model import (
    exact_arithmetic,
    identify,
    load_adapter,
    load_base,
    loss_sum,
    pick_device,
)

try:
    import torch
except ImportError:
    raise MissingExtra("torch", extra="train") from None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a model predicts a dataset.

    Attributes:
        loss: Mean cross entropy in nats over all supervised tokens.
        supervised_tokens: How many those are.
        samples: Samples of the dataset.
        seconds: How long it took, without loading the model.
    """

    loss: float
    supervised_tokens: int
    samples: int
    seconds: float


class Evaluator:
    """A base model with an adapter, loaded once, asked with the adapter and without it.

    Args:
        model: Directory of the base model.
        adapter: Directory of an adapter, or None for the base model alone.

    Raises:
        NotFound: Something is not there.
        IntegrityError: The bytes of the model, or of the adapter, are not what the manifest says.
    """

    def __init__(self, model: Path | str, adapter: Path | str | None = None) -> None:
        network = load_base(identify(model), precision="auto", device=pick_device())
        self._model = model
        self._adapted = adapter is not None
        self._network = (network if adapter is None else load_adapter(network, Path(adapter))).eval()

    def evaluate(
        self, dataset: Path | str, *, adapted: bool = True, batch_size: int = 8, on_event: OnEvent = ignore
    ) -> Evaluation:
        """The loss over every sample of a tokenized dataset.

        Args:
            dataset: Directory of a tokenized dataset.
            adapted: Whether the adapter is used.
            batch_size: Samples of one forward pass; changes memory and the last bits only.
            on_event: Hears progress in samples.

        Raises:
            InputError: The dataset is not tokenized, or no token of it is supervised.
        """
        data = open_dataset(dataset)
        with exact_arithmetic(threads=cores()), self._either(adapted=adapted) as network:
            began = time.perf_counter()
            total, supervised, done = 0.0, 0, 0
            for batch in _batches(data, batch_size):
                total += sum(float(loss_sum(network, part.to(network.device))) for part in batch.passes)
                supervised += batch.supervised_tokens
                done += len(batch.numbers)
                on_event(Progress("evaluate", done, len(data), "samples"))
        if supervised == 0:
            raise InputError(f"no token of {dataset} is supervised", hint="Look at its masks: datakit inspect DATASET")
        return Evaluation(total / supervised, supervised, len(data), time.perf_counter() - began)

    def answer(
        self, prompt: str, *, adapted: bool = True, max_new_tokens: int = 40, date: dt.date | None = None
    ) -> str:
        """What the model says to one message of a user: the likeliest token each time, on one line.

        Args:
            prompt: The user's message.
            adapted: Whether the adapter is used.
            max_new_tokens: Tokens after which the answer is cut.
            date: The date that a chat template sees: the one that the data was tokenized with, in its pack settings.

        Raises:
            InputError: The model's directory holds no tokenizer with a chat template, or the template asks for a date
                and none is given.
        """
        tokenizer, asked = _asked(self._model, prompt, date)
        with exact_arithmetic(threads=cores()), self._either(adapted=adapted) as network:
            tokens = torch.tensor([asked], device=network.device)
            said = network.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
        special = tokenizer.ends.special
        new = [token for token in said[0, len(asked) :].tolist() if token not in special]
        return " ".join(tokenizer.decode(new).split())

    @contextlib.contextmanager
    def _either(self, *, adapted: bool) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self._adapted and not adapted:
                stack.enter_context(self._network.disable_adapter())
            yield self._network


def evaluate(
    dataset: Path | str,
    *,
    model: Path | str,
    adapter: Path | str | None = None,
    batch_size: int = 8,
    on_event: OnEvent = ignore,
) -> Evaluation:
    """`Evaluator.evaluate` for one question: the loss of a model, with or without an adapter, over a dataset."""
    return Evaluator(model, adapter).evaluate(dataset, batch_size=batch_size, on_event=on_event)


def answer(
    prompt: str,
    *,
    model: Path | str,
    adapter: Path | str | None = None,
    max_new_tokens: int = 40,
    date: dt.date | None = None,
) -> str:
    """`Evaluator.answer` for one question."""
    _asked(model, prompt, date)  # before the weights are loaded
    return Evaluator(model, adapter).answer(prompt, max_new_tokens=max_new_tokens, date=date)


def _batches(data: Dataset, batch_size: int) -> Iterator[StepBatch]:
    """Every sample once, those of like length together, because padding costs as much as text."""
    lengths = [len(read_tokens(data[number])[0]) for number in range(len(data))]
    order = sorted(range(len(data)), key=lambda number: (lengths[number], number))
    collate = Collate(batch_size)
    for start in range(0, len(order), batch_size):
        yield collate([data[number] for number in order[start : start + batch_size]])


def _asked(model: Path | str, prompt: str, date: dt.date | None) -> tuple[Tokenizer, list[int]]:
    """The tokenizer of a model, and what it makes of a message: rendered and encoded as `tokenize` does it."""
    tokenizer = Tokenizer(model, date=date)
    text = tokenizer.render([{"role": "user", "content": prompt}], tools=None, answer_next=True)
    return tokenizer, tokenizer.encode([text])[0]
