"""beside: new files of a directory that is in use, under temporary names until all of them get their own.

Who commits into a directory that holds the user's own files cannot make it elsewhere and rename it. So every new file
waits beside its name, synced, and the names change at the end, one after the other, after a marker that lists them.
What a kill leaves waiting is recognised by its name (`disk.TEMPORARY`) and swept by the next start. The marker and the
manifest are the caller's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from datakit.data.digest import Buffer, Digester, FileEntry
from datakit.data.index import index_name
from datakit.storage import disk


class Beside:
    """The new files of a directory.

    Args:
        root: The directory.

    Attributes:
        entries: Of the files that were opened here, with their digests.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._waiting: dict[Path, Path] = {}
        self.entries: list[FileEntry] = []

    def place(self, shard: str) -> Path:
        """Where the index of a tar waits."""
        final = self._root / index_name(shard)
        return self._waiting.setdefault(final, disk.temporary(final))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Callable[[Buffer], object]]:
        """As `Staging.open`."""
        final = self._root / name
        disk.make_dirs(final.parent)
        path = self._waiting.setdefault(final, disk.temporary(final))
        digester = Digester()
        with disk.at_door(path), path.open("xb") as file:

            def write(data: Buffer) -> None:
                digester.update(data)
                file.write(data)

            yield write
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(digester.finish(name))

    def settle(self) -> None:
        """Give every file its name."""
        for final, path in self._waiting.items():
            with disk.at_door(final):
                os.replace(path, final)
        for folder in {final.parent for final in self._waiting}:
            disk.fsync_dir(folder)

    def clear(self) -> None:
        """Remove what still waits."""
        for path in self._waiting.values():
            path.unlink(missing_ok=True)
