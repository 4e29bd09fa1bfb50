"""What the tests' own server and processes promise, so that a red test says what is wrong with the library."""

from __future__ import annotations

import os
import subprocess
import urllib.error

import pytest

from support.process import halt
from support.s3server import S3Server, serving


def test_no_signal_to_the_tests_reaches_the_server(server: S3Server) -> None:
    """It is in a session of its own: Ctrl-C, or a kill of the process group, ends the tests first."""
    assert os.getsid(server.process.pid) == server.process.pid
    assert os.getsid(0) != server.process.pid


def test_an_error_of_the_store_is_an_answer(server: S3Server) -> None:
    """A bucket that is not there is told apart from a server that is not there."""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        server.get("no-bucket-here/key")


def test_a_server_that_is_gone_says_how_it_ended() -> None:
    """A refused connection comes with the exit code, and with what the server wrote."""
    with serving() as server:
        server.process.kill()
        server.process.wait()

        with pytest.raises(AssertionError, match=r"refused.*exit code is -9"):
            server.make_bucket("late")


def test_a_process_that_has_died_is_not_waited_for() -> None:
    """It never stops, and says so at once instead of hanging every test behind it."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(AssertionError, match="has died"):
        halt(process.pid)
    process.wait()
