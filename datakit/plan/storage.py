"""storage: what object storage costs: its bytes by the month, its requests by class, its traffic.

The figures are those of `tables/storage.yaml`, each with its date and source; one whose source nobody has opened is
told as unverified. What is not in the table is not known, which is not the same as free. It does not know whose store
an address is (that is `storage/profiles`), and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_UNVERIFIED = "knowledge"


@dataclass(frozen=True, slots=True)
class StorePrice:
    """What one class of storage of one provider costs; None where that is not known.

    Attributes:
        provider: Whose store, such as `aws-s3`; `own` for prices that a user has set.
        storage_class: The class, such as `standard`.
        currency: ISO 4217.
        gb_month: One GB for a month.
        put_per_10k: 10,000 PUT, COPY, POST or LIST requests.
        get_per_10k: 10,000 GET or HEAD requests.
        egress_gb: One GB to the internet.
        as_of: When the figures held.
        source: Where they are from.
        verified: Whether anybody has seen that source.
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

    def cost(self, *, gets: float = 0, puts: float = 0, egress_bytes: float = 0) -> float:
        """What requests and traffic cost, in `currency`; a figure that is not known counts nothing."""
        requests = gets * (self.get_per_10k or 0) + puts * (self.put_per_10k or 0)
        return requests / 10_000 + egress_bytes / 10**9 * (self.egress_gb or 0)

    @property
    def told(self) -> str:
        """Whose price of when, for people."""
        words = (self.provider, "" if self.verified else "unverified", f"as of {self.as_of}" if self.as_of else "")
        return ", ".join(word for word in words if word)


@cache
def table() -> Mapping[tuple[str, str], StorePrice]:
    """Every row by provider and class, in the order of the file."""
    import yaml  # not before anybody asks for a price

    text = (files("datakit.plan") / "tables" / "storage.yaml").read_text(encoding="utf-8")
    rows = [_row(row) for row in yaml.safe_load(text)["object"]]
    return {(row.provider, row.storage_class): row for row in rows}


def standard(provider: str) -> StorePrice | None:
    """The price of a provider's usual class, the first of its rows; None where the table has none."""
    return next((row for (owner, _), row in table().items() if owner == provider), None)


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
    )
