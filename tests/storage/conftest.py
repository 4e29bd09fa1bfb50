"""Servers for the tests of this wing: moto's, one for all tests, and a faulty one for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faulty import FaultyServer, faulty_server
from support.s3server import S3Server, serving


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    """One process for all tests."""
    with serving() as server:
        yield server


@pytest.fixture
def s3(moto_server: S3Server, clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment leading to it."""
    for name, value in moto_server.env.items():
        monkeypatch.setenv(name, value)
    return moto_server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The URL of a bucket of this test's own."""
    digits = f"{abs(hash(request.node.nodeid)):x}"[:20]
    return s3.make_bucket(f"bucket-{digits}")


@pytest.fixture
def faulty(clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A faulty server of this test's own, with the environment leading to it."""
    with faulty_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield server
