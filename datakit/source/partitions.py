"""partitions: columns of a table that stand in the names of its folders: `dt=2024-01-01/part-0.parquet`.

Hive began it, and pyarrow, pandas, Spark and `datasets` read such folders as columns. The rules are those of
`pyarrow.dataset.partitioning(flavor="hive")`: a folder `NAME=VALUE` below the source, %XX decoded; a column is of whole
numbers where all its values are such of 32 bits, else of text; `__HIVE_DEFAULT_PARTITION__` is an empty cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import unquote

from datakit.errors import InputError
from datakit.events import Caution, Note
from datakit.units import agree

Value: TypeAlias = int | str | None

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]+")


def texts_of(name: str) -> dict[str, str | None]:
    """The columns that a file's folders name, and what they say of its rows, as it is written.

    Args:
        name: The file's, below the source.

    Raises:
        InputError: Two of its folders name one column, or one is called what is no text.

    Example:
        >>> texts_of("dt=2024-01-01/lang=en%20GB/part-0.parquet")
        {'dt': '2024-01-01', 'lang': 'en GB'}
    """
    steps = _steps(name)
    if len(dict(steps)) < len(steps):
        said = f"{name}: two of its folders name one column"
        raise InputError(said, hint="Rename one of them", subject=name)
    return dict(steps)


def _steps(name: str) -> list[tuple[str, str | None]]:
    words = [step.partition("=") for step in name.split("/")[:-1]]
    return [
        (_decoded(column, name), None if text == _NULL else _decoded(text, name))
        for column, sign, text in words
        if column and sign
    ]


def _decoded(text: str, name: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        said = f"{name}: {text} is not UTF-8 once its %XX are decoded"
        raise InputError(said, hint="Rename that folder", subject=name) from None


def values_of(names: Iterable[str]) -> dict[str, Mapping[str, Value]]:
    """The same of all files together, by the file's name, with the numbers among them.

    Raises:
        InputError: As `texts_of`.
    """
    texts = {name: texts_of(name) for name in names}
    numbers: dict[str, bool] = {}
    for its in texts.values():
        for column, text in its.items():
            numbers[column] = numbers.get(column, True) and (text is None or _is_number(text))

    def value(column: str, text: str | None) -> Value:
        return int(text) if text is not None and numbers[column] else text

    return {name: {column: value(column, text) for column, text in its.items()} for name, its in texts.items()}


def _is_number(text: str) -> bool:
    if _WHOLE.fullmatch(text) is None or len(digits := text.lstrip("-").lstrip("0")) > len(str(2**31)):
        return False
    return -(2**31) <= (-1 if text[0] == "-" else 1) * int(digits or "0") < 2**31


def told(names: Iterable[str], *, as_columns: bool) -> list[Note | Caution]:
    """What to say of columns in the names of folders.

    Args:
        names: Of the files, below the source.
        as_columns: Whether rows get them; other records pass as they are.
    """
    columns = list(dict.fromkeys(column for name in names for column, _ in _steps(name)))
    if not columns:
        return []
    said = ", ".join(columns)
    if as_columns:
        return [Note(f"names of folders hold {said}: read as {agree(len(columns), 'a column', 'columns')}")]
    return [
        Caution(
            f"names of folders hold {said}, which no record does",
            hint="Records pass untouched: write it into them, or pack a table (Parquet, CSV)",
        )
    ]
