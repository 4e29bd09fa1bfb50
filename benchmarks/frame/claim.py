"""claim: one sentence about speed, and everything needed to test it.

A claim is a stage (the input, made once, and the truth about it), arms (the commands that do the work, each a process
of its own) and a check (what an arm really did). A claim is one file of `benchmarks/`; an arm that is a Python function
lives in that file too, which is then run under the arm's own interpreter. Hence this module and whatever a claim
imports at its top need the standard library only.

It promises that an arm gets nothing but a `Work`, and that its report says what it measured itself (`Work.timed`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Size = Literal["quick", "full"]
Timing = Literal["wall_s", "inner_s"]
Unit = Literal["samples", "bytes"]


class BenchError(Exception):
    """A benchmark that proves nothing: an arm failed, or did other work than it was asked to."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What was done, comparable between arms.

    Attributes:
        samples: How many samples (or files).
        payload_bytes: Their bytes in all, without container overhead.
        digest: A digest of names and contents that does not depend on order; None where it was not taken.
    """

    samples: int
    payload_bytes: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """The input of a claim, ready to be worked on.

    Attributes:
        data: The folder or file that the arms read.
        expected: What each arm has to have done, taken from the input itself.
        text: The input in words, for the table.
        values: What else arms need, such as the address of a server.
    """

    data: Path
    expected: Truth
    text: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a benchmark lives, and how large it is.

    Attributes:
        root: The harness's own folder (`.bench`): environments, input data, scratch.
        size: `quick` or `full`.
    """

    root: Path
    size: Size

    @property
    def data(self) -> Path:
        """Where inputs are kept between runs."""
        return self.root / "data"

    @property
    def envs(self) -> Path:
        """Where the peers' environments are."""
        return self.root / "envs"

    def python_of(self, peer: str | None) -> Path:
        """The interpreter of a peer's environment; of datakit's own for None."""
        return self.envs / peer / "bin" / "python" if peer else Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Work:
    """One arm's errand: read `data`, write below `output`, tell the time it took.

    Attributes:
        data: The input.
        output: An empty folder of its own.
        values: `Stage.values`.
        proof: True in the warm-up run, where an arm that leaves no output behind digests all it reads.
        python: The interpreter to run on: the peer's, or datakit's own.
    """

    data: Path
    output: Path
    values: Mapping[str, str]
    proof: bool
    python: Path
    report: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the work itself, without interpreter start and imports; goes into the report as `inner_s`."""
        started_s = time.perf_counter()
        yield
        self.report["inner_s"] = round(time.perf_counter() - started_s, 6)

    def to_json(self) -> str:
        """The errand as an argument of a command."""
        fields = {"data": str(self.data), "output": str(self.output), "values": dict(self.values)}
        return json.dumps({**fields, "proof": self.proof, "python": str(self.python)})

    @classmethod
    def from_json(cls, text: str) -> Work:
        """The errand that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, **{name: Path(fields[name]) for name in ("data", "output", "python")}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One contestant.

    Attributes:
        name: As the table shows it.
        command: The command line that does the work.
        peer: The peer in whose environment it runs; None: datakit's environment, or a tool of the system.
        environment: Variables that the command needs beside PATH and HOME.
        version: A command whose first line of output ends with the version of a tool that is no Python library.
        libraries: Distributions whose versions belong to the figure.
        note: What a fair reader must know (what it checks, what it leaves out).
    """

    name: str
    command: Callable[[Work], Sequence[str | Path]]
    peer: str | None = None
    environment: Callable[[Work], Mapping[str, str]] = lambda _work: {}
    version: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """Datakit's arm has to be this many times as fast as another (docs/benchmarks.md)."""

    arm: str
    at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one benchmark is about.

    Attributes:
        name: The name of its file, of its results and of `--only`.
        sentence: The claim in words.
        stage: Makes the input and yields it; closes what it opened (a server) afterwards.
        arms: The contestants, in the order in which they take turns.
        floor: The arm that does the least one could do; ratios to it say how much room is left.
        reference: Datakit's arm; ratios to it say who is faster.
        ratio_on: `wall_s`, the whole process, or `inner_s`, the work as the arm timed it itself.
        unit: What a rate counts.
        check: What an arm really did: (its output folder, its report) -> truth.
        goals: What has to be true.
        services: Peers that no arm is, but that the stage needs, such as a server.
        note: What a fair reader must know about the comparison as a whole.
        shares: What arms report under `shares`, each a part of 1, where the claim is about bytes and not about time:
            the table shows these columns, and no times.
    """

    name: str
    sentence: str
    stage: Callable[[Bench], AbstractContextManager[Stage]]
    arms: tuple[Arm, ...]
    floor: str
    reference: str
    ratio_on: Timing
    unit: Unit
    check: Callable[[Path, Mapping[str, Any]], Truth]
    goals: tuple[Goal, ...] = ()
    services: tuple[str, ...] = ()
    note: str = ""
    shares: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        named = {self.floor, self.reference, *(goal.arm for goal in self.goals)}
        if len(set(names)) != len(names) or not named <= set(names):
            raise BenchError(f"claim {self.name}: arms {names} do not hold each of {sorted(named)} once")


def python_arm(work_of: Callable[[Work], Mapping[str, Any] | None], *, name: str, **fields: Any) -> Arm:
    """An arm that is a function of its claim's file; what the function returns is added to its report."""
    script = Path(work_of.__code__.co_filename).resolve()
    return Arm(name=name, command=lambda work: [work.python, script, work_of.__name__, work.to_json()], **fields)


def run_arm(functions: Mapping[str, Any]) -> None:
    """Be the arm that the command line names: the last line of a claim's file calls `run_arm(globals())`."""
    _, name, errand = sys.argv
    work = Work.from_json(errand)
    work.report.update(functions[name](work) or {})
    work.report["private_bytes"] = _private_bytes()
    print(json.dumps(work.report))


def _private_bytes() -> int | None:
    """Resident memory of this process that is not a mapped file, at this moment; None off Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("RssAnon"))
