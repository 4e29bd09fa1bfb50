"""storage/prices: whose price it is follows from where requests go, and no price is told without its date."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from datakit.plan.storage import StorePrice, standard, table
from datakit.storage import counts
from datakit.storage.access import StoreOptions
from datakit.storage.counts import Account, Meter, RequestCounts
from datakit.storage.prices import Charge, charges, cost_of, money, price_by
from datakit.storage.profiles import names
from datakit.storage.store import open_location

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


def price_at(url: str, stores: dict[str, StoreOptions] | None = None) -> StorePrice | None:
    store = open_location(url, stores=stores).store
    return price_by(store.url, store.options)


def test_the_endpoint_is_found_where_requests_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A named store by name or by its URL, or the environment."""
    r2 = StoreOptions(url="s3://mine/data", endpoint_url="https://1.r2.cloudflarestorage.com")
    found = [price_at(url, {"r2": r2}) for url in ("r2://x", "s3://mine/data/x", "s3://other/x")]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    own = price_at("s3://other/x", {})

    assert [price.provider for price in found if price] == ["cloudflare-r2", "cloudflare-r2", "aws-s3"]
    assert own is None


def test_google_and_azure_cost_what_they_cost_whatever_the_environment_says_of_s3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endpoint and a provider of AWS's environment are S3's alone."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://1.r2.cloudflarestorage.com")
    monkeypatch.setenv("DATAKIT_STORE_PROVIDER", "cloudflare-r2")

    found = [price_at(url) for url in ("gs://b/x", "az://b/x", "s3://b/x", "s3a://b/x")]

    assert [price.provider for price in found if price] == ["gcs", "azure-blob", "cloudflare-r2", "cloudflare-r2"]


def test_a_users_own_prices_hold_for_any_store() -> None:
    """Also for one that only fsspec reaches; they are told as theirs, with no date of a table."""
    own = StoreOptions(url="ftp://host/x", get_per_10k=1.0, put_per_10k=2.0, egress_per_gb=3.0, currency="EUR")

    price = price_at("ftp://host/x/y", {"own": own})

    assert price is not None
    assert (price.told, price.currency, price.cost(gets=10_000)) == ("prices of your own", "EUR", 1.0)


@pytest.mark.parametrize(
    ("endpoint", "region", "told"),
    [
        (None, "eu-central-1", "aws-s3 us-east-1, as of 2026-04"),
        (None, "cn-north-1", None),
        (None, "us-gov-west-1", None),
        ("https://s3.cn-north-1.amazonaws.com.cn", None, None),
        ("https://s3.amazonaws.com.cn", None, None),
        ("https://oss-cn-hangzhou-internal.aliyuncs.com", "us-east-1", "aliyun-oss cn-mainland"),
        ("https://s3.oss-cn-beijing.aliyuncs.com", None, "aliyun-oss cn-mainland"),
        ("https://oss-us-west-1.aliyuncs.com", "cn-hangzhou", None),
        ("https://oss-cn-hongkong.aliyuncs.com", None, None),
        ("https://oss-accelerate.aliyuncs.com", None, None),
        ("https://cos.ap-guangzhou.myqcloud.com", None, "tencent-cos cn-shanghai"),
        ("https://cos.ap-hongkong.myqcloud.com", None, "tencent-cos hk"),
        ("https://cos.na-ashburn.myqcloud.com", None, None),
        ("https://obs.ap-southeast-1.myhuaweicloud.com", None, None),
        ("https://obs.cn-north-4.myhuaweicloud.com", None, "huawei-obs cn-mainland"),
        ("https://tos-s3-ap-southeast-1.volces.com", None, None),
        ("https://s3.us-north-1.qiniucs.com", None, None),
    ],
)
def test_a_region_with_other_prices_has_none_rather_than_wrong_ones(
    endpoint: str | None, region: str | None, told: str | None
) -> None:
    """The host of a vendor says where it is, whatever region is set; a price is told with the region that it is of."""
    price = price_by("s3://b", StoreOptions(endpoint_url=endpoint, region=region))

    assert (price is None) == (told is None)
    assert price is None or price.told.startswith(told or "")


def test_a_domain_of_ones_own_before_a_vendor_is_priced_where_its_region_is_said() -> None:
    """Whose store it is says `provider`, and not where."""
    own = StoreOptions(endpoint_url="https://files.example.org", provider="aliyun-oss")

    assert price_by("s3://b", own) is None
    assert price_by("s3://b", dataclasses.replace(own, region="cn-hangzhou")) is not None


@pytest.mark.parametrize(
    ("options", "expected", "told"),
    [
        (
            {"egress_per_gb": 0.0},
            ("USD", 0.05, 0.004, 0.0),
            "prices of your own over aws-s3 us-east-1, as of 2026-04",
        ),
        (
            {"get_per_10k": 1.0, "put_per_10k": 2.0, "egress_per_gb": 3.0, "currency": "EUR"},
            ("EUR", 2.0, 1.0, 3.0),
            "prices of your own",
        ),
        ({"get_per_10k": 1.0, "currency": "EUR"}, ("EUR", None, 1.0, None), "prices of your own"),
    ],
)
def test_a_users_own_prices_come_before_the_table(
    options: dict[str, Any], expected: tuple[object, ...], told: str
) -> None:
    """Figure by figure, where the currency is the same: dollars are no euros."""
    price = price_by("s3://b", StoreOptions(**options))

    assert price is not None
    assert (price.currency, price.put_per_10k, price.get_per_10k, price.egress_gb) == expected
    assert price.told == told


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
    for row in table():
        figures = (row.gb_month, row.put_per_10k, row.get_per_10k, row.egress_gb)
        assert row.currency in ("USD", "CNY")
        assert row.as_of
        assert row.source
        assert all(figure is None or figure >= 0 for figure in figures)
    unverified = next(row for row in table() if (row.provider, row.storage_class) == ("gcs", "coldline"))
    assert unverified.told == "gcs us, unverified, as of 2026-04"
    assert standard("aws-s3") == table()[0]
    assert standard("nobody") is None


def test_no_row_of_the_table_is_there_twice_or_out_of_reach() -> None:
    """One price by provider, class and region; every provider is one that an address or the settings can name."""
    keys = [(row.provider, row.storage_class, row.region) for row in table()]

    assert len(set(keys)) == len(keys)
    assert {row.provider for row in table()} <= set(names())


def test_a_cost_that_needs_a_figure_that_nobody_knows_is_not_known() -> None:
    """Hetzner's requests are not in the table, its traffic is: not known is not free."""
    price = standard("hetzner")

    assert price is not None
    assert price.cost(egress_bytes=10**9) == 0.01
    assert price.cost(gets=1, egress_bytes=10**9) is None
    assert Charge("s3://b", RequestCounts(get=1), price, cost_of(RequestCounts(get=1), price)).told == "1 GET"
