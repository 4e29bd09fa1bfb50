"""gitrepo: a Git repository in a temporary folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

WHO = ("-c", "user.name=a new user", "-c", "user.email=user@example.org", "-c", "commit.gpgsign=false")


def git(root: Path, *words: str) -> str:
    """Run git there; what it said."""
    done = subprocess.run(["git", "-C", str(root), *WHO, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(root: Path, *names: str, message: str = "Record") -> str:
    """Commit these files, in a repository that is made if need be; the revision."""
    if not (root / ".git").exists():
        git(root, "init", "-q", "-b", "main")
    git(root, "add", "-f", *names)
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")
