"""version/document: YAML as DVC reads and writes it."""

from __future__ import annotations

import math
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from datakit import InputError
from datakit.version.document import read_yaml, write_yaml

PLAIN = """1e-3 1E5 .5 5. 0.001 yes on No true ~ null 1:30 0o17 0x1F 017 +4 -0 1_000 -0x_1 _1 1_.5_ 1e+3 .5e3 .inf -.inf
.nan 2026-01-01 << = #x a: é 1e e3 0b1 0o8 0x - ? !a &a *a %a @a ' " [ }"""
WORDS = st.sampled_from([*PLAIN.split(), "", " ", "- a", "a: b", " #", "a\nb"])
SCALARS = (
    WORDS
    | st.integers()
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.é", min_size=1), inner, max_size=3),
)


def as_dvc_reads(text: str) -> Any:
    """What DVC's own YAML library makes of it."""
    return YAML(typ="safe").load(StringIO(text))


@given(VALUES)
def test_what_is_written_reads_back_the_same_here_and_in_dvc(value: Any) -> None:
    """Texts that look like numbers stay texts, and numbers stay numbers, to us and to the library that DVC uses."""
    written = write_yaml({"value": value})

    assert read_yaml(written, where="x") == {"value": value}
    assert as_dvc_reads(written.decode()) == {"value": value}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 0.001), ("on", "on"), ("yes", "yes"), ("0x1F", 31), ("0o17", 15), ("017", 17), ("-7", -7),
        ("True", True), ("~", None), ("", None), ("1:30", "1:30"), ("1e", "1e"), (".5", 0.5), (".inf", math.inf),
    ],
)  # fmt: skip
def test_a_plain_word_means_what_yaml_1_2_says(word: str, value: Any) -> None:
    """The words on which PyYAML and DVC differ."""
    found = read_yaml(f"value: {word}\n".encode(), where="x")

    assert found == {"value": value}
    assert type(found["value"]) is type(value)


def test_keys_can_be_merged(tmp_path: object) -> None:
    """`<<: *name` works as in params.yaml of many projects."""
    found = read_yaml(b"base: &b {rank: 8}\ntrain:\n  <<: *b\n  seed: 1\n", where="x")

    assert found["train"] == {"rank": 8, "seed": 1}


@pytest.mark.parametrize("data", [b"a: [1", b"a: b: c", b"\xff\xfe\xfa", b"a: !!python/object:os.system {}"])
def test_what_is_not_yaml_is_said_with_its_place(data: bytes) -> None:
    """Nothing that a document asks for is executed."""
    with pytest.raises(InputError, match=r"dvc\.lock is not YAML"):
        read_yaml(data, where="dvc.lock")
