"""verify/verify: whatever happens to a dataset's bytes is found, and named by shard, sample and byte."""

from __future__ import annotations

import io
import random
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from datakit import IntegrityError, NotFound, sync
from datakit.data.index import Index
from datakit.data.manifest import Kind, Manifest
from datakit.data.shard import BLOCK_BYTES, Row, member_bytes, members
from datakit.events import Progress
from datakit.storage.commit import commit, read_manifest
from datakit.verify import verify as room
from datakit.verify.stretch import Stretch, stretch
from datakit.verify.verify import Finding, VerifyReport, verify
from support.commits import make_commit
from support.datasets import publish
from support.faulty import FaultyServer
from support.packing import raw_lines, small_pack, write_lines, write_pairs


class Damaged:
    """A dataset of pairs, one of its shards at hand to be damaged."""

    def __init__(self, root: Path) -> None:
        small_pack(write_pairs(root / "raw", 60), root / "ds")
        self.root = root / "ds"
        shard = read_manifest(self.root).contents.shards[1]
        self.shard = self.root / shard.name
        self.index = self.root / shard.index_name
        self.whole = self.shard.read_bytes()
        self.rows: list[Row] = Index.from_buffer(self.index.read_bytes()).rows()

    def findings(self, data: bytes | None = None, *, quick: bool = False) -> tuple[Finding, ...]:
        """What verify finds once the shard has these bytes."""
        if data is not None:
            self.shard.write_bytes(data)
        return verify(self.root, quick=quick).findings

    def tarfile_names(self) -> list[str]:
        """What Python's tarfile, and whoever is built on it, sees of the shard."""
        with tarfile.open(self.shard) as tar:
            return tar.getnames()


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    """A dataset to damage."""
    return Damaged(tmp_path)


@pytest.mark.parametrize("place", ["disk", "store"])
@pytest.mark.parametrize("kind", ["model", "checkpoint", "dataset"])
def test_the_sha256_of_every_file_is_compared(tmp_path: Path, faulty: FaultyServer, kind: Kind, place: str) -> None:
    """Of a file that is no shard too: its crc32c fits, and the manifest says another sha256."""
    if kind == "dataset":
        small_pack(write_pairs(tmp_path / "raw", 20), tmp_path / "c", index=("energon",))
        name = ".nv-meta/.info.json"
    else:
        make_commit(tmp_path / "c", {"w.bin": b"1" * 300, "sub/config.json": b"{}"}, kind=kind)
        name = "w.bin"
    manifest = read_manifest(tmp_path / "c")
    assert verify(tmp_path / "c").findings == ()
    members = tuple(replace(one, sha256="0" * 64) if one.name == name else one for one in manifest.members)
    (tmp_path / "c" / "manifest.json").write_bytes(replace(manifest, members=members).to_bytes())

    (finding,) = verify(tmp_path / "c" if place == "disk" else publish(tmp_path / "c", faulty)).findings

    assert (finding.file, finding.problem) == (name, f"it has another sha256 than the manifest says ({'0' * 64})")
    assert verify(tmp_path / "c", quick=True).findings == ()


def test_files_of_a_model_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shards are: each of two readers waits here for the other."""
    make_commit(tmp_path / "m", {"a.safetensors": b"1" * 300, "b.safetensors": b"2" * 300}, kind="model")
    both = Barrier(2, timeout=20)

    def met(*args: Any, **words: Any) -> Stretch:
        both.wait()
        return stretch(*args, **words)

    monkeypatch.setattr(room, "cores", lambda: 2)
    monkeypatch.setattr(room, "stretch", met)

    report = verify(tmp_path / "m")

    assert (report.findings, report.checked_bytes) == ((), 600)


@pytest.mark.parametrize("quick", [False, True])
def test_a_whole_dataset_is_whole(damaged: Damaged, quick: bool) -> None:
    """No findings, and the totals of what was looked at."""
    told: list[Progress] = []

    report = verify(damaged.root, quick=quick, on_event=told.append)  # type: ignore[arg-type]

    manifest = read_manifest(damaged.root)
    assert report == VerifyReport(
        path=damaged.root,
        name="ds",
        quick=quick,
        samples=60,
        shards=len(manifest.contents.shards),
        checked_bytes=sum(e.bytes for e in manifest.members if not quick or e.name.endswith(".arrow")),
        findings=(),
        files=len(manifest.members),
    )
    assert told[-1].done == report.checked_bytes
    report.raise_findings()


def test_a_cut_at_a_members_boundary_is_found(damaged: Damaged) -> None:
    """Python's tarfile sees fewer members and no error; verify says where it ends and how many samples are lost."""
    row = damaged.rows[3]
    start = row.parts["jpg"].offset - BLOCK_BYTES

    findings = damaged.findings(damaged.whole[:start])

    assert len(damaged.tarfile_names()) == 6
    assert [(f.file, f.sample, f.part, f.byte) for f in findings] == [(damaged.shard.name, row.key, "jpg", start)]
    assert f"it ends at byte {start} of {len(damaged.whole)}" in findings[0].problem
    assert f"{len(damaged.rows) - 3} samples are lost" in findings[0].problem


