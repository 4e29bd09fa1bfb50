"""prices: what requests to a store and its traffic cost: by the user's own prices, else by the table of `plan/storage`.

A price is never told without its date. What is not in the table is not known, which is not the same as free; requests
to an endpoint of one's own (MinIO, Ceph) cost nothing that a vendor bills. Traffic is counted as going to the internet,
which it does from a rented machine of another vendor: within the store's region it is free, and a store's
`egress_per_gb: 0` says that it stays there. Free monthly amounts are not looked at.

The table has one or few regions of a vendor. Its price stands for the vendor's others and is told with its region;
those that are known to have a price list of their own (AWS in China, OSS outside the mainland) have none here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlsplit

from datakit.plan.storage import StorePrice, standard
from datakit.storage.access import StoreOptions
from datakit.storage.counts import Account, RequestCounts
from datakit.storage.limits import cost
from datakit.storage.profiles import profile_of
from datakit.units import format_bytes


@dataclass(frozen=True, slots=True)
class Charge:
    """Requests made to one store, and what they cost.

    Attributes:
        store: Its URL.
        requests: By class, with the bytes of their bodies.
        price: By what they are priced, or None where that is not known.
        cost: Of requests and traffic to the internet, in the price's currency, or None.
    """

    store: str
    requests: RequestCounts
    price: StorePrice | None
    cost: float | None

    @property
    def told(self) -> str:
        """For people: `3 GET, 1 LIST (1.2 MB in), 0.0001 USD (aws-s3 us-east-1, as of 2026-04)`."""
        ways = (("in", self.requests.bytes_in), ("out", self.requests.bytes_out))
        moved = ", ".join(f"{format_bytes(size)} {way}" for way, size in ways if size)
        made = f"{self.requests} ({moved})" if moved else str(self.requests)
        if self.price is None or self.cost is None:
            return made
        traffic = self.requests.bytes_in and self.price.egress_gb
        return (
            f"{made}, {money(self.cost)} {self.price.currency}{' with traffic' if traffic else ''} ({self.price.told})"
        )


def charges(requests: Mapping[Account, RequestCounts]) -> list[Charge]:
    """What requests cost, by store, in the order of their URLs.

    Args:
        requests: By store, as `counts.by_store` gives them; one that was asked nothing costs nothing.
    """
    found = [charge(url, options, made) for (url, options), made in requests.items() if made.total]
    return sorted(found, key=lambda each: each.store)


def charge(url: str, options: StoreOptions, requests: RequestCounts) -> Charge:
    """What requests to one store cost."""
    price = price_by(url, options)
    return Charge(url, requests, price, None if price is None else cost_of(requests, price))


def cost_of(requests: RequestCounts, price: StorePrice) -> float | None:
    """What requests and the bytes that came in by them cost; None where a figure that this needs is not known."""
    return cost(asdict(requests), price)


def money(amount: float) -> str:
    """An amount as a person reads it: cents where there are any, else as many digits as tell something.

    Example:
        >>> money(3.14159), money(0.00417), money(0)
        ('3.14', '0.0042', '0')
    """
    if amount == 0:
        return "0"
    return f"{amount:.2f}" if amount >= 0.1 else f"{amount:.2g}" if amount >= 1e-4 else "under 0.0001"


def price_by(url: str, options: StoreOptions) -> StorePrice | None:
    """What a store costs, or None where that is not known.

    Args:
        url: Of the store, such as `s3://bucket`.
        options: How it is reached, with the user's own prices.

    Example:
        >>> price_by("s3://b", StoreOptions()).told
        'aws-s3 us-east-1, as of 2026-04'
    """
    found = _listed(url, options)
    own = (options.get_per_10k, options.put_per_10k, options.egress_per_gb)
    if all(price is None for price in own):
        return found
    currency = options.currency or (found.currency if found else "USD")
    alone = StorePrice("prices of your own", "", currency, None, None, None, None, as_of="", source="stores")
    base = found if found is not None and found.currency == currency else alone
    get, put, egress = (
        theirs if mine is None else mine
        for mine, theirs in zip(own, (base.get_per_10k, base.put_per_10k, base.egress_gb), strict=True)
    )
    if base is not alone and None in own:
        return replace(
            base,
            provider=f"prices of your own over {base.provider}",
            get_per_10k=get,
            put_per_10k=put,
            egress_gb=egress,
        )
    return replace(alone, get_per_10k=get, put_per_10k=put, egress_gb=egress)


_LISTS = {
    "aliyun-oss": re.compile(r"\bcn-(?!hongkong)"),
    "huawei-obs": re.compile(r"\bcn-"),
    "qiniu": re.compile(r"\bcn-"),
    "tencent-cos": re.compile(r"\bap-(beijing|chengdu|chongqing|guangzhou|nanjing|shanghai)\b"),
    "volcengine-tos": re.compile(r"\bcn-(?!hongkong)"),
}
"""Regions of the mainland, for which the table has these vendors' prices; elsewhere they bill otherwise."""

_OTHER_LISTS = {"aws-s3": re.compile(r"\b(cn|us-gov|us-iso[a-z]*|eusc)-|\.cn$")}
"""Regions that a vendor's price list of the table does not speak of."""

_REGIONS = {"tencent-cos": (re.compile(r"\bap-hongkong\b"), "hk")}
"""Regions that have a row of their own."""


def _listed(url: str, options: StoreOptions) -> StorePrice | None:
    """The table's price where requests go to; None where its figures hold elsewhere only, or that is not known."""
    profile = profile_of(url, endpoint=options.endpoint_url, provider=options.provider)
    if profile is None:
        return None
    host = urlsplit(options.endpoint_url or "").hostname or ""
    # the vendor's own host says the region, and no setting can change it
    where = host if any(host.endswith(end) for end in profile.hosts) and host else options.region or ""
    own, region = _REGIONS.get(profile.provider, (None, None))
    if own is not None and own.search(where):
        return standard(profile.provider, region)
    priced, unpriced = _LISTS.get(profile.provider), _OTHER_LISTS.get(profile.provider)
    if (priced is not None and not priced.search(where)) or (unpriced is not None and unpriced.search(where)):
        return None
    return standard(profile.provider)
