"""What `storage/writeback` promises: nothing waits, nothing raises, nothing is lost and nothing is silent."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.errors import (
    DatakitError,
    IntegrityError,
    NoSpace,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnavailable,
    UsageError,
)
from datakit.storage.access import StoreOptions
from datakit.storage.agent import LOCK_NAME, Agent
from datakit.storage.catalog import Pulled
from datakit.storage.commit import verify_commit
from datakit.storage.copies import told
from datakit.storage.inbox import Inbox
from datakit.storage.pipe import AGENT_LOG, MAX_STARTS
from datakit.storage.sync import sync
from datakit.storage.writeback import Failed, Published, WriteBack
from support.commits import make_commit, noise
from support.faulty import Fault, FaultyServer
from support.process import run_code

PATIENCE_S = 60.0


def checkpoint(directory: Path, step: int, size_bytes: int = 2000) -> Path:
    path = directory / f"step-{step:08d}"
    make_commit(path, {"state": noise(size_bytes, step)}, kind="checkpoint")
    return path


def until(told: Callable[[], list[Published | Failed]], count: int) -> list[Published | Failed]:
    """Poll until so many things were told."""
    heard: list[Published | Failed] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(heard) < count and time.monotonic() < deadline:
        heard += told()
        time.sleep(0.01)
    return heard


def test_offers_are_published_and_told(faulty: FaultyServer, tmp_path: Path) -> None:
    """Each to its own name below the URL; at the end nothing is unpublished."""
    back = WriteBack(f"{faulty.url}/run/", queue_dir=tmp_path / "queue")
    commits = [checkpoint(tmp_path, step) for step in (10, 20)]
    back.start()

    for path in commits:
        back.offer(path)
    told = until(back.poll, 2)
    left = back.close(deadline_s=PATIENCE_S)

    assert {(type(each), each.path) for each in told} == {(Published, path) for path in commits}
    assert left == {}
    assert [back.state(path.name) for path in commits] == ["verified", "verified"]
    sync(f"{faulty.url}/run/step-00000020", tmp_path / "copy")
    verify_commit(tmp_path / "copy")


def test_closing_lets_the_agent_finish(faulty: FaultyServer, tmp_path: Path) -> None:
    """What was offered a moment ago is published before close returns, and is told after it."""
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))

    left = back.close(deadline_s=PATIENCE_S)

    assert left == {}
    assert [type(each) for each in back.poll()] == [Published]
    assert "run/step-00000010/manifest.json" in faulty.objects


def test_a_deadline_that_is_over_leaves_the_rest_to_the_agent_and_says_so(faulty: FaultyServer, tmp_path: Path) -> None:
    """The trainer may go; the agent goes on by itself."""
    faulty.faults = [Fault("stall", method="GET", times=1)]
    faulty.put("run/step-00000010/manifest.json", b"{" * 1000)
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    agent = back._agent.process
    assert agent is not None
    while not faulty.asked("GET"):
        time.sleep(0.01)

    left = back.close(deadline_s=0.0)
    still_running = agent.poll() is None
    faulty.objects.clear()
    faulty.released.set()
    agent.wait(timeout=PATIENCE_S)

    assert left == {"step-00000010": "uploading"}
    assert still_running
    assert back.unpublished() == {}


def test_trouble_is_told_and_never_raised(faulty: FaultyServer, tmp_path: Path) -> None:
    """Wrong credentials: a Failed with the sentence and the hint, and the reason in what is unpublished."""
    faulty.faults = [Fault("signature", times=99)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.offer(checkpoint(tmp_path, 10))
    back.offer(tmp_path / "step-99999999")
    told = until(back.poll, 2)
    left = back.close(deadline_s=PATIENCE_S)

    assert {type(each) for each in told} == {Failed}
    assert any("secret access key is wrong" in each.message for each in told if isinstance(each, Failed))
    assert any("step-99999999 is not there" in each.message for each in told if isinstance(each, Failed))
    assert list(left) == ["step-00000010", "step-99999999"]
    assert "secret access key is wrong" in left["step-00000010"]
    assert "step-99999999 is not there" in left["step-99999999"]
    assert [back.trouble(name) for name in left] == [NotAllowed, NotFound]


def test_a_store_that_is_away_for_a_while_is_waited_for(faulty: FaultyServer, tmp_path: Path) -> None:
    """Told as waiting, published when it is back, without anybody's help."""
    faulty.faults = [Fault("hang-up", times=4)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))

    told = until(back.poll, 1)
    left = back.close(deadline_s=PATIENCE_S)

    assert [each.waiting for each in told if isinstance(each, Failed)] == [True]
    assert left == {}


