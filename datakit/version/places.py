"""places: what a person may name as data: a directory, a URL, a version, a revision, or what was trained on it.

Each becomes a description (name, digests, settings) and, where the samples can be looked at, a view of them. What an
adapter was trained on is known by its lineage; its samples are looked for where they may still lie: beside the other
place, where the run read them, in DVC's cache and remote. Where they are nowhere, the description is left.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datakit.data.digest import damaged
from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import DatakitError, InputError, NotFound, UsageError
from datakit.storage.absent import held_below, not_there
from datakit.storage.access import StoreOptions
from datakit.storage.moves import SyncSettings, patient
from datakit.storage.newest import newest
from datakit.storage.store import Location
from datakit.storage.view import View, open_view
from datakit.version.dvc import LOCK_NAME, Out
from datakit.version.graph import Graph
from datakit.version.lineage import LINEAGE_NAME, RUN_NAME, data_lineage, parse_lineage, read_run
from datakit.version.project import Pointer, Project
from datakit.version.revision import Revision
from datakit.version.tree import TreeStore, open_tree, places_of

DATA_PATH = "data_path"
"""Under which run.json says where a run read its data."""


@dataclass(frozen=True)
class Named:
    """Data that a person named.

    Attributes:
        text: As they wrote it.
        data: What a lineage says of it: name, digests, samples, tokens, settings.
        trained: The adapter or checkpoint whose data it is, or None.
        view: Its samples, or None where they lie nowhere that is known.
        missed: Why they could not be looked at, one sentence for each place that was asked.
    """

    text: str
    data: Mapping[str, Any]
    trained: str | None = None
    view: View | None = field(default=None, repr=False)
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolver:
    """Finds what is named.

    Attributes:
        remote: DVC remote, by name or URL; the project's default when None.
        stores: Named stores of the settings.
    """

    remote: str | None = None
    stores: Mapping[str, StoreOptions] | None = None

    def find(self, text: str, *, beside: str | None = None) -> Named:
        """What is named.

        Args:
            text: A directory, URL, version (`dvc.lock:STAGE[:OUT]`, `FILE.dvc`) or revision (`REV:PATH`).
            beside: What else is named; a `dvc.lock` without a stage is the one that made it.

        Raises:
            NotFound: It is not there.
            UsageError: The words cannot be understood.
            InputError: It is neither data nor made from data.
        """
        revision = Revision.parse(text)
        if revision is not None:
            pointer, data = revision.follow()
            return self._opened(
                text, open_tree(pointer, remote=self.remote, stores=self.stores, data=data, cache=True, called=text)
            )
        if Path(text).name == LOCK_NAME and "://" not in text:
            return self._pointed(text, _maker(Path(text), beside))
        pointer_here = Pointer.parse(text)
        if pointer_here is not None:
            return self._pointed(text, pointer_here)
        return self._opened(text, _trained_dir(text))

    def samples(self, named: Named, other: Named) -> Named:
        """The same, with a view of its samples if they lie anywhere."""
        if named.view is not None:
            return named
        candidates: tuple[Callable[[Named], View | None], ...] = (
            lambda _: other.view,
            self._read_from,
            self._from_dvc,
        )
        missed = []
        for candidate in candidates:
            try:
                view = candidate(named)
            except DatakitError as error:
                # damaged, forbidden or not to be reached: the digests still tell, and the reason is kept
                missed.append(error.message)
                continue
            if view is not None and view.manifest.digest == named.data["manifest_digest"]:
                return Named(named.text, named.data, named.trained, view)
        return replace(named, missed=tuple(missed))

    def _pointed(self, text: str, pointer: Pointer) -> Named:
        return self._opened(text, open_tree(pointer, remote=self.remote, stores=self.stores, cache=True))

    def _opened(self, text: str, place: str | Path | Location) -> Named:
        try:
            view = open_view(place, stores=self.stores)
        except NotFound as error:
            hint = _splits(place)
            if hint is None:
                raise
            raise NotFound(error.message, hint=hint, subject=error.subject) from error
        manifest = view.manifest
        if manifest.kind == "dataset":
            return Named(text, data_lineage(manifest), view=view)
        if manifest.kind == "model":
            hint = "Name a dataset, or an adapter, checkpoint or run"
            raise InputError(f"{text} is a model, which is made from no dataset of ours", hint=hint, subject=text)
        where = f"{view.where}/{LINEAGE_NAME}"
        data = patient(view.location, SyncSettings()).fetch(view.location.key(LINEAGE_NAME)).data
        problem = manifest.member(LINEAGE_NAME).difference(data)
        if problem is not None:
            raise damaged(f"{where} {problem}", where)
        lineage = parse_lineage(data, where=where)
        return Named(text, lineage["data"], trained=f"{manifest.kind} {manifest.name}")

    def _read_from(self, named: Named) -> View | None:
        """Where the run read it, if the run lies around what was named."""
        for folder in (Path(named.text), *Path(named.text).absolute().parents[:2]):
            path = read_run(folder).get(DATA_PATH)
            if isinstance(path, str):
                return open_view(path, stores=self.stores)
        return None

    def _from_dvc(self, named: Named) -> View | None:
        """From DVC's cache or remote, by the address that follows from its manifest."""
        md5 = named.data.get("md5")
        start = Path(named.text) if Path(named.text).exists() else Path()
        project = Project.around(start) or Project.around(Path())
        if not isinstance(md5, str) or project is None:
            return None
        places = places_of(project, remote=self.remote, stores=self.stores)
        store = TreeStore(f"the data of {named.text}", Out(str(named.data["name"]), md5), places=places)
        return open_view(Location(store), stores=self.stores)


def _splits(place: str | Path | Location) -> str | None:
    """What to say of datasets that lie right below a version; of other places their own error tells."""
    if not isinstance(place, Location) or not isinstance(place.store, TreeStore):
        return None
    members = place.store.tree.below(place.prefix).members
    names = [name for name in members if name.count("/") == 1 and name.endswith(f"/{MANIFEST_NAME}")]
    top = place.url if place.url.endswith(place.store.path) else f"{place.url}:{place.store.path}"
    return held_below(top, [name.partition("/")[0] for name in sorted(names)])


def _maker(lock: Path, beside: str | None) -> Pointer:
    """The stage of a dvc.lock that made another path."""
    graph = Graph.at(lock.parent)
    if graph is None:
        raise not_there(lock)
    made = graph.maker(Path(beside)) if beside and "://" not in beside else None
    if made is None or beside is None:
        hint = f"Name the stage: {shlex.quote(f'{lock}:STAGE')}"
        raise UsageError(f"no stage of {lock} made {beside}", hint=hint, subject=str(lock))
    node, out = made
    below = Path(beside).absolute().relative_to(node.path(out)).as_posix()
    return Pointer(lock, node.name, out.path if below == "." else f"{out.path}/{below}")


def _trained_dir(text: str) -> str | Path:
    """A run's adapter, or else its newest checkpoint; anything else as it is named."""
    path = Path(text)
    if "://" in text or not (path / RUN_NAME).is_file():
        return text
    if (path / "adapter").is_dir():
        return path / "adapter"
    found = newest(path / "checkpoints").path
    if found is None:
        hint = "Name one of its checkpoints, or wait for the first"
        raise NotFound(f"{path} has no adapter and no checkpoint yet", hint=hint, subject=text)
    return found
