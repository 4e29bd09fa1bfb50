"""advice: what the next change of a dataset will cost to upload, and which shard size suits it.

Pure arithmetic over numbers that a plan knows. A change re-sends every shard that it touches. Of k edits scattered over
N samples, a shard with n of them stays untouched with probability (1 - n/N)^k; with S equal shards this is the floor
S(1 - (1 - 1/S)^k) below which no way of cutting gets, only smaller shards do. What an append or an edit of neighbours
costs is the layout's doing. Source: the expectation of occupied cells (Feller, An Introduction to Probability Theory,
I.IV.2); the layouts' constants are those of `cut`, simulated against it in the tests.

Numbers that decide a shard's size are computed with the four operations of IEEE 754 alone, which every machine rounds
alike, and never with a library's `pow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from datakit.data.digest import PART_BYTES
from datakit.data.shard import BLOCK_BYTES
from datakit.pack.cut import GROUP_SHARDS, Layout
from datakit.plan.storage import StorePrice
from datakit.units import agree, format_bytes, format_number_of

Kind: TypeAlias = Literal["edits", "append", "neighbours"]

USUAL_BUNDLE = 16
"""Lines that share a member where somebody asks how many: a header and half a block of padding are 48 bytes a line."""

WORTH_BYTES = 2**20
"""Shards of less than this, all together, are not worth a word on how they could be smaller."""

LITTLE = 0.25
"""The part of a set up to which a release is called little of it."""

BANDWIDTH_BYTES_PER_S = 100 * 10**6
"""A rented machine with 1 Gbit/s; also what one stream from S3 gives (mixpeek/awesome-object-storage, 2026-04)."""

LATENCY_S = 0.02
"""First byte of S3, GCS in the same region and Azure: 10 to 60 ms (as above)."""

REQUESTS_AT_ONCE = 16
"""As in `sync`."""

MACHINE_USD_PER_S = 3.0 / 3600
"""A rented machine with one H100 while it waits: about 3 USD an hour (costnimbus, 2026-03)."""

MANY_SHARDS, SMALL_BYTES = 1000, 2**20
"""More shards than a process may have files open by default (1024), of less than DVC hashes side by side: too small."""

SMALLEST_BYTES, LARGEST_BYTES = 4 * 2**20, 2**30
"""Sizes that `auto` chooses from, powers of two: DVC hashes files of up to 1 MiB one after the other, and a shard of
more than 1 GiB is a long time to lose."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change is expected to re-send.

    Attributes:
        kind: `edits` scattered over all samples, an `append` at the end, or an edit of `neighbours` in the source.
        samples: How many samples change.
        shards: Shards expected to change, new ones included.
        bytes: Bytes in them.
        at_most: Whether that is a bound rather than an expectation.
    """

    kind: Kind
    samples: int
    shards: float
    bytes: int
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class ShardSize:
    """A shard size that was derived, and why."""

    bytes: int
    reason: str


def power(base: float, exponent: int) -> float:
    """`base ** exponent` by repeated squaring: the same on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def floor_shards(shards: int, edits: int) -> float:
    """Shards that so many scattered edits change at least, in expectation: S(1 - (1 - 1/S)^k)."""
    return shards * (1 - power(1 - 1 / shards, edits))


