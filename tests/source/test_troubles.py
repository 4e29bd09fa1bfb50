"""source/troubles: offenders as a sentence."""

from __future__ import annotations

from datakit.source.troubles import Trouble, listing, refusal


def test_one_offender_is_the_message() -> None:
    """With its own hint."""
    error = refusal([Trouble("x.jsonl:3", "not JSON", hint="Mend that line")])

    assert str(error) == "x.jsonl:3: not JSON. Mend that line"
    assert error.subject == "x.jsonl:3"


def test_many_offenders_are_ten_and_a_number() -> None:
    """Each hint once, and how to go on without them."""
    troubles = [Trouble(f"f{n}", "is empty", hint="Fetch it again" if n % 2 else "Remove it") for n in range(12)]

    error = refusal(troubles)

    assert error.message.startswith("12 records (f0: is empty, f1: is empty, ")
    assert error.message.endswith("f9: is empty, and 2 more) cannot be packed")
    assert error.hint == "Remove it; Fetch it again; or leave them out: --on-error skip"
    assert error.subject == [f"f{n}" for n in range(10)]


def test_a_listing_counts() -> None:
    """One, or more than one."""
    assert listing(["a"], "file") == "1 file (a)"
    assert listing(["a", "b"], "file") == "2 files (a, b)"
