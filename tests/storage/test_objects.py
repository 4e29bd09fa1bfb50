"""One conformance suite for every store: a local directory, memory, and S3 by both lanes of `storage/store`."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datakit.errors import InputError, IntegrityError, NotFound, Refused, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.objects import LocalStore, Store
from datakit.storage.store import ObstoreStore
from support.memory import MemoryBody, MemoryStore
from support.process import run_code
from support.s3server import S3Server

MIB = 2**20
DATA = random.Random(5).randbytes(3 * MIB + 77)


@pytest.fixture(params=["local", "memory", "s3", "s3-unsigned"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    if request.param == "local":
        return LocalStore(tmp_path)
    if request.param == "memory":
        return MemoryStore()
    server: S3Server = request.getfixturevalue("s3")
    url: str = request.getfixturevalue("bucket")
    lane = ObstoreStore if request.param == "s3" else UnsignedStore
    return lane(url, options=StoreOptions.from_environment(server.env))


class UnsignedStore(ObstoreStore):
    """A store that cannot sign addresses, as GCS and Azure without a key: obstore itself receives."""

    def _signed(self, client: object, key: str) -> None:
        return None


def test_what_is_written_is_read_back(store: Store) -> None:
    """Whole, by range, and by one byte."""
    store.write("a/b.bin", DATA)

    assert store.fetch("a/b.bin").data == DATA
    assert store.read("a/b.bin", start=0, stop=len(DATA)) == DATA
    assert store.read("a/b.bin", start=MIB - 1, stop=2 * MIB + 3) == DATA[MIB - 1 : 2 * MIB + 3]
    assert store.read("a/b.bin", start=len(DATA) - 1, stop=len(DATA)) == DATA[-1:]


def test_a_range_of_nothing_is_nothing(store: Store) -> None:
    """An empty file needs no request."""
    store.write("empty", b"")

    assert store.read("empty", start=0, stop=0) == b""
    assert store.fetch("empty").data == b""
    assert store.head("empty").bytes == 0


def test_an_upload_in_parts_is_one_object(store: Store) -> None:
    """The last may be small; the object is their sum."""
    large = DATA * 4

    info = store.upload("big", MemoryBody(large, part_bytes=5 * MIB), connections=2)

    assert (info.key, info.bytes) == ("big", len(large))
    assert store.fetch("big").data == large


def test_head_list_and_fetch_agree(store: Store) -> None:
    """Key, size and tag are the same whoever says them; lists are sorted and know nothing outside their prefix."""
    for key in ("a/2", "a/1", "a/sub/3", "ab/4", "z"):
        store.write(key, key.encode())

    listed = store.list("a")

    assert [info.key for info in listed] == ["a/1", "a/2", "a/sub/3"]
    assert [store.head(info.key) for info in listed] == listed
    assert [store.fetch(info.key).info for info in listed] == listed
    assert [info.key for info in store.list("")] == ["a/1", "a/2", "a/sub/3", "ab/4", "z"]


def test_what_is_not_there_is_not_found(store: Store) -> None:
    """By every way of asking."""
    store.write("there", b"x")

    for ask in (
        lambda: store.head("absent"),
        lambda: store.fetch("absent"),
        lambda: store.read("absent", start=0, stop=1),
    ):
        with pytest.raises(NotFound, match="absent"):
            ask()


def test_a_range_behind_the_end_is_an_error(store: Store) -> None:
    """An object that is shorter than it should be is never read as if it were whole."""
    store.write("short", b"12345")

    for start, stop in ((3, 9), (7, 9)):
        with pytest.raises((IntegrityError, Refused)):
            store.read("short", start=start, stop=stop)


def test_another_version_is_refused(store: Store) -> None:
    """A read of a version that has been replaced gets no byte of the new one."""
    old = store.write("k", b"one")
    store.write("k", b"TWO!")

    with pytest.raises(Refused, match="replaced"):
        store.read("k", start=0, stop=3, etag=old.etag)


def test_the_present_version_may_be_named(store: Store) -> None:
    """The tag that a head gave opens the object."""
    store.write("k", b"one")

    assert store.read("k", start=0, stop=3, etag=store.head("k").etag) == b"one"


def test_create_does_not_overwrite(store: Store) -> None:
    """The second creation is refused, and the first bytes stay."""
    store.write("k", b"one", create=True)

    with pytest.raises(Refused, match="exists"):
        store.write("k", b"two", create=True)

    assert store.fetch("k").data == b"one"


def test_a_replacement_names_what_it_replaces(store: Store) -> None:
    """Over the version that was seen it goes through, over another it is refused."""
    old = store.write("k", b"one")
    new = store.write("k", b"two", replaces=old.etag)

    with pytest.raises(Refused):
        store.write("k", b"three", replaces=old.etag)

    assert store.fetch("k").data == b"two"
    assert new.etag == store.head("k").etag


def test_deleting_twice_is_fine(store: Store) -> None:
    """An object that is gone is what was wanted."""
    store.write("k", b"one")

    store.delete("k")
    store.delete("k")

    assert store.list("") == []


def test_names_of_people_survive(store: Store) -> None:
    """Spaces, percent signs, plus signs and Chinese are keys like others."""
    keys = sorted(["a b/c+d.bin", "100%/x", "数据/对话.jsonl", "q?x=1&y#z"])

    for key in keys:
        store.write(key, key.encode())

    assert [info.key for info in store.list("")] == keys
    assert [store.read(key, start=0, stop=len(key.encode())) for key in keys] == [key.encode() for key in keys]


def test_local_lists_leave_out_what_a_dot_hides(tmp_path: Path) -> None:
    """Our own temporaries and locks, and the user's `.env`, are no data."""
    for name in (".env", ".a.tmp-00000000", "a", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    assert [info.key for info in LocalStore(tmp_path).list("")] == ["a"]


@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a/../../x", "a//b", ""])
def test_local_keys_stay_inside(tmp_path: Path, key: str) -> None:
    """A key from anywhere cannot reach outside the directory."""
    with pytest.raises(UsageError, match="does not stay inside"):
        LocalStore(tmp_path / "root").head(key)


def test_a_local_file_that_is_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    """The version is compared after the last byte too."""
    store = LocalStore(tmp_path)
    store.write("k", bytes(10 * MIB))
    pieces = iter(store.stream("k", start=0, stop=10 * MIB, etag=store.head("k").etag))
    next(pieces)
    with (tmp_path / "k").open("r+b") as file:
        file.write(b"x")
        os.utime(file.fileno(), ns=(1, 1))

    with pytest.raises(Refused, match="replaced"):
        _drain(pieces)


def _drain(pieces: Iterator[memoryview]) -> None:
    for _ in pieces:
        pass


def test_what_cannot_be_listed_is_said_and_not_left_out(tmp_path: Path) -> None:
    """A link to a folder, a link to nothing, a pipe: leaving one out would have --delete remove its copy."""
    (tmp_path / "target").mkdir()
    makers: list[tuple[Callable[[Path], object], type[Exception]]] = [
        (lambda path: path.symlink_to(tmp_path / "target"), Refused),
        (lambda path: path.symlink_to("nowhere"), InputError),
        (os.mkfifo, InputError),
    ]
    for number, (make, error) in enumerate(makers):
        root = tmp_path / f"root-{number}"
        (root / "sub").mkdir(parents=True)
        make(root / "sub" / "odd")

        with pytest.raises(error, match="sub/odd is"):
            LocalStore(root).list("")


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    """As in the cache of a model hub."""
    (tmp_path / "blob").write_bytes(b"123")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "name").symlink_to(tmp_path / "blob")

    listed = LocalStore(tmp_path / "root").list("")

    assert [(info.key, info.bytes) for info in listed] == [("name", 3)]


