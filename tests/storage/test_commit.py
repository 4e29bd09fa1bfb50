"""What `storage/commit` promises: whole or not at all, never other bytes under a member's name, killed anywhere."""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from datakit.data.digest import PART_BYTES, FileEntry, entry_of
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import DatakitError, InputError, IntegrityError, NotFound, Refused
from datakit.storage import disk
from datakit.storage.commit import NEXT_NAME, Staging, commit, lock_path, read_manifest, verify_commit
from datakit.storage.objects import LocalStore
from support.process import kill, run_code, start_code


def make(final: Path, **members: bytes) -> Manifest:
    with commit(final, kind="checkpoint", name=final.name) as staging:
        for name, data in members.items():
            staging.write(name, data)
    assert staging.manifest is not None
    return staging.manifest


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_commit_holds_its_members_and_their_manifest(tmp_path: Path) -> None:
    """Every way of adding a member ends in the manifest, with what `about` says."""
    final = tmp_path / "new" / "ds"

    with commit(final, kind="dataset", name="ds") as staging:
        staging.about["samples"] = 3
        staging.write("a.bin", b"aaa")
        with staging.open("below/b.bin") as write:
            write(b"bb")
            write(memoryview(b"bb"))
        (staging.path / "c.bin").write_bytes(b"c")
        staging.adopt(entry_of("c.bin", b"c"))

    manifest = verify_commit(final)
    assert manifest == staging.manifest
    assert manifest.members == (entry_of("a.bin", b"aaa"), entry_of("below/b.bin", b"bbbb"), entry_of("c.bin", b"c"))
    assert (manifest.kind, manifest.name, dict(manifest.about)) == ("dataset", "ds", {"samples": 3})
    assert os.listdir(final.parent) == ["ds"]


def stumble(staging: Staging) -> None:
    staging.write("a.bin", b"aaa")
    raise InputError("not a record")


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    """No directory, no temporary, no lock: not even an empty place under the final name."""
    with pytest.raises(InputError), commit(tmp_path / "ds", kind="dataset", name="ds") as staging:
        stumble(staging)

    assert os.listdir(tmp_path) == []


def test_a_renewal_adds_members_keeps_others_and_removes_orphans(tmp_path: Path) -> None:
    """The second commit of a name holds exactly what its manifest names."""
    final = tmp_path / "ds"
    make(final, old=b"1", same=b"2", kept=b"3")
    inode = (final / "kept").stat().st_ino

    with commit(final, kind="checkpoint", name="ds") as staging:
        staging.keep("kept")
        staging.write("same", b"2")
        staging.write("new", b"4")

    manifest = verify_commit(final)
    assert [entry.name for entry in manifest.members] == ["kept", "new", "same"]
    assert names(final) == ["kept", MANIFEST_NAME, "new", "same"]
    assert (final / "kept").stat().st_ino == inode


def test_a_renewal_repairs_a_damaged_member_that_it_wrote_again(tmp_path: Path) -> None:
    """Good bytes at hand are not thrown away for a file that merely has the right size."""
    final = tmp_path / "ds"
    make(final, a=b"good")
    (final / "a").write_bytes(b"evil")

    make(final, a=b"good")

    assert verify_commit(final).members == (entry_of("a", b"good"),)


def test_other_bytes_under_a_members_name_are_refused(tmp_path: Path) -> None:
    """Readers of the old manifest keep their bytes; the commit stays as it was."""
    final = tmp_path / "ds"
    before = make(final, a=b"one", b=b"two")

    with pytest.raises(Refused, match="would change its bytes under its name"):
        make(final, a=b"ONE", c=b"three")

    assert verify_commit(final) == before
    assert names(final) == ["a", "b", MANIFEST_NAME]


def test_a_commit_of_another_kind_or_name_is_refused(tmp_path: Path) -> None:
    """Both the present and the wanted kind and name are in the message."""
    final = tmp_path / "ds"
    before = make(final, a=b"one")

    for kind, name in (("adapter", "ds"), ("checkpoint", "other")):
        with (
            pytest.raises(Refused, match=f"holds the checkpoint ds, not the {kind} {name}"),
            commit(final, kind=kind, name=name) as staging,  # type: ignore[arg-type]
        ):
            staging.write("a", b"one")

    assert verify_commit(final) == before


