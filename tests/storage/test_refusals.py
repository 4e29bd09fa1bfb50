"""What `storage/refusals` promises: a sync of files leaves the commits at its destination whole, or does not begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import IntegrityError, Refused, UsageError
from datakit.storage.commit import verify_commit
from datakit.storage.sync import sync
from support.commits import files_below, flip_bit, make_commit
from support.faulty import Fault, FaultyServer

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> str:
    """A destination of each kind."""
    return str(tmp_path / "place") if request.param == "disk" else f"{bucket}/place"


def seen(place: str, tmp_path: Path) -> dict[str, bytes]:
    """What lies at a place now."""
    for number in range(100):
        copy = tmp_path / f"seen-{number}"
        if not copy.exists():
            sync(place, copy)
            return files_below(copy)
    raise AssertionError


def test_a_commit_made_anew_under_the_same_names_is_not_written_over(place: str, tmp_path: Path) -> None:
    """Each retraining gives its weights the same name: the copy of the old adapter stays whole, and is named."""
    make_commit(tmp_path / "runs" / "a" / "adapter", {WEIGHTS: b"old"}, kind="adapter", name="a")
    (tmp_path / "runs" / "notes.txt").write_text("one")
    sync(tmp_path / "runs", place)
    before = seen(place, tmp_path)
    (tmp_path / "runs" / "a" / "adapter").rename(tmp_path / "gone")
    make_commit(tmp_path / "runs" / "a" / "adapter", {WEIGHTS: b"new"}, kind="adapter", name="a")
    (tmp_path / "runs" / "notes.txt").write_text("two")

    with pytest.raises(
        Refused, match=rf"place/a/adapter/{WEIGHTS} is a member of the adapter a, a commit at .*place/a/adapter"
    ):
        sync(tmp_path / "runs", place)

    assert seen(place, tmp_path) == before


def test_a_commit_among_files_is_renewed_by_new_members(place: str, tmp_path: Path) -> None:
    """New names beside the old ones, the manifest last; the old member stays until it is deleted by request."""
    make_commit(tmp_path / "runs" / "ds", {"a": b"1", "b": b"2"}, name="ds")
    sync(tmp_path / "runs", place)
    new = make_commit(tmp_path / "runs" / "ds", {"a": b"1", "c": b"3"}, name="ds")

    sync(tmp_path / "runs", place)
    held = seen(place, tmp_path)
    sync(tmp_path / "runs", place, delete=True, max_delete=1)

    assert held["ds/b"] == b"2"
    assert seen(place, tmp_path) == files_below(tmp_path / "runs")
    sync(f"{place}/ds", tmp_path / "alone")
    assert verify_commit(tmp_path / "alone") == new


def test_a_damaged_member_among_files_is_put_right(tmp_path: Path) -> None:
    """What both manifests vouch for may be written again: it becomes what the one there says."""
    make_commit(tmp_path / "runs" / "ds", {"a": b"11111111"}, name="ds")
    sync(tmp_path / "runs", tmp_path / "copy")
    flip_bit(tmp_path / "copy" / "ds" / "a", 3)

    sync(tmp_path / "runs", tmp_path / "copy")

    verify_commit(tmp_path / "copy" / "ds")


@pytest.mark.parametrize("name", ["ds/a", "ds/new", f"ds/{MANIFEST_NAME}"])
def test_no_file_of_a_folder_comes_into_a_commit_that_the_source_has_not(place: str, tmp_path: Path, name: str) -> None:
    """Over a member, over the manifest, or beside them: refused, and nothing else has moved either."""
    make_commit(tmp_path / "good" / "ds", {"a": b"1", "z": b"2"}, name="ds")
    sync(tmp_path / "good", place)
    before = seen(place, tmp_path)
    evil = tmp_path / "evil"
    (evil / "ds").mkdir(parents=True)
    (evil / "aaa").write_bytes(b"comes first")
    if name.endswith(MANIFEST_NAME):
        make_commit(tmp_path / "other" / "ds", {"z": b"2"}, name="another")
        (evil / "ds").rmdir()
        (tmp_path / "other" / "ds").rename(evil / "ds")
    else:
        (evil / name).write_bytes(b"garbage")

    with pytest.raises(Refused, match=r"the dataset ds") as caught:
        sync(evil, place)

    assert str(caught.value.subject).endswith(("place/ds", f"place/{name}"))
    assert seen(place, tmp_path) == before


@pytest.mark.parametrize("name", ["a", "sub/b", "new", MANIFEST_NAME])
def test_one_object_comes_into_no_published_commit(bucket: str, tmp_path: Path, name: str) -> None:
    """A member, one in a folder of the commit, a new name or the manifest itself."""
    make_commit(tmp_path / "ds", {"a": b"1", "sub/b": b"2"})
    sync(tmp_path / "ds", f"{bucket}/data/ds")
    (tmp_path / "evil").write_bytes(b"{}")

    with pytest.raises(Refused, match=r"data/ds/.* lies inside the dataset ds, a commit at s3://.*/data/ds, "):
        sync(tmp_path / "evil", f"{bucket}/data/ds/{name}")

    sync(f"{bucket}/data/ds", tmp_path / "copy")
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "ds")


def test_a_folder_is_not_written_over_members_of_a_commit_above_it(bucket: str, tmp_path: Path) -> None:
    """The destination is a folder of the commit; its listing shows no manifest."""
    make_commit(tmp_path / "ds", {"sub/b": b"2"})
    sync(tmp_path / "ds", f"{bucket}/data/ds")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "b").write_bytes(b"x")

    with pytest.raises(Refused, match="lies inside the dataset ds"):
        sync(tmp_path / "evil", f"{bucket}/data/ds/sub")


def test_the_manifest_of_another_program_is_a_file_like_others(tmp_path: Path) -> None:
    """Web applications have a manifest.json too: what stands beside it is replaced."""
    (tmp_path / "copy" / "app").mkdir(parents=True)
    (tmp_path / "copy" / "app" / MANIFEST_NAME).write_text('{"name": "app"}')
    (tmp_path / "copy" / "app" / "x").write_text("old")
    (tmp_path / "src" / "app").mkdir(parents=True)
    (tmp_path / "src" / "app" / "x").write_text("new")

    sync(tmp_path / "src", tmp_path / "copy")

    assert (tmp_path / "copy" / "app" / "x").read_text() == "new"


def test_deleting_a_commit_takes_its_manifest_first(faulty: FaultyServer, tmp_path: Path) -> None:
    """It is deleted by request, and at no moment is it there in part."""
    make_commit(tmp_path / "place" / "ds", {"a": b"1", "z": b"2"}, name="ds")
    sync(tmp_path / "place", f"{faulty.url}/place")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "keep").write_bytes(b"k")

    done = sync(tmp_path / "src", f"{faulty.url}/place", delete=True, max_delete=3)

    assert next(key for _, key, _ in faulty.asked("DELETE")) == f"place/ds/{MANIFEST_NAME}"
    assert sorted(done.deleted) == ["ds/a", f"ds/{MANIFEST_NAME}", "ds/z"]
    assert list(faulty.objects) == ["place/keep"]


def test_a_destination_inside_the_source_is_refused(tmp_path: Path, bucket: str) -> None:
    """Each run would copy the last one once more; a link does not hide it."""
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "x").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "g")
    sync(tmp_path / "g", f"{bucket}/g")

    for source, inside in [(tmp_path / "g", tmp_path / "g" / "copy"), (tmp_path / "g", tmp_path / "link" / "copy")]:
        with pytest.raises(Refused, match="lies inside"):
            sync(source, inside)
    with pytest.raises(Refused, match="lies inside"):
        sync(f"{bucket}/g", f"{bucket}/g/copy")
    assert files_below(tmp_path / "g") == {"x": b"x"}


def test_a_source_inside_the_destination_is_not_deleted(tmp_path: Path) -> None:
    """Without --delete it is copied; with it, the source itself would be what the source does not have."""
    (tmp_path / "g" / "sub").mkdir(parents=True)
    (tmp_path / "g" / "sub" / "x").write_bytes(b"x")

    sync(tmp_path / "g" / "sub", tmp_path / "g")
    with pytest.raises(Refused, match="--delete would delete it"):
        sync(tmp_path / "g" / "sub", tmp_path / "g", delete=True, max_delete=9)

    assert files_below(tmp_path / "g") == {"x": b"x", "sub/x": b"x"}


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\x7fb", "a\udcffb"])
def test_a_name_that_no_key_can_be_is_said_before_anything_is_put(tmp_path: Path, bucket: str, name: str) -> None:
    """Other files of the folder are not put first."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "first").write_bytes(b"1")
    (tmp_path / "src" / name).write_bytes(b"2")

    with pytest.raises(UsageError, match="cannot be the key of an object"):
        sync(tmp_path / "src", f"{bucket}/odd")

    with pytest.raises(UsageError, match="cannot be the key of an object"):
        sync(tmp_path / "src" / name, f"{bucket}/odd/")


