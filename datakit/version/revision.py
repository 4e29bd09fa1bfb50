"""revision: files as they were at a Git revision, by the `git` command.

A person writes `REV:PATH`, as `git show` takes it, with PATH as seen from where they are. Only small files are asked
for (dvc.lock, `.dvc` files); data lies in DVC's cache or remote. Changes nothing.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from datakit.errors import DatakitError, NotFound
from datakit.version.dvc import LOCK_NAME, PIPELINE_NAME, Lock
from datakit.version.graph import Graph
from datakit.version.project import FILE_SUFFIX, Pointer, parse_pipeline

_TIMEOUT_S = 60
"""A partial clone may have to fetch the file."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A path at a revision.

    Attributes:
        rev: What git calls it: `HEAD~1`, a tag, a branch, a commit.
        path: As written after the colon.
    """

    rev: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Revision | None:
        """`REV:PATH`; None where the text is something else: a URL, a pointer, a path that is there."""
        rev, colon, path = text.partition(":")
        if not colon or not rev or not path or path.startswith("//") or os.path.exists(text):
            return None
        return None if rev.endswith((LOCK_NAME, FILE_SUFFIX)) else cls(rev, path)

    def __str__(self) -> str:
        return f"{self.rev}:{self.path}"

    def file(self, path: str) -> bytes | None:
        """A file at the revision, or None where it has none there.

        Raises:
            NotFound: There is no such revision, no repository, or no git.
        """
        inside = os.path.relpath(path).replace(os.sep, "/")
        done = _git("show", "--end-of-options", f"{self.rev}:./{inside}")
        if done.returncode == 0:
            return done.stdout
        if _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{self.rev}^{{commit}}").returncode:
            where = "a Git repository" if _git("rev-parse").returncode else "a revision of this Git repository"
            if where == "a Git repository":
                raise NotFound(
                    f"{Path.cwd()} is not in {where}", hint=f"Go to where {self} is meant", subject=str(self)
                )
            raise NotFound(f"{self.rev} is not {where}", hint="List them: git log --oneline", subject=self.rev)
        return None

    def follow(self) -> tuple[Pointer, bytes]:
        """The pointer that the path is, or lies behind, with the bytes of its file at the revision.

        Raises:
            NotFound: No dvc.lock and no `.dvc` file of the revision knows the path.
        """
        pointer = Pointer.parse(self.path)
        if pointer is not None:
            data = self.file(str(pointer.file))
            if data is None:
                hint = f"List what it has: git ls-tree -r --name-only {self.rev}"
                raise NotFound(f"{self.rev} has no {pointer.file}", hint=hint, subject=str(self))
            return pointer, data
        path = Path(os.path.normpath(self.path))
        absolute = Path(os.path.abspath(path))
        for place in (absolute, *absolute.parents):
            if not place.name:
                break
            found = self._recorded(absolute, place)
            if found is not None:
                return found
            if (place.parent / ".git").exists():
                break
        raise NotFound(
            f"{self.rev} has no dvc.lock and no .dvc file that records {self.path}",
            hint=f"Name one of them: {self.rev}:{LOCK_NAME}:STAGE",
            subject=str(self),
        )

    def _recorded(self, path: Path, place: Path) -> tuple[Pointer, bytes] | None:
        """By the `.dvc` file of a directory that the path is or lies in, or the dvc.lock beside that."""
        inside = path.relative_to(place).as_posix()
        file = place.with_name(place.name + FILE_SUFFIX)
        data = self.file(str(file))
        if data is not None:
            return Pointer(file, None, None if inside == "." else f"{place.name}/{inside}"), data
        lock = place.parent / LOCK_NAME
        data = self.file(str(lock))
        if data is None:
            return None
        pipeline = place.parent / PIPELINE_NAME
        told = self.file(str(pipeline))
        stages = {} if told is None else parse_pipeline(told, where=f"{self.rev}:{pipeline}")
        graph = Graph.of(Lock.from_bytes(data, where=f"{self.rev}:{lock}"), place.parent, stages=stages)
        made = graph.maker(path)
        if made is None:
            return None
        node, out = made
        below = path.relative_to(node.path(out)).as_posix()
        return Pointer(lock, node.name, out.path if below == "." else f"{out.path}/{below}"), data


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *words],
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise NotFound("git is not installed, and a revision was named", hint="Install git", subject="git") from None
    except subprocess.TimeoutExpired:
        hint = f"See what holds it up: git {' '.join(words)}"
        raise DatakitError(f"git {words[0]} has not answered in {_TIMEOUT_S} s", hint=hint) from None
