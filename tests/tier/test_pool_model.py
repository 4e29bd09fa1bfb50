"""A pool against a model of it: whatever is done in whatever order, its laws hold after each step."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from datakit.data.digest import FileEntry
from datakit.errors import NoSpace
from datakit.tier.arrival import Arrival
from datakit.tier.policy import Reading
from datakit.tier.pool import Pool
from support.commits import make_commit, noise
from support.tiers import disk_bytes, wrong_objects

SIZES = [5, 10, 20, 30, 40, 50]
DATA = [noise(size, seed) for seed, size in enumerate(SIZES)]
BUDGET_BYTES = 100
NUMBERS = st.integers(0, len(SIZES) - 1)


class Model(RuleBasedStateMachine):
    """Fetches that come and die, leases, pins, colder copies, damage and people who want room."""

    @initialize()
    def begin(self) -> None:
        """Two datasets that share two of six objects; a fetch of each object may be under way."""
        self.top = Path(tempfile.mkdtemp(prefix="pool-model-"))
        self.pool = Pool(self.top / "pool", budget_bytes=BUDGET_BYTES, fraction=lambda: 0.0).open()
        names = [f"{number}.tar" for number in range(len(SIZES))]
        parts = (range(4), range(2, 6))
        self.datasets = [
            make_commit(self.top / f"ds{n}", {names[number]: DATA[number] for number in part})
            for n, part in enumerate(parts)
        ]
        self.entries: list[FileEntry] = []
        by_name = {entry.name: entry for each in self.datasets for entry in each.members}
        self.entries = [by_name[name] for name in names]
        for each in self.datasets:
            self.pool.roster.add(each)
        self.fetches: dict[int, Arrival] = {}
        self.leases: dict[int, contextlib.ExitStack] = {}
        self.pinned: set[int] = set()
        self.copied = {entry.sha256 for entry in self.entries}
        self.present: set[str] = set()

    def teardown(self) -> None:
        """Nothing is kept."""
        for stack in getattr(self, "leases", {}).values():
            stack.close()
        if hasattr(self, "top"):
            shutil.rmtree(self.top)

    def must_stay(self) -> set[str]:
        """Objects that nothing may drop now."""
        leased = {self.entries[number].sha256 for number in self.leases}
        pinned = {entry.sha256 for number in self.pinned for entry in self.datasets[number].members}
        return {digest for digest in self.present if digest in leased | pinned or digest not in self.copied}

    def look(self, stayed: set[str]) -> None:
        """See what is there now, after something that may drop."""
        now = set(self.pool.usage().objects)
        assert stayed <= now
        assert now <= self.present
        self.present = now

    @rule(number=NUMBERS)
    def ask(self, number: int) -> None:
        """Somebody reserves room for an object that is neither there nor coming."""
        entry = self.entries[number]
        if number in self.fetches or entry.sha256 in self.present:
            return
        into, stayed = Arrival(self.pool.root / "arriving"), self.must_stay()
        into.open()
        before = self.pool.usage()
        try:
            self.pool.reserve(into, {entry.sha256: entry.bytes}, copied=lambda: self.copied)
        except NoSpace:
            into.close()
            stuck = sum(lying.bytes for digest, lying in before.objects.items() if digest in stayed)
            coming = sum(each.bytes for each in before.incoming if not each.is_left)
            assert stuck + coming + before.aside_bytes + entry.bytes > BUDGET_BYTES
            assert set(self.pool.usage().objects) == set(before.objects)
        else:
            self.fetches[number] = into
        self.look(stayed)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def come(self, data: st.DataObject) -> None:
        """A fetch makes its file in full size, as the engine does."""
        number = data.draw(st.sampled_from(sorted(self.fetches)))
        self.make_part(number, self.fetches[number])

    def make_part(self, number: int, into: Arrival) -> None:
        """The file that the engine makes before the first request."""
        entry = self.entries[number]
        with (into.path / f".{entry.sha256}.{entry.sha256[:8]}.part").open("ab") as file:
            file.truncate(entry.bytes)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """A fetch ends well."""
        number = data.draw(st.sampled_from(sorted(self.fetches)))
        entry, into = self.entries[number], self.fetches.pop(number)
        (into.path / f".{entry.sha256}.{entry.sha256[:8]}.part").unlink(missing_ok=True)
        into.target(entry.sha256).write_bytes(DATA[number])
        self.pool.land(into, entry)
        into.close()
        self.present.add(entry.sha256)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), begun=st.booleans(), killed=st.booleans())
    def give_up(self, data: st.DataObject, begun: bool, killed: bool) -> None:
        """A fetch ends by an error, or its process is killed: then its directory stays as it is."""
        number = data.draw(st.sampled_from(sorted(self.fetches)))
        into = self.fetches.pop(number)
        if begun:
            self.make_part(number, into)
        if killed:
            machine, _, _, end = into.path.name.split("-")
            os.rename(into.path, into.path.with_name(f"{machine}-4194304-1-{end}"))  # above the largest process number
        else:
            into.close()

    @rule(number=NUMBERS)
    def lease(self, number: int) -> None:
        """Somebody begins to read an object, or ends."""
        if number in self.leases:
            self.leases.pop(number).close()
        elif self.entries[number].sha256 in self.present:
            stack = contextlib.ExitStack()
            path = stack.enter_context(self.pool.lease(self.entries[number].sha256))
            self.leases[number] = stack
            assert path.read_bytes() == DATA[number]

    @rule(number=st.integers(0, 1))
    def pin(self, number: int) -> None:
        """A dataset is pinned, or unpinned, by another process."""
        roster = Pool(self.pool.root, budget_bytes=0).roster
        if number in self.pinned:
            roster.unpin(self.datasets[number].digest)
        else:
            roster.pin(self.datasets[number].digest)
        self.pinned ^= {number}

    @rule(number=NUMBERS)
    def copy(self, number: int) -> None:
        """A colder tier gets a copy, or loses it."""
        self.copied ^= {self.entries[number].sha256}

    @rule(need_bytes=st.integers(1, BUDGET_BYTES))
    def free(self, need_bytes: int) -> None:
        """Somebody wants room; there is as much afterwards, or nothing was dropped."""
        stayed, before = self.must_stay(), self.pool.usage()
        choice = self.pool.free(need_bytes, copied=lambda: self.copied)
        freed = before.total_bytes - self.pool.usage().total_bytes
        assert (freed == 0) if choice.short_bytes else (freed >= need_bytes)
        self.look(stayed)

    @rule(numbers=st.permutations(range(len(SIZES))), length=st.integers(0, len(SIZES)))
    def announce(self, numbers: list[int], length: int) -> None:
        """An order of reading becomes known."""
        order = {self.entries[number].sha256: place for place, number in enumerate(numbers[:length])}
        self.pool.reading = Reading(order, frozenset(entry.sha256 for entry in self.entries))

    @rule(number=NUMBERS)
    def damage(self, number: int) -> None:
        """An object is found damaged."""
        if self.entries[number].sha256 in self.present and number not in self.leases:
            self.pool.set_aside(self.entries[number].sha256)
            self.present.discard(self.entries[number].sha256)

    @invariant()
    def the_budget_holds(self) -> None:
        """By what is promised, and by what lies on the disk (law 7)."""
        if hasattr(self, "pool"):
            assert disk_bytes(self.pool.root) <= self.pool.usage().total_bytes <= BUDGET_BYTES

    @invariant()
    def every_object_has_its_bytes(self) -> None:
        """No other bytes under an object's name (law 6)."""
        if hasattr(self, "pool"):
            assert wrong_objects(self.pool.root) == {}


TestPool = Model.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.prove
class TestPoolWidely(Model.TestCase):  # type: ignore[misc]  # hypothesis makes the class
    """The same, wider."""

    settings = settings(max_examples=1000, stateful_step_count=60, deadline=None)
