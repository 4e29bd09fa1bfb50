"""verify: is a dataset whole, and if not, which shard, which sample, which byte.

Every file is compared with the manifest. Where a shard differs, its index says what should stand at each byte: a
header is known from name and size, padding and the end are zeros, a part has its crc32c. Python's `tarfile`, and so
every reader built on it, stops silently at most such damage. A file in the dataset's directory that the manifest does
not name is a finding too, because a reader by listing would take it for a shard.

What it does not do: mend anything, or look at datasets in object storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from datakit.data.digest import PART_BYTES, FileEntry, crc32c
from datakit.data.index import Index
from datakit.data.manifest import MANIFEST_NAME, Contents, Manifest, ShardEntry, content_digest
from datakit.data.shard import BLOCK_BYTES, END, Part, Row, first_difference, header, members
from datakit.errors import DatakitError, IntegrityError
from datakit.events import OnEvent, Progress, ignore
from datakit.pack.engines import cores
from datakit.pack.scan import local_directory
from datakit.pack.writing import Totals
from datakit.storage.commit import read_manifest
from datakit.storage.disk import TEMPORARY, map_file

MOST_FINDINGS = 20
"""Findings listed for one shard: after so many it is to be fetched again whatever the rest says."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        file: The dataset's file.
        problem: What is wrong with it.
        sample: Key of the sample that is hit, where there is one.
        part: Its part.
        byte: Position in the file of the first wrong byte, or of the part that holds it.
    """

    file: str
    problem: str
    sample: str | None = None
    part: str | None = None
    byte: int | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at and found.

    Attributes:
        path: The dataset.
        name: Its name.
        quick: Whether only names, sizes and indexes were looked at.
        samples: Samples that the manifest names.
        shards: Shards that the manifest names.
        checked_bytes: Bytes that were read and compared.
        findings: Everything that is wrong; none for a whole dataset.
    """

    path: Path
    name: str
    quick: bool
    samples: int
    shards: int
    checked_bytes: int
    findings: tuple[Finding, ...]

    def raise_findings(self) -> None:
        """Do nothing for a whole dataset.

        Raises:
            IntegrityError: Something is wrong; the message tells the first finding and how many more there are.
        """
        if not self.findings:
            return
        more = len(self.findings) - 1
        rest = f" (and {more} more finding{'s' if more > 1 else ''})" if more else ""
        raise IntegrityError(
            f"{self.findings[0]}{rest}",
            hint="Set the damaged files aside, then sync or pack the dataset again",
            subject=self.findings[0].file,
        )


@dataclass(frozen=True, slots=True)
class _Checked:
    findings: tuple[Finding, ...]
    totals: Totals | None  # None where the index is lost
    checked_bytes: int


def verify(dataset: str | Path, *, quick: bool = False, on_event: OnEvent = ignore) -> VerifyReport:
    """Check a dataset against its manifest.

    Args:
        dataset: Its directory.
        quick: Look at names, sizes and indexes, and read no shard.
        on_event: Told how far it is.

    Raises:
        NotFound: There is no dataset.
        UsageError: It is in object storage.
        InputError: It is a commit of something else.
        IntegrityError: The manifest contradicts itself. What is wrong with other files stands in the report.
    """
    root = local_directory(dataset, verb="verify")
    manifest = read_manifest(root)
    contents = manifest.contents
    findings = list(_foreign(root, manifest))
    totals, checked = [], 0
    with ThreadPoolExecutor(cores()) as pool:
        for result in pool.map(lambda shard: _check_shard(root, manifest, shard, quick=quick), contents.shards):
            findings += result.findings
            totals += [result.totals] if result.totals is not None else []
            checked += result.checked_bytes
            on_event(Progress("verify", checked, None if quick else manifest.total_bytes, "B"))
    if not findings:
        findings += _lies(contents, Totals.sum(totals))
    return VerifyReport(root, manifest.name, quick, contents.samples, len(contents.shards), checked, tuple(findings))


def _lies(contents: Contents, totals: Totals) -> Iterator[Finding]:
    """What the manifest says of all samples and the indexes, which are whole, do not."""
    for what, actual, said in (
        ("content digest", content_digest([totals.terms]), contents.content_digest),
        ("payload bytes", totals.payload_bytes, contents.payload_bytes),
        ("parts", dict(totals.parts), dict(contents.parts)),
        ("tokens", totals.tokens, contents.tokens),
    ):
        if actual != said:
            yield Finding(MANIFEST_NAME, f"its samples have the {what} {actual}, it says {said}")


def _foreign(root: Path, manifest: Manifest) -> Iterator[Finding]:
    known = {entry.name for entry in manifest.members} | {MANIFEST_NAME}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name not in known and not TEMPORARY.fullmatch(path.name):
            yield Finding(name, "the manifest does not name this file")


