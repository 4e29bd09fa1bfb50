"""A pool never exceeds its budget, holds only what is whole, and drops only what may go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from datakit.errors import NoSpace, NotFound, Refused, UsageError
from datakit.tier.fill import bring
from datakit.tier.pool import FIRST_WAIT_S, MAX_ASIDE, RESERVE_TRIES, Pool
from support.commits import noise
from support.tiers import Cold, cold, disk_bytes, know, pool_at, wrong_objects


def filled(tmp_path: Path, sizes: list[int], *, budget_bytes: int) -> tuple[Pool, Cold]:
    """A pool that knows and holds a dataset; its objects were used in the order of their names."""
    dataset = cold(tmp_path / "cold" / "old", sizes)
    pool = pool_at(tmp_path / "pool", budget_bytes)
    know(pool, dataset)
    bring(pool, dataset.manifest.members, sources=[dataset.source], copied=set)
    for number, digest in enumerate(dataset.digests):
        os.utime(pool.path(digest), (number, number))
    return pool, dataset


def ask(pool: Pool, size_bytes: int, *, copied: set[str]) -> None:
    """Reserve room for something new, and let it go again."""
    with pool.arrival() as into:
        pool.reserve(into, {"f" * 64: size_bytes}, copied=lambda: copied)


def test_an_empty_directory_becomes_a_tier_and_others_are_refused(tmp_path: Path) -> None:
    """What a file system makes in its root is no content; a second opening finds what the first made."""
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")

    pool_at(tmp_path / "disk", 9)
    pool_at(tmp_path / "disk", 9)

    with pytest.raises(Refused, match=r"is no tier, and not empty: thesis\.txt lies there"):
        pool_at(tmp_path / "mine", 9)
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    """So is one that is no number at all."""
    for text in ('{"format": 2}', "{}", "torn"):
        (tmp_path / "tier.json").write_text(text)
        with pytest.raises(UsageError, match=r"says format .*; this datakit reads 1"):
            pool_at(tmp_path, 9)


def test_what_fits_is_promised_and_the_promise_ends_with_the_fetch(tmp_path: Path) -> None:
    """To the byte; while it holds, nobody else gets the room."""
    pool = pool_at(tmp_path, 100)

    with pool.arrival() as into:
        pool.reserve(into, {"a" * 64: 60, "b" * 64: 40}, copied=set)
        promised = pool.usage().total_bytes
        with pytest.raises(NoSpace, match="100 B arriving"):
            ask(pool, 1, copied=set())

    assert promised == 100
    ask(pool, 100, copied=set())


def test_who_loses_a_race_waits_as_its_caller_says(tmp_path: Path) -> None:
    """While another's promise may end, seven times, and longer each time."""
    pool = Pool(tmp_path, budget_bytes=100, fraction=lambda: 1.0).open()
    waits: list[float] = []

    with pool.arrival() as other, pool.arrival() as into:
        other.promise({"a" * 64: 60})
        with pytest.raises(NoSpace, match="60 B arriving"):
            pool.reserve(into, {"b" * 64: 60}, copied=set, sleep=waits.append)

    assert waits == [FIRST_WAIT_S * 2**number for number in range(RESERVE_TRIES - 1)]


def test_who_was_taken_for_dead_gives_nothing_its_place(tmp_path: Path) -> None:
    """Even where its writing has made its directory anew: the room was given to others."""
    dataset = cold(tmp_path / "cold" / "ds", [70])
    pool = pool_at(tmp_path / "pool", 200)
    (entry,) = dataset.manifest.members
    with pool.arrival() as into:
        into.close()
        into.path.mkdir()
        into.target(entry.sha256).write_bytes(noise(70, 0))
        with pytest.raises(Refused, match="its room was given to others"):
            pool.land(into, entry)

    assert pool.usage().total_bytes == 0


def test_what_can_never_fit_drops_nothing(tmp_path: Path) -> None:
    """Neither more than the budget, nor more than what may go leaves free."""
    pool, dataset = filled(tmp_path, [30, 30, 30], budget_bytes=100)
    copied = set(dataset.digests)
    pool.roster.pin(dataset.manifest.digest)

    for size_bytes in (11, 101):
        with pytest.raises(NoSpace, match="90 B pinned") as full:
            ask(pool, size_bytes, copied=copied)
        assert full.value.exit_code == 5
        assert "datakit tier status cache" in str(full.value.hint)

    assert len(pool.usage().objects) == 3


def test_the_least_recently_used_that_has_a_copy_goes(tmp_path: Path) -> None:
    """Only copies stay, however long nobody used them, and no more goes than is needed."""
    pool, dataset = filled(tmp_path, [30, 30, 30], budget_bytes=100)
    first, second, third = dataset.digests

    ask(pool, 40, copied={second, third})

    assert set(pool.usage().objects) == {first, third}
    with pytest.raises(NoSpace, match="30 B only copy"):
        ask(pool, 80, copied={second, third})


def test_a_lease_keeps_an_object_and_counts_as_use(tmp_path: Path) -> None:
    """While it is read it stays, alone or with others; afterwards it is the most recently used."""
    pool, dataset = filled(tmp_path, [30, 30, 30], budget_bytes=100)
    first, _, third = dataset.digests

    with pool.lease(first) as path:
        with pool.lease(first):
            pass
        with pytest.raises(NoSpace, match="30 B leased"):
            ask(pool, 100, copied=set(dataset.digests))
        assert not pool.drop(first)
        assert path.read_bytes() == noise(30, 0)
    ask(pool, 70, copied=set(dataset.digests))

    assert set(pool.usage().objects) == {first}
    with pytest.raises(NotFound), pool.lease(third):
        pass
    assert pool.drop(first)


