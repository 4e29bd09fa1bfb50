"""verify/tally and verify/walk: an index and a shard that each fit the manifest and contradict each other are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.data.builder import ShardBuilder
from datakit.data.digest import PART_BYTES, entry_of
from datakit.data.index import Index
from datakit.data.manifest import Manifest, content_digest, layout_digest
from datakit.data.shard import BLOCK_BYTES, END, Row, Sample, header
from datakit.pack.reindex import reindex
from datakit.pack.writing import Totals
from datakit.storage.commit import read_manifest
from datakit.verify import verify as room
from datakit.verify.tally import Tally
from datakit.verify.tape import Tape
from datakit.verify.verify import verify
from support.commits import noise
from support.datasets import lines, make_dataset, publish
from support.faulty import FaultyServer
from support.packing import small_pack, write_pairs
from support.tars import files_of, pairs, write_tar

Change = Callable[[list[Row]], Sequence[Row]]


def forge(root: Path, change: Change | None = None, *, shard: Callable[[bytes], bytes] | None = None) -> str:
    """Make the index, or the bytes, of the first shard anew, and the manifest with it; gives the shard's name."""
    manifest = read_manifest(root)
    first = manifest.contents.shards[0]
    rows = Index.from_buffer((root / first.index_name).read_bytes()).rows()
    index = bytes(Index.from_rows(change(rows) if change else rows).to_bytes())
    data = shard((root / first.name).read_bytes()) if shard else (root / first.name).read_bytes()
    (root / first.index_name).write_bytes(index)
    (root / first.name).write_bytes(data)
    made = {entry.name: entry for entry in (entry_of(first.index_name, index), entry_of(first.name, data))}
    members = tuple(made.get(entry.name, entry) for entry in manifest.members)
    its = {one.name: Index.from_buffer((root / one.index_name).read_bytes()).rows() for one in manifest.contents.shards}
    totals = Totals.sum([Totals.of(one) for one in its.values()])
    digests = {entry.name: entry.sha256 for entry in members}
    about = {
        **manifest.about,
        "layout_digest": layout_digest((name, digests[name], len(rows)) for name, rows in its.items()),
        "content_digest": content_digest([totals.terms]),
        "payload_bytes": totals.payload_bytes,
        "samples": totals.samples,
        "parts": dict(totals.parts),
        "shards": [{**one, "samples": len(its[one["name"]])} for one in manifest.about["shards"]],
    }
    (root / "manifest.json").write_bytes(Manifest("dataset", manifest.name, members, about).to_bytes())
    return first.name


def edit_part(row: Row, **fields: int) -> Row:
    """A row whose first part is another."""
    name = min(row.parts)
    return replace(row, parts={**row.parts, name: replace(row.parts[name], **fields)})


def moved(row: Row, *, by: int) -> Row:
    """A row whose first part is somewhere else."""
    return edit_part(row, offset=row.parts[min(row.parts)].offset + by)


def swapped(rows: list[Row]) -> list[Row]:
    """Two samples in each other's places."""
    return [rows[0], replace(rows[1], parts=rows[2].parts), replace(rows[2], parts=rows[1].parts), *rows[3:]]


CHANGES: dict[str, Change] = {
    "swapped": swapped,
    "crc": lambda rows: [rows[0], edit_part(rows[1], crc32c=7), *rows[2:]],
    "offset": lambda rows: [rows[0], moved(rows[1], by=512), *rows[2:]],
    "size": lambda rows: [rows[0], edit_part(rows[1], size=3), *rows[2:]],
    "no size": lambda rows: [rows[0], edit_part(rows[1], size=-9), *rows[2:]],
    "key": lambda rows: [replace(rows[0], key="zzz"), *rows[1:]],
    "digest": lambda rows: [rows[0], replace(rows[1], digest=bytes(16)), *rows[2:]],
    "left out": lambda rows: [rows[0], *rows[2:]],
    "last left out": lambda rows: rows[:-1],
    "first left out": lambda rows: rows[1:],
    "added": lambda rows: [*rows, replace(edit_part(rows[1], offset=2**40), key="more")],
}


def of_pairs(tmp_path: Path) -> Path:
    """Two parts a sample."""
    small_pack(write_pairs(tmp_path / "raw", 30), tmp_path / "ds")
    return tmp_path / "ds"


