"""cut: which samples go into which shard, from their keys and sizes alone.

Planning is pure and integer: the same keys and sizes in the same order give the same shards on any machine. In the
stable layout no boundary depends on what lies far away, so a small change of the records changes few shards (law 5 of
docs/design.md); appended records change the last group alone, scattered ones as many shards as they hit.

Layouts. `stable`: in source order, a group ends at each sample whose key hash is the smallest within 1.5 shards' bytes
to either side, which makes groups of about three shards; a group is dealt to its shards by ranges of the key hash; a
shard is in key-hash order, which costs nothing in later changes and mixes neighbours. `sequential`: filled in source
order; an edit moves all that follows. `shuffle`: dealt over all shards by ranges of the key hash; an append changes
every shard.

Source: local extrema as boundaries, as content-defined chunking has them for bytes (Bjorner, Blass, Gurevich,
"Content- dependent chunking for differential compression", 2010). In a simulation (150,000 samples, 325 shards,
2026-11-30) removing 1 % of neighbours changed 1.2 % of the shards; cutting each group at the smallest hash in a window
after the one before changed 1.6 %, and up to a sixth of the dataset where two chains of cuts took long to meet again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from datakit.errors import UsageError
from datakit.units import parse_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from datakit.source.columns import Spill

ALGORITHM = 1
"""Number of the rules in this file; another number means other shards from the same records."""

REACH_TENTHS = 15
"""How far a boundary has the smallest hash, in tenths of a shard; a group is as long at least, twice on average."""

GROUP_SHARDS = 2 * REACH_TENTHS // 10
"""Shards of a group, on average."""

DEFAULT_SIZE = "64MiB"
AUTO = "auto"
"""The shard size that follows from the dataset's size and what changes of it cost (see `advice`)."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Layout: TypeAlias = Literal["stable", "sequential", "shuffle"]
InputKind: TypeAlias = Literal["auto", "jsonl", "files", "parquet", "csv", "tar", "hf"]
KeyRule: TypeAlias = Literal["first-dot", "last-dot", "known"]
SideFile: TypeAlias = Literal["energon", "dali"]


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How records become a dataset.

    Attributes:
        shard_size: Aim for a shard's size, such as `64MiB`, or `auto`. Smaller shards make small changes cheaper to
            upload, larger ones need fewer requests.
        layout: `stable` keeps small changes small, `sequential` keeps the source's order, `shuffle` mixes all.
        input: What the source holds: `jsonl`, `files` (a sample is the files that share a stem), `parquet`, `csv`,
            `tar`, `hf` (a saved `datasets` directory) or `auto`.
        key_field: The field of a JSONL record that names it; a record without it is named by a hash of its
            bytes, and all are where it is empty.
        key: Where a file's name is cut into key and part: at the `first-dot`, the `last-dot`, or before the `known`
            extensions at its end.
        escape: `percent` writes what a key may not hold as %XX; `none` refuses such keys.
        bundle: JSON lines that share one member of a shard; None gives each line a member of its own.
        dedupe: `report` tells exact duplicates by content, `drop` keeps the first of each.
        on_error: What a record that cannot be packed does: `stop` the pack, `skip` it, or `quarantine` it in a file.
        max_errors: How many records may be left out by `skip` or `quarantine` before the pack stops all the same.
        index: Whose side files to write beside the shards: `energon`, `dali`.
        expected_edits: Scattered edits in a usual change, for `shard_size: auto`.
        splits: Weights of splits, each packed as a dataset of its own; none packs one dataset. The names' order decides
            too, so a renamed split takes other samples.
        name: The dataset's name, which its shards carry; the destination's when None.
    """

    shard_size: str | int = DEFAULT_SIZE
    layout: Layout = "stable"
    input: InputKind = "auto"
    key_field: str = "id"
    splits: Mapping[str, int] = field(default_factory=dict)
    name: str | None = None
    key: KeyRule = "known"
    escape: Literal["none", "percent"] = "none"
    bundle: int | None = None
    dedupe: Literal["report", "drop"] = "report"
    on_error: Literal["stop", "skip", "quarantine"] = "stop"
    max_errors: int = 100
    index: tuple[SideFile, ...] = ()
    expected_edits: int = 16

    def __post_init__(self) -> None:
        if self.shard_size != AUTO and self.shard_bytes < 1:
            raise UsageError(f"shard_size must be more than {self.shard_size}", hint="64MiB suits most datasets")
        for name, (noun, choices) in _CHOICES.items():
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value not in choices:
                    raise UsageError(f"{value!r} is not {noun}", hint=f"Choose {_either(choices)}", subject=name)
        if len(set(self.index)) < len(self.index):
            raise UsageError(f"index names one of {list(self.index)} twice", hint="Name each once", subject="index")
        for name, least in (("bundle", 2), ("max_errors", 1), ("expected_edits", 1)):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
                hint = f"It must be a whole number of {least} or more"
                raise UsageError(f"{name} is {number!r}", hint=hint, subject=name)
        for name in (*self.splits, *([self.name] if self.name is not None else [])):
            check_name(name)
        if self.splits:
            check_splits(self.splits)
        if any(
            isinstance(weight, bool) or not isinstance(weight, int) or weight < 1 for weight in self.splits.values()
        ):
            raise UsageError(
                f"splits need whole weights of 1 or more, not {dict(self.splits)}", hint="Write train: 95, held-out: 5"
            )

    @property
    def shard_bytes(self) -> int:
        """The aim for a shard's size in bytes; `auto` must have been resolved to one (see `advice`)."""
        assert self.shard_size != AUTO
        return parse_bytes(self.shard_size)

    def to_json(self) -> dict[str, Any]:
        """What a manifest records: what decides which sample lies where, besides the samples and the kind of input.

        The settings that format 1 began with always stand there; one that came later does where it is not the default,
        so that a dataset that does without it keeps its digest.
        """
        later = {name: getattr(self, name) for name in ("key", "escape", "bundle", "dedupe")}
        defaults = {one.name: one.default for one in fields(self)}
        return {
            "algorithm": ALGORITHM,
            "layout": self.layout,
            "shard_bytes": self.shard_bytes,
            "key_field": self.key_field,
            "splits": dict(self.splits),
            **{name: value for name, value in later.items() if value != defaults[name]},
        }


