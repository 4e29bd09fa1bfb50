"""The trial: turns, figures, and the check that ends a benchmark which proves nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from frame import machine, trial
from frame.claim import Arm, Bench, BenchError, Claim, Truth, Work

from .conftest import copying, idle


def test_arms_take_turns_after_one_warm_up_each(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """The order of runs is A B, A B, A B: a warm-up and two rounds."""
    claim = claim_of(copying("A"), copying("B"))

    result = trial.Trial(bench=bench, repeats=2).run(claim)

    assert result.order == ("A", "B") * 3
    assert [len(arm.runs) for arm in result.arms] == [2, 2]


def test_a_wrong_output_ends_the_benchmark(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """An arm that ends with 0 and leaves nothing behind is named, with both truths."""
    claim = claim_of(copying("A"), idle("lazy"))

    with pytest.raises(BenchError, match=r"arm lazy did other work than the rest:\n  it did    Truth\(samples=0"):
        trial.Trial(bench=bench, repeats=1).run(claim)


def test_a_flipped_byte_ends_the_benchmark(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """The same name and size with other content is other work."""
    forging = Arm(name="forging", command=lambda work: ["sh", "-c", f"printf Payload > '{work.output}/a.txt'"])

    with pytest.raises(BenchError, match="arm forging did other work"):
        trial.Trial(bench=bench, repeats=1).run(claim_of(copying("A"), forging))


def test_a_proof_without_a_digest_is_no_proof() -> None:
    """In the warm-up run the digest is due; in a timed run an arm may only count."""
    counted, expected = Truth(3, 9), Truth(3, 9, "d1")

    trial.check(idle("A"), counted, expected=expected, proof=False)
    with pytest.raises(BenchError, match="other work"):
        trial.check(idle("A"), counted, expected=expected, proof=True)
    with pytest.raises(BenchError, match="other work"):
        trial.check(idle("A"), Truth(3, 9, "d2"), expected=expected, proof=False)


def test_an_arm_that_fails_is_shown_with_what_it_said(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """The error carries the status and the end of the arm's stderr."""
    failing = Arm(name="failing", command=lambda _work: ["sh", "-c", "echo no such bucket >&2; exit 3"])

    with pytest.raises(BenchError, match=r"arm failing ended with status 3:\nno such bucket"):
        trial.Trial(bench=bench, repeats=1).run(claim_of(failing))


def test_an_arm_that_cannot_be_started_is_named(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """A missing program is a sentence, not a stack trace."""
    missing = Arm(name="missing", command=lambda _work: ["no-such-program"])

    with pytest.raises(BenchError, match="arm missing could not be started: no-such-program"):
        trial.Trial(bench=bench, repeats=1).run(claim_of(missing))


def test_an_arm_that_hangs_is_killed(
    bench: Bench, claim_of: Callable[..., Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the limit, the arm and whatever it started are gone, and the benchmark says so."""
    monkeypatch.setattr(trial, "LIMIT_S", 0.2)
    hanging = Arm(name="hanging", command=lambda _work: ["sleep", "600"])

    with pytest.raises(BenchError, match="arm hanging ran over 0 s"):
        trial.Trial(bench=bench, repeats=1).run(claim_of(hanging))


def test_each_run_starts_with_an_empty_output(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """What an earlier run left is gone, and nothing is left at the end."""
    careful = Arm(
        name="careful",
        command=lambda work: [
            "sh",
            "-c",
            f"rmdir '{work.output}' && mkdir '{work.output}' && cp '{work.data}/a.txt' '{work.output}'",
        ],
    )

    trial.Trial(bench=bench, repeats=2).run(claim_of(careful))

    assert not (bench.root / "scratch" / "copy").exists()


def test_an_arm_reports_the_time_of_the_work_alone(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """The last line of an arm's output, if it is a JSON object, carries its own time beside the kernel's figures."""
    script = "cp '{0}/a.txt' '{1}'; echo chatter; echo '{{\"inner_s\": 0.125, \"private_bytes\": 4096}}'"
    telling = Arm(name="telling", command=lambda work: ["sh", "-c", script.format(work.data, work.output)])

    result = trial.Trial(bench=bench, repeats=1).run(claim_of(telling, ratio_on="inner_s"))

    (run,) = result.arm("telling").runs
    assert (run.inner_s, run.private_bytes) == (0.125, 4096)
    assert run.wall_s > 0
    assert run.peak_rss_bytes > 1024**2


@pytest.mark.parametrize("last_line", ["", "[1, 2]", "done", "{broken"])
def test_a_last_line_that_is_no_object_is_no_report(tmp_path: Path, last_line: str) -> None:
    """Programs that print something else report nothing."""
    arm = Arm(name="A", command=lambda _work: ["echo", last_line])
    work = Work(data=tmp_path, output=tmp_path, values={}, proof=False, python=Path(sys.executable))

    _, report = trial.run_once(arm, work, scratch=tmp_path)

    assert report == {}


def test_the_harness_does_not_lend_its_memory_to_an_arm(tmp_path: Path) -> None:
    """A small arm started by a large harness has a small peak, although Linux hands the parent's peak down."""
    ballast = bytearray(b"\1" * 96 * 1024**2)
    work = Work(data=tmp_path, output=tmp_path, values={}, proof=False, python=Path(sys.executable))

    figures, _ = trial.run_once(idle("A"), work, scratch=tmp_path)

    assert figures["peak_rss_bytes"] < len(ballast) // 2


def test_an_arm_sees_only_the_variables_it_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and switches of the caller's shell do not reach an arm; its own do."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the caller")
    arm = Arm(
        name="A",
        command=lambda work: [work.python, "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        environment=lambda _work: {"BENCH_SAYS": "hello"},
    )
    work = Work(data=tmp_path, output=tmp_path, values={}, proof=False, python=Path(sys.executable))

    _, report = trial.run_once(arm, work, scratch=tmp_path)

    assert report["BENCH_SAYS"] == "hello"
    assert "AWS_SECRET_ACCESS_KEY" not in report


def test_cold_runs_are_refused_where_the_page_cache_cannot_be_dropped(
    bench: Bench, claim_of: Callable[..., Claim], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the permission there is no figure that is called cold and is not."""
    monkeypatch.setattr(machine, "DROP_CACHES", tmp_path / "absent")

    with pytest.raises(BenchError, match="cold runs need permission to drop the page cache"):
        trial.Trial(bench=bench, repeats=1, page_cache="cold").run(claim_of(copying("A")))


def test_the_result_says_what_it_was_measured_with(bench: Bench, claim_of: Callable[..., Claim]) -> None:
    """Versions, machine, commit and page cache are in the JSON, and it is JSON."""
    claim = claim_of(copying("A", version=("cp", "--version"), libraries=("datakit",)))

    content = json.loads(json.dumps(trial.Trial(bench=bench, repeats=1).run(claim).to_json()))

    assert set(content["arms"][0]["versions"]) == {"cp", "datakit"}
    assert {"cpu", "cores", "memory_bytes", "kernel", "filesystem", "date"} <= set(content["machine"])
    assert content["page_cache"].startswith("warm")
    assert content["commit"]
