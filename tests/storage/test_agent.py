"""What `storage/agent` promises: states on disk, trouble said at once, work after the trainer's end."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import Busy, IntegrityError, NoSpace, StoreUnavailable
from datakit.storage import agent
from datakit.storage.agent import LOCK_NAME, Agent, requests_from
from datakit.storage.catalog import arriving
from datakit.storage.commit import read_manifest, verify_commit
from datakit.storage.inbox import Inbox
from support.commits import make_commit, noise
from support.faulty import Fault, FaultyServer
from support.process import environment


def offer(path: str, **more: Any) -> dict[str, Any]:
    return {"op": "publish", "path": path, **more}


def test_a_torn_line_is_dropped() -> None:
    """A trainer that was killed while it wrote leaves half a line at the end."""
    stream = io.StringIO('{"op": "pull", "source": "a"}\n{"op": "publ')

    assert list(requests_from(stream)) == [[{"op": "pull", "source": "a"}]]


def run_agent(queue: Path, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """One agent in this process, with everything it is asked before it begins."""
    inbox, out = Inbox(), io.StringIO()
    for request in requests:
        inbox.put(request)
    inbox.end()
    Agent(inbox, out, queue_dir=queue).run()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def request_for(commit: Path, dest: str, queue: Path) -> dict[str, Any]:
    return offer(str(commit), dest=dest, state=str(queue / f"{commit.name}.json"), manifest_digest=None, repair=False)


def state_of(queue: Path, name: str) -> dict[str, Any]:
    return json.loads((queue / f"{name}.json").read_text())


def test_publishing_ends_in_a_verified_state(tmp_path: Path) -> None:
    """Newest first; each state file names the manifest that is there; the lock is gone at the end."""
    queue = tmp_path / "queue"
    queue.mkdir()
    manifests = {
        step: make_commit(tmp_path / f"step-{step}", {"a": noise(100, step)}, kind="checkpoint") for step in (1, 2)
    }
    requests = [
        request_for(tmp_path / f"step-{step}", str(tmp_path / "cold" / f"step-{step}"), queue) for step in (1, 2)
    ]

    answers = run_agent(queue, *requests)

    assert [(answer["event"], Path(answer["path"]).name) for answer in answers] == [
        ("verified", "step-2"),
        ("verified", "step-1"),
    ]
    for step in (1, 2):
        assert verify_commit(tmp_path / "cold" / f"step-{step}") == manifests[step]
        assert state_of(queue, f"step-{step}")["state"] == "verified"
        assert state_of(queue, f"step-{step}")["manifest_digest"] == manifests[step].digest
    assert sorted(os.listdir(queue)) == ["step-1.json", "step-2.json"]


def test_a_store_that_cannot_be_had_is_tried_once_more_and_then_failed(faulty: FaultyServer, tmp_path: Path) -> None:
    """`waiting`, then `failed` because no more will come; the state says why and the next start takes it up."""
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    faulty.faults = [Fault("hang-up", times=999)]

    answers = run_agent(tmp_path, request_for(tmp_path / "step-1", f"{faulty.url}/step-1", tmp_path))

    assert [answer["event"] for answer in answers] == ["waiting", "failed"]
    assert answers[-1]["error"] == "StoreUnavailable"
    assert state_of(tmp_path, "step-1")["state"] == "failed"
    assert faulty.url in state_of(tmp_path, "step-1")["message"]


def test_a_refusal_is_failed_at_once_and_the_others_go_on(tmp_path: Path) -> None:
    """One commit that cannot be published does not hold up another."""
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    make_commit(tmp_path / "step-2", {"a": b"2"}, kind="checkpoint")
    make_commit(tmp_path / "cold" / "step-2", {"x": b"3"}, kind="adapter")

    answers = run_agent(
        tmp_path,
        *[request_for(tmp_path / f"step-{n}", str(tmp_path / "cold" / f"step-{n}"), tmp_path) for n in (1, 2)],
    )

    assert [(answer["event"], answer.get("error")) for answer in answers] == [("failed", "Refused"), ("verified", None)]
    assert "adapter" in answers[0]["message"]


@pytest.mark.parametrize("repair", [False, True])
def test_a_commit_with_a_torn_manifest_is_failed_at_once_and_the_others_go_on(tmp_path: Path, repair: bool) -> None:
    """A cut file on this disk: its sentence is said, and nothing is tried again for it."""
    for name in ("step-1", "step-2"):
        make_commit(tmp_path / name, {"a": b"1"}, kind="checkpoint")
    torn = tmp_path / "step-2" / "manifest.json"
    torn.write_bytes(torn.read_bytes()[:40])
    cold = tmp_path / "cold"
    requests = [request_for(tmp_path / name, str(cold / name), tmp_path) for name in ("step-1", "step-2")]

    answers = run_agent(tmp_path, *(request | {"repair": repair} for request in requests))

    assert [(answer["event"], answer.get("error")) for answer in answers] == [
        ("failed", "IntegrityError"),
        ("verified", None),
    ]
    assert f"{torn}: the manifest is not JSON" in answers[0]["message"]
    assert (state_of(tmp_path, "step-2")["state"], state_of(tmp_path, "step-1")["state"]) == ("failed", "verified")
    assert os.listdir(cold) == ["step-1"]


def test_pulls_bring_the_newest_and_say_what_failed(tmp_path: Path) -> None:
    """A name, or null when nothing is newer; an error with its class."""
    make_commit(tmp_path / "cold" / "step-00000003", {"a": b"1"}, kind="checkpoint")
    request = {"op": "pull", "dest": str(tmp_path / "here"), "pattern": "step-*"}

    answers = run_agent(
        tmp_path,
        request | {"source": str(tmp_path / "cold"), "after": None},
        request | {"source": str(tmp_path / "cold"), "after": "step-00000003"},
        request | {"source": "nosuch://x", "after": None},
    )

    assert [(answer["event"], answer.get("name")) for answer in answers] == [
        ("pulled", "step-00000003"),
        ("pulled", None),
        ("failed", None),
    ]
    assert answers[2]["error"] == "UsageError"
    assert verify_commit(arriving(tmp_path / "here" / "step-00000003")).name == "step-00000003"


def start_agent(queue: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "datakit.storage.agent", str(queue)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def test_the_process_ignores_ctrl_c_and_works_on_when_nobody_listens(faulty: FaultyServer, tmp_path: Path) -> None:
    """The trainer's end of both pipes is closed and SIGINT comes: what was offered is published all the same."""
    manifest = make_commit(tmp_path / "step-1", {"a": noise(1000)}, kind="checkpoint")
    (tmp_path / "queue").mkdir()
    agent = start_agent(tmp_path / "queue")
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(
        json.dumps({"op": "pull", "source": "nosuch://x", "dest": "x", "pattern": "*", "after": None}) + "\n"
    )
    agent.stdin.flush()
    agent.stdout.readline()

    agent.stdout.close()
    agent.send_signal(signal.SIGINT)
    agent.stdin.write(json.dumps(request_for(tmp_path / "step-1", f"{faulty.url}/step-1", tmp_path / "queue")) + "\n")
    agent.stdin.close()
    code = agent.wait(timeout=60)

    assert code == 0
    assert state_of(tmp_path / "queue", "step-1")["state"] == "verified"
    assert faulty.objects["step-1/manifest.json"][0] == manifest.to_bytes()


