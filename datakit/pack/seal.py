"""seal: a JSON file of ours that is believed only when it is whole.

It holds its format number, a value, and a sha256 over that value's bytes. Whatever else lies under its name (a file
that was cut or edited, one of an older format, a folder, a pipe) is as good as nothing: `read` gives None, and `write`
puts the file in its place. It tells accidents apart, not attackers, who can seal anything.

What it does not do: know what the value should be; whoever asks for it checks its types.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

from datakit.storage import disk

FORMAT = 2
"""1 had no checksum; a file of it counts as absent, and what it spared is done once more."""


def write(path: Path, value: Any, *, sync: bool = True) -> None:
    """Put a value under `path` in one step, whatever lies there.

    Raises:
        NoSpace: The disk is full.
    """
    content = orjson.dumps(value)
    sealed = {"format": FORMAT, "sha256": hashlib.sha256(content).hexdigest(), "value": value}
    clear(path)
    disk.write_atomic(path, orjson.dumps(sealed), sync=sync)


def read(path: Path) -> Any:
    """The value under `path`; None where no whole one is there."""
    try:
        sealed = orjson.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(sealed, dict) or sealed.keys() != {"format", "sha256", "value"} or sealed["format"] != FORMAT:
        return None
    value = sealed["value"]
    return value if hashlib.sha256(orjson.dumps(value)).hexdigest() == sealed["sha256"] else None


def clear(path: Path) -> None:
    """Remove a folder that lies where a file of ours is about to be."""
    if path.is_dir() and not path.is_symlink():
        with disk.at_door(path):
            disk.remove(path)
