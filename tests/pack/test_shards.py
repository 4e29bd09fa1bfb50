"""pack/shards: what a worker builds, and what it takes to start one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.cli import environment

NETWORK = ("ssl", "http.client", "urllib.request", "datakit.storage.store")
"""Of clients of stores."""


@pytest.mark.parametrize(
    ("rooms", "besides"),
    [
        ("datakit.pack.build", NETWORK),
        # a worker is a process of its own and pays for its imports again; an index asks for pyarrow itself
        ("datakit.pack.shards, datakit.source.folders", (*NETWORK, "pyarrow", "logging", "datakit.storage.commit")),
    ],
)
def test_what_a_local_pack_does_not_need_is_not_imported(rooms: str, besides: tuple[str, ...]) -> None:
    """Importing takes longer than packing a small folder does."""
    script = f"import sys, {rooms}; print(*set({besides!r}) & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
