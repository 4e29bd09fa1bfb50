"""guard: is this the data that it is taken for? The look before a training, in a fraction of a second.

Asked of a dataset on this disk: are its files those of its manifest (names and sizes, bytes where wanted); is it what
dvc.lock, or a `.dvc` file, records; have dependencies or settings moved on since it was made, up to the raw files; is
it the one that a launch script expects. A finding refuses, names both values and the command that mends it. It may be
accepted, and then stands in the lineage.

Inside `dvc repro` the stage that runs is not compared with dvc.lock, which still holds its run before (DVC_STAGE names
it); the stages before it are. Shards are not hashed: their md5s are the manifest's. A dependency that is not here, as
on a rented node, or too large to be read in passing, is compared by what can be seen of it or not at all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.digest import mend_hint
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import DatakitError, Refused, UsageError
from datakit.events import Caution, OnEvent, ignore
from datakit.storage.commit import verify_commit
from datakit.storage.disk import at_door
from datakit.version.cache import listed
from datakit.version.dvc import LOCK_NAME, Out, Tree, read_dvc_file
from datakit.version.graph import Graph, Node, folders_around
from datakit.version.local import (
    LISTED_FILES,
    MISSING,
    committed_tree,
    glance,
    glance_tree,
    ignores,
    is_damaged,
    settings_now,
)
from datakit.version.project import DVC_DIR, FILE_SUFFIX, Project

ACCEPT = "stale"
"""The word that lets findings pass."""

SHORTEST_DIGEST = 8
"""Digits of an expected digest: 2**32 digests apart is far enough for accidents."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was when the data was made.

    Attributes:
        what: The path or setting.
        recorded: Its value then.
        found: Its value now.
        where: What records it.
        mend: The command that brings the two together.
        damaged: Whether the record has the same manifest and other bytes beside it: one of the two is of damaged bytes.
    """

    what: str
    recorded: str
    found: str
    where: str
    mend: str
    damaged: bool = False

    def __str__(self) -> str:
        more = ", beside the same manifest: one of the two is damaged" if self.damaged else ""
        return f"{self.what} is {self.found}, {self.where} says {self.recorded}{more}"


def guard(
    path: Path,
    manifest: Manifest,
    *,
    expect: str | None = None,
    read: bool = False,
    accept: Collection[str] = (),
    env: Mapping[str, str] | None = None,
    on_event: OnEvent = ignore,
) -> tuple[dict[str, Any], ...]:
    """Look at a dataset before it is used; gives what was found and accepted, as the lineage records it.

    Args:
        path: The dataset's directory.
        manifest: Its manifest.
        expect: The beginning of its content, layout or manifest digest, where the user gave one.
        read: Whether every byte is compared with the manifest.
        accept: `stale` lets findings pass.
        env: The environment; the process's own when None.
        on_event: Hears what was accepted, and what could not be looked at.

    Raises:
        IntegrityError: A file is not what the manifest says.
        Refused: It is not what was expected, or not what is recorded.
        NotAllowed: Something that is compared may not be read; accepting does not help.
        NotFound: A link in what is compared leads nowhere; likewise.
    """
    check_expected(manifest, expect)
    verify_commit(path, quick=not read)
    running = (os.environ if env is None else env).get("DVC_STAGE", "")
    found = find_stale(path, running=running, on_event=on_event)
    if found and ACCEPT not in accept:
        more = f" ({len(found) - 1} more: {', '.join(each.what for each in found[1:4])})" if found[1:] else ""
        raise Refused(
            f"{found[0]}{more}",
            hint=f"{found[0].mend}; or go on all the same with --accept {ACCEPT}",
            subject=str(path),
        )
    for each in found:
        on_event(Caution(f"going on although {each}"))
    return tuple({"what": f"{ACCEPT} {each.what}", "from": each.recorded, "to": each.found} for each in found)


def check_expected(manifest: Manifest, expect: str | None) -> None:
    """See that a dataset is the one that is expected.

    Args:
        manifest: The dataset's.
        expect: At least 8 hex digits of its content, layout or manifest digest; None expects nothing.

    Raises:
        UsageError: It is no digest.
        Refused: It is another's.
    """
    if expect is None:
        return
    if len(expect) < SHORTEST_DIGEST or not set(expect) <= set("0123456789abcdef"):
        hint = "Write 8 to 64 hex digits of a digest that datakit inspect shows"
        raise UsageError(f"--expect-data {expect} is not a digest", hint=hint, subject=expect)
    contents = manifest.contents
    digests = {"content": contents.content_digest, "layout": contents.layout_digest, "manifest": manifest.digest}
    if not any(digest.startswith(expect) for digest in digests.values()):
        told = ", ".join(f"{name} {digest[:12]}" for name, digest in digests.items())
        raise Refused(
            f"{manifest.name} has {told}; expected was {expect}",
            hint="Name the dataset that is meant, or what it has: --expect-data DIGEST",
            subject=manifest.name,
        )


def find_stale(path: Path, *, running: str = "", on_event: OnEvent = ignore) -> list[Finding]:
    """What dvc.lock and `.dvc` files around a dataset record otherwise than it is; nothing where there are none.

    Args:
        path: The dataset's directory.
        running: The DVC stage that runs now, as DVC_STAGE names it: `train`, or `sub/dvc.yaml:train`.
        on_event: Hears which files could not be compared.
    """
    found: list[Finding] = []
    absolute = Path(os.path.abspath(path))
    for folder in folders_around(path):
        try:
            graph = Graph.at(folder)
        except DatakitError as error:
            on_event(Caution(f"the data is not compared with {folder / LOCK_NAME}: {error.message}", hint=error.hint))
            continue
        if graph is not None:
            found += _Look(graph, running.rpartition(":")[2], on_event).dataset(absolute)
    for place in (absolute, *folders_around(path)):
        # what records the project itself, or the root of the disk, is no part of it
        if place.name and not (place / DVC_DIR).is_dir():
            file = place.with_name(place.name + FILE_SUFFIX)
            found += _against_file(file, place, absolute, on_event) if file.is_file() else []
    return found


def _against_file(file: Path, place: Path, dataset: Path, on_event: OnEvent) -> list[Finding]:
    with at_door(file):
        outs = read_dvc_file(file.read_bytes(), where=str(file))
    again = shlex.join(["datakit", "sync", str(place), "--to", str(file)])
    mend = f"Bring it back: dvc checkout {shlex.quote(str(file))}, or record what is here: {again}"
    here = [out for out in outs if Path(os.path.normpath(file.parent / out.path)) == place]
    findings = [
        _compare(out, place, dataset, where=str(file), mend=mend, again=again, on_event=on_event) for out in here
    ]
    return [dataclasses.replace(each, what=str(place)) for each in findings if each is not None]


def _compare(
    out: Out, place: Path, dataset: Path, *, where: str, mend: str, again: str, on_event: OnEvent
) -> Finding | None:
    """Compare the output that a dataset is, or lies in, with its record, in a fraction of a second.

    Where the dataset is a part of it (a split) and DVC's cache has the recorded list, that part alone is compared:
    another split is no matter. Without the list the whole output is, within the bounds of `glance`.
    """
    inside = dataset.relative_to(place).as_posix()
    project = Project.around(place)
    tree = _recorded(project, out)
    part = None if tree is None or place == dataset else glance_tree(dataset)
    if tree is not None and part is not None:
        below = tree.below(inside)
        if part == below:
            return None
        return _with_damage(Finding(f"{out.path}/{inside}", below.md5, part.md5, where, mend), below, dataset, again)
    if place.is_dir() != out.is_dir:
        return Finding(out.path, out.md5, "a directory" if place.is_dir() else "a file", where, mend)
    now = glance(place, out, most_files=None if place == dataset else LISTED_FILES)
    if now is None:
        message = f"{place} is not compared with {where}: its files are too many or too large to be read in passing"
        on_event(Caution(message, hint=f"Compare it by DVC: dvc status {shlex.quote(str(place))}"))
        return None
    if now == out.md5 or (_leaves_out(project, place) and committed_tree(place).md5 == out.md5):
        return None
    return _with_damage(Finding(out.path, out.md5, now, where, mend), tree, place, again)


def _recorded(project: Project | None, out: Out) -> Tree | None:
    """DVC's list of a recorded directory; None where its cache has none, as of an output that it does not keep."""
    return listed(project.cache_dir, out.md5) if project is not None and out.is_dir else None