def test_a_new_start_takes_up_what_an_earlier_one_left(faulty: FaultyServer, tmp_path: Path) -> None:
    """A trainer killed between commit and upload: the next attempt publishes it without being asked."""
    path = checkpoint(tmp_path, 10)
    first = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    (tmp_path / "queue").mkdir()
    first.offer(path)

    second = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    second.start()
    left = second.close(deadline_s=PATIENCE_S)

    assert first.state(path.name) == "verified"
    assert left == {}
    assert "run/step-00000010/manifest.json" in faulty.objects


def test_what_is_verified_is_not_offered_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """The same commit to the same place costs no request the second time."""
    path = checkpoint(tmp_path, 10)
    for _ in range(2):
        back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
        back.start()
        back.offer(path)
        back.close(deadline_s=PATIENCE_S)
        asked, faulty.log = len(faulty.log), []

    assert asked == 0


def test_an_agent_that_dies_is_started_again_with_what_it_had(faulty: FaultyServer, tmp_path: Path) -> None:
    """Kill -9 of the agent in the middle of an upload: a new one publishes it."""
    faulty.faults = [Fault("stall", method="GET", times=1)]
    faulty.put("run/step-00000010/manifest.json", b"{" * 1000)
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    assert back._agent.process is not None
    while not faulty.asked("GET"):
        time.sleep(0.01)

    os.kill(back._agent.process.pid, signal.SIGKILL)
    faulty.objects.clear()
    faulty.released.set()
    told = until(back.poll, 1)
    back.close(deadline_s=PATIENCE_S)

    assert [type(each) for each in told] == [Published]


