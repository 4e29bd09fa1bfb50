"""console: the only room that draws.

Two streams, one rule (docs/json.md): **stdout is what was asked for** (the report of a command that reads, or one JSON
object under `--json`), **stderr is everything that is told on the way** (progress, notes, cautions, errors, and the
sentence with which a command that changes something ends). Progress is drawn on a terminal only: without one, and under
`NO_COLOR` (https://no-color.org), nothing moves and nothing is coloured; notes and cautions stay, one plain line each,
and work that takes longer than a minute says once a minute how far it is, so that a log shows that it lives.

A terminal that is gone (EIO, after a lost ssh session) ends no work: from then on what is told goes nowhere.

Does not decide what is worth saying: rooms send events, commands choose facts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from datakit import units
from datakit.errors import one_line
from datakit.events import Caution, Event, Note, Progress

REDRAW_S = 0.1  # ten times a second looks continuous; events may come thousands of times a second
LOG_S = 60.0  # a line a minute is 1,440 in a day of training, which a log can hold and a person can read


class Console:
    """Draws what a command says, on two streams.

    Args:
        out: Where the result goes; None for stdout.
        err: Where everything else goes; None for stderr.
        env: The environment, read for `NO_COLOR` and `TERM`.
        clock: Monotonic seconds, for the redraw limit.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        env: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self.lively = self._err.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        self._rich = RichConsole(file=self._err, force_terminal=self.lively, no_color=not self.lively, highlight=False)
        self._clock = clock
        self._bars: Bars | None = None
        self._rows: dict[str, TaskID] = {}
        self._drawn_at: dict[str, float] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self.cautions: list[Caution] = []

    def on_event(self, event: Event) -> None:
        """Show one event; the listener that commands give to the rooms."""
        with self._lock, self._terminal_may_leave():
            if isinstance(event, Progress):
                self._progress(event)
            elif isinstance(event, Note):
                self.say(one_line(event.message))
            else:
                self.cautions.append(event)
                self._labelled("caution", "yellow", event.message, event.hint)

    def say(self, line: str) -> None:
        """One line for people, on stderr."""
        with self._terminal_may_leave():
            self._rich.print(Text(line), soft_wrap=True)

    def error(self, message: str, *, hint: str | None = None) -> None:
        """What went wrong and what to do next, on stderr."""
        with self._terminal_may_leave():
            self._labelled("error", "bold red", message, hint)

    def write(self, text: str) -> None:
        """The result, or a piece of it, on stdout.

        Raises:
            BrokenPipeError: Nobody reads on.
        """
        text = text if text.endswith("\n") else text + "\n"
        if hasattr(self._out, "buffer"):
            self.write_bytes(text.encode(self._out.encoding, self._out.errors or "strict"))
        else:
            self._out.write(text)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """The result as it is, on stdout, with nothing added.

        Raises:
            BrokenPipeError: Nobody reads on.
        """
        self._out.flush()
        left = memoryview(data)
        while left:
            # under PYTHONUNBUFFERED this is the bare file, which may take a part only
            left = left[self._out.buffer.write(left) :]
        self._out.buffer.flush()

    def close(self) -> None:
        """Take the progress rows off the screen; may be called twice."""
        bars, self._bars = self._bars, None
        if bars is not None:
            with self._terminal_may_leave():
                bars.stop()

    @contextlib.contextmanager
    def _terminal_may_leave(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # the descriptor, so that what is still buffered, rich's thread and the interpreter's end have a place too
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._err.fileno())

    def _labelled(self, label: str, style: str, message: str, hint: str | None) -> None:
        self._rich.print(Text.assemble((f"{label}: ", style), one_line(message)), soft_wrap=True)
        if hint:
            self._rich.print(Text.assemble(("hint: ", "cyan"), one_line(hint)), soft_wrap=True)

    def _progress(self, event: Progress) -> None:
        if not self.lively:
            self._progress_line(event)
            return
        now = self._clock()
        finished = event.total is not None and event.done >= event.total
        if not finished and now - self._drawn_at.get(event.task, -REDRAW_S) < REDRAW_S:
            return
        self._drawn_at[event.task] = now
        if self._bars is None:
            self._bars = Bars(*_columns(), console=self._rich, transient=True)
            self._bars.start()
            self._rows.clear()
        if event.task not in self._rows:
            self._rows[event.task] = self._bars.add_task(event.task, total=event.total, unit=event.unit)
        self._bars.update(self._rows[event.task], completed=event.done, total=event.total)

    def _progress_line(self, event: Progress) -> None:
        """Say how far a task is, once a minute from its first event on; what ends before that says nothing."""
        now = self._clock()
        began, done_then = self._begun.setdefault(event.task, (now, event.done))
        if now - self._drawn_at.setdefault(event.task, began) < LOG_S:
            return
        self._drawn_at[event.task] = now
        rate_per_s = (event.done - done_then) / (now - began)
        left_s = (event.total - event.done) / rate_per_s if event.total is not None and rate_per_s > 0 else None
        said = figures(event.done, event.total, unit=event.unit, rate_per_s=rate_per_s, left_s=left_s)
        self.say(f"{event.task}: {said}")


def _columns() -> tuple[ProgressColumn, ...]:
    return TextColumn("{task.description}"), BarColumn(bar_width=20), _Figures()


class _Figures(ProgressColumn):
    """How far, how fast, how long still."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text(
            figures(
                int(task.completed),
                None if task.total is None else int(task.total),
                unit=task.fields["unit"],
                rate_per_s=task.speed,
                left_s=None if left is None or task.finished else float(left),
            )
        )


def figures(done: int, total: int | None, *, unit: str, rate_per_s: float | None, left_s: float | None) -> str:
    """`1.0 MiB of 4.0 MiB, 2.0 MiB/s, 1.5 s left`: one line from what is known."""
    show = units.format_bytes if unit == "B" else units.format_count
    words = [show(done) if total is None else f"{show(done)} of {show(total)}"]
    if unit != "B":
        words[0] += f" {unit}"
    if rate_per_s is not None:
        words.append(units.format_rate(rate_per_s) if unit == "B" else f"{rate_per_s:,.3g} {unit}/s")
    if left_s is not None:
        words.append(f"{units.format_duration(left_s)} left")
    return ", ".join(words)


def format_facts(facts: Mapping[str, object]) -> str:
    """Names and values in two columns, names padded to the widest; wide characters counted as two cells.

    Example:
        >>> print(format_facts({"shards": 3, "bytes": "1.2 MiB"}))
        shards  3
        bytes   1.2 MiB
    """
    return format_table([(name, str(value)) for name, value in facts.items()])


def format_table(rows: Iterable[Sequence[str]], *, header: Sequence[str] | None = None) -> str:
    """Rows as plain text columns that a person reads and `cut` or `awk` can take apart; no trailing blanks."""
    lines = ([header] if header is not None else []) + list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