def test_a_directory_of_other_files_is_refused_before_any_work(tmp_path: Path) -> None:
    """A directory without a manifest belongs to somebody else; so do a file and a link."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    entered = False

    said = {"full": "holds files that no manifest names", "file": "is not a directory", "link": "is a link"}
    for name, words in said.items():
        with pytest.raises(Refused, match=words), commit(tmp_path / name, kind="dataset", name="ds"):
            entered = True

    assert not entered
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_a_file_that_no_manifest_names_is_never_replaced(tmp_path: Path) -> None:
    """A stray file in a commit that has the name of a coming member is in the way."""
    final = tmp_path / "ds"
    make(final, a=b"one")
    (final / "b").write_text("stray")

    with pytest.raises(Refused, match="in the way"):
        make(final, a=b"one", b=b"two")

    assert (final / "b").read_text() == "stray"


@pytest.mark.parametrize("coming", [{"a": b"1", "b": b"2"}, {"a": b"1"}, {"a": b"1", "c": b"3"}])
def test_a_folder_in_the_place_of_a_member_is_named_before_anything_moves(
    tmp_path: Path, coming: dict[str, bytes]
) -> None:
    """Of an old one, which would stay, be replaced or be removed; no marker of a renewal is left."""
    final = tmp_path / "ds"
    make(final, a=b"1", b=b"2")
    (final / "b").unlink()
    (final / "b").mkdir()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(Refused, match="ds/b is a folder, in the way of a file of that name"):
        make(final, **coming)

    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_directory_may_become_a_commit(tmp_path: Path) -> None:
    """Users make the output directory first."""
    final = tmp_path / "ds"
    final.mkdir()

    make(final, a=b"one")

    assert names(final) == ["a", MANIFEST_NAME]


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/../b", "a//b", "", ".", "a\\b", MANIFEST_NAME, NEXT_NAME, ".a.tmp-00000000"]
)
def test_a_member_name_that_leaves_the_commit_or_is_ours_is_an_error(tmp_path: Path, name: str) -> None:
    """A manifest from anywhere cannot write anywhere else."""
    with pytest.raises(IntegrityError), commit(tmp_path / "ds", kind="dataset", name="ds") as staging:
        staging.write(name, b"x")

    assert os.listdir(tmp_path) == []


def test_a_member_added_twice_is_an_error(tmp_path: Path) -> None:
    """Two members cannot have one name."""
    with commit(tmp_path / "ds", kind="dataset", name="ds") as staging:
        staging.write("a", b"x")
        with pytest.raises(InputError, match="twice"):
            staging.write("a", b"x")


def test_adopting_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    """An entry for a file of another size, or none, is caught before the manifest names it."""
    with commit(tmp_path / "ds", kind="dataset", name="ds") as staging:
        (staging.path / "a").write_bytes(b"12")
        with pytest.raises(IntegrityError, match="said to hold 3 bytes"):
            staging.adopt(entry_of("a", b"123"))
        with pytest.raises(IntegrityError):
            staging.adopt(entry_of("b", b"123"))
        staging.adopt(entry_of("a", b"12"))


def test_keeping_what_no_commit_has_is_not_found(tmp_path: Path) -> None:
    """`keep` takes over only whole members of the commit that is being renewed."""
    final = tmp_path / "ds"

    with commit(final, kind="checkpoint", name="ds") as staging:
        with pytest.raises(NotFound):
            staging.keep("a")
        staging.write("a", b"123")
    (final / "a").write_bytes(b"12")

    with commit(final, kind="checkpoint", name="ds") as staging:
        with pytest.raises(NotFound):
            staging.keep("a")
        staging.write("a", b"123")


def test_two_writers_of_one_place_exclude_each_other(tmp_path: Path) -> None:
    """The second is refused while the first is in its block, and welcome after it."""
    final = tmp_path / "ds"
    refused: list[Refused] = []

    def second() -> None:
        try:
            make(final, a=b"one")
        except Refused as error:
            refused.append(error)

    with commit(final, kind="checkpoint", name="ds") as staging:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        staging.write("a", b"one")
    second()

    assert len(refused) == 1


def test_the_leftover_of_a_killed_commit_is_swept_by_the_next_of_that_name_only(tmp_path: Path) -> None:
    """Another commit beside it may be alive; its temporary is not ours to remove."""
    (tmp_path / ".ds.tmp-00000000").mkdir()
    (tmp_path / ".ds.tmp-00000000" / "a").write_bytes(b"half")
    (tmp_path / ".other.tmp-00000000").mkdir()

    make(tmp_path / "ds", a=b"one")

    assert sorted(os.listdir(tmp_path)) == [".other.tmp-00000000", "ds"]


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_bit_is_named_by_file_and_part(tmp_path: Path) -> None:
    """Part 1 of a file begins at byte 16 MiB; the message says which bytes are wrong."""
    final = tmp_path / "ds"
    make(final, big=random.Random(0).randbytes(PART_BYTES + 1000), small=b"x")
    damage(final / "big", PART_BYTES + 10)

    with pytest.raises(IntegrityError, match=f"big: bytes {PART_BYTES} to {PART_BYTES + 1000} have crc32c") as caught:
        verify_commit(final)

    assert caught.value.subject == "big"
    assert caught.value.exit_code == 4
    assert verify_commit(final, quick=True).name == "ds"


def test_bytes_that_fool_the_crc_do_not_fool_the_sha256(tmp_path: Path) -> None:
    """A manifest whose crc32c fits and whose sha256 does not is an integrity error."""
    final = tmp_path / "ds"
    make(final, a=b"one")
    other = entry_of("a", b"two")
    true = entry_of("a", b"one")
    forged = FileEntry(name="a", bytes=3, sha256=other.sha256, md5=true.md5, crc32c=true.crc32c)
    manifest = Manifest("checkpoint", "ds", (forged,), {})
    (final / MANIFEST_NAME).write_bytes(manifest.to_bytes())

    with pytest.raises(IntegrityError, match="another sha256"):
        verify_commit(final)


@pytest.mark.parametrize("quick", [True, False])
def test_a_missing_or_shortened_member_is_found_without_reading(tmp_path: Path, quick: bool) -> None:
    """Presence and size are checked in both depths."""
    final = tmp_path / "ds"
    make(final, a=b"one", b=b"two")

    (final / "a").write_bytes(b"on")
    with pytest.raises(IntegrityError, match="has 2 bytes, the manifest says 3"):
        verify_commit(final, quick=quick)
    (final / "a").unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        verify_commit(final, quick=quick)


def test_what_has_no_manifest_is_not_found(tmp_path: Path) -> None:
    """A directory without a manifest and no directory at all are both NotFound, exit code 2."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotFound) as caught:
            read_manifest(path)
        assert caught.value.exit_code == 2