def test_what_a_torn_listing_left_out_is_not_deleted(faulty: FaultyServer, tmp_path: Path) -> None:
    """The store says that its list goes on and not how: what is to go is asked for by name first."""
    (tmp_path / "copy").mkdir()
    for name in ("a", "b", "gone"):
        (tmp_path / "copy" / name).write_bytes(b"1")
        faulty.put(f"src/{name}", b"1")
    del faulty.objects["src/gone"]
    before = files_below(tmp_path / "copy")
    faulty.faults = [Fault("torn-list", key="")]

    with pytest.raises(IntegrityError, match="did not list b, which is there"):
        sync(f"{faulty.url}/src", tmp_path / "copy", delete=True, max_delete=9)
    assert files_below(tmp_path / "copy") == before

    done = sync(f"{faulty.url}/src", tmp_path / "copy", delete=True, max_delete=9)
    assert done.deleted == ("gone",)


@pytest.mark.parametrize("kind", ["one file", "a folder", "a commit"])
def test_a_folder_is_in_the_way_of_a_file_of_its_name(tmp_path: Path, kind: str) -> None:
    """It is named before anything moves, and what lies in it stays."""
    make_commit(tmp_path / "src", {"a": b"1", "b": b"2"})
    if kind != "a commit":
        (tmp_path / "src" / MANIFEST_NAME).unlink()
    (tmp_path / "copy" / "b").mkdir(parents=True)
    (tmp_path / "copy" / "b" / "mine").write_bytes(b"3")
    source = tmp_path / "src" / "b" if kind == "one file" else tmp_path / "src"

    with pytest.raises(Refused, match="copy/b is a folder, in the way of a file of that name"):
        sync(source, tmp_path / "copy")
    assert files_below(tmp_path / "copy") == {"b/mine": b"3"}

    (tmp_path / "copy" / "b").rename(tmp_path / "mine")
    sync(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "b").read_bytes() == b"2"


