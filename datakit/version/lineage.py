"""lineage: what an adapter was made from, written into every checkpoint and adapter, and read back as a chain.

`lineage.json` holds only what decides the result: digests of the data and of the base model, the deciding settings, how
much was consumed, the versions of the libraries that took the last step, what changed under way, and every override
that the user allowed. The same training gives the
same bytes. Host, times and attempts are not part of it; they stand in the run's `run.json`.

Promises: what is shown of the thing itself is what its manifest says; of what it was made from, what was recorded when
it was made. Whether that still lies anywhere is not looked at, and nothing is hashed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.data.digest import mend_hint
from datakit.data.manifest import Manifest
from datakit.errors import InputError, NotFound, UsageError
from datakit.storage.absent import not_there
from datakit.storage.commit import read_manifest
from datakit.storage.disk import at_door
from datakit.storage.newest import newest
from datakit.version.dvc import Tree

LINEAGE_NAME = "lineage.json"
RUN_NAME = "run.json"
SCHEMA = 1

_SOURCE = "source"
"""Under which a tokenized dataset's settings tell the dataset that it was made from."""

_PER_SHARD = "from"
"""Under which they tell the origin of each shard: as long as the dataset is large, and implied by its digests."""


def data_lineage(manifest: Manifest) -> dict[str, Any]:
    """What a lineage says about a dataset: its digests, its size, and the settings it was packed or tokenized with.

    `md5` is DVC's address of it, by which a cache or remote of DVC still has it when it is gone from here.
    """
    contents = manifest.contents
    return {
        "name": manifest.name,
        "content_digest": contents.content_digest,
        "layout_digest": contents.layout_digest,
        "manifest_digest": manifest.digest,
        "md5": Tree.of(manifest).md5,
        "samples": contents.samples,
        "tokens": contents.tokens,
        "pack": {name: value for name, value in contents.pack.items() if name != _PER_SHARD},
    }


