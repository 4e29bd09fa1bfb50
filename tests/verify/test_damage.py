"""verify/damage: any byte changed, cut or zeroed anywhere is found, with the sample and the byte that it hit."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from datakit.data.digest import PART_BYTES, crc32c, entry_of
from datakit.data.shard import BLOCK_BYTES, Row, Sample, member_bytes
from datakit.verify.damage import Finding, Suspect, cut, damage
from support.peers import webdataset_samples
from support.samples import SAMPLES, shard_of

LINES = st.lists(
    st.binary(max_size=600).filter(lambda line: b"\n" not in line) | st.sampled_from([b"", bytes(511), bytes(700)]),
    min_size=1,
    max_size=9,
).map(lambda lines: [Sample(f"k{number}", {"json": line}) for number, line in enumerate(lines)])


def suspect(
    whole: bytes, data: bytes, *, bundle: int | None = None, asked: list[tuple[int, int]] | None = None
) -> Suspect:
    """A shard that should be `whole` and is `data`."""
    entry = entry_of("s.tar", whole)
    crcs = [f"{crc32c(data[at : at + PART_BYTES]):08x}" for at in range(0, len(data), PART_BYTES)]
    wrong = {number for number, crc in enumerate(crcs) if (crc,) != entry.crc32c[number : number + 1]}

    def stream(start: int, stop: int) -> Iterator[memoryview]:
        assert 0 <= start <= stop <= len(data)
        if asked is not None:
            asked.append((start, stop))
        for at in range(start, stop, 700):  # pieces that fall in with nothing
            yield memoryview(data)[at : min(at + 700, stop)]

    return Suspect(entry, len(data), stream, wrong_parts=wrong, bundle=bundle)


def places(rows: list[Row], bundle: int | None) -> list[tuple[int, int, str, int | None]]:
    """From byte to byte: whose it is, and where the checksum that covers it begins (None where a byte is known)."""
    found: list[tuple[int, int, str, int | None]] = []
    groups = (
        [[row] for row in rows] if bundle is None else [rows[at : at + bundle] for at in range(0, len(rows), bundle)]
    )
    for group in groups:
        parts = sorted(((place, row.key) for row in group for place in row.parts.values()), key=lambda p: p[0].offset)
        for number, (place, key) in enumerate(parts):
            stop = place.offset + place.size
            if bundle is None or number == 0:
                found.append((place.offset - BLOCK_BYTES, place.offset, key, None))
            found.append((place.offset, stop, key, place.offset))
            if bundle is not None:
                found.append((stop, stop + 1, key, None))
                stop += 1
            if bundle is None or number == len(parts) - 1:
                found.append((stop, stop + -stop % BLOCK_BYTES, key, None))
    return found


def check(whole: bytes, data: bytes, rows: list[Row], bundle: int | None) -> None:
    """The first finding names the first changed byte, or the content or hole that it lies in, and its sample."""
    first = next(i for i, (one, other) in enumerate(zip(whole, data, strict=True)) if one != other)
    owner = next(((key, at) for start, stop, key, at in places(rows, bundle) if start <= first < stop), None)

    found = list(damage(suspect(whole, data, bundle=bundle), rows))

    assert found
    assert found[0].sample == (owner[0] if owner else None)
    if owner is None or (found[0].byte != first and "are zeros where" not in found[0].problem):
        assert found[0].byte == (owner[1] if owner else first)
    assert f"{found[0].byte}" in found[0].problem


BOTH = st.tuples(SAMPLES, st.none()) | st.tuples(LINES, st.integers(1, 4))


@given(BOTH, st.data())
def test_any_flipped_byte_is_found_with_its_sample(made: tuple[list[Sample], int | None], data: st.DataObject) -> None:
    """Header, content, newline, padding or end, plain or bundled."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))

    check(whole, bytes(changed), rows, bundle)


