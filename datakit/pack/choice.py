"""choice: what a pack will do, decided before anything is done: which records, which shard size, which plan.

What is derived is told with its reason: the shard size, and what the next change of the dataset will re-send.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from datakit.data.shard import LINE_PART
from datakit.errors import UsageError
from datakit.events import Caution, Note, OnEvent
from datakit.pack.advice import Change, ShardSize, default_reason, next_changes, shard_size
from datakit.pack.cut import AUTO, DEFAULT_SIZE, PackSettings
from datakit.pack.engines import Crew
from datakit.pack.parent import open_parent
from datakit.pack.planning import Plan, Sizes, plan
from datakit.pack.remarks import of_change, of_plan, of_settings
from datakit.pack.twins import Reading, known_digests, report, without_twins
from datakit.source.columns import Spill
from datakit.source.fetching import Fetched
from datakit.source.lines import Lines
from datakit.source.records import Records
from datakit.units import agree, format_bytes, format_count, format_number_of

if TYPE_CHECKING:
    from datakit.storage.access import StoreOptions
    from datakit.storage.view import View


_SHOWN = 3
"""Twins that a note names; all are listed beside the destination."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pack will do.

    Attributes:
        settings: How, with the shard's size as a number.
        plan: Which record goes where.
        size: The shard size, and why.
        changes: What the next change is expected to re-send.
        requests: Requests that reading a parent took.
        twins: How many records are left out because an earlier one holds their bytes.
        pairs: A row for each of them that has a key of its own: the position of the earlier one, and its own.
        part_counts: How many of the others have a part, by its name.
    """

    settings: PackSettings
    plan: Plan
    size: ShardSize
    changes: tuple[Change, ...]
    requests: int
    twins: int
    pairs: npt.NDArray[np.int64]
    part_counts: Mapping[str, int]


def choose(
    records: Records,
    *,
    local: Fetched,
    crew: Crew,
    src: str | Path,
    dest: Path,
    settings: PackSettings,
    parent: str | Path | None,
    stores: Mapping[str, StoreOptions] | None,
    on_event: OnEvent,
) -> Choice:
    """Decide what to do with a table of records.

    Args:
        records: The table.
        local: The source as local files.
        crew: Who reads it, where twins are to be left out.
        src: Where they came from; requests to its store have a price.
        dest: The destination.
        settings: How to pack.
        parent: What samples are kept by, or None.
        stores: Named stores of the settings.
        on_event: Told what was derived, and why.

    Raises:
        InputError: A split gets no record, or what another one has.
        NoSpace: The spool's disk is full.
        NotFound, UsageError: A parent is not there, or is of another dataset; bundles of what is not lines.
    """
    _check_bundle(records, settings, src)
    # equal lines have equal keys, so those of lines were found with the keys
    chosen, pairs, num_twins = None, np.zeros((0, 2), np.int64), records.twins if isinstance(records, Lines) else 0
    if num_twins:
        its = f"{format_number_of(num_twins, 'line')} that {agree(num_twins, 'repeats', 'repeat')}"
        on_event(Note(f"left out {its} an earlier one"))
    if settings.dedupe == "drop" and not isinstance(records, Lines):
        chosen, pairs = _without_twins(records, local, crew, on_event)
        num_twins = len(pairs)
    sizes = Sizes.of(records, settings.bundle, spill=local.spill)
    size = _size(sizes.total(chosen), settings, src, stores)
    resolved = replace(settings, shard_size=size.bytes)
    if settings.shard_size == AUTO:
        on_event(Note(f"shards of {format_bytes(size.bytes)}: {size.reason}"))
    for caution in (*of_settings(settings), *of_change(dest, resolved, auto=settings.shard_size == AUTO)):
        on_event(caution)

    def opened(split: str | None, dataset: str) -> View:
        assert parent is not None
        return open_parent(parent, split=split, dataset=dataset, stores=stores)

    planned = plan(
        records,
        sizes=sizes,
        chosen=chosen,
        dest=dest,
        settings=resolved,
        spill=local.spill,
        parent=opened if parent is not None else None,
    )
    shards = [(len(shard.at), shard.shard_bytes) for split in planned.splits for shard in split.shards]
    for caution in of_plan(planned):
        on_event(caution)
    changes = next_changes(shards, layout=settings.layout, edits=settings.expected_edits, sticky=parent is not None)
    requests = sum(split.parent.requests for split in planned.splits if split.parent is not None)
    if records.exact and not isinstance(records, Lines) and (said := _known_twins(records, planned, local.spill)):
        on_event(said)
    counts = records.part_counts if chosen is None else records.parts_of(chosen)
    return Choice(resolved, planned, size, changes, requests, num_twins, pairs, counts)


def _check_bundle(records: Records, settings: PackSettings, src: str | Path) -> None:
    if settings.bundle is not None and set(records.part_counts) != {LINE_PART}:
        raise UsageError(
            f"{src} has samples with the parts {', '.join(records.part_counts)}, which no bundle can hold",
            hint="Leave --bundle out: lines share a member, files do not",
            subject="bundle",
        )


def _without_twins(
    records: Records, local: Fetched, crew: Crew, on_event: OnEvent
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    def told(reading: Reading) -> None:
        on_event(
            Note(
                f"reading {format_count(reading.records)} of {format_number_of(len(records.keys), 'record')} "
                f"({format_bytes(reading.bytes)}) to find those that hold the same bytes"
            )
        )

    chosen, pairs = without_twins(records, local=local, crew=crew, on_reading=told)
    if count := len(pairs):
        said = ", ".join(f"{records.keys[twin]} is {records.keys[first]}" for first, twin in pairs[:_SHOWN].tolist())
        hold = agree(count, "holds", "hold")
        on_event(Note(f"left out {format_number_of(count, 'record')} that {hold} the bytes of an earlier one ({said})"))
    return chosen, pairs


def _known_twins(records: Records, planned: Plan, spill: Spill) -> Caution | None:
    """Twins of records whose digests are known, and their leaks."""
    shards = [shard for split in planned.splits for shard in split.shards]
    firsts = [0, *accumulate(len(shard.at) for shard in shards)]

    def key_at(position: int) -> str:
        number = bisect_right(firsts, position) - 1
        return records.keys[int(shards[number].at[position - firsts[number]])]

    return report(
        known_digests(records, (shard.positions for shard in shards), spill=spill),
        [(split.split, split.samples) for split in planned.splits],
        key_at,
    )


def _size(
    total_bytes: int, settings: PackSettings, src: str | Path, stores: Mapping[str, StoreOptions] | None
) -> ShardSize:
    if settings.shard_size != AUTO:
        if settings.shard_size != DEFAULT_SIZE:
            return ShardSize(settings.shard_bytes, "as it was set")
        reason = default_reason(total_bytes, size_bytes=settings.shard_bytes, edits=settings.expected_edits)
        return ShardSize(settings.shard_bytes, reason)
    from datakit.plan.storage import standard
    from datakit.storage.prices import price_by
    from datakit.storage.store import open_location

    store = open_location(src, stores=stores).store
    price, usual = price_by(store.url, store.options), standard("aws-s3")
    assert usual is not None
    # another currency cannot be set against a machine's price; S3's are the dearest of the common ones
    if price is None or price.currency != "USD" or price.cost(gets=1, puts=1) is None:
        price = usual
    return shard_size(total_bytes, edits=settings.expected_edits, price=price)
