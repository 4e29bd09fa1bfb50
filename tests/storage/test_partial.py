"""What `storage/partial` promises: what has arrived is believed by checksums only; only whole files get a name."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.data.digest import PART_BYTES, entry_of
from datakit.errors import IntegrityError, NoSpace
from datakit.storage import disk
from datakit.storage.partial import PARTIAL, Fetch, Inspector, Partial, partial_bytes, remove_leftovers
from support.process import run_code

DATA = random.Random(3).randbytes(2 * PART_BYTES + 1000)
ENTRY = entry_of("big.tar", DATA)


def fetch(directory: Path, data: bytes = DATA, *, known: bool = True) -> Fetch:
    entry = entry_of("big.tar", data) if known else None
    return Fetch("k", directory / "big.tar", len(data), '"v1"', entry)


def begin(wanted: Fetch) -> tuple[Partial, list[int]]:
    partial = Partial(wanted, part_bytes=PART_BYTES, durable=False)
    return partial, partial.open()


def bring(partial: Partial, number: int, data: bytes = DATA) -> None:
    start, stop = partial.span(number)
    inspector = Inspector(partial.fetch, start, where="store/k")
    inspector.take(data[start:stop])
    partial.put(data[start:stop], start)
    partial.note(number, inspector.crcs)


def test_a_file_gets_its_name_when_all_parts_are_here(tmp_path: Path) -> None:
    """Parts may come in any order; afterwards nothing else lies there."""
    partial, missing = begin(fetch(tmp_path))

    for number in reversed(missing):
        assert not (tmp_path / "big.tar").exists()
        bring(partial, number)
    partial.finish()

    assert missing == [0, 1, 2]
    assert (tmp_path / "big.tar").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["big.tar"]


def test_room_is_made_before_the_first_byte(tmp_path: Path) -> None:
    """The arriving file takes its blocks when it is opened."""
    wanted = fetch(tmp_path)

    partial, _ = begin(wanted)
    taken = partial_bytes([wanted.target])
    partial.close()

    assert taken >= len(DATA)


def test_a_full_disk_is_met_before_the_first_byte_and_leaves_nothing(tmp_path: Path) -> None:
    """Under a limit on file sizes the opening fails as NoSpace."""
    code = """
import resource, sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.storage.partial import Fetch, Partial
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    Partial(Fetch("k", Path(sys.argv[1]) / "big.tar", 2**25), part_bytes=2**24, durable=False).open()
except NoSpace as error:
    print(error.exit_code)
"""

    said = run_code(code, tmp_path)

    assert said.strip() == "5"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_second_start_asks_only_for_what_is_missing(tmp_path: Path, known: bool) -> None:
    """With a manifest or without one, what the journal claims and the bytes confirm is kept."""
    first, _ = begin(fetch(tmp_path, known=known))
    bring(first, 1)
    first.close()

    second, missing = begin(fetch(tmp_path, known=known))
    second.close()

    assert missing == [0, 2]


def journal_of(directory: Path) -> Path:
    (path,) = directory.glob("*.journal")
    return path


def part_of(directory: Path) -> Path:
    (path,) = directory.glob(".*.part")
    return path


def test_a_claim_that_the_bytes_do_not_confirm_is_dropped(tmp_path: Path) -> None:
    """A journal that outlived its data, as after a power cut, costs a part and never a wrong byte."""
    first, _ = begin(fetch(tmp_path))
    bring(first, 0)
    bring(first, 1)
    first.close()
    with part_of(tmp_path).open("r+b") as file:
        file.seek(PART_BYTES + 5)
        file.write(b"\0\0\0\0")

    second, missing = begin(fetch(tmp_path))
    second.close()

    assert missing == [1, 2]


@settings(max_examples=20)
@given(cut=st.integers(0, 200), junk=st.binary(max_size=20))
def test_a_torn_journal_is_read_as_far_as_it_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    """Cut at any byte and followed by anything: parts are asked for again, never believed wrongly."""
    directory = tmp_path_factory.mktemp("torn")
    first, _ = begin(fetch(directory, DATA[: PART_BYTES + 10]))
    bring(first, 1, DATA[: PART_BYTES + 10])
    first.close()
    whole = journal_of(directory).read_bytes()
    journal_of(directory).write_bytes(whole[:cut] + junk)

    second, missing = begin(fetch(directory, DATA[: PART_BYTES + 10]))
    second.close()

    assert missing in ([0], [0, 1])
    assert missing == [0] or cut < len(whole) or junk


def test_a_journal_of_other_parts_is_not_believed(tmp_path: Path) -> None:
    """Another part size or another format number starts anew."""
    for change in ({"part_bytes": 2 * PART_BYTES}, {"format": 99}):
        first, _ = begin(fetch(tmp_path))
        bring(first, 0)
        first.close()
        header, *lines = journal_of(tmp_path).read_text().splitlines()
        journal_of(tmp_path).write_text("\n".join([json.dumps(json.loads(header) | change), *lines, ""]))

        second, missing = begin(fetch(tmp_path))
        second.close()

        assert missing == [0, 1, 2]


def test_parts_of_two_versions_never_meet(tmp_path: Path) -> None:
    """A source that was replaced meanwhile has another identity, and its parts another file."""
    first, _ = begin(fetch(tmp_path))
    bring(first, 0)
    first.close()

    second, missing = begin(fetch(tmp_path, DATA[::-1]))
    second.close()

    assert missing == [0, 1, 2]
    assert len(list(tmp_path.glob(".*.part"))) == 2


def test_a_wrong_part_is_named_by_its_bytes(tmp_path: Path) -> None:
    """The inspector speaks at the end of the 16 MiB that are wrong, before the next begin."""
    inspector = Inspector(fetch(tmp_path), 0, where="s3://bkt/big.tar")
    inspector.take(DATA[: PART_BYTES - 1])

    with pytest.raises(IntegrityError, match=f"s3://bkt/big.tar: bytes 0 to {PART_BYTES} have crc32c") as caught:
        inspector.take(bytes([DATA[PART_BYTES - 1] ^ 1]))

    assert caught.value.subject == "s3://bkt/big.tar"
    assert (caught.value.hint or "").endswith("datakit sync --repair COPY s3://bkt")  # there is the damage, not here


@given(cuts=st.lists(st.integers(0, len(DATA)), max_size=6))
def test_an_inspector_sees_the_same_in_any_pieces(cuts: list[int]) -> None:
    """Its checksums are those of the manifest, however the bytes arrive."""
    inspector = Inspector(Fetch("k", Path("x"), len(DATA)), 0, where="k")
    borders = [0, *sorted(cuts), len(DATA)]

    for start, stop in itertools.pairwise(borders):
        inspector.take(memoryview(DATA)[start:stop])

    assert tuple(inspector.crcs) == ENTRY.crc32c


def test_a_whole_with_another_md5_than_its_tag_gets_no_name(tmp_path: Path) -> None:
    """Without a manifest the source's tag is the last check, and what failed it is not kept."""
    wanted = Fetch("k", tmp_path / "big.tar", len(DATA), '"00000000000000000000000000000000"', None)
    partial, missing = begin(wanted)
    for number in missing:
        bring(partial, number)

    with pytest.raises(IntegrityError, match="md5 of the source's tag"):
        partial.finish()

    assert os.listdir(tmp_path) == []


