"""tiers: the three tiers of the settings, by their names: cold, hot, cache.

Cold is where datasets lie whole, each under its name, in a bucket or on a large disk: it has no budget and nothing is
ever dropped there. Hot (a shared file system) and cache (a local disk) are pools with one. Nothing is made or asked
here before a pool is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from datakit.errors import NotFound, UsageError
from datakit.storage.access import StoreOptions, local_path
from datakit.storage.catalog import address
from datakit.tier.pool import Pool
from datakit.tier.roster import Known
from datakit.units import parse_bytes

TierName: TypeAlias = Literal["cold", "hot", "cache"]
NAMES: tuple[TierName, ...] = get_args(TierName)
_EXAMPLE = "tiers: {cache: {place: /nvme/datakit, budget: 500GB}}"


@dataclass(frozen=True, slots=True)
class TierOptions:
    """One tier of the settings.

    Attributes:
        place: Of `cold` the URL or path below which datasets lie, each under its name; of `hot` and `cache` a directory
            of their own, on a shared and on a local disk.
        budget: Bytes that `hot` or `cache` may hold, such as `500GB`; they need one, and `cold` has none.
    """

    place: str | None = None
    budget: str | int | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            parse_bytes(self.budget)


def check_tier(name: str, options: TierOptions) -> None:
    """See that a tier is one.

    Raises:
        UsageError: There is no tier of that name, or its place or budget is missing, or one too many.
    """
    where = f"tiers.{name}"
    if name not in NAMES:
        raise UsageError(f"there is no tier {name}", hint=f"There are: {', '.join(NAMES)}", subject=where)
    if not options.place:
        raise UsageError(f"{where} has no place", hint=f"Write {_EXAMPLE}", subject=where)
    if name == "cold":
        if options.budget is not None:
            hint = "Remove it: nothing is ever dropped from cold, so none could be kept"
            raise UsageError(f"{where} has a budget", hint=hint, subject=where)
        return
    if options.budget is None:
        hint = f"Write how much it may hold: {_EXAMPLE}"
        raise UsageError(f"{where} has no budget", hint=hint, subject=where)
    message = f"{where}.place is {options.place}, and only cold may be in object storage"
    local_path(options.place, message=message, hint="Name a directory of its own on a disk")


class Tiers:
    """The tiers that the settings name.

    Args:
        options: By name.
    """

    def __init__(self, options: Mapping[str, TierOptions]) -> None:
        self._options = options

    def pool(self, name: str) -> Pool:
        """One of the pools, not opened yet.

        Raises:
            UsageError: The settings have none of that name, or it is cold.
        """
        if name == "cold" or name not in NAMES:
            message = "cold holds all there is, and is not looked after by datakit tier" if name == "cold" else None
            hint = "Name hot or cache; datasets at the place of cold: datakit inspect, verify, sync"
            raise UsageError(message or f"there is no tier {name}", hint=hint, subject=name)
        options = self._options.get(name)
        if options is None:
            message = f"the settings have no tier {name}"
            raise UsageError(message, hint=f"Write into params.yaml: {_EXAMPLE}", subject=name)
        assert options.place is not None
        assert options.budget is not None
        root = Path(os.path.abspath(local_path(options.place)))
        return Pool(root, budget_bytes=parse_bytes(options.budget), name=name)

    def pools(self, name: str | None = None) -> Iterator[Pool]:
        """The pools there are, the warmest first, or the one of a name.

        Raises:
            UsageError: As `pool`; there is none at all.
        """
        names = [name] if name is not None else [each for each in reversed(NAMES[1:]) if each in self._options]
        if not names:
            raise UsageError("the settings name no tier", hint=f"Write into params.yaml: {_EXAMPLE}", subject="tiers")
        return map(self.pool, names)

    def place_of(self, dataset: str) -> str:
        """Where a dataset lies: a URL or path as it was written, or a name below cold.

        Raises:
            UsageError: It is a name, and the settings have no cold.
        """
        if "://" in dataset or dataset.startswith(("/", "./", "../", "~")):
            return dataset
        cold = self._options.get("cold")
        if cold is None or cold.place is None:
            message = f"{dataset} is a name, and the settings have no cold tier where it would lie"
            hint = f"Name its place, as in ./{dataset}, or write into params.yaml: tiers: {{cold: {{place: s3://...}}}}"
            raise UsageError(message, hint=hint, subject=dataset)
        return f"{cold.place.rstrip('/')}/{dataset}"

    def find(self, pool: Pool, dataset: str, *, stores: Mapping[str, StoreOptions] | None = None) -> Known:
        """A dataset that a pool knows, by its name, a place that holds it, its name in cold, or its digest.

        Raises:
            NotFound: None is.
            Refused: Several are.
        """
        try:
            return pool.roster.find(dataset)
        except NotFound as error:
            try:
                return pool.roster.find(address(self.place_of(dataset), stores=stores))
            except UsageError:
                raise error from None
