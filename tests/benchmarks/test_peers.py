"""The peers: an environment is made once, and made anew when its recipe changes."""

from __future__ import annotations

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
