"""source/listing: a table for every kind of source, and troubles that stop it or not."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit import InputError
from datakit.events import Note
from datakit.pack.build import pack
from datakit.source.fetching import fetched
from datakit.source.listing import list_records
from datakit.source.naming import Naming
from datakit.source.records import Records
from datakit.source.scan import scan


def listed(src: Path, **words: object) -> Records:
    """The table of a local source."""
    sources = scan(src, fingerprints=False)
    with fetched(sources, src.parent / "spool") as local:
        return list_records(sources, local, **words)  # type: ignore[arg-type]  # by name


def test_records_that_clash_count_where_the_usual_field_is_told_to_be_missing(tmp_path: Path) -> None:
    """One record has a name: it is not said that none has, however many of the others are left out."""
    pq.write_table(pa.table({"id": ["a", None, None, None], "t": ["1", "2", "2", "2"]}), tmp_path / "x.parquet")

    table = listed(tmp_path / "x.parquet", on_error="skip")

    assert [remark.message for remark in table.remarks] == ["3 of 4 records lack the field id and are named by content"]


def test_offenders_stop_the_listing_unless_they_are_tolerated(tmp_path: Path) -> None:
    """All are told at once, whatever found them."""
    root = tmp_path / "raw"
    root.mkdir()
    (root / "a.txt").write_bytes(b"")
    (root / "b.txt").write_bytes(b"x")
    (root / "c.txt").symlink_to("nowhere")

    with pytest.raises(InputError, match=r"2 offenders \(c\.txt: a link to nothing, a\.txt is empty\)") as caught:
        listed(root)
    kept = listed(root, on_error="skip")

    assert "--on-error skip" in str(caught.value.hint)
    assert list(kept.keys) == ["b"]
    assert [trouble.where for trouble in kept.troubles] == ["c.txt", "a.txt"]


def test_names_are_cut_as_the_naming_says(tmp_path: Path) -> None:
    """The default splits `a.b.c.jpg` nowhere, and refuses it; the hint names both ways out."""
    root = tmp_path / "raw"
    root.mkdir()
    (root / "a.b.c.jpg").write_bytes(b"x")

    with pytest.raises(InputError, match=r"'a\.b\.c' cannot be a sample's key") as caught:
        listed(root)

    hint = str(caught.value.hint)
    assert 0 <= hint.index("--escape percent") < hint.index("--key first-dot")
    assert list(listed(root, naming=Naming(rule="first-dot")).keys) == ["a"]
    assert list(listed(root, naming=Naming(escape="percent")).keys) == ["a%2Eb%2Ec"]


def test_of_a_long_name_the_middle_is_cut_and_never_the_reason(tmp_path: Path) -> None:
    """What is wrong stands whole behind each of several names; a reason that two share stands behind the first."""
    root = tmp_path / "raw"
    root.mkdir()
    names = [f"Cats and {'many ' * 20}dogs v1.{number:04d}.jpg" for number in range(2)]
    for name in (*names, f"Mice and {'many ' * 20}rats\t.jpg"):
        (root / name).write_bytes(b"x")

    with pytest.raises(InputError) as caught:
        listed(root)

    assert caught.value.message.count("a key has no dot after its last slash") == 1
    assert caught.value.message.count("it has a control character") == 1
    assert caught.value.message.count(f"{names[0][:45]}...") == 2
    assert caught.value.message.count("dogs v1.0001.jpg: 'Cats and") == 1


def test_a_key_that_takes_in_a_hundred_files_is_told(tmp_path: Path) -> None:
    """Cut at the first dot, `photo.v1.0001.jpg` and all its neighbours are one sample; a rig of 64 cameras is fine."""
    for stem, number in (("photo", 65), ("rig", 64)):
        root = tmp_path / stem
        root.mkdir()
        for one in range(number):
            (root / f"{stem}.v1.{one:04d}.jpg").write_bytes(b"x")

    told = [listed(tmp_path / stem, naming=Naming(rule="first-dot")).remarks for stem in ("photo", "rig")]

    assert [remark.message for remark in told[0]] == ["sample photo has 65 parts: all files whose names begin alike"]
    assert "--escape percent" in str(told[0][0].hint)  # type: ignore[union-attr]  # a caution, which has one
    assert list(told[1]) == []


def test_the_way_out_of_a_crowded_key_is_one_for_its_rule(tmp_path: Path) -> None:
    """The default cuts `photo.mask07` as it does: other names help, and no flag that is set already; in a tar too."""
    (tmp_path / "raw").mkdir()
    with tarfile.open(tmp_path / "raw.tar", "w") as tar:
        for one in range(65):
            (tmp_path / "raw" / f"photo.mask{one:02d}").write_bytes(b"x")
            tar.add(tmp_path / "raw" / f"photo.mask{one:02d}", f"photo.mask{one:02d}")

    for source in ("raw", "raw.tar"):
        (said,) = listed(tmp_path / source).remarks
        assert said.message == "sample photo has 65 parts: all files whose names begin alike"
        assert "--key" not in str(said.hint)  # type: ignore[union-attr]  # a caution, which has one


def test_many_columns_of_images_are_no_names_that_begin_alike(tmp_path: Path) -> None:
    """Nothing was cut in a table, nor in a tar whose index says its keys."""
    columns = {f"c{one:02d}": [b"\xff\xd8\xff\xe0aa"] * 2 for one in range(70)}
    pq.write_table(pa.table({"id": ["a", "b"], **columns}), tmp_path / "wide.parquet")
    pack(tmp_path / "wide.parquet", tmp_path / "ds")

    assert list(listed(tmp_path / "wide.parquet").remarks) == []
    assert list(listed(tmp_path / "ds").remarks) == []


@pytest.mark.parametrize("key_field", ["uid", "id"])
def test_a_field_that_holds_nothing_is_not_said_to_be_missing(tmp_path: Path, key_field: str) -> None:
    """It is there in every record, empty; a record of an image alone has no fields to name."""
    (tmp_path / "x.jsonl").write_text('{"uid": null, "t": 1}\n{"uid": null, "t": 2}\n')
    pq.write_table(pa.table({key_field: pa.nulls(2, pa.string()), "t": [1, 2]}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"img": [b"\xff\xd8\xff\xe0aa", b"\xff\xd8\xff\xe0bb"]}), tmp_path / "img.parquet")

    if key_field == "id":
        (note,) = listed(tmp_path / "x.parquet").remarks
        assert note.message.startswith("no record has a value in id: ")
        return
    said = []
    for name in ("x.jsonl", "x.parquet", "img.parquet"):
        with pytest.raises(InputError) as caught:
            listed(tmp_path / name, naming=Naming("uid"))
        said.append(caught.value.message)

    assert said == ["no record has a value in uid"] * 2 + ["no record has the field uid"]


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_an_array_is_packed_and_said(tmp_path: Path, name: str) -> None:
    """Whatever its file is called."""
    (tmp_path / name).write_bytes(b'[{"id": "a"},\n{"id": "b"}]\n')

    table = listed(tmp_path / name)

    assert list(table.keys) == ["a", "b"]
    assert [remark.message for remark in table.remarks] == [f"{name} is a JSON array; its items are the records"]


@pytest.mark.parametrize("data", [b"[]", b" [\n]\n"])
def test_an_array_without_items_is_not_called_an_empty_file(tmp_path: Path, data: bytes) -> None:
    """To fetch it again would give the same bytes."""
    (tmp_path / "x.json").write_bytes(data)

    with pytest.raises(InputError, match=r"x\.json is an array without items") as caught:
        listed(tmp_path / "x.json")

    assert "etch" not in str(caught.value.hint)


def test_more_offenders_than_are_tolerated_are_still_more(tmp_path: Path) -> None:
    """A span that gives up early has told more than the limit, so that the pack will stop."""
    (tmp_path / "x.jsonl").write_bytes(b"no\n" * 50 + b"{}\n")

    table = listed(tmp_path / "x.jsonl", on_error="skip", max_errors=20)

    assert len(table.troubles) == 21


@pytest.mark.parametrize("names", [("a.jsonl", "b.jsonl"), ("a.csv", "b.csv")])
def test_an_empty_file_among_others_is_an_offender(tmp_path: Path, names: tuple[str, str]) -> None:
    """A download that was lost would go unseen."""
    root = tmp_path / "raw"
    root.mkdir()
    (root / names[0]).write_bytes(b"")
    (root / names[1]).write_bytes(b'{"id": "x"}\n' if names[1].endswith("l") else b"id\nx\n")

    with pytest.raises(InputError, match=f"{names[0]} is empty"):
        listed(root)

    assert list(listed(root, on_error="skip").keys) == ["x"]


def test_hidden_names_that_are_left_out_are_told(tmp_path: Path) -> None:
    """One note with their number and the first: of a folder, and of what is in a tar."""
    raw = tmp_path / "raw"
    (raw / ".git").mkdir(parents=True)
    (raw / "a.txt").write_bytes(b"a")
    (raw / ".b.txt").write_bytes(b"b")
    tars = tmp_path / "tars"
    tars.mkdir()
    with tarfile.open(tars / "x.tar", "w") as tar:
        tar.add(raw / "a.txt", "a.txt")
        tar.add(raw / ".b.txt", "sub/.b.txt")

    assert listed(raw).remarks == (Note("2 hidden names are left out, the first is .b.txt"),)
    assert listed(tars).remarks == (Note("1 hidden name is left out, the first is x.tar/sub/.b.txt"),)
    (tars / ".old").write_bytes(b"")
    assert listed(tars).remarks == (Note("2 hidden names are left out, the first is .old"),)
    (raw / ".git").rmdir()
    (raw / ".b.txt").unlink()
    assert listed(raw).remarks == ()
