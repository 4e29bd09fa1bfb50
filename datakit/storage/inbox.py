"""inbox: what the write-back agent has been asked and has not done, in the order in which it is to be done.

Pulls come first, for a start waits for them, then the newest offer. One thread puts requests in, as they are read, and
another takes them. A request is what `storage/agent` says; it is looked at here only for what it is about.
"""

from __future__ import annotations

import threading
from typing import Any


class Inbox:
    """Requests in the order in which they are to be done: pulls first, then the newest offer."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._pulls: list[dict[str, Any]] = []
        self._offers: list[dict[str, Any]] = []
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether no more will come."""
        return self._ended

    def put(self, *requests: dict[str, Any]) -> None:
        """Add requests, the newest offer last, before any of them is taken.

        An offer of the same directory takes the older one's place.
        """
        with self._ready:
            for request in requests:
                if request["op"] != "publish":
                    self._pulls.append(request)
                else:
                    self._add(request)
            self._ready.notify()

    def _add(self, request: dict[str, Any]) -> None:
        older = [offer for offer in self._offers if offer["path"] == request["path"]]
        repair = any(offer["repair"] and offer["dest"] == request["dest"] for offer in older)
        self._offers = [offer for offer in self._offers if offer not in older]
        self._offers.append(request | {"repair": request["repair"] or repair})

    def put_back(self, offer: dict[str, Any]) -> None:
        """Take an offer in again, behind those that came meanwhile; one of the same copy stands for both."""
        with self._ready:
            for waiting in self._offers:
                if waiting["dest"] == offer["dest"]:
                    waiting["repair"] = waiting["repair"] or offer["repair"]
                    return
            self._offers.insert(0, offer)

    def end(self) -> None:
        """Say that no more will come."""
        with self._ready:
            self._ended = True
            self._ready.notify()

    def take(self, *, offers: bool) -> dict[str, Any] | None:
        """The next request; None when there is none and none will come, or none of those that may be taken.

        Args:
            offers: Whether offers may be taken too; otherwise this does not wait.
        """
        with self._ready:
            while True:
                if self._pulls:
                    return self._pulls.pop(0)
                if not offers or (self._ended and not self._offers):
                    return None
                if self._offers:
                    return self._offers.pop()
                self._ready.wait()

    @property
    def offers(self) -> tuple[dict[str, Any], ...]:
        """The commits that wait."""
        with self._ready:
            return tuple(self._offers)

    def wait(self, timeout_s: float) -> None:
        """Let time pass, less when a pull comes or the end does."""
        with self._ready:
            self._ready.wait_for(lambda: self._ended or self._pulls, timeout_s)

    def pause(self, timeout_s: float) -> None:
        """Let time pass, less when something new comes; all of it after the end."""
        with self._ready:
            self._ready.wait(timeout_s)
