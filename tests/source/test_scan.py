"""source/scan: what a source holds, deterministically, local or in a store, with requests counted."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from datakit import InputError, NotFound, Refused
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.source.fetching import fetched
from datakit.source.listing import list_records
from datakit.source.scan import Sources, is_remote, scan
from datakit.storage.store import open_location
from support.packing import raw_lines, small_pack, tree, write_lines, write_pairs


def names(sources: Sources) -> list[str]:
    """Names of the files."""
    return [file.name for file in sources.files]


def test_a_folder_is_listed_by_name_with_sizes_and_md5s(tmp_path: Path) -> None:
    """Sorted, folders with `/`, hidden files left out."""
    write_pairs(tmp_path / "raw", 4)
    (tmp_path / "raw" / ".hidden").write_bytes(b"x")
    (tmp_path / "raw" / ".git").mkdir()
    (tmp_path / "raw" / ".git" / "config.txt").write_bytes(b"x")

    sources = scan(tmp_path / "raw")

    files = {
        path.relative_to(tmp_path / "raw").as_posix(): path.read_bytes() for path in (tmp_path / "raw").rglob("*.j*")
    }
    assert names(sources) == sorted(files)
    assert [file.bytes for file in sources.files] == [len(files[name]) for name in sorted(files)]
    assert [file.fingerprint for file in sources.files] == [hashlib.md5(files[n]).hexdigest() for n in sorted(files)]
    assert (sources.kind, sources.requests) == ("files", 0)
    assert sources.total_bytes == sum(map(len, files.values()))


def test_a_listing_is_the_same_bytes_wherever_the_files_lie(tmp_path: Path) -> None:
    """So it can be kept beside a dataset and compared; one changed byte shows."""
    for name in ("a", "b"):
        write_lines(tmp_path / name / "x" / "raw.jsonl", raw_lines(3))

    one, other = (scan(tmp_path / name / "x").to_bytes() for name in ("a", "b"))
    write_lines(tmp_path / "b" / "x" / "raw.jsonl", raw_lines(3, edit={0: "z"}))

    assert one == other
    assert one != scan(tmp_path / "b" / "x").to_bytes()
    assert json.loads(one)["files"][0]["name"] == "raw.jsonl"
    assert one.endswith(b"}\n")


def test_without_fingerprints_no_file_is_read(tmp_path: Path) -> None:
    """A file that nobody may read is listed all the same."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(3))

    sources = scan(raw, fingerprints=False)

    assert sources.files[0].fingerprint is None
    assert sources.files[0].bytes == raw.stat().st_size


def test_a_mix_is_not_guessed_at(tmp_path: Path) -> None:
    """A README beside JSON lines would be packed as a sample, or the lines as a file: say which."""
    write_lines(tmp_path / "raw" / "a.jsonl", raw_lines(2))
    write_lines(tmp_path / "raw" / "notes.txt", [b"notes"])

    with pytest.raises(InputError, match=r"holds JSON lines \(a\.jsonl\) and other files \(notes\.txt\)"):
        scan(tmp_path / "raw")
    with pytest.raises(InputError, match=r"holds JSON lines"):
        scan(tmp_path / "raw", input="jsonl")
    with pytest.raises(InputError, match=r"holds no JSON lines, but notes\.txt"):
        scan(tmp_path / "raw" / "notes.txt", input="jsonl")
    assert scan(tmp_path / "raw", input="files").kind == "files"


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    """By path, or by a file URL."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(2))

    assert names(scan(raw)) == names(scan(f"file://{raw}")) == ["raw.jsonl"]


def test_what_cannot_be_read_is_told_with_the_listing(tmp_path: Path) -> None:
    """A pack stops at it, or leaves it out; a listing by itself goes on."""
    write_lines(tmp_path / "raw" / "a.jsonl", raw_lines(2))
    (tmp_path / "raw" / "b.jsonl").symlink_to("nowhere")

    sources = scan(tmp_path / "raw")

    assert names(sources) == ["a.jsonl"]
    assert [str(trouble) for trouble in sources.troubles] == ["b.jsonl: a link to nothing"]
    with pytest.raises(InputError, match=r"b\.jsonl: a link to nothing"):
        pack(tmp_path / "raw", tmp_path / "ds")


@pytest.mark.parametrize("wanted", ["auto", "tar"])
def test_tars_of_which_none_can_be_read_are_offenders(tmp_path: Path, wanted: Literal["auto", "tar"]) -> None:
    """What lies beside them is not packed for them."""
    root = tmp_path / "raw"
    root.mkdir()
    for name in ("manifest.json", "a.tar.index.arrow"):
        (root / name).write_bytes(b"x")
    for name in ("a.tar", "b.tar", "c.tar"):
        (root / name).symlink_to("/etc/passwd")

    sources = scan(root, input=wanted)

    assert (sources.kind, names(sources), len(sources.troubles)) == ("tar", [], 3)
    with pytest.raises(InputError, match="it holds no records that can be packed, and 3 that cannot"):
        pack(root, tmp_path / "ds", settings=PackSettings(input=wanted, on_error="skip"))


def test_what_lies_beside_tars_is_none(tmp_path: Path) -> None:
    """A folder from which the tars are gone."""
    (tmp_path / "manifest.json").write_bytes(b"x")

    with pytest.raises(InputError, match=r"holds no tars, but manifest\.json"):
        scan(tmp_path, input="tar")


def test_a_name_that_is_no_utf8_can_be_listed(tmp_path: Path) -> None:
    """The listing is JSON all the same."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"x")

    assert json.loads(scan(tmp_path / "raw").to_bytes())["files"][0]["name"] == "caf\\udce9.txt"


