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
from typing import IO, Any, BinaryIO

from datakit.errors import InputError
from datakit.source.arrays import is_array, write_items
from datakit.source.kinds import plain_name
from datakit.source.originals import reading
from datakit.source.spans import LineFile
from datakit.source.trees import SourceFile
from datakit.storage import disk


def plain_file(root: str, source: SourceFile, spool: Path) -> LineFile:
    """A file in plain form: itself, or a copy in the spool.

    Raises:
        InputError: It is damaged, or not what was listed.
        NoSpace: The spool's disk is full.
    """
    name, path = source.name, os.path.join(root, source.name)
    if plain_name(name) == name:
        return LineFile(name, path, version=source.version)
    target = spool_path(spool, f"plain/{name}")
    with (
        disk.at_door(target),
        open(target, "wb") as plain,
        reading(path, version=source.version) as file,
        _opened(file, name) as packed,
    ):
        while data := packed.read(disk.READ_BYTES):
            plain.write(data)
    return LineFile(name, str(target))


def lines_file(root: str, source: SourceFile, spool: Path) -> LineFile:
    """A file of JSON lines in plain form; of an array, its items are the lines.

    Raises:
        InputError: It is damaged, or not what was listed.
        NoSpace: The spool's disk is full.
    """
    plain = plain_file(root, source, spool)
    with disk.at_door(plain.path), reading(plain.path, version=plain.version) as file:
        if not is_array(file):
            return plain
        target = spool_path(spool, f"lines/{source.name}")
        file.seek(0)
        with disk.at_door(target), open(target, "wb") as lines:
            write_items(file, lines, name=source.name)
    return LineFile(source.name, str(target), is_array=True)


def spool_path(spool: Path, name: str) -> Path:
    """A place in the spool, whose folder is there."""
    target = spool / name
    disk.make_dirs(target.parent)
    return target


@contextmanager
def _opened(file: BinaryIO, name: str) -> Iterator[IO[bytes] | Any]:
    kind = "zstd" if name.endswith(".zst") else "gzip"
    try:
        if kind == "gzip":
            with gzip.open(file, "rb") as packed:
                yield packed
        else:
            import pyarrow as pa

            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
                yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(name, kind, error) from None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the stream
            raise
        raise _damaged(name, kind, error) from None


def _damaged(name: str, kind: str, error: Exception) -> InputError:
    return InputError(f"{name} is not a whole {kind} file: {error}", hint="Fetch it again", subject=name)
