"""summary: the one table at the end of the demo, from the receipts and metrics of its stages.

    python pipelines/summary.py                 # 1 s, after a demo: 14 lines, see README.md

Nothing is measured here. Requests are those that the stages' commands counted, by class.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from datakit.console import format_facts
from datakit.storage.commit import read_manifest
from datakit.units import format_bytes, format_count
from datakit.version.lineage import read_lineage
from datakit.version.project import Project
from metrics import receipt

ADAPTER = Path("models/adapter")
SPLITS = ("train", "held-out")
CLASSES = ("get", "head", "put", "list", "delete")


def requests() -> str:
    """Requests for the records (of any class), the datasets and the checkpoints, the last two by class."""
    moved = listed(*(receipt(f"{step}-{split}") for step in ("publish", "stage") for split in SPLITS))
    return (
        f"{receipt('pack')['requests']} for records; {moved} for datasets; {listed(receipt('train'))} for checkpoints"
    )


def listed(*results: dict[str, Any]) -> str:
    """The requests of some results, added up by class."""
    counts = Counter({kind: sum(result["requests"][kind] for result in results) for kind in CLASSES})
    return ", ".join(f"{counts[kind]} {kind.upper()}" for kind in CLASSES if counts[kind]) or "none"


def facts() -> dict[str, str]:
    """The rows of the table."""
    metrics = {name: json.loads(Path(f"metrics/{name}.json").read_bytes()) for name in ("pack", "train", "eval")}
    pack, train, evaluation = metrics["pack"], metrics["train"], metrics["eval"]
    tokenized = {split: receipt(f"tokenize-{split}") for split in SPLITS}
    result, lineage = receipt("train"), read_lineage(ADAPTER)
    return {
        "records": f"{format_count(pack['records'])} conversations, {format_bytes(pack['source_bytes'])}",
        "samples": " · ".join(f"{format_count(tokenized[split]['samples'])} {split}" for split in SPLITS),
        "shards": " · ".join(f"{tokenized[split]['shards']} {split}" for split in SPLITS),
        "bytes": f"{format_bytes(sum(one['shard_bytes'] for one in tokenized.values()))} in tokenized shards",
        "requests": requests(),
        "trained": f"{train['steps']} steps, {format_count(train['tokens'])} tokens",
        **speed(train),
        "checkpoints": checkpoints(result),
        "held-out loss": f"{evaluation['loss_before']:.3f} before, {evaluation['loss_after']:.3f} after",
        "question": evaluation["question"],
        "answer before": evaluation["answer_before"],
        "answer after": evaluation["answer_after"],
        "adapter": f"{ADAPTER}, {format_bytes(sum(member.bytes for member in read_manifest(ADAPTER).members))}",
        "lineage": f"data {lineage['data']['layout_digest'][:12]}, {lineage['base_model']['name']} "
        f"{lineage['base_model']['digest'][:12]}, settings {lineage['settings_digest'][:12]}",
    }


def speed(train: dict[str, Any]) -> dict[str, str]:
    """How fast the steps were that this machine took; where it took none, that is said."""
    if train["tokens_per_s"] is None:
        return {"speed": "no step was taken here: the run was finished"}
    share = f"{train['data_wait_share']:.2%} of the time"
    return {"speed": f"{train['tokens_per_s']:.0f} tokens/s", "waiting for data": share}


def checkpoints(result: dict[str, Any]) -> str:
    """How many are kept, and where they are."""
    kept = [path.name for path in sorted((Path(result["run"]) / "checkpoints").glob("step-*"))]
    here = f"{len(kept)} to {kept[-1]}, in {result['run']}" if kept else f"none here any more ({result['run']})"
    missing = f"; not written back: {', '.join(result['unpublished'])}" if result["unpublished"] else ", verified"
    return f"{here} and {result['write_back']}{missing}"


def print_summary(*, nothing_to_do: bool = False) -> None:
    """Print the table on stdout."""
    if not Project.at(Path()).core.get("remote"):
        # DVC ends with a hint that has nowhere to push to yet, and no setting leaves it out (dvc 3.67.1)
        print("`dvc push`, of which DVC speaks, needs a remote of your own first: dvc remote add --default NAME URL")
    print("\nNothing to do: every stage is as it was." if nothing_to_do else "\nDone.")
    print(format_facts(facts()))


if __name__ == "__main__":
    print_summary()