def build_lineage(
    *,
    run: str,
    data: Manifest,
    base_model: Mapping[str, str],
    settings: Mapping[str, Any],
    settings_digest: str,
    versions: Mapping[str, str],
    consumed: Mapping[str, Any],
    parents: Sequence[Mapping[str, Any]] = (),
    overrides: Sequence[Mapping[str, Any]] = (),
    changes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The lineage of a checkpoint or an adapter.

    Args:
        run: The run's name.
        data: Manifest of the dataset that was trained on.
        base_model: `name` and `digest` of the base model.
        settings: The settings that decide the result.
        settings_digest: Their digest.
        versions: Of datakit and the libraries that do the arithmetic.
        consumed: Steps, epoch, samples, tokens, and the digest of the sequence of consumed samples.
        parents: Commits that this one started from, other than its own run's checkpoints.
        overrides: What the user allowed to differ at a resume: `what`, `from`, `to`, `step`.
        changes: What else changed between attempts and moves bits only, likewise: threads, device, versions.
    """
    return {
        "schema": SCHEMA,
        "run": run,
        "data": data_lineage(data),
        "base_model": dict(base_model),
        "settings": dict(settings),
        "settings_digest": settings_digest,
        "versions": dict(versions),
        "consumed": dict(consumed),
        "parents": [dict(parent) for parent in parents],
        "overrides": [dict(override) for override in overrides],
        **({"changes": [dict(change) for change in changes]} if changes else {}),
    }


def to_bytes(lineage: Mapping[str, Any]) -> bytes:
    """Deterministic bytes of a lineage."""
    return json.dumps(lineage, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def read_lineage(directory: Path) -> dict[str, Any]:
    """The lineage in a checkpoint or adapter.

    Raises:
        NotFound: There is none.
        InputError: It is not a lineage.
        UsageError: Its schema is newer than this version reads.
    """
    path = directory / LINEAGE_NAME
    if not path.is_file():
        hint = "Name an adapter or checkpoint that datakit train made, or a dataset"
        raise NotFound(f"{directory} has no {LINEAGE_NAME}", hint=hint, subject=str(directory))
    with at_door(path):
        return parse_lineage(path.read_bytes(), where=str(path))


def parse_lineage(data: bytes, *, where: str) -> dict[str, Any]:
    """A lineage from bytes that came from `where`.

    Raises:
        InputError: It is not a lineage.
        UsageError: Its schema is newer than this version reads.
    """
    lineage = _parse_json(data, where, hint=mend_hint(where.rpartition("/")[0] or "."))
    if lineage.get("schema") != SCHEMA:
        found, hint = lineage.get("schema"), "Use a newer datakit"
        raise UsageError(f"{where} has schema {found!r}; this datakit reads {SCHEMA}", hint=hint, subject=where)
    return lineage


def read_run(run: Path) -> dict[str, Any]:
    """`run.json` of a run directory; empty where there is none or it is not readable as one."""
    try:
        value = json.loads((run / RUN_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if _is_run(value) else {}


def _is_run(value: object) -> bool:
    """Whether JSON has the shape of a `run.json`: where a name is known, its value is of the known kind."""
    if not isinstance(value, dict):
        return False
    attempts, identity = value.get("attempts", []), value.get("identity", {})
    return (
        isinstance(attempts, list)
        and all(isinstance(attempt, dict) for attempt in attempts)
        and isinstance(identity, dict)
        and all(isinstance(identity.get(name, {}), dict) for name in ("data", "base_model", "settings"))
        and all(isinstance(value.get(name), str | None) for name in ("name", "write_back", "settings_digest"))
    )


@dataclass(frozen=True, slots=True)
class Link:
    """One thing in a chain.

    Attributes:
        kind: `adapter`, `checkpoint`, `run`, `dataset`, `model`, or what a dataset's settings call its origin.
        name: Its name.
        digest: The digest that identifies it, or None where none is recorded.
        facts: What else is recorded about it.
        made_from: What it was made from.
    """

    kind: str
    name: str
    digest: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    made_from: tuple[Link, ...] = ()


def chain(path: Path | str) -> Link:
    """Where something came from: an adapter, a checkpoint, a run directory or a dataset.

    Raises:
        NotFound: Nothing is there, or nothing that has a lineage.
        InputError: A file that should tell is not JSON.
    """
    path = Path(path)
    if not path.exists():
        raise not_there(path)
    if (path / RUN_NAME).is_file():
        return _run_link(path)
    manifest = read_manifest(path)
    if manifest.kind == "dataset":
        return _dataset_link(data_lineage(manifest))
    if manifest.kind == "model":
        return Link("model", manifest.name, manifest.digest, dict(manifest.about))
    lineage = read_lineage(path)
    return _trained_link(manifest.kind, path, manifest.digest, lineage)


def render(link: Link) -> str:
    """A chain as an indented tree, one thing a line, with its facts beneath it."""
    return "\n".join(_lines(link, ""))


def _lines(link: Link, indent: str) -> Iterable[str]:
    yield f"{indent}{link.kind} {link.name}" + (f"  {link.digest[:12]}" if link.digest else "")
    for name, value in link.facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{indent}    {name}: {text}"
    for parent in link.made_from:
        yield from _lines(parent, indent + "  ")


def _trained_link(kind: str, path: Path, digest: str | None, lineage: Mapping[str, Any]) -> Link:
    base, consumed = lineage["base_model"], lineage["consumed"]
    facts = {"run": lineage["run"], **consumed, "settings": lineage["settings_digest"], "versions": lineage["versions"]}
    facts |= {name: lineage[name] for name in ("overrides", "changes") if lineage.get(name)}
    return Link(
        kind,
        path.resolve().name,
        digest,
        facts,
        (
            _dataset_link(lineage["data"]),
            Link("model", base["name"], base["digest"]),
            *(Link(str(p.get("kind", "parent")), str(p.get("name")), p.get("digest")) for p in lineage["parents"]),
        ),
    )


def _run_link(path: Path) -> Link:
    hint = f"Name its adapter or a checkpoint of it: ls {shlex.quote(str(path))}"
    with at_door(path / RUN_NAME):
        run = _parse_json((path / RUN_NAME).read_bytes(), str(path / RUN_NAME), hint=hint)
    if not _is_run(run):
        raise InputError(f"{path / RUN_NAME} is not the record of a run", hint=hint, subject=str(path))
    facts = {"attempts": len(run.get("attempts", [])), "settings": run.get("settings_digest")}
    if (path / "adapter").is_dir():
        return Link("run", path.resolve().name, None, facts, (chain(path / "adapter"),))
    found = newest(path / "checkpoints")
    return Link("run", path.resolve().name, None, facts, (chain(found.path),) if found.path else ())


def _dataset_link(data: Mapping[str, Any]) -> Link:
    pack = dict(data["pack"])
    source = pack.pop(_SOURCE, None)
    counts = {name: data[name] for name in ("samples", "tokens") if data.get(name) is not None}
    facts = {**counts, "layout": data["layout_digest"], "content": data["content_digest"], "pack": pack}
    if "md5" in data:
        facts["md5"] = data["md5"]
    parents = (_dataset_link(source),) if isinstance(source, Mapping) else ()
    return Link("dataset", str(data["name"]), str(data["manifest_digest"]), facts, parents)


def _parse_json(data: bytes, where: str, *, hint: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}", hint=hint, subject=where) from None
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a JSON object", hint=hint, subject=where)
    return value
