"""source/tars: samples of tars, ours and others', and damage that readers built on tarfile do not see."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from webdataset import ShardWriter  # type: ignore[import-untyped]  # has no stubs

from datakit import InputError
from datakit.data.archive import entries
from datakit.data.index import Index, index_name
from datakit.data.shard import Part, Row, Sample, sample_digest
from datakit.events import Event, Note
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.reindex import reindex
from datakit.source.fetching import fetched
from datakit.source.listing import list_records
from datakit.source.members import Members
from datakit.source.records import KeyColumn
from datakit.source.scan import scan
from datakit.storage.commit import read_manifest
from support.cli import datakit
from support.datasets import publish
from support.faulty import FaultyServer
from support.packing import raw_lines, samples_of, small_pack, tree, write_lines, write_pairs
from support.receipts import at_rest
from support.tiny import write_dataset


def tar(path: Path, files: dict[str, bytes], *, form: int = tarfile.PAX_FORMAT) -> Path:
    """A tar of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as out:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def by_key(dataset: Path) -> dict[str, dict[str, bytes]]:
    """The parts of each sample."""
    return {sample.key: dict(sample.parts) for sample in samples_of(dataset)}


def test_repacking_our_own_shards_gives_the_same_samples(tmp_path: Path) -> None:
    """Same content digest in any layout; repacked with the same settings from one shard, the same shards."""
    raw = write_pairs(tmp_path / "raw", 40)
    first = small_pack(raw, tmp_path / "one")

    again = small_pack(tmp_path / "one", tmp_path / "two", layout="shuffle")
    whole = pack(tmp_path / "one", tmp_path / "three", settings=PackSettings(shard_size="1GB", on_error="stop"))

    assert by_key(tmp_path / "one") == by_key(tmp_path / "two") == by_key(tmp_path / "three")
    assert first.datasets[0].content_digest == again.datasets[0].content_digest == whole.datasets[0].content_digest
    assert whole.shards == 1


def test_one_edited_record_of_a_dataset_changes_one_shard_of_its_repack(tmp_path: Path) -> None:
    """It is read in its own order, in which the edited shard stands where the old one stood (law 5)."""
    raw, texts = tmp_path / "raw.jsonl", dict.fromkeys((100, 900, 1700), "a text")
    small_pack(write_lines(raw, raw_lines(2000, edit=texts)), tmp_path / "ds")
    small_pack(tmp_path / "ds", tmp_path / "again")

    for number in texts:
        texts[number] = "a text that was edited"
        small_pack(write_lines(raw, raw_lines(2000, edit=texts)), tmp_path / "ds")
        before = {shard.name for shard in read_manifest(tmp_path / "again").contents.shards}
        small_pack(tmp_path / "ds", tmp_path / "again")

        after = {shard.name for shard in read_manifest(tmp_path / "again").contents.shards}
        assert (len(after) > 100, len(after - before)) == (True, 1)


def test_tars_come_in_the_order_of_the_manifests_that_name_them(tmp_path: Path) -> None:
    """What no manifest names comes after, by name; the listing that the source is known by stays sorted."""
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(200)), tmp_path / "all" / "ds", shard_size="8KiB")
    tar(tmp_path / "all" / "b.tar", {"b.txt": b"b"})
    tar(tmp_path / "all" / "a" / "c.tar", {"c.txt": b"c"})
    shards = [f"ds/{shard.name}" for shard in read_manifest(tmp_path / "all" / "ds").contents.shards]

    sources = scan(tmp_path / "all", input="tar")
    with fetched(sources, tmp_path / "spool") as local:
        records = list_records(sources, local)

    assert isinstance(records, Members)
    assert [holder.name for holder in records.holders] == [*shards, "a/c.tar", "b.tar"]
    assert shards != sorted(shards)
    assert [file.name for file in sources.files] == ["a/c.tar", "b.tar", *sorted(shards)]


