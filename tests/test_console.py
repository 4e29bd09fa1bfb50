"""The console draws on a terminal, says plain lines elsewhere, and keeps its two streams apart."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.console import Console, figures, format_facts, format_table
from datakit.events import Caution, Note, Progress


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Clock:
    """Seconds that stand still until they are moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def draw(*, terminal: bool, env: dict[str, str] | None = None) -> tuple[Console, Screen, Screen, Clock]:
    """A console on two screens in memory."""
    out, err, clock = Screen(terminal=terminal), Screen(terminal=terminal), Clock()
    return Console(out=out, err=err, env=env or {"TERM": "xterm"}, clock=clock), out, err, clock


def test_people_are_told_on_stderr_and_the_result_stands_alone_on_stdout() -> None:
    """Notes, cautions and errors never reach stdout; the result never reaches stderr."""
    console, out, err, _ = draw(terminal=False)

    console.on_event(Note("resuming from step 20"))
    console.on_event(Caution("upload failed", hint="datakit sync a b"))
    console.error("raw is empty", hint="Put a record into it")
    console.write("42")

    assert out.getvalue() == "42\n"
    assert err.getvalue() == (
        "resuming from step 20\n"
        "caution: upload failed\nhint: datakit sync a b\n"
        "error: raw is empty\nhint: Put a record into it\n"
    )


def test_names_do_not_draw() -> None:
    """Of a newline or an escape in a file's name a terminal sees letters."""
    console, _, err, _ = draw(terminal=False)

    console.on_event(Note("a\nb"))
    console.on_event(Caution("a\nb", hint="rm 'a\x1b[2Jb'"))
    console.error("a\x9bb", hint="\udcff")

    assert err.getvalue().splitlines() == [
        r"a\x0ab",
        r"caution: a\x0ab",
        r"hint: rm 'a\x1b[2Jb'",
        r"error: a\x9bb",
        r"hint: \udcff",
    ]


def test_a_caution_is_kept_for_the_json_result() -> None:
    """What was cautioned about can be read afterwards, in order."""
    console, *_ = draw(terminal=False)
    first, second = Caution("one"), Caution("two", hint="do")

    console.on_event(first)
    console.on_event(second)

    assert console.cautions == [first, second]


@pytest.mark.parametrize(
    ("terminal", "env"),
    [(False, {"TERM": "xterm"}), (True, {"TERM": "xterm", "NO_COLOR": "1"}), (True, {"TERM": "dumb"})],
)
def test_progress_is_silent_where_nothing_can_move(terminal: bool, env: dict[str, str]) -> None:
    """Without a terminal, under NO_COLOR and on a dumb terminal progress writes nothing, and no escape is sent."""
    console, out, err, clock = draw(terminal=terminal, env=env)

    for done in range(11):
        clock.now += 1
        console.on_event(Progress("pack", done, 10, "samples"))
    console.on_event(Caution("careful"))
    console.close()

    assert out.getvalue() == ""
    assert err.getvalue() == "caution: careful\n"


def test_long_work_without_a_terminal_says_once_a_minute_how_far_it_is() -> None:
    """Amount, rate since its beginning and time left, in one plain line; a task that is over says nothing more."""
    console, out, err, clock = draw(terminal=False)

    for step in range(10, 310):
        console.on_event(Progress("train", step, 400, "steps"))
        console.on_event(Progress("short", step, None, "samples"))
        clock.now += 0.5
    console.close()

    assert out.getvalue() == ""
    assert err.getvalue().splitlines() == [
        "train: 130 of 400 steps, 2 steps/s, 2 min 15 s left",
        "short: 130 samples, 2 samples/s",
        "train: 250 of 400 steps, 2 steps/s, 1 min 15 s left",
        "short: 250 samples, 2 samples/s",
    ]


def test_work_that_stands_still_says_so() -> None:
    """Nothing came in a minute: a rate of 0 and no guess at an end."""
    console, _, err, clock = draw(terminal=False)

    console.on_event(Progress("download", 2**20, 2**30, "B"))
    clock.now += 61
    console.on_event(Progress("download", 2**20, 2**30, "B"))

    assert err.getvalue() == "download: 1.0 MiB of 1.0 GiB, 0 B/s\n"


