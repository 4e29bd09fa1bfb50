"""source/tables: rows of Parquet, CSV and saved datasets, as pyarrow, csv and datasets read them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.events import Event, Note
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from support.packing import samples_of, tree

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FIELDS = st.text(alphabet='ab,"\n\r\té ', max_size=6)


def table_of(count: int, *, start: int = 0) -> pa.Table:
    """A table of ids, numbers, nested turns and images."""
    numbers = range(start, start + count)
    return pa.table({
        "id": [f"r{n:04d}" for n in numbers],
        "score": pa.array([n / 7 for n in numbers], pa.float32()),
        "turns": [[{"role": "user", "content": "x" * (n % 50)}] for n in numbers],
        "image": pa.array([{"bytes": b"img%d" % n, "path": f"{n}.png"} for n in numbers], MEDIA),
    })  # fmt: skip


def objects(dataset: Path) -> dict[str, dict[str, Any]]:
    """The `json` part of each sample, by key."""
    return {sample.key: json.loads(sample.parts["json"]) for sample in samples_of(dataset)}


def test_parquet_holds_what_pyarrow_reads(tmp_path: Path) -> None:
    """Several files, several row groups, rows in order; the values of every column."""
    (tmp_path / "raw").mkdir()
    tables = [table_of(100), table_of(150, start=100)]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / "raw" / f"{number}.parquet", row_group_size=40)

    result = pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(shard_size="16KiB"))

    expected = pa.concat_tables(tables).to_pylist()
    found = objects(tmp_path / "ds")
    assert result.records == 250
    assert found == {row["id"]: {name: row[name] for name in ("id", "score", "turns")} for row in expected}
    images = {sample.key: sample.parts["png"] for sample in samples_of(tmp_path / "ds")}
    assert images == {row["id"]: row["image"]["bytes"] for row in expected}


def test_datasets_reads_the_same_values_from_our_shards(tmp_path: Path) -> None:
    """Hugging Face's own reader of such tars."""
    pq.write_table(table_of(30).select(["id", "score", "turns"]), tmp_path / "x.parquet")
    pack(tmp_path / "x.parquet", tmp_path / "ds")

    shards = [str(path) for path in (tmp_path / "ds").glob("*.tar")]
    read = load_dataset("webdataset", data_files=shards, split="train", cache_dir=str(tmp_path / "cache"))

    expected = {row["id"]: row for row in table_of(30).select(["id", "score", "turns"]).to_pylist()}
    assert {row["__key__"]: row["json"] for row in read} == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    """Nor on row groups: rows are rows."""
    for name, group in (("a", 7), ("b", 1000)):
        (tmp_path / name).mkdir()
        pq.write_table(table_of(200), tmp_path / name / "x.parquet", row_group_size=group)

    pack(tmp_path / "a", tmp_path / "one" / "ds", workers=workers)
    pack(tmp_path / "b", tmp_path / "two" / "ds")

    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_saved_dataset_holds_what_datasets_reads(tmp_path: Path) -> None:
    """Several files, in the order of its state; a filtered one holds what is left."""
    saved = Dataset(table_of(60))
    saved.save_to_disk(tmp_path / "whole", num_shards=3)
    saved.filter(lambda row: row["id"] > "r0039").save_to_disk(tmp_path / "some")

    pack(tmp_path / "whole", tmp_path / "one")
    pack(tmp_path / "some", tmp_path / "two")

    expected = {row["id"]: {name: row[name] for name in ("id", "score", "turns")} for row in table_of(60).to_pylist()}
    assert objects(tmp_path / "one") == expected
    assert objects(tmp_path / "two") == {key: row for key, row in expected.items() if key > "r0039"}
    assert {tuple(sample.parts) for sample in samples_of(tmp_path / "one")} == {("json", "png")}


def test_what_a_tables_columns_lose_is_said_once(tmp_path: Path) -> None:
    """However many files and row groups it has."""
    (tmp_path / "raw").mkdir()
    table = pa.table({"id": [f"r{number}" for number in range(6)], "lag": pa.array(range(6), pa.duration("s"))})
    for name in ("a", "b"):
        pq.write_table(table.slice("ab".index(name) * 3, 3), tmp_path / "raw" / f"{name}.parquet", row_group_size=1)
    heard: list[Event] = []

    pack(tmp_path / "raw", tmp_path / "ds", on_event=heard.append)

    said = [event.message for event in heard if isinstance(event, Note) and "durations" in event.message]
    assert said == ["column lag holds durations, which are written as a number of seconds"]


def test_a_saved_dataset_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    """Its state names it."""
    Dataset(table_of(20)).save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()

    with pytest.raises(InputError, match=r"state\.json names data-00001-of-00002\.arrow, which is not there"):
        pack(tmp_path / "saved", tmp_path / "ds")


