"""house: the rules of the house as functions over its source, so that tests can hold them against stub houses too.

Everything is read with `ast`; nothing is imported. Function-level imports, imports under `if TYPE_CHECKING` and names
given to `import_module` count like any other.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "datakit"
COMPUTED = "a computed name"  # what is known of import_module(variable)


@dataclass(frozen=True)
class Room:
    """One source file: its path and its name below the package, such as `data/shard`."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_init(self) -> bool:
        return self.path.name == "__init__.py"


@dataclass(frozen=True)
class Import:
    """One imported module, with all its dots, and the line that does it."""

    module: str
    line: int


def rooms(package: Path = PACKAGE) -> list[Room]:
    """Every source file of the package, the inits included."""
    return [Room(path, path.relative_to(package).with_suffix("").as_posix()) for path in sorted(package.rglob("*.py"))]


def imports(room: Room) -> Iterator[Import]:
    """Every import in the file, wherever it stands; `from a import b` gives `a.b`."""
    for node in ast.walk(room.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield from (Import(f"{source}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield Import(_pattern(node.args[0]), node.lineno)


def calls(room: Room, name: str) -> Iterator[ast.Call]:
    """Every call of a function or method of that name."""
    return (node for node in ast.walk(room.tree) if isinstance(node, ast.Call) and _called(node) == name)


def order_problems(order: Sequence[str], package: Path = PACKAGE) -> list[str]:
    """Where the house is not the list, or a room imports one that doesn't stand before it in the list."""
    found = [room for room in rooms(package) if not room.is_init]
    problems = [f"{name} is on the list and is no file" for name in order if name not in {room.name for room in found}]
    problems += [f"{room.name} is a file and not on the list" for room in found if room.name not in order]
    for room in found:
        if room.name not in order:
            continue
        allowed = set(order[: order.index(room.name)])
        for used in imports(room):
            target = _room_of(used.module, package)
            if target is not None and target not in allowed:
                problems.append(f"{room.name} line {used.line} imports {target}, which does not stand before it")
    return problems


def door_problems(
    doors: Mapping[str, Sequence[str]], standard: Mapping[str, Sequence[str]], package: Path = PACKAGE
) -> list[str]:
    """Where a library enters elsewhere than through its door.

    Args:
        doors: By outside library: the rooms (`storage/store`) and wings (`data/`) that may import it.
        standard: By wing: modules of the standard library that it may not import.
        package: The house.
    """
    problems = []
    for room in rooms(package):
        for used in imports(room):
            top = used.module.lstrip(".").partition(".")[0]
            where = f"{room.name} line {used.line}"
            if top in sys.stdlib_module_names:
                wing = room.name.partition("/")[0] + "/"
                if top in standard.get(wing, ()):
                    problems.append(f"{where} imports {top}, and {wing} is pure")
            elif top != package.name and not any(_stands_in(room.name, door) for door in doors.get(top, ())):
                problems.append(f"{where} imports {top}, whose door is {', '.join(doors.get(top, ())) or 'nowhere'}")
    return problems


def shape_problems(package: Path = PACKAGE, *, file_lines: int, function_lines: int) -> list[str]:
    """Files and functions that are too long, files whose name is no noun, inits that hold something."""
    problems = []
    for room in rooms(package):
        length = room.text.count("\n")
        if length > file_lines:
            problems.append(f"{room.name} has {length} lines")
        if re.search(r"\b(utils?|common|helpers?|misc)\b", room.name):
            problems.append(f"{room.name} is no noun")
        if room.is_init and room.name != "__init__" and room.text.strip():
            problems.append(f"{room.name} is not empty")
        if not room.is_init and ast.get_docstring(room.tree) is None:
            problems.append(f"{room.name} does not say what it is")
        for node in ast.walk(room.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = _lines_of_code(node)
                if body > function_lines:
                    problems.append(f"{room.name}: {node.name} has {body} lines")
    return problems


def silent_ignores(package: Path = PACKAGE) -> list[str]:
    """Comments that switch a check off and give no reason."""
    mark = re.compile(r"#\s*(noqa|type:\s*ignore|pragma)\b[^#]*")
    reasoned = re.compile(r"(--\s*\S.{5,}|#\s*\S.{5,})")
    return [
        f"{room.name} line {number}"
        for room in rooms(package)
        for number, line in enumerate(room.text.splitlines(), 1)
        if (match := mark.search(line)) and not reasoned.search(line[match.start() + 1 :])
    ]


def unquoted_paths(package: Path = PACKAGE) -> list[str]:
    """Commands for a person to run into which a path is set as it is: one with a space makes two words of it."""
    word = re.compile(
        r"(?:datakit (?:sync|verify|inspect|pack|reindex|diff)|rm -r|\bls|mkdir -p|dvc checkout)"
        r"(?: (?:-?-[\w-]+|[A-Z]+|\{\w+\}))* \{(?!shlex\.|len\()([^{}]+)\}"
    )
    return [
        f"{room.name} line {number}: {match[0]}"
        for room in rooms(package)
        for number, line in enumerate(room.text.splitlines(), 1)
        for match in word.finditer(line)
        if not re.search(rf"\b{re.escape(match[1])}\b.* = .*shlex\.", room.text)  # a name for what is quoted above
    ]


def unhinted_errors(package: Path = PACKAGE) -> list[str]:
    """Where an error of the house's tree is made without a hint, and the line gives no reason after `no hint:`."""
    found = rooms(package)
    errors = _error_classes(found)
    reasoned = re.compile(r"#\s*no hint:\s*\S.{5,}")
    return [
        f"{room.name} line {node.lineno} makes {_called(node) or 'an error'} without a hint"
        for room in found
        for node in ast.walk(room.tree)
        if isinstance(node, ast.Call) and (_called(node) in errors or _is_remade(node)) and not _has_hint(node)
        if not any(map(reasoned.search, room.text.splitlines()[node.lineno - 1 : node.end_lineno]))
    ]


def _error_classes(found: Sequence[Room]) -> set[str]:
    """The classes of errors.py and what is derived from them anywhere, without those that bring a hint of their own."""
    classes = [(room, node) for room in found for node in ast.walk(room.tree) if isinstance(node, ast.ClassDef)]
    known = {node.name for room, node in classes if room.name == "errors"}
    for _ in classes:
        known |= {node.name for _, node in classes if known & {getattr(base, "id", "") for base in node.bases}}
    return known - {node.name for _, node in classes if any(map(_is_hinting, ast.walk(node)))}


def _is_hinting(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) == "__init__" and _has_hint(node)


def _is_remade(call: ast.Call) -> bool:
    """Whether it is `type(error)(...)`."""
    return isinstance(call.func, ast.Call) and _called(call.func) == "type"


def _has_hint(call: ast.Call) -> bool:
    given = [word.value for word in call.keywords if word.arg == "hint"]
    return any(not isinstance(value, ast.Constant) or value.value for value in given)


def _lines_of_code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; signature, docstring and functions inside are not counted."""
    body = list(node.body)
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    inner = [child for child in ast.walk(node) if child is not node and isinstance(child, type(node))]
    return (_span(body[0].lineno, body[-1]) if body else 0) - sum(_span(child.lineno, child) for child in inner)


def _span(start: int, node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - start + 1


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _pattern(node: ast.expr) -> str:
    """The text of a name that is put together: what is known of it, up to the first part that is not."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value).rstrip(".")
    return COMPUTED


def _room_of(module: str, package: Path) -> str | None:
    """The room that an imported name lives in, or None where it is not of this house."""
    head, *rest = module.split(".")
    if module.startswith("."):
        return "a relative import"
    if head != package.name:
        return None
    for end in range(len(rest), 0, -1):
        if package.joinpath(*rest[:end]).with_suffix(".py").is_file():
            return "/".join(rest[:end])
    return None  # a name of the package's own face, such as __version__, or a wing's folder


def _stands_in(room: str, door: str) -> bool:
    return room.startswith(door) if door.endswith("/") else room == door
