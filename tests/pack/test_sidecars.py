"""pack/sidecars: side files that Energon and DALI would have made themselves, from indexes alone."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from datakit.data.digest import Buffer
from datakit.data.index import Index
from datakit.data.manifest import Contents, ShardEntry
from datakit.data.shard import Part, Row, Sample
from datakit.errors import InputError, UsageError
from datakit.pack.sidecars import DATABASE, DERIVED, Reader, stored_samples, write_side_files
from datakit.pack.writing import describe, write_shard
from datakit.storage.view import open_view
from support.house import ROOT
from support.packing import raw_lines, small_pack, write_pairs

MADE_BY_ENERGON = ROOT / "tests" / "golden" / "energon-7.4.1.json"


class Files:
    """Side files in memory, and an opener that puts them there."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Callable[[Buffer], object]]:
        """As `Staging.open`."""
        data = bytearray()
        yield data.extend
        assert name not in self.held
        self.held[name] = bytes(data)


def side_files(dataset: Path, *readers: Reader, scratch: Path) -> dict[str, bytes]:
    """The side files of a packed dataset."""
    files, view = Files(), open_view(dataset)
    write_side_files(view.contents, view.index, readers, write=files.open, scratch=scratch)
    return files.held


def bundled(root: Path) -> tuple[Contents, Callable[[ShardEntry], Index], Path]:
    """A shard of 25 lines in bundles of 10: its description, its index, its path."""
    samples = [Sample(f"r{number:05d}", {"json": line}) for number, line in enumerate(raw_lines(25))]
    built = write_shard(root / "shard", samples, dataset="ds", bundle=10)
    index = Index.from_buffer((root / "shard.index.arrow").read_bytes())
    return describe([built], pack={"bundle": 10}), lambda _shard: index, root / "shard"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A dataset of 60 pairs, some parts of which are of whole blocks."""
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds")
    return tmp_path / "ds"


def as_energon_walks(shard: Path) -> tuple[list[int], list[tuple[str, str, int, int]]]:
    """Where Energon's preparation finds samples and parts: it walks the tar by Python's tarfile."""
    starts, parts, last = [], [], None
    with tarfile.open(shard) as tar:
        for member in tar:
            key, part = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", member.name).groups()  # type: ignore[union-attr]
            starts += [member.offset] if key != last else []
            parts.append((key, part, member.offset_data, member.size))
            last = key
        return [*starts, tar.offset], parts


def test_energons_index_is_what_its_own_preparation_writes(pairs: Path, tmp_path: Path) -> None:
    """One uint64 a sample where its first header is, and the place of the end blocks."""
    found = side_files(pairs, "energon", scratch=tmp_path)

    for shard in pairs.glob("*.tar"):
        data = found[f"{shard.name}.idx"]
        assert list(struct.unpack(f"{len(data) // 8}Q", data)) == as_energon_walks(shard)[0]


def test_energons_database_finds_every_sample_and_part(pairs: Path, tmp_path: Path) -> None:
    """Keys, byte ranges and the place of each part, by the number of the shard in `.info.json`."""
    found = side_files(pairs, "energon", scratch=tmp_path)
    (tmp_path / "db").write_bytes(found[DATABASE])
    shards = list(json.loads(found[".nv-meta/.info.json"])["shard_counts"])

    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as db:
        samples = db.execute("SELECT * FROM samples ORDER BY tar_file_id, sample_index").fetchall()
        parts = db.execute(
            "SELECT s.tar_file_id, sample_key, part_name, content_byte_offset, content_byte_size "
            "FROM sample_parts p JOIN samples s USING (tar_file_id, sample_index) ORDER BY 1, 4"
        ).fetchall()
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    assert len(samples) == 60
    for number, name in enumerate(shards):
        starts, members = as_energon_walks(pairs / name)
        assert [row[3] for row in samples if row[0] == number] == starts[:-1]
        assert [row[3] + row[4] for row in samples if row[0] == number] == starts[1:]
        assert [row[1:] for row in parts if row[0] == number] == members


def test_side_files_are_those_that_energon_made(tmp_path: Path) -> None:
    """Golden: what `energon prepare` 7.4.1 wrote for this dataset, but for its version, spacing and random uuid."""
    golden = json.loads(MADE_BY_ENERGON.read_text())
    small_pack(write_pairs(tmp_path / "raw", 30), tmp_path / "ds")

    found = side_files(tmp_path / "ds", "energon", scratch=tmp_path)

    (tmp_path / "db").write_bytes(found[DATABASE])
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as db:
        tables = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in ("samples", "sample_parts")}
        schema = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    assert {name: sorted(map(list, rows)) for name, rows in tables.items()} == golden["tables"]
    assert sorted(" ".join(sql.split()).replace("( ", "(").replace(" )", ")") for (sql,) in schema) == golden["schema"]
    assert {name: data.hex() for name, data in found.items() if name.endswith(".tar.idx")} == golden["idx"]
    assert json.loads(found[".nv-meta/.info.json"])["shard_counts"] == golden["shard_counts"]
    names = [line.strip('- "') for line in found[".nv-meta/split.yaml"].decode().splitlines() if "- " in line]
    assert names == golden["train"]


def test_energon_is_told_how_to_read_without_being_asked(pairs: Path, tmp_path: Path) -> None:
    """All shards are `train`, samples come as they are, and the identity follows from the dataset."""
    found = side_files(pairs, "energon", scratch=tmp_path)

    shards = "".join(f'  - "{shard.name}"\n' for shard in open_view(pairs).contents.shards)
    assert found[".nv-meta/split.yaml"].decode() == f"split_parts:\n  train:\n{shards}exclude: []\n"
    assert found[".nv-meta/dataset.yaml"] == b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    assert re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found[".nv-meta/index.uuid"])
    assert {*DERIVED, DATABASE} == {name for name in found if not name.endswith(".idx")}


def test_a_split_is_called_after_itself(tmp_path: Path) -> None:
    """Energon asks a validation directory for its part `val`; names that it does not know are quoted."""
    splits = {"train": 1, "val": 1, "held-out": 1}
    small_pack(write_pairs(tmp_path / "raw", 60), tmp_path / "ds", splits=splits, index=("energon",))

    told = {name: (tmp_path / "ds" / name / ".nv-meta" / "split.yaml").read_text() for name in splits}

    assert {name: list(yaml.safe_load(text)["split_parts"]) for name, text in told.items()} == {
        name: [name] for name in splits
    }
    assert told["val"].startswith('split_parts:\n  val:\n  - "ds-val-')
    assert told["held-out"].startswith('split_parts:\n  "held-out":\n')


@pytest.mark.parametrize("name", ["\U0001f4f7", "é", "a\u0085b"])
def test_names_of_any_letters_are_read_back_by_yaml(tmp_path: Path, name: str) -> None:
    """JSON writes what is beyond 16 bits as two surrogates, which YAML does not put together."""
    shard = ShardEntry(f"{name}.tar", 1, "i")
    contents, files = Contents("0" * 64, "0" * 64, 1, 3, {"txt": 1}, (shard,), {"split": name}), Files()
    index = Index.from_rows([Row("a", bytes(16), {"txt": Part(512, 3, 0)})])

    write_side_files(contents, lambda _shard: index, ["energon"], write=files.open, scratch=tmp_path)

    assert yaml.safe_load(files.held[".nv-meta/split.yaml"]) == {"split_parts": {name: [shard.name]}, "exclude": []}


def test_the_same_dataset_has_the_same_side_files(pairs: Path, tmp_path: Path) -> None:
    """Byte for byte, the database too; and nothing is left of the making."""
    before = sorted(tmp_path.rglob("*"))

    one, other = (side_files(pairs, "energon", "dali", scratch=tmp_path) for _ in range(2))

    assert one == other
    assert one[DATABASE][96:100] == (3_040_000).to_bytes(4, "big")
    assert sorted(tmp_path.rglob("*")) == before


def test_dalis_index_names_each_member(pairs: Path, tmp_path: Path) -> None:
    """As `wds2idx` writes it: version and samples, then extension, offset, size and name, a line a sample."""
    found = side_files(pairs, "dali", scratch=tmp_path)

    assert set(found) == {shard.with_suffix(".idx").name for shard in pairs.glob("*.tar")}
    for shard in pairs.glob("*.tar"):
        head, *lines = found[shard.with_suffix(".idx").name].decode().splitlines()
        starts, members = as_energon_walks(shard)
        assert head == f"v1.2 {len(starts) - 1}"
        words = [word for line in lines for word in line.split(" ")]
        assert words == [
            str(word) for key, part, offset, size in members for word in (part, offset, size, f"{key}.{part}")
        ]
        assert all(len(line.split(" ")) == 8 for line in lines)


def test_names_with_white_space_are_left_out_for_dali(tmp_path: Path) -> None:
    """DALI splits lines at white space: its version 1.1 has no names, and reads the same bytes."""
    root = tmp_path / "raw"
    root.mkdir()
    for name in ("a cat.txt", "dog.txt"):
        (root / name).write_bytes(b"123")
    small_pack(root, tmp_path / "ds")

    (data,) = side_files(tmp_path / "ds", "dali", scratch=tmp_path).values()

    assert sorted(data.decode().splitlines()) == ["txt 1536 3", "txt 512 3", "v1.1 2"]


def test_a_part_that_dali_cannot_name_is_refused() -> None:
    """Every version names the part."""
    rows = [Row("a", bytes(16), {"my part": Part(512, 3, 0)})]
    contents = Contents("0" * 64, "0" * 64, 1, 3, {"my part": 1}, (ShardEntry("s.tar", 1, "s.tar.index.arrow"),), {})

    with pytest.raises(InputError, match=r"s\.tar: DALI cannot name the part 'my part'"):
        write_side_files(
            contents, lambda _shard: Index.from_rows(rows), ["dali"], write=Files().open, scratch=Path.cwd()
        )


def test_a_bundle_is_one_sample_to_others(tmp_path: Path) -> None:
    """They see members: `<key of the first>.jsonl`, K lines long."""
    contents, index_of, path = bundled(tmp_path)
    files = Files()

    write_side_files(contents, index_of, ["energon", "dali"], write=files.open, scratch=tmp_path)

    starts, members = as_energon_walks(path)
    assert [(key, part) for key, part, _, _ in members] == [(f"r000{n}0", "jsonl") for n in (0, 1, 2)]
    (name,) = (shard.name for shard in contents.shards)
    assert files.held[f"{name}.idx"] == struct.pack("4Q", *starts)
    lines = [f"{part} {offset} {size} {key}.{part}" for key, part, offset, size in members]
    assert files.held[f"{name.removesuffix('.tar')}.idx"].decode().splitlines() == ["v1.2 3", *lines]
    assert json.loads(files.held[".nv-meta/.info.json"])["shard_counts"] == {name: 3}


def test_parts_that_do_not_stand_together_are_refused() -> None:
    """A tar that others wrote may interleave samples; these readers go by ranges, and would mix them up."""
    rows = [
        Row("a", bytes(16), {"txt": Part(512, 3, 0), "cls": Part(2560, 3, 0)}),
        Row("b", bytes(16), {"txt": Part(1536, 3, 0)}),
    ]
    shard = ShardEntry("s.tar", 2, "s.tar.index.arrow")

    with pytest.raises(InputError, match="the parts of sample b do not stand together") as caught:
        list(stored_samples(Index.from_rows(rows), shard, bundle=None))

    assert caught.value.hint == "Repack it: datakit pack SRC DEST --input tar"


@pytest.mark.parametrize("name", ["a{0..3}.tar", "a.tar.gz"])
def test_a_shard_that_energon_cannot_name_is_refused(name: str, tmp_path: Path) -> None:
    """It takes braces for a range of names."""
    contents = Contents("0" * 64, "0" * 64, 1, 3, {"txt": 1}, (ShardEntry(name, 1, "i"),), {})
    index = Index.from_rows([Row("a", bytes(16), {"txt": Part(512, 3, 0)})])

    with pytest.raises(InputError, match="Energon cannot name the shard"):
        write_side_files(contents, lambda _shard: index, ["energon"], write=Files().open, scratch=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_reader_is_refused(pairs: Path, tmp_path: Path) -> None:
    """By name, before anything is written."""
    with pytest.raises(UsageError, match="no side files for mds"):
        side_files(pairs, "energon", "mds", scratch=tmp_path)  # type: ignore[arg-type]  # that is the point
    assert side_files(pairs, scratch=tmp_path) == {}