_CHOICES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "layout": ("a layout", get_args(Layout)),
    "input": ("a kind of input", get_args(InputKind)),
    "key": ("a way to cut names", get_args(KeyRule)),
    "escape": ("a way to escape keys", ("none", "percent")),
    "dedupe": ("a way to treat duplicates", ("report", "drop")),
    "on_error": ("a way to treat records that cannot be packed", ("stop", "skip", "quarantine")),
    "index": ("a reader with side files", get_args(SideFile)),
}
"""By setting: what its value is, and which there are."""


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def check_name(name: str) -> None:
    """See that a dataset or a split can have this name.

    Raises:
        UsageError: It cannot be part of a file name everywhere.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a dataset",
            hint="Use letters, digits, dot, dash and underscore, at most 64, a letter or digit first",
            subject=name,
        )


def check_splits(splits: Iterable[str]) -> None:
    """See that the folders of splits can stand beside each other, and are taken for nothing else.

    Raises:
        UsageError: Case alone tells two apart, or one is called like a file of a dataset.
    """
    from datakit.data.index import INDEX_SUFFIX
    from datakit.data.manifest import MANIFEST_NAME

    seen: dict[str, str] = {}
    for name in splits:
        folded = name.casefold()
        if (other := seen.setdefault(folded, name)) != name:
            raise UsageError(
                f"splits {other} and {name} differ by case alone, and are one folder on some disks",
                hint="Give one of them another name",
                subject=name,
            )
        if folded == MANIFEST_NAME or folded.endswith((".tar", INDEX_SUFFIX)):
            raise UsageError(
                f"a split cannot be called {name}: datakit gives files such names",
                hint="Name it after what is in it, such as train",
                subject=name,
            )


def cut(
    hashes: npt.NDArray[np.uint64],
    *,
    sizes: npt.NDArray[np.integer[Any]],
    target_bytes: int,
    layout: Layout,
    spill: Spill | None = None,
) -> Iterator[npt.NDArray[np.int64]]:
    """Deal samples to shards.

    Args:
        hashes: `key_hash` of each sample, in source order.
        sizes: Bytes that each takes in a shard.
        target_bytes: Aim for a shard's size.
        layout: The rule.
        spill: Where a column goes that is long; None keeps it in memory.

    Returns:
        For each shard, in order, the positions of its samples, in their order in the shard. None is empty.

    Raises:
        NoSpace: The spool's disk is full.
    """
    import numpy as np

    ends = _ends(sizes, spill)
    if layout == "sequential":
        yield from (np.arange(start, stop) for start, stop in _fill(ends, target_bytes))
        return
    groups = [(0, len(ends))] if layout == "shuffle" else _groups(hashes, ends, REACH_TENTHS * target_bytes // 10)
    for start, stop in groups:
        if start < stop:
            group_bytes = int(ends[stop - 1]) - (int(ends[start - 1]) if start else 0)
            yield from _deal(hashes, slice(start, stop), group_bytes, target_bytes)


def stick(
    homes: Sequence[npt.NDArray[np.int64]],
    *,
    lost: npt.NDArray[np.bool_],
    hashes: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.integer[Any]],
    target_bytes: int,
    layout: Layout,
    spill: Spill | None = None,
) -> Iterator[npt.NDArray[np.int64]]:
    """Deal samples to shards, each to the one that a parent has it in, new ones to shards of their own.

    A shard of the parent keeps its living samples in their order. One that is less than half full dissolves: where it
    has lost samples, and where there are loose ones to fill up with it. So the same samples give the parent's own
    shards, an edit changes one, and what is appended leaves all shards that are more than half full as they are.

    Args:
        homes: Of each of the parent's shards the positions of its living samples, in its order.
        lost: Of each of the parent's shards, whether a sample of it is gone.
        hashes: `key_hash` of each sample, in source order.
        sizes: Bytes that each takes in a shard.
        target_bytes: Aim for a shard's size.
        layout: The rule for what is dealt anew.
        spill: Where a column goes that is long; None keeps it in memory.

    Returns:
        As `cut`: the parent's shards, in their order, then the new ones.

    Raises:
        NoSpace: The spool's disk is full.
    """
    import numpy as np

    from datakit.source.columns import IN_MEMORY, kept, picked, subset

    spill = spill or IN_MEMORY
    filled = np.array([int(picked(sizes, its).sum()) for its in homes], np.int64)
    low = 2 * filled < target_bytes
    dissolved = low & lost
    if dissolved.any() or sum(map(len, homes)) < len(hashes):
        dissolved = low
    stay = [its for its, is_dissolved in zip(homes, dissolved, strict=True) if len(its) and not is_dissolved]
    yield from stay
    rising, loose = spill.column(np.int64), spill.column(np.int64)
    for its in stay:
        rising.append(np.sort(its))
    for its in kept(len(hashes), np.split(rising.done(), np.cumsum([len(its) for its in stay])[:-1])):
        loose.append(its)
    rest = loose.done()
    loose_hashes, loose_sizes = (subset(column, rest, spill=spill) for column in (hashes, sizes))
    dealt = cut(loose_hashes, sizes=loose_sizes, target_bytes=target_bytes, layout=layout, spill=spill)
    yield from (picked(rest, shard) for shard in dealt)


def _ends(sizes: npt.NDArray[np.integer[Any]], spill: Spill | None) -> npt.NDArray[np.int64]:
    """Bytes of each sample and all before it."""
    import numpy as np

    from datakit.source.columns import IN_MEMORY, stretches

    ends, total = (spill or IN_MEMORY).column(np.int64), 0
    for some in stretches(len(sizes), sizes):
        ends.append(piece := total + np.cumsum(sizes[some], dtype=np.int64))
        total = int(piece[-1])
    return ends.done()


def _fill(ends: npt.NDArray[np.int64], target_bytes: int) -> Iterator[tuple[int, int]]:
    start = base = 0
    while start < len(ends):
        # at least one sample, then as many as fit
        stop = max(start + 1, int(ends.searchsorted(base + target_bytes, "right")))
        yield start, stop
        start, base = stop, int(ends[stop - 1])


def _groups(hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], reach_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of samples, each ended by a local minimum of the hash that has the whole reach to both sides of it."""
    from datakit.source.columns import let_go

    start, total = 0, int(ends[-1]) if len(ends) else 0
    candidate = _smallest(hashes, 0, int(ends.searchsorted(reach_bytes, "right")))
    while candidate is not None and (here := int(ends[candidate])) + reach_bytes <= total:
        beyond = int(ends.searchsorted(here + reach_bytes, "right"))
        ahead = _smallest(hashes, candidate + 1, beyond)
        if ahead is not None and hashes[ahead] < hashes[candidate]:
            candidate = ahead
            continue
        first = int(ends.searchsorted(here - reach_bytes, "left"))
        if here >= reach_bytes and (first == candidate or hashes[first:candidate].min() > hashes[candidate]):
            yield start, candidate + 1
            start = candidate + 1
        # nothing within reach of the candidate can be a minimum: go on behind it
        behind = max(beyond + 1, int(ends.searchsorted(here + 2 * reach_bytes, "right")))
        candidate = _smallest(hashes, beyond, behind)
        let_go(hashes, ends)
    if start < len(ends):
        yield start, len(ends)


