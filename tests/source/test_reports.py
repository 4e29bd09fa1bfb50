"""source/reports: what was left out is listed and copied, and too much of it stops the pack."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from datakit import InputError, NotAllowed, Refused
from datakit.events import Caution, Event
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.source.reports import LeftOut, settle
from datakit.source.troubles import Raw, Trouble
from support.packing import raw_lines, samples_of, tree, write_lines

BAD = {2: b"no json", 30: b'{"id": "a.b"}', 45: b'{"id": "r00001"}'}


def with_bad_lines() -> list[bytes]:
    """Sixty records, three of which cannot be packed."""
    return [BAD.get(number, line) for number, line in enumerate(raw_lines(60))]


def report_of(dest: Path) -> list[dict[str, object]]:
    """The report beside a destination."""
    return [json.loads(line) for line in dest.with_name(f"{dest.name}.errors.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_what_is_left_packs_like_a_source_without_offenders(tmp_path: Path, on_error: str) -> None:
    """The same bytes, with any number of workers; the report names each offender."""
    raw = write_lines(tmp_path / "raw.jsonl", with_bad_lines())
    good = write_lines(tmp_path / "good.jsonl", [line for n, line in enumerate(raw_lines(60)) if n not in BAD])
    heard: list[Event] = []
    settings = PackSettings(on_error=on_error, name="ds")  # type: ignore[arg-type]  # one of the three

    result = pack(raw, tmp_path / "one", settings=settings, workers=2, on_event=heard.append)
    pack(good, tmp_path / "two", settings=PackSettings(name="ds"))

    trees = [tree(tmp_path / name) for name in ("one", "two")]
    manifests = [json.loads(its.pop("manifest.json")) for its in trees]
    assert trees[0] == trees[1]
    assert manifests[0]["about"]["pack"].pop("left_out") == {"offenders": 3}, "inspect and lineage show it"
    assert manifests[0] == manifests[1]
    assert (result.records, result.left_out.count, result.left_out.report) == (57, 3, tmp_path / "one.errors.jsonl")
    assert [(one["where"], one["key"]) for one in report_of(tmp_path / "one")] == [
        ("raw.jsonl:3", None),
        ("raw.jsonl:31", None),
        ("raw.jsonl:46", "r00001"),
    ]
    cautions = [event.message for event in heard if isinstance(event, Caution)]
    assert cautions == ["3 offenders are left out"]
    assert (result.left_out.quarantine is not None) == (on_error == "quarantine")
    if result.left_out.quarantine is not None:
        assert tree(result.left_out.quarantine) == {"raw.jsonl": b"".join(line + b"\n" for line in BAD.values())}


@pytest.mark.parametrize("name", ["chat.jsonl.gz", "chat.json", "chat.ndjson"])
def test_what_is_in_quarantine_can_be_mended_and_packed(tmp_path: Path, name: str) -> None:
    """Lines of a compressed file or an array are plain lines, and called like such."""
    lines = with_bad_lines()
    data = b"[" + b",\n".join(lines) + b"]" if name.endswith(".json") else b"\n".join(lines)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    settings = PackSettings(on_error="quarantine")
    folder = pack(tmp_path / name, tmp_path / "ds", settings=settings).left_out.quarantine
    assert folder is not None
    (copy,) = folder.iterdir()

    assert copy.read_bytes() == b"".join(line + b"\n" for line in BAD.values())
    write_lines(copy, [b'{"id": "m%d"}' % number for number in range(3)])
    pack(folder, tmp_path / "two")
    assert sorted(sample.key for sample in samples_of(tmp_path / "two")) == ["m0", "m1", "m2"]


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    """Rows of tables and members of tars: nothing is in quarantine, and the result does not name it."""
    (tmp_path / "x.csv").write_bytes(b"id,a\nx,1\ny\nz.z,2\n")
    heard: list[Event] = []
    settings = PackSettings(on_error="quarantine")

    result = pack(tmp_path / "x.csv", tmp_path / "ds", settings=settings, on_event=heard.append)

    assert result.left_out == LeftOut(2, tmp_path / "ds.errors.jsonl")
    assert not (tmp_path / "ds.quarantine").exists()
    assert "2 offenders are not copied to quarantine, the first is x.csv:3" in [
        event.message for event in heard if isinstance(event, Caution)
    ]


def test_files_are_quarantined_with_their_whole_record(tmp_path: Path) -> None:
    """As they were, below the folder, under their own names."""
    root = tmp_path / "raw"
    (root / "d").mkdir(parents=True)
    for name, data in {"d/a.jpg": b"", "d/a.json": b"{}", "README": b"read", "b.jpg": b"b", "c.X.jpg": b"c"}.items():
        (root / name).write_bytes(data)

    result = pack(root, tmp_path / "ds", settings=PackSettings(on_error="quarantine"))

    assert tree(tmp_path / "ds.quarantine") == {"README": b"read", "c.X.jpg": b"c", "d/a.jpg": b"", "d/a.json": b"{}"}
    assert (result.samples, result.left_out.count, result.part_counts) == (1, 3, {"jpg": 1})


def test_nothing_of_a_record_is_quarantined_where_its_offender_cannot_be(tmp_path: Path) -> None:
    """What is in quarantine would pack as a sample that lacks a part; that it is not there is said."""
    root = tmp_path / "raw"
    root.mkdir()
    for name in ("s3.jpg", "s3.txt", "s4.txt", "s5.txt"):
        (root / name).write_bytes(b"" if name in ("s3.txt", "s4.txt") else b"x")
    (root / "s3.cls").symlink_to("/etc/passwd")
    heard: list[Event] = []

    pack(root, tmp_path / "ds", settings=PackSettings(on_error="quarantine"), on_event=heard.append)

    assert tree(tmp_path / "ds.quarantine") == {"s4.txt": b""}
    assert [one["where"] for one in report_of(tmp_path / "ds")] == ["s3.cls", "s3.txt", "s4.txt"]
    assert "2 offenders are not copied to quarantine, the first is s3.cls" in [
        event.message for event in heard if isinstance(event, Caution)
    ]


def test_more_than_the_limit_stops_the_pack(tmp_path: Path) -> None:
    """Nothing is committed; the report says which, so that they can be mended."""
    raw = write_lines(tmp_path / "raw.jsonl", with_bad_lines())

    with pytest.raises(
        InputError, match=r"^more than 2 offenders .* cannot be packed, which --max-errors 2 does"
    ) as caught:
        pack(raw, tmp_path / "ds", settings=PackSettings(on_error="skip", max_errors=2))

    assert caught.value.exit_code == 1
    assert str(tmp_path / "ds.errors.jsonl") in str(caught.value.hint)
    assert len(report_of(tmp_path / "ds")) == 3
    assert not (tmp_path / "ds").exists()


def test_a_dry_run_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """Neither report nor quarantine; each offender is told."""
    raw = write_lines(tmp_path / "raw.jsonl", with_bad_lines())
    heard: list[Event] = []
    settings = PackSettings(on_error="quarantine")

    result = pack(raw, tmp_path / "ds", settings=settings, dry_run=True, on_event=heard.append)

    assert (result.left_out.count, result.left_out.report, result.left_out.quarantine) == (3, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw.jsonl"]


def test_a_clean_pack_removes_the_report_of_an_earlier_one(tmp_path: Path) -> None:
    """It would speak of a dataset that is no more; what is in quarantine stays."""
    raw = write_lines(tmp_path / "raw.jsonl", with_bad_lines())
    pack(raw, tmp_path / "ds", settings=PackSettings(on_error="quarantine"))
    write_lines(raw, raw_lines(60))

    pack(raw, tmp_path / "ds")

    assert not (tmp_path / "ds.errors.jsonl").exists()
    assert (tmp_path / "ds.quarantine" / "raw.jsonl").exists()


def test_a_source_of_nothing_but_offenders_is_empty(tmp_path: Path) -> None:
    """A dataset of no samples is never committed."""
    raw = write_lines(tmp_path / "raw.jsonl", [b"no", b"no"])

    with pytest.raises(InputError, match="it holds no records that can be packed, and 2 that cannot"):
        pack(raw, tmp_path / "ds", settings=PackSettings(on_error="skip"))


def test_a_name_of_any_bytes_can_stand_in_a_report(tmp_path: Path) -> None:
    """JSON has letters only; an escape stands for a byte that is none, and our own pack takes the report."""
    troubles = [Trouble("x\udcff", "is \udcfe", key="caf\udce9", raws=(Raw("x", str(tmp_path / "x")),) * 2)]
    (tmp_path / "x").write_bytes(b"data")

    found = settle(troubles, dest=tmp_path / "ds", on_error="quarantine", max_errors=1)

    assert found == LeftOut(1, tmp_path / "ds.errors.jsonl", tmp_path / "ds.quarantine")
    assert report_of(tmp_path / "ds") == [{"where": "x\\udcff", "key": "caf\\udce9", "problem": "is \\udcfe"}]
    assert pack(tmp_path / "ds.errors.jsonl", tmp_path / "errors").samples == 1
    assert tree(tmp_path / "ds.quarantine") == {"x": b"data"}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("data", [None, b"", b"my own notes\n", b'{"id": "a"}\n', b"[1]\n", b"3\n"])
def test_what_a_pack_did_not_write_is_left_alone(tmp_path: Path, data: bytes | None, dry_run: bool) -> None:
    """A folder or a file of the user's that has a report's name: neither removed nor written over."""
    report = tmp_path / "ds.errors.jsonl"
    report.mkdir() if data is None else report.write_bytes(data)

    assert settle([], dest=tmp_path / "ds", on_error="skip", max_errors=1) == LeftOut()
    with pytest.raises(Refused, match=r"ds\.errors\.jsonl is no list of offenders that a pack wrote"):
        settle([Trouble("x", "is bad")], dest=tmp_path / "ds", on_error="skip", max_errors=1, dry_run=dry_run)

    assert report.is_dir() if data is None else report.read_bytes() == data


def test_a_report_that_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence, never as an error of Python's."""
    settle([Trouble("x", "is bad")], dest=tmp_path / "ds", on_error="skip", max_errors=1)

    def unlink(path: Path, *, missing_ok: bool) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", unlink)  # the tests' user may be root, whom no mode keeps out

    with pytest.raises(NotAllowed, match=r"ds\.errors\.jsonl: Permission denied"):
        settle([], dest=tmp_path / "ds", on_error="skip", max_errors=1)


