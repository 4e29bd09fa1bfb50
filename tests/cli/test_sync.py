"""`datakit sync` as people use it: sentences, the plan, one JSON object, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.cli import datakit
from support.commits import files_below, flip_bit, make_commit, noise
from support.s3server import S3Server


@pytest.fixture
def dataset(clean_room: Path) -> Path:
    """A small commit in the current directory."""
    make_commit(clean_room / "ds", {"a.tar": noise(3000), "b.tar": noise(200)})
    return clean_room / "ds"


def test_publishing_says_what_moved_where_and_what_it_cost(bucket: str, dataset: Path) -> None:
    """One sentence, the requests by class, and the manifest's name; nothing on stdout."""
    answer = datakit("sync", "ds", f"{bucket}/ds")

    assert (answer.code, answer.stdout) == (0, "")
    assert f"Moved 2 files, 3.1 KiB, to {bucket}/ds" in answer.stderr
    assert f"requests to {bucket}: 1 GET, 3 PUT, 1 LIST (" in answer.stderr


def test_an_unchanged_place_is_said_to_be_up_to_date(bucket: str, dataset: Path) -> None:
    """And that it cost one request to know."""
    datakit("sync", "ds", f"{bucket}/ds")

    answer = datakit("sync", "ds", f"{bucket}/ds")

    assert answer.code == 0
    assert f"{bucket}/ds is up to date (2 files) by its manifest; their bytes were not read" in answer.stderr
    assert f"requests to {bucket}: 1 GET, 1 LIST (" in answer.stderr


def test_a_dry_run_shows_the_plan_and_moves_nothing(bucket: str, dataset: Path, server: S3Server) -> None:
    """Every file that would move, with its size and the requests that it would take."""
    answer = datakit("sync", "ds", f"{bucket}/ds", "--dry-run")

    assert answer.code == 0
    assert f"Would move 2 files, 3.1 KiB, to {bucket}/ds" in answer.stderr
    assert "put a.tar  2.9 KiB" in answer.stderr
    assert server.keys(bucket.removeprefix("s3://")) == []


def test_json_is_one_object_with_the_result(bucket: str, dataset: Path) -> None:
    """Counts are numbers, and the plan of a dry run is the same schema's result."""
    planned = datakit("sync", "ds", f"{bucket}/ds", "--dry-run", "--json").json
    done = datakit("sync", "ds", f"{bucket}/ds", "--json").json

    assert (planned["command"], planned["ok"], done["ok"]) == ("sync", True, True)
    assert planned["result"]["bytes_to_move"] == done["result"]["moved_bytes"] == 3200
    assert [action["verb"] for action in planned["result"]["actions"]] == ["put", "put"]
    assert done["result"]["requests"]["put"] == 3
    assert "held" not in planned["result"]


def test_a_budget_that_is_too_small_is_exit_code_5(dataset: Path) -> None:
    """Nothing is written, not even the directory."""
    answer = datakit("sync", "ds", "copy", "--budget", "3kB")

    assert answer.code == 5
    assert "over its budget of" in answer.stderr
    assert not Path("copy").exists()


def test_deleting_is_bounded_and_listed(dataset: Path) -> None:
    """Without a bound it is wrong usage, above it refused, within it each name is said."""
    datakit("sync", "ds", "copy")
    Path("copy/old.tar").write_bytes(b"1")

    unbounded = datakit("sync", "ds", "copy", "--delete")
    refused = datakit("sync", "ds", "copy", "--delete", "--max-delete", "0")
    deleted = datakit("sync", "ds", "copy", "--delete", "--max-delete", "1")

    assert [unbounded.code, refused.code, deleted.code] == [2, 3, 0]
    assert "old.tar" in refused.stderr
    assert deleted.stderr.splitlines()[0] == "deleted copy/old.tar"
    assert "deleted   1 file\n" in deleted.stderr
    assert files_below(Path("copy")) == files_below(dataset)


def test_repair_names_the_damaged_member(dataset: Path) -> None:
    """In a caution for people and in the JSON."""
    datakit("sync", "ds", "copy")
    flip_bit(Path("copy/a.tar"), 100)

    answer = datakit("sync", "ds", "copy", "--repair", "--json")

    assert answer.json["result"]["moved_files"] == 1
    assert [caution["message"] for caution in answer.json["cautions"]] == ["copy/a.tar is damaged"]
    assert files_below(Path("copy")) == files_below(dataset)


def test_a_named_store_of_the_settings_is_a_place(server: S3Server, dataset: Path, bucket: str) -> None:
    """`cold://ds` leads where params.yaml says."""
    Path("params.yaml").write_text(f"stores:\n  cold:\n    url: {bucket}/team\n    endpoint_url: {server.endpoint}\n")

    answer = datakit("sync", "ds", "cold://ds")

    assert answer.code == 0
    assert "team/ds/manifest.json" in server.keys(bucket.removeprefix("s3://"))


@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_concurrency_that_moves_nothing_is_wrong_usage(dataset: Path, value: str) -> None:
    """Said before anything is asked."""
    answer = datakit("sync", "ds", "copy", "--concurrency", value)

    assert answer.code == 2
    assert not Path("copy").exists()


def test_only_what_was_verified_is_called_verified(tmp_path: Path) -> None:
    """Plain files from disk to disk have no checksum that would speak for them."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "f").write_bytes(b"1")

    told = datakit("sync", tmp_path / "raw", tmp_path / "copy")

    assert told.code == 0
    assert "not verified" in told.stderr


def test_only_what_was_read_is_up_to_date_without_a_condition(dataset: Path) -> None:
    """By the manifest alone it is said to be so; with --repair, which reads, it is not."""
    datakit("sync", "ds", "copy")

    believed = datakit("sync", "ds", "copy")
    read = datakit("sync", "ds", "copy", "--repair")

    assert "copy is up to date (2 files) by its manifest; their bytes were not read" in believed.stderr
    assert "copy is up to date (2 files)" in read.stderr
    assert "not read" not in read.stderr


def test_a_limit_ends_with_8_and_a_dry_run_tells_what_it_would_take(bucket: str, dataset: Path) -> None:
    """Before anything moves; the number of the plan is the number that is enough."""
    planned = datakit("sync", "ds", f"{bucket}/ds", "--dry-run")
    refused = datakit("sync", "ds", f"{bucket}/ds", "--max-requests", "4", "--json")
    done = datakit("sync", "ds", f"{bucket}/ds", "--max-requests", "5", "--bandwidth", "1GB", "--request-rate", "1000")

    assert f"requests   3 PUT (3.1 KiB out) at {bucket}" in planned.stderr
    assert (refused.code, refused.json["error"]["kind"]) == (8, "LimitExceeded")
    assert done.code == 0


def test_patterns_choose_files_and_not_parts_of_a_version(clean_room: Path) -> None:
    """Of a folder; a version that DVC records moves whole."""
    for name in ("a.tar", "b.txt"):
        (clean_room / "raw").mkdir(exist_ok=True)
        (clean_room / "raw" / name).write_bytes(b"1")

    some = datakit("sync", "raw", "copy", "--include", "*.tar", "--exclude", "b*")
    version = datakit("sync", "--from", "ds.dvc", "copy", "--include", "*.tar")

    assert (some.code, sorted(os.listdir("copy"))) == (0, ["a.tar"])
    assert version.code == 2
    assert "a version moves whole" in version.stderr