@pytest.mark.parametrize("state", ["{", "[]", "null", "{}", '{"_data_files": 5}', '{"_data_files": ["a"]}', "\xff"])
def test_a_saved_dataset_whose_state_is_torn_is_refused(tmp_path: Path, state: str) -> None:
    """It says in which files the rows are; without it any file could be missing."""
    Dataset(table_of(20)).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text(state, encoding="latin-1")

    with pytest.raises(InputError, match=r"saved/state\.json does not say in which files the rows are"):
        pack(tmp_path / "saved", tmp_path / "ds")


def test_a_saved_dataset_that_was_cut_between_two_batches_is_refused(tmp_path: Path) -> None:
    """Each batch reads well, and only the mark behind the last tells that there were no more; nothing may follow it."""
    Dataset(pa.table({"id": [f"r{number:04d}" for number in range(2500)]})).save_to_disk(tmp_path / "saved")
    path = tmp_path / "saved" / "data-00000-of-00001.arrow"
    data = path.read_bytes()
    with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
        ends = [file.tell(), *(file.tell() for _ in stream)]

    for wrong in (*(data[:end] for end in ends), data + data):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=rf"{path.name}: the mark that ends its rows does not stand at byte \d+"):
            pack(tmp_path / "saved", tmp_path / "ds")

    assert len(ends) == 4


@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=8))
def test_csv_holds_what_csv_reads(tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, str]]) -> None:
    """Commas, quotes and line feeds inside quotes; every value is text."""
    root = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["id", "a", "b"], ["first", "", "x"], *([str(n), *row] for n, row in enumerate(values))])
    (root / "x.csv").write_bytes(text.getvalue().encode())

    pack(root / "x.csv", root / "ds")

    expected = {str(n): {"id": str(n), "a": a, "b": b} for n, (a, b) in enumerate(values)}
    assert objects(root / "ds") == {"first": {"id": "first", "a": "", "b": "x"}, **expected}


def test_tabs_compression_and_a_mark_make_no_difference(tmp_path: Path) -> None:
    """The same rows, the same bytes."""
    rows = "".join(f"k{n}|text {n}|{n}\n" for n in range(50))
    for name, separator in (("a", ","), ("b", "\t")):
        (tmp_path / name).mkdir()
        text = ("id|t|n\n" + rows).replace("|", separator).encode()
        path = tmp_path / name / ("x.csv" if separator == "," else "x.tsv.gz")
        path.write_bytes(b"\xef\xbb\xbf" + text if separator == "," else gzip.compress(text))
        pack(path, tmp_path / name / "out" / "ds")

    assert tree(tmp_path / "a" / "out") == tree(tmp_path / "b" / "out")
    assert objects(tmp_path / "a" / "out" / "ds")["k7"] == {"id": "k7", "t": "text 7", "n": "7"}


@pytest.mark.parametrize(("name", "separator"), [("a.tsv.csv", ","), ("a.csv.tsv", "\t"), ("a.tsv.csv.gz", ",")])
def test_the_last_ending_says_what_separates(tmp_path: Path, name: str, separator: str) -> None:
    """As it says of which kind the file is."""
    text = "id|n\na|1\n".replace("|", separator).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    pack(tmp_path / name, tmp_path / "ds")

    assert objects(tmp_path / "ds") == {"a": {"id": "a", "n": "1"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"id,a\nx,1\ny,2,3\n", r"x\.csv:3: it has 3 fields, the header 2"),
        (b'id,a\n"x\ny",1\nz\n', r"x\.csv:4: it has 1 field, the header 2"),
        (b"id,a\nx.y,1\n", r"x\.csv:2: 'x\.y' cannot be a sample's key"),
        (b"id,a\nx,1\nx,2\n", r"x\.csv:3: its key x is that of x\.csv:2"),
        (b"id,id\nx,1\n", r"x\.csv: two columns are called id"),
        (b"id;a\nx;1\n", r"x\.csv: its header is one column, 'id;a', with semicolons"),
        (b'id,a\nx,"1\n', r"x\.csv cannot be read from line 2 on: unexpected end of data"),
        (b"id,a\nx,caf\xe9\n", r"x\.csv cannot be read from line 2 on: it is not UTF-8"),
        (b"id,a\n" + b"x,1\n" * 9000 + b"x,\xff\n", r"x\.csv cannot be read from line 9002 on: it is not UTF-8"),
        (b"", r"x\.csv is empty"),
        (b"id,a\n", r"is empty: it holds no records"),
    ],
)
def test_csv_that_is_none_is_told_with_its_line(tmp_path: Path, text: bytes, said: str) -> None:
    """Where it is, and what."""
    (tmp_path / "x.csv").write_bytes(text)

    with pytest.raises(InputError, match=said):
        pack(tmp_path / "x.csv", tmp_path / "ds")