def test_a_second_agent_waits_until_the_first_has_published(tmp_path: Path) -> None:
    """Two attempts of one run never publish at the same time."""
    from datakit.storage import disk

    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    (tmp_path / "queue").mkdir()
    request = request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), tmp_path / "queue")
    with disk.exclusive(tmp_path / "queue" / LOCK_NAME, purpose="publishing"):
        agent = start_agent(tmp_path / "queue")
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(json.dumps(request) + "\n")
        pulling = {"op": "pull", "source": str(tmp_path / "x"), "dest": "x", "pattern": "*", "after": None}
        agent.stdin.write(json.dumps(pulling) + "\n")
        agent.stdin.flush()
        first = json.loads(agent.stdout.readline())
        published_early = (tmp_path / "cold").exists()
    agent.stdin.close()
    second = json.loads(agent.stdout.readline())
    agent.wait(timeout=60)
    agent.stdout.close()

    assert (first["event"], published_early) == ("pulled", False)
    assert second["event"] == "verified"


def test_a_copy_whose_state_cannot_be_written_is_made_and_not_called_verified(tmp_path: Path) -> None:
    """A missing queue directory: the commit is at its destination, and the next attempt would not know."""
    manifest = make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    request = request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), tmp_path)
    request["state"] = str(tmp_path / "absent" / "x.json")

    answers = run_agent(tmp_path, request)

    assert [(answer["event"], answer["error"]) for answer in answers] == [("failed", "NotFound")]
    assert verify_commit(tmp_path / "cold" / "step-1") == manifest
    assert not (tmp_path / "absent").exists()


