"""pack/shards: what a worker builds, and what it takes to start one."""

from __future__ import annotations

import subprocess
import sys

from support.cli import environment

BESIDES = ("ssl", "http.client", "urllib.request", "datakit.pack.planning", "datakit.storage.store", "pyarrow")
"""Of clients of stores and of planning, which belong to the parent; an index asks for pyarrow itself."""


def test_a_worker_imports_no_more_than_a_shard_takes() -> None:
    """Each is a process of its own and pays for its imports again."""
    script = f"import sys, datakit.pack.shards, datakit.source.files; print(*set({BESIDES!r}) & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