def test_a_folder_that_cannot_be_read_is_not_allowed() -> None:
    """Exit code 6, not an empty folder; run as an ordinary user, whom permissions bind."""
    code = """
import os, sys
from pathlib import Path
from datakit.errors import NotAllowed
from datakit.storage.objects import LocalStore
if os.getuid() == 0:
    os.seteuid(65534)
try:
    LocalStore(Path(sys.argv[1])).list("")
except NotAllowed as error:
    print(error.exit_code, error.message)
"""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        closed = Path(root) / "closed"
        closed.mkdir(mode=0o000)
        try:
            said = run_code(code, root)
        finally:
            closed.chmod(0o700)

    assert said == f"6 {closed}: Permission denied\n"


def test_folders_are_named_without_a_look_inside(tmp_path: Path) -> None:
    """Those right below, sorted; hidden ones and files are none."""
    for name in ("b/c", "a", ".hidden"):
        (tmp_path / "top" / name).mkdir(parents=True)
    (tmp_path / "top" / "file").write_text("x")

    assert LocalStore(tmp_path).folders("top") == ("a", "b")
    assert LocalStore(tmp_path / "top").folders("b") == ("c",)


def test_folders_that_a_dot_hides_are_in_no_store(store: Store) -> None:
    """What a killed writer left beside a commit is none, wherever it lies; what is below a folder does not count."""
    for key in ("top/b/c/x", "top/a/x", "top/.a.tmp-01234567/x", "top/file", ".hidden/x"):
        store.write(key, b"1")

    assert store.folders("top") == ("a", "b")
    assert store.folders("") == ("top",)
