"""receipts: sources that pack may trust, and what of a dataset is the same file."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.pack import work

HOUR_NS = 3600 * 10**9


def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each file had been at rest for an hour when it was listed: the time that counts cannot be set back."""
    monkeypatch.setattr(work, "RACY_NS", -HOUR_NS)


def inodes(dataset: Path) -> dict[str, int]:
    """Of each shard by name."""
    return {path.name: path.stat().st_ino for path in dataset.glob("*.tar")}
