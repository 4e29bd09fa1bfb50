"""What `storage/counts` promises: sums by class, from many threads, said in the words of the price lists."""

from __future__ import annotations

import dataclasses
import threading

from hypothesis import given
from hypothesis import strategies as st

from datakit.storage.counts import Meter, RequestCounts

numbers = st.integers(0, 10**12)
counts = st.builds(RequestCounts, numbers, numbers, numbers, numbers, numbers, numbers, numbers)


@given(counts, counts)
def test_subtraction_undoes_addition(one: RequestCounts, other: RequestCounts) -> None:
    """What a command cost is the difference of two readings."""
    assert one + other - other == one


CLASSES = [field.name for field in dataclasses.fields(RequestCounts) if not field.name.startswith("bytes_")]


@given(counts, st.sampled_from(CLASSES))
def test_a_request_of_any_class_adds_one_to_the_total(one: RequestCounts, name: str) -> None:
    """Whatever was counted before; a class that is added later counts too."""
    assert (one + RequestCounts(**{name: 1})).total == one.total + 1


@given(counts, numbers, numbers)
def test_the_total_counts_no_bytes(one: RequestCounts, came: int, went: int) -> None:
    """Bytes are priced apart."""
    assert (one + RequestCounts(bytes_in=came, bytes_out=went)).total == one.total
    assert RequestCounts(bytes_in=came, bytes_out=went).total == 0


def test_the_words_name_only_what_was_made() -> None:
    """Classes with nothing in them are left out; nothing at all is `none`."""
    assert str(RequestCounts(get=3, list=1, bytes_in=99)) == "3 GET, 1 LIST"
    assert str(RequestCounts(bytes_in=99)) == "none"


def test_a_meter_loses_nothing_between_threads() -> None:
    """Eight threads that count a thousand each come to eight thousand."""
    meter = Meter()

    def count() -> None:
        for _ in range(1000):
            meter.add(get=1, bytes_in=2)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert meter.counts == RequestCounts(get=8000, bytes_in=16000)
