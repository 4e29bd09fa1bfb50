"""trial: let the arms of a claim take turns, and measure each run.

One warm-up run of each arm, then rounds: A B C A B C, so that whatever drifts on a machine meets all arms alike. Before
each run its output folder is empty and the disk has nothing left to write; after each run what the arm did is compared
with the truth about the input, and its output is removed. An arm that did other work ends the benchmark.

It does not correct, drop or repeat a run: what was measured is in the result.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import peers
from frame import machine
from frame.claim import Arm, Bench, BenchError, Claim, Stage, Truth, Work
from frame.result import ArmResult, Result, Run

LAUNCHER = Path(__file__).resolve().with_name("measure.py")
REPOSITORY = Path(__file__).resolve().parents[2]
PageCache = Literal["warm", "cold"]
# an arm that hangs must not hang the harness; the slowest honest run seen takes under a minute
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How to test a claim: where, how often, from which page cache, telling whom."""

    bench: Bench
    repeats: int
    page_cache: PageCache = "warm"
    say: Callable[[str], None] = lambda _line: None

    def run(self, claim: Claim) -> Result:
        """Test a claim.

        Raises:
            BenchError: An arm failed or did other work than it was asked to; or a cold page cache is not permitted.
        """
        if self.page_cache == "cold" and not machine.may_drop_caches():
            raise BenchError("cold runs need permission to drop the page cache (write to /proc/sys/vm/drop_caches)")
        scratch = self.bench.root / "scratch" / claim.name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        where = machine.describe(scratch)
        runs: dict[str, list[Run]] = {arm.name: [] for arm in claim.arms}
        order: list[str] = []
        try:
            with claim.stage(self.bench) as stage:
                for turn in range(1 + self.repeats):
                    for arm in claim.arms:
                        run = self._turn(arm, claim=claim, stage=stage, scratch=scratch, proof=turn == 0)
                        order.append(arm.name)
                        if turn:
                            runs[arm.name].append(run)
                        self._tell(arm, run, turn=turn, ratio_on=claim.ratio_on)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        measured = tuple(
            ArmResult(arm.name, self._versions(arm), arm.note, tuple(runs[arm.name])) for arm in claim.arms
        )
        return Result(
            claim=claim.name,
            sentence=claim.sentence,
            note=claim.note,
            size=self.bench.size,
            input=stage.text,
            expected=stage.expected,
            unit=claim.unit,
            ratio_on=claim.ratio_on,
            floor=claim.floor,
            reference=claim.reference,
            goals=claim.goals,
            page_cache=_page_cache_in_words(self.page_cache),
            order=tuple(order),
            arms=measured,
            machine=where.to_json(),
            commit=machine.git_commit(REPOSITORY),
            shares=claim.shares,
        )

    def _turn(self, arm: Arm, *, claim: Claim, stage: Stage, scratch: Path, proof: bool) -> Run:
        output = scratch / "output"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        python = self.bench.python_of(arm.peer)
        work = Work(data=stage.data, output=output, values=stage.values, proof=proof, python=python)
        if self.page_cache == "cold":
            machine.drop_caches()
        else:
            os.sync()
        figures, report = run_once(arm, work, scratch=scratch)
        flush_s = flush(output)
        check(arm, claim.check(output, report), expected=stage.expected, proof=proof)
        shutil.rmtree(output)
        own = {name: report.get(name) for name in ("inner_s", "private_bytes", "shares")}
        return Run(**{**figures, **own, "flush_s": flush_s})

    def _tell(self, arm: Arm, run: Run, *, turn: int, ratio_on: str) -> None:
        round_name = f"round {turn}/{self.repeats}" if turn else "warm-up"
        taken_s = getattr(run, ratio_on)
        seconds = f"{taken_s:.3f} s" if taken_s is not None else "no time of its own"
        self.say(f"  {round_name:<10} {arm.name:<28} {seconds}")

    def _versions(self, arm: Arm) -> dict[str, str]:
        installed = peers.versions_of(peers.peer_named(arm.peer), envs=self.bench.envs) if arm.peer else _own_versions()
        versions = {name: installed[name] for name in arm.libraries if name in installed}
        if arm.version:
            tool = self.bench.python_of(arm.peer).with_name(arm.version[0]) if arm.peer else arm.version[0]
            done = subprocess.run([tool, *arm.version[1:]], capture_output=True, text=True, check=True)
            versions[arm.version[0]] = done.stdout.splitlines()[0].split()[-1]
        return versions


def run_once(arm: Arm, work: Work, *, scratch: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run an arm as a process of its own; its figures (`Run`'s first four) and its report (its last line, if JSON).

    Raises:
        BenchError: It ended with another status than 0, or ran over the limit.
    """
    stdout, stderr = scratch / "stdout", scratch / "stderr"
    command = [str(word) for word in arm.command(work)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    if arm.peer is None:
        kept["PYTHONPATH"] = str(REPOSITORY)  # the code of this checkout is what is measured
    with subprocess.Popen(
        [sys.executable, "-I", "-S", LAUNCHER, stdout, stderr, *command],
        env={**kept, **arm.environment(work)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        try:
            measured, _ = launcher.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            raise BenchError(f"arm {arm.name} ran over {LIMIT_S:.0f} s") from None
        except BaseException:
            os.killpg(launcher.pid, signal.SIGKILL)  # Ctrl-C reaches this process only: the arm has its own session
            raise
    if launcher.returncode:
        raise BenchError(f"arm {arm.name} could not be started: {command[0]}")
    figures = json.loads(measured)
    status = figures.pop("status")
    if status:
        tail = stderr.read_text(errors="replace").strip().splitlines()[-12:]
        raise BenchError("\n".join([f"arm {arm.name} ended with status {status}:", *tail]))
    return figures, _report(stdout)


def check(arm: Arm, truth: Truth, *, expected: Truth, proof: bool) -> None:
    """Compare what an arm did with what it had to do; a proof run has to have a digest.

    Raises:
        BenchError: It is not the same.
    """
    digest_due = proof or truth.digest is not None
    same = (truth.samples, truth.payload_bytes) == (expected.samples, expected.payload_bytes)
    if not same or (digest_due and truth.digest != expected.digest):
        raise BenchError(f"arm {arm.name} did other work than the rest:\n  it did    {truth}\n  wanted is {expected}")


def flush(folder: Path) -> float | None:
    """Force every file of a folder to disk; the seconds it took, None if there is no file."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    started_s = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return round(time.perf_counter() - started_s, 6) if paths else None


def _report(stdout: Path) -> dict[str, Any]:
    lines = stdout.read_text(errors="replace").strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}
    return report if isinstance(report, dict) else {}


def _own_versions() -> Mapping[str, str]:
    from importlib import metadata

    import datakit

    found = {distribution.name.lower(): distribution.version for distribution in metadata.distributions()}
    return {**found, "datakit": datakit.__version__}


def _page_cache_in_words(page_cache: PageCache) -> str:
    if page_cache == "cold":
        return "cold: all dirty pages written and the page cache dropped before each run"
    return "warm: the whole input was read once before the first run"
