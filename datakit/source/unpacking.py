"""unpacking: compressed files, and arrays, laid down as plain files.

A stream that ends before its end, or goes on behind it with something else, is refused: gzip by CPython's reader, zstd
by pyarrow's, whose door is here because the index needs that library anyway and CPython has no zstd before 3.14.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from datakit.errors import InputError
from datakit.source.arrays import is_array, write_items
from datakit.source.kinds import plain_name
from datakit.source.spans import LineFile
from datakit.storage import disk

_COPY_BYTES = 2**20


def plain_file(root: str, name: str, spool: Path) -> LineFile:
    """A file in plain form: itself, or a copy in the spool.

    Raises:
        InputError: It is damaged.
        NoSpace: The spool's disk is full.
    """
    path = os.path.join(root, name)
    if plain_name(name) == name:
        return LineFile(name, path)
    target = spool_path(spool, f"plain/{name}")
    with disk.at_door(target), open(target, "wb") as plain, _opened(path, name) as packed:
        while data := packed.read(_COPY_BYTES):
            plain.write(data)
    return LineFile(name, str(target))


def lines_file(root: str, name: str, spool: Path) -> LineFile:
    """A file of JSON lines in plain form; of an array, its items are the lines.

    Raises:
        InputError: It is damaged.
        NoSpace: The spool's disk is full.
    """
    plain = plain_file(root, name, spool)
    with disk.at_door(plain.path), open(plain.path, "rb") as file:
        if not is_array(file.read(_COPY_BYTES)):
            return plain
    target = spool_path(spool, f"lines/{name}")
    with disk.at_door(target), open(target, "wb") as lines:
        write_items(disk.map_file(Path(plain.path)), lines, name=name)
    return LineFile(name, str(target), is_array=True)


def spool_path(spool: Path, name: str) -> Path:
    """A place in the spool, whose folder is there."""
    target = spool / name
    disk.make_dirs(target.parent)
    return target


@contextmanager
def _opened(path: str, name: str) -> Iterator[IO[bytes] | Any]:
    kind = "zstd" if name.endswith(".zst") else "gzip"
    try:
        if kind == "gzip":
            with gzip.open(path, "rb") as packed:
                yield packed
        else:
            import pyarrow as pa

            with pa.OSFile(path) as file, pa.CompressedInputStream(file, "zstd") as stream:
                yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(name, kind, error) from None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the stream
            raise
        raise _damaged(name, kind, error) from None


def _damaged(name: str, kind: str, error: Exception) -> InputError:
    return InputError(f"{name} is not a whole {kind} file: {error}", hint="Fetch it again", subject=name)
