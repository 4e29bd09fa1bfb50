"""limits: how many requests, how much money and how many bytes a second work with stores may take.

A limit is looked at before each request, with the body that it sends or asks for, tries that failed included, so it
holds whatever happens: work that would pass one ends with LimitExceeded before the request is sent. Rates are kept by
waiting, also before the request, so that no connection is held open meanwhile. One `Gate` stands before all stores of
one piece of work.

What takes back what was made (a wrong object, an upload that nobody can continue) is counted and always goes through,
by `regardless`: a limit that is reached never leaves wrong bytes, or parts that are billed for ever.

What it does not do: know prices by itself; whoever opens a store gives the price of its requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from datakit.errors import Interrupted, LimitExceeded, UsageError
from datakit.plan.storage import StorePrice

PUTS = ("put", "list")
GETS = ("get", "head")
"""Classes of requests that a store bills alike. Deletes are free with those who say so, and are counted as neither."""

BURST_S = 0.1
"""What a rate may run ahead: a tenth of a second of it, so that small objects do not wait at all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a piece of work may take at most; None is no limit.

    Attributes:
        max_requests: Requests, retries included.
        max_cost: Money for requests and traffic, in the currency of the store's price.
        requests_per_s: Requests a second.
        bytes_per_s: Bytes of bodies a second, both ways together.
    """

    max_requests: int | None = None
    max_cost: float | None = None
    requests_per_s: float | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_cost"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} {value:g} is not 0 or more", hint="Write 0 or more", subject=flag)
        for name in ("requests_per_s", "bytes_per_s"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"{name} {value:g} lets nothing through", hint="Write more than 0", subject=name)


def cost(made: Mapping[str, int], price: StorePrice) -> float | None:
    """What requests and the bytes that come in by them cost; None where a figure that this needs is not known.

    Args:
        made: Requests by class, and `bytes_in`, as `counts.Meter.add` takes them.
        price: In its currency.
    """
    gets, puts = (sum(made.get(name, 0) for name in names) for names in (GETS, PUTS))
    return price.cost(gets=gets, puts=puts, egress_bytes=made.get("bytes_in", 0))


_regardless = ContextVar("_regardless", default=False)


@contextlib.contextmanager
def regardless() -> Iterator[None]:
    """Within, what this thread asks for is counted, and neither refused nor made to wait.

    For requests that take back what was made, and for what is known only once it has been made.
    """
    token = _regardless.set(True)
    try:
        yield
    finally:
        _regardless.reset(token)


class Gate:
    """Lets requests and bytes through as far as the limits allow; every method may be called from any thread.

    Args:
        limits: The limits.
        clock: Seconds that only grow.
        wait: Waits so many seconds, or less once the work has ended.

    Attributes:
        stopped: Set when the work has ended: nobody waits any longer. A `retry.Pace` may share it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self.stopped = threading.Event()
        self._wait = wait or self.stopped.wait
        self._guard = threading.Lock()
        self._requests = 0
        self._cost = 0.0
        self._next_request = 0.0
        self._next_byte = 0.0

    def begin(self) -> None:
        """Work begins, perhaps once more after it had ended: who comes now waits again."""
        self.stopped.clear()

    def expect(self, requests: int, cost: float) -> None:
        """See, before work begins, that what is left lets it end.

        Args:
            requests: Requests that it will make.
            cost: What it will cost, in the currency of the store's price.

        Raises:
            LimitExceeded: It does not.
        """
        most, money = self._limits.max_requests, self._limits.max_cost
        with self._guard:
            requests, cost = requests + self._requests, cost + self._cost
        if most is not None and requests > most:
            message = f"it would take {requests} requests, more than --max-requests {most}"
            raise LimitExceeded(message, hint="Look at the plan: the same with --dry-run and without the limit")
        if money is not None and cost > money:
            message = f"it would cost {cost:.4g}, more than --max-cost {money:g}"
            raise LimitExceeded(message, hint="Look at the plan: the same with --dry-run and without the limit")

    def let_through(self, more: Mapping[str, int], price: StorePrice | None) -> None:
        """Wait until these requests or bytes may go, and count them.

        Args:
            more: Requests by class, and `bytes_in` and `bytes_out`, as `counts.Meter.add` takes them; numbers below 0
                give back what was counted and did not come.
            price: What they cost, where that is known.

        Raises:
            LimitExceeded: They may not; they are not counted.
            Interrupted: The work has ended while they waited; they are not counted.
        """
        requests = sum(more.get(name, 0) for name in (*GETS, *PUTS, "delete"))
        spent = (cost(more, price) if price is not None else None) or 0.0
        waits = not _regardless.get()
        with self._guard:
            if waits:
                self._refuse(requests, spent, price)
            self._requests += requests
            self._cost += spent
            wait_s = max(self._turn(requests), self._flow(more.get("bytes_in", 0) + more.get("bytes_out", 0)))
        if wait_s > 0 and waits:
            self._wait(wait_s)
            if self.stopped.is_set():
                with self._guard:
                    self._requests -= requests
                    self._cost -= spent
                raise Interrupted("the transfer was stopped", hint="Run the same command again: it continues")

    def _refuse(self, requests: int, cost: float, price: StorePrice | None) -> None:
        most, money = self._limits.max_requests, self._limits.max_cost
        again = "Run the same command again with a higher limit: it continues"
        if most is not None and requests and self._requests + requests > most:
            raise LimitExceeded(f"{most} requests are made, as many as --max-requests allows", hint=again)
        if money is not None and cost > 0 and self._cost + cost > money:
            currency = price.currency if price is not None else ""
            message = f"the next request would pass --max-cost {money:g} {currency} ({self._cost:.4f} are spent)"
            raise LimitExceeded(message, hint=again)

    def _turn(self, requests: int) -> float:
        """Seconds until so many requests may go."""
        rate = self._limits.requests_per_s
        if rate is None or not requests:
            return 0.0
        now = self._clock()
        begins = max(self._next_request, now - 1 / rate)
        self._next_request = begins + requests / rate
        return begins - now

    def _flow(self, num_bytes: int) -> float:
        """Seconds until so many bytes may have gone; below 0 they give their time back."""
        rate = self._limits.bytes_per_s
        if rate is None or not num_bytes:
            return 0.0
        if num_bytes < 0:
            self._next_byte += num_bytes / rate
            return 0.0
        now = self._clock()
        self._next_byte = max(self._next_byte, now - BURST_S) + num_bytes / rate
        return self._next_byte - now
