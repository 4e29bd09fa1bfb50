"""version/excerpt: what is shown of a long text is where it differs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from datakit.data.shard import Part
from datakit.version.excerpt import MOST_CHARACTERS, excerpt


def both(old: bytes, new: bytes, *, read: int | None = None) -> tuple[str, str]:
    """Both excerpts, of parts of which so many bytes were read."""
    parts = [Part(0, len(data), 7) for data in (old, new)]
    return (
        excerpt(old[:read], parts[0], other=new[:read]),
        excerpt(new[:read], parts[1], other=old[:read]),
    )


@given(head=st.text("aé你\n", max_size=900), tail=st.text("aé你\n", max_size=900))
def test_the_difference_is_in_what_is_shown(head: str, tail: str) -> None:
    """Wherever it stands, in letters of any number of bytes, with some of the text before it."""
    old, new = both(f"{head}X{tail}".encode(), f"{head}Y{tail}".encode())

    assert old != new
    assert ("X" in old, "Y" in new) == (True, True)
    assert head[-80:] in old
    assert len(old) <= MOST_CHARACTERS + len("...... (9999 bytes)")


def test_a_text_that_goes_on_is_shown_from_its_old_end() -> None:
    """What was appended to a long text is seen."""
    old, new = both(b"a" * 600, b"a" * 600 + b" more")

    assert old == "..." + "a" * 400 + " (600 bytes)"
    assert new == "..." + "a" * 395 + " more (605 bytes)"


def test_a_difference_behind_what_was_read_is_said() -> None:
    """Two beginnings that are the same show no change, and say where it is not."""
    old, _ = both(b"a" * 9000 + b"X", b"a" * 9000 + b"Y", read=5000)

    assert old == "a" * 400 + "... (9001 bytes, the first 5,000 the same)"


def test_a_letter_cut_by_the_limit_of_what_is_read_is_left_out() -> None:
    """The beginning of a text is text, wherever it was cut."""
    old, _ = both("é".encode() * 4000, "é".encode() * 4000 + b"!", read=2001)

    assert old == "é" * 400 + "... (8000 bytes, the first 2,001 the same)"


def test_short_texts_are_whole_and_other_bytes_are_described() -> None:
    """No number behind what is shown whole; an image is told by size and checksum."""
    assert both(b"one\ntwo", b"") == ("one\ntwo", "")
    assert both(b"\xff\x00", b"x")[0] == "2 bytes, crc32c 00000007"
