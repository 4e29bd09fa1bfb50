"""The result: medians, ratios and the JSON that is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frame.claim import BenchError, Goal, Truth
from frame.result import ArmResult, Result, Run, Spread, read_all, write


def a_run(wall_s: float, **fields: Any) -> Run:
    """A run that took so long and used a fixed rest."""
    return Run(
        **{"wall_s": wall_s, "user_s": 0.25, "system_s": 0.5, "peak_rss_bytes": 8 << 20, "flush_s": 0.0, **fields}
    )


def a_result(*, run_shares: dict[str, float] | None = None, **fields: Any) -> Result:
    """Two arms: the floor takes 1 s, datakit 2 s (medians of three)."""
    floor, datakit = ([a_run(s, shares=run_shares) for s in times] for times in ((1.5, 1.0, 0.9), (2.0, 7.0, 1.0)))
    arms = (
        ArmResult("floor", {"cp": "9.1"}, "copies", tuple(floor)),
        ArmResult("datakit", {"datakit": "0.1.0"}, "", tuple(datakit)),
    )
    machine = {"cpu": "a cpu", "cores": 2, "memory_bytes": 8 << 30, "kernel": "Linux 6", "filesystem": "ext4"}
    settings: dict[str, Any] = {
        "claim": "copy",
        "sentence": "Copying a file.",
        "note": "",
        "size": "full",
        "input": "one file",
        "expected": Truth(100, 4_000_000, "ab"),
        "unit": "samples",
        "ratio_on": "wall_s",
        "floor": "floor",
        "reference": "datakit",
        "goals": (Goal("floor", 0.4),),
        "page_cache": "warm",
        "order": ("floor", "datakit") * 4,
        "arms": arms,
        "machine": {**machine, "python": "3.11.7", "load_1min": 0.0, "date": "2026-11-30T10:00:00Z"},
        "commit": "0123456789abcdef",
    }
    return Result(**{**settings, **fields})


def test_a_spread_is_the_median_and_the_extremes() -> None:
    """One slow run moves the highest value, not the median."""
    result = a_result()

    spread = result.arm("datakit").spread("wall_s")

    assert spread == Spread(median=2.0, low=1.0, high=7.0)


def test_a_figure_that_one_run_lacks_has_no_spread() -> None:
    """A median over some of the runs would compare what was not measured alike."""
    arm = ArmResult("A", {}, "", (a_run(1.0, inner_s=0.5), a_run(1.0)))

    assert arm.spread("inner_s") is None


def test_ratios_are_of_medians() -> None:
    """Datakit took twice the floor's time, and the rate follows the same time."""
    result = a_result()

    assert result.ratio("datakit", to="floor") == 2.0
    assert result.ratio("floor", to="datakit") == 0.5
    assert result.rate_per_s("datakit") == 50.0


def test_a_ratio_on_a_time_that_was_not_reported_is_refused() -> None:
    """The error names the claim, the arm and the figure."""
    with pytest.raises(BenchError, match="claim copy: arm floor did not report inner_s"):
        a_result(ratio_on="inner_s").time_s("floor")


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """A result survives its file; the file also holds medians and ratios for readers."""
    result = a_result()

    path = write(result, folder=tmp_path)

    content = json.loads(path.read_text())
    assert read_all(tmp_path) == [result]
    assert path.name == "copy.json"
    assert content["arms"][1]["summary"]["wall_s"] == {"median": 2.0, "low": 1.0, "high": 7.0}
    assert content["arms"][1]["summary"]["ratio_to_floor"] == 2.0


def test_shares_survive_the_file(tmp_path: Path) -> None:
    """A claim about bytes is written with its columns and what each run worked out."""
    result = a_result(shares=("edited",), run_shares={"edited": 0.25})

    path = write(result, folder=tmp_path)

    assert read_all(tmp_path) == [result]
    assert json.loads(path.read_text())["arms"][0]["runs"][0]["shares"] == {"edited": 0.25}


def test_the_schema_is_the_one_of_format_1() -> None:
    """Names of fields change only with the format number."""
    content = a_result().to_json()

    assert content["format"] == 1
    assert set(content) == {
        *("format", "claim", "sentence", "note", "size", "input", "expected", "unit", "ratio_on", "floor", "reference"),
        *("goals", "page_cache", "order", "arms", "machine", "commit"),
    }
    assert set(content["arms"][0]) == {"name", "note", "runs", "summary", "versions"}
    assert set(content["arms"][0]["runs"][0]) == {
        *("wall_s", "user_s", "system_s", "peak_rss_bytes", "flush_s", "inner_s", "private_bytes"),
    }


def test_another_format_is_refused() -> None:
    """The message names the format found and the one that can be read."""
    content = {**a_result().to_json(), "format": 2}

    with pytest.raises(BenchError, match="a result has format 2, this harness reads 1"):
        Result.from_json(content)
