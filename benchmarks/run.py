"""run: test datakit's claims about speed, side by side with others.

    make bench              every claim, small inputs, 2 repeats: does everything still work, roughly how fast
    make bench FULL=1       every claim, full inputs, 5 repeats: writes benchmarks/results and docs/benchmarks.md

Prints one table a claim. Ends with 1 if an arm failed or did other work than it was asked to. A goal that is missed is
printed, not an error: speed is measured here, never asserted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(REPOSITORY))  # datakit as it stands in this checkout

import peers  # noqa: E402 -- after the path
import render  # noqa: E402
from frame import machine, result  # noqa: E402
from frame.claim import Bench, BenchError, Claim, Size  # noqa: E402
from frame.trial import Trial  # noqa: E402

# a claim is the file of that name; add yours here
CLAIMS = ("pack", "pack_lines", "pack_s3", "repack", "reupload", "read", "read_random", "download")
REPEATS = {"quick": 2, "full": 5}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Test datakit's claims about speed, side by side with others.")
    parser.add_argument("--full", action="store_true", help="full inputs and 5 repeats; the default is quick")
    parser.add_argument("--only", action="append", choices=CLAIMS, metavar="CLAIM", help=f"one of: {', '.join(CLAIMS)}")
    parser.add_argument("--repeats", type=int, help="timed runs of each arm")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run (needs permission)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results go as JSON; then no page is written")
    parser.add_argument("--root", type=Path, default=REPOSITORY / ".bench", help="environments, inputs, scratch")
    return parser.parse_args(arguments)


def load(name: str) -> Claim:
    """The claim of a file."""
    claim: Claim = importlib.import_module(name).CLAIM
    return claim


def run(claim: Claim, *, trial: Trial, folder: Path) -> None:
    """Install what a claim needs, test it, keep and print its result."""
    for name in sorted({arm.peer for arm in claim.arms if arm.peer} | set(claim.services)):
        if peers.install(peers.peer_named(name), envs=trial.bench.envs):
            trial.say(f"  installed {name}")
    found = trial.run(claim)
    path = result.write(found, folder=folder)
    print(f"\n{render.section(found)}\n")
    trial.say(f"  {path}")


def main(arguments: list[str]) -> int:
    """Test the claims that the command line names."""
    options = parse(arguments)
    size: Size = "full" if options.full else "quick"
    publish = options.full and options.output is None and not options.cold
    folder = options.output or (render.RESULTS if publish else options.root / "results")
    trial = Trial(
        bench=Bench(root=options.root.resolve(), size=size),
        repeats=options.repeats or REPEATS[size],
        page_cache="cold" if options.cold else "warm",
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    failed = []
    for name in options.only or CLAIMS:
        trial.say(f"{name} ({size})")
        try:
            run(load(name), trial=trial, folder=folder)
        except BenchError as error:
            trial.say(f"{name}: {error}")
            failed.append(name)
    if publish:
        render.PAGE.write_text(render.page(render.PAGE.read_text(), results=result.read_all(render.RESULTS)))
    if not machine.may_drop_caches() or not options.cold:
        trial.say("page cache: warm; cold figures need --cold and permission to drop caches")
    return int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
