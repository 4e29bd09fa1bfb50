"""storage/flush: in the time that is left the newest commit goes up first, and what has no copy is told."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from datakit import NotAllowed, NotFound
from datakit.events import Event
from datakit.storage.copies import State, read_copy, write_state
from datakit.storage.flush import flush, plan_flush
from datakit.storage.inbox import Inbox
from datakit.storage.writeback import WriteBack
from datakit.train.shelf import queues_below
from support.cli import datakit, datakit_process, start
from support.commits import make_commit
from support.faulty import Fault, FaultyServer


@pytest.fixture
def run(tmp_path: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three commits that nobody has copied; the adapter, whose name comes first, is the newest."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    for number, name in enumerate(("step-00000010", "step-00000020", "adapter")):
        put(tmp_path / "run", name, faulty.url, number)
    return tmp_path / "run"


def put(run: Path, name: str, url: str, number: int, *, state: State = "staged") -> None:
    make_commit(run / "checkpoints" / name, {"a": name.encode()}, kind="checkpoint")
    os.utime(run / "checkpoints" / name / "manifest.json", (1000 + number, 1000 + number))
    (run / "write-back").mkdir(exist_ok=True)
    where = {"path": str(run / "checkpoints" / name), "dest": f"{url}/{run.name}/{name}"}
    write_state(run / "write-back" / f"{name}.json", **where, state=state)


def state(run: Path, name: str) -> State | None:
    copy = read_copy(run / "write-back" / f"{name}.json")
    return None if copy is None else copy.state


def test_everything_is_copied_the_newest_first(run: Path, faulty: FaultyServer) -> None:
    """Newest by when it was made, not by its name, over all runs."""
    put(run.parent / "other", "step-00000001", faulty.url, 1)
    os.utime(run.parent / "other/checkpoints/step-00000001/manifest.json", (1000.5, 1000.5))
    queues, events = queues_below(run.parent), list[Event]()

    planned = [waiting.dest for waiting in plan_flush(queues)]
    done = flush(queues, deadline_s=120, on_event=events.append)
    again = flush(queues, deadline_s=120)

    order = ["run/adapter", "run/step-00000020", "other/step-00000001", "run/step-00000010"]
    manifests = [key for method, key, _ in faulty.log if method == "PUT" and key.endswith("manifest.json")]
    assert [key.removesuffix("/manifest.json") for key in manifests] == order
    assert planned == list(done.copied) == [f"{faulty.url}/{name}" for name in order]
    assert (done.left, done.newest, done.trouble) == ({}, f"{faulty.url}/run/adapter", None)
    assert all(state(run, name) == "verified" for name in ("adapter", "step-00000010", "step-00000020"))
    assert len(events) == 5
    assert (again.copied, again.left, again.trouble) == ((), {}, None)


def test_what_does_not_get_through_in_time_is_told_and_goes_on(run: Path, faulty: FaultyServer) -> None:
    """The store hangs at the newest: the deadline holds, and 75 says that the same command goes on."""
    faulty.faults = [Fault("hold", method="PUT", key=".*/adapter/a", times=100)]

    told = datakit_process("sync", "--flush", run, "--deadline", "3s", "--json")
    late = told.json["result"]
    faulty.faults.clear()
    faulty.released.set()
    again = datakit("sync", "--flush", run, "--json")

    assert told.code == 75
    assert "adapter has no verified copy" in told.json["error"]["message"]
    assert f"{faulty.url}/run/adapter" in late["left"]
    assert again.code == 0
    assert state(run, "adapter") == "verified"


def test_a_store_that_cannot_be_had_is_tried_until_the_time_is_over(
    run: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back after more failures than a sync has patience for."""
    monkeypatch.setattr("datakit.storage.agent.RETRY_S", 0.01)
    monkeypatch.setattr("datakit.storage.retry.FIRST_DELAY_S", 0.0)
    faulty.faults = [Fault("broken", method="PUT", times=30)]

    done = flush([run / "write-back"], deadline_s=120)

    assert (len(done.copied), done.left) == (3, {})