def test_leftovers_are_removed_by_the_names_they_were_for(tmp_path: Path) -> None:
    """Arriving files, journals and temporaries of these names go; everything else stays."""
    mine = [".big.tar.0123abcd.part", ".big.tar.0123abcd.journal", ".big.tar.tmp-0123abcd"]
    others = [".other.tar.0123abcd.part", ".big.tar.part", "big.tar.0123abcd.part", ".env"]
    for name in mine + others:
        (tmp_path / name).write_bytes(b"x")

    removed = remove_leftovers([tmp_path / "big.tar", tmp_path / "absent" / "x"])

    assert sorted(path.name for path in removed) == sorted(mine)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_names_of_arriving_files_are_recognised() -> None:
    """The final name stands in them, whatever dots it has."""
    match = PARTIAL.fullmatch(".a.b-01.tar.89abcdef.part")

    assert match is not None
    assert match["name"] == "a.b-01.tar"


def test_a_limit_met_while_writing_is_no_space(tmp_path: Path) -> None:
    """A write that the system refuses leaves as NoSpace."""
    partial, _ = begin(fetch(tmp_path))
    descriptor = os.open("/dev/full", os.O_WRONLY)
    os.dup2(descriptor, partial._descriptor)
    os.close(descriptor)

    with pytest.raises(NoSpace):
        partial.put(b"x", 0)

    partial.close()


def test_a_torn_line_swallows_no_later_note(tmp_path: Path) -> None:
    """Killed while it wrote, started, and killed again: what came after the torn line is still known."""
    first, _ = begin(fetch(tmp_path))
    bring(first, 0)
    first.close()
    with journal_of(tmp_path).open("ab") as file:
        file.write(b'[1, ["01')
    second, missing = begin(fetch(tmp_path))
    bring(second, 1)
    second.close()

    third, missing_last = begin(fetch(tmp_path))
    third.close()

    assert (missing, missing_last) == ([1, 2], [2])


@pytest.mark.parametrize("line", ["5", "null", "[]", "[1]", '["a", []]', "[7, []]", "[-1, []]", "[1, 5]", "{", "\0\0"])
def test_a_line_that_is_no_claim_is_passed_over(tmp_path: Path, line: str) -> None:
    """As a disk leaves it after a power cut: the claims around it count."""
    first, _ = begin(fetch(tmp_path))
    bring(first, 0)
    first.close()
    with journal_of(tmp_path).open("ab") as file:
        file.write(line.encode() + b"\n")
    second, _ = begin(fetch(tmp_path))
    bring(second, 2)
    second.close()

    third, missing = begin(fetch(tmp_path))
    third.close()

    assert missing == [1]


@pytest.mark.parametrize("letter", ["n", "\N{LATIN SMALL LETTER U WITH DIAERESIS}"])
def test_a_name_of_the_longest_kind_arrives(tmp_path: Path, letter: str) -> None:
    """255 bytes leave no room for what a temporary adds to its name."""
    target = tmp_path / (letter * (255 // len(letter.encode())))
    partial, missing = begin(Fetch("k", target, len(DATA), None, entry_of("x", DATA)))
    taken = partial_bytes([target])
    for number in missing:
        bring(partial, number)

    partial.finish()
    disk.write_atomic(target, b"x")
    disk.temporary(target).write_bytes(b"left")
    removed = remove_leftovers([target])

    assert taken >= len(DATA)
    assert len(removed) == 1
    assert os.listdir(tmp_path) == [target.name]