def test_bundled_lines_are_taken_out_of_their_member(tmp_path: Path) -> None:
    """The index says where each line is."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(50))
    pack(raw, tmp_path / "one", settings=PackSettings(bundle=8))

    pack(tmp_path / "one", tmp_path / "two")

    assert by_key(tmp_path / "two") == {f"r{n:05d}": {"json": line} for n, line in enumerate(raw_lines(50))}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tars_of_others_are_samples(tmp_path: Path, form: int) -> None:
    """USTAR, PAX or GNU; `./` in front, folders and hidden names beside them."""
    files = {"./b/2.jpg": b"two", "b/1.seg.png": b"m", "b/1.JPG": b"one", "._b": b"mac", "a.txt": b"t"}
    path = tar(tmp_path / "raw" / "x.tar", files, form=form)
    with tarfile.open(path, "a") as out:
        folder = tarfile.TarInfo("b")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)

    pack(tmp_path / "raw", tmp_path / "ds")

    assert by_key(tmp_path / "ds") == {
        "a": {"txt": b"t"}, "b/1": {"jpg": b"one", "seg.png": b"m"}, "b/2": {"jpg": b"two"}
    }  # fmt: skip


def test_steps_that_lead_nowhere_are_no_part_of_a_name(tmp_path: Path) -> None:
    """`./` as often as it stands there, as `find . | tar -T -` and others write it: nothing of it is hidden."""
    tar(tmp_path / "x.tar", {"././a.jpg": b"1", "./a.cls": b"2", "x/./b.jpg": b"3", "./.c.jpg": b"4", "..d.jpg": b"5"})
    told: list[Event] = []

    pack(tmp_path / "x.tar", tmp_path / "ds", on_event=told.append)

    assert by_key(tmp_path / "ds") == {"a": {"jpg": b"1", "cls": b"2"}, "x/b": {"jpg": b"3"}}
    assert Note("2 hidden names are left out, the first is x.tar/..d.jpg") in told


def test_a_name_that_leads_up_is_an_offender(tmp_path: Path) -> None:
    """Which file it was meant to be is not guessed, and it is not called hidden."""
    tar(tmp_path / "x.tar", {"a.cls": b"1", "x/../a.jpg": b"2", "../b.jpg": b"3"})

    with pytest.raises(
        InputError, match=r"2 offenders \(x\.tar/x/\.\./a\.jpg: leads up, by a step `\.\.`, x\.tar/\.\./b"
    ):
        pack(tmp_path / "x.tar", tmp_path / "ds")


def test_a_link_without_an_extension_spoils_no_record(tmp_path: Path) -> None:
    """It is called like a record and is no part of it; one that is called like a part takes its record with it."""
    path = tar(tmp_path / "x.tar", {"cat.jpg": b"1", "dog.jpg": b"2"})
    with tarfile.open(path, "a") as out:
        for name in ("cat", "dog.json"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
            out.addfile(link)

    pack(path, tmp_path / "ds", settings=PackSettings(on_error="skip"))

    assert by_key(tmp_path / "ds") == {"cat": {"jpg": b"1"}}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_a_name_that_is_no_utf8_can_be_escaped(tmp_path: Path, form: int) -> None:
    """It spoils its record, not its tar."""
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    tar(tmp_path / "x.tar", {name: b"1", "a.txt": b"2"}, form=form)

    with pytest.raises(InputError, match=r"x\.tar/caf\\udce9\.txt: .* not valid Unicode"):
        pack(tmp_path / "x.tar", tmp_path / "ds")
    pack(tmp_path / "x.tar", tmp_path / "ds", settings=PackSettings(escape="percent"))

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"2"}, "caf%E9": {"txt": b"1"}}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_are_understood(tmp_path: Path, form: int) -> None:
    """A folder of 120 bytes stands in PAX or GNU's own way in such tars, in USTAR's two fields in ours."""
    name = "d" * 120 + "/" + "é" * 20
    tar(tmp_path / "x.tar", {f"{name}.txt": b"t"}, form=form)

    pack(tmp_path / "x.tar", tmp_path / "ds")

    assert by_key(tmp_path / "ds") == {name: {"txt": b"t"}}


def test_what_webdataset_wrote_is_packed(tmp_path: Path) -> None:
    """Its writer's shards, plain and gzipped, are the same samples."""
    (tmp_path / "raw").mkdir()
    with ShardWriter(str(tmp_path / "raw" / "%03d.tar"), maxcount=7, verbose=0) as writer:
        for number in range(20):
            writer.write({"__key__": f"s{number:02d}", "txt": f"text {number}", "bin": bytes([number]) * 10})
    packed = tmp_path / "raw" / "002.tar"
    (tmp_path / "raw" / "002.tar.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()

    pack(tmp_path / "raw", tmp_path / "ds", workers=2)

    assert by_key(tmp_path / "ds") == {
        f"s{number:02d}": {"txt": f"text {number}".encode(), "bin": bytes([number]) * 10} for number in range(20)
    }


def test_what_gnu_tar_wrote_is_packed(tmp_path: Path) -> None:
    """In whatever order it found the files: samples are put together by key."""
    raw = write_pairs(tmp_path / "raw", 12)
    subprocess.run(["tar", "-cf", tmp_path / "x.tar", "-C", raw, "."], check=True)

    small_pack(tmp_path / "x.tar", tmp_path / "one", name="ds")
    small_pack(raw, tmp_path / "two", name="ds")

    assert tree(tmp_path / "one") == tree(tmp_path / "two")


@pytest.mark.parametrize("option", ["--label=vol.1", "--listed-incremental=snar"])
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_label_and_a_list_of_a_dump_are_nothing_to_pack(tmp_path: Path, form: str, option: str) -> None:
    """GNU tar writes them for itself; samples, and the index that reindex makes of them, are those of the files."""
    raw = write_pairs(tmp_path / "raw", 3)
    (tmp_path / "tars").mkdir()
    command = ["tar", f"--format={form}", option, "-cf", "tars/x.tar", "-C", raw, *os.listdir(raw)]
    subprocess.run(command, check=True, cwd=tmp_path)

    pack(tmp_path / "tars", tmp_path / "one")
    samples = reindex(tmp_path / "tars").samples
    pack(tmp_path / "tars", tmp_path / "two")

    assert samples == len(by_key(tmp_path / "one")) > 0
    assert by_key(tmp_path / "one") == by_key(tmp_path / "two")


def test_names_are_cut_by_the_same_rule(tmp_path: Path) -> None:
    """And escaped by the same."""
    tar(tmp_path / "x.tar", {"a.b.c.jpg": b"1"})

    pack(tmp_path / "x.tar", tmp_path / "first", settings=PackSettings(key="first-dot"))
    pack(tmp_path / "x.tar", tmp_path / "known", settings=PackSettings(escape="percent"))

    assert by_key(tmp_path / "first") == {"a": {"b.c.jpg": b"1"}}
    assert by_key(tmp_path / "known") == {"a%2Eb%2Ec": {"jpg": b"1"}}
    with pytest.raises(InputError, match=r"x\.tar/a\.b\.c\.jpg: 'a\.b\.c' cannot be a sample's key"):
        pack(tmp_path / "x.tar", tmp_path / "ds")


def test_offenders_are_told_with_their_tar(tmp_path: Path) -> None:
    """Links, empty members, the same key in two tars; the rest can be packed."""
    path = tar(tmp_path / "raw" / "x.tar", {"a.txt": b"1", "e.txt": b"", "b.txt": b"2"})
    with tarfile.open(path, "a") as out:
        link = tarfile.TarInfo("l.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "a.txt"
        out.addfile(link)
    tar(tmp_path / "raw" / "y.tar", {"a.txt": b"3", "c.txt": b"4"})

    with pytest.raises(InputError) as caught:
        pack(tmp_path / "raw", tmp_path / "ds")
    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(on_error="skip"))

    for said in (
        "x.tar/e.txt is empty",
        "x.tar/l.txt is a symbolic link, not a file",
        "y.tar:1: its key a is that of x.tar:1",
    ):
        assert said in caught.value.message
    assert by_key(tmp_path / "ds") == {"a": {"txt": b"1"}, "b": {"txt": b"2"}, "c": {"txt": b"4"}}


def damaged(data: bytes) -> dict[str, bytes]:
    """A tar of two members, of 100 and 700 bytes, hurt in the ways that tarfile does not tell."""
    return {
        "cut at a member's end": data[:1024],
        "cut inside a header": data[:1300],
        "cut inside a member": data[:1700],
        "without its end": data[:2560],
        "with half an end": data[:2700],
        "with a flipped byte in the second header": data[:1030] + b"\xff" + data[1031:],
        "with a hole": data[:1024] + bytes(512) + data[1536:],
        "with a member behind its end": data + data,
    }


@pytest.mark.parametrize("how", damaged(bytes(4096)))
def test_a_damaged_tar_is_refused(tmp_path: Path, how: str) -> None:
    """Where tarfile, and so webdataset, stops without a word."""
    data = tar(tmp_path / "x.tar", {"a.txt": b"x" * 100, "b.txt": b"y" * 700}).read_bytes()
    (tmp_path / "x.tar").write_bytes(damaged(data)[how])

    with pytest.raises(InputError, match=r"x\.tar is not a whole tar: .*(byte|inside|end|data)"):
        pack(tmp_path / "x.tar", tmp_path / "ds")


def test_no_tar_at_all_is_refused(tmp_path: Path) -> None:
    """Whatever its name says."""
    for data, said in ((b"", r"x\.tar is empty"), (b"plain text" * 100, r"x\.tar is not a whole tar")):
        (tmp_path / "x.tar").write_bytes(data)
        with pytest.raises(InputError, match=said):
            pack(tmp_path / "x.tar", tmp_path / "ds")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_what_a_tar_holds_is_known_again_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By its size and time, also where it was unpacked for the pack: the second pack builds nothing."""
    at_rest(monkeypatch)
    data = tar(tmp_path / "made.tar", {f"s{n}.txt": b"%d" % n for n in range(20)}).read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    pack(tmp_path / name, tmp_path / "ds")

    again = pack(tmp_path / name, tmp_path / "ds")
    os.utime(tmp_path / name, (1_000_000_001, 1_000_000_001))
    touched = pack(tmp_path / name, tmp_path / "ds")

    assert (again.built, again.reused) == (0, 1)
    assert touched.built == 1


def edited(shard: Path, old: bytes, new: bytes) -> None:
    """Write over some bytes of a tar in place, beside an index that knows nothing of it."""
    data = shard.read_bytes()
    assert (data.count(old), len(old)) == (1, len(new))
    shard.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("remembered", [True, False])
def test_a_tar_that_was_edited_beside_its_index_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    """The index says what it said, and a fresh pack is refused: so is one over what was packed from it before."""
    at_rest(monkeypatch)
    pack(write_lines(tmp_path / "raw.jsonl", raw_lines(20)), tmp_path / "one")
    pack(tmp_path / "one", tmp_path / "two")
    before = tree(tmp_path / "two")
    again = pack(tmp_path / "one", tmp_path / "two")
    (shard,) = (tmp_path / "one").glob("*.tar")

    edited(shard, raw_lines(20)[7], raw_lines(20)[7].replace(b"r00007", b"r9000X"))
    if not remembered:
        shutil.rmtree(tmp_path / ".two.pack")
    with pytest.raises(InputError, match=f"{shard.name}:.* or not what its index says"):
        pack(tmp_path / "one", tmp_path / "two")

    assert (again.built, again.reused) == (0, 1)
    assert tree(tmp_path / "two") == before


def test_a_hard_link_makes_no_other_version_of_a_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC gives a shard another name, which changes its inode's time and no byte: with its index it is known again."""
    at_rest(monkeypatch)
    small_pack(write_lines(tmp_path / "raw.jsonl", raw_lines(50)), tmp_path / "one")
    small_pack(tmp_path / "one", tmp_path / "two")

    for number, shard in enumerate((tmp_path / "one").glob("*.tar")):
        (tmp_path / f"{number}").hardlink_to(shard)
    again = small_pack(tmp_path / "one", tmp_path / "two")

    assert (again.built, again.reused) == (0, again.shards)


def test_what_an_index_calls_a_twin_is_read_before_it_is_left_out(tmp_path: Path) -> None:
    """Nobody would read it otherwise, and it may have been edited since."""
    files = {"a.txt": b"same", "b.txt": b"same", "c.txt": b"other"}
    path = tar(tmp_path / "raw" / "x.tar", files)
    reindex(tmp_path / "raw")
    settings = PackSettings(dedupe="drop")
    pack(tmp_path / "raw", tmp_path / "before", settings=settings)

    tar(path, files | {"b.txt": b"SAME"})
    with pytest.raises(InputError, match=r"x\.tar:2 is not what it was when it was listed, or not what its index says"):
        pack(tmp_path / "raw", tmp_path / "after", settings=settings)

    assert set(by_key(tmp_path / "before")) == {"a", "c"}


def test_twins_beside_a_tar_without_an_index_are_read_once(tmp_path: Path) -> None:
    """All whose size another has are read to find them, so those that are left out need no second look."""
    tar(tmp_path / "raw" / "i" / "x.tar", {"a.txt": b"same", "b.txt": b"same"})
    reindex(tmp_path / "raw" / "i")
    tar(tmp_path / "raw" / "y.tar", {"c.txt": b"other"})
    told: list[Event] = []

    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(dedupe="drop"), on_event=told.append)

    (said,) = [event.message for event in told if isinstance(event, Note) and event.message.startswith("reading")]
    assert said.startswith("reading 2 of 3 records ")
    assert set(by_key(tmp_path / "ds")) == {"a", "c"}


