"""kinds: what a source holds, told from the names of its files; never guessed where names disagree."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from datakit.errors import InputError

Kind: TypeAlias = Literal["jsonl", "files", "parquet", "csv", "tar", "hf"]

PACKED = (".gz", ".zst")
"""Endings of files that are laid down in plain form before they are read."""

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""What `datasets` (4.x) writes beside the Arrow files of a saved dataset, and of a dictionary of them."""

_MARKS = frozenset({_STATE, _INFO, _SPLITS})

_SIDE_FILES = ("manifest.json", ".index.arrow", ".idx", ".idx.json")
"""What may lie beside shards and is not read as raw data: ours, Energon's, DALI's."""

_TAR_INDEX = ".tar.index.arrow"
"""What tells that there were tars."""


def plain_name(name: str) -> str:
    """A name without the ending of a compressed file."""
    for ending in PACKED:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return f"{name.removesuffix('.tgz')}.tar" if name.endswith(".tgz") else name


def lines_name(name: str) -> str:
    """What lines out of a file are called as a file of their own, so that they are told for JSON lines again."""
    plain = plain_name(name)
    return f"{plain}l" if plain.endswith(".json") else plain


def _ends(*endings: str) -> Callable[[str], bool]:
    return lambda name: plain_name(name).endswith(endings)


_NOUNS: dict[Kind, tuple[str, Callable[[str], bool]]] = {
    "jsonl": ("JSON lines", _ends(".jsonl", ".ndjson")),
    "parquet": ("Parquet files", lambda name: name.endswith(".parquet")),
    "csv": ("CSV files", _ends(".csv", ".tsv")),
    "tar": ("tars", _ends(".tar")),
}
"""What such a file is called, and how it is told, by kind."""

_TELLING = frozenset({*PACKED, ".tgz", ".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", ".tar", ".arrow"})
"""Last endings of the names of such files, and of indexes of tars; a name with another is of none of these kinds."""


def kind_of(names: Sequence[str], *, wanted: Kind | Literal["auto"], src: str | Path, single: bool) -> Kind:
    """What a source holds.

    Args:
        names: Names of its files, at least one.
        wanted: What the user said it holds, or `auto`.
        src: What the source is called in messages.
        single: Whether the source is one file, not a folder.

    Raises:
        InputError: It holds files of several kinds, or none of the kind that was named.
    """
    if wanted == "files":
        return "files"
    _refuse_splits(names, src)
    if _STATE in names and _INFO in names and wanted in ("auto", "hf"):
        return "hf"
    if wanted == "hf":
        raise InputError(f"{src} holds no {_STATE}, so it is no saved dataset", hint="Name the folder that holds it")
    if single and wanted in ("auto", "jsonl") and plain_name(names[0]).endswith(".json"):
        return "jsonl"
    only_side = wanted in ("auto", "tar") and all(name.endswith(_SIDE_FILES) for name in names)
    if only_side and any(name.endswith(_TAR_INDEX) for name in names):
        return "tar"
    if wanted == "auto" and not _TELLING & {name[name.rfind(".") :] for name in names}:
        return "files"  # told by the few endings that there are, a tenth of the work of asking each name
    found = {kind: [name for name in names if is_one(name)] for kind, (_, is_one) in _NOUNS.items()}
    present: list[Kind] = [kind for kind, its in found.items() if its] if wanted == "auto" else [wanted]
    if not present:
        return "files"
    kind = present[0]
    noun, is_one = _NOUNS[kind]
    side = [name for name in names if kind == "tar" and name.endswith(_SIDE_FILES)]
    if len(found[kind]) + len(side) == len(names) and found[kind]:
        return kind
    other = next((name for name in names if not is_one(name) and name not in side), names[0])
    said = (
        f"holds {noun} ({found[kind][0]}) and other files ({other})" if found[kind] else f"holds no {noun}, but {other}"
    )
    hint = "Take one kind out; or, to pack each file whole, set --input files"
    raise InputError(f"{src} {said}", hint=hint, subject=other)


def only_files(names: Collection[str]) -> bool:
    """Whether names below one folder are of no other kind than files, without a look at more than their last endings.

    Args:
        names: What the files are called in it.
    """
    return _TELLING.isdisjoint({name[name.rfind(".") :] for name in names}) and _MARKS.isdisjoint(names)


def used(names: Sequence[str], kind: Kind) -> list[str]:
    """Those of a source's files that records are read from."""
    if kind == "hf":
        return [name for name in names if name.endswith(".arrow") or name in (_STATE, _INFO)]
    return [name for name in names if kind != "tar" or not name.endswith(_SIDE_FILES)]


def _refuse_splits(names: Sequence[str], src: str | Path) -> None:
    if _SPLITS in names:
        splits = sorted({name.partition("/")[0] for name in names if name.endswith(f"/{_STATE}")})
        one = f"{str(src).rstrip('/')}/{splits[0] if splits else 'SPLIT'}"
        raise InputError(
            f"{src} is a dictionary of saved datasets ({', '.join(splits)})",
            hint=f"Pack one of them: datakit pack {shlex.quote(one)} DEST",
            subject=splits,
        )
