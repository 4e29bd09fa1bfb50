"""The embedded bucket: real S3 over HTTP, objects that outlive every process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import psutil
import pytest
from obstore.store import S3Store

BIG = bytes(range(256)) * 48 * 1024  # 12 MiB: several parts of a multipart upload


@pytest.fixture
def bucket(pipelines: Path) -> Any:
    import bucket

    return bucket


def connect(environment: dict[str, str]) -> S3Store:
    return S3Store(
        "datakit-demo",
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id=environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )


def listing(store: S3Store) -> dict[str, tuple[int, str | None]]:
    return {item["path"]: (item["size"], item["e_tag"]) for item in obstore.list(store).collect()}


def server_of(parent: int) -> psutil.Process:
    (server,) = [child for child in psutil.Process(parent).children() if "--serve" in child.cmdline()]
    return server


@contextlib.contextmanager
def killed(bucket: Any, folder: Path) -> Iterator[S3Store]:
    """A bucket whose server is killed at the end of the block, without a word of warning."""
    with bucket.open_bucket(folder) as environment:
        yield connect(environment)
        server_of(os.getpid()).send_signal(signal.SIGKILL)


def test_what_was_answered_survives_kill_9(bucket: Any, tmp_path: Path) -> None:
    """An object whose PUT was answered is there after the server was killed, with its bytes and its ETag."""
    with killed(bucket, tmp_path / "bucket") as store:
        obstore.put(store, "raw/a b.jsonl", b'{"id": 1}\n')
        obstore.put(store, "raw/文.jsonl", b"")
        before = listing(store)

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        store = connect(environment)
        assert listing(store) == before
        assert len(before) == 2
        assert obstore.get(store, "raw/a b.jsonl").bytes() == b'{"id": 1}\n'


def test_a_deleted_or_replaced_object_does_not_come_back(bucket: Any, tmp_path: Path) -> None:
    """The folder follows deletions, single and in bulk, and replacements."""
    with killed(bucket, tmp_path / "bucket") as store:
        for name in ("a", "b", "c", "d"):
            obstore.put(store, name, b"old")
        obstore.put(store, "a", b"new")
        obstore.delete(store, ["b", "c"])
        obstore.delete(store, "d")

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        store = connect(environment)
        assert list(listing(store)) == ["a"]
        assert obstore.get(store, "a").bytes() == b"new"


def test_multipart_uploads_and_ranged_reads_work(bucket: Any, tmp_path: Path) -> None:
    """A large object goes up in parts, is read by range under its ETag, and keeps that ETag over a restart."""
    with killed(bucket, tmp_path / "bucket") as store:
        etag = obstore.put(store, "big", BIG, use_multipart=True, chunk_size=5 * 2**20)["e_tag"]

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        store = connect(environment)
        assert obstore.head(store, "big")["e_tag"] == etag
        assert bytes(obstore.get_range(store, "big", start=7 * 2**20 - 3, length=6)) == BIG[-3:] + BIG[:3]
        part = obstore.get(store, "big", options={"range": (5, 10), "if_match": etag})
        assert part.bytes() == BIG[5:10]


def test_create_only_puts_and_changed_objects_are_refused(bucket: Any, tmp_path: Path) -> None:
    """If-None-Match and If-Match are honoured, which commits and ranged downloads rely on."""
    with bucket.open_bucket(tmp_path / "bucket") as environment:
        store = connect(environment)
        etag = obstore.put(store, "a", b"old", mode="create")["e_tag"]
        obstore.put(store, "a", b"new")

        with pytest.raises(obstore.exceptions.AlreadyExistsError):
            obstore.put(store, "a", b"other", mode="create")
        with pytest.raises(obstore.exceptions.PreconditionError):
            obstore.get(store, "a", options={"if_match": etag})


def test_only_the_children_get_credentials(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own AWS settings do not reach the children, and nothing is added to this process."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the user's")
    before = dict(os.environ)

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        assert dict(os.environ) == before

    assert "AWS_SESSION_TOKEN" not in environment
    assert environment["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")


def test_the_server_dies_with_the_process_that_opened_it(bucket: Any, tmp_path: Path) -> None:
    """`kill -9` of the opener leaves no server behind, and the folder can be served again."""
    code = "import bucket, pathlib\nwith bucket.open_bucket(pathlib.Path('b')):\n  print('up', flush=True); input()"
    opener = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with opener:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"up\n"
        server = server_of(opener.pid)
        opener.kill()
        opener.wait()

    psutil.wait_procs([server], timeout=20)
    assert not server.is_running()
    with bucket.open_bucket(tmp_path / "b") as environment:
        assert listing(connect(environment)) == {}


def test_a_half_written_file_of_a_killed_server_is_not_an_object(bucket: Any, tmp_path: Path) -> None:
    """A temporary that a kill left in the folder is removed at the next start."""
    folder = tmp_path / "bucket" / "datakit-demo"
    folder.mkdir(parents=True)
    (folder / ".a.tmp-0123abcd").write_bytes(b"{")

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        assert listing(connect(environment)) == {}

    assert list(folder.iterdir()) == []


def test_a_command_runs_inside_the_bucket(tmp_path: Path, pipelines: Path) -> None:
    """`bucket.py -- COMMAND` hands the endpoint to the command and ends with its exit code."""
    command = [sys.executable, "-c", "import os, sys; sys.exit(7 if os.environ['AWS_ENDPOINT_URL'] else 1)"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, str(pipelines / "bucket.py"), "--", *command], cwd=tmp_path, env=environment, check=False
    )

    assert done.returncode == 7
    assert (tmp_path / ".demo" / "bucket" / "datakit-demo").is_dir()


def test_a_setting_in_the_environment_does_not_get_past_dvc(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """DVC compares params.yaml; a setting that it cannot see is not passed on, and that is said."""
    monkeypatch.setenv("DATAKIT_TRAIN__STEPS", "5")

    with bucket.open_bucket(tmp_path / "bucket") as environment:
        pass

    assert "DATAKIT_TRAIN__STEPS" not in environment
    assert "Not passed on: DATAKIT_TRAIN__STEPS" in capfd.readouterr().err
