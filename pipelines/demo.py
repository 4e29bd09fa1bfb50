"""demo: the main job, from raw records to a trained adapter, on a bucket of its own.

    make demo                                   # 6 min on 2 cores the first time, 10 s when nothing has changed

Runs `dvc repro` (dvc.yaml) with an embedded S3 server and ends with one table. Change params.yaml or a record in
data/raw and run it again: only what that changes is done anew. Kill it at any moment, any of its processes with `kill
-9`, and run it again: training goes on from its last commit and ends with the same adapter. Everything it makes lies
in .demo/, data/, models/, runs/ and metrics/.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from bucket import BUCKET, FOLDER, open_bucket
from corpus import write_corpus
from datakit.errors import DatakitError
from datakit.storage.disk import exclusive
from mend import MARK, ROOT, end_left_over, mend_dvc
from summary import print_summary
from tie import die_with_parent


def run(*command: str, environment: dict[str, str]) -> int:
    """Run a command that dies with us; its exit code, or -SIGINT after Ctrl-C.

    Ctrl-C reaches the command by itself, and a trainer commits its step before it ends; a second one ends all at once.
    """
    interrupts = 0
    tie = [sys.executable, "pipelines/tie.py", str(os.getpid())]
    with subprocess.Popen([*tie, *command], env=environment) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    process.terminate()
    return -signal.SIGINT if interrupts else process.returncode


def prepare() -> None:
    """Make good what a killed run left, and lay out what DVC needs to find."""
    end_left_over(10)
    mend_dvc()
    write_corpus()
    if not FOLDER.exists():  # what was published went with the bucket
        for receipt in Path("data").glob("publish-*.json"):
            receipt.unlink()
    if not Path(".git").exists():
        Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n")


def reproduce(environment: dict[str, str]) -> int:
    """Bring the bucket's raw records up to date and run what changed; gives the exit code."""
    environment |= {MARK: str(ROOT), "SHELL": "/bin/sh", "DVC_SITE_CACHE_DIR": str(ROOT / ".demo/dvc")}
    # threads that wait asleep: where others work too, spinning ones make a step 4 times as long (measured 2026-11-30)
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    mirror = ["datakit", "sync", "data/raw", f"s3://{BUCKET}/raw", "--delete", "--max-delete", "10"]
    code = run(*mirror, environment=environment)
    if code == 0:
        code = run(sys.executable, "-m", "dvc", "repro", environment=environment)
    end_left_over(60)  # of a DVC that was killed: its trainer commits first, and still has the bucket
    return code


def main() -> int:
    """Prepare, reproduce, show the table; gives the exit code."""
    os.chdir(ROOT)
    if "MAKELEVEL" in os.environ:
        die_with_parent(os.getppid())  # of `make`, which may be killed like everything else
    with exclusive(Path(".demo/lock"), purpose=f"running the demo in {ROOT}"):
        prepare()
        before = lock_bytes()
        with open_bucket() as environment:
            code = reproduce(environment)
    if code:
        print("error: the demo ended early. The same command continues it: make demo", file=sys.stderr)
        return 130 if code == -signal.SIGINT else 1
    print_summary(nothing_to_do=lock_bytes() == before)
    return 0


def lock_bytes() -> bytes:
    """What DVC has recorded, to tell whether anything was done."""
    path = Path("dvc.lock")
    return path.read_bytes() if path.exists() else b""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except DatakitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
