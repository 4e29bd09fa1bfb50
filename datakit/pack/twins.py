"""twins: samples that hold the same bytes under different keys, told, left out, or refused where a split leaks.

Two samples are twins when their sample digests are equal: the same parts with the same bytes. Where listing meant
reading, digests are at hand. Files of a folder are not read before they are packed: their twins are found in the
indexes of the shards, before the commit; or, to leave them out, by reading those whose size another sample has, in the
engine's workers, before anything is planned. A sample in one split whose twin is in another is a leak: what a model
was trained on would be used to judge it.

JSON lines that carry a name of their own differ by it. Of lines that are equal the keys are equal too, so they are
found by those (`lines`) and do not come here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datakit.data.shard import sample_digest
from datakit.errors import InputError
from datakit.events import Caution
from datakit.pack.engines import Crew
from datakit.source.columns import Spill, kept, picked, repeated
from datakit.source.fetching import Fetched, release, spool_of
from datakit.source.records import Batch, Records
from datakit.source.troubles import LISTED
from datakit.units import agree, format_count, format_number_of

DIGEST_BYTES = 16
_CHUNK = 2**16
_READ_TOGETHER = 1024
"""Records that one task reads for their digests."""

_SHOWN = 3

Digests = npt.NDArray[np.uint8]

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Reading:
    """What finding the twins of a folder's files will read."""

    records: int
    bytes: int


def groups_of(digests: Digests) -> list[npt.NDArray[np.int64]]:
    """Positions of equal digests, two or more together, rising, in the order of their first.

    Args:
        digests: A row of 16 bytes for each sample.
    """
    groups: list[npt.NDArray[np.int64]] = []
    for suspects in repeated(digests.view(np.uint64)[:, 0]):
        of = np.unique(picked(digests, suspects), axis=0, return_inverse=True)[1].ravel()
        order = np.argsort(of, kind="stable")
        pieces = np.split(suspects[order], np.flatnonzero(np.diff(of[order])) + 1)
        groups += [piece for piece in pieces if len(piece) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def known_digests(records: Records, some: Iterable[npt.NDArray[np.int64]], *, spill: Spill) -> Digests:
    """The digests of records whose signatures are digests.

    Args:
        records: The table.
        some: Positions, in any number of pieces.
        spill: Where the column goes when it is long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    assert records.exact
    column = spill.column(np.uint8, width=DIGEST_BYTES)
    for positions in some:
        for start in range(0, len(positions), _CHUNK):
            column.append(rows(b"".join(records.signatures(positions[start : start + _CHUNK]))))
    return column.done()


def rows(digests: bytes) -> Digests:
    """Digests that stand one after the other."""
    return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)


_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Two to the 64th over the golden ratio: multiplied by it, numbers that are small and near lie far from each other, and
different ones stay different (Knuth, The Art of Computer Programming 3, 6.4)."""


def suspects_of(records: Records) -> npt.NDArray[np.int64]:
    """Records of whose size there is another: all others have no twin."""
    sizes = records.part_bytes(slice(0, len(records.keys)))
    hashes = sizes.view(np.uint64) * _ODD
    return np.sort(np.concatenate([_NONE, *repeated(hashes)]))


def without_twins(
    records: Records, *, local: Fetched, crew: Crew, on_reading: Callable[[Reading], object]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The records but for those that hold what an earlier one does, in the source's order.

    Args:
        records: The table.
        local: The source as local files.
        crew: Who reads, where files must be read.
        on_reading: Told how much, before it begins.

    Returns:
        Positions of those that stay; a row for each that is left out: the one that stays for it, and its own.

    Raises:
        NoSpace: The spool's disk is full.
    """
    count = len(records.keys)
    if records.exact:
        groups = groups_of(known_digests(records, kept(count, []), spill=local.spill))
    else:
        suspects = suspects_of(records)
        on_reading(_reading(records, suspects))
        groups = [suspects[group] for group in groups_of(_read(records, suspects, local, crew))]
    left_out = np.sort(np.concatenate([_NONE, *(group[1:] for group in groups)]))
    if records.exact and records.versions(left_out):  # nobody reads them again, and an index may be of what they were
        on_reading(_reading(records, left_out))
        _read(records, left_out, local, crew)
    stay = local.spill.column(np.int64)
    for its in kept(count, [left_out]):
        stay.append(its)
    pairs = [np.stack([np.full(len(group) - 1, group[0]), group[1:]], axis=1) for group in groups]
    return stay.done(), np.concatenate([np.zeros((0, 2), np.int64), *pairs])


def _reading(records: Records, some: npt.NDArray[np.int64]) -> Reading:
    return Reading(len(some), int(records.part_bytes(slice(0, len(records.keys)))[some].sum()))


def digests_of(batch: Batch) -> bytes:
    """The sample digests of a batch, one after the other: a task for a worker."""
    return b"".join(sample_digest(sample.parts) for sample in batch.samples())


def report(digests: Digests, splits: Sequence[tuple[str | None, int]], key_at: Callable[[int], str]) -> Caution | None:
    """What to say about the twins of datasets that are made together; None where there are none.

    Args:
        digests: Of all samples, split after split.
        splits: Name and number of samples of each split.
        key_at: The key of a sample, by its position among all.

    Raises:
        InputError: Twins are in two splits; both keys are listed, ten times at most.
    """
    groups = groups_of(digests)
    if not groups:
        return None
    ends = np.cumsum([count for _, count in splits])
    leaks, samples = [], 0
    for group in groups:
        its = ends.searchsorted(group, "right")
        if (other := np.flatnonzero(its != its[0])).size:
            leaks.append((int(group[0]), int(group[other[0]])))
            samples += len(group)
    if leaks:
        said = [
            f"{key_at(one)} in {_split_at(one, splits, ends)} and {key_at(two)} in {_split_at(two, splits, ends)}"
            for one, two in leaks[:LISTED]
        ]
        more = f", and {len(leaks) - LISTED} more" if len(leaks) > LISTED else ""
        raise InputError(
            f"splits leak: {format_count(samples)} samples have the bytes of one in another split "
            f"({'; '.join(said)}{more})",
            hint="Keep the first of each: --dedupe drop",
            subject=said[0],
        )
    twins = sum(len(group) - 1 for group in groups)
    pairs = [f"{key_at(int(group[1]))} is {key_at(int(group[0]))}" for group in groups[:_SHOWN]]
    verb = agree(twins, "holds", "hold")
    return Caution(
        f"{format_number_of(twins, 'sample')} {verb} the bytes of another ({', '.join(pairs)}"
        f"{', ...' if len(groups) > _SHOWN else ''})",
        hint="Leave them out: --dedupe drop",
    )


def _split_at(position: int, splits: Sequence[tuple[str | None, int]], ends: npt.NDArray[np.int64]) -> str | None:
    return splits[int(ends.searchsorted(position, "right"))][0]


def _read(records: Records, suspects: npt.NDArray[np.int64], local: Fetched, crew: Crew) -> Digests:
    pieces = [suspects[start : start + _READ_TOGETHER] for start in range(0, len(suspects), _READ_TOGETHER)]
    spools: deque[Path | None] = deque()

    def brought() -> Iterator[Batch]:
        for batch in local.brought(records.take(piece) for piece in pieces):
            spools.append(spool_of(batch))
            yield batch

    found = local.spill.column(np.uint8, width=DIGEST_BYTES)
    for answer in crew.map(digests_of, brought()):
        release(spools.popleft())
        found.append(rows(answer))
    return found.done()
