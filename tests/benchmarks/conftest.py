"""The harness is run as scripts from `benchmarks/`; its tests import it from there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from frame.claim import Arm, Bench, Claim, Stage, Truth
from frame.payload import truth_of_files


def copying(name: str, **fields: Any) -> Arm:
    """A fake arm that does the work: it copies the one input file."""
    return Arm(name=name, command=lambda work: ["cp", work.data / "a.txt", work.output / "a.txt"], **fields)


def idle(name: str) -> Arm:
    """A fake arm that does nothing and says that it is done."""
    return Arm(name=name, command=lambda _work: ["true"])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A harness folder of its own."""
    return Bench(root=tmp_path / "bench", size="quick")


@pytest.fixture
def claim_of(tmp_path: Path) -> Callable[..., Claim]:
    """A claim about copying one small file, with the arms that a test wants."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_bytes(b"payload")

    @contextmanager
    def stage(_bench: Bench) -> Iterator[Stage]:
        yield Stage(data, truth_of_files([data / "a.txt"], root=data), "one file of 7 bytes")

    def check(output: Path, _report: Mapping[str, Any]) -> Truth:
        return truth_of_files(output.iterdir(), root=output)

    def make(*arms: Arm, **fields: Any) -> Claim:
        settings = {"ratio_on": "wall_s", "unit": "samples", "check": check, **fields}
        names = {"name": "copy", "sentence": "Copying a file.", "floor": arms[0].name, "reference": arms[-1].name}
        return Claim(**{**names, **settings}, stage=stage, arms=arms)

    return make