def of_bundles(tmp_path: Path) -> Path:
    """Ten lines a member, the last member shorter."""
    return make_dataset(tmp_path / "ds", [lines(0, 25), lines(25, 40)], bundle=10)


def of_others(tmp_path: Path) -> Path:
    """A tar by Python's tarfile, with parts in no order, skipped members and a long name."""
    samples = [Sample("n" * 150, {"txt": b"long"}), *pairs(range(20))]
    files = [("readme", b"x"), *((name, data) for name, data in reversed(files_of(samples))), (".hidden.txt", b"h")]
    write_tar(tmp_path / "ds" / "a.tar", files)
    reindex(tmp_path / "ds")
    return tmp_path / "ds"


MAKERS = [of_pairs, of_bundles, of_others]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_index_that_contradicts_its_shard_is_found(
    tmp_path: Path, faulty: FaultyServer, make: Callable[[Path], Path], change: Change
) -> None:
    """All checksums of the manifest fit: the finding names shard and byte, on the disk and in a bucket."""
    root = make(tmp_path)
    (name, *_) = (shard.name for shard in read_manifest(root).contents.shards)
    assert verify(root).findings == ()

    forge(root, change)

    findings = verify(root).findings
    assert 1 <= len(findings) <= 20
    assert {finding.file for finding in findings} == {name}
    assert any(finding.byte is not None for finding in findings) or "-9 bytes" in findings[0].problem
    assert verify(root, quick=True).findings == ()
    assert verify(publish(root, faulty)).findings == findings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("crc", "(bytes {offset} to {stop}) has crc32c"),
        ("offset", "is at byte {wrong}, it should be at {offset}"),
        ("key", "the header at byte {head} is of '{key}.jpg', the index says zzz.jpg with {size} bytes"),
        ("digest", "sample {key}, from byte {offset} on, has the digest"),
    ],
)
def test_what_is_found_is_said(tmp_path: Path, change: str, said: str) -> None:
    """With sample, part and byte."""
    root = of_pairs(tmp_path)
    shard = read_manifest(root).contents.shards[0]
    row = Index.from_buffer((root / shard.index_name).read_bytes()).row(0 if change == "key" else 1)
    place = row.parts["jpg"]
    forge(root, CHANGES[change])

    finding = verify(root).findings[0]

    words = {"head": place.offset - 512, "wrong": place.offset + 512, "stop": place.offset + place.size}
    assert said.format(key=row.key, offset=place.offset, size=place.size, **words) in finding.problem
    assert finding.sample == ("zzz" if change == "key" else row.key)
    assert finding.byte in (place.offset, place.offset - BLOCK_BYTES)


def more(data: bytes) -> bytes:
    """One sample behind the others, as `tar -r` puts it there."""
    return data[: -len(END)] + header("more", "txt", 3) + b"abc".ljust(BLOCK_BYTES, b"\0") + END


