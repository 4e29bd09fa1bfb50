"""settings: one file, `params.yaml`, and what stands above it.

A setting comes from the highest of four places that names it: a flag, the environment (`DATAKIT_TRAIN__LEARNING_RATE`),
the file, the default. The classes of the settings live in the rooms that use them; this room knows them all and none
of them knows this room. Promises: an unknown name is an error with a suggestion, a value of the wrong type is an error
that says where it was set, and each value remembers its origin (`datakit doctor --settings`).

Secrets stay out of the file, which git and DVC keep: in `stores:` a secret is a reference such as `${R2_SECRET}`.
Sections of your own, for stages of your own, start with `x-` and are not looked at.

Does not read credentials of stores that the file does not name: those come from the usual variables (storage/access).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from datakit.errors import DatakitError, InputError, NotAllowed, NotFound, UsageError
from datakit.pack.cut import PackSettings
from datakit.pack.tokenize import TokenizeSettings
from datakit.storage.access import StoreOptions
from datakit.storage.sync import SyncSettings
from datakit.tier.tiers import NAMES, TierOptions, check_tier
from datakit.train.recipe import Recipe

FILE = "params.yaml"  # the file that DVC tracks without being told
SECTIONS: Mapping[str, type] = {
    "pack": PackSettings,
    "tokenize": TokenizeSettings,
    "sync": SyncSettings,
    "train": Recipe,
}
STORES = "stores"
TIERS = "tiers"
NAMED: Mapping[str, type] = {STORES: StoreOptions, TIERS: TierOptions}
"""Sections whose settings stand below a name."""
DEFAULT = "default"

_FLAGS = {"pack.splits": "--split"}  # it is given once for each of them
_PREFIX = "DATAKIT_"
# read by cli/frame.py; the mark of the demo's processes; read by storage/access.py
_NO_SETTINGS = frozenset({"DATAKIT_DEBUG", "DATAKIT_DEMO", "DATAKIT_STORE_PROVIDER"})
_OWN = "x-"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# YAML 1.1 as PyYAML reads it takes 2e-4 for text; YAML 1.2 (section 10.2.1.4) takes it for a number, and so do we
_FLOAT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with its value and where that came from.

    Attributes:
        name: Section and name, such as `train.rank`.
        value: The value in force; a secret is shown as `***`.
        origin: `default`, `params.yaml line 3`, `DATAKIT_TRAIN__RANK` or a flag such as `--rank`.
    """

    name: str
    value: object
    origin: str


class Stores(Mapping[str, StoreOptions]):
    """The named stores. One whose `${NAME}` is not set raises when it is asked for, so that other work can go on.

    Attributes:
        unusable: By name, why a store cannot be used.
    """

    def __init__(self, usable: Mapping[str, StoreOptions], *, unusable: Mapping[str, UsageError]) -> None:
        self._usable = usable
        self.unusable = unusable

    def __getitem__(self, name: str) -> StoreOptions:
        if name in self.unusable:
            raise self.unusable[name]
        return self._usable[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._usable, *self.unusable]))

    def __len__(self) -> int:
        return len(self._usable) + len(self.unusable)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings in force for one run of a command."""

    pack: PackSettings
    tokenize: TokenizeSettings
    sync: SyncSettings
    train: Recipe
    stores: Stores
    tiers: Mapping[str, TierOptions]
    origins: Mapping[str, str] = dataclasses.field(repr=False)

    def listing(self) -> tuple[Setting, ...]:
        """Every setting with value and origin, in the order of the file's sections, secrets masked."""
        groups: list[tuple[str, Any]] = [(section, getattr(self, section)) for section in SECTIONS]
        groups += [(f"{STORES}.{name}", self.stores[name]) for name in self.stores if name not in self.stores.unusable]
        groups += [(f"{TIERS}.{name}", self.tiers[name]) for name in NAMES if name in self.tiers]
        rows = [
            Setting(f"{group}.{field.name}", _shown(field, values), self.origins.get(f"{group}.{field.name}", DEFAULT))
            for group, values in groups
            for field in dataclasses.fields(values)
        ]
        return (*rows, *(Setting(f"{STORES}.{name}", why.message, FILE) for name, why in self.stores.unusable.items()))


