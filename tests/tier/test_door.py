"""The socket of a cache: this user's alone, where both ends find it, replaced where a killed agent left it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.errors import InputError, NotAllowed, UsageError
from datakit.tier import door
from support.agents import Cache, short_folder, wait_until
from support.process import environment


def test_one_directory_has_one_socket_whatever_it_is_called(tmp_path: Path) -> None:
    """A link and a path with steps lead to the same; another directory has another."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    env = {"XDG_RUNTIME_DIR": "/run/x"}

    paths = {door.socket_path(tmp_path / name, env=env) for name in ("a", "link", "b/../a")}

    assert len(paths) == 1
    assert paths != {door.socket_path(tmp_path / "b", env=env)}
    assert str(paths.pop()).startswith(f"/run/x/datakit-{os.geteuid()}/")


def test_a_path_that_is_too_long_is_said_before_it_is_used(tmp_path: Path) -> None:
    """With what to set; one byte less is taken."""
    room = door.MOST_BYTES - len(f"/datakit-{os.geteuid()}/0123456789abcdef.sock")

    assert door.socket_path(tmp_path, env={"XDG_RUNTIME_DIR": "/" + "x" * (room - 1)})
    with pytest.raises(UsageError, match="too long for a socket, by 1 bytes"):
        door.socket_path(tmp_path, env={"XDG_RUNTIME_DIR": "/" + "x" * room})


def test_a_stale_socket_is_nobody_and_is_replaced(cache: Cache) -> None:
    """A file that nobody listens at, which a killed agent leaves."""
    cache.root.mkdir()
    path = door.socket_path(cache.root)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    assert door.dial(cache.root, timeout_s=1) is None
    with door.listen(cache.root) as listening:
        found = door.dial(cache.root, timeout_s=1)
        assert found is not None
        found.close()
        door.close(cache.root, listening)
    assert not path.exists()
    assert not (cache.root / door.SIGN_NAME).exists()


def test_an_agent_is_found_from_another_environment(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache directory says where it listens; what it says may be torn."""
    cache.root.mkdir()
    with short_folder() as other, door.listen(cache.root) as listening:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
        found = door.dial(cache.root, timeout_s=1)
        assert found is not None
        found.close()
        (cache.root / door.SIGN_NAME).write_text("{")
        assert door.dial(cache.root, timeout_s=1) is None
        (cache.root / door.SIGN_NAME).write_text(json.dumps({"socket": listening.getsockname()}))
        door.close(cache.root, listening)


@pytest.mark.parametrize("wrong", ["open", "link", "file"])
def test_a_directory_that_others_may_enter_is_refused(cache: Cache, wrong: str) -> None:
    """Or a link, which somebody else may have laid there; a file is said to be one."""
    cache.root.mkdir()
    folder = door.socket_path(cache.root).parent
    if wrong == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif wrong == "link":
        (folder.parent / "other").mkdir(mode=0o700)
        folder.symlink_to("other")
    else:
        folder.write_bytes(b"")

    with pytest.raises(InputError if wrong == "file" else NotAllowed, match=r"no directory|is a link, another user's"):
        door.listen(cache.root)


STRANGER = """
import os, socket, sys
os.setuid(12345)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(connection.recv(100))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_stranger_is_refused(cache: Cache) -> None:
    """Though every permission on the way was opened: the kernel says whose process it is."""
    client = cache.client()
    client.status()
    path = Path(json.loads((cache.root / door.SIGN_NAME).read_bytes())["socket"])
    for each, mode in ((path.parent.parent, 0o755), (path.parent, 0o755), (path, 0o777)):
        each.chmod(mode)

    done = subprocess.run(
        [sys.executable, "-c", STRANGER, str(path)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )

    assert done.stdout == "b''\n"
    wait_until(lambda: "of user 12345 is at the other end" in (cache.root / "agent.log").read_text())
    assert client.status()["objects"] == 0
