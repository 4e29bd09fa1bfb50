"""pack/records: lines and files as tables, every bad one named, bytes untouched."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.data.shard import Sample, member_bytes, sample_digest
from datakit.pack.records import LineFile, list_files, list_lines

OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["a", "text", "n"]), st.text(max_size=20) | st.integers(), max_size=3), max_size=8
)


def lines_of(path: Path, data: bytes, *, key_field: str = "id") -> list[Sample]:
    """The samples of one JSON lines file."""
    path.write_bytes(data)
    lines = list_lines([LineFile(path.name, str(path))], key_field=key_field)
    return list(lines.take(np.arange(len(lines.keys))).samples())


@given(OBJECTS, st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n \n"]), st.booleans())
def test_the_bytes_of_a_line_pass_through_untouched(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, object]], end: bytes, last: bool
) -> None:
    """A part is the line without its line feed: spaces, carriage returns and the way it was written stay."""
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    written = [json.dumps({"id": f"r{i}", **record}).encode() for i, record in enumerate(objects)]

    samples = lines_of(path, end.join(written) + (end if last else b""))

    tail = end.split(b"\n")[0]
    expected = [line + (tail if last or i + 1 < len(written) else b"") for i, line in enumerate(written)]
    assert [sample.parts for sample in samples] == [{"json": line} for line in expected]
    assert [sample.key for sample in samples] == [f"r{i}" for i in range(len(objects))]


def test_a_record_without_a_name_is_named_by_its_bytes(tmp_path: Path) -> None:
    """16 hex digits of BLAKE2b-64; numbers name records too; another field can be the name."""
    data = b'{"id": 7}\n{"t": 1}\n{"t": 2, "id": null}\n'

    keys = [sample.key for sample in lines_of(tmp_path / "x.jsonl", data)]
    others = [sample.key for sample in lines_of(tmp_path / "x.jsonl", data, key_field="nothing")]

    assert keys == ["7", others[1], others[2]]
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in others)
    assert len(set(others)) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "x"', "x.jsonl:3 is not JSON: unexpected end of data"),
        (b"plain text", "x.jsonl:3 is not JSON"),
        (b'{"a": NaN}', "x.jsonl:3 is not JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "x.jsonl:3 is not JSON: it starts with a byte-order mark"),
        (b'{"a": "\xff"}', "x.jsonl:3 is not JSON"),
        (b"[1, 2]", "x.jsonl:3 is an array, not a JSON object"),
        (b'"text"', "x.jsonl:3 is a string, not a JSON object"),
        (b"12", "x.jsonl:3 is a number, not a JSON object"),
        (b"true", "x.jsonl:3 is true or false, not a JSON object"),
        (b"null", "x.jsonl:3 is null, not a JSON object"),
        (b'{"id": ["a"]}', "x.jsonl:3: field id is ['a'], not a name"),
        (b'{"id": true}', "x.jsonl:3: field id is True, not a name"),
        (b'{"id": 1.5}', "x.jsonl:3: field id is 1.5, not a name"),
        (b'{"id": "a.b"}', "x.jsonl:3: 'a.b' cannot be a sample's key"),
        (b'{"id": ""}', "x.jsonl:3: '' cannot be a sample's key"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    """File, line number and what is wrong; blank lines count as lines."""
    with pytest.raises(InputError) as caught:
        lines_of(tmp_path / "x.jsonl", b'{"id": "ok"}\n\n' + line + b"\n{}\n")

    assert caught.value.message.startswith(said)
    assert caught.value.hint or "not a name" in said


def test_duplicate_keys_are_listed_with_their_places(tmp_path: Path) -> None:
    """Ten are listed, the rest counted, over file boundaries."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(b"".join(b'{"id": "k%d"}\n' % n for n in range(12)))
    two.write_bytes(b"".join(b'{"id": "k%d"}\n' % n for n in range(12)))
    files = [LineFile(path.name, str(path)) for path in (one, two)]

    with pytest.raises(InputError, match=r"^12 duplicate keys \(k0 \(one\.jsonl:1 and two\.jsonl:1\), ") as caught:
        list_lines(files, key_field="id")

    assert caught.value.message.endswith("k9 (one.jsonl:10 and two.jsonl:10), and 2 more)")
    assert "pack.key_field" in str(caught.value.hint)


def test_identical_nameless_records_are_duplicates(tmp_path: Path) -> None:
    """They would be one sample; which of the two places to mend is said."""
    with pytest.raises(InputError, match=r"1 duplicate key \([0-9a-f]{16} \(x\.jsonl:1 and x\.jsonl:3\)\)"):
        lines_of(tmp_path / "x.jsonl", b'{"t": 1}\n{"t": 2}\n{"t": 1}\n')


