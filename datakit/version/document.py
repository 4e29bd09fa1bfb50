"""document: YAML as DVC reads and writes it, which is YAML 1.2 as ruamel.yaml has it.

PyYAML speaks 1.1: to it `1e-3` is a text, `on` is true and `1:30` a number. DVC compares values that it has read, so
one that is read or written otherwise would look changed. Dates are dates to both. Knows no file and no meaning.

Source: YAML 1.2.2, section 10.3.2, and ruamel.yaml 0.19, `resolver.py` (underscores in numbers, binary ones).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from datakit.errors import InputError

_TAG = "tag:yaml.org,2002:"
_REAL = (
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9_]+(?:[eE][-+][0-9]+)?)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?[0-9_]+|[-+]?0x[0-9a-fA-F_]+", "-+0123456789"),
    "float": (_REAL, "-+0123456789."),
    "merge": (r"<<", "<"),
    "value": (r"=", "="),
}
"""By tag: what a plain word of it looks like, and with what it may begin. Earlier tags win."""

_LINE_LENGTH = 10_000
"""So long that no text is folded."""


_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML has it: a dvc.lock of 200 stages takes 0.4 s instead of 1.1 (a busy machine, 2026-11-30)."""


class _Loader(_Fast):  # type: ignore[misc]  # which of the two safe loaders it is, is known when it runs
    """Safe, with the words of 1.2."""


class _Dumper(yaml.SafeDumper):
    """Safe, with the words of 1.2; DVC writes equal values out, each time."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- the same for every value
        return True


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 0 if text.lstrip("+-")[:2] in ("0b", "0o", "0x") else 10)


def _real(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _learn(kind: type[_Loader | _Dumper]) -> None:
    dates = {
        first: [each for each in words if each[0] == _TAG + "timestamp"]
        for first, words in kind.yaml_implicit_resolvers.items()
    }
    kind.yaml_implicit_resolvers = {first: words for first, words in dates.items() if words}
    for tag, (pattern, first) in _WORDS.items():
        kind.add_implicit_resolver(_TAG + tag, re.compile(f"^(?:{pattern})$"), list(first))


_learn(_Loader)
_learn(_Dumper)
_Dumper.add_representer(type(None), lambda dumper, _: dumper.represent_scalar(_TAG + "null", ""))
_Loader.add_constructor(_TAG + "int", _integer)
_Loader.add_constructor(_TAG + "float", _real)
_Loader.add_constructor(_TAG + "value", _text)


def read_yaml(data: bytes, *, where: str) -> Any:
    """A document, as DVC reads it.

    Raises:
        InputError: It is not YAML.
    """
    try:
        return yaml.load(data, Loader=_Loader)  # noqa: S506 -- it is a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"{where} is not YAML: {said}", hint="Mend it, or take it from Git again", subject=where
        ) from None


def write_yaml(value: Any) -> bytes:
    """A document that DVC reads back as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_LINE_LENGTH).encode()
