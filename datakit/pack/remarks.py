"""remarks: what should be known of a pack's settings before it begins, as cautions and notes.

They are of settings that mean something else than they seem to, of those that a dataset at the destination was packed
with and that are others now, and of what a plan comes to. Nothing is refused here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datakit.data.manifest import Manifest
from datakit.data.shard import BLOCK_BYTES
from datakit.errors import DatakitError
from datakit.events import Caution
from datakit.pack.advice import small_shards
from datakit.pack.cut import DEFAULT_SIZE, PackSettings
from datakit.pack.planning import Plan
from datakit.storage.commit import manifest_at
from datakit.units import format_bytes

LEAST_BYTES = 4 * BLOCK_BYTES
"""Bytes of a shard of one small sample: a header, a block of content, two of the end."""

WHOLES = (1, 100)
"""Weights that an only split is given by who knows that it gets all."""

_FLAGS: Mapping[str, str] = {
    "shard_bytes": "--shard-size",
    "layout": "--layout",
    "bundle": "--bundle",
    "key_field": "--key-field",
    "key": "--key",
    "escape": "--escape",
    "dedupe": "--dedupe",
    "index": "--index",
    "splits": "--split",
}
"""What a manifest tells of the settings of its pack, and the option that gives it."""


def of_settings(settings: PackSettings) -> Iterator[Caution]:
    """What the settings do that may not have been meant."""
    if settings.bundle is not None and settings.index:
        message = f"{' and '.join(settings.index)} will read each bundle of {settings.bundle} lines as one sample"
        yield Caution(message, hint="Leave --bundle out where other readers should see each record")
    if len(settings.splits) == 1 and (weight := next(iter(settings.splits.values()))) not in WHOLES:
        (name,) = settings.splits
        other = f"--split {name}={weight} --split held-out={100 - weight if weight < 100 else weight}"
        yield Caution(
            f"{name} is the only split and gets all: weights are shares among splits", hint=f"Such as {other}"
        )
    if settings.shard_size != "auto" and settings.shard_bytes < LEAST_BYTES:
        said = f"--shard-size {settings.shard_size} is {settings.shard_bytes} bytes, and no shard has less than "
        yield Caution(f"{said}{format_bytes(LEAST_BYTES)}", hint=f"Write a unit: --shard-size {DEFAULT_SIZE}")


def of_change(dest: Path, settings: PackSettings, *, auto: bool) -> Iterator[Caution]:
    """What the dataset that stands at the destination was packed with, where that is something else.

    Args:
        dest: Directory of the dataset, or with splits of all of them.
        settings: How it is packed now, the shard's size a number.
        auto: Whether that number was derived.
    """
    for path in [dest / split for split in settings.splits] or [dest]:
        try:
            manifest = manifest_at(path)
        except DatakitError:
            continue  # who commits there says what is wrong with it
        before = None if manifest is None else _told(manifest)
        if before is None:
            continue
        now = _of(settings.to_json()) | {"index": tuple(sorted(settings.index))}
        if others := [name for name in _FLAGS if before[name] != now[name]]:
            was = ", ".join(_words(name, before[name]) for name in others)
            its = ", ".join(_words(name, now[name]) for name in others)
            size = " (which auto derives)" if auto and "shard_bytes" in others else ""
            keep = " ".join(flag for name in others if (flag := _flags(name, before[name])))
            yield Caution(
                f"{path} was packed with {was}, and now with {its}{size}",
                hint=f"Keep what it has: {keep}" if keep else "Leave them out to keep what it has",
            )
        return


def of_plan(planned: Plan) -> Iterator[Caution]:
    """What its shards come to: very many small ones."""
    shards = [shard.shard_bytes for split in planned.splits for shard in split.shards]
    if (small := small_shards(len(shards), sum(shards))) is not None:
        yield Caution(small, hint=f"Larger ones suit stores and loaders: --shard-size {DEFAULT_SIZE}")


def _told(manifest: Manifest) -> dict[str, Any] | None:
    """The settings that a dataset was packed with, by name; None of one that no pack made."""
    pack = manifest.about.get("pack")
    if not isinstance(pack, dict) or not {"split", "shard_bytes"} <= pack.keys():
        return None
    names = (entry.name for entry in manifest.members if entry.name.endswith(".idx"))
    side = {"energon" if name.endswith(".tar.idx") else "dali" for name in names}
    return _of(pack) | {"index": tuple(sorted(side))}


def _of(pack: Mapping[str, Any]) -> dict[str, Any]:
    usual = PackSettings()
    defaults = {name: getattr(usual, name) for name in ("key", "escape", "bundle", "dedupe", "layout", "key_field")}
    return {"splits": {}, **defaults} | {name: pack[name] for name in _FLAGS if name in pack}


def _words(name: str, value: Any) -> str:
    if name == "shard_bytes":
        return f"shards of {format_bytes(value)}"
    return _flags(name, value) or f"no {_FLAGS[name]}"


def _flags(name: str, value: Any) -> str:
    """The option as it is written; nothing where it is left out."""
    if value in (None, {}, ()):
        return ""
    if name == "splits":
        return " ".join(f"{_FLAGS[name]} {split}={weight}" for split, weight in value.items())
    return " ".join(
        f"{_FLAGS[name]} {shlex.quote(str(one))}" for one in (value if isinstance(value, tuple) else (value,))
    )
