"""train/step: the Hugging Face Trainer with peft takes the same steps, and a step does not care how it is cut."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from datakit import open_dataset
from datakit.feed.loader import Loader
from datakit.train.batch import IGNORED, Collate, StepBatch, read_tokens
from datakit.train.model import attach_adapter, identify, load_base, trainable
from datakit.train.recipe import Recipe
from datakit.train.step import NOTHING_CONSUMED, Stepper, first_state, make_optimizer

CPU = torch.device("cpu")
COMMON: dict[str, Any] = {
    "steps": 10,
    "rank": 4,
    "alpha": 8,
    "dropout": 0.0,
    "learning_rate": 2e-2,
    "warmup_steps": 3,
    "max_grad_norm": 0.5,
    "seed": 3,
}


def network(base_dir: Path, recipe: Recipe) -> Any:
    base = load_base(identify(base_dir), precision="fp32", device=CPU)
    return attach_adapter(base, recipe).train()


def stepper(base_dir: Path, tokens_dir: Path, recipe: Recipe) -> Stepper:
    model = network(base_dir, recipe)
    parameters = trainable(model)
    loader: Loader[StepBatch] = Loader(
        open_dataset(tokens_dir),
        batch_size=recipe.samples_per_step,
        seed=recipe.seed,
        collate=Collate(recipe.batch_size),
        tail="drop",
    )
    return Stepper(
        model,
        parameters=parameters,
        optimizer=make_optimizer(parameters, recipe),
        loader=loader,
        recipe=recipe,
        state=first_state(identity={}, geometry={}),
        attempt=1,
    )


def theirs(
    base_dir: Path, tokens_dir: Path, recipe: Recipe, output: Path
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Per-step losses and the final adapter of the Hugging Face Trainer over the same samples in the same order."""
    from transformers import Trainer, TrainingArguments

    dataset = open_dataset(tokens_dir)
    loader: Loader[list[int]] = Loader(
        dataset,
        batch_size=recipe.samples_per_step,
        seed=recipe.seed,
        collate=lambda items: [i.number for i in items],
        tail="drop",
    )
    numbers: list[int] = []
    while len(numbers) < recipe.steps * recipe.samples_per_step:
        numbers += [number for batch in loader for number in batch]

    def collate(rows: Sequence[dict[str, int]]) -> dict[str, torch.Tensor]:
        pairs = [read_tokens(dataset[row["number"]]) for row in rows]
        length = max(len(ids) for ids, _ in pairs)
        ids, labels, attention = (torch.full((len(pairs), length), fill) for fill in (0, IGNORED, 0))
        for row, (tokens, mask) in enumerate(pairs):
            ids[row, : len(tokens)] = torch.from_numpy(tokens.astype("i8"))
            labels[row, : len(tokens)] = torch.where(
                torch.from_numpy(mask.astype("i8")) == 1, torch.from_numpy(tokens.astype("i8")), IGNORED
            )
            attention[row, : len(tokens)] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": attention}

    losses: list[float] = []

    class Recorder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
            loss = super().training_step(*args, **options)
            losses.append(float(loss))
            return loss

    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.grad_accum,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=recipe.warmup_steps,
        max_grad_norm=recipe.max_grad_norm,
        weight_decay=recipe.weight_decay,
        optim="adamw_torch",
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    model = network(base_dir, recipe)
    rows = [{"number": number} for number in numbers[: recipe.steps * recipe.samples_per_step]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these libraries say to each other is not under test
        Recorder(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
    steps = [sum(losses[i : i + recipe.grad_accum]) for i in range(0, len(losses), recipe.grad_accum)]
    return steps, {name: parameter.detach() for name, parameter in trainable(model).items()}


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(4, 1), (2, 2), pytest.param(1, 4, marks=pytest.mark.prove)])
def test_the_hugging_face_trainer_has_the_same_losses_and_the_same_adapter(
    base_dir: Path, tokens_dir: Path, tmp_path: Path, batch_size: int, grad_accum: int
) -> None:
    """Oracle: transformers' Trainer with peft in fp32, with accumulation, clipping, warm-up and a cosine."""
    recipe = Recipe(**COMMON, batch_size=batch_size, grad_accum=grad_accum)
    ours = stepper(base_dir, tokens_dir, recipe)

    rows = [ours.take() for _ in range(recipe.steps)]
    their_losses, their_adapter = theirs(base_dir, tokens_dir, recipe, tmp_path)

    assert max(abs(row.loss - loss) for row, loss in zip(rows, their_losses, strict=True)) < 1e-5
    assert any(row.grad_norm > 0.5 for row in rows), "clipping was never needed: the test proves less than it says"
    for name, parameter in ours.parameters.items():
        torch.testing.assert_close(parameter.detach(), their_adapter[name], rtol=0, atol=1e-5)


def test_a_step_is_the_same_however_it_is_cut_into_passes(base_dir: Path, tokens_dir: Path) -> None:
    """1x4, 2x2 and 4x1 give the same losses and norms, although samples have different numbers of supervised tokens."""
    curves = []
    for batch_size, grad_accum in ((4, 1), (2, 2), (1, 4)):
        one = stepper(base_dir, tokens_dir, Recipe(**COMMON, batch_size=batch_size, grad_accum=grad_accum))
        curves.append([(row.loss, row.grad_norm) for row in (one.take() for _ in range(8))])

    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[2]), rtol=0, atol=1e-5)


def test_dropout_differs_between_steps_and_passes_and_not_between_runs(base_dir: Path, tokens_dir: Path) -> None:
    """Dropout is on, drawn anew in each pass, and repeatable."""
    recipe = Recipe(**{**COMMON, "dropout": 0.5}, batch_size=2, grad_accum=2)

    curves = [[one.take().loss for _ in range(6)] for one in (stepper(base_dir, tokens_dir, recipe) for _ in range(2))]
    without = stepper(base_dir, tokens_dir, Recipe(**COMMON, batch_size=2, grad_accum=2))

    assert curves[0] == curves[1]
    assert curves[0] != [without.take().loss for _ in range(6)]


def test_the_counters_move_with_the_steps(base_dir: Path, tokens_dir: Path) -> None:
    """Cursor, samples, tokens and the digest of what was consumed."""
    one = stepper(base_dir, tokens_dir, Recipe(**COMMON, batch_size=4))
    other = stepper(base_dir, tokens_dir, Recipe(**{**COMMON, "seed": 4}, batch_size=4))

    rows = [one.take() for _ in range(4)]
    other.take()

    assert one.state.step == 4
    assert one.state.cursor == one.loader.cursor
    assert (one.state.cursor.epoch, one.state.cursor.samples) == (1, 4)
    assert one.state.samples == 16
    assert one.state.tokens == sum(row.tokens for row in rows)
    assert one.state.supervised_tokens == sum(row.supervised_tokens for row in rows)
    assert len({one.state.order_digest, other.state.order_digest, NOTHING_CONSUMED}) == 3


def test_only_the_adapter_moves(base_dir: Path, tokens_dir: Path) -> None:
    """The base model's weights have the same bits after training."""
    one = stepper(base_dir, tokens_dir, Recipe(**COMMON, batch_size=4))
    before = {name: p.detach().clone() for name, p in one.model.named_parameters() if not p.requires_grad}
    adapter = {name: p.detach().clone() for name, p in one.parameters.items()}

    for _ in range(3):
        one.take()

    after = dict(one.model.named_parameters())
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(torch.equal(tensor, one.parameters[name]) for name, tensor in adapter.items())
