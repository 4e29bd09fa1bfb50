"""pack from a store that takes its time: many requests are under way at once, and none twice."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from datakit.pack.build import pack
from datakit.source.fetching import CONCURRENCY
from support.latent import body, latent
from support.packing import samples_of


def test_a_folder_of_small_objects_keeps_all_connections_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts them; every object is asked for once, and two pages list them."""
    with latent(latency_ms=50, num_objects=1200, size=900) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

        result = pack("s3://bkt/raw", tmp_path / "ds")

        with urllib.request.urlopen(f"{endpoint}/most") as answer:
            most = int(answer.read())
    assert result.requests == 1200 + 2
    assert CONCURRENCY / 2 < most <= CONCURRENCY
    assert {one.key: one.parts["txt"] for one in samples_of(tmp_path / "ds")} == {
        f"{number:05d}": body(number, 900) for number in range(1200)
    }
