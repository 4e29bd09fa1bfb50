"""data/stems: where names are cut, and keys that hide what they may not hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.keys import check_key, split_name
from datakit.data.stems import KNOWN, KeyRule, cut_name, escaped, unescaped
from datakit.errors import InputError

NAMES = st.text(alphabet="ab._/%jpgsenJ", min_size=1, max_size=16)
PATHS = st.binary(min_size=1, max_size=24).map(lambda name: name.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("name", "first", "last", "known"),
    [
        ("cat.jpg", ("cat", "jpg"), ("cat", "jpg"), ("cat", "jpg")),
        ("a.b.c.jpg", ("a", "b.c.jpg"), ("a.b.c", "jpg"), ("a.b.c", "jpg")),
        ("cat.seg.png", ("cat", "seg.png"), ("cat.seg", "png"), ("cat", "seg.png")),
        ("scan.nii.gz", ("scan", "nii.gz"), ("scan.nii", "gz"), ("scan", "nii.gz")),
        ("cat.SEG.PNG", ("cat", "SEG.PNG"), ("cat.SEG", "PNG"), ("cat", "SEG.PNG")),
        ("v1.0/x.odd", ("v1.0/x", "odd"), ("v1.0/x", "odd"), ("v1.0/x", "odd")),
        ("x.a.odd", ("x", "a.odd"), ("x.a", "odd"), ("x.a", "odd")),
        ("seg.png", ("seg", "png"), ("seg", "png"), ("seg", "png")),
        ("v1.0/README", ("v1.0/README", ""), ("v1.0/README", ""), ("v1.0/README", "")),
        ("x.jpg.bak", ("x", "jpg.bak"), ("x.jpg", "bak"), ("x.jpg", "bak")),
    ],
)
def test_names_are_cut(name: str, first: tuple[str, str], last: tuple[str, str], known: tuple[str, str]) -> None:
    """At the first dot, at the last, before the known extensions at the end."""
    found = [cut_name(name, rule=rule) for rule in ("first-dot", "last-dot", "known")]

    assert found == [first, last, known]


@given(NAMES, st.sampled_from(["first-dot", "last-dot", "known"]))
def test_a_cut_loses_nothing(name: str, rule: KeyRule) -> None:
    """Stem, dot and suffix are the name again; the first dot is where every reader cuts."""
    stem, suffix = cut_name(name, rule=rule)

    assert name in (f"{stem}.{suffix}", stem)
    assert "/" not in suffix
    assert cut_name(name, rule="first-dot") == split_name(name)


@given(PATHS | NAMES)
def test_an_escaped_key_breaks_no_rule_and_comes_back(key: str) -> None:
    """Any name of a file, bytes that are no UTF-8 included."""
    hidden = escaped(key)

    check_key(hidden)
    assert unescaped(hidden) == key
    assert hidden.isprintable() or not key.isprintable()


@given(st.lists(NAMES, unique=True, max_size=20))
def test_two_keys_never_become_one(keys: list[str]) -> None:
    """Escaping is reversible."""
    assert len({escaped(key) for key in keys}) == len(keys)


@given(st.text("abcXYZ019_-/ \u00e9", min_size=1, max_size=20))
def test_a_key_that_breaks_no_rule_stays_as_it_is(key: str) -> None:
    """Only what breaks a rule is touched, and the percent sign."""
    try:
        check_key(key)
    except InputError:
        return

    assert escaped(key) == key


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("v1.2/a.b", "v1.2/a%2Eb"),
        ("50%", "50%25"),
        ("__m__/x", "%5F_m__/x"),
        ("a//b", "a%2F%2Fb"),
        ("/a/", "%2Fa%2F"),
        ("../x", "%2E%2E/x"),
        ("a\tb", "a%09b"),
        ("caf\udce9", "caf%E9"),
        ("caf\u00e9", "caf\u00e9"),
    ],
)
def test_what_breaks_a_rule_is_written_in_hex(key: str, hidden: str) -> None:
    """As URLs are."""
    assert escaped(key) == hidden


def test_known_extensions_are_lower_case_words() -> None:
    """They are compared in lower case, between two dots."""
    assert {"jpg", "png", "json", "seg", "gz", "cls"} <= KNOWN
    assert all(re.fullmatch("[a-z0-9]+", word) for word in KNOWN)
