"""source/vouching: an index beside a tar is believed where it is of that tar, and where it is not that is told."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from datakit import InputError, IntegrityError
from datakit.data.digest import entry_of
from datakit.data.index import Index, index_name
from datakit.data.shard import Part, Row, header
from datakit.events import Caution, Event
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.reindex import Keys, reindex
from datakit.source.kinds import Kind
from datakit.source.vouching import difference
from datakit.verify.verify import verify
from support.packing import raw_lines, samples_of, small_pack, write_lines, write_pairs
from support.tars import write_tar


def tar(path: Path, files: dict[str, bytes]) -> Path:
    """A tar of files, as GNU tar writes it."""
    return write_tar(path, files.items())


def by_key(dataset: Path) -> dict[str, dict[str, bytes]]:
    """The parts of each sample."""
    return {sample.key: dict(sample.parts) for sample in samples_of(dataset)}


def test_an_index_that_does_not_fit_its_tar_is_found_out(tmp_path: Path) -> None:
    """A flipped bit in a shard of ours: the digests of its index tell."""
    pack(write_lines(tmp_path / "raw.jsonl", raw_lines(5)), tmp_path / "one")
    (shard,) = (tmp_path / "one").glob("*.tar")
    data = bytearray(shard.read_bytes())
    data[520] ^= 1
    shard.write_bytes(data)

    with pytest.raises(InputError, match="or not what its index says"):
        pack(tmp_path / "one", tmp_path / "two")


def test_an_index_of_ours_is_not_believed_blindly_beside_a_tar_of_others(tmp_path: Path) -> None:
    """Its digests tell of an edit in place, whatever else the folder holds."""
    pack(write_lines(tmp_path / "raw.jsonl", raw_lines(5)), tmp_path / "one")
    (shard,) = (tmp_path / "one").glob("*.tar")
    data = bytearray(shard.read_bytes())
    data[520] ^= 1
    shard.write_bytes(data)
    tar(tmp_path / "one" / "z.tar", {"z.txt": b"z"})

    with pytest.raises(InputError, match="or not what its index says"):
        pack(tmp_path / "one", tmp_path / "two")


def test_a_shard_that_its_manifest_names_and_that_is_gone_is_an_offender(tmp_path: Path) -> None:
    """A copy that was cut short: its samples would be missing without a word."""
    small_pack(write_pairs(tmp_path / "raw", 40), tmp_path / "one" / "ds")
    first, *rest = sorted((tmp_path / "one" / "ds").glob("*.tar"))
    first.unlink()
    Path(index_name(str(first))).unlink()

    with pytest.raises(InputError, match=rf"ds/{first.name} is not there, and ds/manifest\.json names it") as caught:
        pack(tmp_path / "one", tmp_path / "two")
    result = pack(tmp_path / "one", tmp_path / "two", settings=PackSettings(on_error="skip"))

    assert "sync --repair" in str(caught.value.hint)
    assert (result.left_out.count, len(rest)) == (1, len(list((tmp_path / "one" / "ds").glob("*.tar"))))
    assert pack(rest[0], tmp_path / "single").left_out.count == 0, "a shard by itself is all that was asked for"


@pytest.mark.parametrize("bundle", [None, 4])
def test_an_index_that_is_not_what_its_manifest_says_is_refused(tmp_path: Path, bundle: int | None) -> None:
    """One byte of a key: the tar's own headers would not tell of a line in a bundle."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "one", shard_size="1MiB", bundle=bundle)
    (path,) = (tmp_path / "one").glob("*.index.arrow")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"r00006", b"r90006"))

    with pytest.raises(IntegrityError, match=r"index\.arrow has crc32c \w+ in its bytes 0 to \d+, the manifest says"):
        pack(tmp_path / "one", tmp_path / "two")


def moved(index: Path, key: str, other: str) -> None:
    """Write an index anew with one key another."""
    rows = [
        Row(other if row.key == key else row.key, row.digest, row.parts)
        for row in Index.from_buffer(index.read_bytes()).rows()
    ]
    index.write_bytes(Index.from_rows(rows).to_bytes())