def load(
    path: Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force.

    Args:
        path: The settings file; None takes `params.yaml` of the current directory, if there is one.
        flags: Values given on the command line, by name: `{"train.rank": 16}`.
        env: The environment; None for the process's own.

    Raises:
        NotFound: The named file is not there.
        NotAllowed: It may not be read.
        InputError: The file is not YAML, or not made of sections.
        UsageError: A name is unknown, or a value cannot be.
    """
    env = os.environ if env is None else env
    given = {
        **_from_file(path),
        **_from_environment(env),
        **{name: _Given(value, flag_of(name)) for name, value in (flags or {}).items()},
    }
    for name, value in given.items():
        _check_known(name, value.origin)
    sections: dict[str, Any] = {section: _build(kind, section, given) for section, kind in SECTIONS.items()}
    origins = {name: value.origin for name, value in given.items()}
    return Settings(**sections, stores=_stores(given, env), tiers=_tiers(given), origins=origins)


def flag_of(name: str) -> str:
    """The option of the command line that gives a setting: `--shard-size` for `pack.shard_size`."""
    return _FLAGS.get(name, f"--{name.rpartition('.')[2].replace('_', '-')}")


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that someone gave, and who. `text` is what the environment held before it was read as YAML."""

    value: object
    origin: str
    text: str | None = None


class _Loader(yaml.SafeLoader):
    """YAML without code, with the floats of YAML 1.2."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def _from_file(path: Path | None) -> dict[str, _Given]:
    if path is None and not Path(FILE).exists():
        return {}
    where = Path(FILE) if path is None else path
    try:
        loader = _Loader(where.read_text(encoding="utf-8"))
        found = {
            name: _Given(loader.construct_object(node, deep=True), origin)
            for name, node, origin in _named(loader, where)
        }
    except FileNotFoundError:
        raise NotFound(
            f"there is no settings file {where}", hint=f"Look at the path: ls {shlex.quote(str(where.parent))}"
        ) from None
    except PermissionError:
        raise NotAllowed(
            f"{where} may not be read", hint=f"Look at its permissions: ls -l {shlex.quote(str(where))}"
        ) from None
    except OSError as error:
        hint = f"Name a file, such as {FILE}: --params FILE"
        raise UsageError(f"{where} is no settings file: {error.strerror}", hint=hint, subject=str(where)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"{where} is not YAML: {' '.join(str(error).split())}"
        raise InputError(message, hint="Mend it there, or name another: --params FILE", subject=str(where)) from None
    _refuse_written_secrets(found)
    return found


def _named(loader: _Loader, where: Path) -> Iterator[tuple[str, yaml.Node, str]]:
    """Every setting of the file: its full name, its value as YAML's node, and its place."""
    for section, value in _entries(loader.get_single_node(), where, "the file"):
        name = str(section.value)
        if name.startswith(_OWN):
            continue
        if name not in NAMED and name not in SECTIONS:
            raise _unknown(name, [*SECTIONS, *NAMED], f"{where} line {_line(section)}", kind="section")
        groups = [(name, value)]
        if name in NAMED:
            groups = [(f"{name}.{each.value}", options) for each, options in _entries(value, where, name)]
        for group, inner in groups:
            for key, node in _entries(inner, where, group):
                yield f"{group}.{key.value}", node, f"{where} line {_line(key)}"


def _entries(node: yaml.Node | None, where: Path, name: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """The keys and values of a mapping; an empty section has none, and a key that stands twice is an error."""
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return []
    if not isinstance(node, yaml.MappingNode):
        raise InputError(
            f"{where} line {_line(node)}: {name} holds no names and values",
            hint=f"Write sections such as: {', '.join(f'{each}:' for each in (*SECTIONS, *NAMED))}",
            subject=name,
        )
    seen: set[object] = set()
    for key, _ in node.value:
        if key.value in seen:
            message = f"{where} line {_line(key)}: {key.value} stands twice in {name}"
            raise InputError(message, hint="Remove one of them", subject=key.value)
        seen.add(key.value)
    return list(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _from_environment(env: Mapping[str, str]) -> dict[str, _Given]:
    """Values of variables such as DATAKIT_TRAIN__RANK.

    Raises:
        UsageError: A variable of ours names no setting, for example because it has one underscore after the section.
    """
    found: dict[str, _Given] = {}
    for variable, text in sorted(env.items()):
        if not variable.startswith(_PREFIX) or variable in _NO_SETTINGS:
            continue
        if "__" not in variable:
            raise _unknown_variable(variable)
        name = ".".join(variable.removeprefix(_PREFIX).lower().split("__"))
        try:
            value = yaml.load(text, Loader=_Loader)  # noqa: S506 -- _Loader is a SafeLoader
        except yaml.YAMLError:
            value = text
        found[name] = _Given(value, variable, text)
    return found


def _unknown_variable(variable: str) -> UsageError:
    words = variable.removeprefix(_PREFIX).lower()
    names = [f"{section}_{field.name}" for section, kind in SECTIONS.items() for field in _fields(kind)]
    near = difflib.get_close_matches(words, names, n=1, cutoff=0.8)
    hint = f"There are {_PREFIX}SECTION__SETTING and {', '.join(sorted(_NO_SETTINGS))}"
    if near:
        section, _, field = near[0].partition("_")
        hint = f"Did you mean {_PREFIX}{section.upper()}__{field.upper()}?"
    return UsageError(f"the variable {variable} is no setting", hint=hint, subject=variable)


def _check_known(name: str, origin: str) -> None:
    section, _, rest = name.partition(".")
    kind = {**SECTIONS, **NAMED}.get(section)
    if kind is None:
        raise _unknown(section, [*SECTIONS, *NAMED], origin, kind="section")
    prefix = section
    if section in NAMED:
        prefix, _, rest = name.rpartition(".")
    names = [field.name for field in _fields(kind)]
    if rest not in names:
        raise _unknown(rest, names, origin, kind=f"setting of {prefix}")


def _unknown(name: str, names: Iterable[str], origin: str, *, kind: str) -> UsageError:
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}"
    return UsageError(f"{name!r} is no {kind} ({origin})", hint=hint, subject=name)


def _stores(given: Mapping[str, _Given], env: Mapping[str, str]) -> Stores:
    usable: dict[str, StoreOptions] = {}
    unusable: dict[str, UsageError] = {}
    for name in _names(STORES, given):
        group = f"{STORES}.{name}"
        own = {key: value for key, value in given.items() if key.rpartition(".")[0] == group}
        try:
            resolved = {key: _resolved(value, key, env) for key, value in own.items()}
        except UsageError as error:
            url = own.get(f"{group}.url")
            unusable[name] = UsageError(error.message, hint=error.hint, subject=url.value if url else group)
        else:
            usable[name] = _build(StoreOptions, group, resolved)
    return Stores(usable, unusable=unusable)


def _tiers(given: Mapping[str, _Given]) -> dict[str, TierOptions]:
    found = {name: _build(TierOptions, f"{TIERS}.{name}", given) for name in _names(TIERS, given)}
    for name, options in found.items():
        check_tier(name, options)
    return found


def _names(section: str, given: Mapping[str, _Given]) -> list[str]:
    """The names below which a section's settings stand."""
    return sorted({name.rpartition(".")[0].partition(".")[2] for name in given if name.startswith(f"{section}.")})


def _build(kind: type[T], group: str, given: Mapping[str, _Given]) -> T:
    """A settings object from what was given for its group; its own checks speak through ours."""
    hints = get_type_hints(kind)
    secret = {field.name for field in _fields(kind) if not field.repr}
    values: dict[str, Any] = {}
    for name, value in given.items():
        owner, _, field = name.rpartition(".")
        if owner == group:
            values[field] = _validated(hints[field], name, value, secret=field in secret)
    try:
        return kind(**values)
    except DatakitError as error:
        source = given.get(f"{group}.{error.subject}")
        message = error.message if error.message.startswith(group) else f"{group}: {error.message}"
        place = f" ({source.origin})" if source else ""
        raise UsageError(f"{message}{place}", hint=error.hint, subject=error.subject) from None


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _validated(hint: Any, name: str, given: _Given, *, secret: bool) -> object:
    """The value in the type of its field, by JSON's strict rules: no text for a number, no yes for 1."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    # a variable's `8` may be meant as text (a name); its text is the second reading
    readings = [given.value] if given.text is None else [given.value, given.text]
    trouble: list[str] = []
    for reading in readings:
        try:
            return adapter.validate_json(json.dumps(reading, default=str), strict=True)
        except ValidationError as error:
            trouble.append(error.errors()[0]["msg"])
    shown = "***" if secret else repr(given.value)
    raise UsageError(f"{name} is {shown} ({given.origin})", hint=trouble[0], subject=name)


def _resolved(given: _Given, name: str, env: Mapping[str, str]) -> _Given:
    """A store's value with its `${NAME}` references replaced."""
    if not isinstance(given.value, str):
        return given

    def variable(match: re.Match[str]) -> str:
        if match[1] not in env:
            raise UsageError(
                f"{name} refers to {match[0]}, which is not set ({given.origin})",
                hint=f"export {match[1]}=...",
                subject=name,
            )
        return env[match[1]]

    return dataclasses.replace(given, value=_REFERENCE.sub(variable, given.value), text=None)


def _refuse_written_secrets(found: Mapping[str, _Given]) -> None:
    secret = {field.name for field in _fields(StoreOptions) if not field.repr}
    for name, given in found.items():
        section, _, field = name.rpartition(".")
        if section.startswith(f"{STORES}.") and field in secret and not _is_reference(given.value):
            variable = re.sub(r"\W+", "_", f"{section.partition('.')[2]}_{field}").upper()
            raise UsageError(
                f"{name} is written in the file itself ({given.origin}), which git and DVC keep",
                hint=f"Write ${{{variable}}} there and set the variable: export {variable}=...",
                subject=name,
            )


def _is_reference(value: object) -> bool:
    return value is None or (isinstance(value, str) and _REFERENCE.fullmatch(value) is not None)


def _shown(field: dataclasses.Field[Any], values: object) -> object:
    value = getattr(values, field.name)
    return value if field.repr or value is None else "***"
