"""pack/prices: whose price it is follows from where requests go, and no price is told without its date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datakit.pack.prices import TABLE, price_at, price_of
from datakit.storage.access import StoreOptions


@pytest.mark.parametrize(
    ("url", "endpoint", "provider"),
    [
        ("s3://b/x", None, "aws-s3"),
        ("gs://b/x", None, "gcs"),
        ("az://b/x", None, "azure-blob"),
        ("s3://b", "https://0123.r2.cloudflarestorage.com", "cloudflare-r2"),
        ("s3://b", "https://s3.us-west-004.backblazeb2.com", "backblaze-b2"),
        ("s3://b", "https://oss-cn-hangzhou.aliyuncs.com", "aliyun-oss"),
        ("s3://b", "s3.eu-central-1.wasabisys.com", "wasabi"),
        ("s3://b", "http://127.0.0.1:9000", None),
        ("s3://b", "https://minio.example.org", None),
        ("s3://b", "https://evil-amazonaws.com", None),
        ("https://example.org/x", None, None),
        ("raw/chat.jsonl", None, None),
    ],
)
def test_a_price_is_that_of_whom_requests_go_to(url: str, endpoint: str | None, provider: str | None) -> None:
    """By scheme, or by the endpoint where one is set; one's own server has no price."""
    found = price_of(url, endpoint=endpoint)

    assert (found.provider if found else None) == provider


def test_the_endpoint_is_found_where_requests_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A named store by name or by its URL, or the environment."""
    r2 = StoreOptions(url="s3://mine/data", endpoint_url="https://1.r2.cloudflarestorage.com")
    asked: Callable[..., Any] = price_at

    assert asked("r2://x", {"r2": r2}).provider == "cloudflare-r2"
    assert asked("s3://mine/data/x", {"r2": r2}).provider == "cloudflare-r2"
    assert asked("s3://other/x", {"r2": r2}).provider == "aws-s3"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert asked("s3://other/x", {}) is None
    assert asked("gs://other/x", None).provider == "gcs"


def test_what_requests_cost_is_told_with_the_date() -> None:
    """100,000 reads from S3 are four US cents."""
    price = TABLE["aws-s3"]

    assert price.cost(gets=100_000) == pytest.approx(0.04)
    assert price.cost(gets=0, puts=10_000) == pytest.approx(0.05)
    assert price.told(gets=100_000) == "0.0400 USD (aws-s3: 0.004 per 10,000 reads, as of 2026-04)"


def test_every_figure_has_a_date_and_a_source() -> None:
    """And a currency; none is negative."""
    for name, row in TABLE.items():
        assert name == row.provider
        assert row.as_of[:2] == "20"
        assert row.source
        assert row.currency in ("USD", "CNY")
        assert row.get_per_10k >= 0
        assert row.put_per_10k >= 0
