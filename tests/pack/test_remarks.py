"""pack/remarks: settings that do something else than they seem to, or than they did, are told before a pack begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.events import Caution, Event
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from support.packing import raw_lines, small_pack, tree, write_lines


def told(raw: Path, dest: Path, *, dry_run: bool = True, **settings: object) -> list[Event]:
    """What a pack says."""
    heard: list[Event] = []
    words = PackSettings(**{"shard_size": "16KiB", **settings})  # type: ignore[arg-type]  # by name
    pack(raw, dest, settings=words, dry_run=dry_run, on_event=heard.append)
    return heard


def cautions(heard: list[Event]) -> list[str]:
    """Cautions with their hints."""
    return [f"{event.message}. {event.hint}" for event in heard if isinstance(event, Caution)]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {}, None),
        (
            {"shard_size": "8KiB"},
            {},
            "packed with shards of 8.0 KiB, and now with shards of 16.0 KiB. Keep what it has: --shard-size 8192",
        ),
        ({"bundle": 4}, {}, "packed with --bundle 4, and now with no --bundle. Keep what it has: --bundle 4"),
        ({}, {"bundle": 4}, "packed with no --bundle, and now with --bundle 4. Leave them out to keep what it has"),
        (
            {"index": ("energon", "dali"), "layout": "sequential"},
            {"index": ("dali",)},
            "with --layout sequential, --index dali --index energon, and now with --layout stable, --index dali. Keep",
        ),
        (
            {"escape": "percent"},
            {"dedupe": "drop"},
            "with --escape percent, --dedupe report, and now with --escape none",
        ),
    ],
)
def test_settings_that_a_standing_dataset_was_not_packed_with_are_told(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], said: str | None
) -> None:
    """A flag that was forgotten makes each shard anew, or takes side files away."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(60)[1:])
    small_pack(raw, tmp_path / "ds", **before)

    found = cautions(told(raw, tmp_path / "ds", **after))

    assert (len(found) == 1 and said in found[0]) if said is not None else found == []


def test_other_weights_of_splits_are_told(tmp_path: Path) -> None:
    """Records move from one to the other."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    small_pack(raw, tmp_path / "ds", splits={"train": 9, "dev": 1})

    (said,) = cautions(told(raw, tmp_path / "ds", splits={"train": 8, "dev": 2}))

    assert "Keep what it has: --split train=9 --split dev=1" in said.replace(
        "--split dev=1 --split train=9", "--split train=9 --split dev=1"
    )


@pytest.mark.parametrize(("weight", "said"), [(90, 1), (1, 0), (100, 0)])
def test_a_weight_of_an_only_split_is_no_percentage(tmp_path: Path, weight: int, said: int) -> None:
    """It gets all; the hint names two."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))

    found = cautions(told(raw, tmp_path / "ds", splits={"train": weight}))

    assert len(found) == said
    assert not said or "--split train=90 --split held-out=10" in found[0]


def test_a_size_without_a_unit_is_told_where_no_shard_can_have_it(tmp_path: Path) -> None:
    """64 is 64 bytes."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))

    (said,) = cautions(told(raw, tmp_path / "ds", shard_size="64"))

    assert said.startswith("--shard-size 64 is 64 bytes, and no shard has less than 2.0 KiB")
    assert cautions(told(raw, tmp_path / "ds", shard_size="2KiB")) == []


def test_side_files_that_are_no_longer_asked_for_leave_no_empty_folder(tmp_path: Path) -> None:
    """Energon's lie in one of their own."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(60))
    small_pack(raw, tmp_path / "ds", index=("energon",))
    assert any(name.startswith(".nv-meta/") for name in tree(tmp_path / "ds"))

    small_pack(raw, tmp_path / "ds")

    assert not (tmp_path / "ds" / ".nv-meta").exists()