@given(BOTH, st.data())
def test_any_hole_is_found_with_its_first_sample(made: tuple[list[Sample], int | None], data: st.DataObject) -> None:
    """Zeros from anywhere to anywhere, as a sparse file or a lost page leaves them."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    changed = whole[:start] + bytes(stop - start) + whole[stop:]
    assume(changed != whole)

    check(whole, changed, rows, bundle)


@given(BOTH, st.data())
def test_any_cut_is_found_with_the_first_lost_sample(
    made: tuple[list[Sample], int | None], data: st.DataObject
) -> None:
    """Between two members too, where every reader built on Python's tarfile ends without a word."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)
    size = data.draw(st.integers(0, len(whole) - 1))
    owner = next((key for start, stop, key, _ in places(rows, bundle) if start <= size < stop), None)

    found = list(damage(suspect(whole, whole[:size], bundle=bundle), rows))

    assert [(finding.sample, finding.byte) for finding in found] == [(owner, size)]
    assert f"it ends at byte {size} of {len(whole)}" in found[0].problem
    unread = cut(suspect(whole, whole[:size], bundle=bundle), rows)
    assert unread == found[0]


@given(BOTH, st.binary(min_size=1, max_size=600))
def test_anything_after_the_end_is_found(made: tuple[list[Sample], int | None], more: bytes) -> None:
    """Zeros too: nothing follows the end of a shard."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)

    (found,) = damage(suspect(whole, whole + more, bundle=bundle), rows)

    assert (found.byte, found.sample) == (len(whole), None)
    assert f"{len(more)} bytes follow its end" in found.problem
    assert cut(suspect(whole, whole + more, bundle=bundle), rows) is None


@given(BOTH, st.data())
def test_any_damage_is_found_without_an_index(made: tuple[list[Sample], int | None], data: st.DataObject) -> None:
    """Headers and the crc32c of the whole tell that something is wrong; damage of a header is named by its byte."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))

    found = list(damage(suspect(whole, bytes(changed), bundle=bundle), None))

    assert found
    heads = [(start, stop) for start, stop, _, offset in places(rows, bundle) if offset is None and stop - start == 512]
    if head := next(((start, stop) for start, stop in heads if start <= at < stop), None):
        assert found[0].byte is not None
        assert found[0].byte in (head[0], at)


class Large:
    """A shard of 41 MiB: three checksummed parts, a content that fills more than one of them."""

    def __init__(self) -> None:
        big = bytes(range(256)) * (24 * 2**12)
        samples = [
            Sample("a", {"bin": b"a" * (9 * 2**20)}),
            Sample("b", {"bin": big}),
            Sample("c", {"bin": b"c" * (8 * 2**20), "txt": b"c"}),
        ]
        self.whole, self.rows = shard_of(samples)

    def flipped(self, *positions: int) -> bytes:
        """With these bytes changed."""
        data = bytearray(self.whole)
        for at in positions:
            data[at] ^= 0xFF
        return bytes(data)


@pytest.fixture(scope="module")
def large() -> Large:
    """Made once."""
    return Large()


def test_only_damaged_stretches_are_read(large: Large) -> None:
    """A wrong byte in the last part: what lies wholly in others is not asked for, and what reaches into it is."""
    asked: list[tuple[int, int]] = []
    place = large.rows[2].parts["bin"]

    found = list(damage(suspect(large.whole, large.flipped(place.offset + 5), asked=asked), large.rows))

    assert [(finding.sample, finding.part, finding.byte) for finding in found] == [("c", "bin", place.offset)]
    assert [start for start, _ in asked] == [large.rows[1].parts["bin"].offset - BLOCK_BYTES, len(large.whole) - 1024]


def test_damage_in_two_places_is_two_findings(large: Large) -> None:
    """Far apart, with whole parts between them."""
    first, last = 3, large.rows[2].parts["txt"].offset

    found = list(damage(suspect(large.whole, large.flipped(first, last)), large.rows))

    assert [(finding.sample, finding.byte) for finding in found] == [("a", first), ("c", last)]


