"""source/unpacking: compressed files as plain ones, and damage that is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from datakit import InputError
from datakit.source.trees import SourceFile, walk
from datakit.source.unpacking import lines_file, plain_file

DATA = b"".join(b'{"id": %d, "t": "%s"}\n' % (n, b"x" * (n % 50)) for n in range(3000))


def zstd(data: bytes) -> bytes:
    """A zstd stream."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def listed(root: Path, name: str) -> SourceFile:
    """A file as a listing finds it."""
    return next(file for file in walk(root).files if file.name == name)


PACKERS = {"x.jsonl.gz": gzip.compress, "x.jsonl.zst": zstd}


@pytest.mark.parametrize("name", PACKERS)
def test_a_packed_file_is_laid_down_plain(tmp_path: Path, name: str) -> None:
    """One stream, or several one behind the other, as parallel packers write them; its name stays in messages."""
    packed = PACKERS[name](DATA) + PACKERS[name](b"{}\n")
    (tmp_path / name).write_bytes(packed)

    plain = plain_file(str(tmp_path), listed(tmp_path, name), tmp_path / "spool")

    assert plain.name == name
    assert Path(plain.path).read_bytes() == DATA + b"{}\n"


@pytest.mark.parametrize("name", PACKERS)
def test_a_stream_that_is_not_whole_is_named(tmp_path: Path, name: str) -> None:
    """Cut anywhere, no such stream at all, something else behind it."""
    whole = PACKERS[name](DATA)

    for data in (whole[:-1], whole[: len(whole) // 2], whole[:20], b"plain text", whole + b"more"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=rf"{name} is not a whole (gzip|zstd) file"):
            plain_file(str(tmp_path), listed(tmp_path, name), tmp_path / "spool")


def test_a_plain_file_is_read_where_it_is(tmp_path: Path) -> None:
    """Nothing is copied."""
    (tmp_path / "x.jsonl").write_bytes(DATA)

    plain = lines_file(str(tmp_path), listed(tmp_path, "x.jsonl"), tmp_path / "spool")

    assert (plain.path, plain.is_array) == (str(tmp_path / "x.jsonl"), False)
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_an_array_is_laid_down_as_lines(tmp_path: Path, name: str) -> None:
    """Plain or packed, with a byte-order mark or without."""
    data = b'\xef\xbb\xbf[{"a": 1},\n {"a": 2}]'
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    lines = lines_file(str(tmp_path), listed(tmp_path, name), tmp_path / "spool")

    assert Path(lines.path).read_bytes() == b'{"a": 1}\n{"a": 2}\n'
    assert (lines.name, lines.is_array) == (name, True)


def test_an_empty_file_is_no_array(tmp_path: Path) -> None:
    """It holds no records, and whoever lists it says so."""
    (tmp_path / "x.jsonl").write_bytes(b"")

    assert not lines_file(str(tmp_path), listed(tmp_path, "x.jsonl"), tmp_path / "spool").is_array
