"""The payload: the same bytes on every machine, and a digest that sees every change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from frame.payload import TruthTaker, blobs, lines, pairs, truth_of_files


def test_pairs_are_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """The digest of three pairs is fixed here: another one means that old figures are about other data."""
    folder = pairs(tmp_path, num_pairs=3, image_bytes=64)

    content = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.*")))

    assert hashlib.sha256(content).hexdigest() == "bddfcec66543eccffd32c6a03ce92497c56b12a4ec11f724b008196fe24b0feb"
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg")) == [
        f"0000/0000000{number}.jpg" for number in range(3)
    ]


def test_a_caption_is_about_a_kilobyte_of_json(tmp_path: Path) -> None:
    """The text part is what a caption file is like: one JSON object with its id."""
    folder = pairs(tmp_path, num_pairs=1, image_bytes=64)

    content = (folder / "0000" / "00000000.json").read_bytes()

    assert json.loads(content)["id"] == "00000000"
    assert 900 <= len(content) <= 1100


def test_lines_are_json_of_their_size_and_an_edit_changes_one(tmp_path: Path) -> None:
    """Each has an id and the size asked for; the edited file differs in the one line; the bytes are fixed."""
    plain = lines(tmp_path, num_lines=5, line_bytes=200).read_bytes().splitlines()
    edited = lines(tmp_path, num_lines=5, line_bytes=200, edited=3).read_bytes().splitlines()

    assert [json.loads(line)["id"] for line in plain] == [f"{number:08d}" for number in range(5)]
    assert {len(line) for line in plain + edited} == {198}
    assert [one == other for one, other in zip(plain, edited, strict=True)] == [True, True, True, False, True]
    assert hashlib.sha256(b"".join(plain)).hexdigest()[:16] == "1b343c42f19a72c0"


def test_blobs_have_the_size_that_was_asked_for(tmp_path: Path) -> None:
    """Sizes need not be a multiple of the block in which they are written, and the bytes are fixed."""
    folder = blobs(tmp_path, num_files=2, file_bytes=(1 << 20) + 5)

    sizes = [path.stat().st_size for path in sorted(folder.iterdir())]

    assert sizes == [(1 << 20) + 5] * 2
    assert (
        hashlib.sha256((folder / "shard-000001.tar").read_bytes()).hexdigest()
        == "b68583ffd940b6669182b7f83572f25af47e8267895021d670a3139b14ce0d67"
    )


def test_input_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """The second call returns the very files of the first; after another recipe they are made anew."""
    first = pairs(tmp_path, num_pairs=2, image_bytes=8)
    inode = (first / "0000" / "00000000.jpg").stat().st_ino

    assert (pairs(tmp_path, num_pairs=2, image_bytes=8) / "0000" / "00000000.jpg").stat().st_ino == inode
    assert (pairs(tmp_path, num_pairs=2, image_bytes=9) / "0000" / "00000000.jpg").stat().st_size == 9


def test_input_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    """A killed generator leaves a folder under another name, which the next one removes."""
    (tmp_path / "blobs-1x4.making").mkdir()

    folder = blobs(tmp_path, num_files=1, file_bytes=4)

    assert [path.name for path in folder.iterdir()] == ["shard-000000.tar"]
    assert not (tmp_path / "blobs-1x4.making").exists()


@given(st.dictionaries(st.text(min_size=1), st.binary(), min_size=1), st.randoms())
def test_the_truth_depends_on_no_order_and_no_cut(payloads: dict[str, bytes], shuffler: object) -> None:
    """Any order of payloads, each whole or in two pieces, has one digest."""
    names = list(payloads)
    shuffler.shuffle(names)  # type: ignore[attr-defined]  -- hypothesis hands out a random.Random
    in_order, shuffled = TruthTaker(), TruthTaker()
    for name, content in payloads.items():
        in_order.add(name, content)
    for name in names:
        middle = len(payloads[name]) // 2
        shuffled.add(name, payloads[name][:middle], memoryview(payloads[name])[middle:])

    assert in_order.truth(samples=1) == shuffled.truth(samples=1)


def test_the_truth_sees_a_flipped_bit_a_swapped_name_and_a_missing_file(tmp_path: Path) -> None:
    """None of these can hide behind the same count or size."""
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(path.name.encode() * 4)
    whole = truth_of_files(paths, root=tmp_path)

    missing = truth_of_files(paths[:1], root=tmp_path)
    paths[0].write_bytes(b"bbbb")
    paths[1].write_bytes(b"aaaa")
    swapped = truth_of_files(paths, root=tmp_path)
    paths[1].write_bytes(b"aaac")
    flipped = truth_of_files(paths, root=tmp_path)

    assert len({whole.digest, missing.digest, swapped.digest, flipped.digest}) == 4
    assert (whole.samples, whole.payload_bytes) == (2, 8)
