"""pack/reindex: tars of others are a dataset for all that reads datasets, and stay what they were."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES, entry_of
from datakit.data.index import index_name
from datakit.data.manifest import MANIFEST_NAME
from datakit.data.shard import Sample
from datakit.errors import InputError, NotFound, Refused, UsageError
from datakit.events import Caution, Event, Progress
from datakit.feed.dataset import open_dataset
from datakit.feed.loader import Loader
from datakit.pack.reading import cat, inspect
from datakit.pack.reindex import PACK, ReindexResult, reindex
from datakit.storage.commit import lock_path, read_manifest, verify_commit
from datakit.storage.disk import exclusive
from datakit.storage.sync import sync
from datakit.verify.verify import verify
from support.commits import noise
from support.packing import small_pack, write_pairs
from support.reaper import Reaper
from support.tars import contents, files_of, pairs, write_tar, write_webdataset


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Three tars by three writers: webdataset, Python with PAX headers, Python with GNU's; one in a folder."""
    root = tmp_path / "theirs"
    write_webdataset(root / "000.tar", pairs(range(30)))
    write_tar(root / "001.tar", files_of(pairs(range(30, 50))), kind=tarfile.PAX_FORMAT)
    write_tar(root / "more" / "002.tar", files_of(pairs(range(50, 60))))
    return root


def read_back(dataset: Path) -> list[Sample]:
    """Every sample by feed, checksums compared."""
    return [
        Sample(item.key, {part: bytes(data) for part, data in item.parts.items()}) for item in open_dataset(dataset)
    ]


def test_tars_become_a_dataset_where_they_are(tars: Path) -> None:
    """Their bytes are as before; feed, inspect, cat and verify take them for any other dataset."""
    before = contents(tars)

    result = reindex(tars, workers=1)

    manifest = read_manifest(tars)
    after = contents(tars)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {MANIFEST_NAME, *map(index_name, before)}
    assert read_back(tars) == pairs(range(60))
    assert [cat(tars, f"img-{n:04d}.jpg") for n in (0, 33, 59)] == [pairs([n])[0].parts["jpg"] for n in (0, 33, 59)]
    assert (inspect(tars).samples, inspect(tars).parts["cls"].total_bytes) == (60, 60)
    assert verify(tars).findings == verify(tars, quick=True).findings == ()
    assert verify_commit(tars) == manifest
    assert (manifest.name, dict(manifest.contents.pack)) == ("theirs", PACK)
    assert result == ReindexResult(
        path=tars,
        name="theirs",
        shards=3,
        samples=60,
        shard_bytes=sum(map(len, before.values())),
        payload_bytes=manifest.contents.payload_bytes,
        parts={"cls": 60, "jpg": 60},
        skipped={},
        scattered=0,
        linked=0,
        content_digest=manifest.contents.content_digest,
        manifest_digest=manifest.digest,
    )


def test_tars_become_a_dataset_elsewhere_by_hard_links(tars: Path, tmp_path: Path) -> None:
    """An ordinary commit: no byte of a tar is copied, and the source is not written to."""
    before = contents(tars)

    result = reindex(tars, tmp_path / "ds", name="cc3m", workers=2)

    assert contents(tars) == before
    assert all((tmp_path / "ds" / name).samefile(tars / name) for name in before)
    assert read_back(tmp_path / "ds") == pairs(range(60))
    assert (result.name, read_manifest(tmp_path / "ds").name) == ("cc3m", "cc3m")
    assert verify(tmp_path / "ds").findings == ()


def test_where_and_by_how_many_does_not_matter(tars: Path, tmp_path: Path) -> None:
    """In place and elsewhere, by one process and by three: the same manifest and indexes."""
    elsewhere = reindex(tars, tmp_path / "ds", name="same", workers=3)
    here = reindex(tars, name="same", workers=1)

    assert elsewhere.manifest_digest == here.manifest_digest
    assert contents(tmp_path / "ds") == contents(tars)


def test_the_content_digest_is_that_of_the_samples(tmp_path: Path) -> None:
    """The same samples packed by us and indexed from others' tars are the same content."""
    small_pack(write_pairs(tmp_path / "raw", 30), tmp_path / "ours")
    samples = read_back(tmp_path / "ours")
    write_tar(tmp_path / "theirs" / "a.tar", files_of(samples))

    result = reindex(tmp_path / "theirs", workers=1)

    assert result.content_digest == read_manifest(tmp_path / "ours").contents.content_digest


