"""pack/foreign: one tar of others becomes rows as its readers see it, and whatever would be lost is a trouble."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from datakit.data.archive import entries
from datakit.data.digest import crc32c, entry_of
from datakit.data.index import Index
from datakit.data.shard import Row, Sample, sample_digest
from datakit.errors import InputError
from datakit.pack import foreign
from datakit.pack.foreign import MOST_TROUBLES, Indexed, Tar, index_tar
from datakit.storage.disk import hash_file
from support.peers import webdataset_samples
from support.samples import SAMPLES, shard_of
from support.tars import files_of, pairs, write_tar, write_webdataset
from support.waiting import no_waiting


def index(path: Path) -> tuple[Indexed, list[Row]]:
    """What a tar comes to, and the rows of its index."""
    target = path.with_name("index")
    target.unlink(missing_ok=True)
    indexed = index_tar(Tar(path, path.name, target))
    return indexed, Index.from_buffer(target.read_bytes()).rows() if target.exists() else []


def samples(path: Path, rows: list[Row]) -> list[Sample]:
    """The samples that rows address."""
    data = path.read_bytes()
    return [
        Sample(row.key, {part: data[at.offset : at.offset + at.size] for part, at in row.parts.items()}) for row in rows
    ]


def troubles(path: Path) -> list[str]:
    """Why a tar cannot be indexed; there is no index then."""
    indexed, rows = index(path)
    assert rows == []
    assert indexed.troubles
    return [str(trouble) for trouble in indexed.troubles]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_rows_are_what_webdataset_reads(kind: int, tmp_path: Path) -> None:
    """Keys, parts and bytes of every sample, in its order, whatever the headers are."""
    path = write_tar(tmp_path / "a.tar", files_of(pairs(range(50))), kind=kind)

    indexed, rows = index(path)

    assert samples(path, rows) == webdataset_samples(path) == pairs(range(50))
    assert indexed.shard == entry_of("a.tar", path.read_bytes())
    assert (indexed.totals.samples, dict(indexed.totals.parts)) == (50, {"cls": 50, "jpg": 50})
    assert (indexed.troubles, indexed.skipped, indexed.scattered, indexed.linked) == ((), {}, 0, 0)
    assert [row.digest for row in rows] == [sample_digest(sample.parts) for sample in pairs(range(50))]


def test_webdatasets_own_tars_are_indexed(tmp_path: Path) -> None:
    """As its TarWriter writes them: with the time of writing, and an owner."""
    path = write_webdataset(tmp_path / "a.tar", pairs(range(20)))

    assert samples(path, index(path)[1]) == pairs(range(20))


@given(SAMPLES.filter(bool))
def test_our_own_shards_have_the_index_that_pack_gave_them(made: list[Sample]) -> None:
    """A tar tells all that an index holds, but for tokens and sources."""
    path = Path("own.tar")
    data, rows = shard_of([Sample(sample.key, sample.parts) for sample in made])
    path.write_bytes(data)

    assert index(path)[1] == rows


def test_gnu_tar_of_a_folder_is_indexed(tmp_path: Path) -> None:
    """Folders are skipped and counted, names start with `./` as readers see them."""
    for name, data in files_of(pairs(range(5))):
        (tmp_path / "in" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "sub" / name).write_bytes(data)
    path = tmp_path / "a.tar"
    subprocess.run(["tar", "--sort=name", "-C", str(tmp_path / "in"), "-cf", str(path), "."], check=True)

    indexed, rows = index(path)

    assert [row.key for row in rows] == [f"./sub/img-{n:04d}" for n in range(5)]
    assert indexed.skipped == {"folders": 2}
    assert samples(path, rows) == webdataset_samples(path)


def test_long_names_and_dotted_names_split_as_readers_split_them(tmp_path: Path) -> None:
    """At the first dot after the last slash; parts in lower case."""
    files = [(f"v1.0/{'long' * 40}.seg.PNG", b"1"), ("a.b.c.jpg", b"2")]
    path = write_tar(tmp_path / "a.tar", files)

    rows = index(path)[1]

    assert [(row.key, list(row.parts)) for row in rows] == [
        (f"v1.0/{'long' * 40}", ["seg.png"]),
        ("a", ["b.c.jpg"]),
    ]
    assert samples(path, rows) == webdataset_samples(path)


def test_scattered_parts_are_one_sample(tmp_path: Path) -> None:
    """All labels after all images: two half samples for webdataset, one for us, with the digest of the whole."""
    made = pairs(range(10))
    files = [(f"{s.key}.{part}", s.parts[part]) for part in ("jpg", "cls") for s in made]
    path = write_tar(tmp_path / "a.tar", files)

    indexed, rows = index(path)

    assert samples(path, rows) == made
    assert indexed.scattered == 10
    assert [row.digest for row in rows] == [sample_digest(sample.parts) for sample in made]
    assert len(webdataset_samples(path)) == 20


def test_what_readers_skip_is_skipped_and_counted(tmp_path: Path) -> None:
    """Hidden files, names without a dot, `__x__`, devices: by what they are."""
    files = [
        ("._a.jpg", b"mac"),
        ("sub/.hidden.txt", b"x"),
        ("README", b"x"),
        ("__meta__/a.json", b"{}"),
        ("a.txt", b"a"),
    ]
    path = write_tar(tmp_path / "a.tar", files)
    with tarfile.open(path, "a") as tar:
        fifo = tarfile.TarInfo("pipe.txt")
        fifo.type = tarfile.FIFOTYPE
        tar.addfile(fifo)

    indexed, rows = index(path)

    assert [row.key for row in rows] == ["a"]
    assert indexed.skipped == {"devices": 1, "hidden files": 2, "names of the form __x__": 1, "names without a dot": 1}


def test_a_hard_link_is_the_bytes_it_leads_to(tmp_path: Path) -> None:
    """Readers of streams skip it; a place can be named twice."""
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"the text")])
    add_link(path, "b.txt", "a.txt", tarfile.LNKTYPE)

    indexed, rows = index(path)

    assert samples(path, rows) == [Sample("a", {"txt": b"the text"}), Sample("b", {"txt": b"the text"})]
    assert indexed.linked == 1


def add_link(path: Path, name: str, target: str, kind: bytes) -> None:
    """Append a link to a tar."""
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, target
        tar.addfile(link)


def test_links_that_lead_nowhere_are_troubles(tmp_path: Path) -> None:
    """A symbolic one, and a hard one to what does not stand before it."""
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"x")])
    add_link(path, "b.txt", "a.txt", tarfile.SYMTYPE)
    add_link(path, "c.txt", "z.txt", tarfile.LNKTYPE)

    assert troubles(path) == [
        "a.tar: b.txt: it is a symbolic link, whose bytes do not stand in the tar as they are",
        "a.tar: c.txt: it is a hard link to 'z.txt', which does not stand before it",
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")], "a.tar: a.txt: the tar holds part txt of sample a twice"),
        ([("a.txt", b"1"), ("a.TXT", b"2")], "a.tar: a.TXT: the tar holds part txt of sample a twice"),
        ([("a.", b"1")], "a.tar: a.: nothing follows the dot in its name"),
        ([("README", b"1")], "a.tar: it holds no sample: no file with a dot in its name"),
        ([], "a.tar: it holds no sample: no file with a dot in its name"),
    ],
)
def test_names_that_would_lose_a_sample_are_troubles(files: list[tuple[str, bytes]], said: str, tmp_path: Path) -> None:
    """Each with its place."""
    assert troubles(write_tar(tmp_path / "a.tar", files)) == [said]


@pytest.mark.parametrize(("mode", "kind"), [("gz", "gzip"), ("bz2", "bzip2"), ("xz", "xz")])
def test_a_compressed_tar_is_a_trouble(mode: str, kind: str, tmp_path: Path) -> None:
    """Whatever its name says."""
    with tarfile.open(tmp_path / "a.tar", f"w:{mode}") as tar:  # type: ignore[call-overload]  # a mode by its name
        tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())

    assert troubles(tmp_path / "a.tar") == [
        f"a.tar: it is compressed ({kind}), so no byte of it can be read by its place"
    ]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:5120], "a.tar: it ends at byte 5120"),
        (lambda data: data[:1024] + b"x" + data[1025:], "a.tar: the header at byte 1024 does not match its checksum"),
        (
            lambda data: data[:1024] + bytes(512) + data[1536:],
            "a.tar: zeros end it at byte 1024, but it goes on at byte 1536",
        ),
        (lambda data: data + data, "a.tar: zeros end it at byte"),
        (lambda _data: b"", "a.tar: it ends at byte 0"),
        (lambda _data: b"PK\x03\x04" * 200, "a.tar: the header at byte 0 does not match its checksum"),
    ],
)
def test_a_damaged_tar_is_a_trouble(damage, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # bytes to bytes
    """Where stock readers would end without a word, no index vouches for what they leave."""
    path = write_tar(tmp_path / "a.tar", files_of(pairs(range(9))))
    path.write_bytes(damage(path.read_bytes()))

    (found,) = troubles(path)

    assert found.startswith(said)


def test_a_name_that_is_no_utf8_is_a_trouble_and_no_damage(tmp_path: Path) -> None:
    """The rest of the tar is read; whether the name is a file's or what a link leads to."""
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"x"), ("caf\udce9.txt", b"y")])
    add_link(path, "b.txt", "caf\udce9.txt", tarfile.LNKTYPE)

    assert troubles(path) == [
        "a.tar: caf\\udce9.txt: its name is not UTF-8",
        "a.tar: b.txt: its name or target is not UTF-8",
    ]


