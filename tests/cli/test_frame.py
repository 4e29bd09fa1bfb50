"""Every command ends in one of the agreed ways: a result, a sentence with an exit code, never a stack trace."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from datakit import errors
from datakit.cli import frame
from datakit.events import Caution, Note
from support.cli import environment


@dataclass(frozen=True)
class Result:
    """What a room might return."""

    path: Path
    shards: tuple[str, ...]
    seconds: float


MAIN = "import sys; from datakit.cli.main import main; sys.argv[0] = 'datakit'; sys.exit(main())"


def session(body: Callable[[frame.Session], None], *, json: bool = False) -> int:
    """Run the body in a frame, and give the exit code."""
    try:
        with frame.run("test", json=json) as running:
            body(running)
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


def raiser(error: BaseException) -> Callable[[frame.Session], None]:
    """A command's body that raises."""

    def body(_: frame.Session) -> None:
        raise error

    return body


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_of_ours_becomes_its_sentence_and_its_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message, the hint below it, nothing on stdout, and the exit code of the design's table."""
    kind = getattr(errors, name)
    error = kind("obstore", extra="s3") if kind is errors.MissingExtra else kind("ds is odd", hint="datakit verify ds")

    code = session(raiser(error))

    assert code == kind.exit_code
    assert capsys.readouterr() == ("", f"error: {error.message}\nhint: {error.hint}\n")


def test_a_result_for_people_goes_to_stderr_when_something_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    """`done` is told on stderr, so that stdout stays free."""
    code = session(lambda s: s.done({"a": 1}, "Packed 2 samples", facts={"shards": 1}))

    assert code == 0
    assert capsys.readouterr() == ("", "Packed 2 samples\nshards  1\n")


