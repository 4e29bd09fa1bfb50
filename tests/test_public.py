"""What `import datakit` offers is what it says it offers."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import datakit
from datakit import errors
from support.cli import environment
from support.house import PACKAGE


def test_the_public_names_are_sorted_and_stand_once() -> None:
    """A reader finds a name in __all__ where the alphabet puts it."""
    assert datakit.__all__ == sorted(set(datakit.__all__))
    assert errors.__all__ == sorted(set(errors.__all__))


def test_every_public_name_can_be_imported() -> None:
    """Each name leads to a class or a function, which documents itself."""
    for name in datakit.__all__:
        thing = getattr(datakit, name)

        assert callable(thing), name
        assert thing.__doc__ or name in ("pack", "train"), name


def test_type_checkers_see_the_names_that_the_interpreter_gives() -> None:
    """The imports under TYPE_CHECKING are __all__, each from the room that __getattr__ asks."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))

    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert sorted(told) == datakit.__all__
    assert told == {name: datakit._ROOMS.get(name, "datakit.errors") for name in datakit.__all__}


def test_every_error_is_public() -> None:
    """A caller can catch each error by its name in datakit."""
    assert set(errors.__all__) <= set(datakit.__all__)
    assert all(getattr(datakit, name) is getattr(errors, name) for name in errors.__all__)


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    """Completion in a shell offers what is meant to be used."""
    assert dir(datakit) == datakit.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typing error is answered as Python answers it."""
    with pytest.raises(AttributeError, match="module 'datakit' has no attribute 'pakc'"):
        datakit.pakc  # noqa: B018 -- the access is the test


@pytest.mark.parametrize(
    "first", ["pass", "import datakit.pack.cut, datakit.train.recipe", "from datakit import pack, train"]
)
def test_a_verb_is_callable_whatever_was_imported_before(first: str) -> None:
    """`datakit.pack(...)` packs, also after a room of the wing of the same name was imported."""
    script = (
        f"{first}\nimport datakit, inspect\n"
        "for verb in (datakit.pack, datakit.train, datakit.sync):\n"
        "    assert callable(verb), verb\n"
        "    print(next(iter(inspect.signature(verb).parameters)))\n"
        "from datakit.pack.cut import PackSettings\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False, timeout=120
    )

    assert (done.stdout.split(), done.stderr) == (["src", "dataset", "source"], "")