@pytest.mark.parametrize("byte", [0, 50, 100, 124, 130, 148, 156, 257, 300, 345, 511])
def test_a_flipped_byte_of_a_header_is_found(damaged: Damaged, byte: int) -> None:
    """Any byte of it, named exactly, with what it is and what it should be."""
    row = damaged.rows[2]
    at = row.parts["json"].offset - BLOCK_BYTES + byte
    data = bytearray(damaged.whole)
    data[at] ^= 0x10

    findings = damaged.findings(bytes(data))

    assert [(f.sample, f.part, f.byte) for f in findings] == [(row.key, "json", at)]
    assert f"byte {at}, in the header of {row.key}.json, is {data[at]:#04x}" in findings[0].problem


def test_a_hole_of_zeros_is_found(damaged: Damaged) -> None:
    """A whole member turned to zeros, as a sparse file leaves it."""
    row = damaged.rows[4]
    start = row.parts["jpg"].offset - BLOCK_BYTES
    size = member_bytes(row.parts["jpg"].size)

    findings = damaged.findings(damaged.whole[:start] + bytes(size) + damaged.whole[start + size :])

    assert len(damaged.tarfile_names()) == 8
    assert [(f.sample, f.part, f.byte) for f in findings] == [(row.key, "jpg", start)]
    assert f"bytes {start} to {start + size} are zeros where {row.key}.jpg should be" in findings[0].problem


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_payload_is_found(damaged: Damaged, bit: int) -> None:
    """Part and byte are named, with the bytes it fills and both checksums; tarfile reads on without a word."""
    row = damaged.rows[5]
    place = row.parts["jpg"]
    data = bytearray(damaged.whole)
    data[place.offset + place.size - 1] ^= 1 << bit

    findings = damaged.findings(bytes(data))

    assert len(damaged.tarfile_names()) == 2 * len(damaged.rows)
    at = place.offset + place.size - 1
    assert [(f.sample, f.part, f.byte) for f in findings] == [(row.key, "jpg", at)]
    assert f"one bit of byte {at} is flipped, {data[at]:#04x} should be {damaged.whole[at]:#04x}" in findings[0].problem
    assert f"bytes {place.offset} to {place.offset + place.size}" in findings[0].problem
    assert f"the index says {place.crc32c:08x}" in findings[0].problem


def test_a_flipped_byte_of_padding_is_found(damaged: Damaged) -> None:
    """Nobody reads it, and it is still not what was packed."""
    place = damaged.rows[0].parts["jpg"]
    data = bytearray(damaged.whole)
    data[place.offset + place.size] = 7

    findings = damaged.findings(bytes(data))

    assert [f.byte for f in findings] == [place.offset + place.size]
    assert "in the padding after" in findings[0].problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[:-1], "before its end blocks"),
        (lambda whole: whole[:-1024], "before its end blocks"),
        (lambda whole: whole + b"x", "1 bytes follow its end"),
        (lambda whole: whole[:-1] + b"x", "in the end blocks, is not zero"),
        (lambda _whole: b"", "it ends at byte 0"),
    ],
)
def test_an_end_that_is_not_the_end_is_found(damaged: Damaged, change: Callable[[bytes], bytes], said: str) -> None:
    """Too short, too long, not zero."""
    findings = damaged.findings(change(damaged.whole))

    assert len(findings) == 1
    assert said in findings[0].problem


def test_every_damaged_byte_is_found(damaged: Damaged) -> None:
    """200 random single bytes, one at a time: each leads to one finding that names the byte or the part around it."""
    rng = random.Random(11)

    for _ in range(200):
        at = rng.randrange(len(damaged.whole))
        data = bytearray(damaged.whole)
        data[at] ^= rng.randrange(1, 256)
        (finding,) = damaged.findings(bytes(data))
        if finding.byte != at:
            row = next(row for row in damaged.rows if row.key == finding.sample)
            place = row.parts[str(finding.part)]
            assert finding.byte == place.offset <= at < place.offset + place.size


