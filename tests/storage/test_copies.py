"""What `storage/copies` promises: a state says how far a copy is, and is believed no longer than it is true."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import DatakitError, IntegrityError, MissingExtra, NotFound, StoreUnavailable
from datakit.storage.answers import Throttled
from datakit.storage.copies import (
    Copy,
    error_of,
    forget_damage,
    lost,
    note_damage,
    read_copies,
    read_copy,
    take_back,
    told,
    verified_below,
    write_state,
)
from support.commits import make_commit
from support.process import run_code


def stated(run: Path, name: str, *, here: bool = True, **about: Any) -> Path:
    """A commit of a run, if it is to be here, and the state of its copy; gives the state's file."""
    path, file = run / "checkpoints" / name, run / "queue" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    digest = make_commit(path, {"a": b"12"}, kind="checkpoint").digest
    if not here:
        shutil.rmtree(path)
    about = {"dest": f"/cold/{name}", "state": "verified", "manifest_digest": digest} | about
    write_state(file, path=str(path), **about)
    return file


def known(file: Path) -> Copy:
    copy = read_copy(file)
    assert copy is not None
    return copy


def test_a_state_keeps_where_its_commit_is_relative_to_the_run(tmp_path: Path) -> None:
    """What lies elsewhere keeps its whole path, also where the run holds a directory of the same name."""
    file = tmp_path / "run" / "write-back" / "a.json"
    for place in ("run/write-back", "run/adapter", "run/checkpoints/a", "else/adapter", "else/checkpoints/a"):
        (tmp_path / place).mkdir(parents=True)
    said = []
    for place in ("run/checkpoints/a", "else/adapter", "else/checkpoints/a"):
        write_state(file, path=str(tmp_path / place), dest="x", state="staged")
        said.append((json.loads(file.read_text())["path"], known(file).path))

    assert said[0] == ("checkpoints/a", tmp_path / "run" / "checkpoints" / "a")
    assert said[1:] == [(str(path), path) for path in (tmp_path / "else/adapter", tmp_path / "else/checkpoints/a")]


@pytest.mark.parametrize(
    "other",
    [{"format": 3}, {"format": 1}, {"state": "done"}, {"state": ["staged"]}, {"path": 1}, {"dest": None}, {"error": 7}],
)
def test_a_state_of_another_shape_is_none(tmp_path: Path, other: dict[str, Any]) -> None:
    """Another format, a word that is no state, a field of another kind."""
    file = stated(tmp_path, "step-1")
    file.write_text(json.dumps(json.loads(file.read_text()) | other))

    assert read_copy(file) is None


def test_a_file_that_is_not_ours_is_passed_over(tmp_path: Path) -> None:
    """Torn, of another program, or a directory: no commit."""
    stated(tmp_path, "step-1")
    (tmp_path / "queue" / "torn.json").write_text('{"state": "sta')
    (tmp_path / "queue" / "list.json").write_text("[]")
    (tmp_path / "queue" / "folder.json").mkdir()

    assert [copy.name for copy in read_copies(tmp_path / "queue")] == ["step-1"]


@pytest.mark.parametrize("error", [Throttled("slow", hint="wait"), MissingExtra("obstore", extra="s3"), NotFound("no")])
def test_an_error_keeps_its_public_class_on_its_way(error: DatakitError) -> None:
    """Through JSON and back; a private class comes out as the public one that it is of."""
    again = error_of(json.loads(json.dumps(told(error))))

    assert type(again) is (StoreUnavailable if isinstance(error, Throttled) else type(error))
    assert (again.message, again.hint) == (error.message, error.hint)