def _with_damage(finding: Finding, recorded: Tree | None, place: Path, again: str) -> Finding:
    """A finding about a directory, and what to do where the record may be of damaged bytes.

    A stage that found damage in its output and left it there has recorded it. Then the record is not the truth, and
    DVC, which hashes what the manifest is believed for here, has nothing to do.

    Args:
        finding: What is known so far.
        recorded: DVC's list of the directory, or None.
        place: The directory.
        again: The command that records it anew.
    """
    if recorded is not None and is_damaged(recorded, committed_tree(place)):
        look = f"Look for damage: datakit verify {shlex.quote(str(place))}. {mend_hint(place)}; then {again}"
        return dataclasses.replace(finding, mend=look, damaged=True)
    if recorded is None and (place / MANIFEST_NAME).is_file():
        look = f"{finding.mend}; if DVC has nothing to do, look for damage: datakit verify {shlex.quote(str(place))}"
        return dataclasses.replace(finding, mend=look)
    return finding


def _leaves_out(project: Project | None, place: Path) -> bool:
    """Whether DVC's record may lack files that lie here: a `.dvcignore`, whose patterns are not read, may name them."""
    return project is not None and place.is_dir() and ignores(project.root, place)


class _Look:
    """One dvc.lock, followed upwards from a dataset."""

    def __init__(self, graph: Graph, running: str, on_event: OnEvent) -> None:
        self._graph = graph
        self._on_event = on_event
        self._running = running
        self._seen: set[str] = set()
        self._found: list[Finding] = []

    def dataset(self, path: Path) -> list[Finding]:
        made = self._graph.maker(path)
        if made is None or made[0].name == self._running:
            return []
        node, out = made
        where = f"{self._graph.lock.where} ({node.name})"
        place = node.path(out)
        again = f"dvc repro {node.name}"
        mend = f"Run {again}"
        if out not in node.uncached:  # of the others DVC has no copy, and its checkout says nothing and does nothing
            mend += f", or bring the recorded one back: dvc checkout {shlex.quote(out.path)}"
        finding = _compare(out, place, path, where=where, mend=mend, again=again, on_event=self._on_event)
        if finding is not None:
            self._found.append(finding)
        self._upwards(node, mend=f"Run dvc repro {node.name}")
        return self._found

    def _upwards(self, node: Node, *, mend: str) -> None:
        """Compare what a stage was made from with what is there now, then the stages that made that."""
        if node.name in self._seen or node.name == self._running:
            return
        self._seen.add(node.name)
        where = f"{self._graph.lock.where} ({node.name})"
        for file, values in node.stage.params.items():
            now = settings_now(node.base / file, values) or {}
            self._found += [
                Finding(f"{file} {name}", _words(values[name]), _words(value), where, mend)
                for name, value in now.items()
                if value != values[name]
            ]
        for dep in node.stage.deps:
            path = node.path(dep)
            made = self._graph.maker(path)
            now_md5 = None
            if made is not None and made[0].path(made[1]) == path and made[0].name != self._running:
                now_md5 = made[1].md5
            if now_md5 in (None, dep.md5):
                now_md5 = glance(path, dep)
            if now_md5 not in (None, dep.md5):
                finding = Finding(dep.path, dep.md5, str(now_md5), where, mend)
                recorded = _recorded(Project.around(path), dep)
                self._found.append(_with_damage(finding, recorded, path, f"dvc repro {node.name}"))
            if made is not None:
                self._upwards(made[0], mend=mend)


def _words(value: Any) -> str:
    return "not set" if value is MISSING else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
