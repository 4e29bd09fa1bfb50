"""eviction: what goes of a pool when a person asks for room: a plan, and doing it.

By dataset: its objects that no other known dataset has. By bytes: what a fetch would let go for its room. Either way
nothing goes that is leased, pinned, or has no verified copy in a colder tier, and what stays is said with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from datakit.errors import NoSpace, Refused
from datakit.tier.pool import Copied, Pool
from datakit.tier.roster import Known, objects_of
from datakit.units import format_bytes


@dataclass(frozen=True, slots=True)
class Eviction:
    """What goes.

    Attributes:
        tier: The tier's name.
        place: Its directory.
        dataset: Name of the dataset, or None where bytes were asked for.
        digest: Of its manifest.
        drop: Digests of the objects that go.
        bytes: Their bytes.
        kept_bytes: What stays of the dataset: bytes by reason; `shared` is of another dataset too.
        left: Digests of parts that killed fetches have left, which go first.
        aside: Names of damaged files that go.
        other_bytes: Bytes of these parts and files.
    """

    tier: str
    place: str
    dataset: str | None
    digest: str | None
    drop: tuple[str, ...]
    bytes: int
    kept_bytes: Mapping[str, int]
    left: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    other_bytes: int = 0

    def raise_kept(self) -> None:
        """End by an error where something of the dataset could not go.

        Raises:
            Refused: Says what, and why.
        """
        held = {reason: size for reason, size in self.kept_bytes.items() if reason != "shared"}
        if self.dataset is None or not held:
            return
        said = ", ".join(f"{format_bytes(size)} {reason}" for reason, size in held.items())
        hints = {
            "pinned": f"Unpin it first: datakit tier unpin {self.tier} {self.dataset}",
            "only copy": "Put it where it can be had again: datakit sync, or look whether its place is still whole",
            "leased": "Wait for its readers",
        }
        hint = next(text for reason, text in hints.items() if reason in held)
        raise Refused(
            f"{self.dataset} stays in {self.place} as far as it must: {said}", hint=hint, subject=self.dataset
        )


def plan_eviction(pool: Pool, dataset: Known, *, copied: Copied) -> Eviction:
    """Say what goes of a dataset.

    Args:
        pool: The pool.
        dataset: The dataset.
        copied: What a colder tier holds.
    """
    usage = pool.usage()
    others = objects_of(each for each in pool.roster.known() if each.digest != dataset.digest)
    drop: dict[str, int] = {}
    kept: Counter[str] = Counter()
    for each in pool.held(usage, copied()):
        if each.digest in dataset.objects:
            reason = each.reason or ("shared" if each.digest in others else None)
            if reason is None:
                drop[each.digest] = each.bytes
            else:
                kept[reason] += each.bytes
    return Eviction(
        pool.name, str(pool.root), dataset.name, dataset.digest, tuple(drop), sum(drop.values()), dict(kept)
    )


def plan_room(pool: Pool, need_bytes: int, *, copied: Copied) -> Eviction:
    """Say what goes so that so many bytes are freed.

    Args:
        pool: The pool.
        need_bytes: Bytes.
        copied: What a colder tier holds.

    Raises:
        NoSpace: So much may not go; says what holds the rest.
    """
    room = pool.room(need_bytes, copied=copied)
    choice = room.choice
    if choice.short_bytes:
        said = ", ".join(f"{format_bytes(size)} {reason}" for reason, size in choice.kept_bytes.items()) or "nothing"
        raise NoSpace(
            f"{pool.root} cannot free {format_bytes(need_bytes)}: it is {format_bytes(choice.short_bytes)} short, "
            f"and holds {said} besides",
            hint=f"See what holds it: datakit tier status {pool.name}",
            subject=str(pool.root),
        )
    kept = {str(reason): size for reason, size in choice.kept_bytes.items()}
    drop = tuple(each.digest for each in choice.drop)
    size_bytes = sum(each.bytes for each in choice.drop)
    return Eviction(
        pool.name, str(pool.root), None, None, drop, size_bytes, kept, room.left, room.aside, room.other_bytes
    )


def evict(pool: Pool, plan: Eviction) -> Eviction:
    """Do what the plan says, but of objects that were pinned or leased since; says what was done.

    A dataset of which nothing is left or on its way, and that is not pinned, is forgotten.
    """
    pool.remove_left(plan.left)
    pool.remove_aside(plan.aside)
    gone: dict[str, int] = {}
    kept = Counter(plan.kept_bytes)
    for each in pool.held(pool.usage(), plan.drop):
        if each.digest in plan.drop:
            if each.reason is None and pool.drop(each.digest):
                gone[each.digest] = each.bytes
            else:
                kept[each.reason or "leased"] += each.bytes
    if plan.digest is not None:
        _forget(pool, plan.digest)
    return replace(plan, drop=tuple(gone), bytes=sum(gone.values()), kept_bytes=dict(kept))


def _forget(pool: Pool, digest: str) -> None:
    usage = pool.usage()
    coming = {each for one in usage.incoming if not one.is_left for each in (*one.promised, *one.here)}
    known = next((each for each in pool.roster.known() if each.digest == digest), None)
    if known is not None and not known.pinned and not known.objects.keys() & (usage.objects.keys() | coming):
        pool.roster.forget(digest)
