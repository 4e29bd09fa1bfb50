"""Promises count before anything comes, end with their holder, and what a dead one has left goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.errors import Refused
from datakit.tier.arrival import STALE_S, Arrival, discard, look
from support.process import kill, start_code

A, B = "a" * 64, "b" * 64
OPEN = """
import sys
from pathlib import Path
from datakit.tier.arrival import Arrival
into = Arrival(Path(sys.argv[1]))
into.open()
into.promise({"a" * 64: 100})
(into.path / f".{'a' * 64}.{'a' * 8}.part").write_bytes(b"x" * 100)
(into.path / f".{'a' * 64}.{'a' * 8}.journal").write_bytes(b"{}")
(into.path / f".{'b' * 64}.tmp-{'b' * 8}").write_bytes(b"x" * 7)
print("open", flush=True)
sys.stdin.read()
"""


def opened(top: Path) -> Arrival:
    into = Arrival(top)
    into.open()
    return into


def left_by_a_killed_process(top: Path) -> None:
    kill(start_code(OPEN, top))


def test_the_larger_of_promise_and_file_counts(tmp_path: Path) -> None:
    """A promise counts at once, what comes for it does not count twice, and it ends when it is taken back."""
    into = opened(tmp_path)

    into.promise({A: 100, B: 50})
    before = look(tmp_path)[0].bytes
    into.target(A).write_bytes(b"x" * 100)
    (into.path / f".{B}.tmp-00000000").write_bytes(b"x" * 20)
    coming = look(tmp_path)[0].bytes
    into.withdraw({A: 100, B: 50})

    assert (before, coming, look(tmp_path)[0].bytes) == (150, 150, 120)


def test_who_lives_keeps_its_promises(tmp_path: Path) -> None:
    """Another process of this machine that is there is not judged by any time."""
    process = start_code(OPEN, tmp_path)
    into = opened(tmp_path)
    for path in tmp_path.glob("*/alive"):
        os.utime(path, (0, 0))
    into.touch()

    into.sweep()

    others = [each for each in look(tmp_path) if each.path != into.path]
    assert [each.bytes for each in others] == [107]
    kill(process)


def test_promises_end_with_a_killed_process_and_parts_go_on(tmp_path: Path) -> None:
    """Its promise is gone, part and journal are left for the next, its other temporaries are removed."""
    left_by_a_killed_process(tmp_path)
    into = opened(tmp_path)

    into.sweep()
    (left,) = (each for each in look(tmp_path) if each.path != into.path)
    into.promise({A: 100})
    into.adopt([A])

    assert left.is_left
    assert (left.promised, left.here) == ({}, {A: 100})
    assert sorted(path.name.rpartition(".")[2] for path in into.path.glob(".*")) == ["journal", "part"]
    assert look(tmp_path)[0].bytes == 100


def test_a_silent_fetch_of_another_machine_ends(tmp_path: Path) -> None:
    """By the file system's own clock, and not before the time is over; its owner is told when it speaks again.

    Its part goes too: the owner may live, and still write into what would be another's by then.
    """
    other = opened(tmp_path)
    other.promise({A: 100})
    part = other.path / f".{A}.{'a' * 8}.part"
    part.write_bytes(b"x" * 100)
    foreign = other.path.with_name("0" * 12 + other.path.name[12:])
    os.rename(other.path, foreign)
    other.path = foreign
    into = opened(tmp_path)
    now = (into.path / "alive").stat().st_mtime

    os.utime(foreign / "alive", (now, now - STALE_S + 5))
    into.sweep()
    still = into.earlier([A])
    os.utime(foreign / "alive", (now, now - STALE_S - 5))
    into.sweep()

    assert still == {A}
    assert into.earlier([A]) == set()
    assert os.listdir(tmp_path) == [into.path.name]
    for speak in (other.touch, lambda: other.promise({B: 1})):
        with pytest.raises(Refused, match="said nothing for 30 minutes"):
            speak()


def test_the_end_of_a_silent_fetch_is_brought_to_its_end(tmp_path: Path) -> None:
    """Whoever ended it may have been killed; what lies there counts until it is removed, and is not taken over."""
    gone = tmp_path / "gone-0123abcd"
    gone.mkdir()
    (gone / f"{A}.100").touch()
    (gone / f".{A}.{'a' * 8}.part").write_bytes(b"x" * 60)
    into = opened(tmp_path)

    into.adopt([A])
    before = sum(each.bytes for each in look(tmp_path))
    into.sweep()

    assert before == 60
    assert os.listdir(tmp_path) == [into.path.name]


def test_a_process_that_the_system_hides_lives_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hidepid another user's process cannot be read, and that is no sign of its death; a number without one is."""
    process = start_code(OPEN, tmp_path)
    killed = start_code(OPEN, tmp_path)
    kill(killed)
    into = opened(tmp_path)
    monkeypatch.setattr("datakit.tier.arrival._fields", lambda _pid: [])
    now = (into.path / "alive").stat().st_mtime

    into.sweep()
    kept = [each.path for each in look(tmp_path) if each.promised]
    os.utime(kept[0] / "alive", (now, now - STALE_S - 5))
    into.sweep()

    assert [path.name.split("-")[1] for path in kept] == [str(process.pid)]
    assert not any(each.promised for each in look(tmp_path))
    kill(process)