def test_an_empty_part_is_an_offender_by_an_index_too(tmp_path: Path) -> None:
    """As it is without one: what is packed of a tar does not follow from what lies beside it."""
    tar(tmp_path / "raw" / "x.tar", {"a.txt": b"t", "b.jpg": b"j", "b.txt": b""})
    reindex(tmp_path / "raw")

    with pytest.raises(InputError, match=r"x\.tar:2: part txt of sample b is empty"):
        pack(tmp_path / "raw", tmp_path / "ds")
    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(on_error="skip"))

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"t"}}


def test_a_name_that_no_key_can_be_is_refused_and_the_hint_works(tmp_path: Path) -> None:
    """A PAX name may be longer than a key: reindex says so, and what its hint says leaves that sample out."""
    names = ["k" * 300 + ".txt", "d" * 120 + "/" + "k" * 90 + ".txt", "a.txt"]
    tar(tmp_path / "raw" / "x.tar", dict.fromkeys(names, b"t"))

    with pytest.raises(InputError, match="its key has 300 bytes, and one has 255 at most") as caught:
        reindex(tmp_path / "raw")
    words = str(caught.value.hint).partition("datakit ")[2].replace("DEST", str(tmp_path / "ds")).split()
    answer = datakit(*words)

    assert answer.code == 0, answer.stderr
    assert by_key(tmp_path / "ds") == {"d" * 120 + "/" + "k" * 90: {"txt": b"t"}, "a": {"txt": b"t"}}