@pytest.mark.parametrize("keys", ["plain", "tar"])
@pytest.mark.parametrize("how", ["a member renamed", "a key edited", "a part lost", "a size edited"])
def test_an_index_whose_tar_says_otherwise_is_not_believed(tmp_path: Path, how: str, keys: Keys) -> None:
    """Its headers are walked: what they say is packed, and it is said that the tar itself was read."""
    files = {f"s{n}.txt": b"%d" % n for n in range(9)}
    path = tar(tmp_path / "raw" / "x.tar", files)
    reindex(tmp_path / "raw", keys=keys)
    (tmp_path / "raw" / "manifest.json").unlink()
    index = Path(index_name(str(path)))
    told: list[Event] = []
    pack(tmp_path / "raw", tmp_path / "before", on_event=told.append)
    assert not [event for event in told if isinstance(event, Caution)]

    if how == "a key edited":
        moved(index, "s4" if keys == "plain" else "x/s4", "s9" if keys == "plain" else "x/s9")
    else:
        files = {
            ("r4.txt" if name == "s4.txt" and how == "a member renamed" else name): data for name, data in files.items()
        }
        if how == "a part lost":
            files[".s8.txt"] = files.pop("s8.txt")
        elif how == "a size edited":
            files["s8.txt"] = b"88"
        tar(path, files)
    pack(tmp_path / "raw", tmp_path / "ds", on_event=told.append)

    assert by_key(tmp_path / "ds") == {
        name.removesuffix(".txt"): {"txt": data} for name, data in files.items() if not name.startswith(".")
    }
    (said,) = [event.message for event in told if isinstance(event, Caution)]
    assert said.startswith("the index beside x.tar is not of this tar: ")


def test_a_member_of_ours_that_was_renamed_is_packed_under_its_name(tmp_path: Path) -> None:
    """A header as datakit writes it, in its place, of the same size; without a manifest nothing else tells."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(9)), tmp_path / "one", shard_size="1MiB")
    (shard,) = (tmp_path / "one").glob("*.tar")
    (tmp_path / "one" / "manifest.json").unlink()
    data, row = shard.read_bytes(), Index.from_buffer(Path(index_name(str(shard))).read_bytes()).row(0)
    shard.write_bytes(header("renamed", "json", row.parts["json"].size) + data[512:])

    pack(tmp_path / "one", tmp_path / "two")

    keys = {f"r{number:05d}" for number in range(9)} - {row.key} | {"renamed"}
    assert set(by_key(tmp_path / "two")) == keys


def test_hard_links_and_what_readers_skip_are_as_their_index_says(tmp_path: Path) -> None:
    """A link's place is that of its target, which may be no part of a sample."""
    path = tar(tmp_path / "raw" / "x.tar", {"README": b"r", "a.txt": b"1", "e.txt": b"x"})
    with tarfile.open(path, "a") as out:
        for name, target in (("b.txt", "a.txt"), ("c.cls", "README")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, target
            out.addfile(link)
    reindex(tmp_path / "raw")
    told: list[Event] = []

    pack(tmp_path / "raw", tmp_path / "ds", on_event=told.append)

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"1"}, "b": {"txt": b"1"}, "c": {"cls": b"r"}, "e": {"txt": b"x"}}
    assert not [event for event in told if isinstance(event, Caution) and "index" in event.message]


@pytest.mark.parametrize("how", ["gone", "of another tar"])
def test_bundles_without_their_index_are_offenders(tmp_path: Path, how: str) -> None:
    """Each would be one sample of many lines: a manifest that says so names the tar as what is not all there."""
    for name, count in (("ds", 20), ("more", 21)):
        raw = write_lines(tmp_path / f"{name}.jsonl", raw_lines(count))
        small_pack(raw, tmp_path / "raw" / name, name="ds", shard_size="1MiB", bundle=7)
    (shard,), (other,) = ((tmp_path / "raw" / name).glob("*.tar") for name in ("ds", "more"))
    if how == "gone":
        Path(index_name(str(shard))).unlink()
    else:
        shard.write_bytes(other.read_bytes())

    with pytest.raises(
        InputError, match=rf"ds/{shard.name}: only an index tells its bundled lines apart, and "
    ) as caught:
        pack(tmp_path / "raw", tmp_path / "two")

    assert "sync --repair" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 1, 2, 3, 4], "and the index names none that begins there"),
        ([1, 2, 3, 4, 5, 6, 7], "does not name r00000.jsonl, which begins at byte 0"),
        ([0, 1, 2, 3, 5, 6, 7], "does not name"),
        ([0, 1, 2, 3, 3, 4, 5, 6, 7], "and the index names none that begins there"),
    ],
)
def test_an_index_that_leaves_out_a_line_of_a_bundle_is_not_believed(
    tmp_path: Path, rows: list[int], said: str
) -> None:
    """No header tells of a line; the lines of a bundle fill it, and each is named once."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(8)), tmp_path / "one", shard_size="1MiB", bundle=4)
    (shard,) = (tmp_path / "one").glob("*.tar")
    index = Index.from_buffer(Path(index_name(str(shard))).read_bytes())

    found = difference(Index.from_rows([index.row(row) for row in rows]), str(shard), shard.stat().st_size)

    assert difference(index, str(shard), shard.stat().st_size) is None
    assert found is not None
    assert said in found


def test_what_no_index_can_name_is_not_believed(tmp_path: Path) -> None:
    """A link, or the rest of a file that another volume began, under the name of a part."""
    path = tar(tmp_path / "raw" / "x.tar", {"a.txt": b"1", "b.txt": b"2"})
    reindex(tmp_path / "raw")
    (tmp_path / "raw" / "manifest.json").unlink()
    data = bytearray(path.read_bytes())
    data[156:157] = b"M"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)

    with pytest.raises(InputError, match=r"x\.tar/a\.txt is a member of another kind, not a file"):
        pack(tmp_path / "raw", tmp_path / "ds")


@pytest.mark.parametrize("wanted", ["auto", "tar"])
def test_a_dataset_all_of_whose_tars_are_gone_is_refused(tmp_path: Path, wanted: Kind) -> None:
    """Its indexes and its manifest are no files that anybody means to pack."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "one", shard_size="1MiB")
    (shard,) = (tmp_path / "one").glob("*.tar")
    shard.unlink()
    settings = PackSettings(input=wanted)

    with pytest.raises(InputError, match=rf"{shard.name} is not there, and manifest\.json names it"):
        pack(tmp_path / "one", tmp_path / "two", settings=settings)
    (tmp_path / "one" / "manifest.json").unlink()
    with pytest.raises(InputError, match="is empty: it holds no records"):
        pack(tmp_path / "one", tmp_path / "two", settings=settings)


