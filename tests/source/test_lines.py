"""source/lines: lines as a table, every bad one named, bytes untouched."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.data.shard import Sample, member_bytes, sample_digest
from datakit.source.lines import Lines, list_lines
from datakit.source.naming import Naming
from datakit.source.spans import LineFile
from datakit.source.troubles import Trouble, refusal

OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["a", "text", "n"]), st.text(max_size=20) | st.integers(), max_size=3), max_size=8
)


def listed(paths: Sequence[Path], *, key_field: str = "id") -> Lines:
    """The table of some files; any trouble is raised."""
    lines = list_lines([LineFile(path.name, str(path)) for path in paths], naming=Naming(key_field))
    if lines.troubles:
        raise refusal(lines.troubles)
    return lines


def lines_of(path: Path, data: bytes, *, key_field: str = "id") -> list[Sample]:
    """The samples of one JSON lines file."""
    path.write_bytes(data)
    lines = listed([path], key_field=key_field)
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
    others = [sample.key for sample in lines_of(tmp_path / "x.jsonl", data, key_field="")]

    assert keys == ["7", others[1], others[2]]
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in others)
    assert len(set(others)) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "x"', "x.jsonl:3: not JSON: unexpected end of data"),
        (b"plain text, and more of it", "x.jsonl:3: not JSON: it begins with 'plain text, and more'"),
        (b'{"a": NaN}', "x.jsonl:3: not JSON: unexpected character, expected a JSON value (character 7)"),
        (b'\xef\xbb\xbf{"a": 1}', "x.jsonl:3: not JSON: it has a byte-order mark"),
        (b'{"a": "\xff"}', "x.jsonl:3: not JSON: it is not UTF-8"),
        (b'{"a": "\\ud800"}', "x.jsonl:3: not JSON"),
        (b"[1, 2]", "x.jsonl:3: an array, not a JSON object"),
        (b'"text"', "x.jsonl:3: a string, not a JSON object"),
        (b"12", "x.jsonl:3: a number, not a JSON object"),
        (b"true", "x.jsonl:3: true or false, not a JSON object"),
        (b"null", "x.jsonl:3: null, not a JSON object"),
        (b"{", "x.jsonl:3: an object begins that goes on in the next lines"),
        (b'{"id": "x", "n": {"id": 1}, "id": "y"}', "x.jsonl:3: it has the field id twice"),
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
    assert caught.value.hint


def test_a_field_that_other_objects_have_too_names_its_own(tmp_path: Path) -> None:
    """Once outside is once, however often it stands inside; also where something inside is lost to every parser."""
    lines = [
        b'{"turns": [{"id": "u"}, {"id": "v"}], "id": "a", "text": "\\"id\\": \\"x\\""}',
        b'{"id": "b", "of": {"id": 1, "id": 2}}',
        b'{"id": "c", "deep": ' + b'[{"id": 1, "id": 2}, ' * 500 + b"1" + b"]" * 500 + b"}",
    ]

    assert [sample.key for sample in lines_of(tmp_path / "x.jsonl", b"\n".join(lines))] == ["a", "b", "c"]


def test_duplicate_keys_are_listed_with_their_places(tmp_path: Path) -> None:
    """Three are listed, the rest counted, over file boundaries."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(b"".join(b'{"id": "k%d"}\n' % n for n in range(12)))
    two.write_bytes(b"".join(b'{"id": "k%d"}\n' % n for n in range(12)))

    with pytest.raises(
        InputError, match=r"^12 offenders \(two\.jsonl:1: its key k0 is that of one\.jsonl:1, "
    ) as caught:
        listed([one, two])

    assert caught.value.message.endswith("k2 is that of one.jsonl:3, and 9 more) cannot be packed")
    assert "pack.key_field" in str(caught.value.hint)


