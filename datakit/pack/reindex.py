"""reindex: index and manifest for tars that others wrote, so that they are a dataset without being written anew.

Each tar is read, several at a time; none of them is changed. In place, new files wait under temporary names, a
marker names them, they get their names, and the manifest comes last: a kill leaves tars without a manifest, which are
no dataset (or with the old one), and the next start knows what is left of the killed one. At another place the tars
are hard links (copies where the file systems differ) in an ordinary commit. The manifest's `pack` holds
`foreign: true`: contents, sizes and checksums are vouched for, headers are whatever they are. A tar that has changed by
the time when all are read is refused, and nothing is committed.

What cannot be indexed is refused as a whole, with the list of it and the command that packs it anew. What it does not
do: tars in object storage (bring them here first), or anything to a tar.

Source of the grouping: see `foreign`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from datakit.data.index import Index, index_name
from datakit.data.manifest import MANIFEST_NAME, Contents, Manifest, ShardEntry, content_digest, layout_digest
from datakit.errors import DatakitError, InputError, Refused, UsageError
from datakit.events import Caution, OnEvent, Progress, ignore
from datakit.machine import cores
from datakit.pack.beside import Beside
from datakit.pack.engines import Engine, check_workers
from datakit.pack.foreign import COMPRESSED_TAR, TAR, Indexed, Tar, changed, index_tar, prefix_of, refusal
from datakit.pack.sidecars import ENERGON_DIR, Opener, Reader, write_side_files
from datakit.pack.writing import Totals
from datakit.source.kinds import plain_name
from datakit.source.scan import local_directory
from datakit.source.troubles import LISTED, Trouble, listing
from datakit.storage import disk
from datakit.storage.absent import no_directory
from datakit.storage.commit import NEXT_NAME, commit, lock_path, manifest_at, parse_manifest, refuse_inside
from datakit.storage.links import link_or_copy
from datakit.storage.objects import no_file
from datakit.storage.regular import read_regular, refuse_folder
from datakit.units import agree, format_number_of

COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")

PACK = {"foreign": True}
"""What stands in the manifest for the settings of a pack; with the rule for keys where that is not the plain one."""

Keys: TypeAlias = Literal["plain", "tar"]


@dataclass(frozen=True, slots=True)
class ReindexResult:
    """What came of it.

    Attributes:
        path: The dataset's directory.
        name: Its name.
        shards: Tars.
        samples: Samples in them.
        shard_bytes: Bytes of the tars.
        payload_bytes: Bytes of the parts.
        parts: How many samples have each part.
        skipped: Members that are no part of a sample, by what they are.
        scattered: Samples whose parts do not stand together.
        linked: Parts that are hard links.
        content_digest: Same samples.
        manifest_digest: Identity of the commit, or None where nothing was written.
    """

    path: Path
    name: str
    shards: int
    samples: int
    shard_bytes: int
    payload_bytes: int
    parts: Mapping[str, int]
    skipped: Mapping[str, int]
    scattered: int
    linked: int
    content_digest: str
    manifest_digest: str | None


def reindex(
    src: str | Path,
    dest: str | Path | None = None,
    *,
    name: str | None = None,
    keys: Keys = "plain",
    readers: Sequence[Reader] = (),
    workers: int | None = None,
    on_event: OnEvent = ignore,
    dry_run: bool = False,
) -> ReindexResult:
    """Make tars that others wrote a dataset.

    Args:
        src: Their directory; folders below it count.
        dest: Where the dataset will be, with hard links to the tars; None makes `src` itself one.
        name: Its name; the directory's when not given.
        keys: `plain` takes them as they are; `tar` puts the tar's name and a slash before each, where tars number anew.
        readers: Write side files for these too: `energon`, `dali`.
        workers: Processes; all cores when not given. The bytes do not depend on it.
        on_event: Told how far it is, and what other readers will see otherwise.
        dry_run: Read everything, and write nothing.

    Raises:
        NotFound, InputError: The directory is not there; it is a file.
        UsageError: `keys` or `workers` cannot be.
        InputError: There is no tar, or some cannot be indexed; the message lists them.
        Refused: A dataset of another kind is there, or other files that its manifest would not name.
        NoSpace, NotAllowed: The disk.

    Example:
        >>> reindex("cc3m", "data/cc3m").samples  # doctest: +SKIP
    """
    written = local_directory(src if dest is None else dest, verb="reindex")
    root, final = local_directory(src, verb="reindex").absolute(), written.absolute()
    if keys not in get_args(Keys):
        raise UsageError(f"keys can be plain or tar, not {keys!r}", hint="Write --keys tar", subject="keys")
    check_workers(workers)
    names = _tars(root)
    _check_place(root, final, names)
    plan = _Plan(root, final, written, name or final.name, keys, tuple(names), tuple(readers), workers or cores())
    if dry_run:
        return _result(plan, list(_read(plan, scratch=None, on_event=on_event)), None, on_event)
    if final != root:
        return _into_commit(plan, on_event)
    with disk.exclusive(lock_path(final), purpose=f"indexing {final}"):
        for folder in {final, final / ENERGON_DIR, *(path.parent for path in final.rglob(f"*{TAR}"))}:
            disk.sweep(folder)
        return _in_place(plan, on_event)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be indexed.

    Attributes:
        root: The directory of the tars, absolute.
        final: Where the dataset will be, absolute; `root` where it is made in place.
        written: The same as the user wrote it.
        name: The dataset's name.
        keys: What the keys are.
        names: The tars, below `root`.
        readers: Whom to write side files for.
        workers: Processes.
    """

    root: Path
    final: Path
    written: Path
    name: str
    keys: Keys
    names: tuple[str, ...]
    readers: tuple[Reader, ...]
    workers: int


