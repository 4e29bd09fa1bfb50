"""source/files: a folder as a table, any choice of its records, and no file that changed in between."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datakit import InputError
from datakit.data.shard import Sample
from datakit.source.folders import list_files
from datakit.source.grouping import FoundFile
from datakit.source.naming import Naming
from datakit.source.originals import changed_ns


def write(root: Path, files: dict[str, bytes]) -> list[FoundFile]:
    """Write files below a folder and list them."""
    found = []
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        found.append(FoundFile(name, len(data), changed_ns((root / name).stat())))
    return found


def test_files_that_share_a_stem_are_a_sample(tmp_path: Path) -> None:
    """Parts in lower case; samples in the order of their keys."""
    files = {
        "b/2.jpg": b"two",
        "a.txt": b"text",
        "b/1.seg.png": b"mask",
        "b/1.JPG": b"one",
        "b/2.json": b"{}",
        "v1.0/x.cls": b"3",
    }

    table = list_files(str(tmp_path), files=write(tmp_path, files))
    everything = np.arange(len(table.keys))
    samples = list(pickle.loads(pickle.dumps(table.take(everything))).samples())

    assert samples == [
        Sample("a", {"txt": b"text"}),
        Sample("b/1", {"jpg": b"one", "seg.png": b"mask"}),
        Sample("b/2", {"jpg": b"two", "json": b"{}"}),
        Sample("v1.0/x", {"cls": b"3"}),
    ]
    assert table.part_bytes(slice(0, len(table.keys))).tolist() == [4, 7, 5, 1]
    assert table.shard_bytes(slice(0, len(table.keys))).tolist() == [1024, 2048, 2048, 1024]
    assert not table.exact
    assert table.part_counts == {"cls": 1, "jpg": 2, "json": 1, "seg.png": 1, "txt": 1}


@pytest.mark.parametrize("now", [b"", b"shorter", b"longer than it was listed"])
def test_a_file_that_changes_size_in_between_is_refused(tmp_path: Path, now: bytes) -> None:
    """Shorter or longer: one byte more than listed is asked for."""
    table = list_files(str(tmp_path), files=write(tmp_path, {"a.txt": b"as listed"}))
    (tmp_path / "a.txt").write_bytes(now)

    with pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        list(table.take(np.arange(1)).samples())


def test_a_file_that_was_written_to_in_between_is_refused(tmp_path: Path) -> None:
    """Same size, another time: what it holds may not be what it held when it was listed."""
    table = list_files(str(tmp_path), files=write(tmp_path, {"a.txt": b"as listed"}))
    os.utime(tmp_path / "a.txt", ns=(1, 1))

    with pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        list(table.take(np.arange(1)).samples())


def test_a_file_that_came_from_a_store_may_have_any_time(tmp_path: Path) -> None:
    """Its version was seen to while it was fetched."""
    files = [file._replace(stamp=12345) for file in write(tmp_path, {"a.txt": b"as listed"})]

    table = list_files(str(tmp_path), files=files, timed=False)

    assert list(table.take(np.arange(1)).samples()) == [Sample("a", {"txt": b"as listed"})]


def test_a_spool_that_is_cut_short_is_told_by_the_file_that_lay_there(tmp_path: Path) -> None:
    """Nobody knows the names of our own temporaries."""
    table = list_files(str(tmp_path), files=write(tmp_path, {"a.txt": b"a", "b.TXT": b"bb"}), timed=False)
    (tmp_path / "spool").write_bytes(b"ab")
    batch = replace(table.take(np.arange(2)), spool=str(tmp_path / "spool"))

    with pytest.raises(InputError, match=r"^b\.TXT changed while it was packed"):
        list(batch.samples())


def test_a_signature_tells_names_sizes_and_times(tmp_path: Path) -> None:
    """It is the same for the same listing, and another when any of a record's files is another."""
    files = write(tmp_path, {"a.txt": b"1", "a.cls": b"2", "b.txt": b"1"})
    changes = [
        files,
        list(reversed(files)),
        [files[0]._replace(stamp=1), *files[1:]],
        [files[0]._replace(size=2), *files[1:]],
        [files[0]._replace(name="a.text"), *files[1:]],
        files[1:],
    ]

    signatures = [list_files("root", files=change).signatures(np.arange(2)) for change in changes]

    assert signatures[0] == signatures[1]
    assert len({a for a, _ in signatures[1:]}) == 5
    assert len({b for _, b in signatures}) == 1


def test_a_signature_is_the_same_in_every_version() -> None:
    """What a pack remembers is known by it; a name may hold what a format would read."""
    files = [FoundFile("a.x%d", 3, 2**63 + 1), FoundFile("a.json", 2, 7)]

    (signature,) = list_files("root", files=files).signatures(np.arange(1))

    said = f"json\0002 7\0x%d\0003 {2**63 + 1}\0"
    assert signature == hashlib.blake2b(said.encode(), digest_size=16).digest()


def test_any_choice_of_records_has_its_own_files(tmp_path: Path) -> None:
    """In any order, with other numbers of parts side by side."""
    files = {f"s{n}.p{part}": b"%d-%d" % (n, part) for n in range(9) for part in range(n % 3 + 1)}
    table = list_files(str(tmp_path), files=write(tmp_path, files))

    samples = list(table.take(np.array([8, 0, 4, 4])).samples())

    assert [sample.key for sample in samples] == ["s8", "s0", "s4", "s4"]
    assert [sample.parts for sample in samples] == [
        {f"p{part}": b"%d-%d" % (n, part) for part in range(n % 3 + 1)} for n in (8, 0, 4, 4)
    ]
    assert table.part_bytes(slice(0, len(table.keys))).tolist() == [3 * (n % 3 + 1) for n in range(9)]
    assert table.shard_bytes(slice(0, len(table.keys))).tolist() == [1024 * (n % 3 + 1) for n in range(9)]


def test_names_of_a_batch_are_those_of_the_files(tmp_path: Path) -> None:
    """What is to be fetched before it is read, escaped keys included."""
    files = write(tmp_path, {"v1.2.JPG": b"x", "v1.2.seg.png": b"y", "b.txt": b"z"})
    table = list_files(str(tmp_path), files=files, naming=Naming(escape="percent"))

    batch = table.take(np.arange(2))

    assert list(table.keys) == ["b", "v1%2E2"]
    assert batch.names() == ["b.txt", "v1.2.JPG", "v1.2.seg.png"]
    assert [sample.parts for sample in batch.samples()] == [{"txt": b"z"}, {"jpg": b"x", "seg.png": b"y"}]


def test_a_file_that_was_replaced_by_one_of_its_size_and_time_is_refused(tmp_path: Path) -> None:
    """As `rsync -a` does: written aside, given the old time, renamed over it; only the inode's own time tells."""
    table = list_files(str(tmp_path), files=write(tmp_path, {"a.txt": b"cat"}))
    was = table.signatures(np.arange(1))
    (tmp_path / "new").write_bytes(b"dog")
    shutil.copystat(tmp_path / "a.txt", tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "a.txt")

    with pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        list(table.take(np.arange(1)).samples())
    status = (tmp_path / "a.txt").stat()
    now = list_files(str(tmp_path), files=[FoundFile("a.txt", status.st_size, changed_ns(status))])
    assert now.signatures(np.arange(1)) != was
