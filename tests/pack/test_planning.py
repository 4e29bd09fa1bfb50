"""pack/planning: what is planned does not depend on where columns lie, and takes no more memory for more records."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit import NoSpace
from datakit.events import Event, Progress
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.source import columns
from datakit.source.originals import reading
from support.packing import raw_lines, small_pack, tree, visible, write_lines, write_pairs


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes columns of more than so many bytes go to files, and be looked at by sixteenths of that."""

    def make(limit_bytes: int) -> None:
        rows = max(1, limit_bytes // 16)
        for name, value in (("LIMIT_BYTES", limit_bytes), ("STRETCH", rows), ("NEAR", rows), ("SORTED", rows)):
            monkeypatch.setattr(columns, name, value)

    return make


def lines_with_twins(root: Path) -> Path:
    """Lines of which some repeat others, and some have the keys of others, or nearly."""
    lines = raw_lines(300)
    others = [b'{"id": "R%05d"}' % number for number in range(0, 50, 7)]
    return write_lines(root / "raw.jsonl", [*lines, *lines[40:60], b"no json", *others, *raw_lines(350)[300:]])


def rows(root: Path, *, of: str) -> Path:
    """A table of 300 rows in groups of 40; each fourth repeats the one before."""
    table = [{"id": f"Row{number:04d}", "text": "x" * (number // 4 * 17 % 300)} for number in range(300)]
    if of == "csv":
        path = root / "raw.csv"
        path.write_text("".join(f"{row['id']},{row['text']}\n" for row in [{"id": "id", "text": "text"}, *table]))
    else:
        path = root / "raw.parquet"
        pq.write_table(pa.Table.from_pylist(table), path, row_group_size=40)
    return path


def dataset(root: Path) -> Path:
    """A dataset to be packed again."""
    small_pack(write_lines(root / "raw.jsonl", raw_lines(300)), root / "old" / "ds")
    return root / "old" / "ds"


def pairs(root: Path) -> Path:
    """A folder of pairs, some with the bytes of others."""
    folder = write_pairs(root / "raw", 120)
    for number in range(0, 40, 4):
        for part in ("jpg", "json"):
            (folder / f"{number % 2}" / f"twin-{number}.{part}").write_bytes(
                (folder / f"{number % 2}" / f"img-{number:04d}.{part}").read_bytes()
            )
    return folder


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (lines_with_twins, {"on_error": "skip", "bundle": 8}),
        (lines_with_twins, {"on_error": "skip", "layout": "shuffle"}),
        (lines_with_twins, {"on_error": "skip", "layout": "sequential", "dedupe": "drop"}),
        (lines_with_twins, {"on_error": "quarantine", "splits": {"train": 3, "dev": 1}, "key_field": ""}),
        (lambda root: rows(root, of="parquet"), {"layout": "shuffle"}),
        (lambda root: rows(root, of="parquet"), {"dedupe": "drop", "splits": {"train": 3, "dev": 1}, "key_field": ""}),
        (lambda root: rows(root, of="csv"), {"dedupe": "drop"}),
        (dataset, {"splits": {"train": 3, "dev": 1}}),
        (pairs, {}),
        (pairs, {"dedupe": "drop"}),
    ],
)
def test_a_pack_does_not_see_where_columns_lie(
    tmp_path: Path, few: Callable[[int], None], source: Callable[[Path], Path], settings: dict[str, object]
) -> None:
    """Law 4: the same files and the same words with all columns in memory, and with all in files."""
    raw = source(tmp_path)
    told: list[list[Event]] = [[], []]

    for number, place in enumerate(("memory", "files")):
        words = PackSettings(**{"shard_size": "16KiB", "name": "ds", **settings})  # type: ignore[arg-type]  # by name
        for _ in range(2):  # the second time over what the first one made
            pack(raw, tmp_path / place / "ds", settings=words, workers=1, on_event=told[number].append)
        few(512)

    assert tree(tmp_path / "files") == tree(tmp_path / "memory")
    assert str(told[1]).replace(str(tmp_path / "files"), str(tmp_path / "memory")) == str(told[0])
    assert any(isinstance(event, Progress) for event in told[0])


def test_a_parent_does_not_see_where_columns_lie(tmp_path: Path, few: Callable[[int], None]) -> None:
    """Samples stay in the shards that they are in, new ones come into shards of their own."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(200)), tmp_path / "old" / "ds")
    raw = write_lines(tmp_path / "raw.jsonl", [*raw_lines(190), *raw_lines(300)[200:]])

    for place in ("memory", "files"):
        words = PackSettings(shard_size="16KiB")
        pack(raw, tmp_path / place / "ds", settings=words, workers=1, parent=tmp_path / "old" / "ds")
        few(512)

    assert tree(tmp_path / "files") == tree(tmp_path / "memory")


def peak_bytes(raw: Path, settings: dict[str, object], *, sticky: bool) -> int:
    """The most memory that listing and planning a source takes, as Python and numpy count it; sticky, with a parent."""
    words = PackSettings(name="ds", shard_size="16KiB", bundle=64, **settings)  # type: ignore[arg-type]  # by name
    parent = raw.with_suffix(".parent") if sticky else None
    if parent is not None:
        pack(raw, parent, settings=words, workers=1)
    tracemalloc.start()
    try:
        pack(raw, raw.with_suffix(".ds"), settings=words, workers=1, parent=parent, dry_run=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def lines(path: Path, count: int) -> Path:
    """So many lines, of which each is there twice."""
    return write_lines(path.with_suffix(".jsonl"), (b'{"id":"r%08d"}' % (at % (count // 2)) for at in range(count)))


def table(path: Path, count: int) -> Path:
    """A CSV file of so many rows."""
    return write_lines(path.with_suffix(".csv"), [b"id,text", *(b"r%08d,x" % at for at in range(count))])


@pytest.mark.parametrize(
    ("source", "settings", "sticky"),
    [
        (lines, {"dedupe": "drop"}, False),
        (lines, {"dedupe": "drop", "layout": "shuffle", "splits": {"train": 3, "dev": 1}}, False),
        (lines, {"dedupe": "drop", "layout": "sequential"}, True),
        (table, {}, False),
    ],
)
def test_three_times_the_records_take_no_more_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    few: Callable[[int], None],
    source: Callable[[Path, int], Path],
    settings: dict[str, object],
    sticky: bool,
) -> None:
    """What is known of each record, some 50 bytes, is in files while it is listed and planned."""
    monkeypatch.setattr("datakit.source.arrays.READ_BYTES", 2**12)
    for room in ("spans", "tables", "unpacking"):
        monkeypatch.setattr(f"datakit.source.{room}.reading", partial(reading, buffer_bytes=2**12))
    monkeypatch.setattr("datakit.source.spans.SPAN_BYTES", 2**14)
    monkeypatch.setattr("datakit.source.tables.HELD_ROWS", 2**8)
    monkeypatch.setattr("datakit.pack.planning._CHUNK", 2**8)
    few(2**12)
    peak_bytes(source(tmp_path / "warm", 1000), settings, sticky=sticky)  # what is imported is not counted again

    sources = [source(tmp_path / f"{count}", count) for count in (4000, 12_000)]
    once, thrice = (peak_bytes(raw, settings, sticky=sticky) for raw in sources)

    assert thrice - once < 8000 * 6  # a few objects for each shard


def test_columns_that_find_no_room_leave_nothing(tmp_path: Path, few: Callable[[int], None]) -> None:
    """A full disk while lines are listed is NoSpace, and what was begun is gone."""
    raw = write_lines(tmp_path / "raw.jsonl", [b'{"id": "r%05d"}' % number for number in range(4000)])
    few(2**10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(NoSpace, match="no space to write"):
            small_pack(raw, tmp_path / "ds")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert visible(tmp_path) == ["raw.jsonl"]
