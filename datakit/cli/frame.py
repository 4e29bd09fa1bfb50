"""frame: what every command does in the same way.

A command is a function with typer annotations whose body stands inside `with frame.run("pack", json=json) as session`.
The frame builds the console, turns errors into one sentence and an exit code (docs/errors.md), and prints the one
JSON object of `--json` (docs/json.md). No command ends with a stack trace: not on an error of ours, not on Ctrl-C, not
when the reader of a pipe leaves, not on a defect; for a defect the traceback is kept in a file that is named.
`DATAKIT_DEBUG=1` prints every traceback.

Does not know any command. Heavy rooms are imported by the command, inside its function.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import json as jsonlib
import math
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from datakit.errors import DatakitError, NoSpace, Refused, printable

if TYPE_CHECKING:
    from datakit.events import Event
    from datakit.settings import Settings
    from datakit.storage.access import StoreOptions
    from datakit.storage.counts import Account, RequestCounts
    from datakit.storage.prices import Charge

SCHEMA = 1  # of the JSON object; docs/json.md
INTERRUPTED = 130  # 128 + SIGINT
_STDERR = 2
READER_LEFT = 141  # 128 + SIGPIPE, as every tool in a pipe

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and change nothing.")]
ParamsOption = Annotated[
    Path | None,
    typer.Option("--params", metavar="FILE", help="Settings file.  [default: params.yaml here, if there is one]"),
]

Function = TypeVar("Function", bound=Callable[..., None])


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Function], Function]:
    """Add a function to the app as a command; its docstring is the help, which ends with the example.

    Args:
        app: The app, or a group from `group`.
        name: The word people type.
        example: One complete command line, starting with `datakit`.
    """

    def add(function: Function) -> Function:
        # \b keeps the line in one piece when help is wrapped
        app.command(name, epilog=f"\b\nExample: {example}")(function)
        return function

    return add


def group(app: typer.Typer, name: str, *, help: str) -> typer.Typer:  # noqa: A002 -- typer's own word for it
    """A command with subcommands, such as `ckpt`."""
    sub = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    app.add_typer(sub, name=name)
    return sub


class Session:
    """One run of one command: what it says, and how it ends.

    Attributes:
        command: The command's words, such as `pack` or `ckpt ls`.
        json: Whether stdout carries the JSON object instead of the report for people.
        on_event: The listener to give to a room's `on_event`.
    """

    def __init__(self, command: str, *, json: bool) -> None:
        from datakit.console import Console

        self.command = command
        self.json = json
        self._console = Console()
        self._result: object = None
        self._used: tuple[Path | None, dict[str, object], object] | None = None
        self._asked_before = _by_store()

    def on_event(self, event: Event) -> None:
        """Show one event."""
        self._console.on_event(event)

    def settings(self, params: Path | None = None, *, flags: Mapping[str, object] | None = None) -> Settings:
        """The settings for this run: flag over environment over file over default.

        Args:
            params: The settings file that the user named, or None for `params.yaml` in the current directory.
            flags: What was given on the command line, by setting: `{"pack.shard_size": "1MiB"}`. None means not given.

        Raises:
            UsageError: A setting is unknown or has a value that it cannot have.
            NotFound: The named settings file is not there.
        """
        from datakit.settings import load

        given = {name: value for name, value in (flags or {}).items() if value is not None}
        settings = load(params, flags=given)
        self._used = (params, given, getattr(settings, self._section, None))
        return settings

    @property
    def _section(self) -> str:
        """The section of the settings that decides this command's result: it has the command's name."""
        return self.command.partition(" ")[0]

    def check_settings(self) -> None:
        """See, inside a DVC stage, that the settings file still says what this command has used.

        DVC reads the file when the command has ended, and would record the new values for what the old ones made.

        Raises:
            Refused: It does not.
        """
        if self._used is None or self._used[2] is None or not os.environ.get("DVC_STAGE"):
            return
        from datakit.settings import FILE, load

        params, flags, before = self._used
        try:
            after = getattr(load(params, flags=flags), self._section)
            changes = [
                f"{self._section}.{field.name} was {old}, is {new}"
                for field in dataclasses.fields(before)  # type: ignore[arg-type]  # every section is a dataclass
                if (old := getattr(before, field.name)) != (new := getattr(after, field.name))
            ]
        except DatakitError as error:
            changes = [error.message]
        if changes:
            raise Refused(
                f"{params or FILE} changed while the stage ran ({'; '.join(changes)}): DVC would take this for the "
                "result of the new settings",
                hint="Run the stage again: it begins with the settings as they are now",
                subject=str(params or FILE),
            )

    def stores(self, place: str, params: Path | None = None) -> Mapping[str, StoreOptions] | None:
        """The named stores of the settings where a place needs any; a plain path needs no settings.

        Args:
            place: A path or URL.
            params: The settings file that the user named, as in `settings`.
        """
        return self.settings(params).stores if "://" in place or params is not None else None

    def done(self, result: object, sentence: str, *, facts: Mapping[str, object] | None = None) -> None:
        """End of a command that changed something: people read it on stderr, `--json` gets `result`."""
        from datakit.console import format_facts

        self._result = result
        self._console.close()
        self._console.say(sentence)
        if facts:
            self._console.say(format_facts(facts))

    def show(self, result: object, report: str | Mapping[str, object] | Callable[[], str]) -> None:
        """Answer of a command that reads: the report goes to stdout, or `result` as JSON instead of it.

        Args:
            result: A dataclass, mapping or list for `--json`.
            report: The text, the facts to print in two columns, or a function that renders the text when it is wanted.
        """
        from datakit.console import format_facts

        self._result = result
        self._console.close()
        if self.json:
            return
        text = report() if callable(report) else report
        self._print(text if isinstance(text, str) else format_facts(text))

    def show_bytes(self, result: object, data: bytes | memoryview) -> None:
        """Answer of a command that hands out bytes as they are (`cat`); under `--json` only `result` is printed."""
        self._result = result
        self._console.close()
        if not self.json:
            with _reader_may_leave():
                self._console.write_bytes(data)

    def _print(self, text: str) -> None:
        with _reader_may_leave():
            self._console.write(text)

    def _end(self, problem: Problem | None) -> None:
        self._console.close()
        asked = _charges(self._asked_before)
        for charge in asked:
            self._console.say(f"  requests to {charge.store}: {charge.told}")
        if problem is not None:
            self._console.error(problem.message, hint=problem.hint)
        if self.json:
            cautions = self._console.cautions
            self._print(to_json(self.command, self._result, cautions=cautions, problem=problem, requests=asked))


@contextmanager
def run(command: str, *, json: bool = False) -> Iterator[Session]:
    """Stand around a command's body; leaves by SystemExit with the right code unless all went well.

    Args:
        command: The command's words, such as `pack` or `ckpt ls`.
        json: Whether `--json` was given.
    """
    session = Session(command, json=json)
    problem: Problem | None = None
    try:
        yield session
        session.check_settings()
    except Exception as error:  # noqa: BLE001 -- the one place where every error becomes a sentence
        problem = explain(error)
    except KeyboardInterrupt as error:
        problem = explain(error)
    try:
        session._end(problem)
    except DatakitError as error:  # the result could not be written: that is how the command ends
        problem = problem or explain(error)
        session._console.error(error.message, hint=error.hint)
    if problem is not None:
        raise SystemExit(problem.exit_code)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is told: its kind, its words and the exit code."""

    kind: str
    message: str
    hint: str | None
    subject: object
    exit_code: int


