"""source/grouping: files that share a stem are a record, and what cannot be one is told by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.source.files import Files
from datakit.source.folders import list_files
from datakit.source.grouping import FoundFile
from datakit.source.naming import Naming
from datakit.source.trees import walk
from datakit.source.troubles import Trouble


def grouped(*names: str, naming: Naming | None = None, size: int = 1, troubles: list[Trouble] | None = None) -> Files:
    """The table of files of these names."""
    files = [FoundFile(name, size, 7) for name in names]
    return list_files("root", files=files, naming=naming, troubles=troubles or [])


def told(table: Files) -> dict[str, str]:
    """Problems by place."""
    return {trouble.where: trouble.problem for trouble in table.troubles}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("README", "has no extension, and so no name of a part"),
        ("a.b.c.jpg", "'a.b.c' cannot be a sample's key: readers cut a name at its first dot"),
        ("x/__m__.json", "'x/__m__' cannot be a sample's key: webdataset skips names of the form __x__"),
        ("x/__m__/y.json", "'x/__m__/y' cannot be a sample's key: webdataset skips names"),
        ("x\n.json", "'x\\n' cannot be a sample's key: it has a control character"),
        ("x.__part__", "'__part__' cannot be the name of a sample's part: webdataset keeps names"),
        ("x" * 300 + ".txt", "is 304 bytes long, more than a tar (USTAR) name holds"),
        ("d" * 150 + "/" + "y" * 120 + ".txt", "is 275 bytes long, more than a tar (USTAR) name holds"),
    ],
)
def test_a_name_that_no_sample_can_have_is_told(name: str, said: str) -> None:
    """With its rule and what to do; the others are packed."""
    table = grouped(name, "ok.txt")

    (trouble,) = table.troubles
    assert said in trouble.problem
    assert trouble.hint
    assert list(table.keys) == ["ok"]


def test_a_part_that_a_tar_cannot_hold_is_told() -> None:
    """USTAR writes sizes in eleven octal digits."""
    table = list_files("root", files=[FoundFile("big.bin", 8**11, 0), FoundFile("ok.txt", 1, 0)])

    assert told(table) == {"big.bin": f"big.bin has {8**11} bytes; a part can have {8**11 - 1}"}


def test_a_name_that_is_no_utf8_is_told_and_can_be_escaped() -> None:
    """Its bytes are surrogates in a path; the message can be printed."""
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")

    refused, taken = grouped(name), grouped(name, naming=Naming(escape="percent"))

    assert "not valid Unicode" in told(refused)["caf\\udce9.txt"]
    assert list(taken.keys) == ["caf%E9"]
    assert taken.take(np.arange(1)).names() == [name]


def test_an_empty_file_takes_its_record_with_it() -> None:
    """A download that was lost: a sample that quietly lacks a part is worse than none."""
    files = [FoundFile("a.jpg", 0, 0), FoundFile("a.json", 5, 0), FoundFile("b.jpg", 5, 0)]

    table = list_files("root", files=files)

    assert list(table.keys) == ["b"]
    (trouble,) = table.troubles
    assert (trouble.where, trouble.problem, trouble.key) == ("a.jpg", "is empty", "a")
    assert [raw.path for raw in trouble.raws] == ["root/a.jpg", "root/a.json"]


def test_two_files_that_are_the_same_part_are_told() -> None:
    """Readers turn an extension into lower case."""
    table = grouped("a.JPG", "a.jpg", "b.jpg")

    assert told(table) == {"a.jpg": "is the same part of sample a as a.JPG"}
    assert list(table.keys) == ["b"]


def test_keys_that_differ_only_by_case_are_told() -> None:
    """The first in order stays."""
    table = grouped("IMG_1.jpg", "img_1.jpg", "img_2.jpg")

    assert told(table) == {"img_1.jpg": "its key img_1 differs from IMG_1 (IMG_1.jpg) only by case"}
    assert list(table.keys) == ["IMG_1", "img_2"]
    assert [kind.parts for kind in table.kinds] == [("jpg",)]


def test_what_cannot_be_read_takes_its_record_with_it() -> None:
    """A link that leads out of the source, a file without permission: found by whoever walked it."""
    table = grouped("a.json", "b.json", troubles=[Trouble("a.jpg", "may not be read", file="a.jpg")])

    assert list(table.keys) == ["b"]
    (trouble,) = table.troubles
    assert (trouble.where, trouble.problem, trouble.key) == ("a.jpg", "may not be read", "a")
    assert trouble.raws == (), "a copy without a.jpg would be packed as a record"


def test_a_name_that_is_no_utf8_takes_its_record_with_it() -> None:
    """By its bytes, not by what is shown of them."""
    stem = b"caf\xe9".decode("utf-8", "surrogateescape")
    troubles = [Trouble("caf\\udce9.jpg", "may not be read", file=f"{stem}.jpg")]

    table = grouped(f"{stem}.json", "b.json", naming=Naming(escape="percent"), troubles=troubles)

    assert list(table.keys) == ["b"]


def test_what_is_no_file_takes_no_record_with_it(tmp_path: Path) -> None:
    """A link to a folder is called like a record and is no part of it, whatever it is called."""
    for name in ("cat.jpg", "dog.jpg", "sub/fly.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    for link in ("cat", "dog.d"):
        (tmp_path / link).symlink_to("sub")
    (tmp_path / "sub" / "fly").symlink_to("nowhere")
    tree = walk(tmp_path)

    table = grouped(*(file.name for file in tree.files), troubles=tree.troubles)

    assert list(table.keys) == ["cat", "dog", "sub/fly"]
    assert {trouble.where: trouble.key for trouble in table.troubles} == {"cat": None, "dog.d": None, "sub/fly": None}


def test_files_in_a_store_are_not_copied_to_quarantine() -> None:
    """They are still where they were, and named."""
    table = list_files("root", files=[FoundFile("a.jpg", 0, 0)], timed=False)

    assert [trouble.raws for trouble in table.troubles] == [()]


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ("first-dot", {"a": ("b.c.jpg",), "cat": ("seg.png",)}),
        ("last-dot", {"a.b.c": ("jpg",), "cat.seg": ("png",)}),
        ("known", {"a.b.c": ("jpg",), "cat": ("seg.png",)}),
    ],
)
def test_names_are_cut_where_the_rule_says(rule: str, keys: dict[str, tuple[str, ...]]) -> None:
    """With escaping every stem is a key."""
    naming = Naming(rule=rule, escape="percent")  # type: ignore[arg-type]  # one of the three

    table = grouped("a.b.c.jpg", "cat.seg.png", naming=naming)

    parts = {key: table.kinds[kind].parts for key, kind in zip(table.keys, table.kind_of, strict=True)}
    assert {table.naming.stem(key): its for key, its in parts.items()} == keys


STEPS = st.text("aA.b_%", min_size=1, max_size=6).filter(lambda step: not step.startswith("."))
PATHS = st.lists(STEPS, min_size=1, max_size=2).map("/".join)


@given(st.lists(PATHS, unique=True, max_size=12), st.booleans())
def test_every_file_is_a_part_of_a_record_or_belongs_to_an_offender(names: list[str], escape: bool) -> None:
    """None is lost, whatever names there are, and the order of the listing plays no part."""
    naming = Naming(escape="percent" if escape else "none")

    table = grouped(*names, naming=naming)
    again = grouped(*reversed(names), naming=naming)

    packed = set(table.take(np.arange(len(table.keys))).names())
    offending = {raw.name for trouble in table.troubles for raw in trouble.raws} - packed
    assert packed | offending == set(names)
    assert list(table.keys) == list(again.keys)
    assert sorted(map(str, table.troubles)) == sorted(map(str, again.troubles))


def test_records_that_lack_a_part_are_counted() -> None:
    """Where at least half of them have it; a folder of unlike files is no news."""
    table = grouped("a.jpg", "a.json", "b.jpg", "b.json", "c.jpg", "c.json", "c.txt", "d.jpg")

    assert [remark.message for remark in table.remarks] == ["of 4 samples, 1 lacks json (d)"]
    assert grouped("a.jpg", "a.json").remarks == grouped().remarks == ()
