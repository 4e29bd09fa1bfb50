"""A dataset that is read through a cache is the dataset, whatever the cache holds, loses or damages meanwhile."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datakit import IntegrityError, Loader, NotFound, UsageError, open_cached, open_dataset
from datakit.feed.cached import Cached
from datakit.feed.mapped import Item
from datakit.storage.commit import read_manifest
from support.agents import Cache, index_bytes, shards_of, wait_until
from support.commits import flip_bit
from support.datasets import lines, make_dataset, publish
from support.faulty import Fault, FaultyServer
from support.process import environment
from support.tiers import disk_bytes, wrong_objects

TARS = r".*\.tar"
Open = Callable[..., Cached]


def same(items: object) -> list[tuple[int, str, dict[str, bytes]]]:
    """What can be compared of items."""
    assert isinstance(items, (list, Iterator))
    return [(item.number, item.key, {name: bytes(data) for name, data in item.parts.items()}) for item in items]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A dataset of 48 samples in six shards, in a directory."""
    return make_dataset(tmp_path / "ds", [lines(n * 8, n * 8 + 8) for n in range(6)])


@pytest.fixture
def opened(cache: Cache) -> Iterator[Open]:
    """Opens through the cache, and closes at the end."""
    made: list[Cached] = []

    def make(place: object, *, budget: int = 10**9) -> Cached:
        made.append(open_cached(str(place), cache=cache.root, budget=budget))
        return made[-1]

    yield make
    for each in made:
        each.close()


def small_budget(place: Path, share: float) -> int:
    """Room for the indexes and a share of the shards."""
    manifest = read_manifest(place)
    sizes = [(place / shard.name).stat().st_size for shard in manifest.contents.shards]
    return index_bytes(manifest) + round(share * sum(sizes))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_it_is_the_dataset_whatever_has_room(
    place: Path, opened: Open, faulty: FaultyServer, cache: Cache, share: float
) -> None:
    """In layout order, by number in any order, and by key; and the budget holds."""
    local = open_dataset(place)
    dataset = opened(publish(place, faulty), budget=small_budget(place, share))
    numbers = random.Random(3).sample(range(len(local)), len(local))

    assert same(iter(dataset)) == same(iter(local))
    assert same([dataset[number] for number in numbers]) == same([local[number] for number in numbers])
    assert dataset[local[7].key].number == 7
    assert (dataset.digest, len(dataset), dataset.parts) == (local.digest, len(local), local.parts)
    assert disk_bytes(cache.root) <= small_budget(place, share)
    assert wrong_objects(cache.root) == {}


def test_the_first_sample_waits_for_no_whole_shard(place: Path, opened: Open, faulty: FaultyServer) -> None:
    """It is read by a request for its own bytes, and its shard comes all the same; then nothing more is asked."""
    dataset = opened(publish(place, faulty))

    first = dataset[11]

    spans = [span for _, key, span in faulty.asked("GET", TARS) if not span.startswith("bytes=0-")]
    assert same([first]) == same([open_dataset(place)[11]])
    assert len(spans) == 1
    wait_until(lambda: dataset[12] and dataset.shards[1].exists() and dataset._mapped(1, wait=False))
    faulty.log.clear()
    assert dataset[13].number == 13
    assert faulty.log == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_of_a_loader_are_those_of_the_dataset(
    place: Path, opened: Open, faulty: FaultyServer, cache: Cache, num_workers: int
) -> None:
    """Through a cache of half of it, in forked workers too, and over the death of the agent in the middle."""
    dataset = opened(publish(place, faulty), budget=small_budget(place, 0.5))
    here = Loader(open_dataset(place), batch_size=8, seed=4)
    through = Loader(dataset, batch_size=8, seed=4, num_workers=num_workers)

    for _ in range(2):
        for number, (one, other) in enumerate(zip(here, through, strict=True)):
            assert one.keys == other.keys
            assert bytes(one.parts["json"].data.numpy()) == bytes(other.parts["json"].data.numpy())
            assert disk_bytes(cache.root) <= small_budget(place, 0.5)
            if number == 3:
                cache.kill()
    through.close()

    assert wrong_objects(cache.root) == {}


def leased(dataset: Cached, number: int) -> Item:
    """A sample once its shard is mapped."""
    wait_until(lambda: dataset._mapped(dataset_place(dataset, number), wait=True))
    return dataset[number]


def dataset_place(dataset: Cached, number: int) -> int:
    return number // 8


def test_a_shard_that_is_damaged_here_is_fetched_again(
    place: Path, opened: Open, cache: Cache, faulty: FaultyServer
) -> None:
    """Alone and in order: what is handed out is right, and the damaged file lies aside."""
    dataset, local = opened(publish(place, faulty)), open_dataset(place)
    for way in (lambda: [leased(dataset, 9)], lambda: list(dataset)[9:10]):
        leased(dataset, 9)
        offset = open_dataset(place)._index(1).row(1).parts["json"].offset
        flip_bit(dataset.shards[1], offset)

        assert same(way()) == same([local[9]])

    assert len(list((cache.root / "aside").iterdir())) == 2
    assert wrong_objects(cache.root) == {}


def test_a_bit_that_flips_on_the_way_is_asked_for_again(place: Path, opened: Open, faulty: FaultyServer) -> None:
    """Of a sample that is read from afar, as of a shard; what stays wrong is an error that names it."""
    dataset = opened(publish(place, faulty), budget=small_budget(place, 0.0))
    faulty.faults.append(Fault("flip", key=TARS, times=1))
    assert same([dataset[3]]) == same([open_dataset(place)[3]])
    faulty.faults.append(Fault("flip", key=TARS, times=10**6))

    with pytest.raises(IntegrityError, match=r"part json of sample r00020 has crc32c"):
        dataset[20]


def test_it_travels_pickled(place: Path, opened: Open) -> None:
    """And is opened where it arrives, by a connection of its own."""
    dataset = opened(place)

    travelled = pickle.loads(pickle.dumps(dataset))

    assert same([travelled[5]]) == same([open_dataset(place)[5]])
    travelled.close()


def test_what_cannot_be_opened_is_said(place: Path, cache: Cache, tmp_path: Path) -> None:
    """A place without a dataset, a cache that is a URL, a word that is none."""
    with pytest.raises(NotFound):
        open_cached(tmp_path / "nothing", cache=cache.root, budget=10**6)
    with pytest.raises(UsageError, match="not on a local disk"):
        open_cached(place, cache="s3://bucket/cache", budget=10**6)
    with pytest.raises(UsageError, match="verify is 'sha'"):
        open_cached(place, cache=cache.root, budget=10**6, verify="sha")  # type: ignore[arg-type] # what is tested


def test_no_store_is_loaded_by_a_reader(place: Path, cache: Cache, faulty: FaultyServer) -> None:
    """Its client hangs in forked workers: it lives in the agent alone."""
    code = (
        "import sys, datakit\n"
        "dataset = datakit.open_cached(sys.argv[1], cache=sys.argv[2], budget='1GB')\n"
        "print(len(list(dataset)), dataset[0].number, 'obstore' in sys.modules)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, publish(place, faulty), str(cache.root)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )

    assert done.stdout == "48 0 False\n"
    assert len(shards_of(read_manifest(place))) == 6
