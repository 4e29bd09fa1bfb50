"""opened: which files a block of code opens, as CPython tells its audit hooks; no product code knows about it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_lists: list[list[str]] = []


_opener = threading.local()  # what the thread has begun to open with an opener, perhaps


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _lists or event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    name, mode = os.fspath(arguments[0]), arguments[1]
    begun = getattr(_opener, "name", None)
    _opener.name = None if mode is None else name
    if mode is None and name == begun:  # os.open, which has no mode, as the opener of the same open
        return
    for one in _lists:
        one.append(name)


sys.addaudithook(_hear)  # an audit hook stays; it hears nothing while nobody listens


@contextlib.contextmanager
def opened(below: Path) -> Iterator[list[Path]]:
    """The files below a folder that this process opens in the block, in order, one that an opener opens once."""
    heard: list[str] = []
    found: list[Path] = []
    _lists.append(heard)
    try:
        yield found
    finally:
        _lists.remove(heard)
        found += [Path(name) for name in heard if Path(name).is_relative_to(below)]