def test_rows_that_cannot_be_packed_can_be_left_out(tmp_path: Path) -> None:
    """Numbers of rows count over row groups; blank lines of a CSV file are no rows."""
    table = pa.table({"id": ["a", "b", "c", "d"], "x": [1.0, float("nan"), 3.0, float("inf")]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    (tmp_path / "x.csv").write_bytes(b"id,a\n\nx,1\n\ny\n")

    pack(tmp_path / "x.parquet", tmp_path / "one", settings=PackSettings(on_error="skip"))
    pack(tmp_path / "x.csv", tmp_path / "two", settings=PackSettings(on_error="skip"))

    reports = [
        [json.loads(line)["where"] for line in (tmp_path / f"{name}.errors.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert reports == [["x.parquet:2", "x.parquet:4"], ["x.csv:5"]]
    assert (sorted(objects(tmp_path / "one")), sorted(objects(tmp_path / "two"))) == (["a", "c"], ["x"])


def test_rows_without_an_id_are_named_by_their_bytes(tmp_path: Path) -> None:
    """16 hex digits; two rows of one content are one sample too many."""
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")

    pack(tmp_path / "x.parquet", tmp_path / "ds")

    keys = list(objects(tmp_path / "ds"))
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    pq.write_table(pa.table({"x": [1, 1]}), tmp_path / "y.parquet")
    with pytest.raises(InputError, match=r"y\.parquet:2: its key [0-9a-f]{16} is that of y\.parquet:1"):
        pack(tmp_path / "y.parquet", tmp_path / "two")


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_damaged_table_is_named(tmp_path: Path, name: str) -> None:
    """Cut short, or no such file at all."""
    root = tmp_path / "raw"
    if name == "x.parquet":
        root.mkdir()
        pq.write_table(table_of(50), root / name)
        path = root / name
    else:
        Dataset(table_of(50)).save_to_disk(root)
        path = root / "data-00000-of-00001.arrow"
    whole = path.read_bytes()

    for data in (whole[: len(whole) // 2], b"plain text" * 10):
        path.write_bytes(data)
        with pytest.raises(InputError, match=rf"{path.name} cannot be read"):
            pack(root, tmp_path / "ds")


def test_a_flipped_bit_in_a_page_with_a_checksum_is_found(tmp_path: Path) -> None:
    """Parquet may carry a CRC-32 of each page; what does not match it is never packed."""
    path = tmp_path / "x.parquet"
    text = "a text that stands in the page as it is " * 20
    pq.write_table(
        pa.table({"id": ["a"], "t": [text]}),
        path,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    data = bytearray(path.read_bytes())
    data[data.find(text.encode()) + 7] ^= 1
    path.write_bytes(data)

    with pytest.raises(InputError, match=r"x\.parquet cannot be read: .*CRC"):
        pack(path, tmp_path / "ds")


def test_more_bad_rows_than_are_tolerated_end_the_listing(tmp_path: Path) -> None:
    """Of a file of another kind, one message a row helps nobody."""
    (tmp_path / "x.csv").write_bytes(b"id,a\n" + b"x\n" * 500)

    with pytest.raises(InputError, match=r"^more than 10 offenders .* which --max-errors 10 does not"):
        pack(tmp_path / "x.csv", tmp_path / "ds", settings=PackSettings(on_error="skip", max_errors=10))


def test_how_many_rows_are_bad_is_not_said_where_it_is_not_known(tmp_path: Path) -> None:
    """Looking ends after a thousand, and the message is short, however long the cells are."""
    rows = "".join(f"{number},{'long. ' * 100}{number}\n" for number in range(3000))
    (tmp_path / "x.csv").write_text(f"id,text\n{rows}")

    with pytest.raises(InputError, match=r"^more than 1,000 offenders \(x\.csv:2: ") as caught:
        pack(tmp_path / "x.csv", tmp_path / "ds", settings=PackSettings(key_field="text"))

    assert len(caught.value.message) < 320


@pytest.mark.parametrize("name", ["raw.csv", "raw.parquet"])
def test_a_file_of_any_number_of_rows_is_listed_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The same dataset, offenders included, whether columns of a task are laid down meanwhile or not."""
    rows = [{"id": "" if n == 40 else "r5" if n == 50 else f"r{n}", "text": "x" * (n % 9)} for n in range(100)]
    if name == "raw.csv":
        (tmp_path / name).write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    words = PackSettings(shard_size="16KiB", on_error="skip", name="ds")
    results = []

    for place, held_rows in (("one", 2**17), ("other", 7)):
        monkeypatch.setattr("datakit.source.tables.HELD_ROWS", held_rows)
        results.append(pack(tmp_path / name, tmp_path / place / "ds", settings=words, workers=1))

    assert [result.records for result in results] == [98, 98]
    assert tree(tmp_path / "one") == tree(tmp_path / "other")