@pytest.mark.parametrize("report", ["two shards\n", "two shards", lambda: "two shards"])
def test_a_report_that_was_asked_for_goes_to_stdout(report: object, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` prints the report with one newline at its end."""
    code = session(lambda s: s.show({}, report))  # type: ignore[arg-type]

    assert code == 0
    assert capsys.readouterr() == ("two shards\n", "")


def test_bytes_that_were_asked_for_arrive_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """`cat` adds nothing, not even a newline."""
    data = bytes(range(256))
    code = "import sys; from datakit.cli import frame\nwith frame.run('cat') as s: s.show_bytes({}, bytes(range(256)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_json_is_one_object_with_result_and_cautions(capsys: pytest.CaptureFixture[str]) -> None:
    """Under --json the report gives way to the object; what people are told stays on stderr."""

    def body(running: frame.Session) -> None:
        running.on_event(Note("halfway"))
        running.on_event(Caution("slow disk", hint="datakit doctor"))
        running.show(Result(Path("a/b"), ("x.tar",), float("nan")), "never seen")

    code = session(body, json=True)

    out, err = capsys.readouterr()
    assert code == 0
    assert json.loads(out) == {
        "schema": 1,
        "command": "test",
        "ok": True,
        "exit_code": 0,
        "result": {"path": "a/b", "shards": ["x.tar"], "seconds": None},
        "cautions": [{"message": "slow disk", "hint": "datakit doctor"}],
        "requests": [],
        "error": None,
    }
    assert err == "halfway\ncaution: slow disk\nhint: datakit doctor\n"


def test_json_tells_an_error_and_keeps_the_result_that_came_before(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads kind, message, hint and subject, and what was found before the failure."""

    def body(running: frame.Session) -> None:
        running.show({"checked": 3}, "never seen")
        raise errors.IntegrityError("x.tar is short", hint="Fetch it again", subject=Path("x.tar"))

    code = session(body, json=True)

    told = json.loads(capsys.readouterr().out)
    assert code == told["exit_code"] == 4
    assert (told["ok"], told["result"]) == (False, {"checked": 3})
    assert told["error"] == {
        "kind": "IntegrityError",
        "message": "x.tar is short",
        "hint": "Fetch it again",
        "subject": "x.tar",
    }


def test_ctrl_c_is_one_word_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    """KeyboardInterrupt never shows a stack trace."""
    code = session(raiser(KeyboardInterrupt()))

    assert code == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_a_defect_is_one_sentence_and_its_traceback_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An exception that is not ours exits 1; the named file holds the traceback and only the user may read it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    code = session(raiser(ZeroDivisionError("division\nby zero")))

    kept = list(tmp_path.iterdir())
    assert code == 1
    assert capsys.readouterr().err == (
        "error: datakit failed in a way it should not: ZeroDivisionError: division by zero\n"
        f"hint: Please report it with the traceback in {kept[0]}\n"
    )
    assert "Traceback (most recent call last)" in kept[0].read_text()
    assert kept[0].stat().st_mode & 0o777 == 0o600


def test_debug_shows_the_traceback_and_keeps_no_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DATAKIT_DEBUG=1 prints the traceback of any error, before the sentence."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DATAKIT_DEBUG", "1")

    session(raiser(ZeroDivisionError()))
    session(raiser(errors.InputError("raw is empty")))

    told = capsys.readouterr().err
    assert told.count("Traceback (most recent call last)") == 2
    assert told.endswith("error: raw is empty\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, "NoSpace", 5),
        (errno.EDQUOT, "NoSpace", 5),
        (errno.EACCES, "NotAllowed", 6),
        (errno.EROFS, "NotAllowed", 6),
        (errno.ENOENT, "NotFound", 2),
        (errno.ENOTDIR, "NotFound", 2),
    ],
)
def test_an_untranslated_error_of_the_system_still_gets_its_code(number: int, kind: str, code: int) -> None:
    """The last net under the rooms' own translations: a full disk is 5 wherever it comes from."""
    problem = frame.explain(OSError(number, os.strerror(number), "/data/x"))

    assert (problem.kind, problem.exit_code) == (kind, code)
    assert "/data/x" in problem.message
    assert os.strerror(number) in problem.message


def test_an_error_of_the_system_that_fits_no_code_is_a_defect() -> None:
    """An errno that says nothing about disk, permission or path is not dressed up as one."""
    problem = frame.explain(OSError(errno.EBADF, os.strerror(errno.EBADF)))

    assert (problem.kind, problem.exit_code) == ("OSError", 1)
    assert problem.message.startswith("datakit failed in a way it should not: OSError")


def test_running_out_of_memory_is_said_as_such() -> None:
    """MemoryError is no defect."""
    assert frame.explain(MemoryError()).message == "the machine ran out of memory"


def test_a_reader_that_leaves_ends_the_command_in_silence() -> None:
    """`datakit inspect DS | head -1` gives one line, no message, and the code of SIGPIPE."""
    script = "from datakit.cli import frame\nwith frame.run('t') as s: s.show({}, 'line\\n' * 100_000)"
    line = f'"{sys.executable}" -c "$SCRIPT" | head -1; exit ${{PIPESTATUS[0]}}'

    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env=environment({"SCRIPT": script})
    )

    assert (done.stdout, done.stderr, done.returncode) == ("line\n", "", 141)


class Layout(Enum):
    """An enum as a result may hold."""

    STABLE = "stable"


@dataclass
class Secretive:
    """A dataclass that keeps one field out of its repr."""

    url: str
    secret: str = field(repr=False)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Layout.STABLE, "stable"),
        (b"\x00\xff", "00ff"),
        (memoryview(b"\x01"), "01"),
        ({Path("a"): (1, 2.5)}, {"a": [1, 2.5]}),
        ({"b", "a"}, ["a", "b"]),
        (float("inf"), None),
        (True, True),
        (("caf\udce9", Path("\udcff")), ["caf\\udce9", "\\udcff"]),
        (Secretive("s3://b", "hunter2"), {"url": "s3://b"}),
        (Result, str(Result)),
    ],
)
def test_values_are_said_as_json_can_say_them(value: object, said: object) -> None:
    """Paths, bytes, enums, sets and dataclasses have one spelling, and what a repr hides stays hidden."""
    assert frame.plain(value) == said


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_json_can_say_is_said_unchanged(value: object) -> None:
    """A JSON value passes through the object and back."""
    text = frame.to_json("x", value, cautions=[], problem=None)

    assert json.loads(text)["result"] == value


def test_a_command_is_added_with_its_help_and_an_example() -> None:
    """The docstring is the help, and the example stands on a line of its own at its end, however long."""
    app = typer.Typer(rich_markup_mode=None)
    example = "datakit thing " + "--word " * 30 + "END"

    @app.callback()
    def root() -> None: ...

    @frame.command(app, "thing", example=example)
    def thing(src: str, json: frame.JsonOption = False) -> None:
        """Do the thing."""

    text = (
        typer.main.get_command(app)
        .commands["thing"]
        .get_help(  # type: ignore[attr-defined]
            typer.Context(typer.main.get_command(app).commands["thing"])  # type: ignore[attr-defined]
        )
    )

    assert "Do the thing." in text
    assert "--json" in text
    assert text.splitlines()[-1].strip() == f"Example: {example}".strip()


def test_a_result_that_cannot_be_written_ends_with_one_sentence_and_5(clean_room: Path) -> None:
    """A full disk behind stdout is told like any full disk, with and without --json, and no trace follows at exit."""
    for words in (["doctor", "--settings"], ["doctor", "--settings", "--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-c", MAIN, *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                check=False,
            )

        assert done.returncode == 5, done.stderr
        assert done.stderr == "error: the result could not be written to stdout: No space left on device\n"


def test_a_command_started_with_closed_streams_works(clean_room: Path) -> None:
    """Some daemons close all three: no file that is opened later takes the number of a standard stream."""
    Path("raw.jsonl").write_text('{"id": "a"}\n')

    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", MAIN, "pack", "raw.jsonl", "data", "--json"],
        env=environment(),
        check=False,
    )

    assert done.returncode == 0
    assert Path("data/manifest.json").read_bytes().startswith(b"{")


EDITS = [
    ("tokenize: {seq_len: 96}", 3, "tokenize.seq_len was 120, is 96"),
    ("tokenize: {seq_len: 12", 3, "params.yaml"),
    ("tokenize: {seq_len: 120}  # the same\ntrain: {steps: 7}", 0, ""),
]


@pytest.mark.parametrize(("edited", "code", "said"), EDITS, ids=["other", "half written", "of another section"])
def test_settings_edited_under_a_dvc_stage_end_it_with_3(
    clean_room: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edited: str,
    code: int,
    said: str,
) -> None:
    """DVC reads the file after the command, and would record new values for what the old ones made."""
    monkeypatch.setenv("DVC_STAGE", "tokenize@train")
    (clean_room / "params.yaml").write_text("tokenize: {seq_len: 120}")
    ended = 0

    try:
        with frame.run("tokenize") as session:
            session.settings()
            (clean_room / "params.yaml").write_text(edited)
            session.done({}, "Tokenized")
    except SystemExit as leaving:
        ended = int(str(leaving.code))

    assert ended == code
    assert said in capsys.readouterr().err


def test_settings_may_be_edited_under_a_command_that_no_stage_runs(clean_room: Path) -> None:
    """Nobody reads the file after it."""
    (clean_room / "params.yaml").write_text("tokenize: {seq_len: 120}")

    with frame.run("tokenize") as session:
        session.settings()
        (clean_room / "params.yaml").write_text("tokenize: {seq_len: 96}")
