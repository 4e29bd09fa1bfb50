"""golden: the datasets of format 1 that stand in tests/golden/, and how they are made."""

from __future__ import annotations

from pathlib import Path

from datakit.data.index import index_name
from datakit.data.shard import Sample
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.writing import write_shard
from support.house import ROOT
from support.packing import raw_lines, write_lines, write_pairs

GOLDEN = ROOT / "tests" / "golden" / "format-1"
BUNDLE = ROOT / "tests" / "golden" / "bundle-1"


def make(root: Path) -> None:
    """Pack the golden records: lines into two splits, and pairs of files."""
    lines = write_lines(root / "raw" / "lines.jsonl", raw_lines(24))
    pairs = write_pairs(root / "raw" / "pairs", 6)
    splits = PackSettings(shard_size="4KiB", splits={"train": 3, "held-out": 1})
    pack(lines, root / "lines", settings=splits, workers=1)
    pack(pairs, root / "pairs", settings=PackSettings(shard_size="8KiB"), workers=1)


def make_bundle(root: Path) -> None:
    """Write the golden lines as one shard of bundles of 10, and its index, under their final names."""
    samples = [Sample(f"r{number:05d}", {"json": line}) for number, line in enumerate(raw_lines(24))]
    built = write_shard(root / "shard", samples, dataset="bundle", bundle=10)
    for entry, name in ((built.shard, "shard"), (built.index, index_name("shard"))):
        (root / name).rename(root / entry.name)
