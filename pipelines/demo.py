"""demo: the main job, from raw records to a trained adapter, on a bucket of its own.

    make demo                                   # 6 min on 2 cores the first time, 10 s when nothing has changed

Runs `dvc repro` (dvc.yaml) with an embedded S3 server and ends with one table. Change params.yaml or a record in
data/raw and run it again: only what that changes is done anew. Kill it at any moment, any of its processes with `kill
-9`, and run it again: training goes on from its last commit and ends with the same adapter. Everything it makes lies
in .demo/, data/, models/, runs/ and metrics/.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import yaml
from bucket import BUCKET, FOLDER, open_bucket
from corpus import write_corpus
from summary import print_summary
from tie import die_with_parent

from datakit.errors import DatakitError
from datakit.storage.disk import exclusive

ROOT = Path(__file__).resolve().parents[1]
MARK = "DATAKIT_DEMO"  # in the environment of every process that a demo starts; its value is the checkout


def end_left_over(patience_s: float) -> None:
    """Wait for processes that outlived the one which started them (they have been told to end), then kill them."""
    ours = [process for process in psutil.process_iter() if mark_of(process) == str(ROOT)]
    _, alive = psutil.wait_procs(ours, timeout=patience_s)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=10)


def mark_of(process: psutil.Process) -> str | None:
    """The checkout whose demo started this process, if one did."""
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None  # gone, or somebody else's


def mend_dvc() -> None:
    """Remove what a killed DVC may have left in pieces: its list of readers and writers, a half-written dvc.lock."""
    rwlock, lock = Path(".dvc/tmp/rwlock"), Path("dvc.lock")
    try:
        held = json.loads(rwlock.read_bytes())
        holders = [*held.get("write", {}).values(), *(one for many in held.get("read", {}).values() for one in many)]
    except (FileNotFoundError, ValueError):
        holders = []
    if not any(is_dvc(int(holder["pid"])) for holder in holders):
        rwlock.unlink(missing_ok=True)
    if lock.exists() and not is_whole(lock.read_text()):
        print("dvc.lock is half written; every stage is looked at anew", file=sys.stderr)
        lock.unlink()


def is_whole(lock: str) -> bool:
    """Whether DVC can read a dvc.lock; it is not written in one step."""
    try:
        stages = yaml.safe_load(lock)["stages"].values()
        return all(
            entry["path"] and entry["md5"] for stage in stages for entry in [*stage.get("deps", []), *stage["outs"]]
        )
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return False


def is_dvc(pid: int) -> bool:
    """Whether a living process of this number is DVC; numbers are used again."""
    try:
        return "dvc" in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def run(*command: str, environment: dict[str, str]) -> int:
    """Run a command that dies with us. Ctrl-C reaches it by itself; the second one ends it."""
    tie = [sys.executable, "pipelines/tie.py", str(os.getpid())]
    with subprocess.Popen([*tie, *command], env=environment) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                process.poll()
    return process.returncode


def main() -> int:
    """Prepare, run `dvc repro`, show the table; gives the exit code."""
    os.chdir(ROOT)
    if "MAKELEVEL" in os.environ:
        die_with_parent(os.getppid())  # of `make`, which may be killed like everything else
    with exclusive(Path(".demo/lock"), purpose=f"running the demo in {ROOT}"):
        end_left_over(10)
        mend_dvc()
        write_corpus()
        before = lock_bytes()
        if not FOLDER.exists():  # what was published went with the bucket
            for receipt in Path("data").glob("publish-*.json"):
                receipt.unlink()
        if not Path(".git").exists():
            Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n")
        with open_bucket() as environment:
            environment |= {MARK: str(ROOT), "SHELL": "/bin/sh", "DVC_SITE_CACHE_DIR": str(ROOT / ".demo/dvc")}
            environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
            mirror = ["datakit", "sync", "data/raw", f"s3://{BUCKET}/raw", "--delete", "--max-delete", "10"]
            code = run(*mirror, environment=environment) or run(
                sys.executable, "-m", "dvc", "repro", environment=environment
            )
            end_left_over(
                60
            )  # of a DVC that was killed: the trainer commits first, and the bucket is still there for it
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
    except DatakitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
