"""data/manifest: deterministic bytes, read back strictly, and two digests of a dataset."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, IntegrityError, UsageError
from datakit.data.digest import FileEntry, entry_of
from datakit.data.manifest import (
    Contents,
    Manifest,
    ShardEntry,
    content_digest,
    content_term,
    layout_digest,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.lists(
    st.builds(entry_of, st.sampled_from("abcdefgh"), st.binary(max_size=9)), unique_by=lambda e: e.name, max_size=6
)
MANIFESTS = st.builds(
    Manifest,
    st.sampled_from(["dataset", "checkpoint", "adapter", "model"]),
    st.text(max_size=8),
    ENTRIES.map(tuple),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)


def dataset(**change: Any) -> Manifest:
    """A dataset of two shards, its description changed as asked."""
    files = [entry_of(name, name.encode()) for name in ("a.tar", "a.tar.index.arrow", "b.tar", "b.tar.index.arrow")]
    contents = Contents(
        content_digest=content_digest([]),
        layout_digest=layout_digest([("b.tar", files[2].sha256, 2), ("a.tar", files[0].sha256, 1)]),
        samples=3,
        payload_bytes=10,
        parts={"json": 3},
        shards=(ShardEntry("b.tar", 2, "b.tar.index.arrow"), ShardEntry("a.tar", 1, "a.tar.index.arrow")),
        pack={"algorithm": 1},
    )
    return Manifest("dataset", "chat", tuple(files), {**contents.to_about(), **change})


@given(MANIFESTS)
def test_a_manifest_survives_its_bytes(manifest: Manifest) -> None:
    """Read back it is the same, and written again it has the same bytes and so the same digest."""
    again = Manifest.from_bytes(manifest.to_bytes())

    assert again == manifest
    assert again.digest == manifest.digest == hashlib.sha256(manifest.to_bytes()).hexdigest()


@given(MANIFESTS, st.randoms(use_true_random=False))
def test_order_of_members_and_fields_plays_no_part(manifest: Manifest, random: Any) -> None:
    """Members are sorted by name and fields by name, however they were collected."""
    members = list(manifest.members)
    random.shuffle(members)
    about = dict(reversed(manifest.about.items()))

    assert Manifest(manifest.kind, manifest.name, tuple(members), about).to_bytes() == manifest.to_bytes()


@given(MANIFESTS)
def test_the_bytes_are_json_for_people(manifest: Manifest) -> None:
    """Any JSON reader reads it: two spaces, sorted, one newline at the end."""
    data = manifest.to_bytes()

    value = json.loads(data)
    assert set(value) == {"format", "kind", "name", "members", "about"}
    assert value["format"] == 1
    assert data == json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def test_two_members_of_one_name_are_refused() -> None:
    """Which of them would be meant?"""
    with pytest.raises(IntegrityError, match=r"lists a\.tar twice"):
        Manifest("dataset", "x", (entry_of("a.tar", b"1"), entry_of("a.tar", b"2")), {})


def test_members_are_found_by_name() -> None:
    """An unknown name is an integrity error that says so."""
    manifest = dataset()

    assert manifest.member("b.tar") == entry_of("b.tar", b"b.tar")
    assert manifest.total_bytes == 2 * len("a.tar") + 2 * len("a.tar.index.arrow")
    with pytest.raises(IntegrityError, match=r"no member c\.tar"):
        manifest.member("c.tar")


def test_looking_up_every_member_of_many_is_not_quadratic() -> None:
    """20 000 members are found with some 15 comparisons each, wherever they stand."""
    looked: list[str] = []

    class Name(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            looked.append(str(self))
            return str(self) < str(other)

    entry = entry_of("x", b"")
    names = [f"shard-{number:05d}.tar" for number in range(20_000)]
    manifest = Manifest("dataset", "ds", tuple(replace(entry, name=Name(name)) for name in names), {})
    looked.clear()

    found = [manifest.member(name).name for name in (names[0], names[-1], names[7_777])]

    assert found == [names[0], names[-1], names[7_777]]
    assert 3 * 10 <= len(looked) <= 3 * 16


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", IntegrityError, "not JSON"),
        (b"{", IntegrityError, "not JSON"),
        (b"[1]", InputError, "no format number"),
        (b'{"kind": "dataset"}', InputError, "no format number"),
        (b'{"kind": "model", "name": "", "members": [], "about": {}}', IntegrityError, "this one has about, kind"),
        (b'{"format": 2}', UsageError, "format 2; this datakit reads 1 to 1"),
        (b'{"format": "1"}', UsageError, "format '1'"),
        (b'{"format": 1}', IntegrityError, "a manifest has about, format, kind, members, name"),
        (b'{"format": 1, "kind": "cat", "name": "", "members": [], "about": {}}', IntegrityError, "a manifest has"),
        (b'{"format": 1, "kind": "model", "name": 1, "members": [], "about": {}}', IntegrityError, "field name"),
        (b'{"format": 1, "kind": "model", "name": "", "members": {}, "about": {}}', IntegrityError, "field members"),
        (b'{"format": 1, "kind": "model", "name": "", "members": [{}], "about": {}}', IntegrityError, "member needs"),
        (b'{"format": 1, "kind": "model", "name": "", "members": [], "about": []}', IntegrityError, "field about"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_reason(data: bytes, error: type[Exception], said: str) -> None:
    """Nonsense, other JSON, another number and a damaged field are different errors."""
    with pytest.raises(error, match=said):
        Manifest.from_bytes(data)


@given(MANIFESTS, st.data())
def test_a_cut_manifest_is_refused(manifest: Manifest, data: st.DataObject) -> None:
    """A manifest that was written half is not JSON."""
    whole = manifest.to_bytes().rstrip()
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(IntegrityError, match="not JSON"):
        Manifest.from_bytes(whole[:cut])


def test_a_dataset_describes_its_contents() -> None:
    """The description comes back whole, tokens only where there are any."""
    plain, tokenized = dataset().contents, dataset(tokens=7).contents

    assert [shard.name for shard in plain.shards] == ["b.tar", "a.tar"]
    assert (plain.samples, plain.parts, plain.tokens) == (3, {"json": 3}, None)
    assert tokenized == replace(plain, tokens=7)
    assert Contents.from_about(plain.to_about()) == plain


def test_only_a_dataset_has_contents() -> None:
    """The contents of a checkpoint are a question to the wrong commit."""
    with pytest.raises(InputError, match="run is a checkpoint, not a dataset"):
        _ = Manifest("checkpoint", "run", (), {}).contents


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layout_digest": "0" * 64}, "says layout digest 0000"),
        ({"shards": [{"name": "c.tar", "samples": 1, "index": "a.tar.index.arrow"}]}, r"no member c\.tar"),
        ({"shards": [{"name": "a.tar", "samples": 1, "index": "c.index"}]}, r"no member c\.index"),
        ({"shards": [{"name": "a.tar", "samples": -1, "index": "c"}]}, "field samples is -1"),
        ({"shards": [7]}, "field name"),
        ({"shards": None}, "field shards"),
        ({"samples": True}, "field samples is True"),
        ({"samples": "3"}, "field samples"),
        ({"samples": 99}, "says 99 samples, its shards have 3"),
        ({"parts": {"json": -1}}, "field json is -1"),
        ({"tokens": None}, "field tokens"),
        ({"pack": []}, "field pack"),
    ],
)
def test_a_description_that_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    """Every field is checked, and the layout digest against the members."""
    manifest = Manifest.from_bytes(dataset(**change).to_bytes())

    with pytest.raises(IntegrityError, match=said):
        _ = manifest.contents


SAMPLE_DIGESTS = st.dictionaries(st.text(max_size=6), st.binary(min_size=16, max_size=16), max_size=6)


@given(SAMPLE_DIGESTS, st.integers(0, 6), st.randoms(use_true_random=False))
def test_the_content_digest_knows_no_order_and_no_shards(samples: dict[str, bytes], cut: int, random: Any) -> None:
    """Terms add up in any order, also summed shard by shard first."""
    terms = [content_term(key, digest) for key, digest in samples.items()]
    whole = content_digest(terms)
    random.shuffle(terms)

    assert content_digest([sum(terms[:cut]), sum(terms[cut:])]) == whole
    assert len(whole) == 64


@given(SAMPLE_DIGESTS, SAMPLE_DIGESTS)
def test_other_samples_have_another_content_digest(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    """Equal exactly where keys and digests are."""
    digests = [content_digest(content_term(key, digest) for key, digest in samples.items()) for samples in (one, other)]

    assert (digests[0] == digests[1]) == (one == other)


def test_the_layout_digest_knows_name_bytes_count_and_order() -> None:
    """sha256 over one line a shard; any change changes it."""
    shards = [("a.tar", "aa", 1), ("b.tar", "bb", 2)]

    digests = {
        layout_digest(layout)
        for layout in (
            shards,
            shards[::-1],
            shards[:1],
            [("a.tar", "ab", 1), shards[1]],
            [("a.tar", "aa", 2), shards[1]],
        )
    }

    assert len(digests) == 5
    assert layout_digest(shards) == hashlib.sha256(b"a.tar aa 1\nb.tar bb 2\n").hexdigest()


def test_a_file_entry_is_frozen() -> None:
    """What a manifest says cannot be changed by a slip."""
    entry: Any = entry_of("a", b"")

    with pytest.raises(AttributeError):
        entry.bytes = 1
    assert isinstance(entry, FileEntry)


@pytest.mark.parametrize(
    ("about", "derived"), [({}, set()), ({"derived": ["a", "b"]}, {"a", "b"}), ({"derived": "a"}, set())]
)
def test_derived_members_are_those_that_it_lists(about: dict[str, object], derived: set[str]) -> None:
    """None where it lists none."""
    assert Manifest("dataset", "ds", (), about).derived == derived
