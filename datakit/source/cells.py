"""cells: a row of a table as parts of a sample; pyarrow's door, because the columns are its own.

Columns of numbers, text, times, lists and structs become one part `json`: an object with the columns in their order,
written by orjson, so the same row is the same bytes. Binary columns, and the structs of `bytes` and `path` in which
Hugging Face `datasets` keeps images and sound, become parts of their own: of a single such column named by the path's
extension where there is one, else by the column; of several, `<column>.<extension>`. An empty cell leaves its part out.

JSON holds no NaN, no infinity and no bytes: such a cell is told, not turned into null. Decimals and times to the
nanosecond become text, times with a zone are written in UTC. 32-bit floats are written as the 64-bit float that they
equal. What only a column's type knows is not in its cells, and is told once: the unit of a duration, names of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson

from datakit.data.keys import check_part
from datakit.errors import InputError
from datakit.events import Note
from datakit.source.naming import JSON_PART

_MEDIA = {"bytes", "path"}
_MEND = "Mend that row, or take it out, and pack again"
_NOT_FINITE = (
    "Write null for it, and pack again; with pyarrow: compute.if_else(compute.is_finite(column), column, None)"
)
_SHOWN_CLASSES = 3
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the value of the field that names it (None without), and its parts; or what is wrong, and what to do."""

    key: object
    parts: Mapping[str, bytes]
    problem: str | None = None
    hint: str | None = None


class Cells:
    """How rows of one schema become parts.

    Args:
        schema: An Arrow schema.
        key_field: The column that names a row.

    Attributes:
        remarks: What a user should be told of the columns.

    Raises:
        InputError: Two columns have one name, or a binary column's name cannot name a part.
    """

    def __init__(self, schema: Any, *, key_field: str) -> None:
        import pyarrow as pa

        names = list(schema.names)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two columns are called {twice}", hint="Rename one of them", subject=twice)
        self._key_field = key_field if key_field and key_field in names else None
        types = {field.name: _stored(pa, field.type) for field in schema}
        self._media = [name for name, kind in types.items() if _is_media(pa, kind)]
        self._blobs = [name for name, kind in types.items() if _is_blob(pa, kind)]
        self._values = [name for name in names if name not in self._media and name not in self._blobs]
        self._floats = [name for name in self._values if _has_float(pa, types[name])]
        self.remarks = tuple(_remarks(pa, schema, self._values))
        self._single = len(self._media) + len(self._blobs) == 1
        for name in self._media + self._blobs:
            try:
                check_part(name.lower())
            except InputError as error:
                raise InputError(f"column {name}: {error.message}", hint="Rename that column", subject=name) from None

    def rows(self, batch: Any) -> Iterator[Row]:
        """The rows of a record batch.

        Raises:
            InputError: A column has values that Python has none for.
        """
        columns = {name: _as_python(batch.column(name), name) for name in batch.schema.names}
        for number in range(batch.num_rows):
            try:
                yield Row(self._key(columns, number), self._parts(columns, number))
            except InputError as error:
                yield Row(self._key(columns, number), {}, error.message, error.hint)

    def _key(self, columns: Mapping[str, list[Any]], number: int) -> object:
        return None if self._key_field is None else columns[self._key_field][number]

    def _parts(self, columns: Mapping[str, list[Any]], number: int) -> dict[str, bytes]:
        parts: dict[str, bytes] = {}
        for name in self._floats:
            if (found := _not_finite(columns[name][number])) is not None:
                raise InputError(f"column {name} holds {found}, which JSON cannot", hint=_NOT_FINITE)
        if self._values:
            parts[JSON_PART] = _json({name: columns[name][number] for name in self._values})
        for name in self._blobs:
            _add(parts, name.lower(), name, columns[name][number])
        for name in self._media:
            cell = columns[name][number] or {"bytes": None, "path": None}
            if cell["bytes"] is None and cell["path"] is not None:
                raise InputError(f"column {name} names the file {cell['path']} and holds no bytes", hint=_MEND)
            _add(parts, self._media_part(name, cell["path"]), name, cell["bytes"])
        if not parts:
            raise InputError("it has no value at all", hint=_MEND)
        return parts

    def _media_part(self, column: str, path: str | None) -> str:
        base, dot, extension = (path or "").rpartition("/")[2].rpartition(".")
        column = column.lower()
        if not (base and dot and extension.isascii() and extension.isalnum()):
            return column
        return extension.lower() if self._single else f"{column}.{extension.lower()}"


