"""workers: the processes that read and collate for a loader, by torch's DataLoader.

Promises: they ignore SIGHUP and SIGINT, and SIGTERM from anybody but the process that started them, because the trainer
decides when they end; they end when nobody holds them any more; one that is killed is one
error, in the loop that reads and nowhere else, and never a wait without end; closing ends them all, also those that are
stopped. torch itself raises out of a signal handler, wherever the program happens to be: it is told not to watch.

Uses the DataLoader's own iterator beyond its public face, which has no way to end its workers or to ask them twice:
`_try_get_data`, `_data_queue`, `_worker_result_queue`, `_shutdown_workers`, `_worker_pids_set`, as torch 2.13 has them,
which requirements.lock pins and the tests run.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from datakit.errors import DatakitError, MissingExtra

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError:
    raise MissingExtra("torch", extra="train") from None

T = TypeVar("T")

POLL_S = 1.0
"""How long is waited for a batch before `on_wait` is asked again; a person who stops a run does not notice it."""

_DEATH_S = 1.0
"""A worker's end is seen on its pipe a moment before the system reports it."""


_HINTS = {
    -signal.SIGKILL: "The system kills what takes too much memory: try fewer workers (train.num_workers). "
    "The same command continues",
    # a mapped file that ends before its map does, or shared memory that has no room for a batch: mmap(2), shm_open(3)
    -signal.SIGBUS: "A file of the dataset was cut while it was read, or shared memory is full. Look at both: datakit "
    "verify DATASET, which datakit sync --repair SRC DATASET mends, and df /dev/shm",
}
"""What to do about a worker that ended so; nothing about its data is promised that is not known."""


class Workers(Generic[T]):
    """Processes that each hold `fetch`.

    Args:
        fetch: A map-style dataset: makes a batch of an array of sample numbers.
        plan: Gives these arrays, anew for each epoch.
        num_workers: How many processes.
        prefetch_factor: Batches that each prepares ahead.
        pin_memory: Put batches into page-locked memory.
        on_wait: Called about once a second while a batch is not there; what it raises ends the waiting.
    """

    def __init__(
        self,
        fetch: Any,
        *,
        plan: Any,
        num_workers: int,
        prefetch_factor: int,
        pin_memory: bool,
        on_wait: Callable[[], None],
    ) -> None:
        self._on_wait = on_wait
        self._spoiled = False
        self._loader: Any = DataLoader(
            fetch,
            sampler=plan,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=_begin,
            persistent_workers=True,
            pin_memory=pin_memory,
        )

    def batches(self) -> Iterator[T]:
        """The batches of the plan, in its order.

        Raises:
            DatakitError: A worker was killed, or ended by itself.
        """
        try:
            # the workers are born with it, in the first epoch: see `_begin`; later ones wait here for their answers
            with _sigterm_blocked() if self._loader._iterator is None else nullcontext():
                running = iter(self._loader)
            _take_over(running, self._on_wait)
            yield from running
        except BaseException:
            self._spoiled = True
            raise

    def close(self) -> None:
        """End the processes: politely where all is well, at once after an error or a loop that was left."""
        running = self._loader._iterator
        if running is None:
            return
        if self._spoiled:
            _abandon(running)
        else:
            running._shutdown_workers()
        for worker in running._workers:
            if worker.is_alive():  # stopped: it does not hear SIGTERM, which is all that torch sends
                worker.kill()
                worker.join(POLL_S)