def test_identical_nameless_records_are_duplicates(tmp_path: Path) -> None:
    """They would be one sample; which of the two places to mend is said."""
    with pytest.raises(InputError, match=r"x\.jsonl:3: its key [0-9a-f]{16} is that of x\.jsonl:1"):
        lines_of(tmp_path / "x.jsonl", b'{"t": 1}\n{"t": 2}\n{"t": 1}\n')


def test_what_is_left_of_clashing_records_is_the_first_of_each(tmp_path: Path) -> None:
    """The table goes on without the others, over files; places and bytes still belong to their keys."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(b'{"id": "a", "n": 1}\n{"id": "A"}\n{"id": "b"}\n{"id": "a"}\n')
    two.write_bytes(b'{"id": "B"}\n{"id": "c", "n": 22}\nnothing\n{"id": "d"}\n')

    lines = list_lines([LineFile(path.name, str(path)) for path in (one, two)])

    everything = np.arange(len(lines.keys))
    assert [(sample.key, sample.parts["json"]) for sample in lines.take(everything).samples()] == [
        ("a", b'{"id": "a", "n": 1}'),
        ("b", b'{"id": "b"}'),
        ("c", b'{"id": "c", "n": 22}'),
        ("d", b'{"id": "d"}'),
    ]
    assert lines.where([3, 0]) == {0: "one.jsonl:1", 3: "two.jsonl:4"}
    assert [(trouble.where, trouble.key) for trouble in lines.troubles] == [
        ("two.jsonl:3", None),
        ("one.jsonl:2", "A"),
        ("one.jsonl:4", "a"),
        ("two.jsonl:1", "B"),
    ]
    for trouble in lines.troubles:
        (raw,) = trouble.raws
        data = Path(raw.path).read_bytes()[raw.offset : raw.offset + raw.size]
        assert data in (b"nothing", b'{"id": "A"}', b'{"id": "a"}', b'{"id": "B"}')


def test_a_byte_order_mark_at_the_start_is_left_out_and_said(tmp_path: Path) -> None:
    """It belongs to the file, not to the first record; inside a file it is no JSON."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a"}\n{"id": "b"}\n')

    lines = listed([path])

    assert [sample.parts["json"] for sample in lines.take(np.arange(2)).samples()] == [b'{"id": "a"}', b'{"id": "b"}']
    assert [remark.message for remark in lines.remarks] == ["x.jsonl begins with a byte-order mark, which is left out"]


def test_a_record_takes_less_than_65_bytes_at_rest(tmp_path: Path) -> None:
    """Every column of the table together, with keys of 16 bytes."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(20_000)))

    lines = listed([path])

    keys = lines.keys
    columns = (keys.lengths, keys.hashes(), keys.places, lines.offsets, lines.sizes, lines.digests, lines.firsts)
    assert (len(keys.text) + sum(column.nbytes for column in columns)) / len(keys) < 65


def test_no_line_at_all_is_an_empty_table(tmp_path: Path) -> None:
    """An empty file, and one of blank lines."""
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n \n")

    lines = listed([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])

    assert len(lines.keys) == len(lines.part_bytes(slice(0, 0))) == len(lines.shard_bytes(slice(0, 0))) == 0
    assert lines.part_counts == {}


def test_a_batch_travels_and_reads_over_files(tmp_path: Path) -> None:
    """Any choice of records in any order, pickled, gives their bytes; sizes and digests were known before."""
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        path.write_bytes(b"".join(b'{"id": "%s%d", "t": "%s"}\n' % (path.stem.encode(), n, b"x" * n) for n in range(5)))
    lines = listed(paths)
    chosen = np.array([14, 0, 7, 8, 1])

    batch = pickle.loads(pickle.dumps(lines.take(chosen)))
    samples = list(batch.samples())

    assert len(batch) == 5
    assert [sample.key for sample in samples] == ["c4", "a0", "b2", "b3", "a1"]
    assert [sample_digest(sample.parts) for sample in samples] == lines.signatures(chosen)
    assert lines.part_bytes(slice(0, len(lines.keys)))[chosen].tolist() == [
        len(sample.parts["json"]) for sample in samples
    ]
    assert lines.shard_bytes(slice(0, len(lines.keys)))[chosen].tolist() == [
        member_bytes(len(sample.parts["json"])) for sample in samples
    ]
    assert lines.where([8]) == {8: "b.jsonl:4"}
    assert lines.exact
    assert lines.part_counts == {"json": 15}


def test_a_file_that_is_gone_closes_nothing_of_others(tmp_path: Path) -> None:
    """The descriptor of the file before it is closed once: a second time would close what another thread opened."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b'{"id": "%s"}\n' % name.encode())
    batch = listed([tmp_path / "a", tmp_path / "b"]).take(np.array([0, 1]))
    (tmp_path / "b").unlink()

    with pytest.raises(InputError, match="b changed while it was packed"):
        list(batch.samples())


