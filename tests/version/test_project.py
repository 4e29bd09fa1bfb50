"""version/project: what DVC's settings and pointers say, read without DVC."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit import InputError, NotFound, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.store import ObstoreStore
from datakit.version.project import Pointer, Project, read_lock, read_pipeline, stage_dir
from support.dvcproject import bare_project, make_project

LOCAL = (
    "['remote \"store\"']\n    access_key_id = me\n    secret_access_key = hidden\n    endpointurl = http://other:9\n"
)


def options_of(project: Project, **more: object) -> StoreOptions:
    """How the default remote is reached."""
    store = project.remote(**more).store  # type: ignore[arg-type]  # by name
    assert isinstance(store, ObstoreStore)
    return store.options


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("dvc.lock:pack", Pointer(Path("dvc.lock"), "pack", None)),
        ("a:b/dvc.lock:tokenize@train:data/x/", Pointer(Path("a:b/dvc.lock"), "tokenize@train", "data/x")),
        ("../dvc.lock:pack:data/x:y", Pointer(Path("../dvc.lock"), "pack", "data/x:y")),
        ("data/packed.dvc", Pointer(Path("data/packed.dvc"), None, None)),
        ("data/packed.dvc:sub", Pointer(Path("data/packed.dvc"), None, "sub")),
    ],
)
def test_a_pointer_is_read_as_it_is_written(text: str, pointer: Pointer) -> None:
    """Colons may stand in folders and outputs."""
    assert Pointer.parse(text) == pointer
    assert str(pointer) == text.rstrip("/")


@pytest.mark.parametrize("text", ["data/packed", "s3://bucket/dvc.lock:pack", "mydvc.lock", "HEAD:data"])
def test_other_words_are_no_pointers(text: str) -> None:
    """They are paths or URLs."""
    assert Pointer.parse(text) is None


@pytest.mark.parametrize("text", ["dvc.lock", "dvc.lock:", "sub/dvc.lock::out"])
def test_a_lock_needs_a_stage(text: str) -> None:
    """The hint shows how it is written."""
    with pytest.raises(UsageError, match="names no stage"):
        Pointer.parse(text)


def test_a_project_is_found_from_below(tmp_path: Path) -> None:
    """And a place outside of one has none."""
    root = bare_project(tmp_path / "p", remote="s3://bucket/store")
    (root / "a" / "b").mkdir(parents=True)

    found = Project.around(root / "a" / "b" / "dvc.lock")

    assert found is not None
    assert found.root == root
    assert found.cache_dir == root / ".dvc" / "cache"
    assert Project.around(tmp_path) is None


def test_settings_that_dvc_wrote_are_read(tmp_path: Path) -> None:
    """Sections of remotes, with the quotes and indents of DVC's own files."""
    project = make_project(tmp_path / "p", remote="s3://bucket/a%20b/#1")
    for words in (["region", "eu-1"], ["endpointurl", "http://localhost:9"], ["allow_anonymous_login", "true"]):
        project.dvc("remote", "modify", "store", *words)
    project.dvc("config", "cache.dir", "/nvme/cache")
    project.dvc("remote", "add", "other", "../elsewhere")

    found = Project.at(project.root)

    assert found.cache_dir == Path("/nvme/cache")
    assert found.remote().url == "s3://bucket/a%20b/#1"
    assert options_of(found) == StoreOptions(
        url="s3://bucket/a%20b/#1", endpoint_url="http://localhost:9", region="eu-1", anonymous=True
    )
    # DVC writes relative folders as seen from .dvc
    assert found.remotes["other"]["url"] == "../../elsewhere"
    assert (found.remote("other").path or Path()).resolve() == tmp_path / "elsewhere"


def test_local_settings_stand_over_the_shared_ones(tmp_path: Path) -> None:
    """Secrets lie in `.dvc/config.local`, which git does not get."""
    root = bare_project(tmp_path / "p", remote="s3://bucket/x", settings="    endpointurl = http://shared:9\n")
    (root / ".dvc" / "config.local").write_text(LOCAL)

    options = options_of(Project.at(root))

    assert (options.endpoint_url, options.access_key_id) == ("http://other:9", "me")
    assert "hidden" not in repr(options)