class _Inbox:
    """What the workers have made, taken in by a thread of its own.

    To take over a tensor is to ask its worker for a file descriptor, and a pipe may hold half a batch: from a worker
    that is stopped neither ever comes, and the trainer has to hear its signals all the same.

    Args:
        source: The queue that the workers fill.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._take_in, name="datakit-inbox", daemon=True)
        self._thread.start()

    def get(self, timeout: float) -> Any:
        """The next thing.

        Raises:
            queue.Empty: Nothing came within `timeout` seconds.
            Exception: What taking it in raised.
        """
        made = self._made.get(timeout=timeout)
        if isinstance(made, Exception):
            raise made
        return made

    def leave(self) -> None:
        """Take in no more; the thread ends within a moment."""
        self._left.set()

    def close(self) -> None:
        """Close the queue, of workers that have ended."""
        self.leave()
        self._source._writer.close()  # so that a wait for the rest of a message ends
        self._thread.join(2 * POLL_S)

    def _take_in(self) -> None:
        while not self._left.is_set():
            try:
                made = self._source.get(timeout=POLL_S)
            except queue.Empty:
                continue
            except Exception as error:  # noqa: BLE001 -- raised again by `get`, in the loop that waits
                made = error
            self._made.put(made)
            if isinstance(made, Exception):
                return


def _take_over(running: Any, on_wait: Callable[[], None]) -> None:
    """Wait in our own way, and keep torch from raising out of its SIGCHLD handler."""
    if running._worker_pids_set:
        watch: Any = torch.utils.data._utils.signal_handling
        watch._remove_worker_pids(id(running))
        running._worker_pids_set = False
        if not running._pin_memory:  # else torch has such a thread itself
            inbox = _Inbox(running._data_queue)
            running._data_queue = inbox
            weakref.finalize(running, inbox.leave)
        running._get_data = partial(_get, weakref.ref(running), on_wait)  # no cycle: see `loader._Plan`


def _get(iterator: weakref.ref[Any], on_wait: Callable[[], None]) -> Any:
    """The next thing that a worker has made."""
    running: Any = iterator()
    while True:
        try:
            there, data = running._try_get_data(POLL_S)
        except (RuntimeError, OSError, EOFError):
            _check_alive(running, patience_s=_DEATH_S)
            raise
        if there:
            return data
        _check_alive(running, patience_s=0.0)
        on_wait()


def _check_alive(running: Any, *, patience_s: float) -> None:
    sentinels = {worker.sentinel: worker for worker in running._workers}
    ended = wait(list(sentinels), patience_s)
    if ended:
        worker = sentinels[ended[0]]
        worker.join(_DEATH_S)
        code = worker.exitcode
        how = "is gone"  # somebody else has waited for it: the system tells its end once
        if code is not None:
            how = f"was killed (signal {-code})" if code < 0 else f"ended by itself (exit code {code})"
        hint = _HINTS.get(code or 0, "The same command continues")
        raise DatakitError(f"a loader worker {how} while the next batch was waited for", hint=hint) from None


def _abandon(running: Any) -> None:
    """Kill the workers; one that was killed before may hold a lock that an orderly end would wait for."""
    running._shutdown = True
    for worker in running._workers:
        worker.kill()
    running._worker_result_queue.cancel_join_thread()
    if hasattr(running, "_pin_memory_thread"):
        running._pin_memory_thread_done_event.set()
        running._pin_memory_thread.join(2 * torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL)
        running._worker_result_queue.close()
    elif isinstance(running._data_queue, _Inbox):
        running._data_queue.close()
    for indexes in running._index_queues:
        indexes.cancel_join_thread()
        indexes.close()
    for worker in running._workers:
        worker.join(POLL_S)


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """What is forked meanwhile never hears SIGTERM, nor do threads that libraries start in it before `_begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(worker: int) -> None:  # noqa: ARG001 -- torch passes the worker's number
    # a preempted machine signals every process: workers that die first would take the trainer's last save with them
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # SIGTERM is also how torch and multiprocessing end workers that do not hear, at the latest at exit, and then they
    # wait for them: the kernel says who sent it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    trainer = multiprocessing.parent_process()  # not getppid: under `forkserver` that is another process
    assert trainer is not None, "a worker has a parent"
    threading.Thread(target=_end_with, args=(trainer.pid,), name="datakit-worker-end", daemon=True).start()
    torch.set_num_threads(1)


def _end_with(trainer: int | None) -> None:
    """End this process at a SIGTERM from the trainer; take in those of others and do nothing."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)


def _as_it_is(batch: T) -> T:
    return batch