def test_an_epoch_is_delivered_once(tars: Path) -> None:
    """A loader's order and cursor know nothing of who wrote the tars."""
    reindex(tars, workers=1)

    loader = Loader(open_dataset(tars), batch_size=7, tail="exact", collate=lambda batch: [item.key for item in batch])

    assert sorted(key for batch in loader for key in batch) == [sample.key for sample in pairs(range(60))]


def test_scattered_and_linked_parts_are_read_and_said(tmp_path: Path) -> None:
    """They are whole samples here, and a caution tells that other readers see them otherwise."""
    made = pairs(range(12))
    files = [(f"{sample.key}.{part}", sample.parts[part]) for part in ("jpg", "cls") for sample in made]
    path = write_tar(tmp_path / "t" / "a.tar", files)
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("img-9999.cls")
        link.type, link.linkname = tarfile.LNKTYPE, "img-0003.cls"
        tar.addfile(link)
    heard: list[Event] = []

    result = reindex(tmp_path / "t", workers=1, on_event=heard.append)

    assert (result.scattered, result.linked) == (12, 1)
    assert read_back(tmp_path / "t") == [*made, Sample("img-9999", {"cls": b"3"})]
    assert verify(tmp_path / "t").findings == ()
    cautions = [event.message for event in heard if isinstance(event, Caution)]
    assert cautions == [
        "the parts of 12 samples do not stand together: other readers see each as several samples",
        "1 part is a hard link, which other readers skip",
    ]
    assert [event.done for event in heard if isinstance(event, Progress)] == [path.stat().st_size]


def test_side_files_for_other_readers_are_offered(tars: Path) -> None:
    """As pack does; they are members, and those with names of their own may change."""
    result = reindex(tars, readers=["energon", "dali"], workers=1)

    manifest = read_manifest(tars)
    assert {"000.tar.idx", "000.idx", "more/002.tar.idx", ".nv-meta/.info.json"} <= {e.name for e in manifest.members}
    assert ".nv-meta/index.sqlite" in manifest.derived
    assert verify(tars).findings == ()
    write_tar(tars / "003.tar", files_of(pairs(range(60, 70))))
    again = reindex(tars, readers=["energon", "dali"], workers=1)
    assert verify(tars).findings == ()
    assert (result.samples, again.samples) == (60, 70)
    assert reindex(tars, workers=1).manifest_digest != again.manifest_digest
    assert not (tars / "000.tar.idx").exists()
    assert verify(tars).findings == ()


def test_side_files_that_cannot_be_are_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    """Energon reads ranges: scattered parts would be mixed up."""
    made = pairs(range(3))
    files = [(f"{sample.key}.{part}", sample.parts[part]) for part in ("jpg", "cls") for sample in made]
    write_tar(tmp_path / "t" / "a.tar", files)

    with pytest.raises(InputError, match="do not stand together"):
        reindex(tmp_path / "t", tmp_path / "ds", readers=["energon"], workers=1)
    with pytest.raises(UsageError, match="no side files for mds"):
        reindex(tmp_path / "t", tmp_path / "ds", readers=["mds"], workers=1)  # type: ignore[list-item]  # the point

    assert not (tmp_path / "ds").exists()


def test_a_changed_directory_is_indexed_again(tars: Path) -> None:
    """A tar more, one less, one with other bytes: the new manifest names what is there, and old indexes go."""
    reindex(tars, workers=1)
    (tars / "000.tar").unlink()
    write_tar(tars / "001.tar", files_of(pairs(range(200, 210))))
    write_tar(tars / "003.tar", files_of(pairs(range(300, 305))))

    result = reindex(tars, workers=1)

    assert (result.shards, result.samples) == (3, 25)
    assert verify(tars).findings == ()
    assert not (tars / index_name("000.tar")).exists()
    assert read_back(tars) == [*pairs(range(200, 210)), *pairs(range(300, 305)), *pairs(range(50, 60))]