def _tars(root: Path) -> list[str]:
    """The tars below a directory, by name; compressed ones are refused, since they are meant and cannot be had."""
    if not root.is_dir():
        raise no_directory(root, "with tars", hint="Name the directory that holds the tars")
    found = sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink() or not path.is_dir()
    )
    visible = [name for name in found if not any(step.startswith(".") for step in name.split("/"))]
    for path in (root / name for name in visible):
        if not path.is_file() and (path.is_dir() or path.name.endswith(TAR)):
            raise no_file(path)  # tars that are meant, and would be left out
    packed = [name for name in visible if name.endswith(COMPRESSED_SUFFIXES)]
    if packed:
        said = "it is compressed, so no byte can be read by its place"
        hint = None if all(plain_name(name).endswith(TAR) for name in packed) else COMPRESSED_TAR
        raise refusal(root, [Trouble(name, said, hint=hint) for name in packed], options="")
    tars = [name for name in visible if name.endswith(TAR)]
    if not tars:
        raise InputError(f"{root} holds no .tar file", hint="Name the directory that holds them", subject=str(root))
    return tars


def _check_place(root: Path, final: Path, names: Sequence[str]) -> None:
    """Refuse a place that holds another dataset, or in-place files that the manifest would not name."""
    refuse_inside(final)
    if final.exists() and not final.is_dir():
        raise Refused(f"{final} is not a directory", hint="Name another place", subject=str(final))
    previous = manifest_at(final)
    if previous is not None and not (previous.kind == "dataset" and previous.contents.pack.get("foreign")):
        hint = f"It needs no index: datakit verify {shlex.quote(str(final))}"
        raise Refused(f"{final} holds the {previous.kind} {previous.name}", hint=hint, subject=str(final))
    if final != root:
        _refuse_last_copies(final, previous, names)
        return
    ours = {MANIFEST_NAME, NEXT_NAME, *names, *map(index_name, names), *_named_by(final)}
    for name in sorted(ours.difference(names)):
        refuse_folder(root / name)
    others = sorted(
        name
        for path in root.rglob("*")
        if path.is_file() and not disk.TEMPORARY.fullmatch(path.name)
        for name in [path.relative_to(root).as_posix()]
        if name not in ours
    )
    if others:
        way = f"datakit reindex {shlex.quote(str(root))} DEST"
        hint = f"Name a place for the dataset, which gets hard links to the tars: {way}"
        raise Refused(f"{root} also holds {listing(others, 'other file')}", hint=hint, subject=others[:LISTED])