def test_what_is_put_again_does_not_push_a_newer_commit_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All adapters of a run lie in one directory: while one failed, the next came, and is published."""
    queue, adapter, cold = tmp_path / "queue", tmp_path / "adapter", tmp_path / "cold"
    queue.mkdir()
    inbox, out, real = Inbox(), io.StringIO(), agent.sync

    def asked(name: str) -> dict[str, Any]:
        where = {"dest": str(cold / name), "state": str(queue / f"{name}.json")}
        return offer(str(adapter), **where, manifest_digest=read_manifest(adapter).digest, repair=False)

    def interrupted(*_args: Any, **_more: Any) -> Any:
        shutil.rmtree(adapter)
        make_commit(adapter, {"a": b"two"}, kind="adapter")
        inbox.put(asked("adapter-2"))
        inbox.end()
        monkeypatch.setattr(agent, "sync", real)
        raise IntegrityError("it changed while it was uploaded")

    make_commit(adapter, {"a": b"one"}, kind="adapter")
    inbox.put(asked("adapter-1"))
    monkeypatch.setattr(agent, "sync", interrupted)
    Agent(inbox, out, queue_dir=queue).run()

    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(each["event"], each["dest"][-1]) for each in told] == [("lost", "1"), ("failed", "1"), ("verified", "2")]
    assert verify_commit(cold / "adapter-2") == read_manifest(adapter)


def test_a_lock_that_finds_no_room_fails_what_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is the error of each offer, and not the agent's end."""
    queue = tmp_path / "queue"
    queue.mkdir()
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")

    def full(*_args: Any, **_more: Any) -> Any:
        raise NoSpace("the disk is full")

    monkeypatch.setattr(agent.disk, "exclusive", full)
    (answer,) = run_agent(queue, request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), queue))

    assert (answer["event"], answer["error"]) == ("failed", "NoSpace")


def test_who_waits_for_the_lock_rests_between_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the end of its input, while an earlier attempt's agent has it."""
    queue = tmp_path / "queue"
    queue.mkdir()
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    real, tries, rests = agent.disk.exclusive, iter([True, True, True]), []

    def held(*args: Any, **more: Any) -> Any:
        if next(tries, False):
            raise Busy("another process is publishing")
        return real(*args, **more)

    monkeypatch.setattr(agent.disk, "exclusive", held)
    monkeypatch.setattr(Inbox, "pause", lambda _inbox, timeout_s: rests.append(timeout_s))
    (answer,) = run_agent(queue, request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), queue))

    assert answer["event"] == "verified"
    assert rests == [agent.LOCK_RETRY_S] * 3


