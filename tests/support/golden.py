"""golden: the dataset of format 1 that stands in tests/golden/, and how it is made."""

from __future__ import annotations

from pathlib import Path

from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from support.house import ROOT
from support.packing import raw_lines, write_lines, write_pairs

GOLDEN = ROOT / "tests" / "golden" / "format-1"


def make(root: Path) -> None:
    """Pack the golden records: lines into two splits, and pairs of files."""
    lines = write_lines(root / "raw" / "lines.jsonl", raw_lines(24))
    pairs = write_pairs(root / "raw" / "pairs", 6)
    splits = PackSettings(shard_size="4KiB", splits={"train": 3, "held-out": 1})
    pack(lines, root / "lines", settings=splits, workers=1)
    pack(pairs, root / "pairs", settings=PackSettings(shard_size="8KiB"), workers=1)
