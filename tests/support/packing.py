"""packing: small raw sources, datasets made of them, and what is in a dataset."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from datakit.data.index import Index
from datakit.data.shard import Sample
from datakit.pack.build import pack
from datakit.pack.cut import PackSettings
from datakit.pack.result import PackResult
from datakit.storage.commit import read_manifest


def raw_lines(count: int, *, edit: Mapping[int, str] | None = None) -> list[bytes]:
    """JSON lines of 30 to 700 bytes, named r00000 and so on; `edit` gives some another text."""
    texts = {number: (hashlib.sha256(b"%d" % number).hexdigest() * 11)[: number * 37 % 670] for number in range(count)}
    texts.update(edit or {})
    return [json.dumps({"id": f"r{number:05d}", "text": text}).encode() for number, text in sorted(texts.items())]


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """A JSON lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def write_pairs(root: Path, count: int) -> Path:
    """A folder of `.jpg` and `.json` pairs in two subfolders."""
    for number in range(count):
        stem = root / f"{number % 2}" / f"img-{number:04d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".jpg").write_bytes(hashlib.sha512(b"%d" % number).digest() * (1 + number % 40))
        stem.with_suffix(".json").write_bytes(json.dumps({"n": number}).encode())
    return root


def small_pack(src: Path, dest: Path, *, workers: int = 1, **settings: object) -> PackResult:
    """Pack with shards of 16 KiB, so that a few hundred records make several shards."""
    words = {"shard_size": "16KiB", **settings}
    return pack(src, dest, settings=PackSettings(**words), workers=workers)  # type: ignore[arg-type]  # by name


def samples_of(dataset: Path) -> list[Sample]:
    """Every sample of a dataset, in its order, read by index."""
    samples = []
    for shard in read_manifest(dataset).contents.shards:
        data = (dataset / shard.name).read_bytes()
        for row in Index.from_buffer((dataset / shard.index_name).read_bytes()).rows():
            parts = {part: data[place.offset : place.offset + place.size] for part, place in row.parts.items()}
            samples.append(Sample(row.key, parts, row.source, row.tokens))
    return samples


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, but for what pack remembers of inodes and times, and hides of it."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in files
        if path.name not in ("known.json", ".gitignore")
    }


def visible(path: Path) -> list[str]:
    """Names in a directory, hidden ones too, but for pack's memory where nothing waits in it."""
    return sorted(entry.name for entry in path.iterdir() if not _is_bare_memory(entry))


def _is_bare_memory(path: Path) -> bool:
    return (
        path.name.startswith(".")
        and path.suffix == ".pack"
        and sorted(os.listdir(path)) == [".gitignore", "known.json"]
    )
