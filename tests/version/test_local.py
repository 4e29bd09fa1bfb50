"""version/local: what lies here in DVC's words, by reading as little as possible."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from datakit import InputError, IntegrityError, NotFound
from datakit.data.digest import entry_of
from datakit.storage.commit import read_manifest
from datakit.version.dvc import Out, Tree
from datakit.version.local import MISSING, find, md5_of, record_of, settings_now
from support.commits import flip_bit, make_commit, noise
from support.process import run_code
from support.tiny import text_samples, write_dataset


def test_a_commit_is_known_by_its_manifest(tmp_path: Path) -> None:
    """A flipped bit of a shard changes nothing here: looking at bytes is the work of `verify` and of the loader."""
    write_dataset(tmp_path / "ds", text_samples(9))
    before = record_of(tmp_path / "ds", written="ds")
    flip_bit(next((tmp_path / "ds").glob("*.tar")), 20)

    assert before == record_of(tmp_path / "ds", written="ds")
    assert before.md5 == Tree.of(read_manifest(tmp_path / "ds")).md5


def test_a_member_of_another_size_is_read(tmp_path: Path) -> None:
    """Its md5 is then not the manifest's, as DVC would find too."""
    make_commit(tmp_path / "ds", {"a.tar": noise(300)})
    (tmp_path / "ds" / "a.tar").write_bytes(b"cut")

    assert [md5_of(each) for each in find(tmp_path / "ds") if each.name == "a.tar"] == [entry_of("a", b"cut").md5]


def test_files_that_no_manifest_names_are_hashed(tmp_path: Path) -> None:
    """A note beside the shards, and what another program calls manifest.json."""
    make_commit(tmp_path / "ds" / "train", {"a.tar": noise(300)})
    (tmp_path / "ds" / "note").write_bytes(b"1")
    (tmp_path / "ds" / "web").mkdir()
    (tmp_path / "ds" / "web" / "manifest.json").write_bytes(b'{"name": "app"}')
    (tmp_path / "ds" / ".git").mkdir()
    (tmp_path / "ds" / ".git" / "x").write_bytes(b"1")

    found = {each.name: each for each in find(tmp_path / "ds")}

    assert list(found) == ["note", "train/a.tar", "train/manifest.json", "web/manifest.json"]
    assert [name for name, each in found.items() if each.entry] == ["train/a.tar"]
    assert md5_of(found["note"]) == entry_of("", b"1").md5


def test_a_torn_manifest_is_damage(tmp_path: Path) -> None:
    """It would otherwise be taken for another program's."""
    make_commit(tmp_path / "ds", {"a.tar": noise(300)})
    path = tmp_path / "ds" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kinb"'))

    with pytest.raises(IntegrityError, match="a manifest has"):
        find(tmp_path / "ds")


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    """It has no bytes that could be recorded or compared."""
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "a").symlink_to(tmp_path / "gone")

    with pytest.raises(NotFound, match="ds/a is not there"):
        find(tmp_path / "ds")


@pytest.mark.parametrize(
    ("look", "named"),
    [
        ("find(root)", "ds/sub"),
        ("glance(root / 'sub' / 'raw', Out('raw', '0' * 32, 1))", "ds/sub/raw"),
        ("settings_now(root / 'sub' / 'params.yaml', ['train'])", "ds/sub/params.yaml"),
    ],
)
def test_a_folder_that_may_not_be_listed_is_not_left_out(look: str, named: str) -> None:
    """Else a directory would be recorded, and published, without what lies in it; asked as an ordinary user."""
    code = """
import os, sys
from pathlib import Path
import datakit.storage.disk
from datakit.errors import NotAllowed
from datakit.version.dvc import Out
from datakit.version.local import find, glance, settings_now
if os.getuid() == 0:
    os.seteuid(65534)
root = Path(sys.argv[1])
try:
    print(eval(sys.argv[2]))
except NotAllowed as error:
    print("not allowed:", error.message)
"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "ds" / "sub").mkdir(parents=True)
        (root / "ds" / "a").write_bytes(b"1")
        (root / "ds" / "sub").chmod(0o000)
        try:
            said = run_code(code, root / "ds", look)
        finally:
            (root / "ds" / "sub").chmod(0o700)

    assert said.startswith("not allowed:")
    assert named in said


def test_a_record_is_what_dvc_writes(tmp_path: Path) -> None:
    """Size and number of files of a directory, size of a file."""
    write_dataset(tmp_path / "ds", text_samples(9))
    sizes = [path.stat().st_size for path in (tmp_path / "ds").iterdir()]
    (tmp_path / "one").write_bytes(b"123")

    own = Tree.of(read_manifest(tmp_path / "ds"))
    assert record_of(tmp_path / "ds", written="x/ds") == Out("x/ds", own.md5, sum(sizes), len(sizes))
    assert record_of(tmp_path / "one", written="one") == Out("one", entry_of("", b"123").md5, 3)
    with pytest.raises(NotFound):
        record_of(tmp_path / "gone", written="gone")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "train: {rank: 8, rate: 1e-3}\na.b: 1\n"),
        ("p.json", '{"train": {"rank": 8, "rate": 0.001}, "a.b": 1}'),
        ("p.toml", '"a.b" = 1\n[train]\nrank = 8\nrate = 0.001\n'),
    ],
)
def test_settings_are_found_by_their_path(tmp_path: Path, name: str, text: str) -> None:
    """Sections and single values, in each kind of file that DVC takes."""
    (tmp_path / name).write_text(text)

    now = settings_now(tmp_path / name, ["train", "train.rate", "a.b", "train.alpha", "train.rank.x"])

    assert now == {
        "train": {"rank": 8, "rate": 0.001}, "train.rate": 0.001, "a.b": 1,
        "train.alpha": MISSING, "train.rank.x": MISSING,
    }  # fmt: skip


def test_settings_that_cannot_be_told(tmp_path: Path) -> None:
    """A Python file and one that is not there say nothing; a torn one is an error."""
    (tmp_path / "p.py").write_text("rank = 8\n")
    (tmp_path / "p.json").write_text("{")

    assert settings_now(tmp_path / "p.py", ["rank"]) is None
    assert settings_now(tmp_path / "gone.yaml", ["rank"]) is None
    with pytest.raises(InputError, match=r"p\.json cannot be read"):
        settings_now(tmp_path / "p.json", ["rank"])
