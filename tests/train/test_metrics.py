"""train/metrics: each step once, whatever was killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from datakit.train.metrics import MetricsFile, StepMetrics, Totals, read_metrics

STEP = StepMetrics(
    step=1, attempt=1, epoch=0, loss=2.0, learning_rate=0.1, grad_norm=1.0, samples=4, tokens=40, supervised_tokens=10,
    step_s=2.0, data_wait_s=0.5, save_stall_s=0.0, tokens_per_s=20.0,
)  # fmt: skip


def write(path: Path, steps: range, after_step: int) -> None:
    file = MetricsFile(path, after_step=after_step)
    file.open()
    for step in steps:
        file.add(dataclasses.replace(STEP, step=step))
    file.sync()
    file.close()


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    """Lines behind the resumed step give way to those of the new attempt."""
    write(tmp_path / "m", range(1, 8), 0)

    write(tmp_path / "m", range(5, 9), 4)

    assert [row["step"] for row in read_metrics(tmp_path / "m")] == list(range(1, 9))


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_a_line_that_a_kill_cut_is_left_out(tmp_path: Path, cut: int) -> None:
    """Reading gives the whole lines; opening for more removes the torn one."""
    write(tmp_path / "m", range(1, 4), 0)
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[:-cut])

    assert [row["step"] for row in read_metrics(tmp_path / "m")][:2] == [1, 2]
    write(tmp_path / "m", range(3, 4), 2)
    assert (tmp_path / "m").read_bytes() == data


def test_no_file_is_no_step(tmp_path: Path) -> None:
    """A run that was killed before its first step has no metrics."""
    assert read_metrics(tmp_path / "m") == []


def test_lines_of_something_else_are_left_out(tmp_path: Path) -> None:
    """Only objects count."""
    (tmp_path / "m").write_text('[1]\n{"step": 1}\nnonsense\n')

    assert read_metrics(tmp_path / "m") == [{"step": 1}]


def test_totals_add_up() -> None:
    """Rates are over the time of stepping; of nothing they are zero."""
    totals = Totals()
    empty = totals.tokens_per_s, totals.data_wait_share
    for _ in range(2):
        totals.add(STEP)

    assert empty == (0.0, 0.0)
    assert (totals.steps, totals.tokens, totals.supervised_tokens) == (2, 80, 20)
    assert totals.tokens_per_s == 20.0
    assert totals.data_wait_share == 0.25
