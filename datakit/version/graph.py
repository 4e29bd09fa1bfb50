"""graph: the stages of a dvc.lock with the places on this disk that they read and made.

A path belongs to the stage whose output it is, or lies in. Reads dvc.lock and, for `wdir`, dvc.yaml; looks at no data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datakit.version.dvc import Lock, Out, Stage
from datakit.version.project import DVC_DIR, read_lock, read_pipeline, stage_dir, uncached


@dataclass(frozen=True, slots=True)
class Node:
    """A stage, the directory that its paths start from, and its outputs of which DVC keeps no copy."""

    stage: Stage
    base: Path
    uncached: frozenset[Out] = frozenset()

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    def path(self, out: Out) -> Path:
        """Where an output or dependency lies."""
        return Path(os.path.normpath(self.base / out.path))


@dataclass(frozen=True)
class Graph:
    """The stages of one dvc.lock.

    Attributes:
        lock: The file.
        nodes: Its stages, in its order.
    """

    lock: Lock
    nodes: tuple[Node, ...]

    @classmethod
    def at(cls, folder: Path) -> Graph | None:
        """That of a directory, or None where no dvc.lock is.

        Raises:
            InputError: It is torn, or DVC 2 wrote it.
            UsageError: Its schema is not one that is read.
        """
        lock = read_lock(folder)
        return None if lock is None else cls.of(lock, folder)

    @classmethod
    def of(cls, lock: Lock, folder: Path, *, stages: Mapping[str, Any] | None = None) -> Graph:
        """That of a dvc.lock that lies, or lay, in a directory.

        Args:
            lock: The file.
            folder: Where it lies or lay.
            stages: What the dvc.yaml beside it says, or said; None reads the one that lies there now.
        """
        folder = Path(os.path.abspath(folder))
        told = read_pipeline(folder) if stages is None else stages
        nodes = []
        for stage in lock.stages():
            without = frozenset(out for out in stage.outs if uncached(stage.name, out.path, stages=told))
            nodes.append(Node(stage, stage_dir(folder, stage.name, stages=told), without))
        return cls(lock, tuple(nodes))

    @cached_property
    def _makers(self) -> dict[Path, tuple[Node, Out]]:
        """By the path of each output; where two claim one, the first."""
        found: dict[Path, tuple[Node, Out]] = {}
        for node in self.nodes:
            for out in node.stage.outs:
                found.setdefault(node.path(out), (node, out))
        return found

    def maker(self, path: Path) -> tuple[Node, Out] | None:
        """The stage that made a path, with the output that it is, or lies in; None where none did."""
        path = Path(os.path.abspath(path))
        return next((self._makers[place] for place in (path, *path.parents) if place in self._makers), None)


def folders_around(path: Path) -> Iterator[Path]:
    """The directories above a path, nearest first, up to the one that a DVC project starts at, or to the root."""
    for folder in Path(os.path.abspath(path)).parents:
        yield folder
        if (folder / DVC_DIR).is_dir():
            return
