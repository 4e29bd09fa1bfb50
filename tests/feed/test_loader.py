"""feed/loader: laws 1 to 3 of docs/design.md on real shards, with 0, 1 and 2 workers."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datakit import DatakitError, InputError, Loader, Refused, UsageError, open_dataset
from datakit.data.order import Cursor, Geometry
from datakit.feed.dataset import Dataset, Item
from datakit.feed.loader import Batch, Ragged, as_bytes
from support.cli import environment
from support.process import halt
from support.tiny import text_samples, write_dataset

COUNT = 31


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("feed") / "ds"
    write_dataset(path, text_samples(COUNT), per_shard=6)
    return open_dataset(path)


def numbers_of(items: list[Item]) -> list[int]:
    return [item.number for item in items]


def epoch_of(loader: Loader[list[int]]) -> list[list[int]]:
    return list(loader)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_delivers_each_sample_once(dataset: Dataset, workers: int) -> None:
    """Whatever the number of workers, the epoch is the same list of samples, each once."""
    loader = Loader(dataset, batch_size=4, seed=3, num_workers=workers, collate=numbers_of, tail="exact")

    epochs = [epoch_of(loader), epoch_of(loader)]
    loader.close()

    for number, epoch in enumerate(epochs):
        flat = [sample for batch in epoch for sample in batch]
        assert sorted(flat) == list(range(COUNT))
        assert flat == loader.order.span(number, 0, COUNT).tolist()
    assert epochs[0] != epochs[1]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(1, 5),
    batch=st.integers(1, 7),
    tail=st.sampled_from(["drop", "pad", "exact"]),
    seed=st.integers(-5, 2**40),
    epoch=st.integers(0, 4),
)
def test_ranks_share_an_epoch_without_gap_or_overlap(
    dataset: Dataset, world: int, batch: int, tail: Any, seed: int, epoch: int
) -> None:
    """All ranks take the same number of steps; together they deliver each sample once, but for the named tail."""
    if tail == "drop" and world * batch > COUNT:
        batch = COUNT // world
    loaders = [
        Loader(dataset, batch_size=batch, seed=seed, rank=rank, world_size=world, tail=tail, collate=numbers_of)
        for rank in range(world)
    ]
    for loader in loaders:
        loader.seek(Cursor(epoch))

    shares = [epoch_of(loader) for loader in loaders]

    assert len({len(share) for share in shares}) == 1 == len({loader.cursor for loader in loaders})
    seen = Counter(sample for share in shares for part in share for sample in part)
    geometry = loaders[0].geometry
    assert COUNT - len(seen) == geometry.dropped()
    assert sum(seen.values()) - len(seen) == geometry.repeated()
    if tail != "exact":
        assert {len(part) for share in shares for part in share} == {batch}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=4),
    seed=st.integers(0, 3),
)
def test_any_number_of_resumes_under_any_geometry_delivers_each_sample_once(
    dataset: Dataset, cuts: list[tuple[int, int, int]], seed: int
) -> None:
    """Stopped and resumed on other world and batch sizes, again and again, an epoch misses and repeats nothing."""
    state = Loader(dataset, batch_size=1, seed=seed).state_dict()
    seen: list[int] = []

    for world, batch, steps in [*cuts, (1, 1, COUNT)]:
        ranks = [
            Loader(dataset, batch_size=batch, seed=seed, rank=r, world_size=world, tail="exact", collate=numbers_of)
            for r in range(world)
        ]
        for loader in ranks:
            loader.load_state_dict(json.loads(json.dumps(state)))
        if ranks[0].epoch > 0:
            break
        for _, parts in zip(range(steps), zip(*ranks, strict=True), strict=False):
            seen += [sample for part in parts for sample in part]
            state = ranks[0].state_dict()

    assert seen == ranks[0].order.span(0, 0, COUNT).tolist()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("consumed", [0, 1, 5, 7, 8, 20])
def test_the_state_is_what_was_consumed_not_what_was_fetched(dataset: Dataset, workers: int, consumed: int) -> None:
    """With batches prefetched, the state still points behind the last one handed out, also in later epochs."""
    whole = Loader(dataset, batch_size=4, tail="drop", seed=1, collate=numbers_of)
    expected = [batch for _ in range(4) for batch in whole][: consumed + 6]
    loader = Loader(
        dataset, batch_size=4, tail="drop", seed=1, num_workers=workers, prefetch_factor=4, collate=numbers_of
    )
    taken: list[list[int]] = []
    while len(taken) < consumed:
        for batch in loader:
            taken.append(batch)
            if len(taken) == consumed:
                break

    resumed = Loader(dataset, batch_size=4, tail="drop", seed=1, num_workers=workers, collate=numbers_of)
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    rest: list[list[int]] = []
    while len(rest) < 6:
        rest += epoch_of(resumed)
    resumed.close()

    assert taken + rest[:6] == expected


def test_a_loader_goes_on_where_its_loop_was_left(dataset: Dataset) -> None:
    """Breaking out of the loop and starting another one continues the epoch, with workers that had fetched ahead."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=2, prefetch_factor=3, collate=numbers_of)

    first = next(iter(loader))
    rest = epoch_of(loader)
    loader.close()

    assert [*first, *(n for batch in rest for n in batch)] == loader.order.span(0, 0, 30).tolist()


