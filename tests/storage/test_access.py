"""What `storage/access` promises: AWS's own names are understood, and no secret stands in a repr."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import UsageError
from datakit.source.scan import is_remote
from datakit.storage.access import VARIABLES, StoreOptions, local_path
from datakit.storage.store import open_location

SECRET = "wJalrXUtnFEMI-very-secret"


def test_no_repr_and_no_text_of_options_holds_a_secret() -> None:
    """Key id, secret and token are left out of everything that may end in a log."""
    options = StoreOptions(access_key_id="AKIAEXAMPLE", secret_access_key=SECRET, session_token="token-" + SECRET)

    shown = repr(options) + str(options) + f"{options}"

    assert SECRET not in shown
    assert "AKIAEXAMPLE" not in shown


def test_the_environment_of_aws_tools_is_understood() -> None:
    """Every variable that names an endpoint, a region or credentials arrives in its field."""
    env = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "token",
    }

    options = StoreOptions.from_environment(env)

    assert options == StoreOptions(
        endpoint_url="http://127.0.0.1:9000",
        region="eu-central-1",
        access_key_id="id",
        secret_access_key=SECRET,
        session_token="token",
    )


def test_the_more_special_variable_wins() -> None:
    """AWS_ENDPOINT_URL_S3 stands above AWS_ENDPOINT_URL, and AWS_REGION above AWS_DEFAULT_REGION."""
    env = {
        "AWS_ENDPOINT_URL": "http://all",
        "AWS_ENDPOINT_URL_S3": "http://s3",
        "AWS_REGION": "a",
        "AWS_DEFAULT_REGION": "b",
    }

    options = StoreOptions.from_environment(env)

    assert (options.endpoint_url, options.region) == ("http://s3", "a")


def write_profiles(home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile team]\nregion = us-west-2\nendpoint_url = https://team.example\n"
    )
    (home / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = d\naws_secret_access_key = {SECRET}\n"
        f"[team]\naws_access_key_id = t\naws_secret_access_key = {SECRET}%x\naws_session_token = s\n"
    )


def test_the_shared_files_are_read_by_profile(tmp_path: Path) -> None:
    """`aws configure` is enough: the default profile, or the one that AWS_PROFILE names."""
    write_profiles(tmp_path)

    default = StoreOptions.from_environment({"HOME": str(tmp_path)})
    team = StoreOptions.from_environment({"HOME": str(tmp_path), "AWS_PROFILE": "team"})

    assert (default.access_key_id, default.region, default.endpoint_url) == ("d", "eu-west-1", None)
    assert (team.access_key_id, team.secret_access_key, team.session_token) == ("t", SECRET + "%x", "s")
    assert (team.region, team.endpoint_url) == ("us-west-2", "https://team.example")


def test_credentials_come_whole_from_one_place(tmp_path: Path) -> None:
    """A key id of the environment is never joined with a file's session token."""
    write_profiles(tmp_path)
    env = {"HOME": str(tmp_path), "AWS_PROFILE": "team", "AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "x"}

    options = StoreOptions.from_environment(env)

    assert (options.access_key_id, options.secret_access_key, options.session_token) == ("e", "x", None)


def test_a_broken_shared_file_is_named_without_its_lines(tmp_path: Path) -> None:
    """The parser's own message would quote the line, and the line may be a secret."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(SECRET)

    with pytest.raises(UsageError) as caught:
        StoreOptions.from_environment({"HOME": str(tmp_path)})

    assert "credentials cannot be read" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_password_in_an_endpoint_is_refused_without_being_said() -> None:
    """Messages name the endpoint."""
    with pytest.raises(UsageError) as caught:
        StoreOptions(endpoint_url="https://me:hidden@host:9000")

    assert "hidden" not in str(caught.value)


def test_options_travel_through_the_environment() -> None:
    """What a parent writes for its child, the child reads back the same."""
    options = StoreOptions(
        endpoint_url="http://x", region="r", access_key_id="i", secret_access_key="s", virtual_hosted=True
    )

    read_back = StoreOptions.from_environment(options.to_environment({}))

    assert read_back == options
    assert StoreOptions.from_environment(StoreOptions(anonymous=True).to_environment({})).anonymous


def test_options_for_a_child_are_not_mixed_with_what_lies_around(tmp_path: Path) -> None:
    """No variable and no file of another account reaches a child that is told its store."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]\nendpoint_url = http://files\nregion = files\n")
    (tmp_path / ".aws" / "credentials").write_text("[default]\naws_access_key_id = f\naws_secret_access_key = fs\n")
    around = {
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_DEFAULT_REGION": "other",
        "AWS_ENDPOINT_URL": "http://other",
        "AWS_ENDPOINT_URL_S3": "http://other-s3",
        "AWS_PROFILE": "default",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "other",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "PATH": "/bin",
    }
    for options in (StoreOptions(endpoint_url="http://own", access_key_id="i", secret_access_key="s"), StoreOptions()):
        child = options.to_environment(around)

        assert StoreOptions.from_environment(child) == options
        assert child["PATH"] == "/bin"


