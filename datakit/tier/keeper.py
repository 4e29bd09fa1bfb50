"""keeper: the agent of a cache, one process for a machine and directory. `python -m datakit.tier.keeper ROOT ...`

It owns the pool and the object-store client, which hangs in forked children: ranks, loader workers and several jobs
ask it over a unix socket (`door`, `protocol`), and open local files. It is started by exec, in a session of its own.
Who has the lock of the cache directory serves; another that is started finds it taken and leaves. With nobody
connected for a while it ends, and it may be killed at any time: the next one goes on with the parts that are missing
(`arrival`) and drops nothing that a living reader holds (`ledger`).

Requests, each a JSON object with `op`; `shard` is a sha256, answers are in brackets:

    hello    token                       the first, with a word of this connection's own [root, budget_bytes]
    open     place, digest?, options?    a dataset: its manifest and indexes are here, and held [digest, name]
    lease    shard, wait                 held, once it is here [path]; without `wait` null where it is not, and it
                                         comes when nobody waits for another, if there is room
    release  shard                       held no more
    order    shards, steps?              what this reader will want, in order; replaces what it said before
    step     step                        the reader begins this step of its order
    read     shard, offset, size         bytes of a shard, from where it lies; not kept [raw]
    damaged  shard                       look at one that is held; damaged, it is set aside and fetched again
                                         [path, was_damaged]
    settled  earlier                     a reader that came back has said all that it held by these tokens
    status                               what is here, who holds it, what comes, who will starve and when
    stop                                 end, unless others are connected [stopping]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datakit.errors import Busy, DatakitError, InputError
from datakit.storage import disk
from datakit.storage.copies import told
from datakit.tier import door
from datakit.tier.desk import Desk, Reader
from datakit.tier.pool import Pool
from datakit.tier.protocol import Decoder, Frame, encode, failure

LOCK_NAME = ".agent.lock"

IDLE_S = 600.0
"""With nobody connected for so long it ends: between two commands of a person, or two attempts of a run, it stays."""

TICK_S = 0.5
"""Between looks whether it is time to end."""

PIECE_BYTES = 2**16

logger = logging.getLogger(__name__)


class Keeper:
    """Serves a pool.

    Args:
        desk: Answers requests.
        listening: The socket.
        idle_s: Seconds without a connection after which it ends.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        desk: Desk,
        listening: socket.socket,
        *,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._listening = listening
        self._idle_s = idle_s
        self._clock = clock
        self._guard = threading.Lock()
        self._num_connected = 0
        self._left_s = clock()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Serve until nobody has come for a while, or somebody says stop."""
        self._listening.settimeout(TICK_S)
        while not self._stopped.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                self._desk.sweep()
                with self._guard:
                    if not self._num_connected and self._clock() - self._left_s > self._idle_s:
                        return
                continue
            with self._guard:
                self._num_connected += 1
            threading.Thread(target=self._serve, args=(connection,), name="datakit-reader", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader: Reader | None = None
        try:
            with connection:
                connection.settimeout(None)
                reader = Reader(door.check_peer(connection), is_gone=lambda: _is_gone(connection))
                self._talk(connection, reader)
        except DatakitError as error:
            logger.warning("a connection was ended: %s", error)
        except OSError:
            pass  # the other end went away
        finally:
            if reader is not None:
                self._desk.leave(reader)
            with self._guard:
                self._num_connected -= 1
                self._left_s = self._clock()

    def _talk(self, connection: socket.socket, reader: Reader) -> None:
        decoder = Decoder()
        while data := connection.recv(PIECE_BYTES):
            try:
                frames = decoder.feed(data)
            except DatakitError as error:
                connection.sendall(encode(failure(error)))
                raise
            for frame in frames:
                connection.sendall(encode(self._answer(frame, reader)))
                if self._stopped.is_set():
                    return
        if decoder.is_torn:
            message = f"process {reader.pid} went away in the middle of a request"
            raise InputError(message, hint="Its leases are free; it may have been killed", subject=reader.pid)

    def _answer(self, frame: Frame, reader: Reader) -> Frame:
        try:
            if frame.value.get("op") == "stop":
                return self._stop()
            return self._desk.answer(frame.value, reader)
        except DatakitError as error:
            return failure(error)
        except (KeyError, TypeError, ValueError) as error:
            message = f"a request is not as it should be: {type(error).__name__} {error} in {frame.value!r:.200}"
            return failure(InputError(message, hint="Use one datakit on this machine"))
        except Exception as error:  # one request that nobody foresaw must not end the service of others
            logger.exception("a request failed")
            return failure(DatakitError(f"{type(error).__name__}: {error}", hint="Please report it"))

    def _stop(self) -> Frame:
        with self._guard:
            others = self._num_connected - 1
        if others:
            message = f"{others} more are connected to the agent of {self._desk.root}"
            raise Busy(message, hint="End them first: datakit tier status tells who they are", subject=others)
        self._stopped.set()
        return Frame({"stopping": True})


def _is_gone(connection: socket.socket) -> bool:
    """Whether the other end of a connection is closed, as a killed process leaves it."""
    ready = select.poll()  # which takes descriptors of 1024 and more, as `select` does not
    ready.register(connection, select.POLLRDHUP)
    return bool(ready.poll(0))


def serve(
    root: Path, *, budget_bytes: int, name: str, idle_s: float, tell: Callable[[Mapping[str, Any]], object]
) -> bool:
    """Be the agent of a cache directory; False where another is already.

    Args:
        root: The directory.
        budget_bytes: What it may hold.
        name: The tier's, for messages.
        idle_s: Seconds without a connection after which it ends.
        tell: Told, once readers may come.

    Raises:
        DatakitError: The directory is no tier, or the socket cannot be made.
    """
    pool = Pool(root, budget_bytes=budget_bytes, name=name).open()
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(disk.exclusive(root / LOCK_NAME, purpose=f"serving {root}"))
        except Busy:
            return False
        connection = door.dial(root, timeout_s=1.0)
        if connection is not None:  # where locks lie, somebody may serve all the same
            connection.close()
            return False
        desk = Desk(pool)
        listening = door.listen(root)
        held.callback(door.close, root, listening)
        desk.start()
        tell({"serving": True})
        Keeper(desk, listening, idle_s=idle_s).run()
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """The process's beginning."""
    parser = argparse.ArgumentParser(prog="datakit.tier.keeper")
    parser.add_argument("root", type=Path)
    parser.add_argument("--budget-bytes", type=int, required=True)
    parser.add_argument("--name", default="cache")
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    try:
        serving = serve(given.root, budget_bytes=given.budget_bytes, name=given.name, idle_s=given.idle_s, tell=_tell)
    except DatakitError as error:
        logger.error("%s", error)  # noqa: TRY400 -- it says what happened; no trace is needed
        _tell(told(error))
        sys.exit(error.exit_code)
    if not serving:
        _tell({"serving": False})
    sys.stderr.flush()
    os._exit(0)  # threads that fetch for nobody would be waited for


def _tell(said: Mapping[str, Any]) -> None:
    """Tell whoever started this process how that went: one JSON object on stdout, which ends with it."""
    with contextlib.suppress(OSError):  # who started it did not wait
        os.write(1, json.dumps(said).encode() + b"\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    main()
