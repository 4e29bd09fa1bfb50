"""result: what a benchmark found, as the JSON that is committed.

Format 1, one file a claim. Everything measured stands in `runs`, one entry a timed run; medians and ratios are derived
from them here and nowhere else, and are written beside them for readers of the file. Times are seconds, sizes bytes.

It promises that what `from_json` reads is what `to_json` wrote, and refuses any other format number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from frame.claim import BenchError, Goal, Size, Timing, Truth, Unit

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run of one arm.

    Attributes:
        wall_s: The whole process, from start to end.
        user_s: CPU seconds in user mode, descendants included.
        system_s: CPU seconds in the kernel, descendants included.
        peak_rss_bytes: Peak resident memory of its largest process, mapped files included.
        flush_s: How long its output took afterwards to reach the disk (next to 0 for an arm that had flushed it
            itself); None for an arm that leaves no output.
        inner_s: The work alone as the arm timed it; None for an arm that cannot say.
        private_bytes: Resident memory at the end that is not a mapped file; None for an arm that cannot say.
        shares: What the arm worked out, each a part of 1; None where the claim is about time.
    """

    wall_s: float
    user_s: float
    system_s: float
    peak_rss_bytes: int
    flush_s: float | None = None
    inner_s: float | None = None
    private_bytes: int | None = None
    shares: Mapping[str, float] | None = None

    @property
    def cpu_s(self) -> float:
        """User and system CPU seconds together."""
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a figure over all runs, with its extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ArmResult:
    """All runs of one arm, and the versions that they were made with."""

    name: str
    versions: Mapping[str, str]
    note: str
    runs: tuple[Run, ...]

    def spread(self, figure: str) -> Spread | None:
        """Median and extremes of a figure of `Run`; None if any run lacks it."""
        values = [getattr(run, figure) for run in self.runs]
        if not values or None in values:
            return None
        return Spread(median=median(values), low=min(values), high=max(values))


@dataclass(frozen=True, slots=True)
class Result:
    """A claim, tested.

    Attributes:
        shares: Columns of the table, where the claim is about bytes and not about time.
        order: The arms in the order in which they ran, warm-up runs included.
        page_cache: What was in memory when an arm started, in words.
        expected: The truth that every run was checked against.
    """

    claim: str
    sentence: str
    note: str
    size: Size
    input: str
    expected: Truth
    unit: Unit
    ratio_on: Timing
    floor: str
    reference: str
    goals: tuple[Goal, ...]
    page_cache: str
    order: tuple[str, ...]
    arms: tuple[ArmResult, ...]
    machine: Mapping[str, Any]
    commit: str
    shares: tuple[str, ...] = ()

    def arm(self, name: str) -> ArmResult:
        """The results of an arm."""
        return next(arm for arm in self.arms if arm.name == name)

    def time_s(self, name: str) -> Spread:
        """An arm's time, the one that ratios are made of."""
        spread = self.arm(name).spread(self.ratio_on)
        if spread is None:
            raise BenchError(f"claim {self.claim}: arm {name} did not report {self.ratio_on}")
        return spread

    def ratio(self, name: str, *, to: str) -> float:
        """How many times as long as another arm an arm took (medians)."""
        return self.time_s(name).median / self.time_s(to).median

    def rate_per_s(self, name: str) -> float:
        """Samples or bytes a second, by the arm's median time."""
        done = self.expected.samples if self.unit == "samples" else self.expected.payload_bytes
        return done / self.time_s(name).median

    def to_json(self) -> dict[str, Any]:
        """The file's content, with medians and ratios for its readers."""
        fields = asdict(self)
        if not self.shares:  # format 1 as it was before there were claims about bytes
            del fields["shares"]
            for run in (run for arm in fields["arms"] for run in arm["runs"]):
                del run["shares"]
        for arm, written in zip(self.arms, fields["arms"], strict=True):
            figures = {name: arm.spread(name) for name in Run.__dataclass_fields__ if name != "shares"}
            written["summary"] = {name: asdict(spread) for name, spread in figures.items() if spread}
            written["summary"]["ratio_to_floor"] = round(self.ratio(arm.name, to=self.floor), 4)
            written["summary"]["ratio_to_datakit"] = round(self.ratio(arm.name, to=self.reference), 4)
        return {"format": FORMAT, **fields}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Result:
        """The result that `to_json` wrote; summaries are derived anew.

        Raises:
            BenchError: The file has another format number.
        """
        content = dict(fields)
        if content.pop("format", None) != FORMAT:
            raise BenchError(f"a result has format {fields.get('format')}, this harness reads {FORMAT}; run it again")
        arms = tuple(
            ArmResult(arm["name"], arm["versions"], arm["note"], tuple(Run(**run) for run in arm["runs"]))
            for arm in content.pop("arms")
        )
        goals = tuple(Goal(**goal) for goal in content.pop("goals"))
        tuples = {name: tuple(content.pop(name, ())) for name in ("order", "shares")}
        return cls(**{**content, **tuples, "expected": Truth(**content["expected"])}, goals=goals, arms=arms)


def write(result: Result, *, folder: Path) -> Path:
    """Put a result into its file, `<claim>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.claim}.json"
    path.write_text(json.dumps(result.to_json(), indent=2) + "\n")
    return path


def read_all(folder: Path) -> list[Result]:
    """Every result in a folder, by name."""
    return [Result.from_json(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
