"""pack/standing: only whole shards are kept, damage is told and made good, and no older split stays beside new ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from datakit import Refused
from datakit.events import Caution, Event
from datakit.pack import writing
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.reindex import reindex
from datakit.pack.result import PackResult
from datakit.storage.commit import commit, read_manifest
from datakit.verify.verify import verify
from support.cli import datakit
from support.packing import raw_lines, small_pack, tree, write_lines, write_pairs
from support.tars import pairs, write_webdataset

TRAIN_HELD_OUT = {"train": 9, "held-out": 1}


def cautions_of(raw: Path, dest: Path, *, dry_run: bool = False) -> tuple[PackResult, list[str]]:
    """Pack, and give what was cautioned."""
    told: list[Event] = []
    settings = PackSettings(shard_size="16KiB")
    result = pack(raw, dest, settings=settings, workers=1, on_event=told.append, dry_run=dry_run)
    return result, [event.message for event in told if isinstance(event, Caution)]


def flip(path: Path) -> None:
    """Change one bit in the middle, and no size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("suffix", [".tar", ".tar.index.arrow"])
@pytest.mark.parametrize(("damage", "said"), [(flip, "is not what the manifest says"), (Path.unlink, "is missing")])
def test_what_is_damaged_is_told_and_made_again(
    tmp_path: Path, suffix: str, damage: Callable[[Path], None], said: str
) -> None:
    """A flipped bit in a shard or an index that stands there does not live on; a dry run sees it too."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    small_pack(raw, tmp_path / "ds")
    whole = tree(tmp_path / "ds")
    victim = tmp_path / "ds" / (read_manifest(tmp_path / "ds").contents.shards[1].name.removesuffix(".tar") + suffix)
    damage(victim)

    planned, foretold = cautions_of(raw, tmp_path / "ds", dry_run=True)
    result, told = cautions_of(raw, tmp_path / "ds")

    assert told == foretold == [f"{victim} {said}; what it held is made again"]
    assert planned.reused == result.shards - 1, "as far as is known without building"
    assert (result.built, result.reused) == (1, result.shards)
    assert tree(tmp_path / "ds") == whole
    assert verify(tmp_path / "ds").findings == ()


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (TRAIN_HELD_OUT, {"train": 9, "val": 1}, ["ds/held-out"]),
        (TRAIN_HELD_OUT, {"all": 1}, ["ds/held-out", "ds/train"]),
        (TRAIN_HELD_OUT, {}, ["ds/held-out", "ds/train"]),
        ({}, TRAIN_HELD_OUT, ["ds"]),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_splits_of_an_earlier_pack_are_not_left_standing(
    tmp_path: Path, before: dict[str, int], after: dict[str, int], left: list[str], dry_run: bool
) -> None:
    """A split that was renamed or dropped would keep samples that are in another now: refused, with the command."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    small_pack(raw, tmp_path / "ds", splits=before)
    whole = tree(tmp_path)
    settings = PackSettings(shard_size="16KiB", splits=after)

    with pytest.raises(Refused, match="the same samples would be in both") as caught:
        pack(raw, tmp_path / "ds", settings=settings, workers=1, dry_run=dry_run)

    assert str(caught.value.hint).endswith("rm -r " + " ".join(str(tmp_path / path) for path in left))
    assert tree(tmp_path) == whole


def test_other_weights_and_what_others_put_there_are_fine(tmp_path: Path) -> None:
    """The same splits are renewed; folders, datasets and manifests of other kinds are nobody's leftovers."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    small_pack(raw, tmp_path / "ds", splits=TRAIN_HELD_OUT)
    small_pack(raw, tmp_path / "ds" / "whole")
    write_lines(tmp_path / "ds" / "web" / "manifest.json", [b"{}"])
    with commit(tmp_path / "ds" / "val", kind="model", name="val") as staging:
        staging.write("x", b"")

    result = small_pack(raw, tmp_path / "ds", splits={"train": 1, "held-out": 1})

    assert [dataset.samples > 30 for dataset in result.datasets] == [True, True]


def test_shards_whose_names_collide_get_longer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one hex digit most collide, with each other and with what stood there: all are written, none is lost."""
    monkeypatch.setattr(writing, "NAME_DIGITS", (1, 2, 64))
    lines = raw_lines(600)
    raw, edited = write_lines(tmp_path / "raw.jsonl", lines), write_lines(tmp_path / "edited.jsonl", lines[40:580])

    results = [small_pack(raw, tmp_path / place / "ds") for place in "abc"]
    over = small_pack(edited, tmp_path / "a" / "ds")
    fresh = small_pack(edited, tmp_path / "d" / "ds")
    back = small_pack(raw, tmp_path / "a" / "ds")

    lengths = {len(path.stem) for path in (tmp_path / "b" / "ds").glob("*.tar")}
    assert results[0].shards > 16
    assert {len("ds-x"), len("ds-xx")} <= lengths
    assert tree(tmp_path / "b") == tree(tmp_path / "c")
    assert over.reused > 0
    assert back.reused > 0
    assert over.datasets[0].content_digest == fresh.datasets[0].content_digest
    assert back.datasets[0].content_digest == results[0].datasets[0].content_digest
    assert verify(tmp_path / "a" / "ds").findings == ()


