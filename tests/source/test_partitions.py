"""What `source/partitions` promises: the columns in names of folders are those that pyarrow reads, or it is said."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
import pytest

from datakit.errors import InputError
from datakit.events import Caution, Event, Note
from datakit.pack.build import pack
from datakit.source.partitions import values_of
from support.packing import samples_of

FOLDERS = [
    "dt=2024-01-01/year=2024/m=01/n=-7/big=3000000000/x=a%20b",
    "dt=2024-01-02/year=2025/m=12/n=7/big=5/x=__HIVE_DEFAULT_PARTITION__",
]
"""Text, numbers, numbers too large, what is encoded, and an empty cell."""


def write(root: Path, folder: str, ids: list[str], *, suffix: str = "parquet", **columns: object) -> None:
    """A file of rows with these ids below a folder of that name."""
    (root / folder).mkdir(parents=True)
    rows = [{"id": key, "v": number, **columns} for number, key in enumerate(ids)]
    path = root / folder / f"part-0.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def packed(root: Path, dest: Path) -> tuple[dict[str, object], list[Event]]:
    """The `json` of each sample by its key, and what was told."""
    told: list[Event] = []
    pack(root, dest, on_event=told.append)
    return {sample.key: json.loads(sample.parts["json"]) for sample in samples_of(dest)}, told


def test_rows_get_the_columns_that_pyarrow_reads_there(tmp_path: Path) -> None:
    """Value and type, of every row; and it is said."""
    for number, folder in enumerate(FOLDERS):
        write(tmp_path / "raw", folder, [f"{number}-{row}" for row in range(3)])

    found, told = packed(tmp_path / "raw", tmp_path / "ds")

    read = arrow_dataset.dataset(tmp_path / "raw", partitioning="hive").to_table().to_pylist()
    assert found == {row["id"]: row for row in read}
    assert list(found["0-0"]) == ["id", "v", "dt", "year", "m", "n", "big", "x"]  # type: ignore[call-overload]  # of JSON
    assert Note("names of folders hold dt, year, m, n, big, x: read as columns") in told


def test_a_column_of_the_file_itself_stays(tmp_path: Path) -> None:
    """Some writers keep it in both places."""
    write(tmp_path / "raw", "dt=2024-01-01", ["a"], dt="own")

    found, _ = packed(tmp_path / "raw", tmp_path / "ds")

    assert found == {"a": {"id": "a", "v": 0, "dt": "own"}}


def test_values_of_csv_stay_text(tmp_path: Path) -> None:
    """As all its cells do; a file beside the folders has no such column."""
    write(tmp_path / "raw", "year=2024/x=__HIVE_DEFAULT_PARTITION__", ["a"], suffix="csv")
    write(tmp_path / "raw", "rest", ["b"], suffix="csv")

    found, _ = packed(tmp_path / "raw", tmp_path / "ds")

    assert found == {"a": {"id": "a", "v": "0", "year": "2024", "x": None}, "b": {"id": "b", "v": "0"}}


def test_lines_pass_untouched_and_it_is_said(tmp_path: Path) -> None:
    """Their bytes are the record: what the folders say is in none."""
    write(tmp_path / "raw", "lang=en/dt=1", ["a"], suffix="jsonl")
    write(tmp_path / "raw", "lang=de/dt=1", ["b"], suffix="jsonl")

    found, told = packed(tmp_path / "raw", tmp_path / "ds")

    assert found == {"a": {"id": "a", "v": 0}, "b": {"id": "b", "v": 0}}
    said = [event.message for event in told if isinstance(event, Caution)]
    assert said == ["names of folders hold lang, dt, which no record does"]


def test_one_column_of_two_folders_is_refused(tmp_path: Path) -> None:
    """There is no telling which."""
    write(tmp_path / "raw", "a=1/a=2", ["x"])

    with pytest.raises(InputError, match=r"a=1/a=2/part-0\.parquet: two of its folders name one column"):
        pack(tmp_path / "raw", tmp_path / "ds")


def test_names_that_are_no_columns_name_none() -> None:
    """A sign without a name, and the file's own name."""
    assert values_of(["=1/a/x=y.parquet", "b.parquet"]) == {"=1/a/x=y.parquet": {}, "b.parquet": {}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("-0", 0),
        (str(2**31 - 1), 2**31 - 1),
        (str(-(2**31)), -(2**31)),
        (str(2**31), str(2**31)),
        ("0" * 18 + "9999999999", "0" * 18 + "9999999999"),
        ("0" * 30 + "42", 42),
        ("1_0", "1_0"),
        ("\u0663", "\u0663"),
        ("-", "-"),
    ],
)
def test_whole_numbers_of_32_bits_are_numbers(text: str, value: int | str) -> None:
    """However many zeros stand before them; anything else is text."""
    assert values_of([f"n={text}/a.parquet"]) == {f"n={text}/a.parquet": {"n": value}}


@pytest.mark.parametrize("folder", ["x=%FF", "%C3=1"])
def test_a_name_that_decodes_to_no_text_is_refused(folder: str) -> None:
    """Two such values would become one."""
    with pytest.raises(InputError, match="is not UTF-8 once its %XX are decoded"):
        values_of([f"{folder}/a.parquet"])
