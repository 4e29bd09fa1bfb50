"""The claims: each file is whole, and its check sees what an arm left out."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

import download
import pack
import peers
import read
import run
from frame import trial
from frame.claim import Arm, BenchError, Claim, Truth, Work, python_arm
from frame.payload import truth_of_files


@pytest.mark.parametrize("name", run.CLAIMS)
def test_a_claim_is_the_file_of_its_name(name: str) -> None:
    """Each claim loads, has a floor, a reference of datakit and at least one peer, all of them pinned."""
    claim = run.load(name)

    pinned = {peer.name for peer in peers.PEERS}
    needed = {arm.peer for arm in claim.arms if arm.peer} | set(claim.services)
    assert claim.name == name
    assert claim.reference == "datakit"
    assert claim.goals
    assert needed
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
