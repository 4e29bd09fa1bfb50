"""data/archive: tars of every format are read as tarfile and GNU tar mean them, and no damage is passed over."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.archive import Entry, entries
from datakit.data.digest import Buffer
from datakit.data.shard import BLOCK_BYTES
from datakit.errors import IntegrityError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
STEPS = st.text(st.sampled_from("abé中_. "), min_size=1, max_size=60).filter(lambda step: step.strip(". ") != "")
NAMES = st.lists(STEPS, min_size=1, max_size=5).map("/".join)
FILES = st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=6)


def read_all(data: bytes) -> list[Entry]:
    """The entries of a tar in memory."""
    return list(entries(lambda offset, size: data[offset : offset + size], len(data)))


def tar_of(files: list[tuple[str, bytes]], kind: str) -> bytes:
    """A tar by Python's tarfile, with times and owners as it finds them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[kind]) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(data), 1_700_000_000, 1000
            if kind == "pax":
                info.mtime = 1_700_000_000.25  # not whole: it gets a header of its own
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@given(FILES, st.sampled_from(["gnu", "pax"]))
def test_names_and_places_are_those_that_tarfile_finds(files: list[tuple[str, bytes]], kind: str) -> None:
    """Long names and other scripts too, by GNU's headers or PAX's."""
    data = tar_of(files, kind)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(info.name, info.offset, info.offset_data, info.size) for info in tar]

    found = read_all(data)

    assert [(entry.name.rstrip("/"), entry.start, entry.offset, entry.size) for entry in found] == [
        (name, start, offset, size) for name, start, offset, size in expected
    ]
    assert {entry.kind for entry in found} <= {"file"}


@pytest.mark.parametrize("size", ["\u00b2", "\u0663", "9" * 5000, "-1", ""])
def test_a_size_that_is_no_number_is_damage(size: str) -> None:
    """Digits that are none of ASCII's, and more of them than Python takes: each in an attribute of PAX."""
    info = tarfile.TarInfo("a.txt")
    info.pax_headers = {"size": size}
    data = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)

    with pytest.raises(IntegrityError, match="the attributes at byte 512 give no size"):
        read_all(data)


@given(FILES, st.sampled_from(["gnu", "pax"]), st.data())
def test_a_flipped_byte_outside_contents_is_found(
    files: list[tuple[str, bytes]], kind: str, data: st.DataObject
) -> None:
    """A header's checksum, the attributes of PAX and the end: nothing ends a tar without a word."""
    whole = tar_of(files, kind)
    heads = [block for entry in read_all(whole) for block in (entry.start, entry.offset - BLOCK_BYTES)]
    at = data.draw(st.sampled_from([*heads, len(whole) - 1])) + (data.draw(st.integers(0, 511)) if heads else 0)
    at = min(at, len(whole) - 1)
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(IntegrityError) as caught:
        read_all(bytes(changed))

    assert isinstance(caught.value.subject, int)
    assert 0 <= caught.value.subject <= len(whole)


@given(FILES.filter(bool), st.sampled_from(["ustar", "gnu", "pax"]), st.data())
def test_a_cut_anywhere_before_the_end_is_found(files: list[tuple[str, bytes]], kind: str, data: st.DataObject) -> None:
    """Between two members as well; only zeros of the end may be missing."""
    files = [(f"{number}.bin", content) for number, (_, content) in enumerate(files)]
    whole = tar_of(files, kind)
    last = read_all(whole)[-1]
    end = last.offset + last.size + -last.size % BLOCK_BYTES
    size = data.draw(st.integers(0, end))

    with pytest.raises(IntegrityError, match=f"it ends at byte {size}"):
        read_all(whole[:size])

    assert read_all(whole[: end + 512]) == read_all(whole)


@given(FILES.filter(bool), st.data())
def test_a_hole_between_members_is_found(files: list[tuple[str, bytes]], data: st.DataObject) -> None:
    """Where a header became zeros and something follows, the byte at which it goes on is named."""
    files = [(f"{number}.bin", b"x" + content) for number, (_, content) in enumerate(files)]
    whole = tar_of(files, "gnu")
    hit = data.draw(st.sampled_from(read_all(whole)))
    changed = whole[: hit.start] + bytes(BLOCK_BYTES) + whole[hit.offset :]

    with pytest.raises(IntegrityError, match=f"zeros end it at byte {hit.start}, but it goes on at byte") as caught:
        read_all(changed)
    assert caught.value.subject == hit.start


