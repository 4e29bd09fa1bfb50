"""prices: what a request to an object store costs, by its provider, with the date and the source of each figure.

Standard storage classes, per 10,000 requests, as published by others; a price is never shown without its date. What is
not in the table is unknown, not free. Internal traffic and requests of an endpoint of one's own (MinIO, Ceph) cost
nothing that a vendor bills.

Sources: "cc0" is mixpeek/awesome-object-storage at fa52fae9 (CC0), each row verified by its authors; "official" is the
vendor's own page as of the date; "third party" a published copy of it. Gathered 2026-11-30.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from datakit.storage.access import StoreOptions, nearest


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """What requests cost.

    Attributes:
        provider: Whose store.
        get_per_10k: 10,000 GET or HEAD requests, in `currency`.
        put_per_10k: 10,000 PUT, POST or LIST requests.
        currency: ISO 4217.
        as_of: When the figures held.
        source: Where they are from.
    """

    provider: str
    get_per_10k: float
    put_per_10k: float
    currency: str
    as_of: str
    source: str

    def told(self, *, gets: int) -> str:
        """What reading requests cost, with the date of the price, for people."""
        return (
            f"{self.cost(gets=gets):.4f} {self.currency} ({self.provider}: {self.get_per_10k:g} per 10,000 reads, "
            f"as of {self.as_of})"
        )

    def cost(self, *, gets: int, puts: int = 0) -> float:
        """What so many requests cost, in `currency`."""
        return (gets * self.get_per_10k + puts * self.put_per_10k) / 10_000


TABLE: Mapping[str, RequestPrice] = {
    row.provider: row
    for row in (
        RequestPrice("aws-s3", 0.004, 0.05, "USD", "2026-04", "cc0"),
        RequestPrice("gcs", 0.004, 0.05, "USD", "2026-04", "cc0; cloud.google.com/storage/pricing-examples"),
        RequestPrice("azure-blob", 0.005, 0.065, "USD", "2026-04", "cc0"),
        RequestPrice("cloudflare-r2", 0.0036, 0.045, "USD", "2026", "official: developers.cloudflare.com/r2/pricing"),
        RequestPrice("backblaze-b2", 0.004, 0.04, "USD", "2026-04", "cc0"),
        RequestPrice("wasabi", 0.0, 0.0, "USD", "2026-07", "third party"),
        RequestPrice("nebius", 0.004, 0.04, "USD", "2026-04", "cc0"),
        RequestPrice("oracle", 0.003, 0.004, "USD", "2026-03", "cc0"),
        RequestPrice("ovhcloud", 0.0, 0.0, "USD", "2026-04", "cc0"),
        RequestPrice("tigris", 0.005, 0.05, "USD", "2026-04", "cc0"),
        RequestPrice("digitalocean-spaces", 0.004, 0.05, "USD", "2026-04", "cc0"),
        RequestPrice("aliyun-oss", 0.01, 0.01, "CNY", "2022-2023", "third party"),
        RequestPrice("tencent-cos", 0.01, 0.01, "CNY", "2023-2024", "third party"),
        RequestPrice("huawei-obs", 0.01, 0.01, "CNY", "2024-2025", "third party"),
    )
}

_HOSTS = {
    "amazonaws.com": "aws-s3",
    "googleapis.com": "gcs",
    "core.windows.net": "azure-blob",
    "r2.cloudflarestorage.com": "cloudflare-r2",
    "backblazeb2.com": "backblaze-b2",
    "wasabisys.com": "wasabi",
    "nebius.cloud": "nebius",
    "oraclecloud.com": "oracle",
    "cloud.ovh.net": "ovhcloud",
    "tigris.dev": "tigris",
    "digitaloceanspaces.com": "digitalocean-spaces",
    "aliyuncs.com": "aliyun-oss",
    "myqcloud.com": "tencent-cos",
    "myhuaweicloud.com": "huawei-obs",
}
"""The end of an endpoint's host name, and whose it is."""

_SCHEMES = {"s3": "aws-s3", "s3a": "aws-s3", "gs": "gcs", "gcs": "gcs", "az": "azure-blob", "azure": "azure-blob",
            "abfs": "azure-blob", "abfss": "azure-blob"}  # fmt: skip


def price_at(url: str, stores: Mapping[str, StoreOptions] | None) -> RequestPrice | None:
    """What requests to a place cost, by the address that they really go to; None where that is not known.

    Args:
        url: As the user wrote it.
        stores: Named stores of the settings.
    """
    named = stores or {}
    scheme = urlsplit(url).scheme
    options = named[scheme] if scheme in named else nearest(url, named)
    url = options.url or url if options is not None and scheme in named else url
    if urlsplit(url).scheme not in ("s3", "s3a"):
        return price_of(url)
    return price_of(
        url, endpoint=(options or StoreOptions()).over(StoreOptions.from_environment(os.environ)).endpoint_url
    )


def price_of(url: str, *, endpoint: str | None = None) -> RequestPrice | None:
    """What requests to a store cost, or None where that is not known.

    Args:
        url: Of the store, such as `s3://bucket/raw`.
        endpoint: Where its requests go when that is not the scheme's own vendor.

    Example:
        >>> price_of("s3://b/x").provider
        'aws-s3'
    """
    if endpoint:
        host = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}").hostname or ""
        owner = next((owner for end, owner in _HOSTS.items() if host == end or host.endswith(f".{end}")), None)
        return None if owner is None else TABLE[owner]
    return TABLE.get(_SCHEMES.get(urlsplit(url).scheme, ""))
