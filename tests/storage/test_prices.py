"""storage/prices: whose price it is follows from where requests go, and no price is told without its date."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from datakit.plan.storage import StorePrice, standard, table
from datakit.storage import counts
from datakit.storage.access import StoreOptions
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.prices import Charge, charges, cost_of, money, price_at, price_by

PRICE = StorePrice("shop", "standard", "USD", 0.02, 0.05, 0.004, 0.09, as_of="2026-04", source="a test")


@pytest.mark.parametrize(
    ("url", "endpoint", "provider"),
    [
        ("s3://b/x", None, "aws-s3"),
        ("gs://b/x", None, "gcs"),
        ("az://b/x", None, "azure-blob"),
        ("s3://b", "https://0123.r2.cloudflarestorage.com", "cloudflare-r2"),
        ("s3://b", "https://s3.us-west-004.backblazeb2.com", "backblaze-b2"),
        ("s3://b", "https://oss-cn-hangzhou.aliyuncs.com", "aliyun-oss"),
        ("s3://b", "https://tos-s3-cn-beijing.volces.com", "volcengine-tos"),
        ("s3://b", "https://s3.eu-central-1.wasabisys.com", "wasabi"),
        ("s3://b", "http://127.0.0.1:9000", None),
        ("s3://b", "https://minio.example.org", None),
        ("s3://b", "https://evil-amazonaws.com", None),
        ("https://example.org/x", None, None),
        ("raw/chat.jsonl", None, None),
    ],
)
def test_a_price_is_that_of_whom_requests_go_to(url: str, endpoint: str | None, provider: str | None) -> None:
    """By scheme, or by the endpoint where one is set; one's own server has no price."""
    found = price_by(url, StoreOptions(endpoint_url=endpoint))

    assert (found.provider if found else None) == provider


def test_the_endpoint_is_found_where_requests_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A named store by name or by its URL, or the environment."""
    r2 = StoreOptions(url="s3://mine/data", endpoint_url="https://1.r2.cloudflarestorage.com")
    found = [price_at(url, {"r2": r2}) for url in ("r2://x", "s3://mine/data/x", "s3://other/x")]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    own = price_at("s3://other/x", {})

    assert [price.provider for price in found if price] == ["cloudflare-r2", "cloudflare-r2", "aws-s3"]
    assert own is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"egress_per_gb": 0.0}, ("USD", 0.05, 0.004, 0.0)),
        ({"get_per_10k": 1.0, "put_per_10k": 2.0, "egress_per_gb": 3.0, "currency": "EUR"}, ("EUR", 2.0, 1.0, 3.0)),
        ({"get_per_10k": 1.0, "currency": "EUR"}, ("EUR", None, 1.0, None)),  # dollars are no euros
    ],
)
def test_a_users_own_prices_come_before_the_table(options: dict[str, Any], expected: tuple[object, ...]) -> None:
    """Figure by figure, where the currency is the same."""
    price = price_by("s3://b", StoreOptions(**options))

    assert price is not None
    assert (price.currency, price.put_per_10k, price.get_per_10k, price.egress_gb) == expected
    assert "prices of your own" in price.told


def test_a_charge_is_told_with_the_date_of_its_price() -> None:
    """100,000 reads are four US cents, and a GB that leaves the store nine."""
    requests = RequestCounts(get=100_000, put=9_000, list=1_000, delete=5, bytes_in=10**9, bytes_out=10**9)

    charge = Charge("s3://b", requests, PRICE, cost_of(requests, PRICE))

    assert charge.cost == pytest.approx(0.04 + 0.05 + 0.09)
    assert charge.told == (
        "100000 GET, 9000 PUT, 1000 LIST, 5 DELETE (953.7 MiB in, 953.7 MiB out), "
        "0.18 USD with traffic (shop, as of 2026-04)"
    )
    assert Charge("s3://b", RequestCounts(get=1), None, None).told == "1 GET"


def test_each_store_that_was_asked_is_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many were opened; one that was asked nothing is not there, and its secret is nowhere."""
    monkeypatch.setattr(counts, "_stores", {})
    before = counts.PROCESS.counts
    secret = StoreOptions(access_key_id="me", secret_access_key="hidden", endpoint_url="http://localhost:1")
    for account, gets in ((Account("s3://b", StoreOptions()), 2), (Account("s3://own", secret), 0)):
        Meter(account).add(get=gets)
    Meter(Account("s3://b", StoreOptions())).add(list=1)

    (charge,) = charges(counts.by_store())

    assert (charge.store, charge.requests) == ("s3://b", RequestCounts(get=2, list=1))
    assert counts.PROCESS.counts - before == RequestCounts(get=2, list=1)
    assert "hidden" not in repr(counts._stores)


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0, "0"), (3.14159, "3.14"), (0.00417, "0.0042"), (0.00001, "under 0.0001"), (1234.5, "1234.50")],
)
def test_an_amount_is_told_with_as_many_digits_as_tell_something(amount: float, said: str) -> None:
    assert money(amount) == said


def test_every_figure_has_a_date_and_a_source() -> None:
    """And a currency; none is negative, and what nobody has looked up says so."""
    assert len(table()) > 30
    for row in table().values():
        figures = dataclasses.astuple(row)[3:7]
        assert row.currency in ("USD", "CNY")
        assert row.as_of
        assert row.source
        assert all(figure is None or figure >= 0 for figure in figures)
    unverified = table()["gcs", "coldline"]
    assert unverified.told == "gcs, unverified, as of 2026-04"
    assert standard("aws-s3") == table()["aws-s3", "standard"]
    assert standard("nobody") is None
