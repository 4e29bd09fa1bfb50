"""The command: which claims, which size, where results go."""

from __future__ import annotations

from pathlib import Path

import pytest

import run
from frame.claim import Bench, Claim
from frame.result import read_all
from frame.trial import Trial

from .conftest import copying, idle


def test_quick_is_the_default() -> None:
    """Without a flag: small inputs, warm page cache, results in the harness's own folder."""
    options = run.parse([])

    assert (options.full, options.cold, options.only, options.output) == (False, False, None, None)


def test_an_unknown_claim_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists the claims there are."""
    with pytest.raises(SystemExit, match="2"):
        run.parse(["--only", "fly"])

    assert "pack" in capsys.readouterr().err


def test_a_claim_ends_as_a_file_and_a_table(
    bench: Bench, claim_of: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JSON is in the folder that was named, the table on stdout."""
    claim = claim_of(copying("A"), copying("B"))  # type: ignore[operator]  -- the fixture makes a claim

    run.run(claim, trial=Trial(bench=bench, repeats=1), folder=tmp_path / "results")

    assert [result.claim for result in read_all(tmp_path / "results")] == ["copy"]
    assert "## copy" in capsys.readouterr().out


def test_a_claim_that_fails_does_not_stop_the_next_and_is_not_forgotten(
    claim_of: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, the reason is on stderr, the other claim has its result."""
    claims: dict[str, Claim] = {
        "pack": claim_of(idle("lazy")),  # type: ignore[operator]  -- the fixture makes a claim
        "read": claim_of(copying("A")),  # type: ignore[operator]  -- the fixture makes a claim
    }
    monkeypatch.setattr(run, "load", claims.__getitem__)
    folders = ["--root", str(tmp_path / "bench"), "--output", str(tmp_path / "results")]

    status = run.main(["--only", "pack", "--only", "read", "--repeats", "1", *folders])

    assert status == 1
    assert "pack: arm lazy did other work" in capsys.readouterr().err
    assert len(read_all(tmp_path / "results")) == 1