def test_state_is_a_few_integers_of_json(dataset: Dataset) -> None:
    """It does not grow with the position or the dataset."""
    loader = Loader(dataset, batch_size=4, tail="drop", seed=9)
    next(iter(loader))

    state = loader.state_dict()

    assert json.loads(json.dumps(state)) == state
    assert state == {
        "format": 1,
        "order_format": 1,
        "digest": dataset.digest,
        "num_samples": COUNT,
        "seed": 9,
        "epoch": 0,
        "samples": 4,
    }


def test_the_state_of_other_data_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    """Both digests are named."""
    write_dataset(tmp_path / "other", text_samples(COUNT, prefix="o"))
    other = Loader(open_dataset(tmp_path / "other"), batch_size=4, tail="drop")

    with pytest.raises(Refused, match=f"data {other.dataset.digest}, this loader has {dataset.digest}"):
        Loader(dataset, batch_size=4, tail="drop").load_state_dict(other.state_dict())


def test_the_state_of_another_seed_is_refused(dataset: Dataset) -> None:
    """Continuing under another seed would repeat some samples and miss others."""
    state = Loader(dataset, batch_size=4, tail="drop", seed=1).state_dict()

    with pytest.raises(Refused, match="seed 1, this loader has 2"):
        Loader(dataset, batch_size=4, tail="drop", seed=2).load_state_dict(state)