@pytest.mark.parametrize(
    ("place", "said"),
    [("full", "no manifest names"), ("other", "the dataset another"), ("full/notes.txt", "directory")],
)
def test_a_dry_run_refuses_what_the_run_refuses(tmp_path: Path, place: str, said: str) -> None:
    """A destination of others: the same sentence, before anything is done."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))
    write_lines(tmp_path / "full" / "notes.txt", [b"mine"])
    small_pack(raw, tmp_path / "other", name="another")
    sentences = []

    for dry_run in (True, False):
        with pytest.raises(Refused, match=said) as caught:
            pack(raw, tmp_path / place, settings=PackSettings(name="ds"), workers=1, dry_run=dry_run)
        sentences.append(caught.value.message)

    assert sentences[0] == sentences[1]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_tars_of_others_are_never_packed_over(tmp_path: Path, dry_run: bool, replace: bool) -> None:
    """A folder that reindex made a dataset in place holds somebody's originals: refused, whatever is asked for."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))
    write_webdataset(tmp_path / "mine" / "000.tar", pairs(range(10)))
    reindex(tmp_path / "mine", workers=1)
    whole = tree(tmp_path / "mine")

    with pytest.raises(Refused, match=r"holds tars that others wrote \(dataset mine, made by reindex\)"):
        pack(raw, tmp_path / "mine", workers=1, replace=replace, dry_run=dry_run)

    assert tree(tmp_path / "mine") == whole


@pytest.mark.parametrize("how", ["pack", "dry run", "part"])
def test_another_dataset_is_not_packed_over(tmp_path: Path, how: str) -> None:
    """None of its samples is in the source: refused, with both ways out; asked for by name it is replaced."""
    raw = write_lines(tmp_path / "chat.jsonl", raw_lines(20))
    small_pack(write_pairs(tmp_path / "photos", 9), tmp_path / "ds" / "photos")
    whole = tree(tmp_path / "ds")
    words = {"workers": 1, "dry_run": how == "dry run", "part": (0, 1) if how == "part" else None}

    with pytest.raises(Refused) as caught:
        pack(raw, tmp_path / "ds" / "photos", **words)  # type: ignore[arg-type]  # by name

    assert caught.value.message == (
        f"{tmp_path}/ds/photos holds 9 samples of dataset photos, none of which is in {raw}"
    )
    assert caught.value.hint == "Name another destination; or, if it is no longer needed, replace it: --replace"
    assert tree(tmp_path / "ds") == whole
    result = pack(raw, tmp_path / "ds" / "photos", replace=True, **words)  # type: ignore[arg-type]
    assert result.samples == 20
    assert read_manifest(tmp_path / "ds" / "photos").contents.samples == (20 if how == "pack" else 9)


def test_samples_of_all_splits_count_together(tmp_path: Path) -> None:
    """Weights that turn two splits around leave each without a sample of its own, and are an older version still."""
    lines = [b'{"id": "r%d"}' % number for number in range(40)]
    raw = write_lines(tmp_path / "raw.jsonl", lines)
    small_pack(raw, tmp_path / "ds", splits={"a": 1, "b": 1})
    other = write_lines(tmp_path / "other.jsonl", [b'{"id": "s%d"}' % number for number in range(40)])

    one_left = small_pack(
        write_lines(raw, [*other.read_bytes().splitlines(), lines[7]]), tmp_path / "ds", splits={"a": 1, "b": 1}
    )
    with pytest.raises(Refused, match=rf"ds/a, {tmp_path}/ds/b hold 41 samples of dataset ds-a, ds-b, none of which"):
        small_pack(write_lines(raw, lines[:7]), tmp_path / "ds", splits={"a": 1, "b": 1})

    assert one_left.samples == 41


def test_a_dataset_whose_indexes_are_gone_is_made_again(tmp_path: Path) -> None:
    """What cannot be looked at is damage, and no reason to refuse."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))
    small_pack(raw, tmp_path / "ds")
    for path in (tmp_path / "ds").glob("*.index.arrow"):
        path.unlink()

    small_pack(write_lines(raw, [b'{"id": "x"}']), tmp_path / "ds")

    assert verify(tmp_path / "ds").findings == ()


def test_what_was_built_again_to_the_same_bytes_is_nothing_new(tmp_path: Path) -> None:
    """A source that was written just now is read again, and its shards are built; an upload sends the changed one."""
    raw = write_pairs(tmp_path / "raw", 60)
    first = small_pack(raw, tmp_path / "ds")
    before = set(read_manifest(tmp_path / "ds").members)
    (raw / "0" / "img-0010.json").write_bytes(b'{"n": 999}')

    planned = pack(raw, tmp_path / "ds", settings=PackSettings(shard_size="16KiB"), dry_run=True)
    second = small_pack(raw, tmp_path / "ds")

    new = set(read_manifest(tmp_path / "ds").members) - before
    assert first.new_bytes is None, "of a first version all is new"
    assert (second.built, second.reused) == (second.shards, second.shards - 1)
    assert second.new_bytes == second.datasets[0].new_bytes == sum(entry.bytes for entry in new)
    assert planned.new_bytes == planned.shard_bytes > second.new_bytes


@pytest.mark.parametrize("removed", [False, True])
def test_the_command_says_what_this_change_is_to_upload(tmp_path: Path, removed: bool) -> None:
    """Also where somebody has removed the dataset, as DVC does: against what the last pack committed."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    words = ("pack", raw, tmp_path / "ds", "--shard-size", "16KiB")
    first = datakit(*words)
    again = datakit(*words)
    write_lines(raw, raw_lines(400, edit={200: "x"}))
    planned = datakit(*words, "--dry-run")
    if removed:
        shutil.rmtree(tmp_path / "ds")

    edited = datakit(*words)

    shards = len(read_manifest(tmp_path / "ds").contents.shards)
    assert "this change" not in first.stderr
    assert "nothing to upload but the manifest" in again.stderr
    assert f"up to 1 of {shards} shards would be new, up to" in planned.stderr
    assert f"1 of {shards} shards is new" in " ".join(edited.stderr.split())
    assert f"datakit sync --dry-run {tmp_path / 'ds'} PLACE" in edited.stderr
