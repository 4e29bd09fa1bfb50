"""What `storage/disk` promises: whole files, locks that die with their holder, sentences instead of errno."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import Busy, DatakitError, InputError, NoSpace, NotAllowed, NotFound, Refused
from datakit.storage import disk
from support.process import kill, run_code, start_code

HOLDER = """
import sys, time
from pathlib import Path
from datakit.storage import disk
with disk.exclusive(Path(sys.argv[1]), purpose="holding"):
    print("held", flush=True)
    time.sleep(60)
"""

WRITER = """
import sys
from pathlib import Path
from datakit.storage import disk
with disk.atomic_file(Path(sys.argv[1])) as file:
    file.write(b"new" * 1000)
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_written_bytes_stand_under_the_final_name_alone(tmp_path: Path) -> None:
    """After `write_atomic` the directory holds the file and nothing else."""
    path = tmp_path / "a.json"

    disk.write_atomic(path, b"first")
    disk.write_atomic(path, memoryview(b"second"))

    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["a.json"]


def stumble(file: BinaryIO) -> None:
    file.write(b"half of the ne")
    raise InputError("not a record")


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    """An exception inside `atomic_file` keeps the old bytes and removes the temporary."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    with pytest.raises(InputError), disk.atomic_file(path) as file:
        stumble(file)

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_killed_writer_leaves_the_old_file_and_a_leftover_that_sweep_knows(tmp_path: Path) -> None:
    """Kill -9 in the middle of a write: old bytes under the final name, and `sweep` removes the temporary."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    process = start_code(WRITER, path)

    kill(process)
    removed = disk.sweep(tmp_path)

    assert path.read_bytes() == b"old"
    assert len(removed) == 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_sweep_removes_only_our_temporaries(tmp_path: Path) -> None:
    """Files of other people's temporary names stay, and so do temporaries of another final name when one is given."""
    for name in (".a.tmp-0123abcd", ".b.tmp-0123abcd", ".a.tmp-xyz", "a.tmp-0123abcd", ".hidden"):
        (tmp_path / name).write_bytes(b"x")

    named = disk.sweep(tmp_path, name="a")
    everything = disk.sweep(tmp_path)

    assert [path.name for path in named] == [".a.tmp-0123abcd"]
    assert [path.name for path in everything] == [".b.tmp-0123abcd"]
    assert sorted(os.listdir(tmp_path)) == [".a.tmp-xyz", ".hidden", "a.tmp-0123abcd"]


def test_sweeping_a_directory_that_is_not_there_removes_nothing(tmp_path: Path) -> None:
    """`sweep` is a first step of every start, also of the very first."""
    removed = disk.sweep(tmp_path / "absent")

    assert removed == []


def test_a_full_device_is_no_space(tmp_path: Path) -> None:
    """Linux answers ENOSPC to any write to /dev/full; that leaves the door as NoSpace, exit code 5."""
    with open("/dev/full", "wb") as file, pytest.raises(NoSpace, match="no space") as caught, disk.at_door("/dev/full"):
        disk.write_all(file.fileno(), b"x", 0)

    assert caught.value.exit_code == 5
    assert caught.value.subject == "/dev/full"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, NoSpace),
        (errno.EACCES, NotAllowed),
        (errno.EPERM, NotAllowed),
        (errno.EROFS, NotAllowed),
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.EIO, DatakitError),
        (errno.EMFILE, DatakitError),
    ],
)
def test_each_system_error_becomes_one_of_ours(number: int, expected: type[DatakitError]) -> None:
    """What the system said is in the message, and so is the place."""
    error = OSError(number, os.strerror(number), "/disk/file")

    translated = disk.translated(error, "/elsewhere")

    assert type(translated) is expected
    assert "/disk/file" in translated.message
    assert os.strerror(number) in translated.message