def test_the_earlier_of_two_who_want_the_same_goes_first(tmp_path: Path) -> None:
    """Each sees the other, and exactly one waits; who asks for nothing waits for everybody."""
    one, two, three = opened(tmp_path), opened(tmp_path), opened(tmp_path)
    for number, each in enumerate((one, two)):
        each.promise({A: 9})
        os.utime(each.path / f"{A}.9", (number, number))

    assert (one.earlier([A, B]), two.earlier([A, B]), three.earlier([A, B])) == (set(), {A}, {A})


def test_closing_leaves_only_what_can_go_on(tmp_path: Path) -> None:
    """Without parts nothing stays; with one, it is nobody's, and counts until somebody takes or discards it."""
    into = opened(tmp_path)
    into.promise({A: 9})
    into.target(B).write_bytes(b"x")
    into.close()
    empty = os.listdir(tmp_path)
    again = opened(tmp_path)
    (again.path / f".{A}.{'a' * 8}.part").write_bytes(b"x" * 9)
    again.close()

    (left,) = look(tmp_path)

    assert empty == []
    assert (left.is_left, left.bytes) == (True, 9)
    assert discard(left, keep=[A]) == 0
    assert discard(left) == 9
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["listed", "named"])
def test_what_gets_another_name_during_the_look_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whether its directory goes after the directories were listed, or after its own files were."""
    into = opened(tmp_path)
    into.promise({A: 60})
    (into.path / f".{A}.{'a' * 8}.part").write_bytes(b"x" * 60)
    listed = os.listdir

    def listing(folder: Path) -> list[str]:
        if folder != into.path:
            return listed(folder)
        names = listed(folder) if moment == "named" else []
        into.close()
        return names or listed(folder)

    monkeypatch.setattr("datakit.tier.arrival.os.listdir", listing)

    assert sum(each.bytes for each in look(tmp_path)) == 60


def test_a_dead_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    """A zombie still has its number and its start."""
    code = OPEN.replace("sys.stdin.read()", "")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    into = opened(tmp_path)

    into.sweep()

    assert into.earlier([A]) == set()
    process.communicate()


def test_what_cannot_go_on_does_not_stay_beside_what_comes(tmp_path: Path) -> None:
    """A sweeper that was killed half-way left a temporary: it counts as room for the same object, so it goes."""
    left = tmp_path / "left-00000000"
    left.mkdir()
    (left / f".{A}.tmp-00000000").write_bytes(b"x" * 9)
    (left / f".{B}.tmp-00000000").write_bytes(b"x" * 9)
    into = opened(tmp_path)
    into.promise({A: 9})

    into.adopt([A])

    assert os.listdir(left) == [f".{B}.tmp-00000000"]