@pytest.mark.parametrize("line", [b'{"id": "%s"}' % (b"x" * 300), b'{"id": "%s"}' % ("\u00e9".encode() * 60)])
def test_a_key_that_a_tar_cannot_hold_is_refused_while_lines_are_listed(tmp_path: Path, line: bytes) -> None:
    """Not by a worker in the middle of a shard."""
    (tmp_path / "a.jsonl").write_bytes(line)

    with pytest.raises(InputError, match=r"a\.jsonl:1: .* more than a tar \(USTAR\) name holds"):
        listed([tmp_path / "a.jsonl"])


def test_a_line_that_changes_in_between_is_refused(tmp_path: Path) -> None:
    """Same size, other bytes: the digest of the listing tells."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "a"}\n{"id": "b"}\n')
    lines = listed([path])
    path.write_bytes(b'{"id": "a"}\n{"id": "c"}\n')

    with pytest.raises(InputError, match=r"x\.jsonl:2 changed while it was packed"):
        list(lines.take(np.arange(2)).samples())


def test_ids_that_break_a_rule_can_be_escaped(tmp_path: Path) -> None:
    """The key is the id with such letters as %XX; the line keeps the id as it was."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "v1.2"}\n{"id": "a//b"}\n{"id": "50%"}\n{"id": ""}\n')

    lines = list_lines([LineFile("x.jsonl", str(path))], naming=Naming(escape="percent"))

    assert list(lines.keys) == ["v1%2E2", "a%2F%2Fb", "50%25"]
    assert next(lines.take(np.arange(1)).samples()).parts == {"json": b'{"id": "v1.2"}'}
    assert [trouble.where for trouble in lines.troubles] == ["x.jsonl:4"]


def test_items_of_an_array_are_said_to_be_that(tmp_path: Path) -> None:
    """The table remarks on it, and an offender is named by its place in the array."""
    path = tmp_path / "x"
    path.write_bytes(b'{"id": "a"}\nno\n{"id": "b"}\n')

    lines = list_lines([LineFile("x.json", str(path), is_array=True)])

    assert [remark.message for remark in lines.remarks] == ["x.json is a JSON array; its items are the records"]
    assert [trouble.where for trouble in lines.troubles] == ["x.json[1]"]


def test_what_is_known_not_to_be_readable_stays_told(tmp_path: Path) -> None:
    """A listing adds to what the walk over the source has found."""
    (tmp_path / "x").write_bytes(b"{}\n")

    lines = list_lines([LineFile("x", str(tmp_path / "x"))], troubles=[Trouble("y.jsonl", "may not be read")])

    assert [str(trouble) for trouble in lines.troubles] == ["y.jsonl: may not be read"]


def test_a_line_larger_than_one_read_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read gives 2 GiB at most, a line may have 4."""
    line = b'{"id": "a", "text": "long"}'
    (tmp_path / "x.jsonl").write_bytes(line + b"\n")
    lines = listed([tmp_path / "x.jsonl"])
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: whole(descriptor, min(size, 3), offset))

    assert [sample.parts for sample in lines.take(np.arange(1)).samples()] == [{"json": line}]
