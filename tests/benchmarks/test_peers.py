"""The peers: an environment is made once, and made anew when its recipe changes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import peers
from frame.claim import Bench, BenchError


def test_installing_twice_is_installing_once(tmp_path: Path) -> None:
    """The second call finds the stamp and leaves the environment alone."""
    peer = peers.Peer("nothing", ())

    made = [peers.install(peer, envs=tmp_path) for _ in range(2)]

    assert made == [True, False]
    assert Bench(root=tmp_path, size="quick").python_of(None).exists()
    assert (tmp_path / "nothing" / "bin" / "python").exists()
    assert peers.versions_of(peer, envs=tmp_path) == {}


def test_an_environment_without_a_stamp_is_made_anew(tmp_path: Path) -> None:
    """An installation that was killed has no stamp, and what it left is removed."""
    peer = peers.Peer("nothing", ())
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "half").write_text("left by a killed installation")

    assert peers.install(peer, envs=tmp_path)
    assert not (tmp_path / "nothing" / "half").exists()


def test_a_failed_installation_is_a_sentence_and_leaves_no_stamp(tmp_path: Path) -> None:
    """Pip's last line is passed on; the next call tries again."""
    peer = peers.Peer("broken", ("not a requirement",))

    with pytest.raises(BenchError, match="peer broken could not be installed"):
        peers.install(peer, envs=tmp_path)
    assert not (tmp_path / "broken" / peers.STAMP_NAME).exists()


def test_every_peer_is_pinned_to_exact_releases() -> None:
    """A range would let two runs of one commit measure two programs."""
    loose = [line for peer in peers.PEERS for line in peer.requirements if "==" not in line]

    assert loose == []


def test_an_unknown_peer_is_named() -> None:
    """The message says where peers are listed."""
    with pytest.raises(BenchError, match=r"no peer is called rsync; add it to benchmarks/peers\.py"):
        peers.peer_named("rsync")


def test_a_closure_installs_nothing_but_itself(tmp_path: Path) -> None:
    """What a package declares beside the pinned releases is left out; without a closure it is looked for, in vain."""
    wheel = _wheel(tmp_path)

    assert peers.install(peers.Peer("alone", (str(wheel),), closure=True), envs=tmp_path)
    with pytest.raises(BenchError, match="peer greedy could not be installed"):
        peers.install(peers.Peer("greedy", ("--no-index", str(wheel))), envs=tmp_path)

    assert peers.versions_of(peers.Peer("alone", ()), envs=tmp_path) == {"small": "1.0"}


def _wheel(folder: Path) -> Path:
    """A wheel of nothing that declares a dependency (the binary distribution format of PyPA)."""
    path = folder / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = "small-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\nRequires-Dist: no-such-peer==1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path