def test_troubles_of_one_tar_are_bounded(tmp_path: Path) -> None:
    """A tar of a million links is not a list of a million."""
    path = write_tar(tmp_path / "a.tar", [(f"{number}.", b"") for number in range(2 * MOST_TROUBLES)])

    assert len(troubles(path)) == MOST_TROUBLES


def test_a_tar_that_changes_while_it_is_read_is_a_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size, time or inode is another one afterwards."""
    path = write_tar(tmp_path / "a.tar", files_of(pairs(range(9))))
    from datakit.pack import foreign

    whole = foreign._Reading.run

    def touched(reading: foreign._Reading) -> None:
        whole(reading)
        path.touch()

    monkeypatch.setattr(foreign._Reading, "run", touched)

    assert troubles(path) == ["a.tar: it changed while it was read"]


def test_a_pipe_in_the_place_of_a_tar_is_refused(tmp_path: Path) -> None:
    """Whoever opened it would wait for ever."""
    os.mkfifo(tmp_path / "a.tar")

    with no_waiting(), pytest.raises(InputError, match=r"a\.tar is neither a file nor a folder"):
        index_tar(Tar(tmp_path / "a.tar", "a.tar", None))


def test_a_tar_that_is_cut_while_it_is_read_is_a_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file would end the process (SIGBUS); here it is said, and nothing is indexed."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as out:
        for number in range(4):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = 6 * 2**20
            out.addfile(info, io.BytesIO(bytes([number + 1]) * info.size))

    def cutting(*words: Any, **more: Any) -> Iterator[Any]:
        for entry in entries(*words, **more):
            yield entry
            os.truncate(path, 7 * 2**20)

    monkeypatch.setattr(foreign, "entries", cutting)

    indexed = index_tar(Tar(path, "x.tar", tmp_path / "x.index.arrow"))

    assert [str(trouble) for trouble in indexed.troubles] == ["x.tar: it changed while it was read"]
    assert not (tmp_path / "x.index.arrow").exists()


def test_a_tar_is_read_in_pieces(tmp_path: Path) -> None:
    """Of 64 MiB in one part, and parts around it, a few windows are held; digests are those of the whole."""
    parts = {"a.bin": os.urandom(2**26), "a.txt": b"small", "b.bin": os.urandom(9 * 2**20), "b.txt": b"more"}
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as out:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    tracemalloc.start()
    try:
        indexed = index_tar(Tar(path, "x.tar", tmp_path / "x.index.arrow"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    rows = Index.from_buffer((tmp_path / "x.index.arrow").read_bytes()).rows()
    assert indexed.shard == hash_file(path)
    assert [row.digest for row in rows] == [
        sample_digest({part: parts[f"{key}.{part}"] for part in ("bin", "txt")}) for key in "ab"
    ]
    assert rows[0].parts["bin"].crc32c == crc32c(parts["a.bin"])
    assert most < 2**25
