"""What `storage/catalog` promises: commits are found by their manifests, and the newest that verifies is brought."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import pytest

from datakit.errors import NotAllowed, NotFound, StoreUnavailable
from datakit.storage.access import StoreOptions
from datakit.storage.catalog import Pulled, address, commits_at, pull_newest
from datakit.storage.commit import verify_commit
from datakit.storage.moves import SyncSettings
from datakit.storage.sync import sync
from support.commits import make_commit, noise
from support.faulty import Fault, FaultyServer
from support.s3server import S3Server


def publish(place: str, directory: Path, *steps: int) -> None:
    for step in steps:
        name = f"step-{step:08d}"
        make_commit(directory / name, {"state": noise(1000, step)}, kind="checkpoint")
        sync(directory / name, f"{place}/{name}")


def test_only_folders_with_a_manifest_are_commits(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """A half-published step, a loose file and another name do not count; newest first."""
    publish(f"{bucket}/run", tmp_path, 9, 10, 100)
    name = bucket.removeprefix("s3://")
    s3.put(f"{name}/run/step-00000200/state", b"half")
    s3.put(f"{name}/run/manifest.json", b"loose")
    s3.put(f"{name}/run/other-00000300/manifest.json", b"{}")

    assert commits_at(f"{bucket}/run") == ["step-00000100", "step-00000010", "step-00000009"]
    assert commits_at(f"{bucket}/run", pattern="other-*") == ["other-00000300"]


def test_the_newest_is_brought_if_it_is_newer(bucket: str, tmp_path: Path) -> None:
    """Under its own name, verified; nothing where the local one is as new."""
    publish(f"{bucket}/run", tmp_path / "made", 10, 20)

    pulled = pull_newest(f"{bucket}/run", tmp_path / "here", after="step-00000010")
    again = pull_newest(f"{bucket}/run", tmp_path / "here", after="step-00000020")

    assert (pulled, again) == (Pulled("step-00000020"), Pulled(None))
    assert verify_commit(tmp_path / "here" / "step-00000020").kind == "checkpoint"


def test_a_damaged_one_is_passed_over_with_its_reason(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The next older is brought, and who asks hears why."""
    publish(f"{bucket}/run", tmp_path / "made", 10, 20, 30)
    name = bucket.removeprefix("s3://")
    s3.put(f"{name}/run/step-00000030/manifest.json", b"not json")
    s3.put(f"{name}/run/step-00000020/state", noise(1000, 99))

    pulled = pull_newest(f"{bucket}/run", tmp_path / "here")

    assert pulled.name == "step-00000010"
    assert list(pulled.damaged) == [each.name for each in pulled.skipped] == ["step-00000030", "step-00000020"]
    assert "not JSON" in pulled.skipped[0].error.message
    assert "crc32c" in pulled.skipped[1].error.message
    said = pulled.skipped[1].caution(f"{bucket}/run")
    assert said.message.startswith(f"{bucket}/run/step-00000020 is not valid and is passed over: ")


def test_a_place_has_one_address_however_it_is_written(clean_room: Path) -> None:
    """Relative, with a file scheme, by the name of a store: what is kept of it is the same."""
    stores = {"cold": StoreOptions(url="s3://bkt/team")}

    local = {address(place) for place in ("cold/run", "./cold/run/", f"file://{clean_room}/cold/run")}
    remote = {address(place, stores=stores) for place in ("cold://run", "s3://bkt/team/run", "s3://bkt/team/run/")}

    assert local == {str(clean_room / "cold" / "run")}
    assert remote == {"s3://bkt/team/run"}


def test_where_nothing_is_nothing_is_brought(bucket: str, tmp_path: Path) -> None:
    """An empty prefix and a directory that is not there hold no commit."""
    for place in (f"{bucket}/run", str(tmp_path / "absent")):
        assert commits_at(place) == []
        assert pull_newest(place, tmp_path / "here") == Pulled(None)