def test_an_error_without_a_path_names_the_place_of_the_door(tmp_path: Path) -> None:
    """A pwrite names no file; the door does."""
    with pytest.raises(NoSpace, match=re.escape(str(tmp_path))), disk.at_door(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_errors_of_ours_pass_the_door_unchanged(tmp_path: Path) -> None:
    """NoSpace is an OSError too, and is not translated twice."""
    original = NoSpace("budget")

    with pytest.raises(NoSpace) as caught, disk.at_door(tmp_path):
        raise original

    assert caught.value is original


def test_a_file_size_limit_is_met_before_the_first_byte(tmp_path: Path) -> None:
    """Preallocation asks for the room first: under `ulimit -f` it fails, and no bytes were written."""
    code = """
import os, resource, sys
from pathlib import Path
from datakit.storage import disk
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
path = Path(sys.argv[1])
try:
    with disk.at_door(path), open(path, "wb") as file:
        disk.preallocate(file.fileno(), 10_000)
except disk.NoSpace as error:
    print(error.message)
"""
    path = tmp_path / "big"

    said = run_code(code, path)

    assert said.startswith(f"no space to write {path}")
    assert path.stat().st_size == 0


def test_a_preallocated_file_has_its_full_size(tmp_path: Path) -> None:
    """The room is there before the bytes."""
    path = tmp_path / "part"

    with path.open("wb") as file:
        disk.preallocate(file.fileno(), 100_000)
        disk.preallocate(file.fileno(), 0)

    assert path.stat().st_size == 100_000
    assert path.stat().st_blocks * 512 >= 100_000


def test_a_lock_held_by_another_process_is_refused_by_its_id(tmp_path: Path) -> None:
    """The message names the process and what it is doing."""
    lock = tmp_path / "run.lock"
    process = start_code(HOLDER, lock)
    try:
        with pytest.raises(Busy, match=f"process {process.pid} is already training"):
            disk.exclusive(lock, purpose="training").__enter__()
    finally:
        kill(process)

    assert lock.exists()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """After kill -9 of the holder the next one gets the lock at once, and takes the file away at the end."""
    lock = tmp_path / "run.lock"
    kill(start_code(HOLDER, lock))

    with disk.exclusive(lock, purpose="training"):
        inside = lock.read_text()

    assert inside == f"{os.getpid()}\n"
    assert not lock.exists()


def test_a_second_thread_of_the_same_process_is_refused(tmp_path: Path) -> None:
    """POSIX locks do not exclude threads, this room does."""
    lock = tmp_path / "run.lock"
    said: list[Refused] = []

    def second() -> None:
        try:
            with disk.exclusive(lock, purpose="training"):
                pass
        except Refused as error:
            said.append(error)

    with disk.exclusive(lock, purpose="training"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    with disk.exclusive(lock, purpose="training"):
        pass

    assert [error.exit_code for error in said] == [3]


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A DataLoader worker that outlives its trainer must not keep the run locked."""
    code = """
import os, sys, time
from pathlib import Path
from datakit.storage import disk
with disk.exclusive(Path(sys.argv[1]), purpose="training"):
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    print("forked", flush=True)
    time.sleep(60)
"""
    lock = tmp_path / "run.lock"
    process = start_code(code, lock)

    process.kill()
    process.wait()
    with disk.exclusive(lock, purpose="training"):
        held = True
    process.communicate()

    assert held


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=3000))
def test_a_mapped_file_has_the_bytes_of_the_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """`map_file` shows the same bytes, also none at all, read-only."""
    path = tmp_path_factory.mktemp("map") / "file"
    path.write_bytes(data)

    view = disk.map_file(path)

    assert bytes(view) == data
    assert view.readonly


@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=3000))
def test_a_hashed_file_has_the_digests_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """`hash_file` agrees with hashlib over the whole."""
    path = tmp_path_factory.mktemp("hash") / "file.bin"
    path.write_bytes(data)

    entry = disk.hash_file(path)

    assert (entry.name, entry.bytes) == ("file.bin", len(data))
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    assert entry.md5 == hashlib.md5(data).hexdigest()


def test_an_absent_file_is_not_found(tmp_path: Path) -> None:
    """Mapping and hashing what is not there ends in NotFound with the path."""
    absent = tmp_path / "absent"

    for act in (disk.map_file, disk.hash_file):
        with pytest.raises(NotFound, match="absent"):
            act(absent)


def test_a_file_in_the_way_of_a_directory_is_refused(tmp_path: Path) -> None:
    """`make_dirs` names what is in the way."""
    (tmp_path / "file").write_bytes(b"")

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Refused, match="a file is in the way"):
            disk.make_dirs(path)


def test_free_bytes_of_a_place_to_come_are_those_of_its_disk(tmp_path: Path) -> None:
    """A destination that does not exist yet lives on the disk of its nearest ancestor."""
    free = disk.free_bytes(tmp_path / "not" / "yet" / "there")

    assert 0 < free <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


def test_a_sweep_leaves_what_somebody_else_is_writing(tmp_path: Path) -> None:
    """A place inside the swept one has its own lock: its temporaries are its holder's."""
    theirs, left = disk.temporary(tmp_path / "nested"), disk.temporary(tmp_path / "killed")
    theirs.mkdir()
    left.mkdir()

    with disk.exclusive(disk.lock_beside(tmp_path / "nested"), purpose="writing"):
        removed = disk.sweep(tmp_path)

    assert removed == [left]
    assert theirs.is_dir()
    assert disk.sweep(tmp_path) == [theirs]


def test_a_lock_of_another_process_is_seen(tmp_path: Path) -> None:
    """And looking at it neither takes nor frees it."""
    code = """
import sys
from pathlib import Path
from datakit.storage import disk
with disk.exclusive(Path(sys.argv[1]), purpose="writing"):
    print("held", flush=True)
    sys.stdin.read()
"""
    process = start_code(code, tmp_path / ".x.lock")

    held = [disk.is_held(tmp_path / ".x.lock") for _ in range(2)]
    kill(process)

    assert held == [True, True]
    assert not disk.is_held(tmp_path / ".x.lock")
    assert not disk.is_held(tmp_path / ".absent.lock")


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), FileNotFoundError(2, "no", "another.file")])
def test_an_error_of_the_block_is_none_of_the_file(tmp_path: Path, error: OSError) -> None:
    """What the block raises leaves as it is, though it is an OSError, and nothing stays."""

    def fail() -> None:
        with disk.atomic_file(tmp_path / "f") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()

    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_met_at_the_end_is_no_space(tmp_path: Path) -> None:
    """The buffer is written when the block has ended; that is said in our words too, and nothing stays."""
    code = """
import resource, signal, sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.storage import disk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    with disk.atomic_file(Path(sys.argv[1]) / "f") as file:
        file.write(b"x" * 1000)
        print("buffered")
except NoSpace as error:
    print(error.subject)
"""

    said = run_code(code, tmp_path).split()

    assert said == ["buffered", str(tmp_path / "f")]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    """A full disk is met while the holder's id is written: no lock stays, nor the directories made for it."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from datakit.errors import NoSpace\n"
        "from datakit.storage.disk import exclusive\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "for lock in sys.argv[1:]:\n"
        "    try:\n"
        "        with exclusive(Path(lock), purpose='writing'):\n"
        "            sys.exit(1)\n"
        "    except NoSpace:\n"
        "        pass\n"
    )
    locks = [str(tmp_path / ".x.lock"), str(tmp_path / "run" / "deep" / ".lock")]

    run_code(script, *locks)

    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_files_is_said() -> None:
    """It is there, but nothing can be made in it."""
    with (
        pytest.raises(NotAllowed, match="no file can be made in /proc"),
        disk.exclusive(Path("/proc/.x.lock"), purpose="p"),
    ):
        pass


def test_a_read_that_the_system_cuts_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives 2 GiB less a page at most; here 3 bytes at most. Only the file's end is an end."""
    (tmp_path / "x").write_bytes(b"0123456789")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: whole(descriptor, min(size, 3), offset))

    with (tmp_path / "x").open("rb") as file:
        found = [disk.read_all(file.fileno(), size, 1) for size in (0, 3, 8, 9, 20)]

    assert found == [b"", b"123", b"12345678", b"123456789", b"123456789"]