def test_a_missing_shard_is_found(damaged: Damaged) -> None:
    """With the samples that are gone with it."""
    damaged.shard.unlink()

    for quick in (False, True):
        (finding,) = damaged.findings(quick=quick)
        assert finding.file == damaged.shard.name
        assert f"its {len(damaged.rows)} samples with it" in finding.problem


def test_a_foreign_file_is_found(damaged: Damaged) -> None:
    """A reader that lists the directory would take it for a shard."""
    (damaged.root / "ds-00000000.tar").write_bytes(damaged.whole)

    for quick in (False, True):
        (finding,) = damaged.findings(quick=quick)
        assert str(finding) == "ds-00000000.tar: the manifest does not name this file"


def test_a_shard_in_anothers_place_is_found(damaged: Damaged) -> None:
    """Another shard's bytes: the first findings are listed, not thousands."""
    other = read_manifest(damaged.root).contents.shards[0]

    findings = damaged.findings((damaged.root / other.name).read_bytes())

    assert 1 <= len(findings) <= 20
    assert {f.file for f in findings} == {damaged.shard.name}


def test_quick_reads_no_shard_but_sees_sizes(damaged: Damaged) -> None:
    """A flipped bit passes, a cut does not."""
    flipped = bytearray(damaged.whole)
    flipped[600] ^= 1

    assert damaged.findings(bytes(flipped), quick=True) == ()
    (finding,) = damaged.findings(damaged.whole[:-512], quick=True)
    assert "before its end blocks" in finding.problem


def test_a_damaged_index_is_found_and_the_shard_still_checked(damaged: Damaged) -> None:
    """Without its index a shard is checked header by header and part by part."""
    index = bytearray(damaged.index.read_bytes())
    index[len(index) // 2] ^= 3
    damaged.index.write_bytes(index)
    row = damaged.rows[1]
    data = bytearray(damaged.whole)
    data[row.parts["jpg"].offset - BLOCK_BYTES] ^= 1
    payload = bytearray(damaged.whole)
    payload[row.parts["jpg"].offset] ^= 3

    only_index = damaged.findings()
    with_header = damaged.findings(bytes(data))
    with_payload = damaged.findings(bytes(payload))

    assert [f.file for f in only_index] == [damaged.index.name]
    assert "the manifest says" in only_index[0].problem
    assert [f.file for f in with_header] == [damaged.index.name, damaged.shard.name]
    assert with_header[1].byte == row.parts["jpg"].offset - BLOCK_BYTES
    assert f"bytes 0 to {len(damaged.whole)} have crc32c" in with_payload[1].problem


def test_a_flipped_bit_of_an_index_is_named_and_the_shard_checked_by_what_it_was(damaged: Damaged) -> None:
    """The checksums tell which bit, so nothing is lost: sample and byte of the index, and all damage of the shard."""
    whole = damaged.index.read_bytes()
    row, other = damaged.rows[1], damaged.rows[3]
    payload = bytearray(damaged.whole)
    payload[other.parts["json"].offset] ^= 3

    for at in (whole.index(row.key.encode()), whole.index(row.digest) + 15):
        index = bytearray(whole)
        index[at] ^= 0x40
        damaged.index.write_bytes(index)
        in_index, in_shard = damaged.findings(bytes(payload))
        assert (in_index.file, in_index.sample, in_index.byte) == (damaged.index.name, row.key, at)
        assert f"one bit of byte {at} is flipped" in in_index.problem
        assert in_index.problem.endswith(f"in the row of {row.key}")
        assert (in_shard.sample, in_shard.part) == (other.key, "json")


def test_a_missing_index_is_found(damaged: Damaged) -> None:
    """And a shortened one."""
    whole = damaged.index.read_bytes()

    damaged.index.write_bytes(whole[:-8])
    (short,) = damaged.findings()
    damaged.index.unlink()
    (missing,) = damaged.findings()

    assert f"it has {len(whole) - 8} bytes, the manifest says {len(whole)}" in short.problem
    assert str(missing) == f"{damaged.index.name}: the index is missing"


def test_a_manifest_that_lies_about_its_samples_is_found(damaged: Damaged) -> None:
    """A content digest that its own indexes do not add up to; a count that an index does not have."""
    manifest = read_manifest(damaged.root)
    lying = Manifest("dataset", "ds", manifest.members, {**manifest.about, "content_digest": "0" * 64})
    (damaged.root / "manifest.json").write_bytes(lying.to_bytes())

    (finding,) = damaged.findings()

    assert finding.file == "manifest.json"
    assert "it says 0000" in finding.problem


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"payload_bytes": 7}, "payload bytes"),
        ({"parts": {"jpg": 60, "json": 61}}, "the parts {'jpg': 60, 'json': 60}"),
        ({"tokens": 5}, "the tokens None, it says 5"),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_totals_that_the_indexes_do_not_add_up_to_are_found(
    damaged: Damaged, lie: dict[str, object], said: str, quick: bool
) -> None:
    """Whatever the manifest says of all samples is compared; a quick look reads the indexes, so it sees it too."""
    manifest = read_manifest(damaged.root)
    lying = Manifest("dataset", "ds", manifest.members, {**manifest.about, **lie})
    (damaged.root / "manifest.json").write_bytes(lying.to_bytes())

    (finding,) = damaged.findings(quick=quick)

    assert finding.file == "manifest.json"
    assert said in finding.problem


