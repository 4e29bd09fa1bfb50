"""source/naming: keys from fields and from names of files."""

from __future__ import annotations

import pytest

from datakit import InputError
from datakit.source.naming import Naming


@pytest.mark.parametrize(("value", "key"), [("a/b", "a/b"), (7, "7"), (-3, "-3"), (2**80, str(2**80))])
def test_words_and_whole_numbers_name_records(value: object, key: str) -> None:
    """As they are written."""
    assert Naming().key_of(value) == key


@pytest.mark.parametrize("value", [True, 1.5, ["a"], {"a": 1}, "a.b", "", "x" * 300, "\u00e9" * 60])
def test_what_cannot_name_a_record_is_refused_with_what_helps(value: object) -> None:
    """Another field, a hash, or escaping."""
    with pytest.raises(InputError) as caught:
        Naming(key_field="name").key_of(value)

    assert "--key-field" in str(caught.value.hint)
    assert "--escape percent" in str(caught.value.hint)


def test_a_longer_part_leaves_less_room_for_the_key() -> None:
    """95 bytes and `.json` are 100."""
    assert Naming().key_of("x" * 95)
    with pytest.raises(InputError, match="more than a tar"):
        Naming().key_of("x" * 95, part="conversation.json")


def test_escaping_takes_what_breaks_a_rule() -> None:
    """But for a name that is empty, or too long all the same."""
    naming = Naming(escape="percent")

    assert naming.key_of("a.b") == "a%2Eb"
    assert naming.cut("a.b.c.jpg") == ("a%2Eb%2Ec", "jpg")
    assert naming.stem("a%2Eb%2Ec") == "a.b.c"
    for value in ("", "." * 100):
        with pytest.raises(InputError):
            naming.key_of(value)


def test_without_escaping_a_percent_sign_is_a_letter() -> None:
    """It stays what it is, both ways."""
    naming = Naming()

    assert naming.cut("100%25.txt") == ("100%25", "txt")
    assert naming.stem("100%25") == "100%25"
    assert naming.problem("100%25") is None
    assert naming.problem("a.b") is not None