def test_an_index_with_names_that_our_tars_cannot_hold_is_refused_while_it_is_listed(tmp_path: Path) -> None:
    """Indexes of others' tars hold keys of any length; never an OverflowError, never in the middle of a shard."""
    path = tar(tmp_path / "raw" / "x.tar", dict.fromkeys(["k" * 300 + ".txt", "k" * 150 + ".txt", "a.txt"], b"t"))
    data, digest = path.read_bytes(), sample_digest({"txt": b"t"})
    rows = [
        Row(entry.name.removesuffix(".txt"), digest, {"txt": Part(entry.offset, entry.size, 0)})
        for entry in entries(lambda offset, size: data[offset : offset + size], len(data))
    ]
    Path(index_name(str(path))).write_bytes(Index.from_rows(rows).to_bytes())

    with pytest.raises(
        InputError, match=r"2 offenders \(x\.tar:1: k+\.\.\.k*\.txt is 304 .* a tar \(USTAR\) name holds, x\.tar:2: "
    ):
        pack(tmp_path / "raw", tmp_path / "ds")
    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(on_error="skip"))
    with pytest.raises(InputError, match="key of 300 bytes"):
        KeyColumn.of(["k" * 300])

    assert by_key(tmp_path / "ds") == {"a": {"txt": b"t"}}


