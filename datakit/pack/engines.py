"""engines: run pure tasks, one after the other here or side by side in processes of their own.

Results do not depend on the engine: a task is a function and a value, and what it returns comes back in the order of
the tasks. Processes are started by exec, never by fork (clients of object stores hang in a forked child) and never by
importing the caller's script, so that `datakit.pack` works in a script without a `__main__` guard. A worker that dies
is an error that says so. Workers end with their parent: on Linux the kernel kills them, so that none goes on writing
where the next start clears up (prctl(2), PR_SET_PDEATHSIG); elsewhere they see the pipe of their tasks close. Pickles
pass between a parent and the child it started and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from datakit.errors import DatakitError, UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")

_ROOT = str(Path(__file__).parents[2])
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "  # Ctrl-C is the parent's to handle
    "sys.path[:] = {path!r}; from datakit.pack.engines import serve; serve({rooms!r}, parent={parent})"
)


_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def at_once(workers: int) -> int:
    """Tasks on their way at once: some more than workers, so that a slow one does not leave the others without work.

    Not many more, because a task carries what it needs: of a shard of tiny lines some 35 MB.
    """
    return workers + max(1, workers // 2)


class Crew(Protocol):
    """Who runs tasks: an `Engine` here, or a cluster."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results of the tasks, in their order."""
        ...

    def cores_for(self, num_tasks: int) -> int:
        """Cores that each of so many tasks may keep busy: more than one where there are fewer tasks than workers."""
        ...


def check_workers(workers: int | None) -> None:
    """See that a number of processes can be.

    Raises:
        UsageError: It is not 1 or more; None, which leaves it to datakit, can be.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is {workers}", hint="It must be 1 or more", subject=workers)


class Engine:
    """Workers for tasks; use it as a context manager. With one worker, tasks run here and nothing is started.

    Args:
        workers: Processes; 1 runs tasks in this process.
        rooms: Modules that workers import while no task waits for them.
    """

    def __init__(self, workers: int, *, rooms: Sequence[str] = ()) -> None:
        self._workers = workers
        self._rooms = tuple(rooms)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if self._workers > 1:
            command = [
                sys.executable,
                "-c",
                _START.format(path=[_ROOT, *sys.path], rooms=self._rooms, parent=os.getpid()),
            ]
            for _ in range(self._workers):
                worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())
                self._all.append(worker)
                self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.terminate()
        for worker in self._all:
            for pipe in (worker.stdin, worker.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            worker.wait()

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results of the tasks, in their order; the first error ends it.

        Args:
            function: A function of a module, so that a worker finds it by name.
            tasks: Values that can be pickled; each is asked for shortly before its turn, and not kept.

        Raises:
            DatakitError: A worker died.
        """
        if not self._all:
            yield from map(function, tasks)
            return
        pool = ThreadPoolExecutor(len(self._all))
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(self._ask, function, [task]))
                del task
                if len(waiting) >= at_once(len(self._all)):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def cores_for(self, num_tasks: int) -> int:
        """Cores that each of so many tasks may keep busy."""
        return max(1, self._workers // max(1, num_tasks))

    def _ask(self, function: Callable[[Task], Result], only: list[Task]) -> Result:
        """Have a worker run a task, which is taken out of its list so that nobody holds it while it runs there."""
        worker = self._idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(pickle.dumps((function, only.pop()), protocol=5))
            worker.stdin.flush()
            done, value = pickle.load(worker.stdout)  # noqa: S301 -- our own child
        except (EOFError, OSError, pickle.UnpicklingError):
            worker.kill()  # it may live on behind an answer that cannot be read
            raise DatakitError(
                f"a worker process died (exit code {worker.wait()})",
                hint="The system may have run out of memory: try fewer --workers",
            ) from None
        finally:
            self._idle.put(worker)
        if done:
            return value  # type: ignore[no-any-return]  # what the function returned, through a pipe
        raise value


def _environment() -> dict[str, str]:
    """That of a worker, without the threads that numpy starts for matrices: 0.04 s of CPU (2 cores, 2026-12-01)."""
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ}


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # gone before the kernel was asked
        os._exit(1)


def serve(rooms: Sequence[str], *, parent: int) -> None:
    """Be a worker: take tasks from stdin until it closes, answer on stdout."""
    import importlib

    _die_with(parent)
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with answers
    waiting = deque(rooms)
    while True:
        # a task that waits comes first; it imports what it needs itself
        while waiting and not select.select([tasks], [], [], 0)[0]:
            importlib.import_module(waiting.popleft())
        try:
            function, task = pickle.load(tasks)  # noqa: S301 -- our own parent
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            answer = True, function(task)
        except Exception as error:  # noqa: BLE001 -- every error travels to the parent, which raises it
            answer = False, error
        try:
            data = pickle.dumps(answer, protocol=5)
        except Exception:  # noqa: BLE001 -- a foreign error that does not travel is told in words
            hint = "Please report it; --workers 1 keeps its traceback"
            told = DatakitError(f"{type(answer[1]).__name__}: {answer[1]}", hint=hint)
            data = pickle.dumps((False, told), protocol=5)
        answers.write(data)
        answers.flush()
