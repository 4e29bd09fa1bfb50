"""source/troubles: offenders as a sentence."""

from __future__ import annotations

from datakit.source.troubles import Trouble, listing, refusal


def test_one_offender_is_the_message() -> None:
    """With its own hint."""
    error = refusal([Trouble("x.jsonl:3", "not JSON", hint="Mend that line")])

    assert str(error) == "x.jsonl:3: not JSON. Mend that line"
    assert error.subject == "x.jsonl:3"


def test_many_offenders_are_three_and_a_number() -> None:
    """The two hints that most of them have, and how to go on without them; programs get ten places."""
    hints = ["Fetch it again", "Remove it", "Fetch it again", "Rename it"]
    troubles = [Trouble(f"f{n}", "is empty", hint=hints[n % 4]) for n in range(15)]

    error = refusal(troubles)

    assert error.message == ("15 offenders (f0 is empty, f1 is empty, f2 is empty, and 12 more) cannot be packed")
    assert error.hint == "Fetch it again. Remove it. Or leave them out: --on-error skip"
    assert error.subject == [f"f{n}" for n in range(10)]


def test_where_looking_ended_there_may_be_more() -> None:
    """A number that is none is not given."""
    troubles = [Trouble(f"f{n}", "is empty") for n in range(1001)]

    assert refusal(troubles, limit=1001).message.startswith("1,001 offenders (")
    assert refusal(troubles, limit=1000).message == (
        "more than 1,000 offenders (f0 is empty, f1 is empty, f2 is empty, ...) cannot be packed"
    )


def test_a_listing_counts() -> None:
    """One, or more than one; of a long one the middle is left out."""
    assert listing(["a"], "file") == "1 file (a)"
    assert listing(["a", "b"], "file") == "2 files (a, b)"
    assert (
        listing(["x.csv:2: " + "k" * 200 + " has a dot"], "file")
        == f"1 file (x.csv:2: {'k' * 36}...{'k' * 22} has a dot)"
    )