def _add(parts: dict[str, bytes], part: str, column: str, data: bytes | None) -> None:
    if data is None:
        return
    if not data:
        raise InputError(f"column {column} is empty", hint=_MEND)
    if part in parts:
        raise InputError(f"column {column} would be the part {part}, which another column is", hint="Rename it")
    parts[part] = data


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(value, default=_no_json, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:
        raise InputError(f"it cannot be written as JSON: {error}", hint=_MEND) from None


def _no_json(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a column holds {type(value).__name__} inside")


def _not_finite(value: Any) -> float | None:
    """The first NaN or infinity in a value, or None."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    return next((found for item in value if (found := _not_finite(item)) is not None), None)


def _as_python(column: Any, name: str) -> list[Any]:
    """A column's values, nested ones too; text where Python has no exact value of its own, and times in UTC.

    Nothing depends on what else is installed: pyarrow asks pandas for nanoseconds, and the machine for time zones.
    """
    import pyarrow as pa

    given = column.type
    try:
        for rule in (_in_utc, _as_text):
            kind = _mapped(pa, column.type, rule)
            if kind != column.type:
                column = column.cast(kind)
        values: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"column {name} has values that cannot be taken: {said}", hint="Take it out") from None
    if any(pa.types.is_timestamp(leaf) and leaf.unit == "ns" for leaf in _leaves(pa, given)):
        return [_with_t(pa, given, value) for value in values]
    return values


def _with_t(pa: Any, kind: Any, value: Any) -> Any:
    """A value with its times to the nanosecond as all others are written; pyarrow puts a blank between day and hour."""
    kind, types = _stored(pa, kind), pa.types
    if value is None:
        return None
    if types.is_dictionary(kind):
        return _with_t(pa, kind.value_type, value)
    if types.is_struct(kind):
        return {field.name: _with_t(pa, field.type, value[field.name]) for field in kind}
    if types.is_map(kind):
        return [(_with_t(pa, kind.key_type, key), _with_t(pa, kind.item_type, item)) for key, item in value]
    if types.is_nested(kind):
        return [_with_t(pa, kind.value_type, item) for item in value]
    return value.replace(" ", "T") if types.is_timestamp(kind) and kind.unit == "ns" else value


def _in_utc(pa: Any, kind: Any) -> Any:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _as_text(pa: Any, kind: Any) -> Any:
    """The type that a plain type is turned into."""
    types = pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_duration(kind):
        return pa.int64()
    nanoseconds = (types.is_timestamp(kind) or types.is_time64(kind)) and kind.unit == "ns"
    return pa.string() if nanoseconds or types.is_decimal(kind) else kind


def _mapped(pa: Any, kind: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """A type with a rule for plain types applied at its leaves."""
    kind, types = _stored(pa, kind), pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_mapped(pa, field.type, rule)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_mapped(pa, kind.key_type, rule), _mapped(pa, kind.item_type, rule))
    if types.is_dictionary(kind):
        value = _mapped(pa, kind.value_type, rule)
        return kind if value == kind.value_type else value
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return rule(pa, kind)
    field = kind.value_field.with_type(_mapped(pa, kind.value_type, rule))
    if types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if types.is_large_list(kind) else pa.list_(field)


def _remarks(pa: Any, schema: Any, columns: Sequence[str]) -> Iterator[Note]:
    """What is lost of columns because only their type, or a note of Hugging Face `datasets` beside it, says it."""
    classes = _classes(schema)
    for name in columns:
        units = {kind.unit for kind in _leaves(pa, schema.field(name).type) if pa.types.is_duration(kind)}
        for unit in sorted(units):
            yield Note(f"column {name} holds durations, which are written as a number of {_UNITS[unit]}")
        for names in classes.get(name, ()):
            said = ", ".join(f"{number} for {one!r:.40}" for number, one in enumerate(names[:_SHOWN_CLASSES]))
            more = ", ..." if names[_SHOWN_CLASSES:] else ""
            yield Note(f"column {name} holds numbers of classes, of which the names are left out: {said}{more}")


def _leaves(pa: Any, kind: Any) -> Iterator[Any]:
    kind = _stored(pa, kind)
    if pa.types.is_dictionary(kind):
        yield from _leaves(pa, kind.value_type)
    elif pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from _leaves(pa, kind.field(number).type)
    else:
        yield kind


def _classes(schema: Any) -> dict[str, list[list[str]]]:
    """For each column, the names of the classes that it holds numbers of (`datasets`, features.ClassLabel)."""
    try:
        features = orjson.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {str(name): list(_names(feature)) for name, feature in features.items()}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}


def _names(feature: Any) -> Iterator[list[str]]:
    if isinstance(feature, Mapping):
        if feature.get("_type") == "ClassLabel":
            yield [str(name) for name in feature.get("names") or ()]
        else:
            feature = list(feature.values())
    if isinstance(feature, list):
        for inner in feature:
            yield from _names(inner)


def _stored(pa: Any, kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_blob(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_media(pa: Any, kind: Any) -> bool:
    if not pa.types.is_struct(kind) or {field.name for field in kind} != _MEDIA:
        return False
    return _is_blob(pa, kind.field("bytes").type)


def _has_float(pa: Any, kind: Any) -> bool:
    return any(pa.types.is_floating(leaf) for leaf in _leaves(pa, kind))
