"""`datakit reindex` as people and scripts meet it."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import datakit
from support.tars import contents, files_of, pairs, write_tar, write_webdataset


@pytest.fixture
def tars(clean_room: Path) -> Path:
    """Two tars in the current directory."""
    write_webdataset(clean_room / "theirs" / "0.tar", pairs(range(10)))
    write_tar(clean_room / "theirs" / "1.tar", [("README", b"x"), *files_of(pairs(range(10, 30)))])
    return clean_room / "theirs"


def test_it_says_what_it_found(tars: Path) -> None:
    """One sentence, the parts, what was skipped, and the manifest; then every other command reads it."""
    answer = datakit("reindex", "theirs", "ds", "--index", "energon")

    assert (answer.code, answer.stdout) == (0, "")
    assert "Indexed 30 samples in 2 tars, " in answer.stderr
    assert "part jpg" in answer.stderr
    assert "skipped names without a dot" in answer.stderr
    assert datakit("verify", "ds").code == 0
    assert datakit("cat", "ds", "img-0012.jpg").stdout.encode() == pairs([12])[0].parts["jpg"]
    assert "30" in datakit("inspect", "ds").stdout


def test_json_has_the_same_facts(tars: Path) -> None:
    """Fields of the Python result."""
    told = datakit("reindex", "theirs", "--json").json

    assert told["ok"]
    assert told["result"].items() >= {"shards": 2, "samples": 30, "skipped": {"names without a dot": 1}}.items()


def test_a_dry_run_writes_nothing(tars: Path) -> None:
    """It reads everything, so it finds what the run would find."""
    before = contents(tars)

    answer = datakit("reindex", "theirs", "--dry-run")

    assert answer.code == 0
    assert "Would index 30 samples in 2 tars" in answer.stderr
    assert contents(tars) == before


def test_offenders_are_listed_and_end_it_with_1(tars: Path) -> None:
    """With the command that packs them anew."""
    write_tar(tars / "2.tar", [("a.txt", b"1"), ("a.txt", b"2")])

    answer = datakit("reindex", "theirs")

    assert answer.code == 1
    assert "2.tar: a.txt: the tar holds part txt of sample a twice" in answer.stderr
    assert "datakit pack" in answer.stderr
    assert "--input tar" in answer.stderr


def add(path: Path, name: str, kind: bytes, target: str = "") -> None:
    """Append a member without content."""
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)


def add_file(path: Path, name: str) -> None:
    """Append a file."""
    with tarfile.open(path, "a", errors="surrogateescape") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"1"))


def compress(path: Path) -> None:
    """Put a compressed tar in its place, under such a name."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


BAD: dict[str, Callable[[Path], object]] = {
    "a name twice": lambda path: add_file(path, "img-0010.cls"),
    "a dot at the end": lambda path: add_file(path, "a."),
    "a long key": lambda path: add_file(path, "d/" * 140 + "a.txt"),
    "a symbolic link": lambda path: add(path, "a.txt", tarfile.SYMTYPE, "b.txt"),
    "a link to nothing": lambda path: add(path, "a.txt", tarfile.LNKTYPE, "b.txt"),
    "another kind": lambda path: add(path, "a.txt", b"Z"),
    "no UTF-8": lambda path: add_file(path, "caf\udce9.txt"),
    "compressed": compress,
}


@pytest.mark.parametrize("what", BAD)
def test_the_command_of_a_refusal_packs_the_rest(what: str, tars: Path) -> None:
    """All samples but the one that it is about; a name that is no UTF-8 is written in another way, and kept."""
    write_tar(tars / "1.tar", files_of(pairs(range(10, 30))))
    BAD[what](tars / "1.tar")

    hint = datakit("reindex", "theirs", "--json").json["error"]["hint"]
    command = re.search("datakit (pack .*)", hint)
    assert command is not None
    packed = datakit(*shlex.split(command[1].replace("DEST", "ds")), "--json")

    assert packed.code == 0
    assert packed.json["result"]["samples"] == {"a name twice": 29, "no UTF-8": 31}.get(what, 30)
    assert (datakit("cat", "ds", "caf%E9.txt").code == 0) == (what == "no UTF-8")


@pytest.mark.parametrize("what", ["empty", "nothing with a dot", "compressed", "bzip2", "cut"])
def test_a_tar_that_pack_would_not_take_either_is_not_sent_there(what: str, tars: Path) -> None:
    """It is to be moved away, fetched again or decompressed."""
    path = write_tar(tars / "2.tar", [] if what == "empty" else [("a" if what.startswith("nothing") else "a.b", b"1")])
    if what == "compressed":
        path.write_bytes(gzip.compress(path.read_bytes()))
    elif what == "bzip2":
        path.rename(tars / "2.tar.bz2")
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:700])

    told = datakit("reindex", "theirs", "--json").json["error"]

    assert "2.tar" in told["message"]
    assert "move it away" in told["hint"].lower()
    assert "--input tar" not in told["hint"]


def test_hard_links_are_packed_from_a_folder(tars: Path, clean_room: Path) -> None:
    """As the caution says, for pack takes no link out of a tar."""
    add(tars / "1.tar", "img-0099.cls", tarfile.LNKTYPE, "img-0012.cls")

    answer = datakit("reindex", "theirs", "ds")
    for path in tars.glob("*.tar"):
        with tarfile.open(path) as tar:
            tar.extractall(clean_room / "folder", filter="data")
    (clean_room / "folder" / "README").unlink()

    assert "pack that: datakit pack FOLDER DEST --input files" in " ".join(answer.stderr.split())
    assert datakit("pack", "folder", "again", "--input", "files").code == 0
    assert datakit("cat", "again", "img-0099.cls").stdout == "2"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["reindex", "nowhere"], 2, "nowhere is not there"),
        (["reindex", "theirs/0.tar"], 1, "0.tar is a file, not a directory with tars"),
        (["reindex", "s3://bkt/x"], 2, "reindex works on a local directory"),
        (["reindex", "theirs", "--index", "mds"], 2, "no side files for mds"),
        (["reindex", "theirs", "theirs/0.tar"], 3, "0.tar is not a directory"),
    ],
)
def test_what_cannot_be_ends_with_its_code(tars: Path, words: list[str], code: int, said: str) -> None:
    """One sentence."""
    answer = datakit(*words)

    assert answer.code == code
    assert said in answer.stderr
