"""storage: what object storage costs: its bytes by the month, its requests by class, its traffic.

The figures are those of `tables/storage.yaml`, each with its date and source; one whose source nobody has opened is
told as unverified. What is not in the table is not known, which is not the same as free. It does not know whose store
an address is (that is `storage/profiles`), and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_UNVERIFIED = "knowledge"


@dataclass(frozen=True, slots=True)
class StorePrice:
    """What one class of storage of one provider costs; None where that is not known.

    Attributes:
        provider: Whose store, such as `aws-s3`, or whose prices.
        storage_class: The class, such as `standard`.
        currency: ISO 4217.
        gb_month: One GB for a month.
        put_per_10k: 10,000 PUT, COPY, POST or LIST requests.
        get_per_10k: 10,000 GET or HEAD requests.
        egress_gb: One GB to the internet.
        as_of: When the figures held.
        source: Where they are from.
        verified: Whether anybody has seen that source.
        region: Where the figures hold; what is the same everywhere says `any`.
    """

    provider: str
    storage_class: str
    currency: str
    gb_month: float | None
    put_per_10k: float | None
    get_per_10k: float | None
    egress_gb: float | None
    as_of: str
    source: str
    verified: bool = True
    region: str = "any"

    def cost(self, *, gets: float = 0, puts: float = 0, egress_bytes: float = 0) -> float | None:
        """What requests and traffic cost, in `currency`; None where a figure that this needs is not known."""
        needed = (
            (gets / 10_000, self.get_per_10k),
            (puts / 10_000, self.put_per_10k),
            (egress_bytes / 10**9, self.egress_gb),
        )
        if any(amount and figure is None for amount, figure in needed):
            return None
        return sum(amount * (figure or 0) for amount, figure in needed)

    @property
    def told(self) -> str:
        """Whose price of where and when, for people."""
        whose = self.provider if self.region == "any" else f"{self.provider} {self.region}"
        words = (whose, "" if self.verified else "unverified", f"as of {self.as_of}" if self.as_of else "")
        return ", ".join(word for word in words if word)


@cache
def table() -> Sequence[StorePrice]:
    """Every row, in the order of the file."""
    import yaml  # not before anybody asks for a price

    text = (files("datakit.plan") / "tables" / "storage.yaml").read_text(encoding="utf-8")
    return tuple(_row(row) for row in yaml.safe_load(text)["object"])


def standard(provider: str, region: str | None = None) -> StorePrice | None:
    """The price of a provider's usual class, the first of its rows; None where the table has none.

    Args:
        provider: Whose store.
        region: Where, as the table calls it; the provider's first when None.
    """
    return next((row for row in table() if row.provider == provider and region in (None, row.region)), None)


def _row(row: Mapping[str, Any]) -> StorePrice:
    return StorePrice(
        provider=row["provider"],
        storage_class=row["class"],
        currency=row["currency"],
        gb_month=row["storage"],
        put_per_10k=row["put"],
        get_per_10k=row["get"],
        egress_gb=row["egress"],
        as_of=str(row["as_of"]),
        source=row["source"],
        verified=row["confidence"] != _UNVERIFIED,
        region=row["region"],
    )
