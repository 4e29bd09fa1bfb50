"""The tables: what stands on the page is what stands in the results."""

from __future__ import annotations

import subprocess
import sys

import pytest

import render
from frame.claim import BenchError, Goal
from frame.result import read_all

from .test_result import a_result


def test_the_page_agrees_with_the_committed_results() -> None:
    """Rendering the committed results anew changes nothing on docs/benchmarks.md."""
    text = render.PAGE.read_text()

    assert render.page(text, results=read_all(render.RESULTS)) == text


def test_the_check_of_the_page_can_be_run_alone() -> None:
    """`render.py --check` ends with 0 on the committed page and prints nothing."""
    done = subprocess.run([sys.executable, render.__file__, "--check"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_row_shows_time_spread_rate_and_both_ratios() -> None:
    """The time that makes the ratios is bold."""
    rows = render.section(a_result()).splitlines()

    (row,) = [line for line in rows if line.startswith("| datakit")]
    assert row == (
        "| datakit | **2.00 s (1.00–7.00)** | – | 0.750 s (0.750–0.750) | 8 MiB | 0.000 s (0.000–0.000) "
        "| 50 samples/s | 2.00 | 1.00 |"
    )


def test_bytes_are_shown_as_a_rate_of_megabytes() -> None:
    """A claim that counts bytes shows MB/s."""
    assert "| 2 MB/s |" in render.section(a_result(unit="bytes"))


def test_a_missed_goal_is_published() -> None:
    """A goal that was met and one that was missed stand side by side."""
    text = render.section(a_result(goals=(Goal("floor", 0.4), Goal("floor", 3.0))))

    assert "- datakit is 0.50 times as fast as floor (goal at least 0.4): met." in text
    assert "- datakit is 0.50 times as fast as floor (goal at least 3): **missed**." in text


def test_shares_stand_instead_of_times() -> None:
    """A claim about bytes shows the columns that it names, and no time."""
    shares = {"appended": 0.0512, "edited": 1.0}
    text = render.section(a_result(shares=tuple(shares), run_shares=shares))

    assert "| arm | appended | edited |" in text
    assert "| datakit | 5.1 % | 100.0 % |" in text
    assert "The same in 3 runs." in text
    assert " s (" not in text


def test_shares_that_are_missing_or_vary_are_no_result() -> None:
    """A column that an arm did not report is not left empty."""
    with pytest.raises(BenchError, match="did not report appended, the same in each run"):
        render.section(a_result(shares=("appended",), run_shares={"edited": 1.0}))


def test_uncommitted_changes_are_said() -> None:
    """A figure of a tree that nobody else can check out says so."""
    assert "commit 0123456789ab with uncommitted changes." in render.section(
        a_result(commit="0123456789abcdef+changes")
    )


def test_only_what_is_between_the_markers_is_rewritten() -> None:
    """The words around a table are a person's, and rendering twice is rendering once."""
    text = f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n"

    once = render.page(text, results=[a_result()])

    assert once.startswith(f"before\n{render.BEGIN}\n\n## copy\n")
    assert once.endswith(f"\n{render.END}\nafter\n")
    assert "old" not in once
    assert render.page(once, results=[a_result()]) == once


def test_a_page_without_markers_is_refused() -> None:
    """Nothing is guessed about where a table belongs."""
    with pytest.raises(BenchError, match="no pair of markers"):
        render.page("a page", results=[])