@pytest.mark.parametrize("deaths", [1, MAX_STARTS])
def test_an_agent_that_dies_while_its_end_is_waited_for_is_started_again(
    faulty: FaultyServer, tmp_path: Path, deaths: int
) -> None:
    """Kill -9 of each agent while it puts the last commit: another puts it, or the log is named when none can."""
    faulty.faults = [Fault("hold", method="PUT", times=deaths)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    killed: list[int] = []

    def look() -> bool:
        if len(killed) < deaths and len(faulty.asked("PUT")) > len(killed):
            killed.append(int((tmp_path / "queue" / LOCK_NAME).read_text()))
            os.kill(killed[-1], signal.SIGKILL)
        return False

    left = back.close(deadline_s=PATIENCE_S, hurried=look)

    given_up = deaths == MAX_STARTS
    assert left == ({"step-00000010": "the agent ends again and again"} if given_up else {})
    assert back.trouble("step-00000010") is (DatakitError if given_up else StoreUnavailable)
    assert len(set(killed)) == deaths


def test_an_agent_that_is_stopped_with_the_run_is_not_started_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """Who has little time leaves the rest to the next start."""
    faulty.faults = [Fault("hold", method="PUT", times=9)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    while not faulty.asked("PUT"):
        time.sleep(0.01)
    assert back._agent.process is not None
    os.kill(back._agent.process.pid, signal.SIGKILL)

    left = back.close(deadline_s=PATIENCE_S, hurried=lambda: True, hurry_s=PATIENCE_S)

    assert left == {"step-00000010": "uploading"}
    assert back._agent.starts == 1


def test_an_agent_that_cannot_live_is_given_up_and_told(tmp_path: Path) -> None:
    """After a few starts the offers are Failed, those that come later too, and the log is named."""
    back = WriteBack(str(tmp_path / "cold"), queue_dir=tmp_path / "queue", env={"PYTHONHOME": "/nowhere"})
    back.start()
    back.offer(checkpoint(tmp_path, 10))

    told = until(back.poll, 1)
    back.offer(checkpoint(tmp_path, 20))
    after = back.poll()
    left = back.close(deadline_s=1.0)

    log = f"See {tmp_path / 'queue' / AGENT_LOG}"
    assert back._agent.starts == MAX_STARTS
    assert [(each.path.name, each.message, each.hint, each.waiting) for each in told + after] == [  # type: ignore[union-attr]
        (name, "the agent ends again and again", log, False) for name in ("step-00000010", "step-00000020")
    ]
    assert left == dict.fromkeys(("step-00000010", "step-00000020"), "the agent ends again and again")
    assert back.poll() == []


def test_after_the_trainers_death_the_agent_publishes_what_it_was_given(faulty: FaultyServer, tmp_path: Path) -> None:
    """Kill -9 of the trainer right after its offer."""
    code = """
import os, sys
from pathlib import Path
from datakit.storage.writeback import WriteBack
back = WriteBack(sys.argv[1], queue_dir=Path(sys.argv[2]))
back.start()
back.offer(Path(sys.argv[3]))
print(back._agent.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    path = checkpoint(tmp_path, 10)

    with pytest.raises(subprocess.CalledProcessError) as killed:
        run_code(code, f"{faulty.url}/run", tmp_path / "queue", path)
    deadline = time.monotonic() + PATIENCE_S
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    while back.state(path.name) != "verified" and time.monotonic() < deadline:
        time.sleep(0.02)

    assert killed.value.returncode == -9
    assert back.state(path.name) == "verified"
    assert "run/step-00000010/manifest.json" in faulty.objects


def test_the_newest_commit_is_brought_before_training(faulty: FaultyServer, tmp_path: Path) -> None:
    """On a fresh machine; nothing when the local one is as new."""
    for step in (10, 20):
        sync(checkpoint(tmp_path / "made", step), f"{faulty.url}/run/step-{step:08d}")
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    pulled = back.fetch_newest(tmp_path / "here")
    again = back.fetch_newest(tmp_path / "here", after="step-00000020")
    back.close(deadline_s=PATIENCE_S)

    assert (pulled, again) == (Pulled("step-00000020"), Pulled(None))
    verify_commit(tmp_path / "here" / "step-00000020")


def test_a_place_that_cannot_be_asked_is_an_error_before_training(faulty: FaultyServer, tmp_path: Path) -> None:
    """The agent's error comes out here with its class, its words and its hint."""
    faulty.faults = [Fault("hang-up", times=99)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    with pytest.raises(StoreUnavailable, match="no proper answer") as caught:
        back.fetch_newest(tmp_path / "here")
    back.close(deadline_s=PATIENCE_S)

    assert caught.value.hint is not None


def test_options_reach_the_agent_through_its_environment_alone(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the command line nor any file of the queue holds the secret."""
    for name in faulty.env:
        monkeypatch.delenv(name)
    options = StoreOptions.from_environment(faulty.env)
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue", options=options)
    back.start()
    assert back._agent.process is not None
    back.offer(checkpoint(tmp_path, 10))
    command = Path(f"/proc/{back._agent.process.pid}/cmdline").read_bytes()

    left = back.close(deadline_s=PATIENCE_S)

    kept = b"".join(path.read_bytes() for path in (tmp_path / "queue").iterdir())
    assert left == {}
    assert b"the-secret-of-the-test" not in command + kept


def test_what_lies_around_does_not_lead_the_agent_elsewhere(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of the settings is meant, whatever the environment says of another: checkpoints go nowhere else."""
    options = StoreOptions.from_environment(faulty.env)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-somebody-else")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue", options=options)
    back.start()
    back.offer(checkpoint(tmp_path, 10))

    left = back.close(deadline_s=PATIENCE_S)

    assert left == {}
    assert all("AKIAEXAMPLE" in said and "somebody-else" not in said for said in faulty.credentials)


def test_a_library_that_is_missing_is_said_as_such(tmp_path: Path) -> None:
    """The agent's MissingExtra comes out as one, with the command that brings the library."""
    (tmp_path / "broken" / "obstore").mkdir(parents=True)
    (tmp_path / "broken" / "obstore" / "__init__.py").write_text("raise ImportError('obstore')\n")
    # the agent looks into the library's own directory first, then here
    code = """
import os, sys
from pathlib import Path
from datakit.errors import MissingExtra
os.environ["PYTHONPATH"] = sys.argv[3]
from datakit.storage.writeback import WriteBack
back = WriteBack("s3://bkt/run", queue_dir=Path(sys.argv[1]))
back.start()
try:
    back.fetch_newest(Path(sys.argv[2]))
except MissingExtra as error:
    print(error.library, error.hint)
back.close(deadline_s=10)
"""

    said = run_code(code, tmp_path / "queue", tmp_path / "here", tmp_path / "broken")

    assert said.strip() == "obstore pip install 'datakit[s3]'"


def test_an_error_keeps_its_class_on_its_way_from_the_agent(tmp_path: Path) -> None:
    """Wrong usage is wrong usage, not a failure of the agent."""
    back = WriteBack("nosuch://x", queue_dir=tmp_path / "queue")
    back.start()

    with pytest.raises(UsageError, match="does not know"):
        back.fetch_newest(tmp_path / "here")
    back.close(deadline_s=PATIENCE_S)

    assert back.unpublished() == {}


def test_every_request_is_counted_also_those_of_what_failed(faulty: FaultyServer, tmp_path: Path) -> None:
    """Listing, fetching and refused uploads cost money too: the agent tells them with each answer."""
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.fetch_newest(tmp_path / "here")
    looked = back.requests
    faulty.faults = [Fault("signature", times=99)]
    back.offer(checkpoint(tmp_path, 10))
    told = until(back.poll, 1)
    back.close(deadline_s=PATIENCE_S)

    assert looked.list >= 1
    assert [type(each) for each in told] == [Failed]
    assert back.requests.total > looked.total


def test_a_look_names_the_newest_and_brings_nothing(tmp_path: Path) -> None:
    """To begin anew, one must know that nothing is there."""
    for step in (10, 20):
        checkpoint(tmp_path / "cold", step)
    back = WriteBack(str(tmp_path / "cold"), queue_dir=tmp_path / "queue")
    empty = WriteBack(str(tmp_path / "nothing"), queue_dir=tmp_path / "queue2")

    found = []
    for one in (back, empty):
        one.start()
        found.append(one.newest())
        one.close(deadline_s=PATIENCE_S)

    assert found == ["step-00000020", None]
    assert not (tmp_path / "here").exists()


def test_a_commit_goes_by_the_name_it_is_given_and_its_successor_by_another(tmp_path: Path) -> None:
    """What was offered and replaced before it went up is not published under the old name, nor asked for any more."""
    place, back = tmp_path / "run" / "adapter", WriteBack(str(tmp_path / "cold"), queue_dir=tmp_path / "queue")
    back.queue_dir.mkdir()
    make_commit(place, {"w": b"1"}, kind="adapter")
    back.offer(place, name="adapter-1")
    place.rename(tmp_path / "previous")
    make_commit(place, {"w": b"2"}, kind="adapter")

    back.start()
    back.offer(place, name="adapter-2")
    left = back.close(deadline_s=PATIENCE_S)

    assert left == {}
    assert [path.name for path in (tmp_path / "cold").iterdir()] == ["adapter-2"]


def test_a_wait_is_cut_short_by_who_is_in_a_hurry(faulty: FaultyServer, tmp_path: Path) -> None:
    """A signal during the last uploads leaves them to the agent instead of waiting ten minutes."""
    faulty.faults = [Fault("stall", method="GET", times=1)]
    faulty.put("run/step-00000010/manifest.json", b"{" * 1000)
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    agent = back._agent.process
    assert agent is not None
    began = time.monotonic()

    left = back.close(deadline_s=10 * PATIENCE_S, hurried=lambda: True, hurry_s=0.1)
    took_s = time.monotonic() - began
    faulty.objects.clear()
    faulty.released.set()
    agent.wait(timeout=PATIENCE_S)

    assert list(left) == ["step-00000010"]
    assert took_s < PATIENCE_S


def published(place: str, tmp_path: Path, *steps: int) -> None:
    """Write back commits of these steps, by an attempt of its own."""
    back = WriteBack(place, queue_dir=tmp_path / "queue")
    back.start()
    for step in steps:
        back.offer(checkpoint(tmp_path, step))
    assert back.close(deadline_s=PATIENCE_S) == {}
    back.poll()


@pytest.mark.parametrize("gone", ["run/", "run/step-00000010/state", "run/step-00000010/manifest.json"])
def test_what_the_store_no_longer_holds_is_offered_again(faulty: FaultyServer, tmp_path: Path, gone: str) -> None:
    """A lost bucket, a member, a manifest: the first listing tells, `verified` does not stand, and it is said."""
    published(f"{faulty.url}/run", tmp_path, 10, 20)
    for key in [key for key in faulty.objects if key.startswith(gone)]:
        del faulty.objects[key]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.fetch_newest(tmp_path / "here", after="step-00000020")
    back.offer(tmp_path / "step-00000010")
    left = back.close(deadline_s=PATIENCE_S)
    told = back.poll()

    lost = [each for each in told if isinstance(each, Failed)]
    assert left == {}
    assert {each.path.name for each in lost} >= {"step-00000010"}
    assert all(each.waiting and "is not there any more" in each.message for each in lost)
    for step in (10, 20):
        sync(f"{faulty.url}/run/step-{step:08d}", tmp_path / "copy" / str(step))


def test_a_manifest_that_the_store_tore_is_no_copy(faulty: FaultyServer, tmp_path: Path) -> None:
    """It is there by its name and not by its size: the listing tells, and it goes up again."""
    published(f"{faulty.url}/run", tmp_path, 10)
    key = "run/step-00000010/manifest.json"
    faulty.put(key, faulty.objects[key][0][:40])
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.newest()
    assert back.close(deadline_s=PATIENCE_S) == {}
    sync(f"{faulty.url}/run/step-00000010", tmp_path / "copy")


@pytest.mark.parametrize("kept", ["run/.*", "run/step-00000010/state"])
def test_a_copy_that_the_store_does_not_list_is_never_called_verified(
    faulty: FaultyServer, tmp_path: Path, kept: str
) -> None:
    """A store that says yes and keeps nothing, or not one member: put twice, then failed, and said to be."""
    faulty.faults = [Fault("forget", method="PUT", key=kept, times=99)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    left = back.close(deadline_s=PATIENCE_S)
    told = back.poll()

    assert not any(isinstance(each, Published) for each in told)
    assert left == {"step-00000010": "the store took it, and does not list it, twice"}
    assert (back.state("step-00000010"), back.trouble("step-00000010")) == ("failed", StoreUnavailable)

    faulty.faults = []
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    assert back.close(deadline_s=PATIENCE_S) == {}
    sync(f"{faulty.url}/run/step-00000010", tmp_path / "copy")


def test_a_put_that_is_forgotten_once_is_made_again(faulty: FaultyServer, tmp_path: Path) -> None:
    """The listing after it tells, and the copy is verified by the listing after the next."""
    faulty.faults = [Fault("forget", method="PUT", key="run/step-00000010/state")]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))

    assert back.close(deadline_s=PATIENCE_S) == {}
    waiting, done = back.poll()
    assert isinstance(waiting, Failed)
    assert waiting.message == "the store took it, and does not list it"
    assert isinstance(done, Published)
    sync(f"{faulty.url}/run/step-00000010", tmp_path / "copy")


def test_a_store_that_loses_a_copy_again_is_not_believed_a_third_time(faulty: FaultyServer, tmp_path: Path) -> None:
    """What is gone goes up once more; gone again, it is failed: nothing goes in circles, and nothing is pruned."""
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    told: list[Published | Failed] = []
    for step, enough in ((10, 1), (20, 3), (30, 2)):  # what is said: its copy; its own, the loss, it again; the loss
        back.offer(checkpoint(tmp_path, step))
        told += until(back.poll, enough)
        for key in [key for key in faulty.objects if "00000010" in key]:
            del faulty.objects[key]
    left = back.close(deadline_s=PATIENCE_S)

    assert left == {"step-00000010": "it was there, verified, and is not there any more, for the second time"}
    assert [type(each) for each in told if each.path.name == "step-00000010"] == [Published, Failed, Published, Failed]


@pytest.mark.parametrize("key", ["run/step-00000010/state", "run/step-00000010/manifest.json"])
def test_what_the_store_keeps_half_of_is_not_in_the_way_of_the_next_try(
    faulty: FaultyServer, tmp_path: Path, key: str
) -> None:
    """An honest tag tells; what is wrong is taken away again, and a store that is well gets the copy."""
    faulty.faults = [Fault("halve", method="PUT", key=key, times=99)]
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    assert "step-00000010" in back.close(deadline_s=PATIENCE_S)
    assert key not in faulty.objects

    faulty.faults = []
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    assert back.close(deadline_s=PATIENCE_S) == {}
    sync(f"{faulty.url}/run/step-00000010", tmp_path / "copy")


def test_what_is_gone_here_and_there_is_forgotten(faulty: FaultyServer, tmp_path: Path) -> None:
    """Nobody has its bytes any more: no state says that it is safe."""
    published(f"{faulty.url}/run", tmp_path, 10, 20)
    faulty.objects.clear()
    shutil.rmtree(tmp_path / "step-00000010")
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.newest()
    left = back.close(deadline_s=PATIENCE_S)

    assert left == {}
    assert (back.state("step-00000010"), back.state("step-00000020")) == (None, "verified")


def test_a_copy_that_is_lost_under_way_goes_up_again_with_the_next_one(faulty: FaultyServer, tmp_path: Path) -> None:
    """After each commit that went up the agent looks whether the others are still there."""
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(tmp_path, 10))
    until(back.poll, 1)
    faulty.objects.clear()

    back.offer(checkpoint(tmp_path, 20))
    left = back.close(deadline_s=PATIENCE_S)

    assert left == {}
    assert {key.split("/")[1] for key in faulty.objects} == {"step-00000010", "step-00000020"}


def test_a_list_that_hides_what_is_there_makes_no_circle(tmp_path: Path, faulty: FaultyServer) -> None:
    """A copy is offered again once an attempt: an upload that finds it whole is the better witness."""
    published(f"{faulty.url}/run", tmp_path, 10)
    inbox, out = Inbox(), io.StringIO()
    agent = Agent(inbox, out, queue_dir=tmp_path / "queue")
    hidden = dict(faulty.objects)
    for _ in range(3):
        faulty.objects.clear()
        inbox.put({"op": "look", "source": f"{faulty.url}/run", "pattern": "step-*"})
        request = inbox.take(offers=False)
        assert request is not None
        agent._pull(request)
        faulty.objects.update(hidden)

    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()].count("lost") == 1


