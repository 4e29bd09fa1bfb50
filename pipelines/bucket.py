"""bucket: the object store that the demo embeds: moto's S3 server, a process of its own on a free port of the loopback.

    python pipelines/bucket.py -- dvc repro     # runs a command with the bucket's endpoint in its environment

moto keeps objects in memory. Here each request that changes something is answered only after the change is in
.demo/bucket/, one file an object (a line of JSON, then the bytes), so that the bucket outlives the command and `kill
-9` of anything. The credentials are dummies and exist in the environment of children only; whatever AWS_* the user has
set is not passed on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from datakit.storage.disk import sweep, write_atomic
from tie import die_with_parent

BUCKET = "datakit-demo"
FOLDER = Path(".demo/bucket")


class Mirror:
    """moto's S3 application, with every object also in `folder`."""

    def __init__(self, folder: Path) -> None:
        from moto.backends import get_backend
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.moto_server.werkzeug_app import create_backend_app

        self.app, self.folder, self.lock = create_backend_app("s3"), folder, threading.Lock()
        self.backend = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
        self.saved: dict[Path, Any] = {}
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)
        for bucket in filter(Path.is_dir, folder.iterdir()):
            self.load(bucket)

    def load(self, bucket: Path) -> None:
        """Give moto the objects of one bucket, each with the ETag and the time that it had."""
        self.backend.create_bucket(bucket.name, "us-east-1")
        sweep(bucket)
        for path in sorted(bucket.iterdir()):
            head, _, value = path.read_bytes().partition(b"\n")
            about = json.loads(head)
            key = self.backend.put_object(bucket.name, about["key"], value, etag=about["etag"])
            key.last_modified = datetime.fromisoformat(about["modified"])
            self.saved[path] = key

    def save(self) -> None:
        """Write the objects that changed since the last time, and remove those that are gone."""
        objects = {
            self.folder / bucket.name / urllib.parse.quote(name, safe=""): key
            for bucket in self.backend.buckets.values()
            for name, key in bucket.keys.items()
        }
        for path, key in objects.items():
            if self.saved.get(path) is not key:  # moto makes a new key object for every write
                about = {"key": key.name, "etag": key.etag.strip('"'), "modified": key.last_modified.isoformat()}
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, json.dumps(about).encode() + b"\n" + key.value)
        for path in self.saved.keys() - objects.keys():
            path.unlink()
        self.saved = objects

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answer one request; one that changes something only once the folder has it."""
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self.app(environ, start_response)
        with self.lock:
            response = self.app(environ, start_response)
            self.save()
            return response


def serve(folder: Path, parent: int) -> None:
    """Serve `folder` until the parent ends; the first line on stdout is the port."""
    import logging

    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the trainer still wants to write back; the parent ends us
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        for _ in range(100):  # the server of a run that was killed is on its way out
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        else:
            sys.exit(f"error: {folder} is served by another process. Wait for the other demo, or end it")
        server = make_server("127.0.0.1", 0, Mirror(folder), threaded=True, request_handler=MotoRequestHandler)
        print(server.port, flush=True)
        server.serve_forever()


def own_environment() -> dict[str, str]:
    """This process's environment without what would reach another store, or change a setting behind DVC's back."""
    settings = [name for name in os.environ if name.startswith("DATAKIT_") and "__" in name]
    if settings:
        print(f"Not passed on: {', '.join(settings)}. DVC sees settings in params.yaml only", file=sys.stderr)
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_") and name not in settings}


@contextlib.contextmanager
def open_bucket(folder: Path = FOLDER) -> Iterator[dict[str, str]]:
    """Serve `folder` for the length of the block; gives the environment for the processes that are to use it."""
    command = [sys.executable, __file__, "--serve", str(folder), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            if not port:
                sys.exit(server.wait())  # it has said why
            yield own_environment() | {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "demo",
                "AWS_SECRET_ACCESS_KEY": "demo",
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
                "NO_PROXY": "127.0.0.1",
                "no_proxy": "127.0.0.1",
            }
        finally:
            server.terminate()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        with open_bucket() as child_environment:
            code = subprocess.run(sys.argv[2:], env=child_environment, check=False).returncode
        sys.exit(code if code >= 0 else 128 - code)
