"""main: the `datakit` command.

Registers every command of this folder whether or not its extras are installed; a missing one is said when the command
needs it. Wrong usage is one sentence and exit code 2. Loads typer and nothing heavier.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from datakit import __version__
from datakit.errors import UsageError

if TYPE_CHECKING:
    import typer

# in the order of the journey, which is the order of `datakit --help`
COMMANDS = (
    "pack",
    "reindex",
    "verify",
    "inspect",
    "cat",
    "diff",
    "sync",
    "tier",
    "tokenize",
    "train",
    "ckpt",
    "lineage",
    "doctor",
)


def build_app() -> typer.Typer:
    """The app with all its commands."""
    import typer
    from typer.core import TyperGroup

    class Journey(TyperGroup):
        def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # typer's own Context
            return sorted(super().list_commands(ctx), key=COMMANDS.index)  # typer puts groups last

    app = typer.Typer(
        name="datakit",
        cls=Journey,
        help="From raw files to a finished LoRA adapter, with every byte and sample accounted for.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help: the same on every terminal, in a pipe and in docs/
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            sys.stdout.write(f"datakit {__version__}\n")
            raise typer.Exit

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", is_eager=True, callback=show_version
        ),
    ) -> None: ...

    for name in COMMANDS:
        importlib.import_module(f"datakit.cli.{name}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after `datakit`; None takes them from the process, which then ends with this call.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from datakit.cli.frame import open_closed_streams

        open_closed_streams()
    try:
        return _run(words)
    except KeyboardInterrupt:
        return _interrupted(words)
    finally:
        if arguments is None:
            from datakit.cli.frame import die_quietly_from_now_on

            die_quietly_from_now_on()


def _run(words: list[str]) -> int:
    import typer

    from datakit.cli import frame

    try:
        code = int(build_app()(args=words, prog_name="datakit", standalone_mode=False) or 0)
        # typer turns a KeyboardInterrupt between our frames into this
        return _interrupted(words) if code == frame.INTERRUPTED else code
    except typer.TyperException as error:
        return _usage(error, words)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1


def _interrupted(words: list[str]) -> int:
    """Say so where no command had begun that could; the frame is imported here, it may be what Ctrl-C cut short."""
    from datakit.cli import frame

    try:
        with frame.run(" ".join(word for word in words[:1] if word in COMMANDS) or "datakit", json="--json" in words):
            raise KeyboardInterrupt
    except SystemExit:
        return frame.INTERRUPTED


def _usage(error: typer.TyperException, words: list[str]) -> int:
    """Say what is wrong with the command line."""
    from datakit.cli import frame

    context = getattr(error, "ctx", None)
    known = " ".join(["datakit", *(word for word in words[:1] if word in COMMANDS)])
    path = context.command_path if context is not None else known
    if context is not None and context.command.no_args_is_help and len(words) < len(path.split()):
        sys.stderr.write(context.get_help() + "\n")  # a group without a subcommand: the help is the answer
        return UsageError.exit_code
    try:
        with frame.run(path.removeprefix("datakit").strip() or "datakit", json="--json" in words):
            message = " ".join(error.format_message().split()).rstrip(".")
            raise UsageError(message, hint=f"{path} --help")
    except SystemExit:
        return UsageError.exit_code