def test_another_runs_commit_is_never_given_its_name_here(tmp_path: Path) -> None:
    """The check sees it where it waits; refused, nothing of it stays."""
    checkpoint(tmp_path / "cold", 10)
    back = WriteBack(str(tmp_path / "cold"), queue_dir=tmp_path / "queue")
    back.start()
    seen: list[bytes] = []

    def check(commit: Path) -> None:
        seen.append((commit / "state").read_bytes())
        raise Refused("of another run")

    with pytest.raises(Refused, match="of another run"):
        back.fetch_newest(tmp_path / "here", check=check)
    back.close(deadline_s=PATIENCE_S)

    assert seen == [noise(2000, 10)]
    assert os.listdir(tmp_path / "here") == []


def spoil(faulty: FaultyServer, key: str, how: str) -> None:
    """Damage an object: a bit of the same size, its end, or all of it."""
    data = faulty.objects[key][0]
    faulty.put(key, bytes([data[0] ^ 1]) + data[1:] if how == "bit" else data[: len(data) // 2])


@pytest.mark.parametrize("known", [True, False], ids=["seen verified", "a fresh machine"])
@pytest.mark.parametrize(("name", "how"), [("state", "bit"), ("state", "end"), ("manifest.json", "end")])
def test_a_copy_that_was_met_damaged_is_put_again_also_by_a_later_attempt(
    faulty: FaultyServer, tmp_path: Path, name: str, how: str, known: bool
) -> None:
    """Killed after the commit was made again and before it was offered: the next start heals the copy."""
    published(f"{faulty.url}/run", tmp_path, 10)
    whole = dict(faulty.objects)
    spoil(faulty, f"run/step-00000010/{name}", how)
    shutil.rmtree(tmp_path / "step-00000010")
    if not known:
        shutil.rmtree(tmp_path / "queue")
    first = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    first.start()
    pulled = first.fetch_newest(tmp_path)
    missing, state = first.close(deadline_s=PATIENCE_S), first.state("step-00000010")
    checkpoint(tmp_path, 10)

    second = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    second.start()
    left = second.close(deadline_s=PATIENCE_S)

    assert (pulled.name, list(missing), state) == (None, ["step-00000010"], "failed")
    assert (left, second.state("step-00000010")) == ({}, "verified")
    assert faulty.objects == whole


def test_a_copy_that_was_met_damaged_is_put_again_when_no_state_can_be_kept(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    """A directory stands where the state would: the process knows it by itself, and says no word of `verified`."""
    published(f"{faulty.url}/run", tmp_path, 10)
    spoil(faulty, "run/step-00000010/state", "bit")
    shutil.move(tmp_path / "queue" / "step-00000010.json", tmp_path / "kept.json")
    (tmp_path / "queue" / "step-00000010.json").mkdir()
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.fetch_newest(tmp_path / "here")
    shutil.rmtree(tmp_path / "queue" / "step-00000010.json")
    shutil.move(tmp_path / "kept.json", tmp_path / "queue" / "step-00000010.json")
    before = back.state("step-00000010")
    back.offer(tmp_path / "step-00000010")
    left = back.close(deadline_s=PATIENCE_S)

    assert (before, left, back.state("step-00000010")) == ("failed", {}, "verified")
    assert faulty.objects["run/step-00000010/state"][0] == noise(2000, 10)


def test_a_damaged_copy_is_not_forgotten_while_newer_ones_are_whole(tmp_path: Path) -> None:
    """A look ends at the newest whole one: the word on an older one holds until that is made again, and heals it."""
    cold, here = tmp_path / "cold", tmp_path / "here"
    made = checkpoint(tmp_path / "made", 10)
    sync(made, str(cold / made.name))
    (cold / made.name / "state").write_bytes(noise(2000, 99))
    for _attempt in range(2):
        back = WriteBack(str(cold), queue_dir=tmp_path / "queue")
        back.start()
        back.fetch_newest(here)
        back.close(deadline_s=PATIENCE_S)
        sync(checkpoint(tmp_path / "made", 20), str(cold / "step-00000020"))
    remembered = back.state(made.name)

    back = WriteBack(str(cold), queue_dir=tmp_path / "queue")
    back.start()
    back.offer(checkpoint(here, 10))
    left = back.close(deadline_s=PATIENCE_S)

    assert (remembered, left, back.state(made.name)) == ("failed", {}, "verified")
    assert (cold / made.name / "state").read_bytes() == noise(2000, 10)


@pytest.mark.parametrize("how", ["whole", "gone"])
def test_damage_that_was_mended_or_removed_by_others_is_forgotten(tmp_path: Path, how: str) -> None:
    """Seen whole, or not there any more: nothing is left to say of it."""
    cold = tmp_path / "cold"
    made = checkpoint(tmp_path / "made", 10)
    sync(made, str(cold / made.name))
    said = []
    for data in (noise(2000, 99), noise(2000, 10)):
        if how == "gone" and said:
            shutil.rmtree(cold / made.name)
        else:
            (cold / made.name / "state").write_bytes(data)
        back = WriteBack(str(cold), queue_dir=tmp_path / "queue")
        back.start()
        pulled = back.fetch_newest(tmp_path / "here")
        said.append((pulled.name, list(back.close(deadline_s=PATIENCE_S))))

    assert said == [(None, [made.name]), (made.name if how == "whole" else None, [])]


def test_a_copy_that_only_a_newer_datakit_reads_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    """It is no damage: nothing is kept of it, and what is offered under its name is refused, not put in its place."""
    cold, here = tmp_path / "cold", tmp_path / "here"
    newer = checkpoint(cold, 10) / "manifest.json"
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"format": 99}))
    before = newer.read_bytes()
    back = WriteBack(str(cold), queue_dir=tmp_path / "queue")
    back.start()

    pulled = back.fetch_newest(here)
    between = back.unpublished()
    back.offer(checkpoint(here, 10))
    left = back.close(deadline_s=PATIENCE_S)

    assert ([each.name for each in pulled.skipped], pulled.damaged, between) == (["step-00000010"], {}, {})
    assert "format 99" in left["step-00000010"]
    assert (back.trouble("step-00000010"), newer.read_bytes()) == (UsageError, before)


