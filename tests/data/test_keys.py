"""data/keys: what may be a name, and the numbers that follow from a key."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest
import webdataset.tariterators
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, UsageError
from datakit.data.keys import (
    check_key,
    check_part,
    key_hash,
    part_of,
    skipped_as,
    split_name,
    split_of,
    ustar_name,
)
from support.samples import KEYS, PARTS


def test_a_key_hash_is_blake2b_64_and_never_changes() -> None:
    """Layouts of every version rest on this number: it is fixed by value."""
    assert key_hash("") == 0xE4A6A0577479B2B4
    assert key_hash("sample-00017") == int(hashlib.blake2b(b"sample-00017", digest_size=8).hexdigest(), 16)
    assert key_hash("中文") == int(hashlib.blake2b("中文".encode(), digest_size=8).hexdigest(), 16)


@given(KEYS, PARTS)
def test_a_name_splits_as_webdataset_splits_it(key: str, part: str) -> None:
    """Key and part come back from a member's name, for us and for webdataset's regular expression."""
    check_key(key)
    check_part(part)

    name = f"{key}.{part}"

    assert split_name(name) == (key, part)
    assert webdataset.tariterators.base_plus_ext(name) == (key, part)


@pytest.mark.parametrize(
    ("name", "part", "skipped"),
    [
        ("d/cat.SEG.png", ("d/cat", "seg.png"), None),
        ("__meta__/a.txt", None, "names of the form __x__"),
        ("d/.hidden", None, "hidden files"),
        ("README", None, "names without a dot"),
        ("a.", None, None),
    ],
)
def test_a_member_is_a_part_or_skipped_as_readers_do(
    name: str, part: tuple[str, str] | None, skipped: str | None
) -> None:
    """With its reason; a name that ends in a dot is neither."""
    assert (part_of(name), skipped_as(name)) == (part, skipped)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "empty"),
        ("a.b", "first dot"),
        ("dir/a.b", "first dot"),
        (".hidden", "first dot"),
        ("/a", "empty"),
        ("a/", "empty"),
        ("a//b", "empty"),
        ("a/./b", "`.`"),
        ("a/../b", "`..`"),
        ("__meta__", "__x__"),
        ("__dir__/a", "__x__"),
        ("a/__b__", "__x__"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("a\x7fb", "control"),
        ("a\ud800b", "surrogate"),
    ],
)
def test_a_key_outside_the_rules_is_refused_with_its_rule(key: str, rule: str) -> None:
    """Whoever reads the message knows what to change."""
    with pytest.raises(InputError, match="cannot be a sample's key") as caught:
        check_key(key)

    assert rule in caught.value.message
    assert caught.value.subject == key


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("", "empty"),
        ("a/b", "slash"),
        (".jpg", "dot at an end"),
        ("jpg.", "dot at an end"),
        ("a..b", "two dots"),
        ("JPG", "lower case"),
        ("__key__", "__x__"),
        ("a\tb", "control"),
        ("\udfff", "surrogate"),
    ],
)
def test_a_part_outside_the_rules_is_refused_with_its_rule(part: str, rule: str) -> None:
    """The same for parts."""
    with pytest.raises(InputError, match="cannot be the name of a sample's part") as caught:
        check_part(part)

    assert rule in caught.value.message


@pytest.mark.parametrize("key", ["a", "folder.v1/a", "A b", "a__", "_a_", "中文/é", "a" * 94, "__a", "a=b&c"])
def test_ordinary_keys_are_fine(key: str) -> None:
    """Folders with dots, spaces, other scripts."""
    check_key(key)


def test_a_name_of_100_bytes_fits_and_of_101_does_not() -> None:
    """USTAR's name field has 100 bytes; bytes count, not characters."""
    assert ustar_name("k" * 96, "jpg") == (b"", b"k" * 96 + b".jpg")
    assert ustar_name("é" * 48, "jpg")[0] == b""

    for key in ("k" * 97, "é" * 49):
        with pytest.raises(InputError, match="more than a tar"):
            ustar_name(key, "jpg")


def test_long_folders_go_into_the_prefix() -> None:
    """155 bytes of folders and 100 of name; what fits neither is refused."""
    folder, stem = "d" * 155, "n" * 96

    assert ustar_name(f"{folder}/{stem}", "jpg") == (folder.encode(), f"{stem}.jpg".encode())
    for key in (f"{folder}d/{stem}", f"{folder}/{stem}n", f"{'d' * 80}/{'e' * 80}{stem}"):
        with pytest.raises(InputError, match=re.escape(key)):
            ustar_name(key, "jpg")


@given(st.lists(KEYS, unique=True, max_size=50))
def test_a_split_depends_on_the_key_and_the_weights_alone(keys: list[str]) -> None:
    """Neither other keys nor the order in which splits are written move a sample."""
    one = {key: split_of(key, {"train": 95, "held-out": 5}) for key in keys}
    other = {key: split_of(key, {"held-out": 5, "train": 95}) for key in reversed(keys)}

    assert one == other


def test_splits_take_their_shares() -> None:
    """Of 20,000 keys each split gets its share to within half a percent, in the lower half of key hashes too."""
    keys = [f"key-{number}" for number in range(20_000)]
    splits = {"train": 90, "dev": 6, "held-out": 4}

    found = Counter(split_of(key, splits) for key in keys)
    low = [key for key in keys if key_hash(key) < 2**63]

    for name, weight in splits.items():
        assert abs(found[name] - 200 * weight) < 100
    assert abs(sum(split_of(key, splits) == "held-out" for key in low) - 400) < 80


def test_a_heavier_split_only_takes_samples_over() -> None:
    """From 95/5 to 90/10 no sample leaves the split that grew, because ranges begin in the order of names."""
    keys = [f"key-{number}" for number in range(2000)]

    before = {key for key in keys if split_of(key, {"held-out": 5, "train": 95}) == "held-out"}
    after = {key for key in keys if split_of(key, {"held-out": 10, "train": 90}) == "held-out"}

    assert before < after


@pytest.mark.parametrize("splits", [{}, {"train": 0}, {"train": -1}, {"train": 0.5, "held-out": 0.5}])
def test_weights_are_whole_and_positive(splits: dict[str, int]) -> None:
    """Fractions would not be the same on every machine."""
    with pytest.raises(UsageError, match="whole weights"):
        split_of("a", splits)
