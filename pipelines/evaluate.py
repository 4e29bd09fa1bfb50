"""evaluate: whether training helped: held-out loss before and after, and one question answered by both.

    python pipelines/evaluate.py                # 1 min on 2 cores: metrics/eval.json

"Before" is the base model alone, "after" the same with the adapter. The held-out split was never trained on.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from datakit.cli import frame
from datakit.feed.dataset import open_dataset
from datakit.train.evaluate import Evaluator
from metrics import write_metrics
from tie import die_with_parent

BASE, ADAPTER, HELD_OUT = Path("models/base"), Path("models/adapter"), Path("data/tier/held-out")
QUESTION = "What is AI?"


def main() -> dict[str, Any]:
    """The numbers and the answers."""
    both = Evaluator(BASE, ADAPTER)
    tokenized_on = open_dataset(HELD_OUT).manifest.contents.pack.get("date")
    date = None if tokenized_on is None else dt.date.fromisoformat(tokenized_on)
    before, after = (both.evaluate(HELD_OUT, adapted=adapted) for adapted in (False, True))
    return {
        "loss_before": before.loss,
        "loss_after": after.loss,
        "samples": after.samples,
        "supervised_tokens": after.supervised_tokens,
        "question": QUESTION,
        "answer_before": both.answer(QUESTION, adapted=False, date=date),
        "answer_after": both.answer(QUESTION, date=date),
    }


if __name__ == "__main__":
    if "DVC_STAGE" in os.environ:
        die_with_parent(os.getppid())
    with frame.run("evaluate"):
        write_metrics("eval", main())