def test_a_torn_commit_here_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Left staged by an earlier attempt, its manifest cut since: it is failed, and the next one is verified."""
    queue, bad = tmp_path / "queue", checkpoint(tmp_path, 10)
    queue.mkdir()
    WriteBack(str(tmp_path / "cold"), queue_dir=queue).offer(bad)
    (bad / "manifest.json").write_bytes((bad / "manifest.json").read_bytes()[:40])
    back = WriteBack(str(tmp_path / "cold"), queue_dir=queue)
    back.start()

    back.offer(checkpoint(tmp_path, 20))
    left = back.close(deadline_s=PATIENCE_S)

    assert list(left) == [bad.name]
    assert f"{bad / 'manifest.json'}: the manifest is not JSON" in left[bad.name]
    assert (back.trouble(bad.name), back.state("step-00000020")) == (IntegrityError, "verified")
    assert back._agent.starts == 1


def test_a_copy_whose_last_word_finds_no_room_ends_with_that_error(tmp_path: Path) -> None:
    """The agent made it and could not say so: it is not verified, and the class is that of the full disk."""
    path = checkpoint(tmp_path, 10)
    back = WriteBack(str(tmp_path / "cold"), queue_dir=tmp_path / "queue")
    back.start()
    back.offer(path)
    about = {"path": str(path), "dest": f"{tmp_path}/cold/{path.name}", "manifest_digest": None, "repair": False}

    back._take({"event": "failed", "op": "publish", "requests": {}, **about, **told(NoSpace("no space"))})
    said = (back.state(path.name), back.trouble(path.name), back.unpublished())

    assert said == ("failed", NoSpace, {path.name: "no space"})
    assert back.close(deadline_s=PATIENCE_S) == {}


@pytest.mark.parametrize("name", ["state", "manifest.json"])
def test_a_torn_copy_in_the_way_of_an_offer_is_put_again_and_said(
    faulty: FaultyServer, tmp_path: Path, name: str
) -> None:
    """Nobody has to say --repair: the whole commit is here."""
    sync(checkpoint(tmp_path, 10), f"{faulty.url}/run/step-00000010")
    whole = dict(faulty.objects)
    spoil(faulty, f"run/step-00000010/{name}", "end")
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.offer(tmp_path / "step-00000010")
    left = back.close(deadline_s=PATIENCE_S)
    told = back.poll()

    assert left == {}
    assert [each.waiting for each in told if isinstance(each, Failed)] == [True]
    assert isinstance(told[-1], Published)
    assert faulty.objects == whole


def test_damage_here_is_said_and_does_not_go_up(faulty: FaultyServer, tmp_path: Path) -> None:
    """What is tried again because bytes are wrong ends when they are wrong here."""
    path = checkpoint(tmp_path, 10)
    (path / "state").write_bytes(b"?" * 2000)
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()

    back.offer(path)
    left = back.close(deadline_s=PATIENCE_S)
    told = back.poll()

    assert "crc32c" in left["step-00000010"]
    assert [each.waiting for each in told if isinstance(each, Failed)] == [True, False]
    assert "run/step-00000010/manifest.json" not in faulty.objects


FULL = """
import resource, sys
from pathlib import Path
from datakit.storage.writeback import WriteBack
place, queue, *commits = sys.argv[1:]
back = WriteBack(place, queue_dir=Path(queue))
back.start()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
for commit in commits:
    back.offer(Path(commit))
