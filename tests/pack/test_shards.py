"""pack/shards: what a worker builds, with the cores that it has, and what it takes to start one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit import InputError
from datakit.data.shard import Sample
from datakit.pack.cluster import Cluster
from datakit.pack.engines import Engine
from datakit.pack.writing import write_shard
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


def samples() -> Iterator[Sample]:
    """Some megabytes, in more pieces than wait."""
    return (Sample(f"{number:03d}", {"bin": bytes([number]) * 65_536}) for number in range(80))


def test_a_shard_is_the_same_whatever_cores_it_has(tmp_path: Path) -> None:
    """Digests too, which come from another thread where there is a core for it."""
    one, two = (write_shard(tmp_path / f"{cores}.tar", samples(), dataset="ds", cores=cores) for cores in (1, 2))

    assert two == one
    assert (tmp_path / "2.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()


def test_an_error_of_a_sample_is_its_own_whatever_cores_there_are(tmp_path: Path) -> None:
    """Bytes that wait to be digested do not keep it."""

    def spoilt() -> Iterator[Sample]:
        yield from samples()
        raise InputError("a.txt changed while it was packed", hint="Pack again")

    with pytest.raises(InputError, match=r"a\.txt changed"):
        write_shard(tmp_path / "a.tar", spoilt(), dataset="ds", cores=2)


def test_only_tasks_that_leave_workers_idle_have_their_cores() -> None:
    """A pack of one process keeps to one core."""
    assert [Engine(4).cores_for(tasks) for tasks in (0, 1, 2, 3, 4, 9)] == [4, 4, 2, 1, 1, 1]
    assert Engine(1).cores_for(1) == 1
    assert Cluster(4).cores_for(1) == 1
