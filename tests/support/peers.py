"""peers: how stock readers of such tars see a shard."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datakit.data.shard import Sample


def webdataset_samples(*shards: Path) -> list[Sample]:
    """The samples that stock webdataset reads, in its order.

    Its own opener leaves files to the garbage collector, which is a warning and so an error here: we open and close.
    """
    from webdataset import tariterators

    samples = []
    for shard in shards:
        with shard.open("rb") as stream:
            files = tariterators.tar_file_expander([{"url": str(shard), "stream": stream}])
            for item in tariterators.group_by_keys(files):
                parts = {part: bytes(data) for part, data in item.items() if not part.startswith("__")}
                samples.append(Sample(item["__key__"], parts))
    return samples


_LOAD = """
import json, sys
from datasets import load_dataset
shards, cache = json.loads(sys.argv[1]), sys.argv[2]
rows = load_dataset("webdataset", data_files={"train": shards}, split="train", streaming=True, cache_dir=cache)
for row in rows:
    parts = {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items() if not k.startswith("__")}
    print(json.dumps({"key": row["__key__"], "parts": parts}))
"""


def datasets_rows(shards: Sequence[Path], *, cache: Path) -> list[dict[str, Any]]:
    """Key and parts of each row that `load_dataset("webdataset")` of Hugging Face `datasets` gives, in its order.

    Bytes are told in hex, parts that it decodes (`json`, `txt`, `npy`) as what it makes of them. It runs as a process
    of its own, because it leaves files open too.
    """
    words = [sys.executable, "-c", _LOAD, json.dumps([str(shard) for shard in shards]), str(cache)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]
