"""doctor tells from plain facts what would go wrong, and what mends it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from datakit import NotFound
from datakit.machine import cores
from datakit.operate.doctor import Finding, Machine, Requirement, judge, knock, look
from datakit.storage.access import StoreOptions
from support.s3server import S3Server

GOOD = Machine(
    python="3.11.7",
    num_cpus=8,
    cores=8,
    memory_bytes=64 * 2**30,
    shm_bytes=16 * 2**30,
    directory=Path("/work"),
    disk_free_bytes=500 * 2**30,
    disk_free_files=10**7,
    open_files=65535,
    requirements=(
        Requirement("numpy", None, "1.26", "2.4.6"),
        Requirement("obstore", "s3", "0.12", "0.12.1"),
        Requirement("s3fs", "s3", "2025.3", "2026.9.0"),
        Requirement("torch", "train", "2.6", "2.13.0+cpu"),
    ),
)


def findings(**changes: object) -> dict[str, Finding]:
    """What is found on a good machine that was changed a little, by name."""
    return {finding.name: finding for finding in judge(dataclasses.replace(GOOD, **changes))}  # type: ignore[arg-type]


def requirements(**versions: str | None) -> tuple[Requirement, ...]:
    """The good machine's libraries with other versions."""
    return tuple(
        dataclasses.replace(each, version=versions.get(each.library, each.version)) for each in GOOD.requirements
    )


def test_a_good_machine_has_nothing_to_mend() -> None:
    """Every finding is ok, and none of them names a fix."""
    assert {(finding.status, finding.fix) for finding in judge(GOOD)} == {("ok", None)}


@pytest.mark.parametrize(
    ("changes", "name", "status", "what", "fix"),
    [
        (
            {"cores": 4},
            "cpu",
            "warn",
            "8 shown, but the control group allows the time of 4 at most",
            "export OMP_NUM_THREADS=4",
        ),
        (
            {"cores": 1},
            "cpu",
            "warn",
            "8 shown, but the control group allows the time of 1 at most",
            "export OMP_NUM_THREADS=1",
        ),
        (
            {"shm_bytes": 64 * 2**20},
            "shared memory",
            "warn",
            "64.0 MiB in /dev/shm",
            "docker run --shm-size=16g ..., or read in the trainer: export DATAKIT_TRAIN__NUM_WORKERS=0",
        ),
        (
            {"disk_free_bytes": 2**30 - 1},
            "disk",
            "fail",
            "1.0 GiB free at /work",
            "du -xh --max-depth=2 /work | sort -h | tail",
        ),
        (
            {"disk_free_bytes": 9 * 2**30},
            "disk",
            "warn",
            "9.0 GiB free at /work",
            "Work on a larger disk: datakit doctor --directory DIR",
        ),
        (
            {"disk_free_files": 9},
            "files",
            "warn",
            "9 inodes free at /work",
            "Pack small files into shards: datakit pack SRC DEST",
        ),
        ({"open_files": 1024}, "open files", "warn", "1,024 at most", "ulimit -n 65535"),
        (
            {"requirements": ()},
            "datakit",
            "warn",
            "runs from its source and is not installed",
            "pip install --editable .",
        ),
        (
            {"requirements": requirements(numpy=None)},
            "core",
            "fail",
            "numpy is missing (needs 1.26)",
            "pip install datakit",
        ),
        (
            {"requirements": requirements(obstore="0.9.9")},
            "extra s3",
            "warn",
            "obstore 0.9.9 (needs 0.12)",
            "pip install 'datakit[s3]'",
        ),
        (
            {"requirements": requirements(s3fs=None)},
            "extra s3",
            "warn",
            "s3fs is missing (needs 2025.3)",
            "pip install 'datakit[s3]'",
        ),
        (
            {"requirements": requirements(torch=None)},
            "extra train",
            "ok",
            "not installed",
            "pip install 'datakit[train]'",
        ),
    ],
)
def test_a_trouble_is_told_with_what_mends_it(
    changes: dict[str, object], name: str, status: str, what: str, fix: str
) -> None:
    """Each rule of the table in docs/commands/doctor.md, with its words and its command."""
    assert findings(**changes)[name] == Finding(name, status, what, fix)  # type: ignore[arg-type]


def test_memory_below_the_demos_need_is_told() -> None:
    """Less than 4 GiB is a warning, 4 GiB are not."""
    assert findings(memory_bytes=4 * 2**30 - 1)["memory"].status == "warn"
    assert findings(memory_bytes=4 * 2**30)["memory"].status == "ok"


def test_no_shared_memory_at_all_is_told() -> None:
    """A machine without /dev/shm has the same fix."""
    assert findings(shm_bytes=None)["shared memory"].what == "there is no /dev/shm"


def test_this_machine_is_looked_at_without_a_guess(tmp_path: Path) -> None:
    """The facts of the machine that runs the test are within what any machine could say."""
    machine = look(tmp_path)

    assert 1 <= machine.cores == cores() <= machine.num_cpus
    assert machine.memory_bytes > 2**28
    assert machine.disk_free_bytes > 0
    assert machine.directory == tmp_path
    assert machine.open_files > 10


def test_looking_at_a_directory_that_is_not_there_says_so(tmp_path: Path) -> None:
    """The message names it and the hint makes it."""
    with pytest.raises(NotFound, match=r"there is no directory .*/gone\. mkdir -p"):
        look(tmp_path / "gone")


def options(server: S3Server, url: str | None) -> StoreOptions:
    """A named store on that server."""
    return StoreOptions(
        url=url,
        endpoint_url=server.endpoint,
        region="us-east-1",
        access_key_id="testing",
        secret_access_key="testing-secret",
    )


def test_a_store_that_answers_is_ok_and_one_that_does_not_is_told(server: S3Server) -> None:
    """A bucket that is there, one that is not, an endpoint where nobody listens, and a store without url."""
    server.make_bucket("here")
    dead = dataclasses.replace(options(server, "s3://here"), endpoint_url="http://127.0.0.1:9")
    stores = {
        "good": options(server, "s3://here/prefix"),
        "gone": options(server, "s3://not-here"),
        "dead": dead,
        "bare": options(server, None),
    }

    found = {finding.name: finding for finding in knock([], stores=stores)}

    assert found["store good"] == Finding("store good", "ok", "s3://here/prefix answers and lets us read")
    assert found["store gone"].status == "fail"
    assert "s3://not-here does not exist" in found["store gone"].what
    assert found["store dead"].status == "fail"
    assert "no connection" in found["store dead"].what
    assert found["store bare"] == Finding(
        "store bare", "fail", "store bare has no url in the settings", "Set stores.bare.url"
    )


def test_a_place_may_be_a_directory(tmp_path: Path) -> None:
    """A local path is looked at like a store."""
    found = knock([str(tmp_path), str(tmp_path / "gone")], stores={})

    assert [finding.status for finding in found] == ["ok", "fail"]
    assert found[1].fix == f"mkdir -p {tmp_path / 'gone'}"


def test_a_store_is_told_without_its_secret(server: S3Server) -> None:
    """No finding repeats a key."""
    found = knock([], stores={"gone": options(server, "s3://not-here")})

    assert "testing" not in str(found)
