"""The examples of docs/python.md are programs that work: run as they stand there, one behind the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import readme
from support.agents import Cache, short_folder
from support.cli import environment
from support.docs import DOCS

TEXT = (DOCS / "python.md").read_text(encoding="utf-8")


def test_the_examples_of_the_python_page_work_one_after_the_other(clean_room: Path) -> None:
    """From raw lines to batches, a resumed loader, and what stock webdataset and datasets read; without a warning."""
    readme.write_records(clean_room / "raw" / "chat.jsonl", keys=["greeting-7"])
    program = "\n".join(readme.programs(TEXT))

    with short_folder() as runtime:
        env = {**environment(), "XDG_RUNTIME_DIR": str(runtime)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False, timeout=240
        )
        Cache(clean_room / "cache").end()

    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    counts, *_, progress, record, key = done.stdout.splitlines()
    assert counts.startswith("80 ('json',) ")
    assert counts.endswith(" greeting-7")
    assert progress == "1 5 0 0"
    assert record.startswith("{'id': ")
    assert key
