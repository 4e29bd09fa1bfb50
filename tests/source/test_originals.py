"""source/originals: whatever takes a file's place between listing and reading, a pack refuses it and does not wait."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset  # type: ignore[import-untyped]  # has no stubs

from datakit import InputError, NotAllowed, NotFound
from datakit.data.shard import Sample
from datakit.source.fetching import fetched
from datakit.source.listing import list_records
from datakit.source.originals import Version, open_original, read_original, reading, version_of
from datakit.source.scan import Sources, scan
from support.packing import raw_lines, small_pack, write_lines
from support.waiting import no_waiting

LINES = b"".join(line + b"\n" for line in raw_lines(60))


def tar_of(path: Path) -> None:
    """A tar of one sample that has no index."""
    with tarfile.open(path, "w") as out:
        info = tarfile.TarInfo("a.txt")
        info.size = 5
        out.addfile(info, io.BytesIO(b"hello"))


def saved(path: Path) -> None:
    """The Arrow file of a saved dataset, in a folder with what goes with it."""
    Dataset.from_dict({"id": ["a", "b"], "n": [1, 2]}).save_to_disk(str(path.parent))


MAKERS: dict[str, Callable[[Path], object]] = {
    "a.txt": lambda path: path.write_bytes(b"hello"),
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.json": lambda path: path.write_bytes(b"[" + LINES.replace(b"\n", b",")[:-1] + b"]"),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "a.csv": lambda path: path.write_bytes(b"id,n\na,1\nb,2\n"),
    "a.parquet": lambda path: pq.write_table(pa.table({"id": ["a", "b"]}), path),
    "a.tar": tar_of,
    "data-00000-of-00001.arrow": saved,
}
"""A small source of each kind, by the name of its file."""


def read(sources: Sources, spool: Path) -> list[Sample]:
    """List what was found before, and read it all."""
    with fetched(sources, spool) as local:
        records = list_records(sources, local)
        return list(records.take(np.arange(len(records.keys))).samples())


def replace_by(path: Path, what: str) -> None:
    """Put something else in a file's place, or nothing."""
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "nothing"])
@pytest.mark.parametrize("name", MAKERS)
def test_what_takes_a_files_place_is_refused(tmp_path: Path, name: str, what: str) -> None:
    """Of every kind of source, whether it is opened to be listed or to be read."""
    path = tmp_path / "raw" / name
    path.parent.mkdir()
    MAKERS[name](path)
    src = path if name.endswith(".json") else path.parent
    sources = scan(src)
    replace_by(path, what)

    with no_waiting(), pytest.raises(InputError, match=rf"{name} changed while it was packed"):
        read(sources, tmp_path / "spool")


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "nothing"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_what_takes_a_listed_files_place_is_refused(tmp_path: Path, name: str, what: str) -> None:
    """Kinds that are opened again when a shard is built."""
    path = tmp_path / name
    MAKERS[name](path)
    sources = scan(path)

    with no_waiting(), fetched(sources, tmp_path / "spool") as local:
        records = list_records(sources, local)
        replace_by(path, what)

        with pytest.raises(InputError, match=rf"{name} changed while it was packed"):
            list(records.take(np.arange(len(records.keys))).samples())


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "a.txt"])
def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path, name: str) -> None:
    """Where a mapped file would end the process, and where half a file would look damaged."""
    path = tmp_path / "raw" / name
    path.parent.mkdir()
    MAKERS[name](path)
    sources = scan(path if name.endswith(".json") else path.parent)
    os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(InputError, match=rf"{name} changed while it was packed"):
        read(sources, tmp_path / "spool")


def test_a_folder_that_takes_a_sources_place_is_named(tmp_path: Path) -> None:
    """Not the shard that was being written."""
    raw = tmp_path / "raw"
    (raw / "b.txt").mkdir(parents=True)

    with pytest.raises(InputError, match=r"raw/b\.txt changed while it was packed"):
        open_original(str(raw / "b.txt"))
    with pytest.raises(InputError, match=r"raw/b\.txt changed while it was packed"):
        version_of(str(raw / "b.txt"))


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    """Nor is what may not be looked at one that has changed."""
    import socket

    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s"))

        with pytest.raises(InputError, match="s changed while it was packed"):
            open_original(str(tmp_path / "s"))


def test_what_may_not_be_read_is_not_called_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission is said as permission."""

    def denied(path: str, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", denied)

    with pytest.raises(NotAllowed, match=r"a\.txt: Permission denied"):
        open_original(str(tmp_path / "a.txt"))


def test_a_file_is_looked_at_behind_its_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is written to while it is read, and keeps its size, only that look can tell."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"as listed")
    version = version_of(str(path))
    real = os.read

    def read(descriptor: int, count: int) -> bytes:
        data = real(descriptor, count)
        os.utime(path, ns=(1, 1))
        return data

    before = read_original(str(path), size=version.size, stamp=version.stamp)
    monkeypatch.setattr(os, "read", read)

    assert before == b"as listed"
    with pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        read_original(str(path), size=version.size, stamp=version.stamp)
    assert read_original(str(path), size=version.size, stamp=None) == b"as listed"


def test_a_pipe_in_a_files_place_is_none_while_somebody_writes_to_it(tmp_path: Path) -> None:
    """Neither the wait for its bytes nor the bytes."""
    path = tmp_path / "a.txt"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)

    with no_waiting(), pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        read_original(str(path), size=5, stamp=None)
    os.write(writer, b"hello")
    with no_waiting(), pytest.raises(InputError, match=r"a\.txt changed while it was packed"):
        read_original(str(path), size=5, stamp=None)
    os.close(writer)


def test_an_error_of_a_file_that_changed_is_that_it_changed(tmp_path: Path) -> None:
    """Whatever a reader makes of half a file; of one that is as it was, its own error stays."""
    path = tmp_path / "a"
    path.write_bytes(b"hello")
    version = version_of(str(path))

    def half_way(size: int) -> None:
        with reading(str(path), version=version):
            os.truncate(path, size)
            raise ValueError("no sense")

    with pytest.raises(InputError, match="a changed while"):
        half_way(3)
    version = version_of(str(path))
    with pytest.raises(ValueError, match="no sense"), reading(str(path), version=version):
        raise ValueError("no sense")
    with pytest.raises(InputError, match="a changed while"), reading(str(path), version=Version(4, 0)):
        raise AssertionError("it is opened")


def test_a_reader_may_close_what_it_is_given(tmp_path: Path) -> None:
    """As pyarrow does; the check at the end has a descriptor of its own, and still sees that the file grew."""
    path = tmp_path / "a"
    path.write_bytes(b"hello")

    with reading(str(path), version=version_of(str(path))) as file:
        file.close()

    def grown() -> None:
        with reading(str(path), version=version_of(str(path))) as file:
            path.write_bytes(b"hello, you")
            file.close()

    with pytest.raises(InputError, match="changed while it was packed"):
        grown()


def test_a_vanished_source_ends_with_1_and_one_that_never_was_with_2(tmp_path: Path) -> None:
    """The second is a wrong word on the command line, the first is not."""
    raw = write_lines(tmp_path / "x.jsonl", raw_lines(3))
    sources = scan(raw)
    raw.unlink()

    with pytest.raises(InputError) as gone:
        read(sources, tmp_path / "spool")
    with pytest.raises(NotFound) as never:
        small_pack(raw, tmp_path / "ds")

    assert (gone.value.exit_code, never.value.exit_code) == (1, 2)
