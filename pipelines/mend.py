"""mend: what a killed demo leaves behind, made good before the next one starts.

    python pipelines/mend.py                    # 1 s: ends left-over processes of this checkout, mends DVC's files

Only what is provably nobody's is touched: processes that bear the mark of a demo of this checkout (the caller holds
its lock), DVC's list of readers and writers when no DVC on it lives, a dvc.lock that cannot be read. DVC clears a dead
process from its list by itself, but stops for ever at a list that a kill cut in two (measured with 3.67.1).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import yaml

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


if __name__ == "__main__":
    end_left_over(10)
    mend_dvc()