def test_a_copy_is_there_when_a_listing_holds_all_of_it(tmp_path: Path) -> None:
    """By name and size while the commit is here, by its manifest alone where it is not, or is another or torn."""
    file = stated(tmp_path, "step-1")
    manifest = tmp_path / "checkpoints" / "step-1" / "manifest.json"
    size = manifest.stat().st_size
    whole = {"manifest.json": size, "a": 2}
    torn_there = whole | {"manifest.json": size // 2}
    listings: list[dict[str, int]] = [whole, {"manifest.json": size}, whole | {"a": 3}, torn_there, {"a": 2}, {}]

    here = [known(file).is_there({"step-1": listing}) for listing in listings]
    manifest.write_bytes(manifest.read_bytes()[:40])
    torn = [known(file).is_there({"step-1": listing}) for listing in listings]
    shutil.rmtree(manifest.parent)
    gone = [known(file).is_there({"step-1": listing}) for listing in listings]
    make_commit(manifest.parent, {"a": b"123"}, kind="checkpoint")
    other = [known(file).is_there({"step-1": listing}) for listing in listings]

    assert here == [True, False, False, False, False, False]
    assert torn == gone == other == [True, True, True, True, False, False]


def test_what_lies_here_is_told_from_what_took_its_place(tmp_path: Path) -> None:
    """Where it is torn or gone, it is neither."""
    file = stated(tmp_path, "step-1")
    path = known(file).path

    said = [(known(file).is_here, known(file).is_replaced)]
    make_commit(path.with_name("step-2"), {"a": b"other"}, kind="checkpoint", name="step-1")
    shutil.rmtree(path)
    said.append((known(file).is_here, known(file).is_replaced))
    path.with_name("step-2").rename(path)
    said.append((known(file).is_here, known(file).is_replaced))
    (path / "manifest.json").write_text("{")
    said.append((known(file).is_here, known(file).is_replaced))

    assert said == [(True, False), (False, False), (False, True), (False, False)]


def test_copies_are_told_by_where_they_lie_not_by_how_it_is_written(tmp_path: Path) -> None:
    """Dots, a slash at the end and links lead to the same place; another bucket is another one."""
    (tmp_path / "cold").mkdir()
    (tmp_path / "link").symlink_to("cold")
    stated(tmp_path, "step-1", dest=f"{tmp_path}/cold/step-1")
    stated(tmp_path, "step-2", dest="s3://bkt/run/step-2")
    places = [f"{tmp_path}/{end}" for end in ("cold", "cold/", "x/../cold", "link")]

    local = [[copy.name for copy in verified_below(tmp_path / "queue", place)] for place in places]
    remote = [[copy.name for copy in verified_below(tmp_path / "queue", f"s3://{end}")] for end in ("bkt/run/", "b")]

    assert local == [["step-1"]] * 4
    assert remote == [["step-2"], []]


def test_what_a_later_listing_does_not_hold_is_lost(tmp_path: Path) -> None:
    """Staged again where the commit is here, forgotten where it is not."""
    files = [stated(tmp_path, "step-1"), stated(tmp_path, "step-2", here=False), stated(tmp_path, "step-3")]
    copies = verified_below(tmp_path / "queue", "/cold")

    size = (tmp_path / "checkpoints" / "step-3" / "manifest.json").stat().st_size
    gone = lost(copies, {"step-3": {"manifest.json": size, "a": 2}})
    again = [take_back(copy, "gone") for copy in gone]

    assert ([copy.name for copy in gone], again) == (["step-1", "step-2"], [True, False])
    assert (known(files[0]).state, known(files[0]).repair, known(files[0]).message) == ("staged", True, "gone")
    assert not files[1].exists()
    assert known(files[2]).state == "verified"


def test_a_lost_copy_is_not_called_verified_where_there_is_no_room_to_say_so(tmp_path: Path) -> None:
    """The older word goes, and the commit is offered again all the same."""
    file = stated(tmp_path, "step-1")
    code = """
import resource, sys
from pathlib import Path
from datakit.storage.copies import read_copy, take_back
file = Path(sys.argv[1])
copy = read_copy(file)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
print(take_back(copy, "gone"), file.exists())
"""

    assert run_code(code, file) == "True False\n"


DAMAGED = {f"step-{n}": IntegrityError("a bit is wrong", hint="Put it again") for n in (1, 2, 3)}


def test_damage_is_noted_where_the_copy_lies_and_nowhere_else(tmp_path: Path) -> None:
    """What has no state gets one only where it is said where its commit will be; a copy elsewhere keeps its state."""
    stated(tmp_path, "step-1")
    stated(tmp_path, "step-2", dest="/elsewhere/step-2")

    note_damage(tmp_path / "queue", "/cold", DAMAGED)
    first = {copy.file.stem: copy for copy in read_copies(tmp_path / "queue")}
    note_damage(tmp_path / "queue", "/cold", {"step-3": DAMAGED["step-3"]}, directory=tmp_path / "checkpoints")
    third = known(tmp_path / "queue" / "step-3.json")

    assert {name: copy.state for name, copy in first.items()} == {"step-1": "failed", "step-2": "verified"}
    for copy in (first["step-1"], third):
        assert (copy.repair, copy.message, copy.error) == (True, "a bit is wrong", "IntegrityError")
    assert (third.path, third.dest) == (tmp_path / "checkpoints" / "step-3", "/cold/step-3")


def test_damage_that_finds_no_room_is_raised_and_nothing_is_called_verified(tmp_path: Path) -> None:
    """The words of all go, not only of the first."""
    for number in (1, 2):
        stated(tmp_path, f"step-{number}")
    code = """
import resource, sys
from pathlib import Path
from datakit.errors import IntegrityError, NoSpace
from datakit.storage.copies import note_damage
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    note_damage(Path(sys.argv[1]), "/cold", {f"step-{n}": IntegrityError("x") for n in (1, 2)})
except NoSpace:
    print("no space")
"""

    assert run_code(code, tmp_path / "queue") == "no space\n"
    assert list((tmp_path / "queue").glob("*.json")) == []


def test_damage_is_remembered_until_the_copy_is_seen_whole_or_gone(tmp_path: Path) -> None:
    """Of a copy that was not looked at, that lies elsewhere, or whose commit is here, nothing is forgotten."""
    for name, here, dest in (
        ("gone", False, "/cold/gone"),
        ("unseen", False, "/cold/unseen"),
        ("here", True, "/cold/here"),
        ("elsewhere", False, "/other/elsewhere"),
    ):
        stated(tmp_path, name, here=here, dest=dest, state="failed", repair=True)
    stated(tmp_path, "failed", here=False, state="failed")

    forget_damage(tmp_path / "queue", "/cold", unseen={"unseen"})

    assert [copy.name for copy in read_copies(tmp_path / "queue")] == ["elsewhere", "failed", "here", "unseen"]