def test_a_dry_run_reads_all_and_writes_nothing(tars: Path, tmp_path: Path) -> None:
    """The same result, without a manifest."""
    before = contents(tars)

    planned = [reindex(tars, dest, workers=1, dry_run=True, name="n") for dest in (None, tmp_path / "ds")]

    done = reindex(tars, workers=1, name="n")
    assert contents(tars).keys() - before.keys() == {MANIFEST_NAME, *map(index_name, before)}
    assert not (tmp_path / "ds").exists()
    assert planned[0].manifest_digest is None
    assert planned[0].content_digest == planned[1].content_digest == done.content_digest


def test_what_cannot_be_indexed_is_listed_with_the_command_that_packs_it(tars: Path) -> None:
    """All offenders of all tars, three in words; nothing is left behind."""
    write_tar(tars / "003.tar", [(f"x{number}.", b"") for number in range(12)])
    write_tar(tars / "004.tar", [("y.txt", b"1"), ("y.txt", b"2")])
    before = contents(tars)

    with pytest.raises(InputError) as caught:
        reindex(tars, workers=2)

    assert "13 members (003.tar: x0.: nothing follows the dot in its name, 003.tar: x1.:" in caught.value.message
    assert "and 10 more" in caught.value.message
    assert caught.value.hint == f"Pack the samples anew: datakit pack {tars} DEST --input tar --on-error skip"
    assert contents(tars) == before


def test_a_key_in_two_tars_is_refused(tars: Path) -> None:
    """Numbers that begin anew in each tar: no sample could be found by its key."""
    write_tar(tars / "003.tar", files_of(pairs([3, 99])))

    with pytest.raises(InputError, match=r"1 sample \(img-0003 \(in 000\.tar, 003\.tar\)\)") as caught:
        reindex(tars, workers=1)

    with pytest.raises(InputError) as elsewhere:
        reindex(tars, tars.parent / "ds", workers=1)

    assert caught.value.hint == f"Tell them apart by their tars: datakit reindex {tars} --keys tar"
    assert elsewhere.value.hint == f"Tell them apart by their tars: datakit reindex {tars} {tars.parent}/ds --keys tar"
    assert not (tars / MANIFEST_NAME).exists()
    assert list(tars.glob("*.arrow")) == []


def test_tars_that_number_anew_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """`--keys tar`: each key is the tar's name, a slash, and what it is in the tar; the tars stay as they are."""
    for name in ("000", "more/001"):
        write_webdataset(tmp_path / "t" / f"{name}.tar", pairs(range(5)))
    before = contents(tmp_path / "t")

    reindex(tmp_path / "t", keys="tar", readers=["energon"], workers=1)

    assert [item.key for item in read_back(tmp_path / "t")] == [
        f"{name}/img-{n:04d}" for name in ("000", "more/001") for n in range(5)
    ]
    assert cat(tmp_path / "t", "more/001/img-0003.cls") == b"3"
    assert verify(tmp_path / "t").findings == ()
    assert dict(read_manifest(tmp_path / "t").contents.pack) == {"foreign": True, "keys": "tar"}
    assert {name: data for name, data in contents(tmp_path / "t").items() if name in before} == before
    with pytest.raises(UsageError, match="keys can be plain or tar, not 'folder'"):
        reindex(tmp_path / "t", keys="folder")  # type: ignore[arg-type]  # the point


def test_compressed_tars_are_named_before_anything_is_read(tars: Path) -> None:
    """They are meant, and cannot be had by place."""
    (tars / "a.tar.gz").write_bytes(b"\x1f\x8b")

    with pytest.raises(InputError, match=r"a\.tar\.gz: it is compressed"):
        reindex(tars)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: os.mkfifo(root / "003.tar"), r"003\.tar is neither a file nor a folder"),
        (lambda root: (root / "003.tar").symlink_to("lost.tar"), r"003\.tar is neither a file nor a folder"),
        (lambda root: (root / "link").symlink_to("more"), "link is a link to a folder, and is not followed"),
    ],
)
def test_tars_that_are_meant_and_cannot_be_read_are_told(
    make: Callable[[Path], object], said: str, tars: Path, tmp_path: Path
) -> None:
    """They would be missing without a word: a pipe, a broken link, and what a link to a folder leads to."""
    make(tars)

    for dest in (None, tmp_path / "ds"):
        with pytest.raises((InputError, Refused), match=said):
            reindex(tars, dest, workers=1)