def _refuse_last_copies(final: Path, previous: Manifest | None, names: Sequence[str]) -> None:
    """See that renewing a dataset removes no tar that has no other name, such as one of those indexed in place."""
    gone = {entry.name for entry in previous.members} - set(names) if previous is not None else set()
    last = sorted(
        name for name in gone if name.endswith(TAR) and (final / name).is_file() and (final / name).stat().st_nlink == 1
    )
    if last:
        raise Refused(
            f"{final} holds the only copy of {listing(last, 'tar')}, which would be removed",
            hint="Name another place, or move them away",
            subject=str(final),
        )


def _read(plan: _Plan, *, scratch: Callable[[str], Path] | None, on_event: OnEvent) -> Iterator[Indexed]:
    """Each tar in order, once it was read; its index lies where `scratch` says."""
    total = sum((plan.root / name).stat().st_size for name in plan.names)
    done = 0
    troubles: list[Trouble] = []
    tasks = [
        Tar(
            path=plan.root / name,
            name=name,
            index_path=None if scratch is None else scratch(name),
            prefix=prefix_of(name, keys=plan.keys),
        )
        for name in plan.names
    ]
    with Engine(min(plan.workers, len(tasks)), rooms=("datakit.pack.foreign",)) as engine:
        for indexed in engine.map(index_tar, tasks):
            done += indexed.shard.bytes
            on_event(Progress("reindex", done, total, "B"))
            troubles += indexed.troubles
            if not troubles:
                yield indexed
    if troubles:
        raise refusal(plan.root, troubles)


def _in_place(plan: _Plan, on_event: OnEvent) -> ReindexResult:
    """Everything under temporary names, a marker that names it all, the names, and last the manifest."""
    beside = Beside(plan.final)
    try:
        several = list(_read(plan, scratch=beside.place, on_event=on_event))
        _check_keys(plan, several, beside.place)
        contents = _describe(plan, several)
        about = contents.to_about() | _side_files(plan, contents, beside.open, beside.place)
        members = [*beside.entries, *(entry for one in several for entry in (one.shard, one.index))]
        manifest = Manifest("dataset", plan.name, tuple(members), about)
        old = _named_by(plan.final)
        for one in several:
            one.look.check(plan.root / one.shard.name)
        disk.write_atomic(plan.final / NEXT_NAME, manifest.to_bytes())
        beside.settle()
        with disk.at_door(plan.final):
            os.replace(plan.final / NEXT_NAME, plan.final / MANIFEST_NAME)
            disk.fsync_dir(plan.final)
            for name in sorted(old - {entry.name for entry in members}):
                if not name.endswith(TAR):  # a tar is the user's, whatever an older manifest said of it
                    (plan.final / name).unlink(missing_ok=True)
        return _result(plan, several, manifest, on_event)
    finally:
        beside.clear()


def _named_by(final: Path) -> set[str]:
    """What the manifest there names, and that of a run that was killed."""
    names: set[str] = set()
    for manifest in (MANIFEST_NAME, NEXT_NAME):
        with contextlib.suppress(DatakitError, FileNotFoundError):
            data = read_regular(final / manifest)
            names |= {entry.name for entry in parse_manifest(data, where=str(final / manifest)).members}
    return names


def _into_commit(plan: _Plan, on_event: OnEvent) -> ReindexResult:
    with commit(plan.final, kind="dataset", name=plan.name) as staging:
        for name in plan.names:
            disk.make_dirs((staging.path / name).parent)

        def scratch(name: str) -> Path:
            return staging.path / index_name(name)

        several = list(_read(plan, scratch=scratch, on_event=on_event))
        _check_keys(plan, several, scratch)
        contents = _describe(plan, several)
        staging.about.update(contents.to_about() | _side_files(plan, contents, staging.open, scratch))
        _bring(plan.root, staging.path, several)
        for entry in (entry for one in several for entry in (one.shard, one.index)):
            staging.adopt(entry)
    assert staging.manifest is not None
    return _result(plan, several, staging.manifest, on_event)


