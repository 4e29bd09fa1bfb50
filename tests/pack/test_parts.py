"""pack in parts: machines that share a disk build shares of one plan, in any order, and a plain pack commits them."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datakit import Refused, UsageError
from datakit.events import Caution, Event
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.storage import disk
from datakit.storage.commit import read_manifest
from support.cli import datakit, environment
from support.packing import raw_lines, small_pack, tree, visible, write_lines, write_pairs
from support.receipts import at_rest

SETTINGS = PackSettings(shard_size="8KiB", splits={"train": 4, "dev": 1}, name="ds")


def share(raw: Path, dest: Path, part: tuple[int, int] | None, *, workers: int = 1) -> PackResult:
    """One share, or with None the commit."""
    return pack(raw, dest, settings=SETTINGS, part=part, workers=workers)


def killed_share(raw: Path, dest: Path, part: tuple[int, int]) -> None:
    """A share whose process is killed with -9 after its first shard."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from datakit.pack.build import pack\n"
        "from tests.pack.test_parts import SETTINGS\n"
        "told = []\n"
        "def hear(event):\n"
        "    told.extend([event] if hasattr(event, 'done') else [])\n"
        "    if len(told) > 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "raw, dest, part = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3])\n"
        "pack(raw, dest, settings=SETTINGS, part=part, workers=1, on_event=hear)\n"
    )
    env = environment({"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])})
    done = subprocess.run([sys.executable, "-c", script, raw, dest, repr(part)], env=env, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["lines", "files"])
def test_parts_in_any_order_make_the_dataset_of_one_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Seven shares in random order, one of them killed and run again, one run twice: the manifests are byte for byte
    those of packs with one, two and four workers, and the commit builds nothing.
    """
    at_rest(monkeypatch)
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400)) if kind == "lines" else write_pairs(tmp_path / "raw", 150)
    whole = []
    for workers in (1, 2, 4):
        small_pack(raw, tmp_path / f"w{workers}", workers=workers, shard_size="8KiB", splits=SETTINGS.splits, name="ds")
        whole.append(tree(tmp_path / f"w{workers}"))
    order = list(range(7))
    random.Random(7).shuffle(order)

    killed_share(raw, tmp_path / "ds", (order[2], 7))
    results = [share(raw, tmp_path / "ds", (number, 7), workers=1 + number % 2) for number in [*order, order[0]]]
    hidden = visible(tmp_path)
    committed = share(raw, tmp_path / "ds", None)

    assert whole[0] == whole[1] == whole[2]
    assert len({result.plan_digest for result in [*results, committed]}) == 1
    assert not any(result.written for result in results)
    assert results[-1].built == 0, "what a share has built is not built again"
    assert "ds" not in hidden, "a share commits nothing"
    assert committed.written
    assert committed.built == 0
    assert committed.reused == committed.shards > 14
    assert tree(tmp_path / "ds") == whole[0]
    assert "built" not in os.listdir(tmp_path / ".ds.pack"), "what waited for the commit is gone after it"


@pytest.mark.parametrize("same_time", [True, False])
def test_each_machine_may_have_its_own_copy_of_tars_with_their_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_time: bool
) -> None:
    """Parts agree on one plan; a tar of another time may hold other bytes: what it gave is built again."""
    at_rest(monkeypatch)
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(300)), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    if not same_time:
        for path in (tmp_path / "b").glob("*.tar"):
            os.utime(path, (1_000_000_001, 1_000_000_001))
    pack(tmp_path / "a", tmp_path / "one" / "ds", settings=SETTINGS)

    shares = [share(tmp_path / name, tmp_path / "ds", (number, 2)) for number, name in enumerate("ab")]
    committed = share(tmp_path / "a", tmp_path / "ds", None)

    assert len({result.plan_digest for result in [*shares, committed]}) == 1
    assert all(result.built > 2 for result in shares)
    assert committed.built == (0 if same_time else shares[1].built)
    assert tree(tmp_path / "ds") == tree(tmp_path / "one" / "ds")


def test_the_commit_builds_what_no_part_has_built(tmp_path: Path) -> None:
    """A part that never ran is no part that is missing."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    small_pack(raw, tmp_path / "one", shard_size="8KiB", splits=SETTINGS.splits, name="ds")

    first = share(raw, tmp_path / "ds", (0, 3))
    committed = share(raw, tmp_path / "ds", None)

    assert 0 < first.built < committed.shards
    assert committed.built == committed.shards - first.built
    assert tree(tmp_path / "ds") == tree(tmp_path / "one")


@pytest.mark.parametrize(("parts", "said"), [([0, 1], []), ([1], ["are built here, and were not by a part"])])
def test_a_share_that_never_ran_is_told_by_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[int], said: list[str]
) -> None:
    """Who counts parts from 1 leaves the first one out."""
    at_rest(monkeypatch)
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    for number in parts:
        share(raw, tmp_path / "ds", (number, 2))
    told: list[Event] = []

    pack(raw, tmp_path / "ds", settings=SETTINGS, on_event=told.append)

    cautions = [event.message for event in told if isinstance(event, Caution)]
    assert [line[line.index("are built") :] for line in cautions] == said


def test_what_a_killed_part_left_is_gone_after_the_commit(tmp_path: Path) -> None:
    """A share that was killed and not run again: its half-made shard and what it had fetched do not stay."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(300))
    killed_share(raw, tmp_path / "ds", (1, 3))
    fetched = disk.temporary(tmp_path / "ds.spool-1-of-3")
    fetched.mkdir()
    (tmp_path / ".ds.pack" / "work-1-of-3" / "half").write_bytes(b"x")

    share(raw, tmp_path / "ds", None)

    assert visible(tmp_path) == ["ds", "raw.jsonl"]
    assert sorted(os.listdir(tmp_path / ".ds.pack")) == [".gitignore", "known.json"]


def test_a_part_over_a_dataset_builds_what_is_new(tmp_path: Path) -> None:
    """Shares are of the whole plan; of theirs, shards that stand already are left alone."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    share(raw, tmp_path / "ds", None)
    old = {path: read_manifest(path).digest for path in (tmp_path / "ds").iterdir()}
    write_lines(raw, raw_lines(400, edit={3: "x", 200: "y"}))

    built = [share(raw, tmp_path / "ds", (number, 2)).built for number in range(2)]
    still = {path: read_manifest(path).digest for path in (tmp_path / "ds").iterdir()}
    committed = share(raw, tmp_path / "ds", None)

    assert sum(built) == 2
    assert still == old
    assert committed.built == 0
    small_pack(raw, tmp_path / "one", shard_size="8KiB", splits=SETTINGS.splits, name="ds")
    assert tree(tmp_path / "ds") == tree(tmp_path / "one")


@pytest.mark.parametrize("what", ["source", "settings"])
def test_a_part_of_another_plan_is_refused(tmp_path: Path, what: str) -> None:
    """The source or the settings changed after a part: both digests, and the way out; the commit is none either."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    first = share(raw, tmp_path / "ds", (0, 2))
    settings = SETTINGS
    if what == "source":
        write_lines(raw, raw_lines(200, edit={0: "x"}))
    else:
        settings = PackSettings(shard_size="4KiB", splits=SETTINGS.splits, name="ds")
    waiting = tree(tmp_path / ".ds.pack")
    planned = pack(raw, tmp_path / "elsewhere" / "ds", settings=settings, dry_run=True)

    for part, dry_run in (((1, 2), False), (None, False), (None, True)):
        with pytest.raises(Refused) as caught:
            pack(raw, tmp_path / "ds", settings=settings, part=part, dry_run=dry_run)
        assert planned.plan_digest[:16] in caught.value.message
        assert first.plan_digest[:16] in caught.value.message

    assert tree(tmp_path / ".ds.pack") == waiting, "what the part built is still there"
    shutil.rmtree(tmp_path / ".ds.pack")
    assert pack(raw, tmp_path / "ds", settings=settings).written


def test_parts_do_not_exclude_each_other_but_the_commit_waits_for_them(tmp_path: Path) -> None:
    """A share has a lock of its own: another one may be built beside it, the same one and the commit may not."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))

    with disk.exclusive(tmp_path / ".ds.pack.0-of-2.lock", purpose="building part 0/2"):
        other = share(raw, tmp_path / "ds", (1, 2))
        with pytest.raises(Refused, match="already building part 0/2"):
            share(raw, tmp_path / "ds", (0, 2))
        with pytest.raises(Refused, match="part 0/2 is still being built"):
            share(raw, tmp_path / "ds", None)

    assert other.built > 0
    assert share(raw, tmp_path / "ds", None).written


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_there_is_not_is_wrong_usage(tmp_path: Path, part: tuple[int, int]) -> None:
    """Parts count from 0."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(4))

    with pytest.raises(UsageError, match="there is no part") as caught:
        share(raw, tmp_path / "ds", part)

    assert ("the last is 1/2" in str(caught.value.hint)) == (part[1] == 2)


def test_a_part_says_how_to_go_on(tmp_path: Path) -> None:
    """On the command line: what it built, and the command that commits."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))

    answer = datakit("pack", str(raw), str(tmp_path / "ds"), "--shard-size", "8KiB", "--part", "0/2")
    planned = datakit("pack", str(raw), str(tmp_path / "ds"), "--shard-size", "8KiB", "--part", "1/2", "--dry-run")

    assert answer.code == 0
    assert "Built" in answer.stderr
    assert f"datakit pack {raw} {tmp_path / 'ds'}" in answer.stderr
    assert "Would build" in planned.stderr
    assert not (tmp_path / "ds").exists()


def test_a_part_is_not_begun_while_a_commit_is_at_work(tmp_path: Path) -> None:
    """The commit takes away what parts have built; nothing of the part is begun, and its lock is free."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))

    with disk.exclusive(tmp_path / ".ds.pack.lock", purpose="packing"):
        with pytest.raises(Refused, match="another process is packing into"):
            share(raw, tmp_path / "ds", (0, 2))
        left = visible(tmp_path)

    assert left == [".ds.pack.lock", "raw.jsonl"]
    assert share(raw, tmp_path / "ds", (0, 2)).built > 0


def test_the_command_that_a_part_names_commits_what_it_built(tmp_path: Path) -> None:
    """With the user's flags, quoted: without them it would plan another pack and build everything again."""
    raw = write_lines(tmp_path / "raw lines.jsonl", raw_lines(100))
    words = ["--shard-size", "8KiB", "--split", "train=4", "--split", "dev=1", "--name", "ds", "--workers", "1"]

    told = datakit("pack", str(raw), str(tmp_path / "ds"), *words, "--part", "0/1").stderr
    again = shlex.split(" ".join(told.split()).partition("commits: datakit ")[2])[: 2 + len(words) + 1]
    committed = datakit(*again, "--json")

    assert sorted(again) == sorted(["pack", str(raw), str(tmp_path / "ds"), *words])
    assert committed.json["result"]["built"] == 0
    assert committed.json["result"]["written"]