def test_an_index_with_names_that_no_sample_has_is_refused_while_it_is_listed(tmp_path: Path) -> None:
    """Readers of tars take `c//d` for a key, and datakit does not: each is told with its place, and can be left out."""
    tar(tmp_path / "raw" / "x.tar", {"c//d.txt": b"1", "x/../a.txt": b"2", "b.__t__": b"3", "ok.txt": b"4"})
    reindex(tmp_path / "raw")

    with pytest.raises(
        InputError, match=r"3 offenders \(x\.tar:1: 'c//d' .*, x\.tar:2: 'x/\.\./a' .*, x\.tar:3: '__t__' "
    ):
        pack(tmp_path / "raw", tmp_path / "ds")
    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(on_error="skip"))

    assert by_key(tmp_path / "ds") == {"ok": {"txt": b"4"}}


@pytest.mark.parametrize("single", [False, True])
def test_a_dataset_in_a_store_is_repacked_as_one_on_a_disk(tmp_path: Path, faulty: FaultyServer, single: bool) -> None:
    """Law 4: the index beside a tar is fetched too, so bundled lines are taken out, and keys are those of the index."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(20))
    pack(raw, tmp_path / "one", settings=PackSettings(bundle=8))
    (shard,) = (path.name for path in (tmp_path / "one").glob("*.tar"))
    below = f"/{shard}" if single else ""

    pack(f"{tmp_path / 'one'}{below}", tmp_path / "local" / "ds")
    result = pack(publish(tmp_path / "one", faulty) + below, tmp_path / "remote" / "ds")

    assert result.samples == 20
    assert tree(tmp_path / "remote") == tree(tmp_path / "local")


def test_tokens_and_sources_of_our_own_shards_stay(tmp_path: Path) -> None:
    """An index says them, beside tars that say none; sampled over shards in another order."""
    samples = [Sample(f"s{n}", {"txt": b"%d" % n}, f"raw.jsonl:{n}" if n % 2 else None, n or None) for n in range(9)]
    write_dataset(tmp_path / "one", samples, per_shard=4)
    tar(tmp_path / "one" / "other.tar", {"z.txt": b"z"})

    pack(tmp_path / "one", tmp_path / "two", settings=PackSettings(layout="shuffle"))

    assert sorted(samples_of(tmp_path / "two"), key=lambda sample: sample.key) == [*samples, Sample("z", {"txt": b"z"})]
    assert read_manifest(tmp_path / "two").contents.tokens == sum(range(9))


@pytest.mark.parametrize("indexed", [False, True])
def test_steps_that_lead_nowhere_are_no_part_of_an_indexed_key_either(tmp_path: Path, indexed: bool) -> None:
    """As readers have it, the key of `tar cf x.tar .` is `./b`, in the index too; packed, it is `b` either way."""
    tar(tmp_path / "raw" / "x.tar", {"./b.jpg": b"1", "./x/c.jpg": b"2", "./.d.jpg": b"3", "./.git/HEAD": b"4"})
    told: list[Event] = []
    if indexed:
        reindex(tmp_path / "raw")
        assert set(by_key(tmp_path / "raw")) == {"./b", "./x/c"}

    pack(tmp_path / "raw", tmp_path / "ds", on_event=told.append)

    assert by_key(tmp_path / "ds") == {"b": {"jpg": b"1"}, "x/c": {"jpg": b"2"}}
    (said,) = [event.message for event in told if isinstance(event, Note) and "hidden" in event.message]
    assert said.startswith("2 hidden names are left out, the first is x.tar/")


@pytest.mark.parametrize("manifest", [False, True])
def test_a_shard_that_was_compressed_beside_its_index_is_read_by_it(tmp_path: Path, manifest: bool) -> None:
    """Bundled lines are taken out, in the manifest's order, as of a plain shard."""
    raw = write_lines(tmp_path / "raw.jsonl", raw_lines(200))
    pack(raw, tmp_path / "one", settings=PackSettings(bundle=8, shard_size="8KiB"))
    if not manifest:
        (tmp_path / "one" / "manifest.json").unlink()
    pack(tmp_path / "one", tmp_path / "plain" / "ds")

    for shard in (tmp_path / "one").glob("*.tar"):
        Path(f"{shard}.gz").write_bytes(gzip.compress(shard.read_bytes()))
        shard.unlink()
    pack(tmp_path / "one", tmp_path / "packed" / "ds")

    assert len(by_key(tmp_path / "packed" / "ds")) == 200
    assert tree(tmp_path / "packed") == tree(tmp_path / "plain")