@pytest.mark.parametrize("kind", ["v7", "ustar", "gnu", "posix", "oldgnu"])
def test_every_format_of_gnu_tar_is_read(kind: str, tmp_path: Path) -> None:
    """Folders, long names where the format has them, 10 KiB records; contents where it says."""
    names = ["a.txt", "sub/b.txt"] + ([] if kind in ("v7", "ustar") else [f"sub/{'long' * 40}.txt"])
    for name in names:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 50)
    command = [
        "tar",
        f"--format={kind}",
        "--sort=name",
        "-C",
        str(tmp_path / "in"),
        "-cf",
        str(tmp_path / "t.tar"),
        ".",
    ]
    subprocess.run(command, check=True)
    data = (tmp_path / "t.tar").read_bytes()

    found = read_all(data)

    files = {
        entry.name.removeprefix("./"): data[entry.offset : entry.offset + entry.size] for entry in found if entry.size
    }
    assert files == {name: name.encode() * 50 for name in names}
    assert [entry.name for entry in found if entry.kind == "folder"] == ["./", "./sub/"]
    assert len(data) % 10240 == 0


def test_links_devices_and_sparse_files_are_told_apart(tmp_path: Path) -> None:
    """As GNU tar stores them."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a")
    (folder / "b.txt").hardlink_to(folder / "a.txt")
    (folder / "c.txt").symlink_to("a.txt")
    with (folder / "d.txt").open("wb") as file:
        file.truncate(2**20)
        file.seek(2**19)
        file.write(b"d")
    for kind in ("gnu", "posix"):
        command = ["tar", f"--format={kind}", "--sparse", "--sort=name", "-C", str(folder), "-cf"]
        subprocess.run([*command, str(tmp_path / "t.tar"), "a.txt", "b.txt", "c.txt", "d.txt"], check=True)

        found = read_all((tmp_path / "t.tar").read_bytes())

        assert [(entry.kind, entry.target) for entry in found] == [
            ("file", ""),
            ("hard link", "a.txt"),
            ("symbolic link", "a.txt"),
            ("sparse file", ""),
        ]
        assert [entry.name for entry in found] == ["a.txt", "b.txt", "c.txt", "d.txt"]


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        (b"M", "member of another kind"),
        (b"V", "volume label"),
        (b"D", "folder"),
        (b"A", "member of another kind"),
    ],
)
def test_what_posix_and_gnu_tar_have_no_file_for_is_no_file(flag: bytes, kind: str) -> None:
    """The rest of a file of another volume, a volume's label, a dump's list, another vendor's; oracle: tarfile."""
    info = tarfile.TarInfo("x.jpg")
    info.type, info.size = flag, 600
    data = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024) + tar_of([("y.txt", b"y")], "gnu")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [each.isreg() for each in tar] == [False, True]

    assert [(entry.name, entry.kind) for entry in read_all(data)] == [
        ("x.jpg", kind),
        ("y.txt", "file"),
    ]


@pytest.mark.parametrize("holes", [3, 30, 200])
@pytest.mark.parametrize("kind", ["gnu", "posix"])
def test_a_sparse_file_of_many_holes_does_not_hide_what_follows(tmp_path: Path, holes: int, kind: str) -> None:
    """GNU's map of holes goes on in blocks of its own; oracle: GNU tar."""
    with (tmp_path / "a.bin").open("wb") as file:
        for number in range(holes):
            file.seek(number * 2**17)
            file.write(b"x" * 4096)
        file.truncate(holes * 2**17)
    (tmp_path / "b.txt").write_bytes(b"behind")
    command = ["tar", f"--format={kind}", "--sparse", "-C", str(tmp_path), "-cf", str(tmp_path / "t.tar")]
    subprocess.run([*command, "a.bin", "b.txt"], check=True)

    data = (tmp_path / "t.tar").read_bytes()
    sparse, plain = read_all(data)

    assert (sparse.kind, plain.name, plain.kind) == ("sparse file", "b.txt", "file")
    assert data[plain.offset : plain.offset + plain.size] == b"behind"


