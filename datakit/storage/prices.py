"""prices: what requests to a store and its traffic cost: by the user's own prices, else by the table of `plan/storage`.

A price is never told without its date. What is not in the table is not known, which is not the same as free; requests
to an endpoint of one's own (MinIO, Ceph) cost nothing that a vendor bills. Traffic is counted as going to the internet,
which it does from a rented machine of another vendor: within the store's region it is free, and a store's
`egress_per_gb: 0` says that it stays there. Free monthly amounts are not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from datakit.plan.storage import StorePrice, standard
from datakit.storage.access import StoreOptions, nearest
from datakit.storage.counts import Account, RequestCounts
from datakit.storage.limits import GETS, PUTS
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
        """For people: `3 GET, 1 LIST (1.2 MB in), 0.0001 USD (aws-s3, as of 2026-04)`."""
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


def cost_of(requests: RequestCounts, price: StorePrice) -> float:
    """What requests and the bytes that came in by them cost."""
    gets, puts = (sum(getattr(requests, name) for name in names) for names in (GETS, PUTS))
    return price.cost(gets=gets, puts=puts, egress_bytes=requests.bytes_in)


def money(amount: float) -> str:
    """An amount as a person reads it: cents where there are any, else as many digits as tell something.

    Example:
        >>> money(3.14159), money(0.00417), money(0)
        ('3.14', '0.0042', '0')
    """
    if amount == 0:
        return "0"
    return f"{amount:.2f}" if amount >= 0.1 else f"{amount:.2g}" if amount >= 1e-4 else "under 0.0001"


def price_at(url: str, stores: Mapping[str, StoreOptions] | None) -> StorePrice | None:
    """What a place costs, by the address that requests to it really go to; None where that is not known.

    Args:
        url: As the user wrote it.
        stores: Named stores of the settings.
    """
    named = stores or {}
    scheme = urlsplit(url).scheme
    options = named[scheme] if scheme in named else nearest(url, named)
    url = options.url or url if options is not None and scheme in named else url
    options = options or StoreOptions()
    if urlsplit(url).scheme in ("s3", "s3a"):
        options = options.over(StoreOptions.from_environment(os.environ))
    return price_by(url, options)


def price_by(url: str, options: StoreOptions) -> StorePrice | None:
    """What a store costs, or None where that is not known.

    Args:
        url: Of the store, such as `s3://bucket`.
        options: How it is reached, with the user's own prices.

    Example:
        >>> price_by("s3://b", StoreOptions()).provider
        'aws-s3'
    """
    profile = profile_of(url, endpoint=options.endpoint_url, provider=options.provider)
    found = None if profile is None else standard(profile.provider)
    own = (options.get_per_10k, options.put_per_10k, options.egress_per_gb)
    if all(price is None for price in own):
        return found
    currency = options.currency or (found.currency if found else "USD")
    blank = StorePrice("store", "", currency, None, None, None, None, as_of="", source="")
    base = found if found is not None and found.currency == currency else blank
    get, put, egress = (
        theirs if mine is None else mine
        for mine, theirs in zip(own, (base.get_per_10k, base.put_per_10k, base.egress_gb), strict=True)
    )
    return replace(
        base,
        provider=f"{base.provider} at prices of your own",
        get_per_10k=get,
        put_per_10k=put,
        egress_gb=egress,
        source="stores: in the settings",
    )
