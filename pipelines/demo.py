"""demo: the main job, from raw records to a trained adapter, on a bucket of its own.

    make demo                                   # 4.5 min on 2 cores the first time, 3 s when nothing has changed

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
import urllib.parse
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
    forget_what_is_lost()
    if not Path(".git").exists():
        Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n")


def forget_what_is_lost() -> None:
    """Remove each receipt of something that the bucket does not hold any more, so that DVC has it sent again."""
    for path in [*Path("data").glob("publish-*.json"), Path("data/train.json")]:
        try:
            result = json.loads(path.read_bytes())["result"] or {}  # none: the command ended early
            checkpoints = [f"{result['write_back']}/{one['name']}" for one in result.get("checkpoints", ())]
            whole = all(map(is_held, [result.get("adapter_copy") or result["destination"], *checkpoints]))
        except (OSError, ValueError, KeyError, TypeError):
            whole = False  # it, or the manifest that it tells of, is not there or torn
        if not whole:
            path.unlink(missing_ok=True)


def is_held(commit: str) -> bool:
    """Whether the bucket's folder holds a commit: its manifest and all members; OSError where it has no manifest."""
    place = commit.removeprefix(f"s3://{BUCKET}/")

    def file(name: str) -> Path:
        return FOLDER / BUCKET / urllib.parse.quote(f"{place}/{name}", safe="")

    manifest = json.loads(file("manifest.json").read_bytes().partition(b"\n")[2])
    return all(file(member["name"]).exists() for member in manifest["members"])


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
    if sys.argv[1:]:
        die_with_parent(int(sys.argv[1]))  # `make`, which may be killed like everything else, and may be gone by now
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
