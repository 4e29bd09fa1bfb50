"""grouping: a folder's files as records: those that share a stem are one, and what cannot be one is told.

Offenders are an empty file (nearly always a download that was lost), a name without an extension, a name that a sample
or a part cannot have or that a tar cannot hold, two files that are the same part, and keys that only case tells apart.
A record of which one file is an offender is left out whole: a sample that quietly lacks a part is worse than none.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from datakit.data.keys import NAME_BYTES, check_part
from datakit.data.shard import MAX_PART_BYTES, header
from datakit.errors import InputError, printable
from datakit.source.clashes import clashes
from datakit.source.files import Files, Kind
from datakit.source.naming import Naming
from datakit.source.records import KeyColumn, crowded, lacking
from datakit.source.troubles import FETCH_AGAIN, Raw, Trouble


class FoundFile(NamedTuple):
    """A file of a folder: its name below it, its bytes, and its version: a time of change in ns, or a hash of a tag."""

    name: str
    size: int
    stamp: int


class _Part(NamedTuple):
    """A file as a part of a record."""

    part: str
    suffix: str
    size: int
    stamp: int


_Groups = dict[str, list[_Part]]

_RENAME = "Rename it, or move it away"
_TWIN = "Remove one of the two"
_BARE = "has no extension, and so no name of a part"


def list_files(
    root: str,
    *,
    files: Iterable[FoundFile],
    naming: Naming | None = None,
    timed: bool = True,
    troubles: Sequence[Trouble] = (),
) -> Files:
    """The records of a folder, in the order of their keys; offenders are the table's troubles.

    Args:
        root: The folder.
        files: What lies in it.
        naming: How names are cut.
        timed: Whether their stamps are times of change of the files that will be read.
        troubles: What is known not to be readable; a record that such a file is of is left out.
    """
    naming = naming or Naming()
    told = [_keyed(trouble, naming) for trouble in troubles]
    unread = {trouble.key for trouble in told if trouble.key is not None}
    bad = unread.copy()
    groups = _grouped(files, root, naming, told, bad)
    for key in sorted(groups):
        groups[key].sort()
        if found := list(_problems(key, groups[key], naming)):
            told += found
            bad.add(key)
    good = [key for key in sorted(groups) if key not in bad]
    keys = KeyColumn.of(good)
    twins = clashes(keys)
    for clash in twins:
        where, earlier = (_name(key, groups[key][0], naming) for key in (clash.key, clash.earlier_key))
        told.append(clash.trouble(where=where, earlier=earlier, hint=_RENAME, raws=()))
    if twins:
        left_out = {clash.position for clash in twins}
        good = [key for position, key in enumerate(good) if position not in left_out]
        keys = KeyColumn.of(good)
    told = [_with_raws(trouble, groups, root if timed else None, naming, unread) for trouble in told]
    return _table(root, keys, [groups[key] for key in good], naming=naming, timed=timed, troubles=tuple(told))


def _keyed(trouble: Trouble, naming: Naming) -> Trouble:
    """It with the key of the record that its file is of; a folder, or a name without an extension, is of none."""
    key, suffix = ("", "") if trouble.file is None else naming.cut(trouble.file)
    return replace(trouble, key=key) if suffix else trouble


def _grouped(files: Iterable[FoundFile], root: str, naming: Naming, told: list[Trouble], bad: set[str]) -> _Groups:
    """The files by key; those that cannot be parts are told, and their keys are bad."""
    groups: _Groups = {}
    parts: dict[str, tuple[str, str | None]] = {}
    for name, size, stamp in files:
        key, suffix = naming.cut(name)
        known = parts.get(suffix)
        if known is None:
            part = suffix.lower()  # as every reader of such tars will
            known = parts[suffix] = part, _broken_rule(part)
        part, problem = known
        if not part:  # nobody's part: it takes no record with it
            told.append(Trouble(printable(name), _BARE, hint=_RENAME, raws=(Raw(name, f"{root}/{name}"),)))
            continue
        groups.setdefault(key, []).append(_Part(part, suffix, size, stamp))
        if problem is not None:
            told.append(Trouble(printable(name), problem, key=key, hint=_RENAME))
            bad.add(key)
        elif not size:
            told.append(Trouble(printable(name), "is empty", key=key, hint=FETCH_AGAIN))
            bad.add(key)
    return groups


def _broken_rule(part: str) -> str | None:
    try:
        check_part(part)
    except InputError as error:
        return error.message
    return None


def _problems(key: str, parts: Sequence[_Part], naming: Naming) -> Iterator[Trouble]:
    """Why files that share a stem are no record."""
    for one, other in itertools.pairwise(parts):
        if one.part == other.part:
            said = f"is the same part of sample {key} as {_name(key, one, naming)}"
            yield Trouble(_name(key, other, naming), said, key=key, hint=_TWIN)
    if (broken := naming.problem(key)) is not None:
        problem, hint = broken
        yield Trouble(_name(key, parts[0], naming), problem, key=key, hint=hint)
        return
    # bytes of UTF-8 are at most four a letter: most names are told by that alone
    if any(part.size > MAX_PART_BYTES or 4 * (len(key) + 1 + len(part.part)) > NAME_BYTES for part in parts):
        for part in parts:
            try:
                header(key, part.part, part.size)
            except InputError as error:
                yield Trouble(_name(key, part, naming), error.message, key=key, hint=error.hint)


def _name(key: str, part: _Part, naming: Naming) -> str:
    return printable(f"{naming.stem(key)}.{part.suffix}")


def _with_raws(
    trouble: Trouble, groups: Mapping[str, list[_Part]], root: str | None, naming: Naming, unread: Collection[str]
) -> Trouble:
    """It with all files of its record, where all can be copied; what is in a store stays there."""
    if root is None or trouble.key in unread:  # a copy without one of them would be packed as a record
        return replace(trouble, raws=())
    if trouble.key is None:
        return trouble
    names = [f"{naming.stem(trouble.key)}.{part.suffix}" for part in groups.get(trouble.key, ())]
    return replace(trouble, raws=tuple(Raw(name, f"{root}/{name}") for name in names))


def _table(
    root: str,
    keys: KeyColumn,
    groups: Sequence[Sequence[_Part]],
    *,
    naming: Naming,
    timed: bool,
    troubles: tuple[Trouble, ...],
) -> Files:
    numbers: dict[tuple[str, ...], int] = {}  # of a kind by its suffixes, from which its parts follow
    kinds: list[Kind] = []
    kind_of = np.zeros(len(groups), np.int32)
    for position, parts in enumerate(groups):
        suffixes = tuple([part.suffix for part in parts])
        number = numbers.get(suffixes)
        if number is None:
            number = numbers[suffixes] = len(kinds)
            kinds.append(Kind(tuple(part.part for part in parts), suffixes))
        kind_of[position] = number
    table = Files(
        root=root,
        naming=naming,
        timed=timed,
        keys=keys,
        kinds=tuple(kinds),
        kind_of=kind_of,
        firsts=np.cumsum([0, *map(len, groups)], dtype=np.int64),
        sizes=np.array([part.size for parts in groups for part in parts], np.int64),
        stamps=np.array([part.stamp for parts in groups for part in parts], np.uint64),
        troubles=troubles,
    )
    together = [kind.parts for kind in table.kinds]
    crowds = crowded(together, table.kind_of, keys, rule=naming.rule)
    return replace(table, remarks=(*lacking(together, table.kind_of, keys), *crowds))
