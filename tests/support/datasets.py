"""datasets: small datasets made shard by shard, bundled or not, and their way into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datakit.data.shard import Sample
from datakit.pack.writing import describe, hand_over, name_shards, write_shard
from datakit.storage.commit import commit
from support.faulty import FaultyServer
from support.packing import raw_lines


def make_dataset(root: Path, shards: Sequence[Sequence[Sample]], *, bundle: int | None = None) -> Path:
    """Commit these samples, shard by shard, under the name of the folder."""
    with commit(root, kind="dataset", name=root.name) as staging:
        built, written = [], {}
        for number, samples in enumerate(shards):
            path = staging.path / f"shard-{number}"
            built.append(write_shard(path, samples, dataset=root.name, bundle=bundle))
            written[built[-1].shard.sha256] = path
        named = name_shards(built, dataset=root.name, previous=None)
        hand_over(staging, named, written=written, final=root)
        pack = {"algorithm": 1, "layout": "sequential"} | ({"bundle": bundle} if bundle else {})
        staging.about.update(describe(named, pack=pack).to_about())
    return root


def lines(start: int, stop: int) -> list[Sample]:
    """Samples that are JSON lines."""
    return [Sample(f"r{number:05d}", {"json": line}) for number, line in enumerate(raw_lines(stop))][start:]


def publish(dataset: Path, server: FaultyServer, prefix: str = "data/ds") -> str:
    """Put a dataset onto a faulty server, and forget that it was asked; gives its URL."""
    for path in dataset.rglob("*"):
        if path.is_file():
            server.put(f"{prefix}/{path.relative_to(dataset).as_posix()}", path.read_bytes())
    server.log.clear()
    return f"{server.url}/{prefix}"