def test_a_batch_travels_and_reads_over_files(tmp_path: Path) -> None:
    """Any choice of records in any order, pickled, gives their bytes; sizes and digests were known before."""
    files = []
    for name in ("a", "b", "c"):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"".join(b'{"id": "%s%d", "t": "%s"}\n' % (name.encode(), n, b"x" * n) for n in range(5)))
        files.append(LineFile(path.name, str(path)))
    lines = list_lines(files, key_field="id")
    chosen = np.array([14, 0, 7, 8, 1])

    batch = pickle.loads(pickle.dumps(lines.take(chosen)))
    samples = list(batch.samples())

    assert len(batch) == 5
    assert [sample.key for sample in samples] == ["c4", "a0", "b2", "b3", "a1"]
    assert [sample_digest(sample.parts) for sample in samples] == lines.digests(chosen)
    assert lines.part_bytes[chosen].tolist() == [len(sample.parts["json"]) for sample in samples]
    assert lines.shard_bytes[chosen].tolist() == [member_bytes(len(sample.parts["json"])) for sample in samples]
    assert lines.where(8) == "b.jsonl:4"


def test_a_file_that_is_gone_closes_nothing_of_others(tmp_path: Path) -> None:
    """The descriptor of the file before it is closed once: a second time would close what another thread opened."""
    files = []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b'{"id": "%s"}\n' % name.encode())
        files.append(LineFile(name, str(tmp_path / name)))
    batch = list_lines(files, key_field="id").take(np.array([0, 1]))
    (tmp_path / "b").unlink()

    with pytest.raises(FileNotFoundError, match="b"):
        list(batch.samples())


@pytest.mark.parametrize("line", [b'{"id": "%s"}' % (b"x" * 300), b'{"id": "%s"}' % ("\u00e9".encode() * 60)])
def test_a_key_that_a_tar_cannot_hold_is_refused_while_lines_are_listed(tmp_path: Path, line: bytes) -> None:
    """Not by a worker in the middle of a shard."""
    (tmp_path / "a.jsonl").write_bytes(line)

    with pytest.raises(InputError, match=r"a\.jsonl:1: .* more than a tar \(USTAR\) name holds"):
        list_lines([LineFile("a.jsonl", str(tmp_path / "a.jsonl"))], key_field="id")


def test_files_that_a_tar_cannot_hold_are_listed(tmp_path: Path) -> None:
    """Names that are too long and parts that are too large, so that a dry run tells them as well."""
    files = [("x" * 300 + ".txt", 1), ("big.bin", 8**11), ("d" * 150 + "/" + "y" * 90 + ".txt", 1), ("ok.txt", 1)]

    with pytest.raises(InputError, match=r"2 files .*cannot be packed") as caught:
        list_files(str(tmp_path), files=files)

    assert "more than a tar (USTAR) name holds" in caught.value.message
    assert f"big.bin has {8**11} bytes" in caught.value.message


def test_a_line_that_changes_in_between_is_refused(tmp_path: Path) -> None:
    """Same size, other bytes: the digest of the listing tells."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "a"}\n{"id": "b"}\n')
    lines = list_lines([LineFile("x.jsonl", str(path))], key_field="id")
    path.write_bytes(b'{"id": "a"}\n{"id": "c"}\n')

    with pytest.raises(InputError, match=r"x\.jsonl:2 changed while it was packed"):
        list(lines.take(np.arange(2)).samples())


def write(root: Path, files: dict[str, bytes]) -> list[tuple[str, int]]:
    """Write files below a folder and list them."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return [(name, len(data)) for name, data in files.items()]


def test_files_that_share_a_stem_are_a_sample(tmp_path: Path) -> None:
    """Cut at the first dot of the file's name; parts in lower case; samples in the order of their keys."""
    files = {
        "b/2.jpg": b"two",
        "a.txt": b"text",
        "b/1.seg.png": b"mask",
        "b/1.JPG": b"one",
        "b/2.json": b"{}",
        "v1.0/x.cls": b"",
    }

    table = list_files(str(tmp_path), files=write(tmp_path, files))
    everything = np.arange(len(table.keys))
    samples = list(pickle.loads(pickle.dumps(table.take(everything))).samples())

    assert samples == [
        Sample("a", {"txt": b"text"}),
        Sample("b/1", {"jpg": b"one", "seg.png": b"mask"}),
        Sample("b/2", {"jpg": b"two", "json": b"{}"}),
        Sample("v1.0/x", {"cls": b""}),
    ]
    assert table.part_bytes.tolist() == [4, 7, 5, 0]
    assert table.shard_bytes.tolist() == [1024, 2048, 2048, 512]
    assert table.digests(everything) is None


def test_files_that_cannot_be_parts_are_listed(tmp_path: Path) -> None:
    """All of them at once, each with its rule."""
    files = {"README": b"", "a.jpg": b"", "a.JPG": b"", "x..png": b"", "__m__.json": b"", "ok.txt": b""}

    with pytest.raises(InputError) as caught:
        list_files(str(tmp_path), files=write(tmp_path, files))

    message = caught.value.message
    assert message.startswith("4 files (")
    assert message.endswith("cannot be packed")
    for name in ("README: ", "x..png: ", "__m__.json: ", "a.jpg: another file is the same part"):
        assert name in message
    assert "ok.txt" not in message


@pytest.mark.parametrize("now", [b"", b"shorter", b"longer than it was listed"])
def test_a_file_that_changes_size_in_between_is_refused(tmp_path: Path, now: bytes) -> None:
    """Shorter or longer: one byte more than listed is asked for."""
    table = list_files(str(tmp_path), files=write(tmp_path, {"a.txt": b"as listed"}))
    (tmp_path / "a.txt").write_bytes(now)

    with pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        list(table.take(np.arange(1)).samples())
