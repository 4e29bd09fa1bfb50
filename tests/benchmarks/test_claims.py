"""The claims: each file is whole, and its check sees what an arm left out."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

import download
import pack
import pack_lines
import peers
import read
import read_random
import repack
import reupload
import run
from datakit.data.shard import Sample
from frame import trial
from frame.claim import Arm, BenchError, Claim, Truth, Work, python_arm
from frame.payload import truth_of_files
from support.samples import shard_of


@pytest.mark.parametrize("name", run.CLAIMS)
def test_a_claim_is_the_file_of_its_name(name: str) -> None:
    """Each claim loads, has a floor and a reference of datakit; one about time has a goal and a peer, all pinned."""
    claim = run.load(name)

    pinned = {peer.name for peer in peers.PEERS}
    needed = {arm.peer for arm in claim.arms if arm.peer} | set(claim.services)
    assert claim.name == name
    assert claim.reference == "datakit"
    assert bool(claim.goals) != bool(claim.shares)
    assert bool(needed) != bool(claim.shares)
    assert needed <= pinned


def test_arms_of_one_claim_have_names_of_their_own() -> None:
    """Two arms of one name, or a floor that is no arm, are refused before anything runs."""
    twice = Arm(name="A", command=lambda _work: ["true"])

    with pytest.raises(BenchError, match="do not hold each of"):
        _claim(twice, twice)
    with pytest.raises(BenchError, match="do not hold each of"):
        _claim(twice, floor="B")


def _claim(*arms: Arm, floor: str = "A") -> Claim:
    base = run.load("pack")
    fields = {name: getattr(base, name) for name in ("sentence", "stage", "ratio_on", "unit", "check")}
    return Claim(name="x", arms=arms, floor=floor, reference="A", **fields)


def test_the_check_of_pack_reads_the_shards(tmp_path: Path) -> None:
    """Two members in two shards have the truth of the two files they came from."""
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    output.mkdir()
    for number, name in enumerate(("a.jpg", "a.json")):
        (source / name).write_bytes(name.encode())
        with tarfile.open(output / f"{number}.tar", "w") as archive:
            archive.add(source / name, arcname=name)

    assert pack.check(output, {}) == truth_of_files(sorted(source.iterdir()), root=source, samples=1)


def test_the_check_of_pack_sees_a_missing_member(tmp_path: Path) -> None:
    """A shard without a member, and no shard at all, are other work."""
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())

    assert (pack.check(tmp_path, {}).samples, pack.check(tmp_path / "absent", {}).samples) == (1, 0)


def test_the_check_of_download_finds_the_shards_wherever_they_are(tmp_path: Path) -> None:
    """A folder more or less is the arm's taste; a missing shard is other work."""
    for folder in ("flat", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "shard-0.tar").write_bytes(b"content")
    (tmp_path / "none").mkdir()

    flat, deep, none = (download.check(tmp_path / folder, {}) for folder in ("flat", "deep", "none"))

    assert flat == deep
    assert (flat.samples, none.samples) == (1, 0)


def test_reading_counts_and_proves_the_same_work(tmp_path: Path) -> None:
    """The loop of the timed runs and that of the proof agree on samples and bytes; only the proof has a digest."""
    samples = [("a", b"12", memoryview(b"345")), ("b", b"", b"6")]

    counted, proved = (
        read.check(tmp_path, read.drain(samples, Work(tmp_path, tmp_path, {}, proof, Path(sys.executable))))
        for proof in (False, True)
    )

    assert (counted.samples, counted.payload_bytes, counted.digest) == (2, 6, None)
    assert (proved.samples, proved.payload_bytes) == (2, 6)
    assert proved.digest


def test_a_reader_that_reports_nothing_has_read_nothing(tmp_path: Path) -> None:
    """An empty report is a truth of zero samples, which no input has."""
    assert read.check(tmp_path, {}) == Truth(0, 0)


