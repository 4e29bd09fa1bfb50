"""dvcproject: a DVC project in a temporary folder, and the real `dvc` at work in it: the oracle of version/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.cli import environment


@dataclass(frozen=True)
class DvcProject:
    """A project; `remote` is a folder or a URL."""

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def dvc(self, *words: str, code: int = 0) -> str:
        """Run dvc and give what it said on stdout; it must end with this code."""
        quiet = {
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(self.root / ".dvc" / "site"),
            "SHELL": "/bin/sh",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin",
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "dvc", *words],
            cwd=self.root,
            env={**environment(), **quiet, **self.env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def stage(self, text: str) -> None:
        """Write dvc.yaml."""
        (self.root / "dvc.yaml").write_text(text)


def make_project(root: Path, *, remote: str | None = None, env: Mapping[str, str] | None = None) -> DvcProject:
    """`dvc init --no-scm`, with a default remote: the folder `<root>-remote`, or a URL."""
    root.mkdir(parents=True, exist_ok=True)
    project = DvcProject(root, env or {})
    project.dvc("init", "--no-scm", "-q")
    project.dvc("remote", "add", "-q", "-d", "store", remote or str(root.with_name(f"{root.name}-remote")))
    return project


def bare_project(root: Path, *, remote: str, settings: str = "", core: str = "") -> Path:
    """What a rented node has of a project: `.dvc/config`, written by hand."""
    (root / ".dvc").mkdir(parents=True)
    text = f"[core]\n    remote = store\n{core}['remote \"store\"']\n    url = {remote}\n{settings}"
    (root / ".dvc" / "config").write_text(text)
    return root