def test_a_directory_is_a_place_too(tmp_path: Path) -> None:
    """A shared file system serves as the colder tier."""
    make_commit(tmp_path / "shared" / "step-00000010", {"state": b"1"}, kind="checkpoint")

    pulled = pull_newest(str(tmp_path / "shared"), tmp_path / "here")

    assert pulled.name == "step-00000010"
    verify_commit(tmp_path / "here" / "step-00000010")


def test_a_missing_bucket_is_an_error(s3: S3Server, tmp_path: Path) -> None:
    """Not the same as a bucket with nothing in it."""
    with pytest.raises(NotFound, match="does not exist"):
        pull_newest("s3://no-such-bucket/run", tmp_path / "here")


def test_a_pull_that_fails_leaves_nothing_in_the_way(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The run comes to that step again, and must be able to commit it under its name."""
    made = tmp_path / "made" / "step-00000030"
    make_commit(made, {"a": b"1", "state": noise(1000, 30)}, kind="checkpoint")
    sync(made, f"{bucket}/run/{made.name}")
    s3.put(f"{bucket.removeprefix('s3://')}/run/{made.name}/state", noise(1000, 99))

    pulled = pull_newest(f"{bucket}/run", tmp_path / "here", after="step-00000020")
    make_commit(tmp_path / "here" / "step-00000030", {"state": noise(1000, 30)}, kind="checkpoint")

    assert (pulled.name, list(pulled.damaged)) == (None, ["step-00000030"])
    assert os.listdir(tmp_path / "here") == ["step-00000030"]


def test_one_with_a_member_missing_or_of_a_newer_format_is_passed_over(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Whatever makes it unusable, an older one is better than none; what a newer datakit reads is not damaged."""
    publish(f"{bucket}/run", tmp_path / "made", 10, 20, 30)
    name = bucket.removeprefix("s3://")
    manifest = json.loads(s3.get(f"{name}/run/step-00000030/manifest.json"))
    s3.put(f"{name}/run/step-00000030/manifest.json", json.dumps(manifest | {"format": 999}).encode())
    s3.request("DELETE", f"{name}/run/step-00000020/state")

    pulled = pull_newest(f"{bucket}/run", tmp_path / "here")

    assert pulled.name == "step-00000010"
    assert list(pulled.damaged) == ["step-00000020"]
    newer = pulled.skipped[0].caution("run")
    assert newer.message.startswith("run/step-00000030 cannot be read here and is passed over: ")
    assert "999" in newer.message
    assert newer.hint == "Use a newer datakit"
    assert "step-00000020/state is missing" in pulled.skipped[1].error.message
    assert os.listdir(tmp_path / "here") == ["step-00000010"]


@pytest.mark.parametrize("kind", ["denied", "hang-up"])
def test_a_store_that_cannot_be_had_is_said_and_not_passed_over(
    faulty: FaultyServer, tmp_path: Path, kind: Literal["denied", "hang-up"]
) -> None:
    """An older checkpoint in its place would lose work for a wrong password."""
    publish(faulty.url, tmp_path / "made", 10, 20)
    faulty.faults = [Fault(kind, key="step-00000020/state", times=99)]

    with pytest.raises((NotAllowed, StoreUnavailable)):
        pull_newest(faulty.url, tmp_path / "here", settings=SyncSettings(retries=1))


def test_a_killed_pull_goes_on_and_older_remains_go(faulty: FaultyServer, tmp_path: Path) -> None:
    """What had arrived is not fetched again; a step that was passed by is removed."""
    members = {"a": noise(1000, 1), "b": noise(1000, 2)}
    make_commit(tmp_path / "made", members, kind="checkpoint", name="step-00000020")
    sync(tmp_path / "made", f"{faulty.url}/step-00000020")
    here = tmp_path / "here"
    (here / ".step-00000010.arriving").mkdir(parents=True)
    faulty.faults = [Fault("denied", key="step-00000020/b", times=1)]
    with pytest.raises(NotAllowed):
        pull_newest(faulty.url, here, settings=SyncSettings(concurrency=1))
    faulty.log.clear()

    pulled = pull_newest(faulty.url, here)

    assert pulled == Pulled("step-00000020")
    assert faulty.asked("GET", "step-00000020/a") == []
    assert os.listdir(here) == ["step-00000020"]
