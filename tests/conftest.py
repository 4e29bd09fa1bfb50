"""conftest: what every test stands on: an empty home, an empty working directory, no settings and no credentials."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.agents import Cache, short_folder
from support.faulty import FaultyServer, faulty_server
from support.s3server import S3Server, serving

# the same examples on every run, so that a red test stays red and a green one stays green; no time limit an example,
# because the machine may be busy; no example database, because it would be state outside the test
settings.register_profile(
    "house", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("house")

# threads of torch that wait for each other give the core away: spinning, as is the default, they keep it from the other
# tests; beside a dozen busy processes a test of test_step.py took 17 CPU seconds so, and 11 with this (2026-11-30)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# a shell starts what runs in its background with SIGINT ignored, nohup with SIGHUP; children inherit that, and a test
# of these signals would prove nothing
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_FOREIGN = ("AWS_", "DATAKIT_", "DVC_", "GOOGLE_", "AZURE_", "HF_", "S3_")
_NAMES = (
    "NO_COLOR",
    "COLUMNS",
    "TERM",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
)


# files that take longest, longest first: begun first, none of them is what the others wait for in the end
LONG = (
    "pipelines/test_demo.py",
    "train/test_loop.py",
    "train/test_upload.py",
    "storage/test_sync.py",
    "test_readme.py",
    "storage/test_transfer.py",
    "train/test_step.py",
    "storage/test_writeback.py",
    "pack/test_build.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of `LONG`; within a file the order stays, because some tests go on where others ended."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONG)}
    assert all(path.is_file() for path in rank), "a file of LONG is not there any more"
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))


@pytest.fixture(autouse=True)
def clean_room(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in and an empty home; nothing of the machine's settings reaches the test."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name in _NAMES:
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    room = tmp_path_factory.mktemp("room")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(room)
    return room


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """A local S3 server: one process for all tests that one process runs."""
    with serving() as running:
        yield running


@pytest.fixture
def s3(server: S3Server, clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment leading to it."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The URL of a bucket of this test's own, to which the environment leads."""
    digits = f"{abs(hash(request.node.nodeid)):x}"[:20]
    return s3.make_bucket(f"bucket-{digits}")


@pytest.fixture
def faulty(clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A faulty server of this test's own, with the environment leading to it."""
    with faulty_server() as running:
        for name, value in running.env.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def cache(tmp_path: Path, clean_room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """A cache directory with a place for its agent's socket; the agent ends with the test."""
    with short_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        found = Cache(tmp_path / "cache")
        yield found
        found.end()


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """The project's own description, parsed."""
    return tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
