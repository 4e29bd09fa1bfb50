"""claims: what a manifest says of itself and of all samples, against what its shards and indexes say.

Checksums vouch for every file that a manifest names; nothing vouches for the manifest. So each of its claims that
follows from something else is compared with that.
"""

from __future__ import annotations

from collections.abc import Iterator

from datakit.data.manifest import MANIFEST_NAME, Contents, Manifest, content_digest
from datakit.data.shard import parse_shard_name
from datakit.pack.writing import Totals
from datakit.verify.damage import Finding


def misnamed(manifest: Manifest) -> Iterator[Finding]:
    """A kind that what it describes is not of, and a name that its shards do not have."""
    if manifest.kind != "dataset":
        if manifest.about.keys() >= {"content_digest", "layout_digest", "shards"}:
            yield Finding(MANIFEST_NAME, f"it describes the shards of a dataset, and says that it is a {manifest.kind}")
        return
    contents = manifest.contents
    if contents.pack.get("foreign"):
        return  # tars keep the names that others gave them
    for shard in contents.shards:
        parsed = parse_shard_name(shard.name)
        if parsed is not None and parsed[0] != manifest.name:
            yield Finding(MANIFEST_NAME, f"it says that its name is {manifest.name}, its shard is called {shard.name}")
            return


def lies(contents: Contents, totals: Totals) -> Iterator[Finding]:
    """What the manifest says of all samples and the indexes, which are whole, do not."""
    for what, actual, said in (
        ("content digest", content_digest([totals.terms]), contents.content_digest),
        ("payload bytes", totals.payload_bytes, contents.payload_bytes),
        ("parts", dict(totals.parts), dict(contents.parts)),
        ("tokens", totals.tokens, contents.tokens),
    ):
        if actual != said:
            yield Finding(MANIFEST_NAME, f"its samples have the {what} {actual}, it says {said}")
