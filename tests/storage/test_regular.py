"""storage/regular: a file is opened at once, and what is none is refused, never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit.data.index import index_name
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import InputError
from datakit.pack.reading import inspect
from datakit.storage import disk
from datakit.storage.commit import NEXT_NAME, read_manifest, verify_file
from datakit.storage.etags import tag_of
from datakit.storage.links import link_or_copy
from datakit.storage.objects import LocalStore
from datakit.storage.regular import open_regular, read_regular
from datakit.storage.sync import sync
from support.packing import raw_lines, small_pack, write_lines
from support.waiting import no_waiting


def read_all_of(path: Path) -> bytes:
    """A file by a store."""
    return LocalStore(path.parent).read(path.name, start=0, stop=4)


def copy_of(path: Path) -> object:
    """A copy where no link can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datakit.storage.links.link", lambda *_: False)
        return link_or_copy(path, path.with_name("copy"))


READERS: dict[str, Callable[[Path], object]] = {
    "open_regular": open_regular,
    "read_regular": read_regular,
    "map_file": disk.map_file,
    "hash_file": disk.hash_file,
    "fetch": lambda path: LocalStore(path.parent).fetch(path.name),
    "read": read_all_of,
    "link_or_copy": copy_of,
    "tag_of": lambda path: tag_of(path, part_bytes=0),
    "verify_file": lambda path: verify_file(path, disk.hash_file(path.with_name("plain"), name=path.name)),
}


@pytest.mark.parametrize("what", ["pipe", "socket", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader: str, what: str, tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for; a device may never end."""
    path = tmp_path / "there"
    (tmp_path / "plain").write_bytes(b"1234")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))  # a socket's name has 108 bytes at most

    with no_waiting(), pytest.raises(InputError, match="there is neither a file nor a folder") as caught:
        READERS[reader](path)

    assert caught.value.hint == "Move it away, and put back or fetch again the file that belongs there"


def test_a_file_is_read_through_a_link(tmp_path: Path) -> None:
    """As any open does it."""
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")

    assert read_regular(tmp_path / "link") == b"1234"


def test_what_the_system_says_leaves_as_it_is(tmp_path: Path) -> None:
    """Nothing there."""
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_is_told_by_its_name(reader: str, tmp_path: Path) -> None:
    """Where a file belongs, with what to do, and not as `Is a directory`."""
    (tmp_path / "plain").write_bytes(b"1234")
    (tmp_path / "there").mkdir()

    with pytest.raises(InputError, match="there is a folder where a file belongs") as caught:
        READERS[reader](tmp_path / "there")

    assert str(caught.value.hint).startswith("Move it away")


@pytest.mark.parametrize("name", ["shard", "index"])
def test_a_pipe_in_a_dataset_is_told_by_its_readers(name: str, tmp_path: Path) -> None:
    """Where an index or a shard was: looked at, and copied to another place."""
    dataset = tmp_path / "ds"
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(20)), dataset)
    shard = read_manifest(dataset).contents.shards[0].name
    path = dataset / (shard if name == "shard" else index_name(shard))
    path.unlink()
    os.mkfifo(path)

    with no_waiting():
        for reader in (inspect, lambda source: sync(source, tmp_path / "there")):
            if (name, reader) != ("shard", inspect):
                with pytest.raises(InputError, match=f"{path.name} is neither a file nor a folder"):
                    reader(dataset)
    assert not (tmp_path / "there" / MANIFEST_NAME).exists()


def test_a_pipe_in_the_place_of_a_coming_manifest_is_not_waited_for(tmp_path: Path) -> None:
    """Where a killed arrival keeps what it knew, and a member differs."""
    dataset, there = tmp_path / "ds", tmp_path / "there"
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(20)), dataset)
    there.mkdir()
    (there / read_manifest(dataset).contents.shards[0].name).write_bytes(b"other bytes")
    os.mkfifo(there / NEXT_NAME)

    with no_waiting(), pytest.raises(InputError, match=f"{NEXT_NAME} is neither a file nor a folder"):
        sync(dataset, there)
