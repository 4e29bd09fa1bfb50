"""What `storage/pipe` promises: an agent is asked and heard, replaced a few times when it ends, and raises nothing."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import NotFound
from datakit.storage.pipe import AGENT_LOG, MAX_STARTS, AgentPipe

PATIENCE_S = 60.0
ASKED = {"op": "look", "source": "nosuch://x", "pattern": "*"}


def opened(queue_dir: Path, heard: list[dict[str, Any]], **env: str) -> AgentPipe:
    queue_dir.mkdir()
    pipe = AgentPipe(queue_dir, options=None, env=env, take=heard.append)
    pipe.start()
    return pipe


def test_what_is_asked_is_answered(tmp_path: Path) -> None:
    """Also when the answer comes with the end: closing waits for it."""
    heard: list[dict[str, Any]] = []
    pipe = opened(tmp_path / "queue", heard)

    asked = pipe.send(ASKED)
    pipe.close(PATIENCE_S, hurried=lambda: False, hurry_s=0.0)

    assert asked
    assert [(answer["event"], answer["error"]) for answer in heard] == [("failed", "UsageError")]


def test_an_agent_is_heard_where_many_files_are_open(tmp_path: Path) -> None:
    """A descriptor of 1024 or more, as in a process that holds many shards; `select` takes none of these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    heard: list[dict[str, Any]] = []
    try:
        with contextlib.ExitStack() as many:
            while (one := many.enter_context(open(os.devnull))).fileno() < 1024:
                pass
            pipe = opened(tmp_path / "queue", heard)
            assert one.fileno() >= 1024
            pipe.send(ASKED)
            pipe.close(PATIENCE_S, hurried=lambda: False, hurry_s=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [answer["event"] for answer in heard] == ["failed"]


def test_an_agent_that_ends_is_replaced_a_few_times(tmp_path: Path) -> None:
    """Each end is told by hearing; after the last start, the reason is."""
    pipe = opened(tmp_path / "queue", [], PYTHONHOME="/nowhere")

    ways = []
    for _ in range(MAX_STARTS):
        assert pipe.process is not None
        pipe.process.wait(timeout=PATIENCE_S)
        ended = not pipe.hear(0.0)
        ways.append((ended, pipe.restart()))

    assert ways[:-1] == [(True, None)] * (MAX_STARTS - 1)
    assert ways[-1][0]
    assert ways[-1][1] is not None
    assert ways[-1][1].hint == f"See {tmp_path / 'queue' / AGENT_LOG}"
    assert (pipe.process, pipe.starts) == (None, MAX_STARTS)


def test_what_keeps_an_agent_from_a_new_start_is_given(tmp_path: Path) -> None:
    """The queue directory is gone: the error of that, not one about the agent."""
    pipe = opened(tmp_path / "queue", [], PYTHONHOME="/nowhere")
    assert pipe.process is not None
    pipe.process.wait(timeout=PATIENCE_S)
    (tmp_path / "queue" / AGENT_LOG).unlink()
    (tmp_path / "queue").rmdir()

    assert isinstance(pipe.restart(), NotFound)


@pytest.mark.parametrize("line", ["warning from a library", "[]", "5", "null", "{}", '{"op": "nothing"}'])
def test_what_is_no_answer_is_logged_and_what_comes_after_it_is_heard(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A library of the agent may print; training does not end for that."""
    heard = []

    def take(answer: dict[str, Any]) -> None:
        heard.append(answer["op"].index("look"))

    pipe = AgentPipe(tmp_path, options=None, env={}, take=take)

    for each in (line, json.dumps(ASKED)):
        pipe._take_line(each.encode())

    assert heard == [0]
    assert "is no answer" in caplog.text
