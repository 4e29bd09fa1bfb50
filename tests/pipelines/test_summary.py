"""pipelines/summary: the table at the end of a demo, and no advice that was followed already."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from support.dvcproject import bare_project


@pytest.mark.parametrize("has_remote", [False, True])
def test_a_remote_is_asked_for_where_there_is_none(
    pipelines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_remote: bool
) -> None:
    """DVC ends with a hint at `dvc push`; to whom it leads somewhere, nothing is said about it."""
    summary = importlib.import_module("summary")
    monkeypatch.setattr(summary, "facts", dict)
    if has_remote:
        bare_project(Path(), remote="../store")

    summary.print_summary()

    said = capsys.readouterr().out
    assert ("dvc remote add --default NAME URL" in said) is not has_remote
    assert "\nDone." in said
