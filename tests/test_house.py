"""The house stands as docs/design.md draws it: one order of rooms, one door a library, nothing heavy at start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.cli.main import COMMANDS
from support import house
from support.cli import environment

# One total order: a room imports only what stands before it. Wings in the order of docs/design.md, rooms of a wing
# in the order in which they need each other.
ORDER = [
    "errors",
    "units",
    "events",
    "machine",
    "plan/storage",
    "data/digest",
    "data/flips",
    "data/keys",
    "data/stems",
    "data/shard",
    "data/rows",
    "data/builder",
    "data/archive",
    "data/index",
    "data/manifest",
    "data/changes",
    "data/order",
    "storage/regular",
    "storage/stamp",
    "storage/disk",
    "storage/aside",
    "storage/links",
    "storage/profiles",
    "storage/access",
    "storage/answers",
    "storage/addresses",
    "storage/limits",
    "storage/counts",
    "storage/crew",
    "storage/prices",
    "storage/objects",
    "storage/absent",
    "storage/commit",
    "storage/newest",
    "storage/etags",
    "storage/multipart",
    "storage/wire",
    "storage/foreign",
    "storage/client",
    "storage/s3",
    "storage/store",
    "storage/retry",
    "storage/indexes",
    "storage/partial",
    "storage/transfer",
    "storage/upload",
    "storage/compare",
    "storage/strangers",
    "storage/sides",
    "storage/filters",
    "storage/estimate",
    "storage/refusals",
    "storage/moves",
    "storage/locks",
    "storage/spool",
    "storage/sync",
    "storage/copies",
    "storage/catalog",
    "storage/view",
    "storage/inbox",
    "storage/agent",
    "storage/pipe",
    "storage/writeback",
    "storage/flush",
    "source/kinds",
    "source/troubles",
    "source/originals",
    "source/reports",
    "source/columns",
    "source/records",
    "source/parts",
    "source/clashes",
    "source/naming",
    "source/spans",
    "source/lines",
    "source/files",
    "source/trees",
    "source/grouping",
    "source/folders",
    "source/members",
    "source/vouching",
    "source/tars",
    "source/cells",
    "source/partitions",
    "source/tables",
    "source/arrays",
    "source/unpacking",
    "source/scan",
    "source/fetching",
    "source/listing",
    "pack/cut",
    "pack/advice",
    "pack/engines",
    "pack/cluster",
    "pack/masks",
    "pack/sidecars",
    "pack/reading",
    "pack/tokenizer",
    "pack/writing",
    "pack/shards",
    "pack/seal",
    "pack/receipts",
    "pack/parent",
    "pack/planning",
    "pack/twins",
    "pack/remarks",
    "pack/choice",
    "pack/result",
    "pack/standing",
    "pack/tasks",
    "pack/work",
    "pack/foreign",
    "pack/beside",
    "pack/reindex",
    "pack/build",
    "pack/tokenize",
    "verify/tape",
    "verify/damage",
    "verify/stretch",
    "verify/tally",
    "verify/walk",
    "verify/claims",
    "verify/unnamed",
    "verify/verify",
    "verify/siblings",
    "version/document",
    "version/dvc",
    "version/project",
    "version/local",
    "version/cache",
    "version/tree",
    "version/bring",
    "version/publish",
    "version/graph",
    "version/guard",
    "version/lineage",
    "version/origins",
    "version/revision",
    "version/places",
    "version/excerpt",
    "version/diff",
    "tier/policy",
    "tier/arrival",
    "tier/roster",
    "tier/usage",
    "tier/room",
    "tier/pool",
    "tier/origin",
    "tier/fill",
    "tier/audit",
    "tier/waste",
    "tier/eviction",
    "tier/tiers",
    "tier/status",
    "tier/fetch",
    "tier/protocol",
    "tier/door",
    "tier/course",
    "tier/ledger",
    "tier/library",
    "tier/supply",
    "tier/desk",
    "tier/keeper",
    "tier/starting",
    "tier/client",
    "feed/mapped",
    "feed/dataset",
    "feed/cached",
    "feed/workers",
    "feed/loader",
    "train/recipe",
    "train/batch",
    "train/metrics",
    "train/model",
    "train/result",
    "train/signals",
    "train/evaluate",
    "train/shelf",
    "train/checkpoint",
    "train/identity",
    "train/launch",
    "train/attempt",
    "train/step",
    "train/upload",
    "train/loop",
    "train/preview",
    "operate/doctor",
    "settings",
    "console",
    "cli/frame",
    "cli/splits",
    "cli/pack",
    "cli/verify",
    "cli/reindex",
    "cli/inspect",
    "cli/cat",
    "cli/diff",
    "cli/sync",
    "cli/tier",
    "cli/tokenize",
    "cli/train",
    "cli/ckpt",
    "cli/lineage",
    "cli/doctor",
    "cli/main",
]

# By library: where it may enter. A wing ends with a slash.
DOORS = {
    "pyarrow": ["data/", "source/unpacking", "source/cells", "source/tables"],
    "google_crc32c": ["data/"],
    "xxhash": ["data/"],
    "orjson": ["data/", "source/", "pack/"],
    "numpy": ["data/", "source/", "pack/", "verify/", "feed/", "train/"],
    "obstore": ["storage/client", "storage/store"],
    "botocore": ["storage/s3"],
    "fsspec": ["storage/foreign"],
    "tokenizers": ["pack/"],
    "ray": ["pack/"],
    "torch": ["feed/", "train/"],
    "transformers": ["pack/", "train/"],
    "peft": ["train/"],
    "safetensors": ["train/"],
    "psutil": ["operate/"],
    "pynvml": ["operate/"],
    "pydantic": ["settings"],
    "yaml": ["settings", "plan/", "version/"],
    "rich": ["console"],
    "typer": ["cli/"],
    # names that only a run knows: the lazy public names (test_public holds them) and the rooms that a worker preloads
    house.COMPUTED: ["__init__", "pack/engines"],
}

# data/ is arithmetic: what it must not see
PURE = {
    "data/": [
        "asyncio", "datetime", "glob", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "random", "secrets",
        "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
    ],
}  # fmt: skip

# pydantic is not on the list because typer itself loads it for a command's help
HEAVY = (
    "torch",
    "pyarrow",
    "obstore",
    "botocore",
    "fsspec",
    "dvc",
    "transformers",
    "tokenizers",
    "peft",
    "numpy",
    "rich",
    "orjson",
)


def test_every_room_imports_only_what_stands_before_it() -> None:
    """The list is the house, and imports go up the list only, those inside functions included."""
    assert house.order_problems(ORDER) == []


def test_every_library_enters_through_its_door() -> None:
    """An outside library is imported in the rooms named for it and nowhere else; data/ touches no machine."""
    assert house.door_problems(DOORS, PURE) == []


def test_data_opens_and_prints_nothing() -> None:
    """data/ takes bytes and gives values: it calls neither open nor print nor input."""
    pure = [room for room in house.rooms() if room.name.startswith("data/")]

    found = [room.name for room in pure for name in ("open", "print", "input") for _ in house.calls(room, name)]

    assert pure
    assert found == []


def test_files_and_functions_are_short_and_named_by_a_noun() -> None:
    """No file over 400 lines, no function over 40 lines of its own, no utils, no wing that re-exports."""
    assert house.shape_problems(file_lines=400, function_lines=40) == []


def test_every_check_that_is_switched_off_says_why() -> None:
    """A noqa or a type: ignore carries its reason on the line."""
    assert house.silent_ignores() == []


def test_commands_for_people_quote_their_paths() -> None:
    """A path with a space, set into the command of a hint, is one word of it."""
    assert house.unquoted_paths() == []


def test_a_path_that_is_not_quoted_is_found(tmp_path: Path) -> None:
    """Right behind the command, behind its options, and beside one that is quoted."""
    (tmp_path / "room.py").write_text(
        'a = f"See: ls {place.parent}"\n'
        'b = f"Mend it: datakit sync --repair SRC {place}"\n'
        'at = shlex.quote(place)\nc = f"datakit verify {at}, datakit sync {shlex.quote(place)} DEST"\n'
    )

    found = house.unquoted_paths(tmp_path)

    assert [each.partition(":")[0] for each in found] == ["room line 1", "room line 2"]


def test_every_error_says_what_to_do_next() -> None:
    """An error of the tree is made with a hint; the few that have none carry the reason on the line."""
    assert house.unhinted_errors() == []
    assert sum(room.text.count("# no hint:") for room in house.rooms()) < 5


def test_an_error_without_a_hint_is_found(tmp_path: Path) -> None:
    """By its name, by that of a class derived from it, and made anew of another; a reason on the line lets it pass."""
    (tmp_path / "errors.py").write_text(
        "class Root(Exception): ...\nclass Gone(Root): ...\n"
        "class Extra(Root):\n    def __init__(self):\n        super().__init__('x', hint='y')\n"
    )
    (tmp_path / "room.py").write_text(
        "class Own(errors.Gone, Gone): ...\n"
        "raise Gone('a')\nraise errors.Gone('a', hint=None)\nraise Own('a', hint='')\nraise type(error)('a')\n"
        "raise Gone('a', hint=error.hint)\nraise Extra()\nraise Gone('a')  # no hint: no person sees it\n"
    )

    found = house.unhinted_errors(tmp_path)

    assert found == [
        "room line 2 makes Gone without a hint",
        "room line 3 makes Gone without a hint",
        "room line 4 makes Own without a hint",
        "room line 5 makes an error without a hint",
    ]


def test_the_rules_find_what_is_wrong_in_a_bad_house(tmp_path: Path) -> None:
    """Each rule names the file and line that breaks it; a rule that finds nothing here could find nothing at all."""
    bad = tmp_path / "datakit"
    files = {
        "__init__.py": "",
        "errors.py": '"""errors"""\ndef f():\n    from datakit.cli import main\n',
        "data/__init__.py": "from datakit.data.shard import x\n",
        "data/shard.py": '"""shard"""\nimport time\nimport torch\nfrom .index import y\n',
        "data/index.py": '"""index"""\nimport importlib\nimportlib.import_module("obstore.x")\nx = 1  # noqa: E501\n',
        "cli/main.py": '"""main"""\nif True:\n    import unheard_of\n' + "def long():\n" + "    x = 1\n" * 41,
        "utils.py": "x = 1\n" * 11,
    }
    for name, text in files.items():
        path = bad / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    order = house.order_problems(["errors", "data/shard", "data/index", "data/gone", "cli/main"], bad)
    doors = house.door_problems({"torch": ["feed/"], "obstore": ["storage/store"]}, {"data/": ["time"]}, bad)
    shape = house.shape_problems(bad, file_lines=45, function_lines=40)
    silent = house.silent_ignores(bad)

    assert order == [
        "data/gone is on the list and is no file",
        "utils is a file and not on the list",
        "data/shard line 4 imports a relative import, which does not stand before it",
        "errors line 3 imports cli/main, which does not stand before it",
    ]
    assert doors == [
        "cli/main line 3 imports unheard_of, whose door is nowhere",
        "data/index line 3 imports obstore, whose door is storage/store",
        "data/shard line 2 imports time, and data/ is pure",
        "data/shard line 3 imports torch, whose door is feed/",
        "data/shard line 4 imports index, whose door is nowhere",
    ]
    assert shape == [
        "cli/main: long has 41 lines",
        "data/__init__ is not empty",
        "utils is no noun",
        "utils does not say what it is",
    ]
    assert silent == ["data/index line 4"]


def loaded_by(code: str) -> set[str]:
    """The top names of all modules that a fresh interpreter holds after running the code."""
    script = f"{code}\nimport sys, json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment(), timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


def test_importing_datakit_loads_nothing_outside_the_standard_library() -> None:
    """`import datakit` costs milliseconds: no library of others is loaded by it."""
    bare = loaded_by("pass")

    loaded = loaded_by("import datakit; datakit.DatakitError") - bare

    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"datakit"}


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """Help needs typer only, whichever command is asked."""
    code = f"from datakit.cli.main import main; assert main({words!r}) == 0"

    loaded = loaded_by(code)

    assert "typer" in loaded
    assert loaded & set(HEAVY) == set()


def test_settings_load_without_the_heavy_libraries() -> None:
    """The rooms that hold settings load no torch, pyarrow, obstore or transformers: reading a file stays quick."""
    loaded = loaded_by("import datakit.settings as s; s.load()")

    assert "pydantic" in loaded
    assert loaded.isdisjoint(set(HEAVY) - {"numpy", "rich", "orjson"})