def test_a_named_store_stands_over_dvcs_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the environment: each says what the one before leaves open."""
    root = bare_project(
        tmp_path / "p", remote="s3://bucket/x", settings="    region = eu-1\n    endpointurl = http://d:9\n"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_REGION", "us-9")

    options = options_of(Project.at(root), stores={"cold": StoreOptions(url="s3://bucket", endpoint_url="http://n:9")})

    assert (options.endpoint_url, options.region, options.access_key_id) == ("http://n:9", "eu-1", "env")


def test_a_profile_of_dvc_names_the_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over those of the environment, as DVC itself does it."""
    root = bare_project(tmp_path / "p", remote="s3://bucket/x", settings="    profile = team\n")
    file = tmp_path / "credentials"
    file.write_text("[team]\naws_access_key_id = t\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "e")

    assert options_of(Project.at(root)).access_key_id == "t"


def test_the_only_remote_is_the_default_one(tmp_path: Path) -> None:
    """Where several are and none is named, it has to be said."""
    root = tmp_path / "p"
    (root / ".dvc").mkdir(parents=True)
    config = root / ".dvc" / "config"
    config.write_text("['remote \"a\"']\nurl = azure://box/x\n")
    one = Project.at(root).remote().url
    config.write_text("['remote \"a\"']\nurl = s3://a\n['remote \"b\"']\nurl = s3://b\n")

    assert one == "az://box/x"
    assert Project.at(root).remote("b").url == "s3://b"
    with pytest.raises(NotFound, match="no default remote"):
        Project.at(root).remote()
    with pytest.raises(NotFound, match="lies in no project of DVC") as caught:
        Project.at(tmp_path).remote()
    assert str(caught.value.hint).startswith("Run dvc init")
    with pytest.raises(NotFound, match="no remote c"):
        Project.at(root).remote("c")


@pytest.mark.parametrize("mode", ["version_aware", "worktree"])
def test_a_remote_that_keeps_no_md5s_is_refused(tmp_path: Path, mode: str) -> None:
    """Its files lie under their own names."""
    root = bare_project(tmp_path / "p", remote="s3://bucket/x", settings=f"    {mode} = true\n")

    with pytest.raises(UsageError, match=mode):
        Project.at(root).remote()


def test_a_remote_of_another_kind_is_said(tmp_path: Path) -> None:
    """`webdavs://` is DVC's, not ours."""
    root = bare_project(tmp_path / "p", remote="webdavs://host/x")

    with pytest.raises(UsageError, match="scheme that datakit does not know"):
        Project.at(root).remote()


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """With the file."""
    root = bare_project(tmp_path / "p", remote="x")
    (root / ".dvc" / "config").write_text("no section = 1\n")

    with pytest.raises(InputError, match=r"\.dvc/config cannot be read"):
        Project.at(root)


def test_paths_of_a_stage_start_where_it_works(tmp_path: Path) -> None:
    """`wdir` of dvc.yaml, of a stage or of all of a `foreach`; a templated one leads nowhere."""
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  a: {cmd: x}\n  b: {wdir: sub, cmd: x}\n  c:\n    foreach: [1]\n    do: {wdir: ../up, cmd: x}\n"
    )

    told = read_pipeline(tmp_path)

    assert stage_dir(tmp_path, "a", stages=told) == tmp_path
    assert stage_dir(tmp_path, "b", stages=told) == tmp_path / "sub"
    assert stage_dir(tmp_path, "c@1", stages=told) == tmp_path / "../up"
    assert stage_dir(tmp_path, "gone", stages=told) == tmp_path
    assert read_pipeline(tmp_path / "elsewhere") == {}


def test_a_folder_without_a_lock_has_none(tmp_path: Path) -> None:
    """Which is no error: DVC is optional."""
    assert read_lock(tmp_path) is None