def test_no_offender_leaves_nothing(tmp_path: Path) -> None:
    """No file, no folder."""
    assert settle([], dest=tmp_path / "ds", on_error="skip", max_errors=1) == LeftOut()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on_error", ["stop", "skip", "quarantine"])
def test_what_an_earlier_pack_put_into_quarantine_is_told(tmp_path: Path, on_error: str) -> None:
    """It stays, since somebody may be mending it, and may be packed by now: who packs it as well has it twice."""
    raw = write_lines(tmp_path / "raw" / "a.jsonl", with_bad_lines())
    pack(tmp_path / "raw", tmp_path / "ds", settings=PackSettings(on_error="quarantine"))
    before = tree(tmp_path / "ds.quarantine")
    write_lines(raw, raw_lines(60) if on_error == "stop" else with_bad_lines())
    if on_error == "quarantine":
        raw.rename(tmp_path / "raw" / "b.jsonl")
    heard: list[Event] = []

    settings = PackSettings(on_error=on_error)  # type: ignore[arg-type]  # one of the three
    result = pack(tmp_path / "raw", tmp_path / "ds", settings=settings, on_event=heard.append)

    assert result.left_out.old_copies == 1
    assert f"{tmp_path / 'ds.quarantine'} holds 1 file that this pack did not copy there" in [
        event.message for event in heard if isinstance(event, Caution)
    ]
    assert before.items() <= tree(tmp_path / "ds.quarantine").items()
