"""crew: tasks done on threads, as many at a time as there are workers, until one fails.

The threads are daemons: what a stalled request holds up does not hold up the end of the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

STOP_WAIT_S = 3.0
"""How long interrupted work waits for requests under way; what they bring later goes nowhere visible.

A part of 16 MiB comes in that time at 45 Mbit/s; Kubernetes kills 30 s after its SIGTERM, and write-back wants 20.
"""

Task = Callable[[], int]
"""Does something, and gives the number of bytes that are done with it."""

OnBytes = Callable[[int], None]


def drive(
    tasks: Iterable[Task],
    *,
    workers: int,
    on_bytes: OnBytes,
    on_stop: Callable[[], None] = lambda: None,
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Do tasks on threads; progress and the first error come out in this thread.

    Args:
        tasks: What to do; asked for the next one by one worker at a time, when that worker is free.
        workers: Threads.
        on_bytes: Hears, in this thread, what each task gives back.
        on_stop: Called when an error or Ctrl-C ends the work, so that tasks under way may hear of it.
        on_idle: Called when no worker is left, which after Ctrl-C may be never: what they hold open stays open then.

    Raises:
        BaseException: The first that a task, or the iterator of tasks, has raised.
    """
    source = iter(tasks)
    guard = threading.Lock()
    said: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            while not stopped.is_set():
                with guard:
                    task = next(source, None)
                if task is None:
                    break
                said.put(task())
                del task  # what it holds is free before the next is made
        except BaseException as error:  # noqa: BLE001 -- it is raised again in the thread that asked
            said.put(error)
        finally:
            said.put(None)

    threads = [threading.Thread(target=work, name=f"datakit-transfer-{n}", daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    first: BaseException | None = None
    running = len(threads)
    try:
        while running:
            item = said.get()
            if item is None:
                running -= 1
            elif isinstance(item, int):
                on_bytes(item)
            elif first is None:
                first = item
                stopped.set()
                on_stop()
    except BaseException:
        stopped.set()
        on_stop()
        for thread in threads:
            thread.join(STOP_WAIT_S / len(threads))
        if not any(thread.is_alive() for thread in threads):
            on_idle()
        raise
    on_idle()
    if first is not None:
        raise first