def test_a_manifest_that_is_torn_is_told(tmp_path: Path) -> None:
    """It names no tar any more, so nobody knows whether one is missing; what others call so is nothing to speak of."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "one", shard_size="1MiB")
    manifest = tmp_path / "one" / "manifest.json"
    said = []

    for data in (manifest.read_bytes()[:100], b'{"mine": 1}'):
        manifest.write_bytes(data)
        told: list[Event] = []
        pack(tmp_path / "one", tmp_path / "two", on_event=told.append)
        said.append([event.message for event in told if isinstance(event, Caution)])

    ((torn,), nothing) = said
    assert torn.startswith(f"{manifest}: ")
    assert torn.endswith("; so it was not seen whether all tars are there")
    assert nothing == []


def test_an_index_that_its_manifest_names_and_that_is_gone_is_told(tmp_path: Path) -> None:
    """Without it tokens are gone, and no digest says what a sample was."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "one", shard_size="1MiB")
    (path,) = (tmp_path / "one").glob("*.index.arrow")
    path.unlink()
    told: list[Event] = []

    pack(tmp_path / "one", tmp_path / "two", on_event=told.append)

    (said,) = [event.message for event in told if isinstance(event, Caution)]
    assert "has no index beside it, which its manifest names; so the tar itself was read" in said


def test_a_torn_index_is_named_with_what_mends_it(tmp_path: Path) -> None:
    """It is not passed over: the tar's own headers would give other samples, as of bundled lines."""
    path = tar(tmp_path / "raw" / "x.tar", {"a.txt": b"t"})
    Path(index_name(str(path))).write_bytes(b"torn")

    with pytest.raises(IntegrityError, match=r"raw/x\.tar\.index\.arrow: it is not a datakit index.*datakit reindex"):
        pack(tmp_path / "raw", tmp_path / "ds")
    reindex(tmp_path / "raw")
    pack(tmp_path / "raw", tmp_path / "ds")

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"t"}}


@pytest.mark.parametrize("known", [False, True])
def test_an_index_with_a_key_that_is_no_text_is_named_with_what_mends_it(tmp_path: Path, known: bool) -> None:
    """A flipped byte, whether a manifest vouches for it or not."""
    path = tar(tmp_path / "raw" / "x.tar", {"apple.txt": b"t"})
    index, manifest = Path(index_name(str(path))), tmp_path / "raw" / "manifest.json"
    reindex(tmp_path / "raw")
    old = entry_of(index.name, index.read_bytes())
    index.write_bytes(index.read_bytes().replace(b"apple", b"appl\xff"))
    new = entry_of(index.name, index.read_bytes())
    data = manifest.read_bytes()
    for was, is_now in ((old.sha256, new.sha256), (old.md5, new.md5), (old.crc32c[0], new.crc32c[0])):
        data = data.replace(was.encode(), is_now.encode())
    manifest.write_bytes(data) if known else manifest.unlink()

    with pytest.raises(IntegrityError, match=r"x\.tar\.index\.arrow: it holds what is no text.*datakit reindex"):
        pack(tmp_path / "raw", tmp_path / "ds")
    if known:
        (finding,) = verify(tmp_path / "raw").findings
        assert (finding.file, finding.problem[:21]) == (index.name, "it holds what is no t")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Part(-5, 2, 0), -5),
        (Part(512, 1, 0), 512),
        (Part(514, 2, 0), 514),
        (Part(0, 0, 0), 0),
        (Part(2**63 - 1, 2, 0), 2**63 - 1),
        (Part(512, -3, 0), 512),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