def explain(error: BaseException) -> Problem:
    """Words and exit code for any exception; a defect's traceback is kept in a file, which the hint names."""
    if os.environ.get("DATAKIT_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return Problem("KeyboardInterrupt", "interrupted", None, None, INTERRUPTED)
    known = error if isinstance(error, DatakitError) else _from_os(error) if isinstance(error, OSError) else None
    if known is not None:
        return Problem(type(known).__name__, known.message, known.hint, known.subject, known.exit_code)
    if isinstance(error, MemoryError):
        return Problem("MemoryError", "the machine ran out of memory", "Try fewer --workers", None, 1)
    text = " ".join(str(error).split())
    message = f"datakit failed in a way it should not: {type(error).__name__}" + (f": {text}" if text else "")
    return Problem(type(error).__name__, message, _keep_traceback(error), None, 1)


def _from_os(error: OSError) -> DatakitError | None:
    """Words for an error of the operating system that no room translated; None where it has none but its name."""
    from datakit.storage.disk import translated

    found = translated(error, "the system")
    return None if type(found) is DatakitError else found


def _keep_traceback(error: BaseException) -> str:
    advice = "Please report it; DATAKIT_DEBUG=1 prints the traceback"
    if os.environ.get("DATAKIT_DEBUG"):
        return advice
    try:
        # mkstemp gives mode 0600: a foreign message may quote what is nobody else's business
        handle, path = tempfile.mkstemp(prefix="datakit-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return advice
    return f"Please report it with the traceback in {path}"


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End quietly when the reader of our stdout has gone, as in `datakit inspect DS | head -1`; say any other trouble.

    Raises:
        NoSpace: What stdout leads to is full.
        DatakitError: It cannot be written to.
    """
    try:
        yield
    except OSError as error:
        # the interpreter flushes stdout once more at exit; give it a place where that works
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(READER_LEFT) from None
        kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else DatakitError
        raise kind(f"the result could not be written to stdout: {error.strerror}", subject="stdout") from None


def open_closed_streams() -> None:
    """Let a process that was started with closed streams (`>&-`, some daemons) write into nothing.

    Otherwise the next file that is opened would take the number of a standard stream, and print would write into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 -- it lives as long as the process


def _by_store() -> dict[Account, RequestCounts]:
    """What this process has asked of stores so far; nothing is loaded to find that it asked none."""
    loaded = sys.modules.get("datakit.storage.counts")
    return {} if loaded is None else loaded.by_store()


def _charges(before: Mapping[Account, RequestCounts]) -> list[Charge]:
    """What was asked of stores since then, and what that costs."""
    if (asked := _by_store()) == before:
        return []
    from datakit.storage.prices import charges

    return charges({store: made - before[store] if store in before else made for store, made in asked.items()})


def to_json(
    command: str,
    result: object,
    *,
    cautions: Iterable[Any],
    problem: Problem | None,
    requests: Sequence[Charge] = (),
) -> str:
    """The one JSON object of `--json`, with a newline at its end."""
    error = None
    if problem is not None:
        error = {"kind": problem.kind, "message": problem.message, "hint": problem.hint, "subject": problem.subject}
    document = {
        "schema": SCHEMA,
        "command": command,
        "ok": problem is None,
        "exit_code": 0 if problem is None else problem.exit_code,
        "result": result,
        "cautions": list(cautions),
        "requests": requests,
        "error": error,
    }
    return jsonlib.dumps(plain(document), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def plain(value: object) -> Any:
    """A value as JSON can say it: dataclasses by field, paths as text, bytes as hex, NaN and infinities as null.

    Fields that a class leaves out of its repr are left out here too: that is how secrets are kept out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return printable(str(value))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    return printable(str(value))


def die_quietly_from_now_on() -> None:
    """From here a Ctrl-C ends the process at once: while threads are joined, Python would print a stack trace.

    Where somebody else answers it, such as a training that another signal has ended, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