def test_findings_raise_as_one_sentence(damaged: Damaged) -> None:
    """The first one in full, the others counted."""
    report = verify(damaged.root)
    findings = tuple(Finding("a.tar", f"problem {n}") for n in range(3))
    worse = VerifyReport(**{**{name: getattr(report, name) for name in report.__slots__}, "findings": findings})

    with pytest.raises(IntegrityError, match=r"^a\.tar: problem 0 \(and 2 more findings\)") as caught:
        worse.raise_findings()
    assert caught.value.subject == "a.tar"


def test_findings_come_with_the_command_that_mends_them(damaged: Damaged) -> None:
    """By a whole copy: `sync --repair` for what is damaged, `--delete` for what is too many, and then all is whole."""
    copy = damaged.root.with_name("copy")
    shutil.copytree(damaged.root, copy)
    said = []
    for spoil in (damaged.shard, damaged.root / "old.tar"), (damaged.root / "old.tar",), (damaged.shard,):
        for path in spoil:
            path.write_bytes(b"x")

        with pytest.raises(IntegrityError) as caught:
            verify(damaged.root).raise_findings()
        said.append(str(caught.value.hint).partition("datakit sync ")[2])
        words = said[-1].partition(";")[0].split()
        assert words[-2:] == [words[-2], str(damaged.root)]
        bound = 1 if "--delete" in words else None
        sync(copy, damaged.root, repair="--repair" in words, delete=bound is not None, max_delete=bound)
        verify(damaged.root).raise_findings()

    assert [words.partition(" /")[0] for words in said] == [
        "--repair --delete --max-delete N COPY",
        "--delete --max-delete N SRC",
        "--repair COPY",
    ]


def test_an_adapter_is_verified_file_by_file(tmp_path: Path) -> None:
    """A commit of any kind: whole, and with a bit flipped, a file cut, one missing and one that nobody named."""
    adapter = tmp_path / "adapter"
    with commit(adapter, kind="adapter", name="a") as staging:
        for name in ("x.json", "cut", "gone"):
            staging.write(name, b"{12345}")

    whole, quick = verify(adapter), verify(adapter, quick=True)
    (adapter / "x.json").write_bytes(b"{12355}")
    (adapter / "cut").write_bytes(b"{1")
    (adapter / "gone").unlink()
    (adapter / "stray").write_bytes(b"")
    damaged = verify(adapter)

    assert (whole.kind, whole.name, whole.files, whole.checked_bytes, whole.findings) == ("adapter", "a", 3, 21, ())
    assert (quick.checked_bytes, quick.findings) == (0, ())
    assert sorted({finding.file for finding in damaged.findings}) == ["cut", "gone", "stray", "x.json"]


def test_what_is_no_commit_is_not_verified(tmp_path: Path) -> None:
    """Nothing there, or no manifest: each says so."""
    with pytest.raises(NotFound, match="nowhere is not there"):
        verify(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"has no manifest\.json"):
        verify(tmp_path)


def test_an_undamaged_shard_passes_the_strict_reader_too(tmp_path: Path) -> None:
    """What verify calls whole, `members` reads to its end, and so does tarfile."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(80)), tmp_path / "ds")

    for shard in read_manifest(tmp_path / "ds").contents.shards:
        data = (tmp_path / "ds" / shard.name).read_bytes()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            assert tar.getnames() == [member.name for member in members(data)]