def test_an_empty_no_color_counts_as_unset() -> None:
    """The convention of no-color.org: the variable speaks when it is not empty."""
    console, *_ = draw(terminal=True, env={"TERM": "xterm", "NO_COLOR": ""})

    assert console.lively


def test_progress_on_a_terminal_shows_task_and_amount_and_leaves_no_row_behind() -> None:
    """A row appears, and closing takes it away again; a second close changes nothing."""
    console, out, err, clock = draw(terminal=True)

    console.on_event(Progress("download", 0, 4 * 2**20, "B"))
    clock.now += 1
    console.on_event(Progress("download", 4 * 2**20, 4 * 2**20, "B"))
    console.close()
    console.close()

    assert "download" in err.getvalue()
    assert "4.0 MiB of 4.0 MiB" in err.getvalue()
    assert err.getvalue().rstrip().endswith("\x1b[2K")
    assert out.getvalue() == ""


def test_a_thousand_events_in_no_time_are_one_drawing() -> None:
    """Between two drawings of a task a tenth of a second passes, except that its end is always drawn."""
    console, _, _, _ = draw(terminal=True)
    console.on_event(Progress("pack", 0, 1000, "samples"))
    assert console._bars is not None
    seen = []
    console._bars.update = lambda row, **values: seen.append(values["completed"])  # type: ignore[method-assign]

    for done in range(1, 1001):
        console.on_event(Progress("pack", done, 1000, "samples"))
    console.close()

    assert seen == [1000]


def test_text_of_others_is_printed_as_it_is() -> None:
    """Square brackets, which the drawing library would take for markup, and long lines come through unchanged."""
    console, _, err, _ = draw(terminal=False)
    line = "key [bold]x[/bold] :smile: " + "long " * 60 + "中文"

    console.say(line)
    console.error(line)

    assert err.getvalue() == f"{line}\nerror: {line}\n"


@pytest.mark.parametrize(
    ("given_figures", "text"),
    [
        ((2**20, 4 * 2**20, "B", 2 * 2**20, 1.5), "1.0 MiB of 4.0 MiB, 2.0 MiB/s, 1.5 s left"),
        ((1200, None, "samples", 300.0, None), "1,200 samples, 300 samples/s"),
        ((3, 30, "steps", None, None), "3 of 30 steps"),
        ((3, 30, "steps", 0.1234, 219.0), "3 of 30 steps, 0.123 steps/s, 3 min 39 s left"),
    ],
)
def test_figures_say_amount_rate_and_time_left(given_figures: tuple[object, ...], text: str) -> None:
    """Only what is known is said, in the unit of the task."""
    done, total, unit, rate, left = given_figures

    line = figures(done, total, unit=unit, rate_per_s=rate, left_s=left)  # type: ignore[arg-type]

    assert line == text


def test_facts_stand_in_two_columns_whatever_their_script() -> None:
    """A Chinese character takes two cells of a terminal, and the second column is straight all the same."""
    text = format_facts({"shards": 3, "数据": "1.2 MiB"})

    assert text == "shards  3\n数据    1.2 MiB"


@given(st.lists(st.tuples(st.text("ab ", min_size=1).filter(str.strip), st.text("xyz", min_size=1)), min_size=1))
def test_a_table_can_be_taken_apart_again(rows: list[tuple[str, str]]) -> None:
    """Columns begin at the same place in every line, and no line ends with a blank."""
    table = format_table(rows, header=("NAME", "VALUE"))

    lines = table.split("\n")
    start = max(4, *(len(name) for name, _ in rows)) + 2
    assert [line[start:] for line in lines] == ["VALUE", *(value for _, value in rows)]
    assert all(not re.search(r"\s$", line) for line in lines)


def test_a_table_of_nothing_is_its_header() -> None:
    """No rows is not an error."""
    assert format_table([], header=("NAME", "VALUE")) == "NAME  VALUE"
    assert format_table([]) == ""
