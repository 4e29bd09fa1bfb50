"""Versions through a store that cuts, lies and throttles: what arrives is whole, or it is said what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit import IntegrityError, NotAllowed
from datakit.data.digest import entry_of
from datakit.data.manifest import MANIFEST_NAME
from datakit.storage.commit import verify_commit
from datakit.storage.sync import run_sync
from datakit.version.bring import parse_pointer, plan_bring
from datakit.version.dvc import object_key, read_dvc_file
from datakit.version.publish import plan_publish, run_publish
from support.commits import files_below, make_commit, noise
from support.dvcproject import bare_project
from support.faulty import Fault, FaultyServer

MEMBERS = {"a.tar": noise(17 * 2**20), "b.tar": noise(3000, 1)}


@pytest.fixture
def project(faulty: FaultyServer, tmp_path: Path) -> Path:
    """A dataset that is not published yet."""
    root = bare_project(tmp_path / "p", remote=f"{faulty.url}/store")
    make_commit(root / "ds", MEMBERS)
    return root


def publish(project: Path) -> None:
    run_publish(plan_publish(project / "ds", parse_pointer(f"{project}/ds.dvc")))


def bring(project: Path, place: Path) -> None:
    run_sync(plan_bring(parse_pointer(f"{project}/ds.dvc"), place))


def listed(project: Path) -> str:
    (out,) = read_dvc_file((project / "ds.dvc").read_bytes(), where="x")
    return f"store/{object_key(out.md5)}"


@pytest.mark.parametrize("kind", ["cut", "flip", "shift", "busy", "broken", "hang-up"])
def test_a_version_comes_whole_through_faults(project: Path, faulty: FaultyServer, tmp_path: Path, kind: str) -> None:
    """The list, the manifest and the shards are each hit once."""
    publish(project)
    manifest = entry_of("", (project / "ds" / MANIFEST_NAME).read_bytes()).md5
    shard = entry_of("", MEMBERS["a.tar"]).md5
    keys = [listed(project), f"store/{object_key(manifest)}", f"store/{object_key(shard)}"]
    faulty.faults = [Fault(kind, key=key) for key in keys]  # type: ignore[arg-type]  # one of the kinds

    bring(project, tmp_path / "got")

    assert files_below(tmp_path / "got") == files_below(project / "ds")
    assert [fault.times for fault in faulty.faults] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["busy", "broken", "hang-up", "lost-answer"])
def test_a_version_goes_whole_through_faults(project: Path, faulty: FaultyServer, tmp_path: Path, kind: str) -> None:
    """The list comes after every object that it names, whatever was lost on the way."""
    faulty.faults = [Fault(kind, method="PUT", key=".*", times=3)]  # type: ignore[arg-type]  # one of the kinds

    publish(project)

    puts = [key for method, key, _ in faulty.log if method in ("PUT", "POST")]
    assert puts[-1] == listed(project)
    bring(project, tmp_path / "got")
    assert verify_commit(tmp_path / "got").digest == verify_commit(project / "ds").digest


def test_a_list_that_stays_wrong_is_named(project: Path, faulty: FaultyServer, tmp_path: Path) -> None:
    """Asked for three times, and not believed."""
    publish(project)
    faulty.faults = [Fault("flip", key=listed(project), times=99)]

    with pytest.raises(IntegrityError, match="is damaged"):
        bring(project, tmp_path / "got")

    assert not (tmp_path / "got").exists()


def test_an_object_that_is_short_in_a_bucket_is_damage(project: Path, faulty: FaultyServer, tmp_path: Path) -> None:
    """As in a folder: exit code 4, with the command that mends it."""
    publish(project)
    faulty.put(f"store/{object_key(entry_of('', MEMBERS['b.tar']).md5)}", MEMBERS["b.tar"][:10])

    with pytest.raises(IntegrityError, match=r"b\.tar is damaged: .* ends before byte 3000") as caught:
        bring(project, tmp_path / "got")

    assert f"datakit sync {project}/ds --to" in (caught.value.hint or "")


def test_a_refused_object_leaves_no_list_and_no_record(project: Path, faulty: FaultyServer) -> None:
    """Permission for one object is missing: whoever looks finds nothing half."""
    key = f"store/{object_key(entry_of('', MEMBERS['b.tar']).md5)}"
    faulty.faults = [Fault("denied", method="PUT", key=key, times=99)]

    with pytest.raises(NotAllowed):
        publish(project)

    assert not (project / "ds.dvc").exists()
    assert [name for name in faulty.objects if name.endswith(".dir")] == []
