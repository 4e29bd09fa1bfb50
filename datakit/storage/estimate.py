"""estimate: what a plan of a sync will ask of each store and what that costs, before it begins.

Requests that planning made are not in it, nor tries that will fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from datakit.errors import UsageError
from datakit.storage.compare import Difference, Holding, Item
from datakit.storage.counts import RequestCounts
from datakit.storage.limits import Limits
from datakit.storage.prices import Charge, charge
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
    parts = [-(-item.bytes // part_bytes) for item in difference.move]
    moved = sum(item.bytes for item in difference.move)
    found = []
    if origin.path is None:
        found.append((origin, RequestCounts(get=sum(parts), bytes_in=moved)))
    if target.path is None:
        replaced = {*difference.damaged, *difference.derived}
        new = [held.kind == "commit" and item.name not in replaced for item in difference.move]
        # an upload in parts first looks whether what is to be new is there, and lists what others have begun, in S3
        looks = sum(look for count, look in zip(parts, new, strict=True) if count > 1)
        lists = sum(count > 1 for count in parts) if target.store.url.startswith("s3://") else 0
        puts = sum(1 if count <= 1 else count + 2 for count in parts)
        requests = RequestCounts(put=puts + manifests, head=looks, list=lists, delete=len(extra), bytes_out=moved)
        found.append((target, requests))
    return tuple(charge(place.store.url, place.store.options, requests) for place, requests in found)


def refuse_unpriced(places: Iterable[Location], limits: Limits) -> None:
    """Refuse a bound on money that cannot be kept: a figure of a store's price is not known, or two currencies meet.

    Raises:
        UsageError: Says which.
    """
    if limits.max_cost is None:
        return
    currencies: dict[str, str] = {}
    for place in places:
        if place.path is not None:
            continue
        url = place.store.url
        price = charge(url, place.store.options, RequestCounts(get=1)).price
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
