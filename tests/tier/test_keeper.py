"""The agent of a cache: one fetch however many ask, leases that die with their holder, nothing lost when it dies."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from datakit.data.digest import PART_BYTES
from datakit.data.manifest import Manifest
from datakit.data.shard import Sample
from datakit.errors import Busy, DatakitError, InputError, IntegrityError, NoSpace, NotFound, StoreUnavailable
from datakit.storage.commit import read_manifest
from datakit.tier import door
from datakit.tier.client import CacheClient
from datakit.tier.protocol import Decoder, Frame, encode
from support.agents import Cache, alive, index_bytes, is_whole, once_free, shards_of, wait_until
from support.commits import flip_bit, noise
from support.datasets import lines, make_dataset, publish
from support.faulty import Fault, FaultyServer
from support.process import environment, halt, kill, start_code
from support.tiers import disk_bytes, wrong_objects

TARS = r".*\.tar"


def size_of(manifest: Manifest, digest: str) -> int:
    """Bytes of a member."""
    return next(entry.bytes for entry in manifest.members if entry.sha256 == digest)


def small(tmp_path: Path, server: FaultyServer, num_shards: int = 6) -> str:
    """A dataset of shards of equal size in a store."""
    shards = [[Sample(f"s{n}", {"bin": noise(20_000, n)})] for n in range(num_shards)]
    return publish(make_dataset(tmp_path / "ds", shards), server)


READER = """
import hashlib, sys
from datakit.tier.client import CacheClient
client = CacheClient(sys.argv[1], budget_bytes=int(sys.argv[2]))
client.open(sys.argv[3])
print("open", flush=True)
sys.stdin.readline()
for digest in sys.argv[4:]:
    path = client.lease(digest)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
