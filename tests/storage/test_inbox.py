"""What `storage/inbox` promises: pulls first, the newest offer next, one offer a copy, and no word is slept through."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from datakit.storage.inbox import Inbox


def offer(path: str, **more: Any) -> dict[str, Any]:
    return {"op": "publish", "path": path, "dest": f"cold/{path}", "repair": False, **more}


def pull(source: str) -> dict[str, Any]:
    return {"op": "pull", "source": source}


def test_pulls_come_first_and_the_newest_offer_next() -> None:
    """A start waits for its pull; the latest checkpoint is worth most."""
    inbox = Inbox()
    for request in (offer("1"), offer("2"), pull("a"), offer("3"), pull("b")):
        inbox.put(request)
    inbox.end()

    taken = [inbox.take(offers=True) for _ in range(6)]

    assert taken == [pull("a"), pull("b"), offer("3"), offer("2"), offer("1"), None]


def test_a_commit_offered_again_is_done_once() -> None:
    """The later offer of the same commit takes the place of the earlier."""
    inbox = Inbox()
    for request in (offer("1", dest="x"), offer("2"), offer("1", dest="y")):
        inbox.put(request)
    inbox.end()

    taken = [inbox.take(offers=True) for _ in range(3)]

    assert taken == [offer("1", dest="y"), offer("2"), None]


def test_what_failed_is_put_back_behind_what_came_meanwhile() -> None:
    """A commit that could not go up does not hold up a newer one."""
    inbox = Inbox()
    inbox.put(offer("new"))
    for request in (offer("old"), offer("older"), offer("new", stale=True)):
        inbox.put_back(request)
    inbox.end()

    taken = [inbox.take(offers=True) for _ in range(4)]

    assert taken == [offer("new"), offer("old"), offer("older"), None]


def test_offers_wait_for_the_lock_and_pulls_do_not() -> None:
    """An agent that may not publish yet still answers a start."""
    inbox = Inbox()
    inbox.put(offer("1"))
    inbox.put(pull("a"))

    taken = [inbox.take(offers=False), inbox.take(offers=False)]

    assert taken == [pull("a"), None]
    assert inbox.offers == (offer("1"),)


def test_waiting_ends_when_something_comes() -> None:
    """Taking wakes up for an offer and for the end."""
    inbox = Inbox()
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.extend([inbox.take(offers=True), inbox.take(offers=True)]))
    thread.start()

    inbox.put(offer("1"))
    inbox.end()
    thread.join(timeout=30)

    assert taken == [offer("1"), None]


@pytest.mark.parametrize("first", [True, False], ids=["the one that waits", "the one that failed"])
def test_of_two_offers_of_one_copy_the_later_stands_for_both(first: bool) -> None:
    """Also for what either knew of damage; it is taken once."""
    inbox = Inbox()
    inbox.put(offer("1", repair=first))
    inbox.put_back(offer("1", repair=not first))
    inbox.put(offer("1"))
    inbox.end()

    taken = [inbox.take(offers=True) for _ in range(2)]

    assert taken == [offer("1", repair=True), None]


def test_a_directory_that_was_offered_to_two_places_keeps_both() -> None:
    """What came back is not the other's: each has its own copy."""
    inbox = Inbox()
    inbox.put(offer("1", dest="y"))
    inbox.put_back(offer("1", dest="x", repair=True))
    inbox.end()

    taken = [inbox.take(offers=True) for _ in range(3)]

    assert taken == [offer("1", dest="y"), offer("1", dest="x", repair=True), None]


class Slow(threading.Condition):
    """A condition before which something happens, as late as it can."""

    def __init__(self, inbox: Inbox, request: dict[str, Any] | None) -> None:
        super().__init__()
        self._inbox = inbox
        self._request = request

    def __enter__(self) -> bool:
        if (inbox := self.__dict__.pop("_inbox", None)) is not None:
            inbox.end() if self._request is None else inbox.put(self._request)
        return super().__enter__()

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("what had been said already was waited for")


@pytest.mark.parametrize("request_", [None, pull("a")], ids=["the end", "a pull"])
def test_what_is_said_just_before_a_rest_ends_it(request_: dict[str, Any] | None) -> None:
    """The end and a pull are looked for while nobody can say them: no wake-up is lost."""
    inbox = Inbox()
    inbox._ready = Slow(inbox, request_)

    inbox.wait(20.0)

    assert inbox.ended == (request_ is None)
