"""run_name: the name of a training run, made of what decides its result.

    python pipelines/run_name.py data/tier/train     # 1 s: 3f2a9c1e77ab-09bd41c2; data/train.yaml: the settings
    python pipelines/run_name.py --trained           # after it: runs/3f2a9c1e77ab-09bd41c2/adapter

Layout digest of the data, then a digest of the settings, the base model and the versions. Checkpoints lie in a
directory of this name, outside DVC's outs: the same name means that going on from a checkpoint there is right, and
other data or settings never meet it. All commands of the stage read the settings that the first found: params.yaml may
be edited meanwhile. If it was, the stage fails, because DVC would record the new values for what the old ones made.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from datakit.cli import frame
from datakit.errors import Refused
from datakit.settings import load
from datakit.storage.commit import read_manifest
from datakit.storage.disk import write_atomic
from datakit.train.recipe import Recipe
from scan import versions

BASE, FROZEN, PARAMS = Path("models/base"), Path("data/train.yaml"), Path("params.yaml")


def freeze() -> Recipe:
    """Keep the settings as they are now for the other commands of the stage."""
    write_atomic(FROZEN, PARAMS.read_bytes())
    return load(FROZEN).train


def check_frozen() -> None:
    """See that the stage's settings are still those that it was run with."""
    if load(FROZEN).train != load(PARAMS).train:
        raise Refused(
            f"{PARAMS} changed while the stage ran: DVC would take the adapter for the result of the new settings",
            hint="Run it again: make demo",
        )


def run_name(dataset: Path, base: Path = BASE) -> str:
    """`<layout digest, 12>-<digest of settings, base model and versions, 8>`."""
    settings = [freeze().digest(), read_manifest(base).digest, versions()["train"]]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"{read_manifest(dataset).contents.layout_digest[:12]}-{digest[:8]}"


if __name__ == "__main__":
    with frame.run("run_name"):
        if sys.argv[1] == "--trained":
            check_frozen()
            print(json.loads(Path("data/train.json").read_bytes())["result"]["adapter"])
        else:
            print(run_name(Path(sys.argv[1])))
