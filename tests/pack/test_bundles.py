"""pack --bundle: many lines to a member, and everything else as without: samples, digests, engines, second packs."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit import UsageError
from datakit.events import Caution, Event
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.storage.commit import read_manifest
from datakit.verify.verify import verify
from support.packing import raw_lines, samples_of, small_pack, tree, write_lines, write_pairs


def bundled(raw: Path, dest: Path, **words: object) -> PackResult:
    """Seven lines to a member, shards of 16 KiB."""
    return small_pack(raw, dest, bundle=7, **words)  # type: ignore[arg-type]  # by name


def test_a_bundled_dataset_holds_the_same_samples_in_fewer_bytes(tmp_path: Path) -> None:
    """The content digest is the same; a plan knows the bytes of every shard to the last; it verifies."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    plain = small_pack(raw, tmp_path / "plain", name="ds")

    planned = pack(raw, tmp_path / "ds", settings=PackSettings(shard_size="16KiB", bundle=7), dry_run=True)
    result = bundled(raw, tmp_path / "ds")

    manifest = read_manifest(tmp_path / "ds")
    written = sum(entry.bytes for entry in manifest.members if entry.name.endswith(".tar"))
    assert planned.shard_bytes == result.shard_bytes == written < plain.shard_bytes * 0.6
    assert result.datasets[0].content_digest == plain.datasets[0].content_digest
    assert {s.key: s.parts for s in samples_of(tmp_path / "ds")} == {
        s.key: s.parts for s in samples_of(tmp_path / "plain")
    }
    assert manifest.contents.pack["bundle"] == 7
    assert "bundle" not in read_manifest(tmp_path / "plain").contents.pack
    assert verify(tmp_path / "ds").findings == ()


def test_engines_and_second_packs_do_not_mind(tmp_path: Path) -> None:
    """Two workers, parts, an edit: the bytes of one process, and one shard built; without receipts too."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(400))
    bundled(raw, tmp_path / "one" / "ds")
    bundled(raw, tmp_path / "two" / "ds", workers=2)
    for number in range(3):
        pack(
            raw,
            tmp_path / "parts" / "ds",
            settings=PackSettings(shard_size="16KiB", bundle=7),
            part=(number, 3),
            workers=1,
        )
    bundled(raw, tmp_path / "parts" / "ds")
    trees = [tree(tmp_path / name) for name in ("one", "two", "parts")]
    (tmp_path / "two" / ".ds.pack" / "known.json").unlink()
    write_lines(raw, raw_lines(400, edit={100: "x"}))

    edited = [bundled(raw, tmp_path / name / "ds").built for name in ("one", "two")]

    assert trees[0] == trees[1] == trees[2]
    assert edited == [1, 1]
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_another_bundle_is_another_dataset(tmp_path: Path) -> None:
    """No shard of one is taken for the other's."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(100))
    bundled(raw, tmp_path / "ds")

    assert small_pack(raw, tmp_path / "ds", bundle=8).reused == 0
    assert small_pack(raw, tmp_path / "ds").reused == 0


def test_files_cannot_share_a_member(tmp_path: Path) -> None:
    """Told before anything is built, with the parts that there are."""
    raw = write_pairs(tmp_path / "raw", 4)

    with pytest.raises(UsageError, match="parts jpg, json, which no bundle can hold"):
        bundled(raw, tmp_path / "ds")
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize(("words", "told"), [({"index": ("energon", "dali")}, 1), ({}, 0)])
def test_side_files_of_bundles_say_what_readers_will_see(
    words: dict[str, tuple[str, ...]], told: int, tmp_path: Path
) -> None:
    """They know nothing of our index: seven lines are one sample to them; without side files nothing is said."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(40))
    heard: list[Event] = []

    settings = PackSettings(shard_size="16KiB", bundle=7, **words)  # type: ignore[arg-type]  # by name
    pack(raw, tmp_path / "ds", settings=settings, workers=1, on_event=heard.append)

    cautions = [event.message for event in heard if isinstance(event, Caution)]
    assert cautions == ["energon and dali will read each bundle of 7 lines as one sample"] * told
