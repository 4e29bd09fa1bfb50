"""metrics: the few numbers of a stage that people compare, for `dvc metrics show`.

    python pipelines/metrics.py pack            # data/pack.json -> metrics/pack.json
    python pipelines/metrics.py train           # data/train.json and the run's metrics.jsonl -> metrics/train.json

A training that was killed and resumed is one run: its numbers are summed over all its attempts. What it consumed
stands in its last checkpoint; speed and loss are known for the steps that this machine took, and null where it took
none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datakit.cli import frame
from datakit.errors import Refused
from datakit.storage.disk import write_atomic
from datakit.train.metrics import METRICS_NAME, read_metrics
from run_name import check_frozen

METRICS, PACKED = Path("metrics"), Path("data/packed")


def receipt(name: str) -> dict[str, Any]:
    """The result that a command printed under `--json`."""
    return json.loads(Path(f"data/{name}.json").read_bytes())["result"]


def pack_metrics() -> dict[str, Any]:
    """Records, samples and shards, by split."""
    result = receipt("pack")
    stale = {path.name for path in PACKED.iterdir() if path.is_dir()} - {one["split"] for one in result["datasets"]}
    if stale:
        raise Refused(
            f"{PACKED} holds {', '.join(sorted(stale))}, which no split is called now", hint=f"rm -r {PACKED}"
        )
    splits = {
        one["split"]: {name: one[name] for name in ("samples", "shards", "shard_bytes")} for one in result["datasets"]
    }
    return {"records": result["records"], "source_bytes": result["source_bytes"], **splits}


def train_metrics() -> dict[str, Any]:
    """What the run consumed, and its speed, waiting and loss."""
    check_frozen()
    result = receipt("train")
    rows = read_metrics(Path(result["run"]) / METRICS_NAME)
    step_s = sum(row["step_s"] for row in rows)
    return {
        **{name: result[name] for name in ("steps", "samples", "tokens", "supervised_tokens")},
        "steps_seen": len(rows),
        "tokens_per_s": round(sum(row["tokens"] for row in rows) / step_s, 1) if rows else None,
        "data_wait_share": round(sum(row["data_wait_s"] for row in rows) / step_s, 6) if rows else None,
        "save_stall_s": round(sum(row["save_stall_s"] for row in rows), 3),
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
    }


def write_metrics(name: str, values: dict[str, Any]) -> None:
    """Put the numbers of a stage into metrics/; ASCII, because DVC takes much else for binary."""
    METRICS.mkdir(exist_ok=True)
    write_atomic(METRICS / f"{name}.json", json.dumps(values, indent=2).encode() + b"\n")


if __name__ == "__main__":
    with frame.run("metrics"):
        write_metrics(sys.argv[1], {"pack": pack_metrics, "train": train_metrics}[sys.argv[1]]())