def next_changes(sizes: Sequence[tuple[int, int]], *, layout: Layout, edits: int, sticky: bool) -> tuple[Change, ...]:
    """What the usual changes of a dataset will re-send.

    Args:
        sizes: Samples and bytes of each shard, in order.
        layout: How it is cut.
        edits: Samples in a usual change.
        sticky: Whether the next pack keeps samples where they are (`--parent`).
    """
    samples, total = sum(count for count, _ in sizes), sum(size for _, size in sizes)
    edits = min(edits, samples)
    mean = total / len(sizes)
    added = max(1, samples // 100)
    new = added * total / samples
    touched = [(1 - power(1 - count / samples, edits), size) for count, size in sizes]
    scattered = Change("edits", edits, sum(p for p, _ in touched), round(sum(p * size for p, size in touched)))
    # neighbours lie in one group, dealt over its shards; in the source's order, in a run of a shard's samples
    per_shard = samples / len(sizes)
    near = min(float(len(sizes)), 1 + (edits - 1) / per_shard)
    if not sticky and layout == "sequential":
        moved = min(len(sizes), len(sizes) * edits / (edits + 1) + 1)
        return (
            Change("edits", edits, moved, round(moved * mean), at_most=True),
            Change("append", added, 1 + new / mean, round(min(mean + new, total + new))),
            Change("neighbours", edits, (len(sizes) + 1) / 2, round(total / 2 + mean / 2), at_most=True),
        )
    if layout == "shuffle":
        append = Change("append", added, len(sizes) + new / mean, round(total + new))
        beside = scattered
    else:
        group = min(float(GROUP_SHARDS), len(sizes))
        append = Change("append", added, group + new / mean, round(min(group * mean, total) + new))
        groups = 1 + (edits - 1) / (per_shard * group)
        beside_shards = near if layout == "sequential" else min(len(sizes), groups * floor_shards(round(group), edits))
        beside = Change("neighbours", edits, beside_shards, round(beside_shards * mean))
    if sticky:
        append = Change("append", added, max(1.0, new / mean), round(new))
    return scattered, append, Change("neighbours", edits, beside.shards, beside.bytes, beside.at_most)


def default_reason(total_bytes: int, *, size_bytes: int, edits: int) -> str:
    """What to say of the usual size: of a set of few shards some scattered edits change nearly all.

    Args:
        total_bytes: Bytes of all shards.
        size_bytes: The usual size.
        edits: Scattered edits in a usual change.
    """
    shards = max(1, -(-total_bytes // size_bytes))
    if floor_shards(shards, edits) <= LITTLE * shards:
        return "the default: a small change re-sends little, and reading takes few requests"
    return "the default: a change re-sends much of a set this small, less of it with a smaller --shard-size"


def shard_size(total_bytes: int, *, edits: int, price: StorePrice) -> ShardSize:
    """The shard size for which a release costs least: uploading what `edits` scattered edits change, and one reading.

    A shard is two requests to write (itself and its index) and one for each part of 16 MiB, and one for its index, to
    read. Requests cost money, and requests and bytes cost time, which costs what a rented machine does.

    Args:
        total_bytes: Bytes of all shards.
        edits: Scattered edits between two releases.
        price: What requests to the store cost; in USD, and known.
    """
    assert price.currency == "USD"
    sizes = [2**n for n in range(SMALLEST_BYTES.bit_length() - 1, LARGEST_BYTES.bit_length())]

    def cost(size: int) -> tuple[float, int]:
        # of those that cost the same, as all do for a set that fits into one shard, the one nearest to 64 MiB
        return release_usd(total_bytes, size, edits=edits, price=price), abs(size.bit_length() - _USUAL_BITS)

    best = min(sizes, key=cost)
    shards = -(-total_bytes // best)
    changed = floor_shards(shards, edits)
    reason = (
        f"{format_bytes(total_bytes)} in {format_number_of(shards, 'shard')}: {_re_send(edits)} about "
        f"{format_bytes(round(changed * min(best, total_bytes)))}, and reading all takes "
        f"{format_number_of(_reads(total_bytes, best), 'request')}; at {BANDWIDTH_BYTES_PER_S // 10**6} MB/s, "
        f"the request prices of {price.told}, and {MACHINE_USD_PER_S * 3600:.0f} USD an hour for the "
        f"machine, no other power of two costs less"
    )
    return ShardSize(best, reason)


_USUAL_BITS = (64 * 2**20).bit_length()


def release_usd(total_bytes: int, size_bytes: int, *, edits: int, price: StorePrice) -> float:
    """What a release costs with shards of a size, in USD: the upload of what changed, and one reading of all."""
    shards = max(1, -(-total_bytes // size_bytes))
    changed = floor_shards(shards, edits)
    reads, writes = _reads(total_bytes, size_bytes), 2 * changed
    seconds = changed * min(size_bytes, total_bytes) / BANDWIDTH_BYTES_PER_S
    seconds += (reads + writes) * LATENCY_S / REQUESTS_AT_ONCE
    requests = price.cost(gets=reads, puts=writes)
    assert requests is not None
    return requests + seconds * MACHINE_USD_PER_S


def sentence(changes: Sequence[Change], *, total_bytes: int) -> str:
    """The changes as a person reads them."""
    words = {
        "edits": ("scattered edit", ""),
        "append": ("sample", " appended"),
        "neighbours": ("edit", " of neighbours"),
    }
    parts = [
        f"{format_number_of(change.samples, words[change.kind][0])}{words[change.kind][1]} "
        f"{'up to' if change.at_most else 'about'} "
        f"{format_bytes(min(change.bytes, total_bytes * 2))}"
        for change in changes
    ]
    return f"re-sends, of {format_bytes(total_bytes)}: {'; '.join(parts)}"


def _re_send(edits: int) -> str:
    return f"{format_number_of(edits, 'scattered edit')} {agree(edits, 're-sends', 're-send')}"


def bundling(shard_bytes: int, *, payload_bytes: int, samples: int) -> str | None:
    """What to say of lines that a tar makes more than twice as large; None of any others.

    Args:
        shard_bytes: Bytes of all shards.
        payload_bytes: Bytes of the lines.
        samples: How many there are.
    """
    if shard_bytes < WORTH_BYTES or 2 * payload_bytes >= shard_bytes:
        return None
    bundled = payload_bytes + samples * (1 + 3 * BLOCK_BYTES // 2 // USUAL_BUNDLE)
    return (
        f"{100 * payload_bytes // shard_bytes} % of the shards, the rest are headers and padding: "
        f"--bundle {USUAL_BUNDLE} makes about {format_bytes(bundled)}"
    )


def small_shards(shards: int, total_bytes: int) -> str | None:
    """What to say of a dataset of very many very small shards; None of any other."""
    if shards <= MANY_SHARDS or total_bytes >= shards * SMALL_BYTES:
        return None
    return (
        f"{format_number_of(shards, 'shard')} of {format_bytes(total_bytes / shards)} on average: each is a file to "
        "open, and two requests to write and to read"
    )


def _reads(total_bytes: int, size_bytes: int) -> int:
    shards = max(1, -(-total_bytes // size_bytes))
    return shards * (1 + -(-min(size_bytes, total_bytes) // PART_BYTES))
