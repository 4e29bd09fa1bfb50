"""pack as a stage of a real DVC: a plain out, which DVC removes before each run; one edit is one shard all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from datakit.verify.verify import verify
from support.cli import environment
from support.packing import raw_lines, small_pack, tree, write_lines
from support.receipts import inodes

STAGE = """\
stages:
  pack:
    cmd: exec {python} run.py pack raw.jsonl data/ds --shard-size 16KiB --json > pack.json
    deps:
      - raw.jsonl
    outs:
      - data/ds
    metrics:
      - pack.json:
          cache: false
"""


class Repository:
    """A directory with a stage that packs, without git."""

    def __init__(self, path: Path, *, cache_type: str) -> None:
        self.path = path
        self._env = environment({"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(path / "site"), "CI": "1"})
        path.mkdir()
        (path / "run.py").write_text("import sys\nfrom datakit.cli.main import main\nsys.exit(main(sys.argv[1:]))\n")
        (path / "dvc.yaml").write_text(STAGE.format(python=sys.executable))
        self.dvc("init", "--no-scm", "-q")
        self.dvc("config", "cache.type", cache_type)

    def dvc(self, *words: str) -> str:
        """Run DVC; it must end well."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "dvc", *words],
            cwd=self.path,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def repro(self, *, edit: Mapping[int, str] | None = None) -> dict[str, Any]:
        """Change the source, reproduce, and give what pack said it did."""
        write_lines(self.path / "raw.jsonl", raw_lines(400, edit=edit))
        self.dvc("repro", "-q")
        result: dict[str, Any] = json.loads((self.path / "pack.json").read_text())["result"]
        return result

    def bytes_of(self, *folders: str) -> int:
        """What folders take on the disk, each inode once."""
        files = [path for folder in folders for path in (self.path / folder).rglob("*") if path.is_file()]
        return sum({path.stat().st_ino: path.stat().st_size for path in files}.values())


@pytest.mark.parametrize("cache_type", ["copy", "hardlink"])
def test_one_edit_builds_one_shard_of_a_plain_out(tmp_path: Path, cache_type: str) -> None:
    """DVC has removed the out: the other shards come back as links, and the bytes are those of a fresh pack.

    With hard links, dataset, DVC's cache and what pack keeps are one set of files; the cache has the old shard too.
    """
    repository = Repository(tmp_path / "repository", cache_type=cache_type)

    first = repository.repro()
    before = inodes(repository.path / "data" / "ds")
    second = repository.repro(edit={200: "another text"})

    dataset = repository.path / "data" / "ds"
    assert (first["built"], first["reused"]) == (first["shards"], 0)
    assert (second["built"], second["reused"]) == (1, first["shards"] - 1)
    assert verify(dataset).findings == ()
    small_pack(repository.path / "raw.jsonl", tmp_path / "fresh" / "ds")
    assert tree(dataset) == tree(tmp_path / "fresh" / "ds")
    assert "up to date" in repository.dvc("status")
    if cache_type == "hardlink":
        assert len(set(before.values()) & set(inodes(dataset).values())) == second["shards"] - 1
        assert repository.bytes_of("data", ".dvc/cache/files") < 1.25 * repository.bytes_of("data/ds")
