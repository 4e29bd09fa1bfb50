"""train/recipe: settings that are valid once they exist, and know which of them decide the result."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import UsageError
from datakit.data import order
from datakit.train import recipe
from datakit.train.recipe import Recipe
from support.cli import environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", 0), ("alpha", 0), ("steps", 0), ("batch_size", 0), ("grad_accum", 0), ("save_every_steps", 0),
        ("keep", 0),
        ("warmup_steps", -1), ("weight_decay", -0.1), ("num_workers", -1), ("dropout", 1.0), ("dropout", -0.1),
        ("learning_rate", 0.0), ("learning_rate", math.inf), ("learning_rate", math.nan), ("max_grad_norm", 0.0),
        ("threads", 0), ("targets", ()), ("targets", ("",)), ("schedule", "wave"), ("precision", "fp64"), ("tail", "x"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    """Each bound is checked when the recipe is made; the message names the setting and the value."""
    with pytest.raises(UsageError, match=f"train.{name} is "):
        Recipe(**{name: value})


def test_the_defaults_are_those_of_the_papers_small_case() -> None:
    """Rank 8, alpha 16, q_proj and v_proj, dropout 0.05."""
    recipe = Recipe()

    assert (recipe.rank, recipe.alpha, recipe.dropout, recipe.targets) == (8, 16, 0.05, ("q_proj", "v_proj"))


CHANGES = {
    "rank": 4, "alpha": 8, "dropout": 0.0, "targets": ("q_proj",), "steps": 31, "batch_size": 2, "grad_accum": 2,
    "learning_rate": 1e-3, "schedule": "linear", "warmup_steps": 0, "weight_decay": 0.1, "max_grad_norm": None,
    "seed": 1,
    "tail": "pad", "precision": "bf16", "save_every_steps": 1, "keep": 1, "num_workers": 2, "threads": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Recipe)])
def test_the_digest_changes_with_what_decides_the_result_and_with_nothing_else(name: str) -> None:
    """Speed and safety (workers, threads, saving, keeping) may change at a resume; nothing else may."""
    changed = Recipe(**{name: CHANGES[name]})

    assert (changed.digest() == Recipe().digest()) == (name in {"save_every_steps", "keep", "num_workers", "threads"})


def test_the_digest_is_the_same_for_ever() -> None:
    """It names run directories and stands in lineages."""
    assert Recipe().digest() == "d6a72267e50b0c6106e984817e20de2d1de20e98f18db5017a102c687dfe75e8"


@given(
    schedule=st.sampled_from(["cosine", "linear", "constant"]), steps=st.integers(1, 200), warmup=st.integers(0, 250)
)
def test_the_rate_is_that_of_transformers(schedule: Any, steps: int, warmup: int) -> None:
    """Oracle: `transformers.get_scheduler` gives the same rate for every step."""
    import torch
    from transformers import get_scheduler

    recipe = Recipe(schedule=schedule, steps=steps, warmup_steps=warmup, learning_rate=0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    factor = scheduler.lr_lambdas[0]

    assert [recipe.learning_rate_at(step) for step in range(steps)] == pytest.approx(
        [0.5 * factor(step) for step in range(steps)], abs=1e-15
    )


def test_a_rehearsal_is_small_and_keeps_the_shape() -> None:
    """Three steps of at most two samples, saved in between; rank, targets and rates stay."""
    small = Recipe(batch_size=16, grad_accum=4, rank=32).rehearsal()

    assert (small.steps, small.batch_size, small.grad_accum, small.save_every_steps) == (3, 2, 1, 2)
    assert small.rank == 32


def test_it_loads_no_heavy_library() -> None:
    """Settings and the command line read it without torch or numpy."""
    code = (
        "import sys, datakit.train.recipe; print(sorted({'torch', 'numpy', 'transformers', 'peft'} & set(sys.modules)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())

    assert out.stdout.strip() == "[]"


def test_its_tails_are_those_of_the_order() -> None:
    """The names stand twice, because the order's room loads numpy and this one loads nothing."""
    assert get_args(recipe.TAILS) == get_args(order.Tail)
