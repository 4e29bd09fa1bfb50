"""storage/flush: in the time that is left the newest commit goes up first, and what has no copy is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from datakit import NotAllowed, NotFound
from datakit.events import Event
from datakit.storage.copies import State, read_copy, write_state
from datakit.storage.flush import flush, queues_below
from datakit.storage.inbox import Inbox
from support.cli import datakit, datakit_process
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
    """Newest by when it was made, not by its name."""
    events: list[Event] = []

    done = flush(run / "write-back", deadline_s=120, on_event=events.append)
    again = flush(run / "write-back", deadline_s=120)

    manifests = [key for method, key, _ in faulty.log if method == "PUT" and key.endswith("manifest.json")]
    assert [key.split("/")[1] for key in manifests] == ["adapter", "step-00000020", "step-00000010"]
    assert (len(done.copied), done.left, done.newest, done.trouble) == (3, {}, "adapter", None)
    assert all(state(run, name) == "verified" for name in ("adapter", "step-00000010", "step-00000020"))
    assert len(events) == 3
    assert (again.copied, again.left, again.seconds) == ((), {}, 0.0)


def test_what_does_not_get_through_in_time_is_told_and_goes_on(run: Path, faulty: FaultyServer) -> None:
    """The store hangs at the newest: the deadline holds, and 75 says that the same command goes on."""
    faulty.faults = [Fault("hold", method="PUT", key=".*/adapter/a", times=100)]

    told = datakit_process("sync", "--flush", run, "--deadline", "3s", "--json")
    late = told.json["result"][0]
    faulty.faults.clear()
    faulty.released.set()
    again = datakit("sync", "--flush", run, "--json")

    assert told.code == 75
    assert "adapter has no verified copy" in told.json["error"]["message"]
    assert "adapter" in late["left"]
    assert again.code == 0
    assert state(run, "adapter") == "verified"


def test_an_older_commit_without_a_copy_is_no_failure(run: Path, faulty: FaultyServer) -> None:
    """Whoever resumes asks for the newest; the others are told."""
    faulty.faults = [Fault("denied", method="PUT", key=".*/step-00000010/a", times=100)]

    done = flush(run / "write-back", deadline_s=120)

    assert (set(done.left), done.trouble) == ({"step-00000010"}, None)
    faulty.faults = [Fault("denied", method="PUT", key=".*", times=100)]
    put(run, "step-00000030", faulty.url, 9)
    assert isinstance(flush(run / "write-back", deadline_s=120).trouble, NotAllowed)


def test_runs_are_found_where_trainings_put_them(tmp_path: Path) -> None:
    """A run, a directory of runs, or a project with `runs`; the one with the newest commit that waits first."""
    for number, name in enumerate(("runs/a", "runs/b")):
        put(tmp_path / name, "step-00000001", "s3://b", number)
    put(tmp_path / "runs" / "c", "step-00000001", "s3://b", 9, state="verified")

    found = queues_below(tmp_path, name="write-back")

    assert [path.parent.name for path in found] == ["b", "a", "c"]
    assert queues_below(tmp_path / "runs", name="write-back") == found
    assert queues_below(tmp_path / "runs" / "a", name="write-back") == found[1:2]
    with pytest.raises(NotFound, match="holds no run that is written back"):
        queues_below(tmp_path / "runs" / "a" / "checkpoints", name="write-back")


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
        datakit("sync", "--flush", str(run / "checkpoints")),
    ]

    assert done.code == 0
    assert len(done.json["result"][0]["copied"]) == 3
    assert [answer.code for answer in wrong] == [2, 2, 2, 2]