def test_a_manifest_that_is_no_manifest_names_its_path(tmp_path: Path) -> None:
    """The reader's error says which file it is about."""
    (tmp_path / MANIFEST_NAME).write_bytes(b"{ not json")

    with pytest.raises(IntegrityError, match=f"{tmp_path}/{MANIFEST_NAME}"):
        read_manifest(tmp_path)


RENEW = """
import sys
from pathlib import Path
from datakit.storage.commit import commit
final, generation = Path(sys.argv[1]), int(sys.argv[2])
print("begun", flush=True)
for turn in range(generation, generation + 400):
    with commit(final, kind="dataset", name="ds") as staging:
        if staging.previous is not None and any(entry.name == "kept" for entry in staging.previous.members):
            staging.keep("kept")
        else:
            staging.write("kept", b"k" * 5000)
        for member in range(3):
            staging.write(f"m-{turn}-{member}", bytes([turn % 251]) * 3000)
"""


def test_killed_anywhere_a_renewed_commit_is_valid_and_whole(tmp_path: Path) -> None:
    """Kill -9 at random moments of renewals: what stands there verifies, and the next leaves nothing but itself."""
    final = tmp_path / "ds"
    clock = random.Random(11)

    for attempt in range(12):
        process = start_code(RENEW, final, attempt * 1000)
        time.sleep(clock.uniform(0.0, 0.12))
        kill(process)
        if final.exists():
            verify_commit(final)

    with commit(final, kind="dataset", name="ds") as staging:
        staging.write("last", b"x")
    assert names(final) == ["last", MANIFEST_NAME]
    assert os.listdir(tmp_path) == ["ds"]


def test_a_killed_renewal_is_recognised_and_its_members_may_be_replaced(tmp_path: Path) -> None:
    """Members that only a coming manifest named belong to no commit: the next renewal replaces or removes them."""
    final = tmp_path / "ds"
    make(final, a=b"one")
    coming = Manifest("checkpoint", "ds", (entry_of("b", b"two"), entry_of("c", b"three")), {})
    (final / NEXT_NAME).write_bytes(coming.to_bytes())
    (final / "b").write_bytes(b"two")
    (final / "c").write_bytes(b"three")

    make(final, a=b"one", b=b"another")

    assert verify_commit(final).member("b") == entry_of("b", b"another")
    assert names(final) == ["a", "b", MANIFEST_NAME]