def test_a_bundled_shard_with_another_versions_index_is_refused_without_a_manifest_too(tmp_path: Path) -> None:
    """The index itself says that lines share members; each bundle would become one sample."""
    raw = tmp_path / "raw.jsonl"
    pack(write_lines(raw, raw_lines(20)), tmp_path / "old", settings=PackSettings(bundle=8))
    pack(write_lines(raw, raw_lines(30)), tmp_path / "new", settings=PackSettings(bundle=8))
    (old,), (new,) = (list((tmp_path / name).glob("*.tar")) for name in ("old", "new"))
    (tmp_path / "mixed").mkdir()
    shutil.copy(new, tmp_path / "mixed" / "x.tar")
    shutil.copy(index_name(str(old)), index_name(str(tmp_path / "mixed" / "x.tar")))

    with pytest.raises(
        InputError, match=r"x\.tar: only an index tells its bundled lines apart, and the index beside"
    ) as told:
        pack(tmp_path / "mixed", tmp_path / "ds")
    Path(index_name(str(tmp_path / "mixed" / "x.tar"))).unlink()
    pack(tmp_path / "mixed", tmp_path / "ds")

    assert told.value.hint == "Fetch both again; or, to pack each bundle as one sample, move the index away"
    assert {part for sample in samples_of(tmp_path / "ds") for part in sample.parts} == {"jsonl"}