@pytest.mark.parametrize("part", ["txt", "json"])
def test_an_index_that_names_what_no_member_is_is_not_believed(
    tmp_path: Path, part: str, suffix: str, place: Part, said: int
) -> None:
    """Before the tar, behind it, of no bytes, or inside a member, where only lines of a bundle lie."""
    is_line = (part, suffix) == ("json", "jsonl") and (place.offset, place.size) in ((512, 1), (514, 2))
    path = tar(tmp_path / "raw" / "x.tar", {f"a.{suffix}": b"12345"})
    reindex(tmp_path / "raw")
    index = Path(index_name(str(path)))
    rows = [*Index.from_buffer(index.read_bytes()).rows(), Row("zz", bytes(16), {part: place})]

    found = difference(Index.from_rows(rows), str(path), path.stat().st_size)

    expected = f"no part of a sample is at byte {said}, where the index names zz.{part}"
    assert found == (None if is_line else expected)


def appended(path: Path, files: dict[str, bytes]) -> None:
    """Append files to a tar as GNU tar does: over its end."""
    folder = path.parent.parent / "new"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    subprocess.run(["tar", "--format=ustar", "-rf", path, "-C", folder, *files], check=True)


def test_an_index_that_is_older_than_its_tar_is_not_believed(tmp_path: Path) -> None:
    """A sample that was appended is packed, and it is said that the tar itself was read."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "ds", shard_size="1MiB")
    raw = tmp_path / "raw"
    raw.mkdir()
    (shard,) = (tmp_path / "ds").glob("*.tar")
    for name in (shard.name, index_name(shard.name)):
        (raw / name).write_bytes((tmp_path / "ds" / name).read_bytes())
    told: list[Event] = []
    settings = PackSettings(shard_size="1MiB")
    pack(raw, tmp_path / "before", settings=settings, on_event=told.append)

    assert not [event for event in told if isinstance(event, Caution)]
    end = shard.stat().st_size - 1024
    appended(raw / shard.name, {"zz/new.json": b"{}"})
    pack(raw, tmp_path / "after", settings=settings, on_event=told.append)

    assert len(by_key(tmp_path / "after")) == 21
    assert "zz/new" in by_key(tmp_path / "after")
    said = next(event.message for event in told if isinstance(event, Caution))
    assert said == (
        f"the index beside {shard.name} is not of this tar: the index does not name zz/new.json, which begins at byte "
        f"{end}; so the tar itself was read"
    )


def test_an_index_is_not_believed_where_the_manifest_gives_another_size(tmp_path: Path) -> None:
    """Zeros behind the end are no sample, and yet this is not the tar that was committed."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "raw/ds", shard_size="1MiB")
    (shard,) = (tmp_path / "raw/ds").glob("*.tar")
    size = shard.stat().st_size
    os.truncate(shard, size + 10240)
    told: list[Event] = []

    pack(tmp_path / "raw", tmp_path / "ds", on_event=told.append)

    (said,) = [event.message for event in told if isinstance(event, Caution)]
    assert f"the manifest gives it {size} bytes, and it has {size + 10240}" in said
    assert len(by_key(tmp_path / "ds")) == 20


def test_an_index_of_a_longer_tar_does_not_hide_that_this_one_is_cut(tmp_path: Path) -> None:
    """The tar itself is read, and has no end."""
    small_pack(write_lines(tmp_path / "x.jsonl", raw_lines(20)), tmp_path / "ds", shard_size="1MiB")
    (tmp_path / "ds/manifest.json").unlink()
    (shard,) = (tmp_path / "ds").glob("*.tar")
    os.truncate(shard, shard.stat().st_size - 2048)

    with pytest.raises(InputError, match="is not a whole tar"):
        pack(tmp_path / "ds", tmp_path / "again")


def test_what_readers_skip_behind_the_last_sample_needs_no_index(tmp_path: Path) -> None:
    """An index that reindex made of such a tar covers it."""
    tar(tmp_path / "raw/x.tar", {"a.txt": b"1", "README": b"r", ".hidden": b"h", "__meta__/x.json": b"{}"})
    reindex(tmp_path / "raw")
    told: list[Event] = []

    pack(tmp_path / "raw", tmp_path / "ds", on_event=told.append)

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"1"}}
    assert not [event for event in told if isinstance(event, Caution)]
