"""origins: the chain from an adapter down to the raw files, where a dvc.lock tells how its data came to be.

A lineage ends at the dataset that it names. A dvc.lock knows the stages behind that; which of its outputs the dataset
is, is told by DVC's address of it, so that neither names nor places have to fit. Each file and directory of the chain
is shown with the md5 that is recorded, and whether what lies there now is that one. Nothing large is hashed for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError
from datakit.storage.commit import read_manifest
from datakit.storage.disk import at_door
from datakit.version.cache import listed
from datakit.version.dvc import Out
from datakit.version.graph import Graph, Node, folders_around
from datakit.version.lineage import Link, chain
from datakit.version.local import glance, glance_tree
from datakit.version.project import Project

FIRST_FILES = 5
"""Raw files that are named; their number is told."""


def trace(path: Path | str) -> Link:
    """Where something came from, down to the raw files as far as a dvc.lock around it, or around us, tells.

    Raises:
        NotFound: Nothing is there, or nothing that has a lineage.
        InputError: A file that should tell is not JSON.
    """
    link = chain(path)
    graphs = [graph for place in (Path(path), Path.cwd() / "here") for graph in _graphs(place)]
    for follow in (_continued, _renewed):
        for graph in graphs:
            found = follow(link, graph)
            if found != link:
                return found
    return link


def _graphs(place: Path) -> Iterator[Graph]:
    for folder in folders_around(place):
        try:
            graph = Graph.at(folder)
        except DatakitError:
            continue  # the guard says it before a training; what was made is told without it
        if graph is not None:
            yield graph


def _continued(link: Link, graph: Graph) -> Link:
    """A chain whose dataset is followed into the stages that made it; the very same where none did."""
    if link.kind == "dataset" and (md5 := link.facts.get("md5")) is not None:
        nodes = [node for node, address in _made(graph) if address == md5]
        # a copy (published, staged in) has the address of what it was copied from: the longest chain holds the others
        stages = [_stage_link(graph, node, set()) for node in nodes]
        if stages:
            return dataclasses.replace(link, made_from=(*link.made_from, max(stages, key=_depth)))
        return link
    return dataclasses.replace(link, made_from=tuple(_continued(each, graph) for each in link.made_from))


def _renewed(link: Link, graph: Graph) -> Link:
    """A chain that ends at a dataset in whose places dvc.lock records other data now, with these places."""
    if link.kind != "dataset" or "md5" not in link.facts:
        return dataclasses.replace(link, made_from=tuple(_renewed(each, graph) for each in link.made_from))
    outs = [(node, out) for node in graph.nodes for out in node.stage.outs if out.is_dir]
    places = [f"{out.path} of stage {node.name}" for node, out in outs if _replaced(node.path(out), out, link.name)]
    if not places:
        return link
    facts = {**link.facts, "here": f"another: {graph.lock.where} records other data now for {', '.join(places)}"}
    return dataclasses.replace(link, facts=facts)


def _replaced(path: Path, out: Out, name: str) -> bool:
    """Whether a stage's output is a dataset of this name, or holds one and it is known which; both have other bytes."""
    held = {folder: _name_of(folder) for folder in (path, *(each.parent for each in path.glob(f"*/{MANIFEST_NAME}")))}
    if held[path] is not None or not path.exists():
        return name == (held[path] or path.name)
    return name in held.values() and bool(_inside(path, out))


def _name_of(folder: Path) -> str | None:
    try:
        return read_manifest(folder).name
    except DatakitError:
        return None  # not here, or not whole


def _made(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Every directory that a stage made, with its address; the commits in one, too, where it lies here."""
    for node in graph.nodes:
        for out in node.stage.outs:
            yield node, out.md5
            if out.is_dir:
                yield from ((node, md5) for md5 in _inside(node.path(out), out))


def _inside(path: Path, out: Out) -> list[str]:
    project = Project.around(path)
    try:
        tree = None if project is None else listed(project.cache_dir, out.md5)
        if tree is None and any(path.glob(f"*/{MANIFEST_NAME}")):
            tree = glance_tree(path)
    except DatakitError:
        return []
    if tree is None or tree.md5 != out.md5:
        return []
    folders = {name.partition("/")[0] for name in tree.members if name.count("/") == 1 and name.endswith(MANIFEST_NAME)}
    return [tree.below(folder).md5 for folder in sorted(folders)]


def _depth(link: Link) -> int:
    return 1 + max(map(_depth, link.made_from), default=0)


def _stage_link(graph: Graph, node: Node, told: set[str]) -> Link:
    """A stage with what is behind it; each stage is told once, where it is met first (and a circle ends)."""
    told.add(node.name)
    facts: dict[str, Any] = {"recorded in": graph.lock.where}
    if node.stage.params:
        facts["params"] = {file: dict(values) for file, values in node.stage.params.items()}
    return Link("stage", node.name, None, facts, tuple(_dep_link(graph, node, dep, told) for dep in node.stage.deps))


def _dep_link(graph: Graph, node: Node, dep: Out, told: set[str]) -> Link:
    path = node.path(dep)
    now = glance(path, dep)
    facts: dict[str, Any] = {} if dep.size is None else {"bytes": dep.size}
    facts["here"] = (
        "as recorded" if now == dep.md5 else "no" if not path.exists() else "not read" if now is None else "another"
    )
    if now == dep.md5 and not dep.is_dir:
        facts |= _listing(path)
    made = graph.maker(path)
    behind: tuple[Link, ...] = ()
    if made is not None and made[0].name in told:
        facts["made by"] = f"stage {made[0].name}, told above"
    elif made is not None:
        behind = (_stage_link(graph, made[0], told),)
    return Link("directory" if dep.is_dir else "file", dep.path, dep.md5, facts, behind)


def _listing(path: Path) -> dict[str, Any]:
    """What a listing of raw files says (`data/source.json` of the pipeline); nothing for other files."""
    if path.suffix != ".json":
        return {}
    with at_door(path):
        data = path.read_bytes()
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    files = value.get("files") if isinstance(value, Mapping) else None
    if not isinstance(files, list) or not all(isinstance(each, Mapping) and "fingerprint" in each for each in files):
        return {}
    names = [str(each.get("name")) for each in files[:FIRST_FILES]]
    more = [f"... {len(files) - FIRST_FILES} more"] if len(files) > FIRST_FILES else []
    sizes = [each.get("bytes") for each in files]
    total = sum(size for size in sizes if isinstance(size, int))
    return {"raw files": len(files), "raw bytes": total, "first of them": [*names, *more]}
