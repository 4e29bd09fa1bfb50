"""scan: what the bucket holds, and which versions would work on it, as two small files that DVC compares.

    python pipelines/scan.py s3://datakit-demo/raw   # 1 s: data/source.json, data/versions.json

DVC runs this every time; where both files come out as before, no later stage runs. Raw files are no dependency of
DVC's (it would hash each of them, one after the other); their names, sizes and ETags are. `data/versions.json` is what
decides the results besides data and settings: a stage names its part of it under `params`, so that a changed algorithm
or library is never taken for the same.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datakit
from datakit.cli import frame
from datakit.pack import cut, tokenize
from datakit.source.scan import scan
from datakit.storage.disk import write_atomic


def versions() -> dict[str, Any]:
    """What decides the result of each stage, besides its data and settings."""
    return {
        "pack": {"algorithm": cut.ALGORITHM, **libraries("pyarrow")},
        "tokenize": {
            "algorithm": tokenize.ALGORITHM,
            **libraries("jinja2", "numpy", "pyarrow", "tokenizers", "transformers"),
        },
        "train": {
            "datakit": datakit.__version__,
            "python": platform.python_version(),
            **libraries("peft", "safetensors", "torch", "transformers"),
        },
    }


def libraries(*names: str) -> dict[str, str]:
    """The installed versions."""
    return {name: version(name) for name in names}


if __name__ == "__main__":
    with frame.run("scan"):
        sources = scan(sys.argv[1])
        Path("data").mkdir(exist_ok=True)
        write_atomic(Path("data/source.json"), sources.to_bytes())
        write_atomic(Path("data/versions.json"), json.dumps(versions(), indent=2).encode() + b"\n")
