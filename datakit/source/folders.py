"""folders: a folder's files as a table of records, listed in stretches side by side.

Stretches are cut where no stem can go on, by names alone, so that the table is the same however many processes look at
the files. What one stretch cannot see is seen here: keys that only case tells apart, and records that lack a part which
most have.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from datakit.errors import printable
from datakit.source.clashes import Clash, clashes
from datakit.source.columns import IN_MEMORY
from datakit.source.files import Files, Kind
from datakit.source.grouping import RENAME, FoundFile, Group, Stretch, keyed, list_stretch, raws_of
from datakit.source.naming import Naming
from datakit.source.parts import crowded, lacking
from datakit.source.records import KeyColumn, Keys, Run, here
from datakit.source.trees import Folder
from datakit.source.troubles import Trouble

STRETCH_FILES = 2**12
"""Files that one task looks at, or a few more: some hundredths of a second."""


def list_files(
    root: str,
    *,
    files: Iterable[FoundFile],
    folders: Sequence[Folder] = (),
    naming: Naming | None = None,
    timed: bool = True,
    troubles: Sequence[Trouble] = (),
    run: Run = here,
) -> Files:
    """The records of a folder, in the order of their keys; offenders are the table's troubles.

    Args:
        root: The folder.
        files: What lies in it.
        folders: What else does, and is still to be looked at.
        naming: How names are cut.
        timed: Whether their stamps are times of change of the files that will be read.
        troubles: What is known not to be readable; a record that such a file is of is left out.
        run: What runs the tasks.

    Raises:
        InputError: A file that was to be looked at is not there any more.
        NotAllowed: The way to one is closed.
    """
    naming = naming or Naming()
    told = [keyed(trouble, naming) for trouble in troubles]
    tasks = stretches(root, files, folders, naming=naming, timed=timed, unread=told)
    groups = list(run(list_stretch, tasks))
    table = _joined(groups, root, naming=naming, timed=timed)
    if closed := [trouble for group in groups for trouble in group.closed]:
        told = sorted([*told, *closed], key=lambda trouble: trouble.where)
    if not timed:
        told = [replace(trouble, raws=()) for trouble in told]
    told += _in_order(group.of_files for group in groups)
    told += _in_order(group.of_keys for group in groups)
    if twins := clashes(table.keys):
        told += [_trouble(clash, table) for clash in twins]
        left_out = [clash.position for clash in twins]
        table = table.chosen(np.delete(np.arange(len(table.keys)), left_out))
    parts = [kind.parts for kind in table.kinds]
    crowds = crowded(parts, table.kind_of, table.keys, rule=naming.rule)
    remarks = (*lacking(parts, table.kind_of, table.keys), *crowds)
    return replace(table, troubles=tuple(told), remarks=remarks)


@dataclass(slots=True)
class _Place:
    """What lies in one folder."""

    names: list[str] = field(default_factory=list)
    known: list[FoundFile] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)


def stretches(
    root: str,
    files: Iterable[FoundFile],
    folders: Iterable[Folder],
    *,
    naming: Naming,
    timed: bool = True,
    unread: Iterable[Trouble] = (),
) -> list[Stretch]:
    """The tasks that list a folder: large folders in pieces, small ones together.

    Args:
        root: The source.
        files: Files that were looked at.
        folders: Files that were not.
        naming: How names are cut.
        timed: As in `list_files`.
        unread: What is known not to be readable, with the keys of the records.
    """
    places: defaultdict[str, _Place] = defaultdict(_Place)
    for folder in folders:
        places[folder.path].names += folder.names
    for file in files:
        places[file.name[: file.name.rfind("/") + 1]].known.append(file)
    for trouble in unread:
        if trouble.file is not None and trouble.key is not None:
            places[trouble.file[: trouble.file.rfind("/") + 1]].unread.add(trouble.key)
    tasks: list[Stretch] = []
    held: list[tuple[Folder, _Place]] = []
    count = 0
    for path in sorted(places):
        for piece in _cut(path, places[path]):
            held.append((Folder(path, piece.names), piece))
            count += len(piece.names) + len(piece.known)
            if count >= STRETCH_FILES:
                tasks.append(_stretch(root, held, naming, timed=timed))
                held, count = [], 0
    return [*tasks, _stretch(root, held, naming, timed=timed)] if held else tasks


def _stretch(root: str, held: Sequence[tuple[Folder, _Place]], naming: Naming, *, timed: bool) -> Stretch:
    return Stretch(
        root=root,
        folders=tuple(folder for folder, _ in held if folder.names),
        known=tuple(file for _, place in held for file in place.known),
        naming=naming,
        timed=timed,
        unread=frozenset(key for _, place in held for key in place.unread),
    )


def _cut(path: str, place: _Place) -> Iterator[_Place]:
    """A folder's files in pieces; names that share what stands before their first dot stay together."""
    if len(place.names) + len(place.known) <= STRETCH_FILES:
        yield place
        return
    found: list[tuple[str, FoundFile | None]] = [(name, None) for name in place.names]
    found += [(file.name[len(path) :], file) for file in place.known]
    found.sort(key=itemgetter(0))
    piece = _Place(unread=place.unread)
    for _, its in itertools.groupby(found, key=lambda one: _head(one[0])):
        if len(piece.names) + len(piece.known) >= STRETCH_FILES:
            yield piece
            piece = _Place(unread=place.unread)
        for name, file in its:
            if file is None:
                piece.names.append(name)
            else:
                piece.known.append(file)
    yield piece


