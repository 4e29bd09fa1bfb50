"""What `storage/crew` promises: tasks on threads, until one fails, and the first error comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from datakit.storage.crew import Task, drive


def test_every_task_is_done_and_told() -> None:
    """By however many workers; what each gives back is heard in the thread that asked."""
    told: list[tuple[int, str]] = []

    tasks = (lambda number=number: number for number in range(50))
    drive(tasks, workers=4, on_bytes=lambda count: told.append((count, threading.current_thread().name)))

    assert sorted(count for count, _ in told) == list(range(50))
    assert {name for _, name in told} == {threading.current_thread().name}


def test_no_task_is_asked_for_before_a_worker_is_free() -> None:
    """What a task holds, such as its bytes, is held once a worker at the most."""
    under_way, most = 0, 0
    guard = threading.Lock()

    def tasks() -> Iterator[Task]:
        nonlocal under_way, most
        for _ in range(40):
            with guard:
                under_way += 1
                most = max(most, under_way)
            yield done

    def done() -> int:
        nonlocal under_way
        with guard:
            under_way -= 1
        return 0

    drive(tasks(), workers=3, on_bytes=lambda _: None)

    assert most <= 3


def test_what_a_task_holds_is_free_before_the_next_is_made() -> None:
    """A part of 16 MiB that was sent does not lie beside the next that is read."""
    alive, most = 0, 0

    class Held:
        def __init__(self) -> None:
            nonlocal alive, most
            most = max(most, alive)
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

        def done(self) -> int:
            return 0

    drive((Held().done for _ in range(20)), workers=1, on_bytes=lambda _: None)

    assert most == 0


@pytest.mark.parametrize("where", ["task", "tasks"])
def test_the_first_error_ends_the_work(where: str) -> None:
    """Of a task, or of what gives them: the others are told to stop, none begins any more, and the error comes out."""
    stops: list[None] = []
    done: list[int] = []

    def fail() -> int:
        raise ValueError("no")

    def tasks() -> Iterator[Task]:
        yield fail if where == "task" else (lambda: 0)
        if where == "tasks":
            fail()
        for number in range(1000):
            yield lambda number=number: done.append(number) or 0

    with pytest.raises(ValueError, match="no"):
        drive(tasks(), workers=1, on_bytes=lambda _: None, on_stop=lambda: stops.append(None))

    assert len(stops) == 1
    assert len(done) < 1000