def test_what_is_no_state_is_refused(dataset: Dataset) -> None:
    """A state with missing fields, or a position beyond the epoch, is an input error."""
    loader = Loader(dataset, batch_size=4, tail="drop")

    with pytest.raises(InputError, match="not a loader's state"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(InputError, match="beyond"):
        loader.load_state_dict({**loader.state_dict(), "samples": COUNT + 1})
    with pytest.raises(InputError, match="not a cursor"):
        loader.load_state_dict({**loader.state_dict(), "epoch": -1})


def test_moving_a_loader_ends_the_loop_that_is_under_way(dataset: Dataset) -> None:
    """A loop over a loader that was moved stops with an error: it would deliver from the old place."""
    loader = Loader(dataset, batch_size=4, tail="drop")
    loop = iter(loader)
    next(loop)

    loader.seek(Cursor(3))

    with pytest.raises(UsageError, match="moved"):
        next(loop)
    assert loader.cursor == Cursor(3)


def test_what_an_epoch_leaves_out_is_said_unless_it_was_chosen(dataset: Dataset) -> None:
    """One warning for all ranks, where the loop is written; none where nothing is left out, or a name was given."""
    with pytest.warns(UserWarning, match=r"^each epoch leaves out 7 samples of 31, .* batch of 8\. .*'exact'$") as told:
        ranks = [Loader(dataset, batch_size=4, rank=rank, world_size=2) for rank in range(2)]

    assert [record.filename for record in told] == [__file__]
    assert {loader.geometry.dropped() for loader in ranks} == {7}
    for options in ({"batch_size": 31}, {"batch_size": 4, "tail": "drop"}, {"batch_size": 4, "tail": "exact"}):
        Loader(dataset, **options)  # a warning would be an error


def test_a_dataset_smaller_than_a_batch_is_refused_under_drop(dataset: Dataset) -> None:
    """An epoch without any step would loop for ever; the hint names the tail policies that work."""
    with pytest.raises(InputError, match=r"^31 samples do not fill one batch of 40.*pad or exact"):
        Loader(dataset, batch_size=40)
    with pytest.raises(InputError, match=r"^1 sample does not fill one batch of 2"):
        Geometry(1, 2).normal(Cursor())

    assert len(epoch_of(Loader(dataset, batch_size=40, tail="pad", collate=numbers_of))[0]) == 40


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 1, "rank": 1},
        {"batch_size": 1, "num_workers": -1},
        {"batch_size": 1, "prefetch_factor": 0},
        {"batch_size": 1, "tail": "maybe"},
        {"batch_size": 1, "world_size": 0},
    ],
)
def test_numbers_out_of_range_are_refused(dataset: Dataset, options: dict[str, Any]) -> None:
    """No option is corrected in silence."""
    with pytest.raises(UsageError):
        Loader(dataset, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_collate_the_bytes_arrive(dataset: Dataset, workers: int) -> None:
    """The default batch holds keys, numbers and every part's bytes, from workers too."""
    loader: Loader[Batch] = Loader(dataset, batch_size=5, tail="drop", num_workers=workers)

    batch = next(iter(loader))
    loader.close()

    items = [dataset[number] for number in batch.numbers.tolist()]
    assert batch.keys == tuple(item.key for item in items)
    assert [bytes(data) for data in batch.parts["json"]] == [bytes(item.parts["json"]) for item in items]
    assert [bytes(data) for data in batch.parts["txt"]] == [bytes(item.parts.get("txt", b"")) for item in items]


@given(pieces=st.lists(st.binary(max_size=9), max_size=9))
def test_ragged_gives_back_what_it_was_given(pieces: list[bytes]) -> None:
    """Also for empty strings and for none at all."""
    ragged = Ragged.of(pieces)

    assert [bytes(piece) for piece in ragged] == pieces


def worker_identity(items: list[Item]) -> int:
    return os.getpid()


def test_workers_ignore_the_signals_of_a_preemption(dataset: Dataset) -> None:
    """SIGTERM, SIGHUP and SIGINT from outside change nothing: the trainer saves first, then ends them."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)
    worker = next(batches)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        subprocess.run(["kill", f"-{number:d}", str(worker)], check=True)
    rest = list(batches)
    loader.close()

    assert set(rest) == {worker}
    assert len(rest) == COUNT // 2 - 1


BUSY_CHILDREN = """
import os, signal, sys, threading, time, datakit
os.register_at_fork(after_in_child=lambda: threading.Thread(target=time.sleep, args=(99,), daemon=True).start())
data = datakit.open_dataset(sys.argv[1])
batches = iter(datakit.Loader(data, batch_size=2, tail="drop", num_workers=1, collate=lambda items: os.getpid()))
os.system(f"kill {next(batches)}")
print(len(list(batches)))
"""


def test_workers_ignore_sigterm_with_threads_that_a_library_starts_in_them(dataset: Dataset) -> None:
    """Some start theirs anew right after a fork, before a worker can say anything: a signal may come to any thread."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY_CHILDREN, str(dataset.path)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, f"{COUNT // 2 - 1}\n"), done.stderr


def test_workers_end_at_the_sigterm_of_their_own_trainer(dataset: Dataset) -> None:
    """It is what torch and multiprocessing send when nothing else is heard, and then they wait for the end."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)
    worker = psutil.Process(next(batches))

    worker.terminate()

    assert worker.wait(timeout=60) in (0, None)  # None where the DataLoader has waited for it already
    loader.close()


def test_a_loader_that_nobody_holds_takes_its_workers_along(dataset: Dataset) -> None:
    """At once, without the collector: no cycle leads from the loader to itself."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity)
    gc.disable()
    try:
        worker = next(iter(loader))
        del loader
        still_there = psutil.pid_exists(worker)
    finally:
        gc.enable()

    assert not still_there


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_one_clear_error_not_a_hang(dataset: Dataset, workers: int) -> None:
    """The loop that reads ends with it, nothing else does, and the loader is closed at once."""
    before = multiprocessing.active_children()
    loader = Loader(dataset, batch_size=1, num_workers=workers, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)

    os.kill(next(batches), signal.SIGKILL)

    with pytest.raises(DatakitError, match=r"a loader worker was killed \(signal 9\)") as caught:
        list(batches)
    loader.close()
    assert caught.value.hint is not None
    assert "fewer workers" in caught.value.hint
    assert set(multiprocessing.active_children()) <= set(before)


def test_a_worker_that_met_a_cut_file_is_not_promised_to_go_on(dataset: Dataset) -> None:
    """SIGBUS tells of data or shared memory that is not as it was: the same command ends in the same way."""
    loader = Loader(dataset, batch_size=1, num_workers=1, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)

    os.kill(next(batches), signal.SIGBUS)

    with pytest.raises(DatakitError, match=rf"a loader worker was killed \(signal {int(signal.SIGBUS)}\)") as caught:
        list(batches)
    loader.close()
    assert "continues" not in str(caught.value.hint)
    assert "datakit sync --repair SRC DATASET" in str(caught.value.hint)


def test_a_worker_that_dies_while_nobody_waits_for_it_disturbs_nothing(dataset: Dataset) -> None:
    """No exception comes out of the blue: the program is told when it asks for the batch."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)
    worker = next(batches)

    os.kill(worker, signal.SIGKILL)
    while psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)

    with pytest.raises(DatakitError, match="signal 9"):
        list(batches)
    loader.close()


def test_a_worker_whose_end_somebody_else_was_told_is_an_error_too(dataset: Dataset) -> None:
    """A program that waits for any child takes the news away; the loop still ends."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity)
    batches = iter(loader)
    worker = next(batches)

    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)

    with pytest.raises(DatakitError, match="a loader worker is gone"):
        list(batches)
    loader.close()


class Exit:
    """A collate that ends its process."""

    def __call__(self, items: list[Item]) -> int:
        os._exit(3)


def test_a_worker_that_ends_by_itself_is_named_by_its_code(dataset: Dataset) -> None:
    """A library that calls exit, an import that crashes."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, collate=Exit())

    with pytest.raises(DatakitError, match=r"ended by itself \(exit code 3\)"):
        list(loader)
    loader.close()


class GiveUp(Exception):
    """What a caller ends the waiting with."""


def give_up() -> None:
    raise GiveUp


def test_a_wait_for_a_stopped_worker_can_be_given_up(dataset: Dataset) -> None:
    """A hanging file system: what `on_wait` raises ends the loop, nothing is consumed, and the worker is ended."""
    loader = Loader(
        dataset, batch_size=2, tail="drop", num_workers=1, prefetch_factor=1, collate=worker_identity, on_wait=give_up
    )
    before = multiprocessing.active_children()
    batches = iter(loader)
    halt(next(batches))

    with pytest.raises(GiveUp):
        list(batches)
    consumed = loader.cursor.samples
    loader.close()

    assert consumed <= 6  # what was ready before it was stopped
    assert set(multiprocessing.active_children()) <= set(before)


def test_sigterm_is_heard_while_a_later_epoch_begins(dataset: Dataset) -> None:
    """The next epoch waits for an answer of each worker before its first batch: a preemption notice comes meanwhile."""
    blocked: list[bool] = []

    def look() -> None:
        blocked.append(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        raise GiveUp

    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, collate=worker_identity, on_wait=look)
    worker, *_ = loader
    halt(worker)

    with pytest.raises(GiveUp):
        list(loader)
    loader.close()

    assert blocked == [False]


class Stopping:
    """Stops the worker that made it while the trainer takes it over."""

    def __reduce__(self) -> Any:
        return halt, (os.getpid(),)


def stopping_then_tensor(items: list[Item]) -> list[Any]:
    return [Stopping(), torch.zeros(len(items))]


def test_a_wait_for_the_rest_of_a_batch_can_be_given_up(dataset: Dataset) -> None:
    """Half a batch has come when its worker stops: torch asks that worker for each tensor, and waits for its answer."""
    loader = Loader(dataset, batch_size=2, tail="drop", num_workers=1, collate=stopping_then_tensor, on_wait=give_up)
    before = multiprocessing.active_children()

    with pytest.raises(GiveUp):
        list(loader)
    loader.close()

    assert loader.cursor.samples == 0
    assert set(multiprocessing.active_children()) <= set(before)


class Pinned(torch.Tensor):
    """A tensor whose page-locking is seen without a GPU."""

    pinned = False

    def pin_memory(self, device: Any = None) -> Pinned:  # type: ignore[override]
        copy = self.clone().as_subclass(Pinned)
        copy.pinned = True
        return copy


def test_torch_pins_our_batches(dataset: Dataset) -> None:
    """Oracle: the function that its DataLoader calls on each batch; it passes over classes without `pin_memory`."""
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = as_bytes([dataset[0], dataset[1]])
    parts = {name: Ragged(*(t.as_subclass(Pinned) for t in (r.data, r.ends))) for name, r in batch.parts.items()}
    ours = Batch(batch.keys, batch.numbers.as_subclass(Pinned), parts)

    pinned = pin_memory(ours)

    tensors = [pinned.numbers, *(tensor for part in pinned.parts.values() for tensor in (part.data, part.ends))]
    assert all(tensor.pinned for tensor in tensors)
    assert pinned.keys == batch.keys
    assert bytes(pinned.parts["json"][1]) == bytes(dataset[1].parts["json"])


LEAVING = """
import sys, datakit
data = datakit.open_dataset(sys.argv[1])
left, held, closed, failed, ring = (datakit.Loader(data, batch_size=4, tail="drop", num_workers=1) for _ in range(5))
for batch in left:
    break
batches = iter(held)
next(batches)
others = iter(closed)
next(others)
closed.close()
try:
    for batch in failed:
        raise ValueError
except ValueError as error:
    kept = error
ring.ring, rest = ring, iter(ring)
next(rest)
print([loader.state_dict()["samples"] for loader in (left, held, closed, failed, ring)])
del ring, rest
"""


def test_a_program_that_leaves_an_epoch_half_way_ends(tmp_path: Path) -> None:
    """Whoever holds the loop or the loader, and in whatever cycle: the workers end with the program."""
    write_dataset(tmp_path / "data", text_samples(COUNT), per_shard=6)

    done = subprocess.run(
        [sys.executable, "-c", LEAVING, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "[4, 4, 4, 4, 4]\n"), done.stderr


@pytest.mark.parametrize("workers", [0, 1])
def test_closing_a_loader_ends_the_loop_that_is_under_way(dataset: Dataset, workers: int) -> None:
    """Its workers are gone; a new loop goes on where the old one was."""
    loader = Loader(dataset, batch_size=4, tail="drop", num_workers=workers, collate=numbers_of)
    loop = iter(loader)
    first = next(loop)

    loader.close()

    with pytest.raises(UsageError, match="closed"):
        next(loop)
    assert next(iter(loader)) == loader.order.span(0, 4, 8).tolist()
    assert first == loader.order.span(0, 0, 4).tolist()
    loader.close()