def test_a_commit_that_is_offered_again_while_it_waits_is_not_called_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run offers its last checkpoint when it is saved and at its end: one copy, and no word of a newer one."""
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    request = request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), tmp_path)
    inbox, out, real = Inbox(), io.StringIO(), agent.sync

    def down(*_args: Any, **_more: Any) -> Any:
        inbox.put(dict(request))
        inbox.end()
        monkeypatch.setattr(agent, "sync", real)
        raise StoreUnavailable("the store is away")

    inbox.put(dict(request))
    monkeypatch.setattr(agent, "sync", down)
    Agent(inbox, out, queue_dir=tmp_path).run()

    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["event"] for each in told] == ["waiting", "verified"]
    assert state_of(tmp_path, "step-1")["state"] == "verified"


class Asked(Inbox):
    """An inbox whose rests are steps of a test: each may ask for something more."""

    def __init__(self, steps: Iterator[Any]) -> None:
        super().__init__()
        self.steps = steps
        self.rests: list[float] = []

    def wait(self, timeout_s: float) -> None:
        self.rests.append(timeout_s)
        next(self.steps)


def test_a_lock_that_finds_no_room_is_said_once_of_each_commit_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on for hours: the reason is told at once, the state keeps it, and room is used when it comes."""
    queue, cold = tmp_path / "queue", tmp_path / "cold"
    queue.mkdir()
    for name in ("step-1", "step-2"):
        make_commit(tmp_path / name, {"a": name.encode()}, kind="checkpoint")
    requests = [request_for(tmp_path / name, str(cold / name), queue) for name in ("step-1", "step-2")]
    real, out = agent.disk.exclusive, io.StringIO()
    states: list[Any] = []

    def full(*_args: Any, **_more: Any) -> Any:
        raise NoSpace("the disk is full")

    def happening() -> Iterator[None]:
        states.append(state_of(queue, "step-1"))
        yield
        inbox.put(requests[1])
        yield
        monkeypatch.setattr(agent.disk, "exclusive", real)
        inbox.end()
        yield

    inbox = Asked(happening())
    inbox.put(requests[0])
    monkeypatch.setattr(agent.disk, "exclusive", full)
    Agent(inbox, out, queue_dir=queue).run()

    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(each["event"], each["dest"][-1], each.get("message")) for each in told] == [
        ("waiting", "1", "the disk is full"),
        ("waiting", "2", "the disk is full"),
        ("verified", "2", None),
        ("verified", "1", None),
    ]
    assert (states[0]["state"], states[0]["message"]) == ("staged", "the disk is full")
    assert inbox.rests == [agent.RETRY_S] * 3


def test_a_look_that_comes_while_the_lock_finds_no_room_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last request too: what waits is failed, and the agent does not die of a request that is no offer."""
    queue = tmp_path / "queue"
    queue.mkdir()
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    inbox, out = Inbox(), io.StringIO()

    def full(*_args: Any, **_more: Any) -> Any:
        if not inbox.ended:
            inbox.put({"op": "look", "source": str(tmp_path / "cold"), "pattern": "*"})
            inbox.end()
        raise NoSpace("the disk is full")

    inbox.put(request_for(tmp_path / "step-1", str(tmp_path / "cold" / "step-1"), queue))
    monkeypatch.setattr(agent.disk, "exclusive", full)
    Agent(inbox, out, queue_dir=queue).run()

    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(each["op"], each["event"]) for each in told] == [
        ("publish", "waiting"),
        ("look", "pulled"),
        ("publish", "failed"),
    ]


@pytest.mark.parametrize("torn", [None, b"", b'{"format": "datakit'])
def test_what_a_lost_machine_left_is_never_overwritten(
    faulty: FaultyServer, tmp_path: Path, torn: bytes | None
) -> None:
    """Its bytes of that step are others, and it may only be slow: the message says what lies there, and what to do."""
    make_commit(tmp_path / "step-1", {"a": b"1", "b": b"one core"}, kind="checkpoint")
    left = {"step-1/a": b"1", "step-1/b": b"two cores"} | ({} if torn is None else {"step-1/manifest.json": torn})
    for name, data in left.items():
        faulty.put(name, data)

    *_, answer = run_agent(tmp_path, request_for(tmp_path / "step-1", f"{faulty.url}/step-1", tmp_path))

    assert (answer["event"], answer["error"]) == ("failed", "Refused")
    assert answer["message"].startswith(f"{faulty.url}/step-1 holds no commit, but what another upload has left: ")
    assert answer["hint"].endswith(f"aws s3 rm --recursive {faulty.url}/step-1")
    assert {key: data for key, (data, _) in faulty.objects.items()} == left


def test_a_commit_in_the_way_is_not_called_a_left_over(faulty: FaultyServer, tmp_path: Path) -> None:
    """Nobody is told to remove it."""
    theirs = make_commit(tmp_path / "theirs" / "step-1", {"a": b"2"}, kind="checkpoint")
    make_commit(tmp_path / "step-1", {"a": b"1"}, kind="checkpoint")
    faulty.put("step-1/a", b"2")
    faulty.put("step-1/manifest.json", theirs.to_bytes())

    (answer,) = run_agent(tmp_path, request_for(tmp_path / "step-1", f"{faulty.url}/step-1", tmp_path))

    assert (answer["event"], answer["error"]) == ("failed", "Refused")
    assert "would get other bytes under its name" in answer["message"]
    assert "aws" not in answer["hint"]