def test_an_older_commit_without_a_copy_is_no_failure(run: Path, faulty: FaultyServer) -> None:
    """Whoever resumes asks for the newest; the others are told, also one that is not here any more."""
    faulty.faults = [Fault("denied", method="PUT", key=".*/step-00000010/a", times=100)]
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    os.utime(run / "write-back" / "step-00000020.json", (1001, 1001))

    done = flush([run / "write-back"], deadline_s=120)
    faulty.faults = [Fault("denied", method="PUT", times=100)]
    put(run, "step-00000030", faulty.url, 9)
    newest = flush([run / "write-back"], deadline_s=120)

    assert {dest.rpartition("/")[2] for dest in done.left} == {"step-00000010", "step-00000020"}
    assert "is not here any more" in done.left[f"{faulty.url}/run/step-00000020"]
    assert done.trouble is None
    assert isinstance(newest.trouble, NotAllowed)


def test_what_a_living_trainer_copies_is_waited_for_and_copied_once(run: Path, faulty: FaultyServer) -> None:
    """Its agent holds the queue; what that has verified is believed, and pruned then without harm."""
    faulty.faults = [Fault("hold", method="PUT", key=".*/adapter/a")]
    back = WriteBack(f"{faulty.url}/run", queue_dir=run / "write-back")
    back.start()
    while not faulty.asked("PUT", ".*/adapter/a"):
        time.sleep(0.01)
    beside = start("sync", "--flush", run, "--deadline", "5m", "--json")
    assert beside.stderr is not None
    assert beside.stderr.readline() == f"3 commits without a copy, the newest for {faulty.url}/run/adapter\n"
    faulty.released.set()
    out, _ = beside.communicate(timeout=120)
    shutil.rmtree(run / "checkpoints" / "adapter")
    left = back.close(deadline_s=120)

    assert beside.returncode == 0
    assert len(json.loads(out)["result"]["copied"]) == 3
    assert left == {}
    assert state(run, "adapter") == "verified"
    assert len(faulty.asked("PUT", ".*/adapter/manifest.json")) == 1


def test_runs_are_found_where_trainings_put_them(tmp_path: Path) -> None:
    """A run, a directory of runs, or a project with `runs`."""
    for number, name in enumerate(("runs/a", "runs/b")):
        put(tmp_path / name, "step-00000001", "s3://b", number)

    found = queues_below(tmp_path)

    assert [path.parent.name for path in found] == ["a", "b"]
    assert queues_below(tmp_path / "runs") == found
    assert queues_below(tmp_path / "runs" / "a") == found[:1]
    with pytest.raises(NotFound, match="holds no run that is written back"):
        queues_below(tmp_path / "runs" / "a" / "checkpoints")


def test_offers_that_come_together_are_taken_newest_first() -> None:
    """None is taken before all of them are there."""
    inbox = Inbox()
    inbox.put(*({"op": "publish", "path": name, "dest": name, "repair": False} for name in "abc"))
    inbox.end()

    taken = []
    while (request := inbox.take(offers=True)) is not None:
        taken.append(request["path"])

    assert taken == ["c", "b", "a"]


def test_the_command_flushes_a_run_and_refuses_what_does_not_go_with_it(run: Path) -> None:
    """Also all runs of the current directory; a time that is none is wrong usage."""
    done = datakit("sync", "--flush", str(run), "--deadline", "2m", "--json")
    wrong = [
        datakit("sync", "--flush", str(run), "--deadline", "soon"),
        datakit("sync", str(run), "--deadline", "25s"),
        datakit("sync", "--flush", str(run), "--repair"),
        datakit("sync", "--flush", str(run), "--max-requests", "0"),
        datakit("sync", "--flush", str(run / "checkpoints")),
    ]

    assert done.code == 0
    assert len(done.json["result"]["copied"]) == 3
    assert [answer.code for answer in wrong] == [2, 2, 2, 2, 2]


def test_a_dry_run_copies_nothing(run: Path, faulty: FaultyServer) -> None:
    """It tells the order."""
    told = datakit("sync", "--flush", run, "--dry-run", "--json")

    assert [each["dest"].rpartition("/")[2] for each in told.json["result"]] == [
        "adapter",
        "step-00000020",
        "step-00000010",
    ]
    assert faulty.log == []
    assert state(run, "adapter") == "staged"