def test_every_variable_that_options_are_read_from_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is read and not listed would leak into a child."""
    read: set[str] = set()

    class Spy(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    StoreOptions.from_environment(Spy(HOME="/nowhere"))
    StoreOptions.from_environment(Spy(HOME="/nowhere", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b"))

    assert read - {"HOME"} == set(VARIABLES)


def test_named_options_stand_above_the_environment() -> None:
    """What the settings leave open comes from the environment, credentials only together."""
    env = StoreOptions(endpoint_url="http://env", region="env", access_key_id="e", secret_access_key="es")

    with_keys = StoreOptions(region="own", access_key_id="o", secret_access_key="os").over(env)
    without = StoreOptions(endpoint_url="http://own").over(env)
    public = StoreOptions(anonymous=True).over(env)

    assert (with_keys.endpoint_url, with_keys.region, with_keys.secret_access_key) == ("http://env", "own", "os")
    assert (without.endpoint_url, without.access_key_id) == ("http://own", "e")
    assert public.access_key_id is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "bucket"}, "not the URL of a store"),
        ({"endpoint_url": "minio:9000"}, "needs http:// or https://"),
        ({"access_key_id": "x"}, "come together"),
        ({"secret_access_key": SECRET}, "come together"),
    ],
)
def test_nonsense_is_refused_with_the_rule(values: dict[str, str], words: str) -> None:
    """Each rule has its sentence, and none quotes a secret."""
    with pytest.raises(UsageError, match=words) as caught:
        StoreOptions(**values)

    assert SECRET not in str(caught.value)


def test_options_can_be_pickled_for_worker_processes() -> None:
    """Packing in processes hands them on."""
    options = StoreOptions(endpoint_url="http://x", access_key_id="i", secret_access_key="s")

    assert pickle.loads(pickle.dumps(options)) == options


def test_where_only_the_local_disk_will_do_a_url_is_seen() -> None:
    """`file://` says a path; of another place what is said is how to get at it, or what the caller says."""
    paths = [local_path(place) for place in ("/data/ds", "file:///data/ds", Path("/data/ds"))]

    assert paths == [Path("/data/ds")] * 3
    with pytest.raises(UsageError, match="cold://b/ds is not on a local disk") as elsewhere:
        local_path("cold://b/ds")
    with pytest.raises(UsageError, match=r"pack it first\. Do that"):
        local_path("s3://b/ds", message="pack it first", hint="Do that")
    with pytest.raises(UsageError, match="a path is empty"):
        local_path("")
    with pytest.raises(UsageError, match="file:// has two slashes") as slip:
        local_path("file:/data/ds")
    assert str(slip.value.hint).startswith("Write file:///data/ds, or ./file:/data/ds for")
    assert elsewhere.value.hint == "Bring it here: datakit sync cold://b/ds DIR"


@pytest.mark.parametrize("door", [local_path, open_location, is_remote])
@pytest.mark.parametrize(
    ("place", "said", "advice"),
    [
        ("file://", "is not file:// and an absolute path", "Write file:///PATH; a shell variable may be unset"),
        ("file://host/data", "names the host host, not a path", "Write file:///host/data"),
        ("file://localhost/data", "names the host localhost, not a path", "Write file:///data"),
        ("file://data", "names the host data, not a path", "Write file:///data"),
        ("FILE:///data", "is not file:// and an absolute path", "Write file:///data"),
    ],
)
def test_a_file_url_without_an_absolute_path_is_refused(
    door: Callable[[str], object], place: str, said: str, advice: str
) -> None:
    """An unset variable left it empty, or its first part is a host; none is a path from here in silence."""
    with pytest.raises(UsageError, match=re.escape(f"{place} {said}")) as refused:
        door(place)

    assert str(refused.value.hint).startswith(advice)
