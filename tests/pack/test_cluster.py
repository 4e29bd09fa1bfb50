"""pack/cluster: Ray gives the bytes that one process gives, says when workers die, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit import DatakitError, MissingExtra, UsageError
from datakit.pack.build import pack
from datakit.pack.cluster import RETRIES, Cluster
from datakit.pack.cut import PackSettings
from datakit.units import parse_bytes
from support.cli import datakit, environment
from support.packing import raw_lines, small_pack, tree, visible, write_lines, write_pairs
from support.receipts import at_rest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of our own on this machine; packs of this process use it, because the process is connected to it."""
    with Cluster(2) as running:
        yield running


def test_results_come_in_the_order_of_the_tasks(cluster: Cluster) -> None:
    """As from a plain loop, whichever worker is first."""
    words = [f"{number} KiB" for number in range(20)]

    assert list(cluster.map(parse_bytes, words)) == [parse_bytes(word) for word in words]


def test_an_error_of_a_task_travels_whole(cluster: Cluster) -> None:
    """Kind, message, hint and subject of ours; a foreign one in words; the cluster works on."""
    with pytest.raises(UsageError, match="'lots' is not a size") as caught:
        list(cluster.map(parse_bytes, ["1", "lots", "2"]))
    with pytest.raises(DatakitError, match="ZeroDivisionError: division by zero"):
        list(cluster.map(eval, ["1 / 0"]))

    assert (caught.value.subject, bool(caught.value.hint)) == ("lots", True)
    assert list(cluster.map(len, ["a", "bb"])) == [1, 2]


def test_a_worker_that_dies_is_tried_again_and_then_told(cluster: Cluster, tmp_path: Path) -> None:
    """One that dies each time is an error that says so; one that dies once is none, and its result is there."""
    once = "[open(p, 'x').close() or os._exit(1) for os, p in [(__import__('os'), {})] if not os.path.exists(p)] or 7"

    with pytest.raises(DatakitError, match=f"a Ray worker died, and so did the {RETRIES} that tried again") as caught:
        list(cluster.map(os._exit, [7]))
    assert list(cluster.map(eval, [once.format(repr(str(tmp_path / "died")))])) == [7]
    assert (tmp_path / "died").exists()
    assert "--workers" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["lines", "files"])
def test_ray_gives_the_bytes_of_one_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Law 4: shards, indexes and manifests, byte for byte; the next pack, without Ray, knows them all."""
    at_rest(monkeypatch)
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300)) if kind == "lines" else write_pairs(tmp_path / "raw", 80)
    settings = PackSettings(shard_size="16KiB", splits={"train": 4, "dev": 1})

    result = pack(raw, tmp_path / "ray" / "ds", settings=settings, engine="ray")
    again = pack(raw, tmp_path / "ray" / "ds", settings=settings)
    small_pack(raw, tmp_path / "one" / "ds", splits=settings.splits)

    assert result.built == result.shards > 4
    assert again.built == 0
    assert tree(tmp_path / "ray") == tree(tmp_path / "one")


def test_a_cluster_of_our_own_is_quiet_and_leaves_nothing(clean_room: Path) -> None:
    """Started and stopped by the command: nothing but pack's own words on the terminal, no file in the home directory
    or among the temporaries, and what a killed one left there is gone.
    """
    raw = write_lines(clean_room / "raw.jsonl", raw_lines(60))
    temporaries = clean_room / "tmp"
    temporaries.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = Path("/tmp") / f"datakit-ray-{gone.pid}-left"  # there, because a long TMPDIR leaves sockets no room
    (stale / "session").mkdir(parents=True)
    script = "import sys; from datakit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["pack", str(raw), "ds", "--engine", "ray", "--workers", "1"]
    env = environment({"TMPDIR": str(temporaries), "HOME": str(clean_room / "home")})

    command = [sys.executable, "-W", "error", "-c", script, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as running:
        out, err = running.communicate()

    assert (running.returncode, out) == (0, "")
    assert err.startswith("Packed 60 records into 1 shard")
    assert "ray" not in err.lower().replace("--engine ray", "")
    assert visible(clean_room) == ["ds", "raw.jsonl", "tmp"]
    assert not list(temporaries.iterdir())
    assert not list(Path("/tmp").glob(f"datakit-ray-{running.pid}-*"))
    assert not stale.exists()


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install, before anything is done; the environment is as it was."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))
    monkeypatch.setitem(sys.modules, "ray", None)
    before = dict(os.environ)

    with pytest.raises(MissingExtra, match="ray is not installed") as caught:
        pack(raw, tmp_path / "ds", engine="ray")

    assert caught.value.hint == "pip install 'datakit[ray]'"
    assert dict(os.environ) == before
    assert visible(tmp_path) == ["raw.jsonl"]


def test_another_engine_is_wrong_usage(clean_room: Path) -> None:
    """With the two that there are."""
    raw = write_lines(clean_room / "raw.jsonl", raw_lines(4))

    answer = datakit("pack", str(raw), "ds", "--engine", "spark")

    assert answer.code == 2
    assert "Choose local or ray" in answer.stderr
