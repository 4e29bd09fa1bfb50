"""The pipelines are scripts, not a package: tests reach them as scripts do, through their folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINES = ROOT / "pipelines"


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scripts, importable for the length of a test."""
    monkeypatch.syspath_prepend(str(PIPELINES))
    for name in [path.stem for path in PIPELINES.glob("*.py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return PIPELINES
