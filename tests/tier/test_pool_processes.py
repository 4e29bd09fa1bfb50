"""Several processes on one pool, and processes that are killed: the budget holds, and no object has other bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.tier.fill import bring
from support.process import environment
from support.tiers import Cold, cold, disk_bytes, know, pool_at, wrong_objects

FETCH = """
import sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.storage.commit import read_manifest
from datakit.storage.moves import SyncSettings
from datakit.storage.objects import LocalStore
from datakit.tier.fill import Source, bring
from datakit.tier.origin import Copies
from datakit.tier.pool import Pool

pool = Pool(Path(sys.argv[1]), budget_bytes=int(sys.argv[2])).open()
for place in sys.argv[3:]:
    manifest = read_manifest(Path(place))
    pool.roster.add(manifest, place=place)
    source = Source(LocalStore(Path(place)), {each.sha256: each.name for each in manifest.members})
    while True:
        try:
            settings = SyncSettings(concurrency=2)
            print(bring(pool, manifest.members, sources=[source], copied=Copies(pool), settings=settings).files)
            break
        except NoSpace:
            pass  # the others hold the room just now
"""


def start(pool: Path, budget_bytes: int, *datasets: Cold) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, str(pool), str(budget_bytes), *(str(each.path) for each in datasets)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def watch(processes: list[subprocess.Popen[str]], root: Path) -> int:
    """The most bytes that were seen on the disk until all had ended."""
    most_bytes = 0
    while any(process.poll() is None for process in processes):
        most_bytes = max(most_bytes, disk_bytes(root))
        time.sleep(0.002)
    return most_bytes


def test_three_processes_fetch_the_same_once(tmp_path: Path) -> None:
    """One file of each object in the end, each fetched by one of them, in a pool of just that size."""
    dataset = cold(tmp_path / "ds", [PART_BYTES + 9, 50_000, 60_000, 70_000])
    budget_bytes = PART_BYTES + 9 + 180_000
    processes = [start(tmp_path / "pool", budget_bytes, dataset) for _ in range(3)]

    most_bytes = watch(processes, tmp_path / "pool")

    said = [process.communicate() for process in processes]
    assert [error for _, error in said] == ["", "", ""]
    assert sum(int(out) for out, _ in said) == 4
    assert most_bytes <= budget_bytes
    assert disk_bytes(tmp_path / "pool") == budget_bytes
    assert wrong_objects(tmp_path / "pool") == {}
    assert os.listdir(tmp_path / "pool" / "arriving") == []


def test_three_processes_share_too_small_a_pool(tmp_path: Path) -> None:
    """Each streams three datasets through, in another order, by dropping what others brought; never over the budget."""
    datasets = [cold(tmp_path / f"ds{n}", [40_000, 50_000], seed=n) for n in range(3)]
    orders = [datasets, datasets[1:] + datasets[:1], datasets[::-1]]
    processes = [start(tmp_path / "pool", 200_000, *order) for order in orders]

    most_bytes = watch(processes, tmp_path / "pool")

    assert [process.communicate()[1] for process in processes] == ["", "", ""]
    assert most_bytes <= 200_000
    assert wrong_objects(tmp_path / "pool") == {}


def campaign(tmp_path: Path, *, rounds: int, seed: int) -> None:
    """Kill fetchers at random moments; after each death the laws hold, and in the end one fetch makes all whole."""
    luck = random.Random(seed)
    datasets = [cold(tmp_path / f"ds{n}", [2 * PART_BYTES + 7, 30_000, 300_000], seed=n) for n in range(2)]
    budget_bytes = 2 * PART_BYTES + 400_000
    root = tmp_path / "pool"
    num_killed = 0
    for number in range(rounds):
        processes = [start(root, budget_bytes, *luck.sample(datasets, 2)) for _ in range(2)]
        for process in processes:
            # the first before it can have done anything, so that something is killed on any machine
            until = time.monotonic() + (luck.uniform(0.2, 1.5) if number else 0.0)
            while process.poll() is None and time.monotonic() < until:
                assert disk_bytes(root) <= budget_bytes
                time.sleep(0.005)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                num_killed += 1
            process.communicate()
        assert wrong_objects(root) == {}
        assert disk_bytes(root) <= budget_bytes

    pool = pool_at(root, budget_bytes)
    know(pool, datasets[0])
    held = {digest for each in datasets for digest in each.digests}
    bring(pool, datasets[0].manifest.members, sources=[datasets[0].source], copied=lambda: held)

    assert num_killed > 0
    assert wrong_objects(root) == {}
    assert pool.usage().total_bytes <= budget_bytes
    assert all(pool.has(entry) for entry in datasets[0].manifest.members)
    assert [each for each in pool.usage().incoming if each.promised] == []


def test_killed_fetchers_leave_a_pool_in_order(tmp_path: Path) -> None:
    """Two at a time, three times."""
    campaign(tmp_path, rounds=3, seed=1)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_killed_fetchers_leave_a_pool_in_order_for_long(tmp_path: Path, seed: int) -> None:
    """Two at a time, twenty-five times."""
    campaign(tmp_path, rounds=25, seed=seed)