def test_a_folder_is_in_the_way_of_a_manifest(tmp_path: Path) -> None:
    """It is named before anything moves: the manifest comes last, after all the rest."""
    make_commit(tmp_path / "src", {"a": b"1"})
    (tmp_path / "copy" / MANIFEST_NAME).mkdir(parents=True)

    with pytest.raises(Refused, match=r"copy/manifest\.json is a folder, in the way of a file of that name"):
        sync(tmp_path / "src", tmp_path / "copy")

    assert files_below(tmp_path / "copy") == {}


@pytest.mark.parametrize("kind", ["a folder", "a commit"])
@pytest.mark.parametrize("way", ["sub", "sub/deeper"])
def test_a_file_is_in_the_way_of_a_folder_of_its_name(tmp_path: Path, kind: str, way: str) -> None:
    """It is named before anything moves, though other files come first."""
    make_commit(tmp_path / "src", {"a": b"1", "sub/deeper/b": b"2", "z": b"3"})
    if kind == "a folder":
        (tmp_path / "src" / MANIFEST_NAME).unlink()
    there = tmp_path / "copy" / way
    there.parent.mkdir(parents=True)
    there.write_bytes(b"mine")
    before = sorted((tmp_path / "copy").rglob("*"))

    with pytest.raises(Refused, match=f"copy/{way} is not a directory, and sub/deeper/b would lie in it"):
        sync(tmp_path / "src", tmp_path / "copy")
    assert sorted((tmp_path / "copy").rglob("*")) == before

    there.rename(tmp_path / "mine")
    sync(tmp_path / "src", tmp_path / "copy")
    assert (tmp_path / "copy" / "sub" / "deeper" / "b").read_bytes() == b"2"