print("read", flush=True)
sys.stdin.readline()
assert "obstore" not in sys.modules
"""


def test_eight_processes_make_one_request_for_each_part(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """They want the same and overlapping shards, in orders of their own, and all begin where no agent is."""
    url = small(tmp_path, faulty)
    digests = shards_of(read_manifest(tmp_path / "ds"))
    faulty.log.clear()
    readers = []
    for number in range(8):
        wanted = random.Random(number).sample(digests, 4)
        command = [sys.executable, "-c", READER, str(cache.root), str(cache.budget_bytes), url, *wanted]
        readers.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        )
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"

    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
    ended = [reader.communicate("\n")[0] for reader in readers]

    assert ended == ["read\n"] * 8
    asked = Counter(faulty.asked("GET", TARS))
    assert asked
    assert set(asked.values()) == {1}
    assert wrong_objects(cache.root) == {}


def test_one_agent_starts_however_many_want_it(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """Four that begin at once are served by one process."""
    url = small(tmp_path, faulty, 1)
    readers = [start_code(READER, cache.root, cache.budget_bytes, url) for _ in range(4)]

    said = cache.client().status()

    assert len(said["leases"]) == 4
    assert (
        subprocess.run(
            [sys.executable, "-m", "datakit.tier.keeper", str(cache.root), "--budget-bytes", "5"],
            check=True,
            capture_output=True,
            env=environment(),
        ).stdout
        == b'{"serving": false}\n'
    )
    for reader in readers:
        kill(reader)


def test_a_killed_holder_holds_nothing(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """While it lives, what it holds stays, and who wants room is told who it is; then there is room."""
    url = small(tmp_path, faulty, 2)
    manifest = read_manifest(tmp_path / "ds")
    first, second = shards_of(manifest)
    cache.budget_bytes = index_bytes(manifest) + size_of(manifest, first) * 3 // 2
    holder = start_code(READER, cache.root, cache.budget_bytes, url, first)
    client = cache.client()
    client.open(url)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "read\n"

    with pytest.raises(NoSpace, match=f"process {holder.pid} holds 3 objects"):
        client.lease(second)
    assert client.read(second, 512, 100) == (tmp_path / "ds" / manifest.contents.shards[1].name).read_bytes()[512:612]
    assert client.lease(second, wait=False) is None
    kill(holder)
    path = once_free(lambda: client.lease(second))

    assert path is not None
    assert is_whole(path)
    assert disk_bytes(cache.root) <= cache.budget_bytes


def test_a_killed_agent_goes_on_with_the_missing_parts(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """Killed in the middle of a fetch and of leases: who waits gets the shard, by the missing parts."""
    samples = [Sample(f"s{n}", {"bin": noise(PART_BYTES // 2, n)}) for n in range(5)]
    url = publish(make_dataset(tmp_path / "ds", [[Sample("a", {"bin": b"a"})], samples]), faulty)
    client = cache.client()
    small_one, large = shards_of(client.open(url).manifest)
    held = client.lease(small_one)
    faulty.log.clear()
    faulty.faults.append(Fault("hold", key=TARS, after=1, times=2))
    waiting = start_code(READER, cache.root, cache.budget_bytes, url, large)
    assert waiting.stdin is not None
    waiting.stdin.write("\n")
    waiting.stdin.flush()
    wait_until(lambda: any(b"\n" in each.read_bytes().rstrip() for each in cache.root.rglob(".*.journal")))

    killed = cache.kill()
    out, _ = waiting.communicate("\n")

    assert out == "read\n"
    assert cache.pid != killed
    asked = Counter(span for _, _, span in faulty.asked("GET", TARS))
    assert sorted(asked.values()) == [1, 2, 2]
    assert client.lease(small_one) == held
    assert wrong_objects(cache.root) == {}


def test_what_a_living_reader_holds_outlives_the_agent(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """Before it has noticed: another who wants room meanwhile does not get that of its shard."""
    url = small(tmp_path, faulty, 2)
    reader, other = cache.client(), cache.client()
    dataset = reader.open(url)
    first, second = shards_of(dataset.manifest)
    path = reader.lease(first)
    assert path is not None
    cache.kill()
    cache.budget_bytes = index_bytes(dataset.manifest) + path.stat().st_size * 3 // 2
    other.budget_bytes = cache.budget_bytes
    other.open(url)

    with pytest.raises(NoSpace, match=f"process {os.getpid()} holds"):
        other.lease(second)
    assert path.exists()
    assert reader.lease(first) == path
    reader.release(first)
    with pytest.raises(NoSpace):
        other.lease(second)
    reader.release(first)
    assert once_free(lambda: other.lease(second)) is not None
    assert not path.exists()


def test_what_a_dead_reader_held_is_not_inherited(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """Reader and agent are killed together: the next agent frees it, and removes its record."""
    url = small(tmp_path, faulty, 1)
    cache.client().open(url)
    holder = start_code(READER, cache.root, cache.budget_bytes, url)
    os.kill(cache.pid, signal.SIGSTOP)
    kill(holder)
    cache.kill()

    said = cache.client().status()

    assert [each["pid"] for each in said["leases"]] == [os.getpid()]
    assert {path.name.split("-")[1] for path in (cache.root / "leases").iterdir()} == {str(os.getpid())}


@pytest.mark.parametrize("fraction", [0.5, 0.75])
def test_data_larger_than_the_cache_streams_through_it(
    tmp_path: Path, cache: Cache, faulty: FaultyServer, fraction: float
) -> None:
    """Epochs of fresh permutations: as many shards are found here as the cache holds, but for those fetched ahead.

    The directory never holds more than its budget, as it is seen from outside at each shard.
    """
    num_shards, num_epochs = 16, 4
    url = small(tmp_path, faulty, num_shards)
    manifest = read_manifest(tmp_path / "ds")
    room = round(fraction * num_shards)
    cache.budget_bytes = index_bytes(manifest) + room * size_of(manifest, shards_of(manifest)[0])
    client = cache.client(budget_bytes=cache.budget_bytes)
    digests = shards_of(client.open(url).manifest)
    before = client.status()["fetched_files"]
    draw = random.Random(5)

    for _ in range(num_epochs):
        order = draw.sample(digests, num_shards)
        client.order(order)
        for digest in order:
            path = client.lease(digest)
            assert path is not None
            assert is_whole(path)
            assert disk_bytes(cache.root) <= cache.budget_bytes
            client.release(digest)

    fetched = client.status()["fetched_files"] - before
    least = num_shards + (num_epochs - 1) * (num_shards - room)
    assert least <= fetched <= least + 3 * num_epochs
    assert client.status()["hits"]


def test_the_next_shards_come_ahead_and_no_more(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """An eighth of the budget, or two shards; as the reader moves, the next come."""
    url = small(tmp_path, faulty, 6)
    manifest = read_manifest(tmp_path / "ds")
    digests = shards_of(manifest)[::-1]
    client = cache.client(budget_bytes=index_bytes(manifest) + 6 * size_of(manifest, digests[0]))
    client.open(url)

    def here() -> int:
        return sum(client.path(digest).exists() for digest in digests)

    client.order(digests, steps=[0, 10, 20, 30, 40, 50])
    wait_until(lambda: here() == 2)
    said = client.status()
    assert client.path(digests[0]).exists()
    assert [each["position"] for each in said["readers"] if each["shards"]] == [0]
    client.step(10)
    wait_until(lambda: here() == 3)

    assert client.lease(digests[2], wait=False)
    wait_until(lambda: here() == 5)
    assert not client.path(digests[5]).exists()
    assert {said["starves_at_step"] for said in client.status()["readers"]} <= {None, 50}


def test_what_is_not_waited_for_comes_all_the_same(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """As far as there is room: the rest is read from where it lies, and what is held stays."""
    url = small(tmp_path, faulty, 4)
    manifest = read_manifest(tmp_path / "ds")
    digests = shards_of(manifest)
    client = cache.client(budget_bytes=index_bytes(manifest) + 2 * size_of(manifest, digests[0]))
    client.open(url)

    def held() -> int:
        return sum(client.lease(digest, wait=False) is not None for digest in digests[:2])

    assert [client.lease(digest, wait=False) for digest in digests[:2]] == [None, None]
    wait_until(lambda: held() == 2)
    assert [client.lease(digest, wait=False) for digest in digests[2:]] == [None, None]
    wait_until(lambda: not client.status()["coming"])

    assert [client.path(digest).exists() for digest in digests] == [True, True, False, False]


def test_a_damaged_shard_is_set_aside_and_comes_again(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """One that is whole stays as it is, whoever says otherwise."""
    url = small(tmp_path, faulty, 1)
    client = cache.client()
    (digest,) = shards_of(client.open(url).manifest)
    path = client.lease(digest)
    assert path is not None
    flip_bit(path, 700)

    again = client.damaged(digest)
    client.damaged(digest)

    assert again == path
    assert is_whole(path)
    assert len(faulty.asked("GET", TARS)) == 2
    assert len(list((cache.root / "aside").iterdir())) == 1
    client.release(digest)
    wait_until(lambda: client.status()["leases"][0]["objects"] == 1)


def test_damage_at_the_place_is_an_error_that_names_it(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """It comes to whoever waits, and the agent goes on."""
    url = small(tmp_path, faulty, 2)
    name = next(key for key in faulty.objects if key.endswith(".tar"))
    client = cache.client()
    dataset = client.open(url)
    faulty.put(name, bytes(len(faulty.objects[name][0])))
    bad = dataset.manifest.member(name.rpartition("/")[2]).sha256

    with pytest.raises(IntegrityError, match=name):
        client.lease(bad)

    assert [client.lease(digest) is not None for digest in shards_of(dataset.manifest) if digest != bad] == [True]


def test_a_store_that_fails_for_a_while_is_an_error_and_then_none(
    tmp_path: Path, cache: Cache, faulty: FaultyServer
) -> None:
    """The lease that fails holds nothing; the next one is served."""
    url = small(tmp_path, faulty, 1)
    client = cache.client()
    (digest,) = shards_of(client.open(url).manifest)
    faulty.faults.append(Fault("denied", key=TARS))

    with pytest.raises(DatakitError, match="AccessDenied"):
        client.lease(digest)
    assert client.status()["leases"][0]["objects"] == 1

    assert client.lease(digest)


def test_what_is_read_is_of_one_version(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """A shard that is replaced at its place while it is read by ranges is refused; what lies here is read here."""
    url = small(tmp_path, faulty, 2)
    client = cache.client()
    first, second = shards_of(client.open(url).manifest)
    client.lease(second)
    faulty.log.clear()
    name = read_manifest(tmp_path / "ds").contents.shards[0].name
    data = faulty.objects[f"data/ds/{name}"][0]

    assert client.read(first, 600, 50) == data[600:650]
    assert len(client.read(second, 0, 512)) == 512
    faulty.put(f"data/ds/{name}", bytes(len(data)))
    with pytest.raises(DatakitError, match="replaced"):
        client.read(first, 700, 50)
    with pytest.raises(InputError, match="has no 9 bytes"):
        client.read(first, len(data) - 8, 9)

    assert [key for _, key, _ in faulty.asked("GET", TARS)] == [f"data/ds/{name}"] * 2


def raw_connection(cache: Cache) -> socket.socket:
    found = door.dial(cache.root, timeout_s=60)
    assert found is not None
    return found


def test_torn_frames_and_strange_requests_end_nobody_elses_service(cache: Cache) -> None:
    """Bytes that are no frame end their connection with a sentence; a request that is none is answered with one."""
    client = cache.client()
    client.status()
    with raw_connection(cache) as torn:
        torn.sendall(encode(Frame({"op": "hello", "token": "00000000"}))[:-3])
    with raw_connection(cache) as wrong:
        wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
        (said,) = Decoder().feed(wrong.recv(10**5))
        assert "no frame of the cache's protocol" in said.value["message"]
        assert wrong.recv(1) == b""
    said_of = []
    with raw_connection(cache) as strange:
        for value in ({"op": "lease"}, {"op": "hello", "token": "zz"}, {}, {"op": "hello", "token": "0"}, {"op": "x"}):
            strange.sendall(encode(Frame(value)))
            said_of += [frame.value.get("message", "") for frame in Decoder().feed(strange.recv(10**5))]

    assert [bool(said) for said in said_of] == [True, True, True, False, True]
    assert "no request" in said_of[4]
    wait_until(lambda: "in the middle of a request" in (cache.root / "agent.log").read_text())
    with pytest.raises(NotFound, match="no dataset that is open here"):
        client.lease("0" * 64)


def test_an_agent_that_does_not_answer_is_an_error_with_a_deadline(cache: Cache) -> None:
    """A stopped process is no dead one: it is said where to look, and the client goes on once it goes on."""
    client = cache.client()
    client.status()
    halt(cache.pid)
    client.deadline_s = 0.2

    with pytest.raises(DatakitError, match=r"did not answer status within 0.2 s") as caught:
        client.status()
    os.kill(cache.pid, signal.SIGCONT)
    client.deadline_s = 60

    assert caught.value.hint == f"See {cache.root / 'agent.log'}"
    assert client.status()["objects"] == 0


def test_an_agent_that_nobody_uses_ends_and_leaves_nothing(cache: Cache) -> None:
    """Its socket and its lock go with it."""
    client = cache.client(idle_s=0.1)
    client.status()
    pid = cache.pid
    client.close()

    wait_until(lambda: not alive(pid))

    assert not (cache.root / door.SIGN_NAME).exists()
    assert not door.socket_path(cache.root).exists()
    assert client.status()["objects"] == 0


def test_stop_ends_an_agent_that_nobody_else_uses(cache: Cache) -> None:
    """Else it says how many do."""
    client, other = cache.client(), cache.client()
    other.status()
    pid = cache.pid

    with pytest.raises(Busy, match="1 more are connected"):
        client.stop()
    other.close()
    wait_until(lambda: client.status() and _stopped(client))

    wait_until(lambda: not alive(pid))


def _stopped(client: CacheClient) -> bool:
    try:
        client.stop()
    except Busy:
        return False
    return True


def test_what_keeps_an_agent_from_starting_is_said_at_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of something else, and a socket's directory that others may enter."""
    cache.root.mkdir()
    (cache.root / "thesis.txt").write_text("x")
    with pytest.raises(DatakitError, match="is no tier, and not empty"):
        cache.client().status()
    (cache.root / "thesis.txt").unlink()
    door.socket_path(cache.root).parent.mkdir(mode=0o755)
    with pytest.raises(DatakitError, match="open to others"):
        cache.client().status()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "x" * 100)
    with pytest.raises(DatakitError, match="too long for a socket"):
        cache.client().status()


def test_a_store_that_cannot_be_had_is_said(cache: Cache, faulty: FaultyServer) -> None:
    """By opening, with the class that its exit code follows from."""
    faulty.faults.append(Fault("hang-up", times=99))

    with pytest.raises(StoreUnavailable):
        cache.client().open(f"{faulty.url}/data/ds")


def test_a_dataset_of_a_directory_is_cached_too(tmp_path: Path, cache: Cache) -> None:
    """As on a shared disk; a path is understood as where the reader is."""
    make_dataset(tmp_path / "ds", [lines(0, 5), lines(5, 9)])
    client = cache.client()

    dataset = client.open(os.path.relpath(tmp_path / "ds"))

    assert os.path.realpath(dataset.place) == os.path.realpath(tmp_path / "ds")
    for digest in shards_of(dataset.manifest):
        path = client.lease(digest)
        assert path is not None
        assert is_whole(path)
