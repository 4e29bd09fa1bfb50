"""cli: inspect, cat and verify on a dataset in object storage, as people and scripts meet them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit.storage.commit import read_manifest
from support.cli import datakit
from support.packing import raw_lines, small_pack, write_lines
from support.s3server import S3Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A local S3 server."""
    with serving() as running:
        yield running


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, clean_room: Path) -> str:
    """A dataset of 100 lines in a bucket of this test's own, with a copy in `ds`."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    bucket = server.make_bucket(f"read-{abs(hash(request.node.nodeid)):x}"[:30])
    small_pack(write_lines(clean_room / "raw.jsonl", raw_lines(100)), clean_room / "ds")
    assert datakit("sync", "ds", f"{bucket}/ds").code == 0
    return f"{bucket}/ds"


def test_inspect_says_what_it_cost(url: str) -> None:
    """The same report as of the copy, and on stderr one line of requests."""
    here, there = datakit("inspect", "ds"), datakit("inspect", url)
    shards = len(read_manifest(Path("ds")).contents.shards)

    assert there.code == 0
    assert [line.split() for line in there.stdout.splitlines()] == [line.split() for line in here.stdout.splitlines()]
    assert f"requests to {url.removesuffix('/ds')}: {shards + 1} GET (" in there.stderr


def test_cat_writes_the_line_and_tells_the_cost_aside(url: str) -> None:
    """Stdout carries the bytes and nothing else."""
    answer, told = datakit("cat", url, "r00042"), datakit("cat", url, "r00042.json", "--json").json

    assert answer.code == 0
    assert answer.stdout.encode() == raw_lines(100)[42]
    assert "requests to s3://" in answer.stderr
    assert told["result"]["requests"]["head"] == 1
    assert told["result"]["indexes_read"] >= 1


def test_verify_streams_a_url_and_names_damage_in_it(url: str, server: S3Server) -> None:
    """Whole, then with a line changed in place: exit 4, the sample named, the requests told."""
    whole, quick = datakit("verify", url), datakit("verify", url, "--quick")
    shard = read_manifest(Path("ds")).contents.shards[0].name
    key = f"{url.removeprefix('s3://')}/{shard}"
    data = server.get(key)
    at = data.index(b'{"id"')
    server.put(key, data[:at] + b"[" + data[at + 1 :])

    damaged = datakit("verify", url)

    assert (whole.code, quick.code, damaged.code) == (0, 0, 4)
    assert "every byte checked" in whole.stdout
    assert "requests to s3://" in whole.stderr
    assert "1 LIST" in quick.stderr
    assert "sizes and indexes checked" in quick.stdout
    assert f"{shard}: part json of sample r" in damaged.stdout
    assert "requests to s3://" in damaged.stderr


def test_a_named_store_leads_there(url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`NAME://path` of the settings, in params.yaml here or in the file that --params names."""
    for name in server.env:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLD_ID", "testing")
    monkeypatch.setenv("COLD_SECRET", "testing-secret")
    bucket = url.rpartition("/")[0]
    text = (
        f"stores:\n  cold:\n    url: {bucket}\n    endpoint_url: {server.endpoint}\n    region: us-east-1\n"
        "    access_key_id: ${COLD_ID}\n    secret_access_key: ${COLD_SECRET}\n"
    )
    Path("other.yaml").write_text(text)

    assert datakit("inspect", "cold://ds", "--params", "other.yaml").code == 0
    assert datakit("cat", "cold://ds", "r00001", "--params", "other.yaml").stdout.encode() == raw_lines(100)[1]
    assert datakit("verify", "cold://ds", "--quick", "--params", "other.yaml").code == 0
    Path("params.yaml").write_text(text)
    assert datakit("inspect", "cold://ds").code == 0


@pytest.mark.parametrize("words", [["inspect"], ["verify"], ["cat", "r00001"]])
def test_a_url_without_a_dataset_ends_with_2(words: list[str], url: str) -> None:
    """As a wrong path does."""
    answer = datakit(words[0], f"{url}-nowhere", *words[1:])

    assert answer.code == 2
    assert "has no manifest.json, so nothing is committed there" in answer.stderr


def test_settings_are_not_needed_for_a_path(url: str) -> None:
    """A broken params.yaml does not keep anyone from looking at a local dataset."""
    Path("params.yaml").write_text("nonsense: 1\n")

    assert datakit("inspect", "ds").code == 0
    assert datakit("inspect", url).code == 2