@pytest.mark.parametrize(
    ("make", "said"),
    [(of_pairs, "it goes on to byte"), (of_bundles, "it goes on to byte"), (of_others, "is not in its index")],
)
def test_a_member_without_a_row_is_found(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    """A shard that was appended to after its index was made."""
    root = make(tmp_path)

    def append(data: bytes) -> bytes:
        if make is not of_others:
            return more(data)
        stripped = data.rstrip(b"\0")
        return more(stripped + bytes(-len(stripped) % BLOCK_BYTES) + END)

    name = forge(root, shard=append)

    (finding,) = verify(root).findings
    assert finding.file == name
    assert said in finding.problem


@pytest.mark.parametrize(
    ("byte", "said"),
    [(-1, "its end blocks, from byte 1536 on"), (-1024, "its end blocks"), (-1025, "the padding after a.txt")],
)
def test_padding_and_end_blocks_are_zeros(tmp_path: Path, byte: int, said: str) -> None:
    """Also where the manifest knows them as they are; counted from the end."""
    root = make_dataset(tmp_path / "ds", [[Sample("a", {"txt": b"x" * 513})]])

    forge(root, shard=lambda data: data[:byte] + b"\1" + (data[byte + 1 :] if byte != -1 else b""))

    (finding,) = verify(root).findings
    assert said in finding.problem
    assert "not zero" in finding.problem


@pytest.mark.parametrize("cut", [-1024, -700, -512, -1])
@pytest.mark.parametrize("byte", [-1024, -1019, -513, -512, -1])
def test_end_blocks_across_stretches_are_looked_at_whole(cut: int, byte: int) -> None:
    """Whichever of the two stretches holds the byte that is not zero: the finding is the one of the whole shard."""
    pieces: list[bytes] = []
    builder = ShardBuilder(pieces.append)
    builder.add(Sample("a", {"txt": b"x"}))
    index = Index.from_rows(builder.finish())
    data = bytearray(b"".join(pieces))
    data[byte] = 1
    tally = Tally("a.tar", index, size=len(data), bundle=None)
    middle = len(data) + cut

    whole = list(tally.check(Tape([data], 0), len(data)))
    parted = [
        *tally.check(Tape([data[:middle]], 0), middle),
        *tally.check(Tape([data[middle:]], middle), len(data)),
    ]

    assert [finding.byte for finding in whole] == [1024]
    assert parted == whole


@pytest.mark.parametrize("size", [100_000, 2 * 2**20, 5 * 2**20])
@pytest.mark.parametrize("bundle", [None, 4])
def test_samples_across_stretches_are_compared(
    tmp_path: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch, size: int, bundle: int | None
) -> None:
    """In a bucket, wherever the ends of the stretches fall: each wrong row is found, once."""
    monkeypatch.setattr(room, "SPAN_BYTES", PART_BYTES)
    num = 40 * 2**20 // size
    text = [noise(size, seed).replace(b"\n", b" ") for seed in range(num)]
    samples = [Sample(f"s{n:04d}", {"json": one}) for n, one in enumerate(text)]
    root = make_dataset(tmp_path / "ds", [samples], bundle=bundle)
    assert verify(publish(root, faulty)).findings == ()
    borders = [PART_BYTES, 2 * PART_BYTES]

    def spoil(rows: list[Row]) -> list[Row]:
        return [
            replace(row, digest=bytes(16))
            if any(row.parts["json"].offset <= at < row.parts["json"].offset + size for at in borders)
            else row
            for row in rows
        ]

    forge(root, spoil)

    findings = verify(publish(root, faulty)).findings
    assert len(findings) == len(set(findings)) == 2
    assert findings == verify(root).findings


def test_parts_of_others_may_be_links_and_keys_may_carry_the_tars_name(tmp_path: Path) -> None:
    """Whatever `reindex` takes is whole for verify."""
    import tarfile

    (tmp_path / "ds").mkdir()
    for name in ("a.tar", "b.tar"):
        with tarfile.open(tmp_path / "ds" / name, "w") as tar:
            for sample in ("0", "1"):
                (tmp_path / f"{sample}.txt").write_bytes(name.encode() * 400)
                tar.add(tmp_path / f"{sample}.txt", arcname=f"{sample}.txt")
            link = tarfile.TarInfo("2.txt")
            link.type, link.linkname = tarfile.LNKTYPE, "0.txt"
            tar.addfile(link)
            (tmp_path / "empty").write_bytes(b"")
            tar.add(tmp_path / "empty", arcname="3.TXT")
    reindex(tmp_path / "ds", keys="tar")

    assert verify(tmp_path / "ds").findings == ()
    forge(tmp_path / "ds", lambda rows: [*rows[:2], edit_part(rows[2], size=5), rows[3]])
    (finding,) = verify(tmp_path / "ds").findings
    assert (finding.file, finding.sample) == ("a.tar", "a/2")


@pytest.mark.parametrize(("field", "value"), [("kind", "adapter"), ("kind", "checkpoint"), ("name", "other")])
def test_a_manifest_that_says_it_is_another_is_found(tmp_path: Path, field: str, value: str) -> None:
    """Its description is a dataset's, its shards carry its name."""
    root = of_pairs(tmp_path)
    old = read_manifest(root)
    said = {"kind": old.kind, "name": old.name, field: value}
    (root / "manifest.json").write_bytes(Manifest(members=old.members, about=old.about, **said).to_bytes())  # type: ignore[arg-type]

    for quick in (False, True):
        (finding,) = verify(root, quick=quick).findings
        assert finding.file == "manifest.json"
        assert value in finding.problem
