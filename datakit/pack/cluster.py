"""cluster: tasks on a Ray cluster, with the results that processes on this machine would give.

The cluster is the one that `RAY_ADDRESS` names, or that the caller has connected to; without either, one is started on
this machine and stopped again, without a dashboard, without usage statistics, without a word on the terminal, with a
token of its own, and with its files in a directory that is removed, or that the next start removes after a kill. The
machines of a cluster need the same datakit, and see source and destination under the same paths.

Tasks are the pure functions that `engines` runs. Ray runs a task again when its worker died, so a task must not mind
being run twice; results come in the order of the tasks. Source: Ray 2.60, Ray Core API (docs.ray.io).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from datakit.errors import DatakitError, MissingExtra
from datakit.machine import cores
from datakit.pack.engines import at_once

Task = TypeVar("Task")
Result = TypeVar("Result")

RETRIES = 2
"""Times that a task is run again after its worker, or the machine of it, died."""

_STORE_BYTES = 128 * 2**20
"""Shared memory of a cluster of our own: tasks and results are places and digests, not records."""

_PREFIX = "datakit-ray-"
_TOKEN = secrets.token_hex(32)
"""One for the process, because Ray remembers the first that it sees."""


class Cluster:
    """A Ray cluster; use it as a context manager.

    Args:
        workers: Tasks at once; None takes all cores of the cluster.

    Raises:
        MissingExtra: Ray is not installed.
        DatakitError: The cluster cannot be reached or started.
    """

    def __init__(self, workers: int | None) -> None:
        self._workers = workers
        self._ray: Any = None
        self._close = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            elsewhere = "RAY_ADDRESS" in os.environ
            if not elsewhere:
                stack.enter_context(_quiet_environment())
            try:
                import ray
            except ImportError:
                raise MissingExtra("ray", extra="ray") from None
            self._ray = ray
            if not ray.is_initialized():
                home = None if elsewhere else stack.enter_context(_home())
                self._connect(home)
                stack.callback(ray.shutdown)
            self._close = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def cores_for(self, num_tasks: int) -> int:  # noqa: ARG002 -- of the protocol
        """Cores that each of so many tasks may keep busy: the one that it asks the cluster for."""
        return 1

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results of the tasks, in their order; the first error ends it.

        Args:
            function: A function of a module that the cluster's machines have.
            tasks: Values that can be pickled; each is asked for shortly before its turn.

        Raises:
            DatakitError: A worker died, and so did those that tried again.
        """
        ray = self._ray
        remote = ray.remote(max_retries=RETRIES, num_cpus=1)(_answer)
        places = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting: deque[Any] = deque()
        try:
            for task in tasks:
                waiting.append(remote.remote(function, task))
                # of a number of workers that was asked for, none is run ahead
                if len(waiting) >= (places if self._workers else at_once(places)):
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for one in waiting:
                ray.cancel(one, force=True)

    def _result(self, reference: Any) -> Any:
        try:
            done, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise DatakitError(
                f"a Ray worker died, and so did the {RETRIES} that tried again: {_first_line(error)}",
                hint="Its machine may have run out of memory: try fewer --workers, or look at the cluster's logs",
            ) from None
        if done:
            return value
        raise value

    def _connect(self, home: Path | None) -> None:
        words: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if home is not None:
            words |= {
                "address": "local",
                "num_cpus": self._workers or cores(),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": _STORE_BYTES,
                "_temp_dir": str(home),
            }
        try:
            self._ray.init(**words)
        except Exception as error:  # noqa: BLE001 -- Ray raises errors of many kinds, of its own and of others
            where = "be started here" if home is not None else f"be reached at {os.environ['RAY_ADDRESS']}"
            raise DatakitError(
                f"a Ray cluster cannot {where}: {_first_line(error)}", hint="Pack without it: --engine local"
            ) from None


def _answer(function: Callable[[Task], Result], task: Task) -> tuple[bool, Any]:
    """What a task gave, or the error that it raised: that one is the task's, not the cluster's."""
    try:
        return True, function(task)
    except DatakitError as error:
        return False, error
    except Exception as error:  # noqa: BLE001 -- every error travels; one that would not is told in words
        hint = "Please report it; --engine local --workers 1 keeps its traceback"
        return False, DatakitError(f"{type(error).__name__}: {error}", hint=hint)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _quiet_environment() -> Iterator[None]:
    """What a cluster of our own is told by its environment, for the length of the block."""
    told = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # leave the worker's view of GPUs as it is, and do not warn of it
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """A directory for the files of a cluster of our own; those of processes that are gone are removed."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _LONGEST_BASE:
        base = Path("/tmp")  # noqa: S108 -- sockets lie below it, and their names may have 107 bytes (unix(7))
    for path in base.glob(f"{_PREFIX}*"):
        process = path.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists() and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


_LONGEST_BASE = 20
"""Bytes of the directory of temporaries that leave room for Ray's own 75 in the name of a socket."""