def test_a_full_disk_ends_a_commit_with_nothing_left(tmp_path: Path) -> None:
    """A write that the system refuses (here by the largest file size) is NoSpace, and the old commit stands."""
    code = """
import resource, sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.storage.commit import commit
final = Path(sys.argv[1])
with commit(final, kind="dataset", name="ds") as staging:
    staging.write("a", b"x")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with commit(final, kind="dataset", name="ds") as staging:
        staging.write("b", b"x" * 10_000)
except NoSpace as error:
    print(error.exit_code, error.message)
"""
    final = tmp_path / "ds"

    said = run_code(code, final)

    assert said.startswith("5 no space to write")
    assert names(final) == ["a", MANIFEST_NAME]
    assert os.listdir(tmp_path) == ["ds"]


def test_the_lock_of_a_place_lies_beside_it(tmp_path: Path) -> None:
    """Whoever writes at a place by other means, such as a download, takes the same lock."""
    final = tmp_path / "ds"

    with disk.exclusive(lock_path(final), purpose="downloading"), pytest.raises(DatakitError, match="already writing"):
        make(final, a=b"one")

    assert os.listdir(tmp_path) == []


def test_a_commit_inside_a_commit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """At any depth and through a link; another program's manifest.json above a place is no commit."""
    outer = tmp_path / "ds"
    make(outer, a=b"one")
    (tmp_path / "link").symlink_to(outer)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST_NAME).write_bytes(b'{"name": "an extension"}')

    for place in (outer / "sub", outer / "sub" / "deep", tmp_path / "link" / "sub"):
        with pytest.raises(Refused, match="lies inside the checkpoint ds"):
            make(place, b=b"two")
    make(tmp_path / "other" / "ds", b=b"two")

    assert sorted(os.listdir(outer)) == ["a", MANIFEST_NAME]


def renew(final: Path, *, derived: list[str], **members: bytes) -> Manifest:
    with commit(final, kind="dataset", name="ds") as staging:
        for name, data in members.items():
            staging.write(name, data)
        staging.about["derived"] = derived
    assert staging.manifest is not None
    return staging.manifest


def test_derived_members_may_change_their_bytes(tmp_path: Path) -> None:
    """Where both manifests call a member derived, a renewal replaces it; others are as protected as ever."""
    final = tmp_path / "ds"
    renew(final, derived=["info"], info=b"one", data=b"x")

    manifest = renew(final, derived=["info"], info=b"other", more=b"y")

    assert {name: (final / name).read_bytes() for name in ("info", "more")} == {"info": b"other", "more": b"y"}
    assert names(final) == ["info", MANIFEST_NAME, "more"]
    assert verify_commit(final) == manifest
    with pytest.raises(Refused, match="more would change its bytes under its name"):
        renew(final, derived=["info"], info=b"third", more=b"z")
    with pytest.raises(Refused, match="info would change its bytes under its name"):
        renew(final, derived=[], info=b"third", more=b"y")
    assert verify_commit(final) == manifest


def test_a_kill_between_derived_members_and_the_manifest_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is derived is of the new one until the same commit is made again."""
    final = tmp_path / "ds"
    renew(final, derived=["info"], info=b"one", data=b"x")
    with monkeypatch.context() as patch:
        patch.setattr("datakit.storage.commit._fsync_tree", _killed)
        with pytest.raises(KeyboardInterrupt):
            renew(final, derived=["info"], info=b"other", data=b"x", more=b"y")
    between = (final / "data").read_bytes(), (final / "info").read_bytes()

    manifest = renew(final, derived=["info"], info=b"other", data=b"x", more=b"y")

    assert between == (b"x", b"other")
    assert verify_commit(final) == manifest
    assert names(final) == ["data", "info", MANIFEST_NAME, "more"]


def _killed(path: Path) -> None:
    raise KeyboardInterrupt(path)


@pytest.mark.parametrize("member", [True, False])
def test_an_error_of_the_block_is_none_of_the_place(tmp_path: Path, member: bool) -> None:
    """What goes wrong with a source leaves as it is, while a member is written or between two; nothing stays."""

    def fail() -> None:
        with commit(tmp_path / "c", kind="model", name="m") as staging:
            if member:
                with staging.open("a") as write:
                    write(b"1")
                    raise ConnectionResetError("the source")
            raise ConnectionResetError("the source")

    with pytest.raises(ConnectionResetError, match="the source"):
        fail()

    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_said_to_be_absent(tmp_path: Path) -> None:
    """Who names a file where a dataset's directory is wanted reads so."""
    (tmp_path / "f").write_text("x")

    with pytest.raises(InputError, match=r"f is a file, not a directory with a commit"):
        read_manifest(tmp_path / "f")
    with pytest.raises(NotFound, match="g is not there"):
        read_manifest(tmp_path / "g")