def test_bytes_that_are_no_utf8_become_surrogates_where_that_is_wanted() -> None:
    """As in names of files; else they are damage."""
    name = b"caf\xe9.txt"
    data = tarfile.TarInfo(name.decode("utf-8", "surrogateescape")).tobuf(tarfile.USTAR_FORMAT) + bytes(1024)

    def read(offset: int, count: int) -> Buffer:
        return data[offset : offset + count]

    (entry,) = entries(read, len(data), errors="surrogateescape")

    assert entry.name.encode("utf-8", "surrogateescape") == name
    with pytest.raises(IntegrityError, match="is not UTF-8"):
        list(entries(read, len(data)))


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_a_size_beyond_octal_digits_is_read(kind: str) -> None:
    """Ten GiB, in base 256 or in an attribute; only headers are asked for."""
    size = 10 * 2**30
    info = tarfile.TarInfo("large.bin")
    info.size = size
    head = info.tobuf(FORMATS[kind])
    asked: list[tuple[int, int]] = []

    def read(offset: int, count: int) -> Buffer:
        asked.append((offset, count))
        return head[offset : offset + count] if offset < len(head) else bytes(count)

    (entry,) = entries(read, len(head) + size + 1024)

    assert (entry.name, entry.size, entry.offset) == ("large.bin", size, len(head))
    assert sum(count for _, count in asked) < 10 * BLOCK_BYTES


def test_attributes_of_the_whole_archive_count_for_each_member() -> None:
    """A global PAX header's values hold until a member has its own."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made by hand"}
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))

    (entry,) = read_all(buffer.getvalue())

    assert (entry.name, entry.start) == ("a.txt", 0)


def test_a_long_list_of_attributes_is_read_by_place() -> None:
    """100,000 records before the one that names the file; a record that is cut, or says another length, is told."""
    data = tar_of([("x" * 200, b"content")], "pax")
    start, stop = 512, data.index(b"\n", 512) + 1
    fill = b"9 a=1234\n" * 100_000

    def with_records(records: bytes) -> bytes:
        head = bytearray(data[:512])
        head[124:136] = b"%011o\0" % len(records)
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        return bytes(head) + records + bytes(-len(records) % 512) + data[1024:]

    (entry,) = read_all(with_records(fill + data[start:stop]))

    assert entry.name == "x" * 200
    for broken in (b"9 a=12345\n", b"8 a=1234\n", b"3 a=1\n", b"0 a=1\n", b"9" * 5000 + b" a=1\n", b"12345678"):
        with pytest.raises(IntegrityError, match="the attributes at byte 512 cannot be read"):
            read_all(with_records(fill + broken))


def test_old_tars_that_counted_bytes_signed_are_read() -> None:
    """Their checksum takes a byte over 127 for a negative number."""
    data = bytearray(tar_of([("é.txt", b"x")], "gnu"))
    data[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in data[:512])
    data[148:156] = b"%06o\0 " % signed

    assert [entry.name for entry in read_all(bytes(data))] == ["é.txt"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda head: head[:124] + b"99999999999\0" + head[136:], "no size that can be read"),
        (lambda head: b"\xff\xfe" + head[2:], "is not UTF-8"),
        (lambda head: head[:124] + b"77777777777\0" + head[136:], "it ends at byte"),
        (lambda head: head[:156] + b"L" + head[157:], "it ends at byte"),
        (lambda head: head[:124] + b"00077777777\0" + head[136:156] + b"L" + head[157:], "says that a name has"),
        (lambda head: head[:156] + b"x" + head[157:], "cannot be read"),
    ],
)
def test_headers_that_lie_are_named(change, said: str) -> None:  # type: ignore[no-untyped-def]  # bytes to bytes
    """With a checksum that agrees: what they say cannot be."""
    data = tar_of([("a.txt", b"x" * 600)], "gnu")[: BLOCK_BYTES * 3]
    head = change(data[:BLOCK_BYTES])
    head = head[:148] + b" " * 8 + head[156:]
    head = head[:148] + b"%06o\0 " % sum(head) + head[156:]

    with pytest.raises(IntegrityError, match=said):
        read_all(head + data[BLOCK_BYTES:])