print([said.message.split(" to write")[0] for said in back.poll()])
print([back.state(Path(commit).name) for commit in commits], len(back.unkept))
"""


def test_a_commit_whose_state_finds_no_room_has_no_copy(tmp_path: Path) -> None:
    """A limit of the file size stands for the full disk: named, not verified, whatever an older state said of it."""
    published(str(tmp_path / "cold"), tmp_path, 10)
    shutil.rmtree(tmp_path / "step-00000010")
    make_commit(tmp_path / "step-00000010", {"state": b"other"}, kind="checkpoint")
    code = FULL + "print(list(back.close(60)), back.trouble('step-00000010').__name__)"
    paths = (tmp_path / "step-00000010", checkpoint(tmp_path, 20))

    said = run_code(code, tmp_path / "cold", tmp_path / "queue", *paths).splitlines()

    assert said[0] == "['no space', 'no space']"
    assert said[1] == "['failed', 'failed'] 2"
    assert said[2] == "['step-00000010', 'step-00000020'] NoSpace"
    assert [path.name for path in (tmp_path / "cold").iterdir()] == ["step-00000010"]
    assert not list((tmp_path / "queue").glob("*.json"))


def test_room_that_is_found_in_the_end_is_used(tmp_path: Path) -> None:
    """A disk that was full for a while: what had no state gets one before the wait for the last uploads."""
    code = FULL + "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\nprint(back.close(60))"

    said = run_code(code, tmp_path / "cold", tmp_path / "queue", checkpoint(tmp_path, 10)).splitlines()

    assert said[2] == "{}"
    verify_commit(tmp_path / "cold" / "step-00000010")


def test_an_agent_that_cannot_be_started_again_is_given_up_and_told(tmp_path: Path) -> None:
    """The queue directory is gone when it died: that is told as trouble, and training goes on."""
    back = WriteBack("s3://bkt/run", queue_dir=tmp_path / "queue", env={"PYTHONHOME": "/nowhere"})
    back.start()
    assert back._agent.process is not None
    back._agent.process.wait(timeout=PATIENCE_S)
    back.offer(checkpoint(tmp_path, 10))
    shutil.rmtree(tmp_path / "queue")

    told = until(back.poll, 1)
    left = back.close(deadline_s=1.0)

    assert [type(each) for each in told] == [Failed]
    assert list(left) == ["step-00000010"]


@pytest.mark.parametrize("deaths", [1, MAX_STARTS])
def test_a_look_is_asked_again_when_the_agent_dies_over_it(faulty: FaultyServer, tmp_path: Path, deaths: int) -> None:
    """A kill during the first look ends no start; an agent that dies each time is an error in a sentence."""
    published(f"{faulty.url}/run", tmp_path, 10)
    faulty.faults, faulty.log = [Fault("hold", method="GET", key="", times=deaths)], []
    back = WriteBack(f"{faulty.url}/run", queue_dir=tmp_path / "queue")
    back.start()
    ended = threading.Event()

    def kill_each() -> None:
        for number in range(deaths):
            while len(faulty.asked("GET", "")) <= number and not ended.wait(0.01):
                pass
            if (agent := back._agent.process) is not None and not ended.is_set():
                agent.kill()

    killer = threading.Thread(target=kill_each)
    killer.start()
    try:
        if deaths < MAX_STARTS:
            assert back.fetch_newest(tmp_path / "here").name == "step-00000010"
        else:
            with pytest.raises(DatakitError, match="ended again and again while it looked") as caught:
                back.fetch_newest(tmp_path / "here")
            assert caught.value.hint == f"See {tmp_path / 'queue' / AGENT_LOG}"
    finally:
        ended.set()
        killer.join(timeout=PATIENCE_S)
        faulty.released.set()
        back.close(deadline_s=PATIENCE_S)


def test_a_run_may_be_moved_between_attempts(tmp_path: Path) -> None:
    """What was staged goes up from the new place, whatever lies at the old one by now."""
    old, new = tmp_path / "old" / "run", tmp_path / "new" / "run"
    path = checkpoint(old / "checkpoints", 10)
    first = WriteBack(str(tmp_path / "cold"), queue_dir=old / "write-back")
    first.queue_dir.mkdir()
    first.offer(path)
    (tmp_path / "old").rename(tmp_path / "new")
    make_commit(path, {"state": b"of another run, at the old place"}, kind="checkpoint")

    second = WriteBack(str(tmp_path / "cold"), queue_dir=new / "write-back")
    second.start()
    left = second.close(deadline_s=PATIENCE_S)

    assert (left, second.state("step-00000010")) == ({}, "verified")
    assert (tmp_path / "cold" / "step-00000010" / "state").read_bytes() == noise(2000, 10)