def test_an_interrupt_right_after_the_directory_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between any two steps, also before the block is entered."""
    mkdir = Path.mkdir

    def interrupted(path: Path, *words: Any, **named: Any) -> None:
        mkdir(path, *words, **named)
        if path.name.startswith(".ds.tmp-"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "ds", a=b"1")

    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_right_after_a_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of a file that appears when it is whole."""
    fdopen = os.fdopen

    def interrupted(descriptor: int, *words: Any) -> None:
        fdopen(descriptor, *words).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupted)

    with pytest.raises(KeyboardInterrupt), disk.atomic_file(tmp_path / "a"):
        pass

    assert list(tmp_path.iterdir()) == []


CLOSED = {
    "read_manifest": "datakit.storage.commit.read_manifest(place)",
    "verify_commit": "datakit.storage.commit.verify_commit(place)",
    "check_place": "datakit.storage.commit.check_place(place, kind='dataset', name='ds')",
    "newest": "datakit.storage.newest.newest(place)",
    "open_view": "datakit.storage.view.open_view(place)",
    "open_dataset": "datakit.open_dataset(place)",
    "sync from": "datakit.sync(place, root / 'out')",
    "sync to": "datakit.sync(root / 'open', place)",
    "file to": "datakit.sync(root / 'open' / 'a', place)",
    "list": "datakit.storage.objects.LocalStore(place).list('')",
    "folders": "datakit.storage.objects.LocalStore(place).folders('')",
    "write": "datakit.storage.objects.LocalStore(place).write('a', b'', create=True)",
    "free_bytes": "datakit.storage.disk.free_bytes(place)",
    "sweep": "datakit.storage.disk.sweep(place)",
    "exclusive": "datakit.storage.disk.exclusive(place / 'lock', purpose='p').__enter__()",
}
"""What looks at a place whose parent may not be entered."""


@pytest.fixture(scope="module")
def said_of_closed() -> dict[str, str]:
    """What each says, to an ordinary user, whom permissions bind: exit code and message."""
    code = """
import json, os, sys
from pathlib import Path
import datakit, datakit.storage.commit, datakit.storage.disk
import datakit.storage.newest, datakit.storage.objects, datakit.storage.view
_ = datakit.open_dataset, datakit.sync  # imported while everything may be read
if os.getuid() == 0:
    os.seteuid(65534)
root = Path(sys.argv[1])
place, said = root / "closed" / "ds", {}
for name, look in json.loads(sys.argv[2]).items():
    try:
        eval(look)
    except datakit.DatakitError as error:
        said[name] = f"{error.exit_code} {error.message}"
    except BaseException as error:
        said[name] = repr(error)
print(json.dumps(said))
"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "closed" / "ds").mkdir(parents=True)
        (root / "open").mkdir()
        (root / "open" / "a").write_bytes(b"1")
        (root / "closed").chmod(0o000)
        try:
            said: dict[str, str] = json.loads(run_code(code, root, json.dumps(CLOSED)))
        finally:
            (root / "closed").chmod(0o700)
    return said


def test_a_commit_does_not_look_into_the_folders_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies around a new place is nobody's business: a home directory has thousands of folders."""
    for number in range(5):
        (tmp_path / "home" / f"folder-{number}").mkdir(parents=True)
    listed: list[str] = []
    real = LocalStore.folders
    monkeypatch.setattr(LocalStore, "folders", lambda store, prefix: listed.append(store.url) or real(store, prefix))

    make(tmp_path / "home" / "deep" / "ds", a=b"one")
    make(tmp_path / "home" / "deep" / "ds", a=b"one", b=b"two")

    assert listed == []


@pytest.mark.parametrize("look", CLOSED)
def test_a_place_that_may_not_be_entered_is_not_allowed(said_of_closed: dict[str, str], look: str) -> None:
    """Whoever catches `DatakitError` catches all: no bare PermissionError leaves the room."""
    said = said_of_closed[look]

    assert said.startswith("6 ")
    assert "/closed/ds" in said
