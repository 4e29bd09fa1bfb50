"""conftest: a cache whose agent ends with its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Cache, short_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """A cache directory with a place for its socket."""
    with short_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        found = Cache(tmp_path / "cache")
        yield found
        found.end()