def _head(name: str) -> str:
    """A name up to its first dot, before which no rule cuts; sorted names that share it stand side by side."""
    return name[: name.find(".") + 1] or name


def _joined(groups: Sequence[Group], root: str, *, naming: Naming, timed: bool) -> Files:
    """The records of all stretches, in the order of their keys."""
    numbers: dict[tuple[str, ...], int] = {}
    its = [np.array([numbers.setdefault(kind, len(numbers)) for kind in group.kinds], np.int32) for group in groups]
    kinds = [Kind(tuple(suffix.lower() for suffix in suffixes), suffixes) for suffixes in numbers]
    nothing = Group(KeyColumn.of([]), [], np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.uint64), 0, [])
    whole = [nothing, *groups]
    kind_of = np.concatenate([nothing.kind_of, *(its[n][group.kind_of] for n, group in enumerate(groups))])
    num_parts = np.array([len(kind.parts) for kind in kinds], np.int64)[kind_of]
    all_keys = Keys(IN_MEMORY)
    for group in groups:
        all_keys.append(group.keys)
    table = Files(
        root=root,
        naming=naming,
        timed=timed,
        keys=all_keys.done(),
        kinds=tuple(kinds),
        kind_of=kind_of,
        firsts=np.concatenate([np.zeros(1, np.int64), np.cumsum(num_parts)]),
        sizes=np.concatenate([group.sizes for group in whole]),
        stamps=np.concatenate([group.stamps for group in whole]),
        listed_bytes=sum(group.listed_bytes for group in groups),
    )
    keys = list(table.keys)
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    return table if (order[1:] > order[:-1]).all() else table.chosen(order)


def _in_order(told: Iterable[Sequence[tuple[str, Trouble]]]) -> list[Trouble]:
    """Offenders of all stretches, by names or by keys."""
    return [trouble for _, trouble in sorted(itertools.chain.from_iterable(told), key=itemgetter(0))]


def _trouble(clash: Clash, table: Files) -> Trouble:
    """A record that another's key leaves no room for, with all its files."""
    stems = [table.naming.stem(key) for key in (clash.key, clash.earlier_key)]
    mine, its = (table.kinds[int(table.kind_of[position])].suffixes for position in (clash.position, clash.earlier))
    return clash.trouble(
        where=printable(f"{stems[0]}.{mine[0]}"),
        earlier=printable(f"{stems[1]}.{its[0]}"),
        hint=RENAME,
        raws=raws_of(table.root, stems[0], mine) if table.timed else (),
    )
