"""door: the socket at which the agent of a cache is asked, and who may come in.

It lies in a directory that only this user may enter, below XDG_RUNTIME_DIR or the directory for temporary files, under
a name made of the cache directory's real path; a file in the cache directory, `agent.json`, says where, for processes
whose environment leads elsewhere. Both ends ask the kernel who the other is (SO_PEERCRED, unix(7)): another user's is
refused. A file that nobody listens at is left from a killed agent, and replaced.

It does not say who may serve: that is decided by the lock of the cache directory (`keeper`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

from datakit.errors import InputError, NotAllowed, UsageError
from datakit.storage import disk

SIGN_NAME = "agent.json"
MOST_BYTES = 107
"""Of a socket's path: `sun_path` has 108 with the zero at its end (unix(7))."""

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


def socket_path(root: Path, *, env: Mapping[str, str] | None = None) -> Path:
    """Where the agent of a cache directory listens.

    Args:
        root: The directory.
        env: The environment to find XDG_RUNTIME_DIR in; the process's own when not given.

    Raises:
        UsageError: The path is too long for a socket.
    """
    env = os.environ if env is None else env
    runtime = env.get("XDG_RUNTIME_DIR")
    top = Path(runtime or env.get("TMPDIR") or tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
    path = top.absolute() / f"datakit-{os.geteuid()}" / f"{name}.sock"
    if len(os.fsencode(path)) > MOST_BYTES:
        message = f"{path} is too long for a socket, by {len(os.fsencode(path)) - MOST_BYTES} bytes"
        raise UsageError(message, hint="Set XDG_RUNTIME_DIR to a shorter directory: /tmp", subject=str(path))
    return path


def listen(root: Path) -> socket.socket:
    """Listen for a cache directory, whose lock the caller holds, and say where.

    Raises:
        UsageError: The path is too long.
        NotAllowed: The directory of the socket is another user's, or open to others.
    """
    path = socket_path(root)
    _make_private(path.parent)
    found = socket.socket(socket.AF_UNIX)
    with disk.at_door(path):
        path.unlink(missing_ok=True)  # of an agent that was killed: who holds the lock is the only one
        found.bind(str(path))
        found.listen(_BACKLOG)
    disk.write_atomic(root / SIGN_NAME, json.dumps({"socket": str(path), "pid": os.getpid()}).encode() + b"\n")
    return found


def close(root: Path, listening: socket.socket) -> None:
    """Listen no more, and leave nothing."""
    path = Path(listening.getsockname())
    listening.close()
    for each in (path, root / SIGN_NAME):
        with contextlib.suppress(OSError):
            each.unlink()


def dial(root: Path, *, timeout_s: float) -> socket.socket | None:
    """A connection to whoever serves a cache directory; None where nobody does.

    Args:
        root: The directory.
        timeout_s: Seconds to wait for the connection, and then for each piece of an answer.

    Raises:
        NotAllowed: It is another user's agent.
    """
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(timeout_s)
        found.connect(str(_signed(root) or socket_path(root)))
        check_peer(found)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError, NotADirectoryError):
        found.close()
        return None
    except PermissionError as error:
        found.close()
        if isinstance(error, NotAllowed):
            raise
        message = f"the agent of {root} may not be asked: its socket is another user's"
        raise NotAllowed(
            message, hint="Use a cache directory of your own: tiers.cache.place", subject=str(root)
        ) from None
    except BaseException:
        found.close()
        raise
    return found


def check_peer(connection: socket.socket) -> int:
    """The process at the other end, which must be this user's.

    Raises:
        NotAllowed: It is another user's.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid():
        message = f"process {pid} of user {user} is at the other end of the cache's socket, this one is {os.geteuid()}"
        raise NotAllowed(message, hint="Use a cache directory of your own: tiers.cache.place", subject=pid)
    return int(pid)


def _signed(root: Path) -> Path | None:
    """Where the agent says that it listens."""
    try:
        value = json.loads((root / SIGN_NAME).read_bytes())
        return Path(value["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make_private(folder: Path) -> None:
    """A directory that only this user may enter.

    Raises:
        NotAllowed: It is another user's, a link, or open to others.
        InputError: A file is there.
    """
    with disk.at_door(folder):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=False)
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise InputError(f"{folder} is no directory", hint="Set XDG_RUNTIME_DIR to another", subject=str(folder))
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        message = f"{folder}, where the cache's socket would lie, is a link, another user's, or open to others"
        raise NotAllowed(
            message, hint=f"Remove it, or: chmod 700 {folder}; or set XDG_RUNTIME_DIR", subject=str(folder)
        )