def _check_shard(root: Path, manifest: Manifest, shard: ShardEntry, *, quick: bool) -> _Checked:
    index, entry = manifest.member(shard.index_name), manifest.member(shard.name)
    rows, findings = _check_index(root, index, shard)
    totals = None if rows is None else Totals.of(rows)
    path = root / shard.name
    if not path.is_file():
        missing = Finding(shard.name, f"the shard is missing, and its {shard.samples} samples with it")
        return _Checked((*findings, missing), totals, index.bytes)
    data = map_file(path)
    if quick:
        wrong = len(data) != entry.bytes
        found = list(islice(damage(data, entry, rows), MOST_FINDINGS)) if wrong else []
        return _Checked((*findings, *found), totals, index.bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        findings = [*findings, *islice(damage(data, entry, rows), MOST_FINDINGS)]
    return _Checked(tuple(findings), totals, index.bytes + len(data))


def _check_index(root: Path, entry: FileEntry, shard: ShardEntry) -> tuple[list[Row] | None, list[Finding]]:
    path = root / entry.name
    if not path.is_file():
        return None, [Finding(entry.name, "the index is missing")]
    data = map_file(path)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        return None, list(islice(_wrong_parts(data, entry), MOST_FINDINGS))
    try:
        rows = Index.from_buffer(data).rows()
    except DatakitError as error:
        return None, [Finding(entry.name, error.message)]
    if len(rows) != shard.samples:
        problem = f"the index has {len(rows)} samples, the manifest says {shard.samples}"
        return None, [Finding(entry.name, problem)]
    return rows, []


def damage(data: memoryview, entry: FileEntry, rows: Sequence[Row] | None) -> Iterator[Finding]:
    """What is wrong with the bytes of a shard, first byte first; at least one finding for bytes that differ.

    Args:
        data: The shard as it is.
        entry: The shard as the manifest says it was.
        rows: Its index, or None where that is lost: then only headers and 16 MiB parts are checked.
    """
    found = False
    if rows is None:
        try:
            for _ in members(data):
                pass
        except IntegrityError as error:
            found = True
            yield Finding(entry.name, error.message, byte=int(str(error.subject)))
    else:
        for finding in _against_rows(data, entry, rows):
            found = True
            yield finding
    if not found:
        yield from _wrong_parts(data, entry)


def _against_rows(data: memoryview, entry: FileEntry, rows: Sequence[Row]) -> Iterator[Finding]:
    end = 0
    for position, row in enumerate(rows):
        for part, place in sorted(row.parts.items(), key=lambda item: item[1].offset):
            start, end = place.offset - BLOCK_BYTES, place.offset + place.size + -place.size % BLOCK_BYTES
            if end > len(data):
                lost = len(rows) - position
                problem = (
                    f"it ends at byte {len(data)} of {entry.bytes}: {row.key}.{part} should stand at bytes {start} to "
                    f"{end}, {lost} sample{'s are' if lost > 1 else ' is'} lost"
                )
                yield Finding(entry.name, problem, row.key, part, len(data))
                return
            if damaged := _member_damage(data[start:end], row.key, part, place):
                yield Finding(entry.name, damaged[0], row.key, part, damaged[1])
    rest = data[end:]
    if len(rest) < len(END) and first_difference(rest, END[: len(rest)]) is None:
        yield Finding(
            entry.name, f"it ends at byte {len(data)} of {entry.bytes}, before its end blocks", byte=len(data)
        )
    elif (byte := first_difference(rest[: len(END)], END)) is not None:
        yield Finding(entry.name, f"byte {end + byte}, in the end blocks, is not zero", byte=end + byte)
    elif len(rest) > len(END):
        extra = len(rest) - len(END)
        yield Finding(entry.name, f"{extra} bytes follow its end at byte {entry.bytes}", byte=entry.bytes)


def _member_damage(block: memoryview, key: str, part: str, place: Part) -> tuple[str, int] | None:
    """What is wrong with one member, header to padding, and at which byte of the shard."""
    start = place.offset - BLOCK_BYTES
    if not any(block):
        return f"bytes {start} to {start + len(block)} are zeros where {key}.{part} should be", start
    head = bytes(block[:BLOCK_BYTES])
    expected = header(key, part, place.size)
    if (byte := first_difference(head, expected)) is not None:
        return (
            f"byte {start + byte}, in the header of {key}.{part}, is {head[byte]:#04x}, not {expected[byte]:#04x}",
            start + byte,
        )
    content = block[BLOCK_BYTES : BLOCK_BYTES + place.size]
    if (actual := crc32c(content)) != place.crc32c:
        problem = (
            f"part {part} of sample {key} (bytes {place.offset} to {place.offset + place.size}) has crc32c "
            f"{actual:08x}, the index says {place.crc32c:08x}"
        )
        return problem, place.offset
    padding = block[BLOCK_BYTES + place.size :]
    if (spoilt := first_difference(padding, bytes(len(padding)))) is not None:
        at = place.offset + place.size + spoilt
        return f"byte {at}, in the padding after {key}.{part}, is {padding[spoilt]:#04x}, not zero", at
    return None


def _wrong_parts(data: memoryview, entry: FileEntry) -> Iterator[Finding]:
    """The 16 MiB parts of a file that are not what the manifest says; at least one finding."""
    if len(data) != entry.bytes:
        yield Finding(
            entry.name, f"it has {len(data)} bytes, the manifest says {entry.bytes}", byte=min(len(data), entry.bytes)
        )
        return
    found = False
    for number, expected in enumerate(entry.crc32c):
        start = number * PART_BYTES
        stop = min(start + PART_BYTES, entry.bytes)
        if (actual := f"{crc32c(data[start:stop]):08x}") != expected:
            found = True
            yield Finding(
                entry.name, f"bytes {start} to {stop} have crc32c {actual}, the manifest says {expected}", byte=start
            )
    if not found:
        yield Finding(entry.name, f"it has another sha256 than the manifest says ({entry.sha256})")
