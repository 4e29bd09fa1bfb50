"""filters: which files of a folder a sync moves, by patterns of their names.

A pattern is a shell's, over the whole name below the folder: `*` stands for any letters, slashes too, so `*.tar` is
every tar at any depth and `raw/*` all below `raw`. What no `include` names, or an `exclude` does, is not there as far
as this sync goes: it is not moved, compared, or deleted.

Source: the matching is that of Python's fnmatch, by case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import TypeVar

from datakit.data.manifest import MANIFEST_NAME
from datakit.errors import Refused, UsageError
from datakit.storage.compare import Holding, Item
from datakit.units import format_number_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filter:
    """Patterns of names.

    Attributes:
        include: Patterns of which a name matches one; every name does where there are none.
        exclude: Patterns of which it matches none.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def of(self, items: Mapping[str, T]) -> dict[str, T]:
        """The items whose names pass."""
        wanted, unwanted = _any_of(self.include), _any_of(self.exclude)
        return {
            name: item
            for name, item in items.items()
            if (wanted is None or wanted.match(name)) and (unwanted is None or not unwanted.match(name))
        }


EVERYTHING = Filter()


def chosen(held: Holding, only: Filter, where: str) -> Holding:
    """What a place holds, as far as a filter lets it pass.

    Raises:
        UsageError: It is a commit or one file, or of a commit among its files a part would pass, or nothing does.
    """
    if not only:
        return held
    if held.kind == "commit" or held.single:
        what = "a commit, which moves whole" if held.kind == "commit" else "one file"
        raise UsageError(f"{where} is {what}", hint="Leave out --include and --exclude", subject=where)
    items = only.of(held.items)
    for folder in held.nested:
        inside = [name for name in held.items if name.startswith(f"{folder}/")]
        left = [name for name in inside if name not in items]
        if left and len(left) < len(inside):
            raise UsageError(
                f"{folder} is a commit, which moves whole, and {left[0]} would be left out",
                hint=f"Leave all of it out: --exclude '{folder}/*'",
                subject=folder,
            )
    if not items:
        message = f"none of the {format_number_of(len(held.items), 'file')} of {where} passes --include and --exclude"
        raise UsageError(message, hint="A pattern is compared with the whole name below it, such as raw/a.tar")
    nested = {folder: manifest for folder, manifest in held.nested.items() if f"{folder}/{MANIFEST_NAME}" in items}
    return replace(held, items=items, nested=nested)


def refuse_parts(held: Holding, here: Mapping[str, Item], gone: Sequence[Item], only: Filter) -> None:
    """Refuse to delete some files of a commit at the destination and leave others, because a filter tells them apart.

    Args:
        held: What the source holds.
        here: What lies at the destination.
        gone: What is deleted there.
        only: The filter.

    Raises:
        Refused: Names the commit.
    """
    if not (only and gone):
        return
    names = {item.name for item in gone}
    for manifest in here:
        folder, _, name = manifest.rpartition("/")
        if name != MANIFEST_NAME or folder in held.nested:
            continue
        inside = [each for each in here if each.startswith(f"{folder}/" if folder else "")]
        if names.intersection(inside) and not names.issuperset(inside):
            raise Refused(
                f"{folder or 'the destination'} holds a commit, and some of its files would be deleted and some not",
                hint=f"Leave all of it out: --exclude '{folder}/*'",
                subject=folder,
            )


def _any_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None