def test_a_file_is_known_by_its_time_after_a_lease(tmp_path: Path) -> None:
    """Use is told by the time of access; that of the bytes stays, by which others know the file again."""
    pool, dataset = filled(tmp_path, [30], budget_bytes=100)
    (digest,) = dataset.digests
    before = pool.path(digest).stat()

    with pool.lease(digest):
        pass

    after = pool.path(digest).stat()
    assert after.st_mtime_ns == before.st_mtime_ns
    assert after.st_atime_ns > before.st_atime_ns


def test_leftovers_of_killed_fetches_go_before_any_object(tmp_path: Path) -> None:
    """They count until then; those of the very object that is wanted are taken over, not counted beside it."""
    pool, dataset = filled(tmp_path, [50], budget_bytes=100)
    with pool.arrival() as into:
        for letter, size in (("a", 20), ("f", 30)):
            (into.path / f".{letter * 64}.{letter * 8}.part").write_bytes(b"x" * size)

    total = pool.usage().total_bytes
    ask(pool, 50, copied=set())

    assert total == 100
    assert set(pool.usage().objects) == set(dataset.digests)
    assert pool.usage().left_bytes(["a" * 64]) == 0
    assert disk_bytes(pool.root) == 80


def test_what_lies_aside_counts_and_goes_where_there_is_a_copy(tmp_path: Path) -> None:
    """A damaged file that is all there is of its bytes stays, whatever is asked for."""
    pool, dataset = filled(tmp_path, [30, 30, 30], budget_bytes=100)
    first, second, third = dataset.digests
    pool.set_aside(first)
    pool.set_aside(second)

    usage = pool.usage()
    ask(pool, 40, copied={second, third})

    assert (usage.aside_bytes, usage.total_bytes) == (60, 90)
    assert [name.partition(".")[0] for name in pool.usage().aside] == [first]
    assert set(pool.usage().objects) == {third}
    assert pool.set_aside(first) is None


def test_a_plan_refuses_nothing_that_a_fetch_would_have_room_for(tmp_path: Path) -> None:
    """Both let damaged files go that have a copy, before any object; the plan changes nothing."""
    pool, dataset = filled(tmp_path, [30, 60], budget_bytes=100)
    pool.roster.pin(dataset.manifest.digest)
    pool.set_aside(dataset.digests[0])

    choice = pool.fits({"f" * 64: 40}, copied=lambda: dataset.digests)
    aside = pool.usage().aside_bytes
    ask(pool, 40, copied=set(dataset.digests))

    assert choice is not None
    assert (choice.drop, choice.short_bytes, aside) == ((), 0, 30)
    assert pool.usage().aside_bytes == 0


def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    """The newest, and those that nothing else holds."""
    pool, dataset = filled(tmp_path, [1, 2, 3, 4, 5], budget_bytes=100)
    for digest in dataset.digests:
        pool.set_aside(digest)
    order = [name.partition(".")[0] for name in pool.usage().aside]

    removed = pool.tidy_aside(copied=lambda: order[1:])

    assert [name.partition(".")[0] for name in removed] == [order[1]]
    assert len(order) == MAX_ASIDE + 2


def test_whoever_comes_second_with_the_same_bytes_changes_nothing(tmp_path: Path) -> None:
    """One file in the end; a reader of the first keeps it."""
    dataset = cold(tmp_path / "cold" / "ds", [70])
    pool = pool_at(tmp_path / "pool", 200)
    (entry,) = dataset.manifest.members
    for _ in range(2):
        with pool.arrival() as into:
            pool.reserve(into, {entry.sha256: 70}, copied=set)
            into.target(entry.sha256).write_bytes(noise(70, 0))
            pool.land(into, entry)
            number = pool.path(entry.sha256).stat().st_ino
            assert into.path.exists()

    assert pool.path(entry.sha256).stat().st_ino == number
    assert wrong_objects(pool.root) == {}
    assert pool.usage().total_bytes == 70


def test_a_full_disk_is_told_with_what_is_on_it(tmp_path: Path) -> None:
    """The bytes of others on the disk stand beside what holds the tier's own."""
    pool, dataset = filled(tmp_path, [30], budget_bytes=100)
    pool.roster.pin(dataset.manifest.digest)

    error = pool.full(50, pool.free(80, copied=set))

    assert isinstance(error, OSError)
    assert "30 B pinned" in error.message
    assert "on that disk are not of this tier" in error.message


def test_a_pool_of_format_1_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A pinned dataset with its place, one object of it, a leftover of a fetch and a damaged file."""
    shutil.copytree(Path(__file__).parents[1] / "golden" / "tier-1", tmp_path / "tier")
    pool = pool_at(tmp_path / "tier", 1000)

    (known,) = pool.roster.known()
    usage = pool.usage()

    assert (known.name, known.places, known.pinned) == ("golden", ("s3://bucket/golden",), True)
    assert [pool.has(entry) for entry in known.manifest.members] == [True, False, False]
    assert (usage.object_bytes, usage.left_bytes(), usage.aside_bytes) == (5, 6, 7)
    assert wrong_objects(pool.root) == {}
