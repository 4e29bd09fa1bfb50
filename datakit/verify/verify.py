"""verify: is a dataset whole, and if not, which shard, which sample, which byte.

Every file is compared with the manifest, on the disk or in object storage: shards stream by, several at a time, so
memory is flat, and what differs is looked into (`damage`). A file beside them that the manifest does not name is a
finding too, because a reader by listing would take it for a shard; what a killed writer of ours left and shards of
other versions are told apart (`unnamed`), and are no damage.

What is compared: each 16 MiB part's crc32c, and the sha256 of whatever passes in one piece, which is everything on the
disk and files of up to 64 MiB in object storage. The md5 that a manifest holds for DVC is not. It mends nothing.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datakit.data.digest import PART_BYTES, FileEntry, crc32c
from datakit.data.flips import flipped_bit
from datakit.data.index import Index
from datakit.data.manifest import Contents, ShardEntry
from datakit.errors import DatakitError, IntegrityError
from datakit.events import Caution, OnEvent, Progress, ignore
from datakit.machine import cores
from datakit.pack.foreign import prefix_of
from datakit.pack.writing import Totals
from datakit.source.troubles import listing
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.objects import ObjectInfo
from datakit.storage.view import View, open_view
from datakit.units import format_bytes, format_number_of
from datakit.verify.claims import lies, misnamed
from datakit.verify.damage import UNNAMED, Finding, Suspect, cut, damage, mending, wrong_parts
from datakit.verify.stretch import MOST_FINDINGS, Stretch, stretch
from datakit.verify.tally import Tally
from datakit.verify.tape import Tape
from datakit.verify.unnamed import Unnamed, strange, unnamed
from datakit.verify.walk import walk

__all__ = ["Finding", "VerifyReport", "verify"]

NO_REQUESTS = RequestCounts()
SPAN_BYTES = 4 * PART_BYTES
"""Bytes of one request: a shard of the usual 64 MiB is one, a larger one several that go side by side."""

LARGE_BYTES = 8 * 2**20
"""Where samples are larger in the mean, a shard is one request: many would lie across two, and are read once more."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at and found.

    Attributes:
        path: The dataset's directory or URL.
        name: Its name.
        quick: Whether only names, sizes and indexes were looked at.
        samples: Samples that the manifest names.
        shards: Shards that the manifest names.
        checked_bytes: Bytes that were read and compared.
        findings: Everything that is wrong; none for a whole dataset.
        leftovers: What a killed pack or sync left there; the next one removes it.
        requests: Requests that it cost, by class; none on the disk.
        kind: What is committed there.
        files: Files that the manifest names.
        other_versions: Shards of other versions, with their indexes, that a sync without `--delete` left there.
        other_versions_bytes: Their bytes.
    """

    path: Path | str
    name: str
    quick: bool
    samples: int
    shards: int
    checked_bytes: int
    findings: tuple[Finding, ...]
    leftovers: tuple[str, ...] = ()
    requests: RequestCounts = NO_REQUESTS
    kind: str = "dataset"
    files: int = 0
    other_versions: tuple[str, ...] = ()
    other_versions_bytes: int = 0

    def raise_findings(self) -> None:
        """Do nothing for a whole dataset.

        Raises:
            IntegrityError: Something is wrong; the message tells the first finding and how many more there are.
        """
        if not self.findings:
            return
        more = len(self.findings) - 1
        rest = f" (and {format_number_of(more, 'more finding')})" if more else ""
        raise IntegrityError(
            f"{self.findings[0]}{rest}",
            hint=mending(self.findings, self.path),
            subject=self.findings[0].file,
        )


@dataclass(frozen=True, slots=True)
class _IndexLook:
    """What an index came to; `totals`, `index` and what compares the shard with it are None where it is lost."""

    findings: tuple[Finding, ...] = ()
    totals: Totals | None = None
    index: Index | None = None
    compare: Callable[[Tape, int], Iterable[Finding]] | None = None
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """A file that is being looked at: a shard with its index, or any other that is no index."""

    entry: FileEntry
    info: ObjectInfo | None
    spans: tuple[Future[Stretch], ...]
    shard: ShardEntry | None = None
    index: Future[_IndexLook] | None = None

    @property
    def stretches(self) -> list[Stretch]:
        """What its stretches came to; none where it is not there, or was not read."""
        return [span.result() for span in self.spans]


def verify(
    dataset: str | Path,
    *,
    quick: bool = False,
    stores: Mapping[str, StoreOptions] | None = None,
    on_event: OnEvent = ignore,
) -> VerifyReport:
    """Check a dataset against its manifest; a checkpoint, adapter or model file by file.

    Args:
        dataset: Its directory or URL.
        quick: Look at names, sizes and indexes, and read no shard.
        stores: Named stores of the settings.
        on_event: Told how far it is.

    Raises:
        NotFound: Nothing is committed there.
        InputError: It is a file, or another program's manifest.json is there.
        IntegrityError: The manifest is damaged. What is wrong with other files stands in the report.
        Refused: A shard was replaced while it was read.
        StoreUnavailable, NotAllowed: The store cannot be asked.
    """
    view = open_view(dataset, stores=stores)
    contents = _contents(view)
    there = view.files() if view.path is None else _local_files(view.path)
    besides = unnamed(view, there, quick=quick)
    members = {entry.name for entry in view.manifest.members}
    strangers = [] if view.path is None else strange(view.path)
    findings = [Finding(name, UNNAMED) for name in sorted({*besides.foreign, *strangers} - members)]
    findings += misnamed(view.manifest)
    totals, checked = [], 0
    total_bytes = None if quick else view.manifest.total_bytes
    for look in _looks(view, there, quick=quick):
        if look.shard is not None and look.index is not None:
            found = look.index.result()
            findings += [*found.findings, *_check_shard(view, look, look.shard, found)]
            totals += [found.totals] if found.totals is not None else []
            checked += view.manifest.member(look.shard.index_name).bytes
        else:
            findings += _check_file(view, look)
        checked += 0 if quick or look.info is None else look.info.bytes
        on_event(Progress("verify", checked, total_bytes, "B"))
    if contents is not None and not findings:
        findings += lies(contents, Totals.sum(totals))
    spare_bytes = sum(there[name].bytes for name in besides.versions)
    for caution in _cautions(view, besides, spare_bytes):
        on_event(caution)
    return VerifyReport(
        path=view.path or view.where,
        name=view.manifest.name,
        quick=quick,
        samples=contents.samples if contents else 0,
        shards=len(contents.shards) if contents else 0,
        checked_bytes=checked,
        findings=tuple(findings),
        leftovers=besides.killed,
        requests=view.requests,
        kind=view.manifest.kind,
        files=len(view.manifest.members),
        other_versions=besides.versions,
        other_versions_bytes=spare_bytes,
    )


def _cautions(view: View, besides: Unnamed, spare_bytes: int) -> Iterator[Caution]:
    """What lies beside a dataset and is no damage."""
    if killed := besides.killed:
        hint = f"The next pack or sync to {view.where} removes them; who lists it may take them for data"
        yield Caution(f"a killed pack or sync left {listing(killed, 'file')}", hint=hint)
    if spare := besides.versions:
        what = f"{format_number_of(len(spare), 'file')} ({format_bytes(spare_bytes)}) of another version"
        flags, where = f"--delete --max-delete {len(spare)}", shlex.quote(view.where)
        hint = f"Who lists it takes them for data. Repeat its sync with {flags}; or: datakit sync {flags} SRC {where}"
        yield Caution(f"{view.where} also holds {what} of {view.manifest.name}, such as {spare[0]}", hint=hint)


def _contents(view: View) -> Contents | None:
    """What the manifest says of samples, where it is of any."""
    return view.contents if view.manifest.kind == "dataset" else None


def _local_files(root: Path) -> dict[str, ObjectInfo]:
    found = {}
    for path in root.rglob("*"):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            found[name] = ObjectInfo(name, path.stat().st_size, None)
    return found


def _looks(view: View, there: Mapping[str, ObjectInfo], *, quick: bool) -> Iterator[_Look]:
    """Each shard in order, then each other file, looked at side by side; no more are begun than are soon asked for."""
    workers = cores() if view.path is not None else view.concurrency
    ahead: deque[_Look] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="datakit-verify") as pool:
        try:
            for entry, shard in _readable(view):
                info = there.get(entry.name)
                index = pool.submit(_check_index, view, shard, there.get(shard.index_name)) if shard else None
                is_one = shard is not None and info is not None and _is_one(view, shard, info)
                spans = () if quick or info is None else _spans(view, info, whole=is_one)
                its = index if info is not None and info.bytes == entry.bytes else None
                futures = [pool.submit(_check_span, view, entry, start, stop, its) for start, stop in spans]
                ahead.append(_Look(entry, info, tuple(futures), shard, index))
                while sum(1 + len(look.spans) for look in ahead) > 2 * workers:
                    yield ahead.popleft()
            while ahead:
                yield ahead.popleft()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _readable(view: View) -> Iterator[tuple[FileEntry, ShardEntry | None]]:
    """The members that are no index: shards, with what the manifest says of each, then the others."""
    contents = _contents(view)
    shards = contents.shards if contents else ()
    yield from ((view.manifest.member(shard.name), shard) for shard in shards)
    usual = {name for shard in shards for name in (shard.name, shard.index_name)}
    yield from ((entry, None) for entry in view.manifest.members if entry.name not in usual)


def _is_one(view: View, shard: ShardEntry, info: ObjectInfo) -> bool:
    """Whether a shard is one request: where samples are large, or can be compared with the index in one piece only."""
    return info.bytes > LARGE_BYTES * shard.samples or bool(view.contents.pack.get("foreign"))


def _spans(view: View, info: ObjectInfo, *, whole: bool = False) -> Iterator[tuple[int, int]]:
    """From where to where a file is read by one request; on the disk from end to end."""
    step = SPAN_BYTES if view.path is None and not whole else max(info.bytes, 1)
    return ((start, min(start + step, info.bytes)) for start in range(0, max(info.bytes, 1), step))


def _check_span(view: View, entry: FileEntry, start: int, stop: int, index: Future[_IndexLook] | None) -> Stretch:
    """The checksums of a stretch, and what is in it that its index says otherwise; the index was begun before it."""
    compare = None if index is None else index.result().compare
    pieces = view.pieces(entry.name, start, stop)
    look = None if compare is None else lambda tape: compare(tape, stop)
    return stretch(pieces, start, stop, look, whole=start == 0 and stop >= entry.bytes)


def _is_same(entry: FileEntry, stretches: Sequence[Stretch]) -> bool:
    """Whether what was read of a file has the checksums of its entry: the sha256 where it was one stretch."""
    crcs = tuple(crc for each in stretches for crc in each.crcs)
    return crcs == entry.crc32c and all(each.sha256 in (None, entry.sha256) for each in stretches)


def _check_index(view: View, shard: ShardEntry, info: ObjectInfo | None) -> _IndexLook:
    entry = view.manifest.member(shard.index_name)
    if info is None:
        return _IndexLook((Finding(entry.name, "the index is missing"),))
    data = b"".join(map(bytes, view.pieces(entry.name, 0, info.bytes)))
    findings: tuple[Finding, ...] = ()
    read = [stretch([data], 0, len(data))]
    if len(data) != entry.bytes or not _is_same(entry, read):
        findings = tuple(islice(wrong_parts(_suspect(view, entry, info, read)), MOST_FINDINGS))
        whole = _mended(data, entry, findings)
        if whole is None:
            return _IndexLook(findings)
        findings, data = tuple(_with_sample(finding, whole) for finding in findings), whole
    try:
        index = Index.from_buffer(data)
        index.check_texts()
    except DatakitError as error:
        return _IndexLook((*findings, Finding(entry.name, error.message)))
    if len(index) != shard.samples:
        problem = f"the index has {len(index)} samples, the manifest says {shard.samples}"
        return _IndexLook((*findings, Finding(entry.name, problem)))
    return _IndexLook(findings, Totals.of_index(index), index, *_comparison(view, shard, index))


def _comparison(
    view: View, shard: ShardEntry, index: Index
) -> tuple[Callable[[Tape, int], Iterable[Finding]], Tally | None]:
    """What compares the bytes of a shard with its index."""
    pack, size = view.contents.pack, view.manifest.member(shard.name).bytes
    if pack.get("foreign"):
        prefix = prefix_of(shard.name, keys=pack.get("keys"))
        return (lambda tape, _stop: walk(shard.name, index, tape, size=size, prefix=prefix)), None
    tally = Tally(shard.name, index, size=size, bundle=_bundle(pack))
    return (lambda tape, stop: tally.findings or tally.check(tape, stop)), tally


def _mended(data: bytes, entry: FileEntry, findings: Sequence[Finding]) -> bytes | None:
    """An index as it was, in memory, where a flipped bit of each wrong part is all that is wrong with it."""
    whole = bytearray(data)
    for at in (finding.byte for finding in findings):
        if at is None or len(data) != entry.bytes:
            return None
        start = at - at % PART_BYTES
        part = memoryview(whole)[start : start + PART_BYTES]
        flip = flipped_bit(len(part), found=crc32c(part), expected=int(entry.crc32c[start // PART_BYTES], 16))
        if flip is None:
            return None
        part[flip[0]] ^= 1 << flip[1]
    return bytes(whole) if hashlib.sha256(whole).hexdigest() == entry.sha256 else None


def _with_sample(finding: Finding, whole: bytes) -> Finding:
    """A finding in an index, with the sample whose row is hit."""
    index = Index.from_buffer(whole)
    row = None if finding.byte is None else index.row_of_byte(whole, finding.byte)
    if row is None:
        return finding
    return replace(finding, problem=f"{finding.problem}, in the row of {index.key(row)}", sample=index.key(row))


def _check_shard(view: View, look: _Look, shard: ShardEntry, found: _IndexLook) -> list[Finding]:
    """What is wrong with a shard, from the checksums of its stretches; in one that is whole, what its index denies."""
    info, entry = look.info, look.entry
    if info is None:
        return [Finding(shard.name, f"the shard is missing, and its {shard.samples} samples with it")]
    spans = look.stretches
    if info.bytes == entry.bytes and (not spans or _is_same(entry, spans)):
        denied = {finding: None for span in spans for finding in span.findings}
        across = _check_across(view, look, found.tally) if found.tally is not None and len(spans) > 1 else ()
        return list(islice(chain(denied, across), MOST_FINDINGS))
    suspect = _suspect(view, entry, info, spans)
    if (other := _holder(view, suspect, spans)) is not None:
        problem = f"it holds the bytes of {other}, its own {shard.samples} samples are not there"
        return [Finding(shard.name, problem, byte=0)]
    rows = None if found.index is None else found.index.rows()
    if spans:
        return list(islice(damage(suspect, rows), MOST_FINDINGS))
    short = None if rows is None else cut(suspect, rows)  # a quick look reads nothing
    return [short] if short is not None else list(wrong_parts(suspect))


def _check_across(view: View, look: _Look, tally: Tally) -> Iterator[Finding]:
    """What the index says otherwise of the samples that lie across the end of a stretch: each is read once more."""
    if tally.findings or look.info is None:
        return
    stops = [stop for _, stop in _spans(view, look.info)]
    for start, stop in sorted({place for at in stops if (place := tally.across(at)) is not None}):
        yield from tally.check(Tape(view.pieces(look.entry.name, start, stop), start), stop)


def _bundle(pack: Mapping[str, Any]) -> int | None:
    bundle = pack.get("bundle")
    return bundle if type(bundle) is int and bundle > 0 else None


def _suspect(view: View, entry: FileEntry, info: ObjectInfo, spans: Sequence[Stretch]) -> Suspect:
    crcs = enumerate(crc for span in spans for crc in span.crcs)
    wrong = {number for number, crc in crcs if (crc,) != entry.crc32c[number : number + 1]}
    contents = _contents(view)
    pack: Mapping[str, Any] = contents.pack if contents else {}
    stream = partial(view.pieces, entry.name)
    return Suspect(entry, info.bytes, stream, wrong, bundle=_bundle(pack), foreign=bool(pack.get("foreign")))


def _holder(view: View, suspect: Suspect, spans: Sequence[Stretch]) -> str | None:
    """Another member whose bytes these are."""
    crcs = tuple(crc for span in spans for crc in span.crcs)
    alike = (entry for entry in view.manifest.members if entry.bytes == suspect.size and entry.crc32c == crcs)
    return next((entry.name for entry in alike if crcs and entry.name != suspect.entry.name), None)


def _check_file(view: View, look: _Look) -> list[Finding]:
    """What is wrong with a member that is neither shard nor index, such as a side file, or a file of a checkpoint."""
    if look.info is None:
        return [Finding(look.entry.name, "the file is missing")]
    spans = look.stretches
    if look.info.bytes == look.entry.bytes and (not spans or _is_same(look.entry, spans)):
        return []
    return list(islice(wrong_parts(_suspect(view, look.entry, look.info, spans)), MOST_FINDINGS))