@pytest.mark.parametrize(
    ("src", "remote"),
    [("s3://b/x", True), ("mine://x", True), ("file:///x", False), ("a/b", False), (Path("a"), False)],
)
def test_a_url_of_a_store_is_told_from_a_path(src: str | Path, remote: bool) -> None:
    """By its scheme."""
    assert is_remote(src) == remote


def put(bucket: str, objects: dict[str, bytes]) -> None:
    """Put objects into a bucket."""
    store = open_location(bucket).store
    for key, data in objects.items():
        store.write(key, data)


def test_lines_in_a_store_pack_like_local_ones(tmp_path: Path, bucket: str) -> None:
    """The same bytes come out, requests are counted (one to list, one an object), the spool is gone."""
    lines = raw_lines(60)
    put(bucket, {"raw/a.jsonl": b"\n".join(lines[:20]), "raw/b.jsonl.gz": gzip.compress(b"\n".join(lines[20:]))})
    put(bucket, {"raw/": b"", "rawer/c.jsonl": b"{}", "raw/.marker": b"x"})
    write_lines(tmp_path / "raw.jsonl", lines)

    result = pack(f"{bucket}/raw", tmp_path / "remote" / "ds")
    pack(tmp_path / "raw.jsonl", tmp_path / "local" / "ds")

    assert tree(tmp_path / "remote") == tree(tmp_path / "local")
    assert (result.records, result.requests) == (60, 3)


def test_files_in_a_store_pack_like_local_ones(tmp_path: Path, bucket: str) -> None:
    """Keys are names below the prefix."""
    raw = write_pairs(tmp_path / "raw", 10)
    put(bucket, {f"deep/er/{path.relative_to(raw)}": path.read_bytes() for path in raw.rglob("*.j*")})

    result = small_pack(f"{bucket}/deep/er/", tmp_path / "remote" / "ds")  # type: ignore[arg-type]  # a URL
    small_pack(raw, tmp_path / "local" / "ds")

    assert tree(tmp_path / "remote") == tree(tmp_path / "local")
    assert result.requests == 21


def test_one_object_is_a_source(tmp_path: Path, bucket: str) -> None:
    """Its listing is empty, so it is asked for by name: list, head, get."""
    put(bucket, {"raw/a.jsonl": b"\n".join(raw_lines(5)), "raw/b.jsonl": b"{}"})

    result = pack(f"{bucket}/raw/a.jsonl", tmp_path / "ds")

    assert (result.records, result.requests) == (5, 3)


def test_an_object_named_like_its_folder_is_found(tmp_path: Path, bucket: str) -> None:
    """`b/f` that holds one object, `f/f.x`: what the source is was known by listing it, not guessed from names."""
    put(bucket, {"f/f.x": b"x"})

    sources = scan(f"{bucket}/f")
    with fetched(sources, tmp_path / "spool") as local:
        batch = list_records(sources, local).take(np.arange(1))
        data = [sample.parts["x"] for sample in local.bring(batch).samples()]

    assert (sources.single, data) == (False, [b"x"])


def test_a_dry_run_does_not_fetch_files(tmp_path: Path, bucket: str) -> None:
    """Names and sizes are in the listing: one request, and the numbers of the run."""
    put(bucket, {f"raw/{number}.bin": b"x" * number for number in range(1, 21)})

    planned = pack(f"{bucket}/raw", tmp_path / "ds", dry_run=True)
    done = pack(f"{bucket}/raw", tmp_path / "ds")

    assert (planned.requests, done.requests) == (1, 21)
    assert (planned.samples, planned.shard_bytes) == (done.samples, done.shard_bytes)


def test_fingerprints_of_objects_are_their_etags(bucket: str) -> None:
    """Given by the listing, without a request of their own."""
    put(bucket, {"raw/a.jsonl": b"{}"})

    sources = scan(f"{bucket}/raw")

    assert sources.requests == 1
    assert hashlib.md5(b"{}").hexdigest() in str(sources.files[0].fingerprint)


def test_what_is_not_in_the_store_is_not_found(tmp_path: Path, bucket: str) -> None:
    """No such prefix, no such bucket: a sentence, and nothing is made."""
    with pytest.raises(NotFound, match="there is nothing at"):
        pack(f"{bucket}/nowhere", tmp_path / "ds")
    with pytest.raises(NotFound, match="does not exist"):
        pack("s3://no-such-bucket-here/raw", tmp_path / "ds")
    with pytest.raises(InputError, match="is empty: it holds no files"):
        pack(bucket, tmp_path / "ds")
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_changes_in_between_is_refused(tmp_path: Path, bucket: str) -> None:
    """Each is read in the version that was listed."""
    put(bucket, {"raw/a.jsonl": b'{"id": 1}'})
    sources = scan(f"{bucket}/raw")
    put(bucket, {"raw/a.jsonl": b'{"id": 2}'})

    with pytest.raises(Refused), fetched(sources, tmp_path / "spool"):
        pass
    assert list(tmp_path.iterdir()) == []