def _smallest(hashes: npt.NDArray[np.uint64], start: int, stop: int) -> int | None:
    """Position of the smallest hash in a range, or None for an empty one."""
    piece = hashes[start:stop]
    return start + int(piece.argmin()) if len(piece) else None


def _deal(
    hashes: npt.NDArray[np.uint64], rows: slice, group_bytes: int, target_bytes: int
) -> Iterator[npt.NDArray[np.int64]]:
    """The shards of a group, each a range of the hash; as many at a time as can be sorted together."""
    import numpy as np

    from datakit.source.columns import SORTED, picked, within

    num_shards = max(1, (2 * group_bytes + target_bytes) // (2 * target_bytes))
    together = max(1, num_shards * SORTED // (rows.stop - rows.start))
    for first in range(0, num_shards, together):
        # shard j takes hashes from ceil(j * 2**64 / n), exactly, in Python's integers
        bounds = [-(-j * 2**64 // num_shards) for j in range(first, min(first + together, num_shards) + 1)]
        its = within(hashes, bounds[0], bounds[-1] - 1, rows=rows)
        numbers = picked(hashes, its)
        order = np.argsort(numbers, kind="stable")
        pieces = np.split(its[order], numbers[order].searchsorted(np.array(bounds[1:-1], np.uint64), "left"))
        yield from (piece for piece in pieces if len(piece))
