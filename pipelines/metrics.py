"""metrics: the few numbers of a stage that people compare, for `dvc metrics show`.

    python pipelines/metrics.py pack            # data/pack.json -> metrics/pack.json
    python pipelines/metrics.py train           # data/train.json and the run's metrics.jsonl -> metrics/train.json

A training that was killed and resumed is one run: its numbers are summed over all its attempts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datakit.storage.disk import write_atomic
from datakit.train.metrics import METRICS_NAME, read_metrics

METRICS = Path("metrics")


def receipt(name: str) -> dict[str, Any]:
    """The result that a command printed under `--json`."""
    return json.loads(Path(f"data/{name}.json").read_bytes())["result"]


def pack_metrics() -> dict[str, Any]:
    """Records, samples and shards, by split."""
    result = receipt("pack")
    splits = {
        one["split"]: {name: one[name] for name in ("samples", "shards", "shard_bytes")} for one in result["datasets"]
    }
    return {"records": result["records"], "source_bytes": result["source_bytes"], **splits}


def train_metrics() -> dict[str, Any]:
    """Speed, waiting and loss of the whole run."""
    rows = read_metrics(Path(receipt("train")["run"]) / METRICS_NAME)
    tokens, step_s = sum(row["tokens"] for row in rows), sum(row["step_s"] for row in rows)
    return {
        "steps": len(rows),
        "samples": sum(row["samples"] for row in rows),
        "tokens": tokens,
        "supervised_tokens": sum(row["supervised_tokens"] for row in rows),
        "tokens_per_s": round(tokens / step_s, 1),
        "data_wait_share": round(sum(row["data_wait_s"] for row in rows) / step_s, 6),
        "save_stall_s": round(sum(row["save_stall_s"] for row in rows), 3),
        "loss_first": rows[0]["loss"],
        "loss_last": rows[-1]["loss"],
    }


def write_metrics(name: str, values: dict[str, Any]) -> None:
    """Put the numbers of a stage into metrics/; ASCII, because DVC takes much else for binary."""
    METRICS.mkdir(exist_ok=True)
    write_atomic(METRICS / f"{name}.json", json.dumps(values, indent=2).encode() + b"\n")


if __name__ == "__main__":
    write_metrics(sys.argv[1], {"pack": pack_metrics, "train": train_metrics}[sys.argv[1]]())
