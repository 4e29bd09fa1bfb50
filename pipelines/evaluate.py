"""evaluate: whether training helped: held-out loss before and after, and one question answered by both.

    python pipelines/evaluate.py                # 30 s on 2 cores: metrics/eval.json

Loss is the mean cross entropy in nats over the answers' tokens of the held-out split, which training never saw.
"Before" is the base model with the adapter switched off. Answers are greedy, so that they are the same every time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from metrics import write_metrics
from tie import die_with_parent

from datakit.feed.dataset import open_dataset
from datakit.train.batch import IDS_PART, Collate, StepBatch
from datakit.train.model import exact_arithmetic, identify, load_adapter, load_base, loss_sum, usable_threads

BASE, ADAPTER, HELD_OUT = Path("models/base"), Path("models/adapter"), Path("data/tier/held-out")
QUESTION = "Are you a robot?"
BATCH_SIZE = 8


def batches(dataset: Path) -> Iterator[StepBatch]:
    """All samples of a dataset, those of like length together, because padding costs as much as text."""
    samples = sorted(open_dataset(dataset), key=lambda sample: len(sample.parts[IDS_PART]))
    for start in range(0, len(samples), BATCH_SIZE):
        yield Collate(BATCH_SIZE)(samples[start : start + BATCH_SIZE])


def held_out_loss(model: Any) -> float:
    """Mean loss in nats over every token that is to be learned."""
    total, tokens = 0.0, 0
    for batch in batches(HELD_OUT):
        total += sum(loss_sum(model, part).item() for part in batch.passes)
        tokens += batch.supervised_tokens
    return total / tokens


def answer(model: Any, tokenizer: Any) -> str:
    """What the model says to the question, on one line."""
    asked = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return " ".join(tokenizer.decode(said, skip_special_tokens=True).split())


def evaluate() -> dict[str, Any]:
    """The numbers and the answers, before and after."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BASE, local_files_only=True)
    base = load_base(identify(BASE), precision="fp32", device=torch.device("cpu"))
    model = load_adapter(base, ADAPTER).eval()
    with torch.inference_mode():
        after = {"loss_after": held_out_loss(model), "answer_after": answer(model, tokenizer)}
        with model.disable_adapter():
            before = {"loss_before": held_out_loss(model), "answer_before": answer(model, tokenizer)}
    return {**before, **after, "question": QUESTION}


if __name__ == "__main__":
    if "DVC_STAGE" in os.environ:
        die_with_parent(os.getppid())
    with exact_arithmetic(threads=usable_threads()):
        write_metrics("eval", evaluate())
