"""A faulty server for each test of this wing that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faulty import FaultyServer, faulty_server


@pytest.fixture
def faulty(clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A faulty server of this test's own, with the environment leading to it."""
    with faulty_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield server