def _bring(root: Path, target: Path, several: Sequence[Indexed]) -> None:
    """Hard links, or copies where there can be none; each of what was read, or none at all."""
    places = [(one, root / one.shard.name, target / one.shard.name) for one in several]
    for one, source, _ in places:
        one.look.check(source)  # before the first link, which changes the stamps of all its names
    copies = [link_or_copy(source.resolve(), link) for _, source, link in places]
    for (one, source, link), copied in zip(places, copies, strict=True):
        if copied is None:
            one.look.check(source, link=link)
        elif copied.sha256 != one.shard.sha256:
            raise changed(source)


def _check_keys(plan: _Plan, several: Sequence[Indexed], index_path: Callable[[str], Path]) -> None:
    """Refuse a key that two tars have: by 8 bytes a sample, and by the keys themselves where those agree."""
    hashes = np.concatenate([indexed.hashes for indexed in several])
    values, counts = np.unique(hashes, return_counts=True)
    twice = values[counts > 1]
    if not len(twice):
        return
    owners: dict[str, list[str]] = {}
    for indexed in several:
        if not (rows := np.flatnonzero(np.isin(indexed.hashes, twice))).size:
            continue
        keys = _index_at(index_path(indexed.shard.name)).keys()
        for row in rows:
            owners.setdefault(keys[row], []).append(indexed.shard.name)
    shared = {key: tars for key, tars in owners.items() if len(tars) > 1}
    if shared:
        message = listing([f"{key} (in {', '.join(tars)})" for key, tars in shared.items()], "sample")
        message = f"{plan.root} has keys that stand for several samples: {message}"
        places = " ".join(shlex.quote(str(place)) for place in dict.fromkeys((plan.root, plan.final)))
        hint = f"Tell them apart by their tars: datakit reindex {places} --keys tar"
        raise InputError(message, hint=hint, subject=[*shared])


def _describe(plan: _Plan, several: Sequence[Indexed]) -> Contents:
    totals = Totals.sum([indexed.totals for indexed in several])
    return Contents(
        content_digest=content_digest([totals.terms]),
        layout_digest=layout_digest((one.shard.name, one.shard.sha256, one.totals.samples) for one in several),
        samples=totals.samples,
        payload_bytes=totals.payload_bytes,
        parts=dict(sorted(totals.parts.items())),
        shards=tuple(ShardEntry(one.shard.name, one.totals.samples, one.index.name) for one in several),
        pack=PACK if plan.keys == "plain" else {**PACK, "keys": plan.keys},
    )


def _side_files(plan: _Plan, contents: Contents, write: Opener, index_path: Callable[[str], Path]) -> dict[str, object]:
    """Write what other readers want, and say which of it a later version may change."""
    scratch = index_path(contents.shards[0].name).parent
    derived = write_side_files(
        contents, lambda shard: _index_at(index_path(shard.name)), plan.readers, write=write, scratch=scratch
    )
    return {"derived": sorted(derived)} if derived else {}


def _index_at(path: Path) -> Index:
    return Index.from_buffer(disk.map_file(path))


def _result(plan: _Plan, several: Sequence[Indexed], manifest: Manifest | None, on_event: OnEvent) -> ReindexResult:
    contents = _describe(plan, several)
    skipped = sum((Counter(one.skipped) for one in several), Counter[str]())
    scattered, linked = sum(one.scattered for one in several), sum(one.linked for one in several)
    anew = f"Pack them anew: datakit pack {shlex.quote(str(plan.root))} DEST --input tar"
    if linked:  # which pack takes no more than they do
        anew = "Unpack the tars into a folder, and pack that: datakit pack FOLDER DEST --input files"
    if scattered:
        samples = format_number_of(scattered, "sample")
        message = f"the parts of {samples} do not stand together: other readers see each as several samples"
        on_event(Caution(message, hint=anew))
    if linked:
        parts = f"{format_number_of(linked, 'part')} {agree(linked, 'is a hard link', 'are hard links')}"
        on_event(Caution(f"{parts}, which other readers skip", hint=anew))
    return ReindexResult(
        path=plan.written,
        name=plan.name,
        shards=len(several),
        samples=contents.samples,
        shard_bytes=sum(one.shard.bytes for one in several),
        payload_bytes=contents.payload_bytes,
        parts=contents.parts,
        skipped=dict(sorted(skipped.items())),
        scattered=scattered,
        linked=linked,
        content_digest=contents.content_digest,
        manifest_digest=None if manifest is None else manifest.digest,
    )
