"""What `storage/debris` promises: debris is replaced, a commit never, and no mixture of two uploads gets a manifest."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import Busy, DatakitError, Refused
from datakit.storage.debris import replace_debris
from datakit.storage.moves import SyncSettings
from datakit.storage.sync import sync
from support.commits import make_commit, noise
from support.faulty import Fault, FaultyServer

SETTINGS = SyncSettings(retries=1)


def checkpoint(directory: Path, machine: str, *, seed: int = 0) -> tuple[Path, dict[str, bytes]]:
    """The same step as a machine makes it: one member is the same on all, the others hold what is its own."""
    members = {"adapter": noise(500), "optimizer": noise(PART_BYTES + 1, seed), "state": machine.encode()}
    make_commit(directory / machine / "step-1", members, kind="checkpoint")
    return directory / machine / "step-1", members


def members_there(faulty: FaultyServer) -> dict[str, bytes]:
    found = {key.removeprefix("step-1/"): data for key, (data, _) in faulty.objects.items()}
    found.pop(MANIFEST_NAME, None)
    return found


@pytest.mark.parametrize("sealed", [False, True], ids=["plain tags", "tags that say nothing"])
def test_what_a_lost_machine_left_is_replaced_and_what_is_right_stays(
    faulty: FaultyServer, tmp_path: Path, sealed: bool
) -> None:
    """A large member and a small one hold the other machine's bytes, of the same size or of another."""
    faulty.sealed = sealed
    there, members = checkpoint(tmp_path, "one core", seed=1)
    for name, data in {
        "adapter": members["adapter"],
        "optimizer": noise(PART_BYTES + 1, 2),
        "state": b"2 cores",
    }.items():
        faulty.put(f"step-1/{name}", data)
    place = f"{faulty.url}/step-1"

    done = replace_debris(there, place, settings=SETTINGS)

    assert done
    assert members_there(faulty) == members
    assert faulty.asked("PUT", "step-1/adapter") == []
    assert not replace_debris(there, place, settings=SETTINGS)
    sync(there, place, settings=SETTINGS, contested=True)
    sync(place, tmp_path / "copy")


@pytest.mark.parametrize("repair", [False, True])
def test_a_commit_is_no_debris(faulty: FaultyServer, tmp_path: Path, repair: bool) -> None:
    """Its manifest is there: nothing of it is touched, by repair neither, and nothing read to no end."""
    one, members = checkpoint(tmp_path, "one")
    two, _ = checkpoint(tmp_path, "two")
    sync(one, f"{faulty.url}/step-1")
    faulty.log.clear()

    done = replace_debris(two, f"{faulty.url}/step-1", settings=SETTINGS, repair=repair)

    assert not done
    assert [line[:2] for line in faulty.log] == [("GET", f"step-1/{MANIFEST_NAME}")]
    assert members_there(faulty) == members
    with pytest.raises(Refused, match="other bytes under its name"):
        sync(two, f"{faulty.url}/step-1", repair=repair, contested=True)


def test_a_torn_manifest_that_is_to_be_repaired_makes_no_commit(faulty: FaultyServer, tmp_path: Path) -> None:
    """A store kept half of it, and the machine that would have put it again was lost."""
    one, _ = checkpoint(tmp_path, "one")
    two, members = checkpoint(tmp_path, "two")
    sync(one, f"{faulty.url}/step-1")
    faulty.put(f"step-1/{MANIFEST_NAME}", (one / MANIFEST_NAME).read_bytes()[:50])

    done = replace_debris(two, f"{faulty.url}/step-1", settings=SETTINGS, repair=True)
    sync(two, f"{faulty.url}/step-1", repair=True, contested=True)

    assert done
    assert members_there(faulty) == members
    assert faulty.objects[f"step-1/{MANIFEST_NAME}"][0] == (two / MANIFEST_NAME).read_bytes()


@pytest.mark.parametrize("method", ["GET", "PUT"], ids=["while it is looked at", "before it is emptied"])
def test_what_was_replaced_since_it_was_seen_is_left_alone(faulty: FaultyServer, tmp_path: Path, method: str) -> None:
    """Somebody is at work there: he is not overwritten, and nothing else is put."""
    one, _ = checkpoint(tmp_path, "one")
    faulty.put("step-1/state", b"two")
    faulty.faults = [Fault("replace", method=method, key="step-1/state")]

    with pytest.raises(Refused, match="step-1/state"):
        replace_debris(one, f"{faulty.url}/step-1", settings=SETTINGS)

    assert members_there(faulty) == {"state": bytes(3)}


def test_an_answer_that_is_lost_while_debris_is_replaced_is_no_other_at_work(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    """The empty object, and then the full one, are recognised by whoever asks again."""
    one, members = checkpoint(tmp_path, "one")
    faulty.put("step-1/state", b"older")
    faulty.faults = [
        Fault("lost-answer", method="PUT", key="step-1/state"),
        Fault("lost-answer", method="PUT", key="step-1/state", after=1),
    ]

    done = replace_debris(one, f"{faulty.url}/step-1", settings=SETTINGS)

    assert done
    assert members_there(faulty) == {"state": members["state"]}


def test_an_upload_whose_members_are_replaced_puts_no_manifest_over_the_mixture(
    faulty: FaultyServer, tmp_path: Path
) -> None:
    """Two machines of one run, one of them only slow: it listed in time, and the other's commit is whole."""
    slow, _ = checkpoint(tmp_path, "slow", seed=1)
    quick, members = checkpoint(tmp_path, "quick", seed=2)
    place = f"{faulty.url}/step-1"
    errors: list[DatakitError] = []

    def publish() -> None:
        try:
            sync(slow, place, settings=SETTINGS, contested=True)
        except DatakitError as error:
            errors.append(error)

    faulty.faults = [Fault("hold", key="", after=1)]
    thread = threading.Thread(target=publish)
    thread.start()
    while len(faulty.asked("GET", "")) < 2:
        time.sleep(0.01)
    done = replace_debris(quick, place, settings=SETTINGS)
    sync(quick, place, settings=SETTINGS, contested=True)
    faulty.released.set()
    thread.join()

    assert done
    assert [type(error) for error in errors] == [Busy]
    assert "another process writes there" in str(errors[0])
    assert members_there(faulty) == members
    assert faulty.objects[f"step-1/{MANIFEST_NAME}"][0] == (quick / MANIFEST_NAME).read_bytes()