def test_other_files_need_a_place_of_its_own(tars: Path, tmp_path: Path) -> None:
    """A dataset holds what its manifest names; beside it there is room for the rest."""
    (tars / "000_stats.json").write_bytes(b"{}")

    with pytest.raises(Refused, match=r"also holds 1 other file \(000_stats\.json\)") as caught:
        reindex(tars)

    assert f"datakit reindex {tars} DEST" in str(caught.value.hint)
    assert reindex(tars, tmp_path / "ds", workers=1).samples == 60
    assert verify(tmp_path / "ds").findings == ()


def test_a_dataset_of_our_own_is_left_alone(tmp_path: Path, tars: Path) -> None:
    """It has its index; as a destination it holds something else."""
    small_pack(write_pairs(tmp_path / "raw", 10), tmp_path / "ours")

    with pytest.raises(Refused, match="holds the dataset ours"):
        reindex(tmp_path / "ours")
    with pytest.raises(Refused, match="holds the dataset ours"):
        reindex(tars, tmp_path / "ours")


@pytest.mark.parametrize("dry_run", [False, True])
def test_tars_indexed_where_they_lie_are_not_replaced_by_others(tmp_path: Path, tars: Path, dry_run: bool) -> None:
    """A tar without another name is the last of its bytes; a link to one that lies elsewhere may go."""
    write_webdataset(tmp_path / "mine" / "a.tar", pairs(range(5)))
    reindex(tmp_path / "mine", workers=1)
    reindex(tars, tmp_path / "linked", workers=1)

    with pytest.raises(Refused, match=r"mine holds the only copy of 1 tar \(a.tar\), which would be removed"):
        reindex(tars, tmp_path / "mine", workers=1, dry_run=dry_run)
    reindex(tmp_path / "mine", tmp_path / "linked", workers=1, dry_run=dry_run)

    assert (tmp_path / "mine" / "a.tar").exists()
    assert (tmp_path / "linked" / "a.tar").exists() != dry_run


def test_a_place_without_tars_says_so(tmp_path: Path) -> None:
    """Nothing, a file, an empty folder, a URL."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(NotFound, match="nowhere is not there"):
        reindex(tmp_path / "nowhere")
    with pytest.raises(InputError, match="file is a file, not a directory with tars"):
        reindex(tmp_path / "file")
    with pytest.raises(InputError, match=r"empty holds no \.tar file"):
        reindex(tmp_path / "empty")
    with pytest.raises(UsageError, match="reindex works on a local directory, not on s3://bkt/tars"):
        reindex("s3://bkt/tars")


def test_two_at_once_are_one(tars: Path) -> None:
    """Whoever writes there holds its lock."""
    with exclusive(lock_path(tars), purpose="a test"), pytest.raises(Refused, match="is already indexing"):
        reindex(tars, workers=1)


def test_another_file_system_gets_copies(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no hard link can be made the tars are copied, and the copies compared."""

    def no_link(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "link", no_link)

    reindex(tars, tmp_path / "ds", workers=1)

    assert verify(tmp_path / "ds").findings == ()
    assert not (tmp_path / "ds" / "000.tar").samefile(tars / "000.tar")


