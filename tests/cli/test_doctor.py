"""`datakit doctor` reports on stdout, fails with 1, and lists the settings with their origins."""

from __future__ import annotations

from pathlib import Path

from support.cli import datakit


def test_the_report_stands_on_stdout_and_a_failure_ends_with_1(tmp_path: Path) -> None:
    """The findings are what was asked for; that the machine would fail is told on stderr, with the way to the fixes."""
    answer = datakit("doctor", tmp_path / "gone")

    assert answer.code == 1
    assert f"fail  place {tmp_path / 'gone'}" in answer.stdout
    assert f"  place {tmp_path / 'gone'}: mkdir -p {tmp_path / 'gone'}" in answer.stdout
    assert answer.stderr == (
        f"error: this machine would fail: place {tmp_path / 'gone'}\nhint: The fixes are in the report\n"
    )


def test_a_program_reads_findings_and_failure_from_one_object(tmp_path: Path) -> None:
    """Under --json the findings are there beside the error."""
    answer = datakit("doctor", tmp_path / "gone", "--json")

    told = answer.json
    assert (answer.code, told["exit_code"], told["ok"]) == (1, 1, False)
    assert told["result"][-1]["status"] == "fail"
    assert set(told["result"][0]) == {"name", "status", "what", "fix"}
    assert told["error"]["kind"] == "DatakitError"


def test_settings_are_listed_with_value_and_origin(clean_room: Path) -> None:
    """Every setting has a line: name, value, and which file, variable or default gave it."""
    (clean_room / "params.yaml").write_text("train:\n  rank: 4\n")

    answer = datakit("doctor", "--settings")

    lines = [line.split() for line in answer.stdout.splitlines()]
    assert answer.code == 0
    assert lines[0] == ["SETTING", "VALUE", "ORIGIN"]
    assert ["train.rank", "4", "params.yaml", "line", "2"] in lines
    assert ["train.alpha", "16", "default"] in lines


def test_a_wrong_setting_stops_doctor_like_any_command(clean_room: Path) -> None:
    """The sentence names the file's line; the exit code is that of wrong usage."""
    (clean_room / "params.yaml").write_text("train:\n  rnk: 4\n")

    answer = datakit("doctor")

    assert answer.code == 2
    assert answer.stderr == "error: 'rnk' is no setting of train (params.yaml line 2)\nhint: Did you mean rank?\n"


def test_another_settings_file_can_be_named(clean_room: Path) -> None:
    """--params FILE is read instead of params.yaml."""
    (clean_room / "other.yaml").write_text("train: {seed: 7}")

    answer = datakit("doctor", "--settings", "--params", "other.yaml", "--json")

    seed = next(each for each in answer.json["result"] if each["name"] == "train.seed")
    assert seed == {"name": "train.seed", "value": 7, "origin": "other.yaml line 1"}
