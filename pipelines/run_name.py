"""run_name: the name of a training run, made of what decides its result.

    python pipelines/run_name.py data/tier/train     # 1 s: 3f2a9c1e77ab-09bd41c2

Layout digest of the data, then a digest of the settings, the base model and the versions. Checkpoints lie in a
directory of this name, outside DVC's outs: the same name means that going on from a checkpoint there is right, and
other data or settings never meet it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from datakit.cli import frame
from datakit.settings import load
from datakit.storage.commit import read_manifest
from scan import versions

BASE = Path("models/base")


def run_name(dataset: Path, base: Path = BASE) -> str:
    """`<layout digest, 12>-<digest of settings, base model and versions, 8>`."""
    settings = [load().train.digest(), read_manifest(base).digest, versions()["train"]]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"{read_manifest(dataset).contents.layout_digest[:12]}-{digest[:8]}"


if __name__ == "__main__":
    with frame.run("run_name"):
        print(run_name(Path(sys.argv[1])))
