"""What `storage/strangers` promises: no place of others' files becomes a commit, none of a source is lost unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import Refused
from datakit.events import Caution, Event
from datakit.storage.commit import NEXT_NAME
from datakit.storage.objects import LocalStore
from datakit.storage.strangers import strangers
from datakit.storage.sync import plan_sync, sync
from support.commits import files_below, make_commit
from support.s3server import S3Server

OLD = ("ds-0123abcd.tar", "ds-0123abcd.tar.index.arrow", "ds-0123abcd.tar.idx", "ds-0123abcd.idx")
"""A shard of another version, its index, and Energon's and DALI's side files."""


def cautions(source: Path | str, place: Path | str) -> list[str]:
    """What a sync warns of."""
    told: list[Event] = []
    sync(source, place, on_event=told.append)
    return [f"{event.message} {event.hint}" for event in told if isinstance(event, Caution)]


def test_other_versions_of_a_dataset_are_no_strangers() -> None:
    """They are known by their names, which carry the dataset's; of another dataset, or below a folder, they are not."""
    names = [*OLD, "other-0123abcd.tar", "sub/ds-0123abcd.tar", "ds.tar", "ds-0123abcd.txt", "a", MANIFEST_NAME]

    assert strangers(Manifest("dataset", "ds", (), {}), names) == [
        "a",
        "ds-0123abcd.txt",
        "ds.tar",
        "other-0123abcd.tar",
        "sub/ds-0123abcd.tar",
    ]


@pytest.mark.parametrize("source", ["ds", "."])
def test_a_place_of_others_files_becomes_no_commit(tmp_path: Path, source: str) -> None:
    """It would be carried on without them from then on; neither where the commit comes with a folder."""
    make_commit(tmp_path / "src" / "ds", {"a": b"1"})
    (tmp_path / "copy" / "ds" / "notes").mkdir(parents=True)
    (tmp_path / "copy" / "ds" / "notes" / "a.txt").write_text("precious")
    before = files_below(tmp_path / "copy")

    with pytest.raises(
        Refused, match=r"copy/ds holds 1 file \(notes/a\.txt\), and would become the dataset ds"
    ) as error:
        sync(tmp_path / "src" / source, tmp_path / "copy" / source)
    assert "--delete --max-delete" in str(error.value.hint)
    assert files_below(tmp_path / "copy") == before

    sync(tmp_path / "src" / source, tmp_path / "copy" / source, delete=True, max_delete=1)
    assert files_below(tmp_path / "copy") == files_below(tmp_path / "src")


def test_a_prefix_of_others_objects_becomes_no_commit(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """Nor is one put among them."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    make_commit(tmp_path / "raw", {f"{number}.jpg": b"2" for number in range(5)})
    (tmp_path / "raw" / MANIFEST_NAME).unlink()
    sync(tmp_path / "raw", f"{bucket}/raw")

    with pytest.raises(Refused, match=r"/raw holds 5 files \(0\.jpg, 1\.jpg, 2\.jpg, and 2 more\)"):
        sync(tmp_path / "ds", f"{bucket}/raw")

    assert {action.verb for action in plan_sync(f"{bucket}/raw", tmp_path / "copy").actions} == {"fetch"}


def test_what_a_killed_sync_left_is_no_strangers(tmp_path: Path) -> None:
    """Shards of another version that never became one, and whatever the coming manifest there names."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    other = make_commit(tmp_path / "other" / "ds", {"b": b"2"})
    (tmp_path / "copy").mkdir()
    for name in ("b", *OLD):
        (tmp_path / "copy" / name).write_bytes(b"2")
    (tmp_path / "copy" / NEXT_NAME).write_bytes(other.to_bytes())

    sync(tmp_path / "ds", tmp_path / "copy")

    assert files_below(tmp_path / "copy").keys() == {"a", "b", *OLD, MANIFEST_NAME}


def test_folders_of_files_are_brought_together_as_ever(tmp_path: Path) -> None:
    """What only the destination has stays, and nobody is warned."""
    for name, file in (("src", "a"), ("copy", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(file)

    assert cautions(tmp_path / "src", tmp_path / "copy") == []

    assert files_below(tmp_path / "copy") == {"a": b"a", "b": b"b"}
    assert sync(tmp_path / "src", tmp_path / "copy").left_files == 1


def test_a_standing_commit_is_renewed_beside_others_files_which_do_not_move_on(tmp_path: Path) -> None:
    """It is one already; both syncs say what is not of it."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    sync(tmp_path / "ds", tmp_path / "copy" / "ds")
    (tmp_path / "copy" / "ds" / "labels.csv").write_text("mine")
    make_commit(tmp_path / "ds", {"a": b"1", "c": b"2"})

    (kept,) = cautions(tmp_path / "ds", tmp_path / "copy" / "ds")
    (left,) = cautions(tmp_path / "copy" / "ds", tmp_path / "further")

    assert "copy/ds keeps 1 file (4 B) of before, such as labels.csv" in kept
    assert "copy/ds also holds 1 file (labels.csv), which its manifest does not name: left behind" in left


@pytest.mark.parametrize("source", ["ds", "."])
def test_shards_of_an_older_version_are_told_when_a_sync_is_done(tmp_path: Path, source: str) -> None:
    """Readers that list the place would read their samples as well; the number is the one that --delete asks for."""
    (tmp_path / "copy" / source).mkdir(parents=True)
    make_commit(tmp_path / "src" / "ds", {"a": b"1", OLD[0]: b"old", OLD[1]: b"old"})
    assert cautions(tmp_path / "src" / source, tmp_path / "copy" / source) == []
    make_commit(tmp_path / "src" / "ds", {"a": b"1", "ds-11111111.tar": b"new"})

    (said,) = cautions(tmp_path / "src" / source, tmp_path / "copy" / source)

    assert (
        f"keeps 2 files (6 B) of before, such as {'ds/' if source == '.' else ''}{OLD[0]}: readers that list it" in said
    )
    assert "--delete --max-delete 2 --dry-run" in said
    plan = plan_sync(tmp_path / "src" / source, tmp_path / "copy" / source, delete=True, max_delete=2)
    assert (plan.count("delete"), plan.count("leave")) == (2, 0)


def test_a_source_that_cannot_be_listed_moves_what_its_manifest_names(tmp_path: Path) -> None:
    """Looking for strangers is a favour: a link to a folder beside the members ends nothing."""
    make_commit(tmp_path / "ds", {"a": b"1"})
    (tmp_path / "ds" / "link").symlink_to(tmp_path)

    assert cautions(tmp_path / "ds", tmp_path / "copy") == []

    assert LocalStore(tmp_path / "copy").head("a").bytes == 1