def test_a_folder_in_the_place_of_an_index_is_no_index(tmp_path: Path) -> None:
    """What its manifest names is not there: bundled lines are refused, and not called changed."""
    pack(write_lines(tmp_path / "raw.jsonl", raw_lines(20)), tmp_path / "one", settings=PackSettings(bundle=8))
    (index,) = (tmp_path / "one").glob("*.index.arrow")
    index.unlink()
    index.mkdir()

    with pytest.raises(InputError, match=r"apart, and .*\.tar has no index beside it, which its manifest names"):
        pack(tmp_path / "one", tmp_path / "ds")


def test_keys_of_an_index_are_escaped_where_they_cannot_stand(tmp_path: Path) -> None:
    """As without an index; a key that can stand is the one that it was, though it looks escaped."""
    tar(tmp_path / "raw" / "x.tar", {"a\nb.txt": b"1", "c//d.txt": b"2", "e%2Ef.txt": b"3"})
    settings = PackSettings(escape="percent")
    pack(tmp_path / "raw", tmp_path / "plain", settings=settings)
    reindex(tmp_path / "raw")

    pack(tmp_path / "raw", tmp_path / "indexed", settings=settings)

    plain, ours = by_key(tmp_path / "plain"), by_key(tmp_path / "indexed")
    assert set(plain) == {"a%0Ab", "c%2F%2Fd", "e%252Ef"}
    assert ours == {**{key: plain[key] for key in ("a%0Ab", "c%2F%2Fd")}, "e%2Ef": plain["e%252Ef"]}
