"""tars: the samples of tars as a table, whoever wrote them.

A tar with an index of ours beside it is taken as its index says: keys, parts, digests, bundled lines too, if the index
is of this tar (see `vouching`), also where the tar was compressed since. Else that is said, and the tar read like any
other, header by header (see `data/archive`), its names cut by the same rule as those of files. Steps that lead nowhere
(`./a.jpg`, as `tar cf x.tar .` writes it) are no part of a key; folders and hidden names are left out; links, devices,
sparse members and names that lead up are offenders, as is everything that a folder of files could not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import PurePosixPath

import numpy as np

from datakit.data.archive import entries
from datakit.data.digest import FileEntry
from datakit.data.index import Index, index_name
from datakit.data.keys import check_key, check_part
from datakit.data.rows import DIGEST_BYTES
from datakit.data.shard import BLOCK_BYTES, LINE_PART, Row, header
from datakit.data.stems import escaped
from datakit.errors import InputError, IntegrityError, printable
from datakit.events import Caution
from datakit.source.folders import list_files
from datakit.source.grouping import FoundFile
from datakit.source.kinds import plain_name
from datakit.source.members import Holder, Members, Piece, Said
from datakit.source.naming import Naming
from datakit.source.originals import PLACES_BYTES, reading
from datakit.source.parts import crowded
from datakit.source.records import KeyColumn
from datakit.source.spans import LineFile
from datakit.source.trees import SourceFile
from datakit.source.troubles import FETCH_AGAIN, Trouble
from datakit.source.vouching import BRING, NamedIn, difference, index_at, reader
from datakit.storage import disk

_FETCH_BOTH = "Fetch both again; or, to pack each bundle as one sample, move the index away"

_RENAME = (
    "Write what a key may not hold as %XX (--escape percent), or rename it in its tar and index that again "
    "(datakit reindex FOLDER)"
)


@dataclass(frozen=True, slots=True)
class TarTask:
    """A task: a tar, and what is said of it.

    Attributes:
        file: A plain tar on a local disk.
        source: What it was laid down from.
        index: Where its index would be.
        said: What a manifest says of it; None where none names it.
        said_index: The same of its index.
        bundled: Whether that manifest says that lines share members.
        naming: How names are cut.
    """

    file: LineFile
    source: SourceFile
    index: str
    said: FileEntry | None
    said_index: FileEntry | None
    bundled: bool
    naming: Naming


def list_tar(task: TarTask) -> Piece:
    """The samples of a tar.

    Raises:
        InputError: It is damaged, or not whole.
        IntegrityError, UsageError: The index beside it is damaged, or of a newer datakit.
    """
    with disk.at_door(task.file.path), reading(task.file.path, version=task.file.version):
        holder = Holder.at(task.file.name, task.file.path, exact=False)
        holder = holder._replace(source_ns=task.source.changed_ns or 0)
        beside = _look_beside(task, holder)
        if beside.index is not None:
            return _indexed(_vouched(holder, task), beside, task.naming)
        if beside.why is not None and beside.bundled:
            problem = f"only an index tells its bundled lines apart, and {beside.why}"
            return _left_out(holder, Trouble(holder.name, problem, hint=BRING if task.bundled else _FETCH_BOTH))
        piece = _foreign(holder, task.source, task.naming)
    if beside.why is None:
        return piece
    said = Caution(f"{beside.why}; so the tar itself was read", hint="If that is not meant, fetch both again")
    return replace(piece, remarks=(*piece.remarks, said))


def _vouched(holder: Holder, task: TarTask) -> Holder:
    """A tar whose index is believed, with what tells this version of it.

    That is its size and the time of its bytes, which a copy keeps (`cp -a`, `rsync -a`): each machine that packs a part
    may have its own. The time of its inode is changed by a hard link, as DVC and we make of shards.
    """
    if task.file.version is None:  # a copy
        return holder._replace(exact=True, version=f"{task.source.bytes} {task.source.stamp}\n".encode())
    status = os.stat(holder.path)
    version = f"{status.st_size} {status.st_mtime_ns}\n".encode()
    return holder._replace(exact=True, source_ns=status.st_mtime_ns, version=version)


@dataclass(frozen=True, slots=True)
class _Beside:
    """The index that says what is in a tar, and the hidden names that it leaves out; without one, why that is told.

    Lines share members where a manifest says so, or an index, be it of another version of the tar.
    """

    index: Index | None = None
    hidden: tuple[str, ...] = ()
    why: str | None = None
    bundled: bool = False


def _look_beside(task: TarTask, holder: Holder) -> _Beside:
    if not os.path.isfile(task.index):
        why = f"{holder.name} has no index beside it, which its manifest names"
        return _Beside(why=None if task.said_index is None else why, bundled=task.bundled)
    bundled = task.bundled
    if task.said is not None and task.said.bytes != holder.size:
        other = f"the manifest gives it {task.said.bytes} bytes, and it has {holder.size}"
    else:
        index, hidden = index_at(task.index, task.said_index), list[str]()
        if (found := difference(index, holder.path, holder.size, hidden=hidden)) is None:
            return _Beside(index, tuple(f"{holder.name}/{name}" for name in hidden))
        other, bundled = found, bundled or _tells_lines(index)
    return _Beside(why=f"the index beside {holder.name} is not of this tar: {other}", bundled=bundled)


def _tells_lines(index: Index) -> bool:
    """Whether lines share members, by an index alone: what a member holds begins at a block, which they do not all."""
    return LINE_PART in index.parts and bool((index.offsets(LINE_PART) % BLOCK_BYTES).any())


def tar_tasks(
    tars: Sequence[tuple[LineFile, SourceFile]], *, root: str, named: NamedIn, naming: Naming
) -> list[TarTask]:
    """The tasks that list tars, in the order in which their records come.

    That is the order of a manifest that names them: names of shards are digests, so by those an edited record would
    move a whole shard. Tars that no manifest names come after them, by name.

    Args:
        tars: Each in plain form, and as it was listed.
        root: The folder of the source, in which an index of ours may lie beside each.
        named: What the manifest of a folder below it names.
        naming: How names are cut.
    """
    folders = {folder for file, _ in tars for folder in PurePosixPath(file.name).parents}
    ranks: dict[str, int] = {}
    for folder in sorted(folders, key=lambda folder: (len(folder.parts), str(folder))):
        for name in named(folder).entries:
            ranks.setdefault(str(folder / name), len(ranks))
    tasks = []
    for file, source in sorted(tars, key=lambda tar: (ranks.get(plain_name(tar[0].name), len(ranks)), tar[0].name)):
        said = said_index = None
        bundled, plain = False, PurePosixPath(plain_name(file.name))
        for folder in plain.parents:
            name, its = str(plain.relative_to(folder)), named(folder)
            said, said_index = its.entries.get(name, said), its.entries.get(index_name(name), said_index)
            bundled |= its.bundled and name in its.entries
        index = os.path.join(root, index_name(str(plain)))
        tasks.append(TarTask(file, source, index, said, said_index, bundled, naming))
    return tasks


def crowded_tars(table: Members, naming: Naming) -> list[Caution]:
    """What to say where a key has taken in many files of a tar whose names were cut; an index says its keys itself."""
    cut = ~np.array([holder.exact for holder in table.holders], np.bool_)
    return crowded(table.kinds, table.kind_of, table.keys, rule=naming.rule, cut=cut[table.holder_of])


def _left_out(holder: Holder, trouble: Trouble) -> Piece:
    """A tar of which nothing is taken."""
    none, empty = np.zeros(0, np.int64), KeyColumn.of(())
    digests = np.zeros((0, DIGEST_BYTES), np.uint8)
    return Piece(holder, empty, (), none.astype(np.int32), none, none, digests, none, troubles=(trouble,))


def _indexed(holder: Holder, beside: _Beside, naming: Naming) -> Piece:
    assert beside.index is not None
    kinds: dict[tuple[str, ...], int] = {}
    keys, kind_of, offsets, sizes, digests, numbers = [], [], [], [], bytearray(), []
    troubles, tokens, sources = [], [], []
    for number, row in enumerate(beside.index.rows(), start=1):
        if "./" in row.key:
            row = replace(row, key="/".join(_steps(row.key)))
        if naming.escape == "percent" and naming.problem(row.key):  # a key of ours may have been escaped before
            row = replace(row, key=escaped(row.key))
        names = tuple(sorted(row.parts))
        if (broken := _no_name(row, names)) is not None:
            troubles.append(Trouble(f"{holder.name}:{number}", broken, key=row.key, hint=_RENAME))
            continue
        if (bare := next((name for name in names if not row.parts[name].size), None)) is not None:
            said = f"part {bare} of sample {row.key} is empty"
            troubles.append(Trouble(f"{holder.name}:{number}", said, key=row.key, hint=FETCH_AGAIN))
            continue
        keys.append(row.key)
        numbers.append(number)
        tokens.append(row.tokens)
        sources.append(row.source)
        kind_of.append(kinds.setdefault(names, len(kinds)))
        offsets += [row.parts[name].offset for name in names]
        sizes += [row.parts[name].size for name in names]
        digests += row.digest
    return Piece(
        holder=holder,
        keys=KeyColumn.of(keys),
        kinds=tuple(kinds),
        kind_of=np.array(kind_of, np.int32),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        signatures=np.frombuffer(bytes(digests), np.uint8).reshape(-1, DIGEST_BYTES),
        rows=np.array(numbers, np.int64),
        troubles=tuple(troubles),
        said=_said(tokens, sources),
        hidden=beside.hidden,
    )


def _said(tokens: Sequence[int | None], sources: Sequence[str | None]) -> Said | None:
    if not any(one is not None for one in (*tokens, *sources)):
        return None
    return Said(np.array(tokens, np.object_), np.array(sources, np.object_))


def _no_name(row: Row, names: tuple[str, ...]) -> str | None:
    """Why a sample cannot stand in a tar of ours; an index may be of a tar that holds longer and freer names."""
    try:
        check_key(row.key)
        for name in names:
            check_part(name)
            header(row.key, name, row.parts[name].size)
    except InputError as error:
        return error.message
    return None


def _foreign(holder: Holder, source: SourceFile, naming: Naming) -> Piece:
    told: list[Trouble] = []
    hidden: list[str] = []
    found = list(_files(holder, told, hidden))
    table = list_files(holder.name, files=found, naming=naming, timed=False, troubles=told)
    stamp = f"{holder.name}\0{source.bytes} {source.stamp}\0".encode()
    signatures = bytearray()
    offsets, sizes = table.stamps.astype(np.int64), table.sizes
    for first, last in zip(table.firsts[:-1].tolist(), table.firsts[1:].tolist(), strict=True):
        digest = blake2b(stamp, digest_size=DIGEST_BYTES)
        digest.update(offsets[first:last].tobytes() + sizes[first:last].tobytes())
        signatures += digest.digest()
    return Piece(
        holder=holder,
        keys=table.keys,
        kinds=tuple(kind.parts for kind in table.kinds),
        kind_of=table.kind_of,
        offsets=offsets,
        sizes=sizes,
        signatures=np.frombuffer(bytes(signatures), np.uint8).reshape(-1, DIGEST_BYTES),
        rows=np.arange(1, len(table.keys) + 1),
        hidden=tuple(hidden),
        troubles=tuple(replace(trouble, where=f"{holder.name}/{trouble.where}", raws=()) for trouble in table.troubles),
    )


def _files(holder: Holder, told: list[Trouble], hidden: list[str]) -> Iterator[FoundFile]:
    """The files in a tar, each with its offset for a stamp; what is no file is told, and what is hidden."""
    with reading(holder.path, buffer_bytes=PLACES_BYTES) as file:
        try:
            for entry in entries(reader(file), holder.size, errors="surrogateescape"):
                steps = _steps(entry.name)
                name, hint = "/".join(steps), "Take it out of the tar"
                if entry.kind in ("folder", "volume label"):
                    continue
                if ".." in steps:
                    told.append(Trouble(printable(name), "leads up, by a step `..`", hint=hint))
                elif any(step.startswith(".") for step in steps):
                    hidden.append(f"{holder.name}/{printable(name)}")
                elif entry.kind != "file":
                    told.append(Trouble(printable(name), f"is a {entry.kind}, not a file", hint=hint, file=name))
                else:
                    yield FoundFile(name, entry.size, entry.offset)
        except IntegrityError as error:
            said = f"{holder.name} is not a whole tar: {printable(error.message)}"
            raise InputError(said, hint="Fetch it again", subject=holder.name) from None


def _steps(name: str) -> list[str]:
    """The steps of a name, without those that lead nowhere."""
    return [step for step in name.split("/") if step != "."]