def test_an_arm_that_is_a_function_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Its errand arrives whole, its own time and memory come back."""
    script = tmp_path / "claim_file.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(run.__file__).parent)!r})\n"
        "from frame.claim import run_arm\n"
        "def count(work):\n"
        "    with work.timed():\n"
        "        return {'samples': len(list(work.data.iterdir())), 'proof': work.proof, **work.values}\n"
        "if __name__ == '__main__':\n"
        "    run_arm(globals())\n"
    )
    names: dict[str, object] = {"__name__": "claim_file"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    arm = python_arm(names["count"], name="counting")  # type: ignore[arg-type]  -- compiled above
    work = Work(tmp_path, tmp_path, {"address": "here"}, proof=True, python=Path(sys.executable))

    _, report = trial.run_once(arm, work, scratch=tmp_path)

    assert (report["samples"], report["proof"], report["address"]) == (3, True, "here")
    assert report["inner_s"] >= 0
    assert report["private_bytes"] > 0


def test_a_format_of_its_own_is_counted_by_its_own_index(tmp_path: Path) -> None:
    """Samples come from the index that a peer wrote, bytes and digest from its arm."""
    for number, fields in enumerate(({"shards": [{"samples": 2}, {"samples": 3}]}, {"chunks": [{"chunk_size": 5}]})):
        shards = tmp_path / str(number) / "shards"
        shards.mkdir(parents=True)
        (shards / "index.json").write_text(json.dumps(fields))

        report = {"payload_bytes": 7, "digest": "0d"}
        for check in (pack.check, pack_lines.check):
            assert check(shards.parent, report) == Truth(5, 7, "0d")
            assert check(shards.parent, {}) == Truth(5, 0, None)


def test_what_a_peer_reads_back_has_the_digest_of_the_files(tmp_path: Path) -> None:
    """Key and part make the name of the file again."""
    (tmp_path / "0").mkdir()
    for part in ("jpg", "json"):
        (tmp_path / "0" / f"a.{part}").write_bytes(part.encode())
    expected = truth_of_files(tmp_path.rglob("a.*"), root=tmp_path, samples=1)

    stems = pack.stems_of(tmp_path)
    proof = pack.proof_of(pack.read_pair(stem, data=str(tmp_path)) for stem in stems)

    assert (proof["payload_bytes"], proof["digest"]) == (expected.payload_bytes, expected.digest)


@pytest.mark.parametrize("bundle", [None, 1, 4])
def test_the_check_of_lines_reads_members_bundles_and_copies(tmp_path: Path, bundle: int | None) -> None:
    """A line a member, many lines a member, a copy of the file, or a tar with extended headers: the same lines."""
    lines = [b'{"id": %d}' % number for number in range(10)]
    samples = [Sample(f"r{number}", {"json": line}) for number, line in enumerate(lines)]
    for folder in ("shard", "copy", "pax"):
        (tmp_path / folder).mkdir()
    (tmp_path / "shard" / "0.tar").write_bytes(shard_of(samples, bundle=bundle)[0])
    (tmp_path / "copy" / "lines.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    with tarfile.open(tmp_path / "pax" / "0.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number, line in enumerate(lines):
            member = tarfile.TarInfo(f"{number}.json")
            member.size, member.mtime = len(line), 1.5
            archive.addfile(member, io.BytesIO(line))

    found = [pack_lines.check(tmp_path / folder, {}) for folder in ("shard", "copy", "pax")]

    assert found == [pack_lines.truth_of_lines(lines)] * 3
    assert pack_lines.check(tmp_path / "absent", {}).samples == 0


def test_ranges_of_lines_are_the_file(tmp_path: Path) -> None:
    """However they are cut, ranges end with a newline and hold every line once."""
    lines = [b"x" * (number % 7) for number in range(50)]
    (tmp_path / "lines.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    for range_bytes in (1, 5, 64, 10_000):
        ranges = list(pack_lines.ranges_of(tmp_path / "lines.jsonl", range_bytes=range_bytes))
        read = [line for ends in ranges for line in pack_lines.read_range(ends, data=str(tmp_path / "lines.jsonl"))]
        assert read == lines


def test_the_check_of_repack_looks_past_what_pack_remembers(tmp_path: Path) -> None:
    """Shards count where the dataset is; the hidden folder beside it may hold links to old ones."""
    samples = [Sample("a", {"json": b"{}"})]
    for folder in ("dataset", ".dataset.pack/built"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.tar").write_bytes(shard_of(samples)[0])

    assert repack.check(tmp_path, {}) == pack_lines.truth_of_lines([b"{}"])


def test_random_order_takes_each_sample_once_and_the_same_for_all(tmp_path: Path) -> None:
    """The order does not depend on the arm, and is not the order of the numbers."""
    taken: list[list[int]] = [[], []]
    work = Work(tmp_path, tmp_path, {}, proof=False, python=Path(sys.executable))

    for seen in taken:
        read_random.in_random_order(lambda n, seen=seen: (seen.append(n), b"", b""), count=100, work=work)

    assert taken[0] == taken[1]
    assert sorted(taken[0]) == list(range(100)) != taken[0]


def test_a_change_of_the_records_is_the_change_that_it_says() -> None:
    """Appended samples come last, edited ones get another size, removed ones are gone, the rest stay as they are."""
    before = reupload.Population.of(2000)
    sizes = before.sizes()

    for change, different in (("15 edits", 15), ("150 edits", 150), ("3 files edited", 300)):
        after = reupload.changed(before, change)
        assert int((after.versions != before.versions).sum()) == different
        assert set((after.sizes() != sizes).nonzero()[0].tolist()) <= set(after.versions.nonzero()[0].tolist())
    appended, removed = (reupload.changed(before, change) for change in ("5 % appended", "150 removed"))
    assert (appended.sizes()[:2000] == sizes).all()
    assert (len(appended.numbers), len(removed.numbers)) == (2100, 1850)
    assert (removed.sizes() == sizes[removed.numbers]).all()


def test_shares_are_worked_out_for_every_layout(tmp_path: Path) -> None:
    """Each arm reports all columns; nothing appended is resent by sequential filling; a parent never sends more."""
    work = Work(tmp_path, tmp_path, {"count": "15000"}, proof=True, python=Path(sys.executable))
    arms = (reupload.with_sequential, reupload.with_datakit, reupload.with_parent, reupload.with_shuffle)

    sequential, stable, parent, shuffle = (arm(work)["shares"] for arm in arms)

    for shares in (sequential, stable, parent, shuffle):
        assert tuple(shares) == reupload.SHARES
        assert all(0 <= share <= 1 for share in shares.values())
    assert sequential["5 % appended"] < 0.5
    assert shuffle["5 % appended"] == 1
    assert parent["5 % appended"] <= stable["5 % appended"]
    assert stable["3 files edited"] <= sequential["3 files edited"]