@pytest.mark.parametrize("place", ["in place", "linked", "copied"])
@pytest.mark.parametrize("change", ["rewritten", "cut", "replaced"])
def test_a_tar_that_changes_after_it_was_read_is_not_committed(
    place: str, change: str, tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the others took to read: the first changes when the last is through."""
    total, before = sum(map(len, contents(tars).values())), set(contents(tars))

    def change_it(event: Event) -> None:
        if isinstance(event, Progress) and event.done == total:
            data = (tars / "000.tar").read_bytes()
            if change == "replaced":
                (tars / "000.tar").unlink()
            (tars / "000.tar").write_bytes(data[:1024] if change == "cut" else data[:-1] + b"x")
            os.utime(tars / "000.tar", ns=(0, 0))

    if place == "copied":
        monkeypatch.setattr("datakit.storage.links.link", lambda *_: False)
    with pytest.raises(InputError, match=r"000\.tar changed while it was read") as caught:
        reindex(tars, None if place == "in place" else tmp_path / "ds", workers=1, on_event=change_it)

    assert caught.value.hint == "Run the same command again when it is at rest"
    assert set(contents(tars)) == before
    assert not (tmp_path / "ds").exists()


def test_a_tar_that_is_written_to_while_it_is_linked_is_not_committed(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link is the same file, so it is looked at once more when all of them are there."""
    link = os.link

    def link_and_write(source: Path, target: Path) -> None:
        link(source, target)
        with open(source, "r+b") as file:
            file.write(b"x")
        os.utime(source, ns=(0, 0))

    monkeypatch.setattr(os, "link", link_and_write)

    with pytest.raises(InputError, match=r"000\.tar changed while it was read"):
        reindex(tars, tmp_path / "ds", workers=1)


def test_two_names_of_one_tar_and_a_link_to_one_are_taken(tars: Path, tmp_path: Path) -> None:
    """A hard link changes the time of its inode, which is no change of the tar."""
    os.link(tars / "000.tar", tars / "003.tar")
    (tars / "004.tar").symlink_to("001.tar")

    reindex(tars, tmp_path / "ds", keys="tar", workers=1)

    assert verify(tmp_path / "ds").findings == ()
    assert (tmp_path / "ds" / "004.tar").samefile(tars / "001.tar")
    assert not (tmp_path / "ds" / "004.tar").is_symlink()


def test_it_is_synced_as_any_dataset(tars: Path, tmp_path: Path) -> None:
    """Folders of tars included."""
    reindex(tars, workers=1)

    sync(tars, tmp_path / "there")

    assert read_back(tmp_path / "there") == pairs(range(60))


def test_a_cut_tar_is_not_to_be_packed_anew(tars: Path, tmp_path: Path) -> None:
    """Pack takes no damaged tar either, so the hint names what does help."""
    whole = (tars / "001.tar").read_bytes()
    (tars / "001.tar").write_bytes(whole[:5120])

    with pytest.raises(InputError, match="it ends at byte 5120") as caught:
        reindex(tars, workers=1)

    assert caught.value.hint == "Fetch it again, or move it away; datakit pack takes no damaged tar either"
    with pytest.raises(InputError, match="is not a whole tar"):
        small_pack(tars, tmp_path / "anew", input="tar")


def test_any_damage_of_a_foreign_tar_is_found(tars: Path) -> None:
    """Flips and holes anywhere: content by its sample, a header by its byte, the rest by its part of the file."""
    reindex(tars, workers=1)
    rng = random.Random(5)
    names = [shard.name for shard in read_manifest(tars).contents.shards]
    whole = {name: (tars / name).read_bytes() for name in names}
    dataset = open_dataset(tars)
    by_content = {item.key for item in dataset}

    for number in range(60):
        name = rng.choice(names)
        at = rng.randrange(len(whole[name]))
        size = rng.choice([1, 700])
        changed = whole[name][:at] + (bytes([whole[name][at] ^ 0x55]) if size == 1 else bytes(size))
        changed = (changed + whole[name][at + size :])[: len(whole[name])]
        (tars / name).write_bytes(changed)
        findings = verify(tars).findings
        (tars / name).write_bytes(whole[name])

        assert bool(findings) == (changed != whole[name]), (number, name, at)
        for finding in findings:
            assert finding.file == name
            assert finding.sample is None or finding.sample in by_content
            assert finding.byte is not None
            assert finding.byte <= at + size


def test_a_damaged_header_of_a_foreign_tar_names_the_sample_after_it(tars: Path) -> None:
    """Its own checksum tells; the index tells whose content follows."""
    reindex(tars, workers=1)
    place = next(item for item in inspect(tars, show=60).first_samples if item.key == "img-0035")
    data = bytearray((tars / place.shard).read_bytes())
    at = data.index(b"img-0035.cls\0")
    data[at] ^= 1
    (tars / place.shard).write_bytes(data)

    (finding,) = verify(tars).findings

    assert (finding.sample, finding.part, finding.byte) == ("img-0035", "cls", at)
    assert f"the header at byte {at} does not match its checksum" in finding.problem


def test_a_cut_foreign_tar_names_what_is_lost(tars: Path) -> None:
    """By the sizes alone as well."""
    reindex(tars, workers=1)
    path = tars / "001.tar"
    data = path.read_bytes()
    at = data.index(pairs([40])[0].parts["jpg"])
    path.write_bytes(data[: at + 3])

    for quick in (False, True):
        finding = verify(tars, quick=quick).findings[0]
        assert (finding.sample, finding.part, finding.byte) == ("img-0040", "jpg", at + 3)
        assert "10 samples are lost" in finding.problem


def test_a_large_tar_is_indexed_in_stretches(tmp_path: Path) -> None:
    """More than one checksummed part; each crc32c is that of its 16 MiB."""
    samples = [Sample(name, {"bin": noise(7 * 2**20, seed)}) for seed, name in enumerate("abcde")]
    path = write_tar(tmp_path / "t" / "a.tar", files_of(samples))

    reindex(tmp_path / "t", workers=1)

    assert len(read_manifest(tmp_path / "t").member("a.tar").crc32c) == -(-path.stat().st_size // PART_BYTES) == 3
    assert read_back(tmp_path / "t") == samples
    assert verify(tmp_path / "t").findings == ()


@pytest.mark.parametrize("name", [MANIFEST_NAME, index_name("a.tar")])
def test_a_folder_in_the_place_of_a_file_of_ours_is_told(tmp_path: Path, name: str) -> None:
    """With its path, before a tar is read, and the tars are as they were."""
    write_tar(tmp_path / "t" / "a.tar", [("a.txt", b"1")])
    (tmp_path / "t" / name).mkdir()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(Refused, match=f"{name} is a folder, in the way of a file of that name"):
        reindex(tmp_path / "t", workers=1, on_event=lambda _: pytest.fail("it began"))

    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_another_preparation_are_not_overwritten(tars: Path) -> None:
    """Side files that somebody has made, such as a sample type for Energon, are theirs."""
    (tars / ".nv-meta").mkdir()
    (tars / ".nv-meta" / "dataset.yaml").write_text("__class__: CaptioningSample\n")

    with pytest.raises(Refused, match=r"also holds 1 other file \(\.nv-meta/dataset\.yaml\)"):
        reindex(tars, readers=["energon"], workers=1)

    assert (tars / ".nv-meta" / "dataset.yaml").read_text() == "__class__: CaptioningSample\n"


@pytest.fixture(scope="module")
def reaper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reaper]:
    """The server that forks and kills."""
    room = tmp_path_factory.mktemp("killed")
    with Reaper(room) as running:
        running.room = room  # type: ignore[attr-defined]  # for the tests below
        yield running


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("place", ["in place", "elsewhere"])
def test_killed_anywhere_it_is_whole_or_not_there(place: str, again: bool, reaper: Reaper) -> None:
    """Killed at some file operations: tars as they were, the old dataset, the new one or none; the next run ends it."""
    room: Path = reaper.room  # type: ignore[attr-defined]  # set by the fixture
    src = room / "theirs"
    dest = None if place == "in place" else room / "ds"
    request = {"verb": "reindex", "src": src, "dest": dest}
    old, new = files_of(pairs(range(10))), files_of(pairs(range(100, 120)))

    def start() -> None:
        shutil.rmtree(room)
        write_tar(src / "a.tar", old)
        write_tar(src / "sub" / "b.tar", files_of(pairs(range(50, 60))))
        if again:
            reaper.operations(**request)
        write_tar(src / "c.tar", new)

    start()
    before = {name: data for name, data in contents(src).items() if name.endswith(".tar")}
    operations = reaper.operations(**request)
    last = contents(room)
    assert operations > 20
    for at in sorted({1 + number * (operations - 1) // 7 for number in range(8)}):
        start()
        reaper.kill(at, **request)
        where = dest or src
        assert {name: data for name, data in contents(src).items() if name.endswith(".tar")} == before
        if (where / MANIFEST_NAME).exists():
            manifest = read_manifest(where)
            plain = [entry for entry in manifest.members if entry.name not in manifest.derived]
            assert all(entry_of(e.name, (where / e.name).read_bytes()) == e for e in plain)
        reaper.operations(**request)
        assert contents(room) == last, f"after a kill at operation {at} of {operations}"


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_that_cannot_be_is_refused(tars: Path, workers: int) -> None:
    """As in `pack`, and not read as something else."""
    with pytest.raises(UsageError, match=f"--workers is {workers}"):
        reindex(tars, workers=workers)