def test_a_shard_whose_checksums_all_agree_is_named_by_its_sha256(large: Large) -> None:
    """Bytes that a crc32c cannot tell apart are still not those that were packed."""
    lying = replace(suspect(large.whole, large.whole), entry=replace(entry_of("s.tar", large.whole), sha256="0" * 64))

    (found,) = damage(lying, large.rows)

    assert found == Finding("s.tar", f"it has another sha256 than the manifest says ({'0' * 64})")


@given(BOTH.filter(lambda made: bool(made[0])), st.data())
def test_a_flipped_bit_anywhere_is_named_by_its_byte(
    made: tuple[list[Sample], int | None], data: st.DataObject
) -> None:
    """In a content too, of which only a checksum is known: the checksum of the damage tells its place."""
    samples, bundle = made
    whole, rows = shard_of(samples, bundle=bundle)
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(whole)
    changed[at] ^= 1 << bit

    (found,) = damage(suspect(whole, bytes(changed), bundle=bundle), rows)

    assert found.byte == at
    assert f"byte {at}" in found.problem
    assert f"{changed[at]:#04x}" in found.problem or at >= len(whole) - 1024


def test_a_lost_bundle_counts_its_lines() -> None:
    """A cut inside a bundle loses the lines from there on, and says at which bytes the first should be."""
    samples = [Sample(f"k{number}", {"json": b"x" * 100}) for number in range(10)]
    whole, rows = shard_of(samples, bundle=4)
    place = rows[5].parts["json"]

    (found,) = damage(suspect(whole, whole[: place.offset + 10], bundle=4), rows)

    assert (found.sample, found.part) == ("k5", "json")
    assert f"k5.json should stand at bytes {place.offset} to {place.offset + 100}, 5 samples are lost" in found.problem


def test_a_bundle_of_zeros_is_one_finding() -> None:
    """Not one for each of its lines."""
    whole, rows = shard_of([Sample(f"k{number}", {"json": b"x" * 100}) for number in range(8)], bundle=4)
    start = rows[4].parts["json"].offset - BLOCK_BYTES
    size = member_bytes(4 * 101)

    found = list(damage(suspect(whole, whole[:start] + bytes(size) + whole[start + size :], bundle=4), rows))

    assert [(finding.sample, finding.byte) for finding in found] == [("k4", start)]
    assert found[0].problem == f"bytes {start} to {start + size} are zeros where k4.jsonl should be"


SILENT: dict[str, tuple[Callable[[bytes, int], bytes], int]] = {
    "cut at a member's boundary": (lambda whole, at: whole[:at], 5),
    "cut inside a header": (lambda whole, at: whole[: at + 100], 5),
    "a flipped byte of a header": (lambda whole, at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], 5),
    "a zeroed hole": (lambda whole, at: whole[:at] + bytes(1024) + whole[at + 1024 :], 5),
    "a flipped bit of a payload": (lambda whole, at: whole[: at + 512] + b"!" + whole[at + 513 :], 10),
}


@pytest.mark.parametrize("case", SILENT)
def test_stock_readers_pass_over_it_without_a_word(case: str, tmp_path: Path) -> None:
    """Why this room is there: tarfile and webdataset see fewer samples, or wrong bytes, and no error; we name both."""
    change, seen = SILENT[case]
    whole, rows = shard_of([Sample(f"s{number}", {"txt": b"%d" % number * 9}) for number in range(10)])
    data = change(whole, rows[5].parts["txt"].offset - BLOCK_BYTES)
    (tmp_path / "s.tar").write_bytes(data)

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    samples = webdataset_samples(tmp_path / "s.tar")

    assert (len(names), len(samples)) == (seen, seen)
    found = next(damage(suspect(whole, data), rows))
    assert found.sample == "s5"
