"""The documents say what the code does: generated parts are fresh, examples parse, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.cli import datakit
from support.docs import DOCS, Command, commands, generated, part_of, root_command
from support.house import ROOT

COMMANDS = commands()
OWN = Path(__file__)
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def command_ids() -> list[str]:
    """Names for the test report."""
    return [" ".join(command.words) for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=command_ids())
def test_every_command_has_a_help_with_an_example_that_parses(command: Command) -> None:
    """The help says what the command does and ends with one command line that the parser takes."""
    words, text = command.words, command.help
    if "COMMAND [ARGS]" in text:
        assert "Commands:" in text  # a group shows its subcommands, which have examples of their own
        return

    summary = text.split("\n\n")[1].strip()
    example = re.fullmatch(r"Example: datakit (.*)", text.splitlines()[-1].strip())

    assert summary.endswith(".")
    assert len(summary.split()) > 3
    assert example, text
    given = shlex.split(example[1])
    assert tuple(given[: len(words)]) == words
    parse(given)


def parse(words: list[str]) -> None:
    """Let the parser take a command line; nothing is run."""
    command = root_command()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("datakit", list(words))


@pytest.mark.parametrize("command", COMMANDS, ids=command_ids())
def test_every_command_answers_in_json_and_can_be_tried_dry(command: Command) -> None:
    """Each command takes --json; each that makes, moves or removes something takes --dry-run too."""
    words, text = command.words, command.help
    if "COMMAND [ARGS]" in text:
        return

    reading = {"verify", "inspect", "cat", "diff", "doctor", "lineage", "ckpt ls", "ckpt verify", "tier status"}

    assert "--json" in text
    assert ("--dry-run" in text) == (" ".join(words) not in reading)


@pytest.mark.parametrize("key", generated(), ids=lambda key: f"{key[0].name}:{key[1]}")
def test_the_generated_parts_of_the_documents_are_fresh(key: tuple[Path, str]) -> None:
    """What `make docs` would write is what stands there."""
    page, name = key

    assert page.exists(), f"{page.relative_to(ROOT)} is missing"
    assert part_of(page.read_text(encoding="utf-8"), name) == generated()[key], "run: make docs"


def test_every_page_of_a_command_belongs_to_a_command() -> None:
    """No page is left of a command that is gone."""
    pages = {page.stem for page in (DOCS / "commands").glob("*.md")}

    assert pages == {command.words[0] for command in COMMANDS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links name files of this repository, and anchors name headings of them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)

    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page() -> None:
    """A page that nobody links to is not found."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")

    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.md)", text)}

    assert linked == set(DOCS.rglob("*.md")) - {DOCS / "index.md"}


def test_the_json_object_has_the_documented_fields_in_their_types() -> None:
    """The example and the table of docs/json.md name the very fields that a command prints."""
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    example = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])  # type: ignore[index]
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    types = {"integer": int, "text": str, "true or false": bool, "list": list, "object": dict, "null": type(None)}

    failed = datakit("doctor", "/nowhere", "--json").json
    good = datakit("doctor", "--settings", "--json").json

    for told in (example, failed, good):
        assert list(told) == list(table)
        for name, words in table.items():
            kinds = words.strip().replace(", ", " or ").split(" or ") if words.strip() not in types else [words.strip()]
            assert isinstance(told[name], tuple(types[kind] for kind in kinds)), name
    assert set(failed["error"]) == set(example["error"]) == {"kind", "message", "hint", "subject"}
    assert set(example["cautions"][0]) == {"message", "hint"}


def test_every_setting_named_in_the_documents_exists() -> None:
    """`train.rank` and DATAKIT_TRAIN__RANK in any page are settings that there are."""
    from support.docs import setting_rows

    known = {row.name for row in setting_rows()}
    sections = "pack|tokenize|sync|train"

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", text))
        named |= {match.lower().replace("__", ".") for match in re.findall(r"DATAKIT_([A-Z]+__[A-Z_]+)", text)}
        assert {name for name in named if not name.startswith("stores.")} <= known, page.name


def test_make_has_a_target_for_each_word_it_offers() -> None:
    """`make help` lists the targets, and make knows each of them without doing anything."""
    offered = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    targets = [line.split()[0] for line in offered.splitlines()]

    assert {"demo", "test", "prove", "check", "bench", "docs", "clean"} <= set(targets)
    for target in targets:
        dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr


def test_ci_runs_what_contributors_are_told_to_run() -> None:
    """.ci/run calls make for the checks, the tests, the proofs and the demo, and is a valid program."""
    script = ROOT / ".ci" / "run"

    called = re.findall(r"^make (\w+)", script.read_text(encoding="utf-8"), re.MULTILINE)

    assert called == ["check", "test", "prove", "demo", "demo"]
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_lock_pins_every_package_once_and_names_no_host(pyproject: dict[str, Any]) -> None:
    """Names with exact versions only, and every library that pyproject.toml asks for, but for `ray` and `gpu`."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()

    pins = [line for line in lines if not line.startswith("#")]
    names = [normal(line.partition("==")[0]) for line in pins]

    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    assert len(names) == len(set(names))
    assert names == sorted(names)
    assert "torch==2.13.0" in pins
    project = pyproject["project"]
    extras = [project["optional-dependencies"][extra] for extra in ("s3", "train", "dvc", "dev")]
    asked = [
        *project["dependencies"],
        *pyproject["build-system"]["requires"],
        *(line for extra in extras for line in extra),
    ]
    assert {normal(re.split(r"[\[>=<]", line)[0]) for line in asked} <= set(names)


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


SOURCES = [
    *(path for folder in ("datakit", "tests", "benchmarks", "pipelines") for path in (ROOT / folder).rglob("*.py")),
    ROOT / "pyproject.toml",
    ROOT / "Makefile",
]


def test_every_document_that_the_code_cites_is_in_the_repository() -> None:
    """Somebody who reads "law 9 of docs/design.md" finds the page here, and the law in it."""
    laws = set(re.findall(r"^(\d+)\. \*\*", (DOCS / "design.md").read_text(encoding="utf-8"), re.MULTILINE))

    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        cited = re.findall(r"(?<![\w/.])((?:docs/)?[\w/-]*\b[A-Za-z][\w-]*\.md)\b", text) if path != OWN else []
        assert [name for name in cited if not any((root / name).is_file() for root in (ROOT, DOCS))] == [], path
        named = re.findall(r"\blaws? (\d+)(?: to (\d+))?\s+of\s+docs/design\.md", text)
        assert {number for pair in named for number in pair if number} <= laws, path


def test_no_text_holds_the_marks_of_a_merge() -> None:
    """A conflict that was resolved by nobody is three lines of marks; none is in a document or a source."""
    marks = re.compile(r"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)

    assert [path for path in (*PAGES, *SOURCES) if marks.search(path.read_text(encoding="utf-8"))] == []
