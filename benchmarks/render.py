"""render: results as the tables of docs/benchmarks.md.

Run it to write the page from `benchmarks/results/*.json`; with `--check` it only says whether the page agrees with
them. What stands between the two markers is generated and never edited by hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from frame.claim import BenchError
from frame.result import Result, Spread, read_all

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin (written by benchmarks/render.py) -->", "<!-- results: end -->"
_HEADER = ("arm", "process", "work", "CPU", "peak memory", "flush after", "rate", "to the floor", "to datakit")
_MIB = 1024**2


def section(result: Result) -> str:
    """One claim as a Markdown section: the sentence, the table, the verdicts, the small print."""
    header = ("arm", *result.shares) if result.shares else _HEADER
    rows = [header, tuple("---" if n == 0 else "--:" for n in range(len(header)))]
    row_of = _row_of_shares if result.shares else _row
    rows += [row_of(result, arm.name) for arm in result.arms]
    blocks = [
        f"## {result.claim}",
        result.sentence,
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        "\n".join(f"- {line}" for line in _verdicts(result)),
        "\n".join(f"- {line}" for line in _small_print(result)),
    ]
    return "\n\n".join(block for block in blocks if block)


def page(text: str, *, results: list[Result]) -> str:
    """The page with the sections of these results between its markers.

    Raises:
        BenchError: The page lacks a marker.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"the page has no pair of markers {BEGIN} and {END}")
    body = "\n\n".join(section(result) for result in results) or "Not measured yet."
    return f"{before}{BEGIN}\n\n{body}\n\n{END}{after}"


def _row(result: Result, name: str) -> tuple[str, ...]:
    arm = result.arm(name)
    peak = arm.spread("peak_rss_bytes")
    private = arm.spread("private_bytes")
    memory = f"{peak.median / _MIB:,.0f} MiB" if peak else ""
    memory += f" ({private.median / _MIB:,.0f} private)" if private else ""
    timing = {key: _seconds(arm.spread(key)) for key in ("wall_s", "inner_s", "cpu_s", "flush_s")}
    timing[result.ratio_on] = f"**{timing[result.ratio_on]}**"
    return (
        name,
        timing["wall_s"],
        timing["inner_s"],
        timing["cpu_s"],
        memory,
        timing["flush_s"],
        _rate(result, name),
        f"{result.ratio(name, to=result.floor):.2f}",
        f"{result.ratio(name, to=result.reference):.2f}",
    )


def _row_of_shares(result: Result, name: str) -> tuple[str, ...]:
    runs = [run.shares or {} for run in result.arm(name).runs]
    if any(run != runs[0] for run in runs) or set(runs[0]) != set(result.shares):
        wanted = ", ".join(result.shares)
        raise BenchError(f"claim {result.claim}: arm {name} did not report {wanted}, the same in each run")
    return (name, *(f"{100 * runs[0][share]:.1f} %" for share in result.shares))


def _verdicts(result: Result) -> list[str]:
    lines = []
    for goal in result.goals:
        ratio = result.ratio(goal.arm, to=result.reference)
        verdict = "met" if ratio >= goal.at_least else "**missed**"
        wanted = f"goal at least {goal.at_least:g}"
        lines.append(f"{result.reference} is {ratio:.2f} times as fast as {goal.arm} ({wanted}): {verdict}.")
    return lines


def _small_print(result: Result) -> list[str]:
    on = "whole process" if result.ratio_on == "wall_s" else "work alone"
    where = result.machine
    versions = dict.fromkeys(f"{name} {version}" for arm in result.arms for name, version in arm.versions.items())
    machine = (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_bytes'] / 1024**3:.0f} GiB memory, {where['kernel']}, "
        f"output on {where['filesystem']}, Python {where['python']}, load {where['load_1min']} before the start"
    )
    repeats = len(result.arms[0].runs)
    ratios = f"Ratios and rate: {on}, medians of {repeats} interleaved runs after a warm-up, lowest–highest in brackets"
    return [
        f"Input: {result.input} ({result.size}). Page cache {result.page_cache}.",
        f"The same in {repeats} runs." if result.shares else f"{ratios}.",
        *([result.note] if result.note else []),
        *(f"{arm.name}: {arm.note}" for arm in result.arms if arm.note),
        f"Versions: {', '.join(versions)}.",
        f"Machine: {machine}. {where['date'][:10]}, commit {result.commit[:12]}{_changes(result.commit)}.",
    ]


def _seconds(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    digits = 2 if spread.median >= 1 else 3
    return f"{spread.median:.{digits}f} s ({spread.low:.{digits}f}–{spread.high:.{digits}f})"


def _rate(result: Result, name: str) -> str:
    rate = result.rate_per_s(name)
    return f"{rate:,.0f} samples/s" if result.unit == "samples" else f"{rate / 1e6:,.0f} MB/s"


def _changes(commit: str) -> str:
    return " with uncommitted changes" if commit.endswith("+changes") else ""


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="Write docs/benchmarks.md from benchmarks/results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page does not agree")
    options = parser.parse_args()
    text = PAGE.read_text()
    wanted = page(text, results=read_all(RESULTS))
    if options.check:
        if text != wanted:
            print("docs/benchmarks.md and benchmarks/results differ; run benchmarks/render.py", file=sys.stderr)
        return int(text != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
