"""estimate: what a plan of a sync will ask of each store and what that costs, before it begins.

Requests that planning made are not in it, nor tries that will fail. Where the tags of a store are none of bytes, what
goes up is read back, which costs as much as a download.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from datakit.errors import UsageError
from datakit.storage.compare import Difference, Holding, Item
from datakit.storage.counts import RequestCounts
from datakit.storage.limits import Limits
from datakit.storage.prices import Charge, charge
from datakit.storage.profiles import Profile
from datakit.storage.store import Location


def expected(
    held: Holding,
    origin: Location,
    target: Location,
    difference: Difference,
    *,
    extra: Sequence[Item],
    manifests: int,
    part_bytes: int,
) -> tuple[Charge, ...]:
    """What moving a difference asks of stores, and what that costs.

    Args:
        held: What the source holds.
        origin: Where.
        target: Where it goes.
        difference: What moves.
        extra: What is deleted there.
        manifests: Manifests that are written besides, 0 or 1.
        part_bytes: Bytes of one request.
    """
    found = []
    if origin.store.accounts:
        parts = sum(-(-item.bytes // part_bytes) for item in difference.move)
        moved = sum(item.bytes for item in difference.move)
        found.append((origin.store.accounts[0], RequestCounts(get=parts, bytes_in=moved)))
    for account in target.store.accounts:
        replaced = {*difference.damaged, *difference.derived}
        profile, is_s3 = account.options.profile(account.url), account.url.startswith("s3://")
        asked = RequestCounts(delete=len(extra))
        for item in difference.move:
            new = held.kind == "commit" and item.name not in replaced
            asked += _put(item.bytes, part_bytes, profile, is_s3=is_s3, new=new)
        for _ in range(manifests):
            asked += replace(_put(0, part_bytes, profile, is_s3=is_s3, new=True), get=int(profile.tags == "none"))
        found.append((account, asked))
    return tuple(charge(account.url, account.options, requests) for account, requests in found)


def _put(size_bytes: int, part_bytes: int, profile: Profile, *, is_s3: bool, new: bool) -> RequestCounts:
    """What putting one file asks for: as `upload` does it, with the look that believes it."""
    parts = -(-size_bytes // part_bytes)
    is_small = parts <= 1
    # a store that is not known to keep conditions is looked at; an upload in parts is, before it begins too
    looks = int(new and is_s3 and not profile.conditional) + int(new and not is_small)
    is_proven = profile.tags == "all" or (profile.tags == "whole" and is_small)
    return RequestCounts(
        put=1 if is_small else parts + 2,
        head=looks,
        list=int(is_s3 and not is_small),
        get=0 if is_proven else parts,
        bytes_in=0 if is_proven else size_bytes,
        bytes_out=size_bytes,
    )


def refuse_unpriced(places: Iterable[Location], limits: Limits) -> None:
    """Refuse a bound on money that cannot be kept: a figure of a store's price is not known, or two currencies meet.

    Raises:
        UsageError: Says which.
    """
    if limits.max_cost is None:
        return
    currencies: dict[str, str] = {}
    for url, options in (account for place in places for account in place.store.accounts):
        price = charge(url, options, RequestCounts(get=1)).price
        figures = (
            ("get_per_10k", price and price.get_per_10k),
            ("put_per_10k", price and price.put_per_10k),
            ("egress_per_gb", price and price.egress_gb),
        )
        unknown = [name for name, figure in figures if figure is None]
        if price is None or unknown:
            raise UsageError(
                f"what requests to {url} cost is not known, so --max-cost cannot be kept",
                hint=f"Set {', '.join(unknown)} of that store, or use --max-requests",
                subject=url,
            )
        currencies[price.currency] = url
    if len(currencies) > 1:
        said = " and ".join(f"{url} in {currency}" for currency, url in currencies.items())
        raise UsageError(
            f"{said} have no sum, so --max-cost cannot be kept",
            hint="Set prices of your own in one currency (get_per_10k, put_per_10k, egress_per_gb, currency), "
            "or use --max-requests",
            subject="--max-cost",
        )
