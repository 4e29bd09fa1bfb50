"""A local S3 server for the tests of this wing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.s3server import S3Server, serving


@pytest.fixture(scope="session")
def version_server() -> Iterator[S3Server]:
    """One process for all tests."""
    with serving() as server:
        yield server


@pytest.fixture
def s3(version_server: S3Server, clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment leading to it."""
    for name, value in version_server.env.items():
        monkeypatch.setenv(name, value)
    return version_server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The URL of a bucket of this test's own."""
    digits = f"{abs(hash(request.node.nodeid)):x}"[:20]
    return s3.make_bucket(f"version-{digits}")
