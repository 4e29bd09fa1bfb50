"""payload: input data, the same bytes on every machine.

Each file's bytes come from `random.Random(name)`, whose sequence for a string seed is fixed since Python 3.2 (the docs
promise it for `random()`; `randbytes` is pinned by a test here). A folder is made under a temporary name and renamed
when whole; its recipe stands beside it, so another recipe makes it afresh.

Random bytes do not compress and do not deduplicate: no arm gains by being clever about the content.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from frame.claim import Truth

PAIRS_PER_FOLDER = 500
JSON_BYTES = 1000
_WORDS = ("a", "the", "red", "blue", "quiet", "river", "house", "bridge", "light", "over", "under", "beside", "and")


def pairs(home: Path, *, num_pairs: int, image_bytes: int = 16 * 1024) -> Path:
    """Pairs of `<folder>/<number>.jpg` (random bytes) and `.json` (a caption, about 1 kB), 500 pairs a folder."""

    def make(folder: Path) -> None:
        for number in range(num_pairs):
            stem = folder / f"{number // PAIRS_PER_FOLDER:04d}" / f"{number:08d}"
            if number % PAIRS_PER_FOLDER == 0:
                stem.parent.mkdir()
            source = Random(f"pair {number}")
            stem.with_suffix(".jpg").write_bytes(source.randbytes(image_bytes))
            stem.with_suffix(".json").write_bytes(_caption(number, source=source))

    return _made(home / f"pairs-{num_pairs}", make, recipe=f"pairs {num_pairs} {image_bytes} {JSON_BYTES} v1")


def blobs(home: Path, *, num_files: int, file_bytes: int) -> Path:
    """Files `shard-<number>.tar` of random bytes: what a download sees of a shard."""

    def make(folder: Path) -> None:
        for number in range(num_files):
            source, left = Random(f"blob {number}"), file_bytes
            with (folder / f"shard-{number:06d}.tar").open("wb") as out:
                while left:
                    left -= out.write(source.randbytes(min(left, 1 << 20)))

    return _made(home / f"blobs-{num_files}x{file_bytes}", make, recipe=f"blobs {num_files} {file_bytes} v1")


def lines(home: Path, *, num_lines: int, line_bytes: int, edited: int | None = None) -> Path:
    """A file of JSON lines of about so many bytes, each with an `id`; `edited` is the one whose text is another."""
    name = f"lines-{num_lines}x{line_bytes}" + ("" if edited is None else f"-edited-{edited}")

    def make(folder: Path) -> None:
        with (folder / "lines.jsonl").open("wb") as out:
            for number in range(num_lines):
                text = Random(f"line {number}{' edited' if number == edited else ''}").randbytes(line_bytes // 2).hex()
                out.write(b'{"id": "%08d", "text": "%s"}\n' % (number, text[: line_bytes - 32].encode()))

    return _made(home / name, make, recipe=f"lines {num_lines} {line_bytes} {edited} v1") / "lines.jsonl"


class TruthTaker:
    """Collects named payloads in any order: their number, their bytes, and a digest of the set.

    The digest is the sum modulo 2^256 of sha256(name, NUL, content), so that it depends on no order.
    """

    def __init__(self) -> None:
        self._sum = 0
        self._bytes = 0

    def add(self, name: str, *chunks: bytes | memoryview) -> None:
        """One payload, whole, in one or more pieces."""
        digest = hashlib.sha256(name.encode() + b"\0")
        for chunk in chunks:
            digest.update(chunk)
            self._bytes += len(chunk)
        self._sum = (self._sum + int.from_bytes(digest.digest(), "big")) % (1 << 256)

    def truth(self, *, samples: int) -> Truth:
        """What was seen; the caller says how many samples the payloads make."""
        return Truth(samples=samples, payload_bytes=self._bytes, digest=f"{self._sum:064x}")


def truth_of_files(paths: Iterable[Path], *, root: Path, samples: int | None = None) -> Truth:
    """The truth about files, named relative to a root. Reading them also brings them into the page cache."""
    taker, num_files = TruthTaker(), 0
    for path in paths:
        taker.add(path.relative_to(root).as_posix(), path.read_bytes())
        num_files += 1
    return taker.truth(samples=num_files if samples is None else samples)


def _caption(number: int, *, source: Random) -> bytes:
    start = {"id": f"{number:08d}", "width": 512, "height": 512}
    words: list[str] = []
    while sum(map(len, words)) + len(words) < JSON_BYTES - 80:
        words.append(source.choice(_WORDS))
    return json.dumps({**start, "caption": " ".join(words)}).encode()


def _made(home: Path, make: Callable[[Path], None], *, recipe: str) -> Path:
    stamp = home.with_name(home.name + ".recipe")
    if home.is_dir() and stamp.exists() and stamp.read_text() == recipe:
        return home
    making = home.with_name(home.name + ".making")
    for leftover in (home, making):
        shutil.rmtree(leftover, ignore_errors=True)
    making.mkdir(parents=True)
    make(making)
    making.rename(home)
    stamp.write_text(recipe)
    return home
