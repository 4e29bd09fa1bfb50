"""A client finds or starts its agent, says anew what it holds when that has died, and is its own in a fork."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from datakit.data.shard import Sample
from datakit.errors import DatakitError
from datakit.storage.commit import read_manifest
from datakit.tier import door
from support.agents import Cache, is_whole, shards_of, wait_until
from support.commits import noise
from support.datasets import lines, make_dataset, publish
from support.faulty import FaultyServer
from support.process import environment, halt

TESTS = Path(__file__).resolve().parents[1]


def dataset_at(tmp_path: Path, num_shards: int = 4) -> tuple[Path, list[str]]:
    """A dataset in a directory, and the digests of its shards."""
    place = make_dataset(tmp_path / "ds", [lines(n * 10, n * 10 + 10) for n in range(num_shards)])
    return place, shards_of(read_manifest(place))


def test_what_was_held_and_announced_is_said_anew(tmp_path: Path, cache: Cache) -> None:
    """To the agent after a killed one: datasets, leases as often as they were taken, the order and the place in it."""
    place, digests = dataset_at(tmp_path)
    client, other = cache.client(), cache.client()
    client.open(place)
    paths = [client.lease(digests[0]) for _ in range(2)]
    killed = cache.kill()
    client.order(digests, steps=[0, 1, 2, 3])
    client.step(2)
    wait_until(lambda: client.path(digests[3]).exists())

    killed_again = cache.kill()
    (said,) = (each for each in client.status()["readers"] if each["shards"])

    assert len({killed, killed_again, cache.pid}) == 3
    assert (said["position"], said["shards"]) == (2, 4)
    client.release(digests[0])
    assert digests[0] in {path.name.partition(".")[2] for path in (cache.root / "leases").iterdir()}
    client.release(digests[0])
    client.release(digests[0])
    assert digests[0] not in {path.name.partition(".")[2] for path in (cache.root / "leases").iterdir()}
    assert paths[0] == paths[1]
    assert other.open(place, digest=client.open(place).digest)


def test_a_client_that_gave_up_on_an_answer_holds_what_it_held(tmp_path: Path, cache: Cache) -> None:
    """It comes back by another connection, and the end of the first frees nothing of that."""
    place, digests = dataset_at(tmp_path)
    client = cache.client()
    client.open(place)
    client.lease(digests[0])
    halt(cache.pid)
    client.deadline_s = 0.2
    with pytest.raises(DatakitError, match="did not answer lease"):
        client.lease(digests[1])
    os.kill(cache.pid, signal.SIGCONT)
    client.deadline_s = 60

    client.status()

    wait_until(lambda: len(client.status()["readers"]) == 1)
    assert digests[0] in {path.name.partition(".")[2] for path in (cache.root / "leases").iterdir()}
    assert client.status()["leases"] == [{"pid": os.getpid(), "objects": len(digests) + 1}]


def test_a_dataset_is_known_by_its_digest_without_a_request(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """A reader that comes back sees what it saw, though another lies at the place by now."""
    url = publish(make_dataset(tmp_path / "ds", [lines(0, 9)]), faulty)
    client = cache.client()
    first = client.open(url)
    make_dataset(tmp_path / "ds", [lines(3, 9)])
    faulty.log.clear()

    again = client.open(url, digest=first.digest)

    assert faulty.log == []
    assert again == first
    publish(tmp_path / "ds", faulty)
    assert client.open(url).digest != first.digest


def _child(client: object, digest: str, out: str, loaded: bool) -> None:
    path = client.lease(digest)  # type: ignore[attr-defined] # what is tested
    assert is_whole(path)
    assert loaded or "obstore" not in sys.modules  # a fork inherits what tests before this one have loaded
    Path(out).write_text(str(path))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_has_a_connection_of_its_own(tmp_path: Path, cache: Cache, method: str) -> None:
    """Its end frees what it held and nothing of its parent's, whose connection goes on."""
    place, digests = dataset_at(tmp_path)
    client = cache.client()
    client.open(place)
    client.lease(digests[0])

    arguments = (client, digests[1], str(tmp_path / "out"), method == "fork" and "obstore" in sys.modules)
    child = multiprocessing.get_context(method).Process(target=_child, args=arguments)
    child.start()
    child.join()

    assert child.exitcode == 0
    assert Path((tmp_path / "out").read_text()).name == digests[1]
    assert client.lease(digests[0])
    wait_until(lambda: [each["pid"] for each in client.status()["leases"]] == [os.getpid()])


LOADED = """
import sys
import torch
from torch.utils.data import DataLoader
from datakit.tier.client import CacheClient

class Shards:
    def __init__(self, client, digests):
        self.client, self.digests = client, digests
    def __len__(self):
        return len(self.digests)
    def __getitem__(self, at):
        size = len(self.client.lease(self.digests[at]).read_bytes())
        first = self.client.read(self.digests[at], 0, 1)
        assert "obstore" not in sys.modules
        return size + len(first)

client = CacheClient(sys.argv[1], budget_bytes=10**9)
client.open(sys.argv[2])
loader = DataLoader(Shards(client, sys.argv[3:]), batch_size=1, num_workers=2, multiprocessing_context="fork")
print(sum(int(batch) for batch in loader))
"""


def test_forked_loader_workers_ask_it(tmp_path: Path, cache: Cache, faulty: FaultyServer) -> None:
    """After their parent has used the client, and of a store: nothing hangs, since no store's client is in them."""
    place, digests = dataset_at(tmp_path)
    url = publish(place, faulty)

    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(cache.root), url, *digests],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )

    sizes = [(place / shard.name).stat().st_size for shard in read_manifest(place).contents.shards]
    assert int(done.stdout) == sum(sizes) + len(sizes)


def test_threads_of_a_client_take_turns(tmp_path: Path, cache: Cache) -> None:
    """Each gets its own answer."""
    place, digests = dataset_at(tmp_path)
    client = cache.client()
    client.open(place)
    found: list[tuple[str, str]] = []

    def work(digest: str) -> None:
        path = client.lease(digest)
        assert path is not None
        found.append((digest, path.name))

    threads = [threading.Thread(target=work, args=(digest,)) for digest in digests * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted((digest, digest) for digest in digests * 2)


def test_a_client_that_is_pickled_knows_its_datasets(tmp_path: Path, cache: Cache) -> None:
    """And holds nothing."""
    place, digests = dataset_at(tmp_path)
    client = cache.client()
    client.open(place)
    cache.kill()

    travelled = pickle.loads(pickle.dumps(client))

    cache.clients.append(travelled)
    assert travelled.lease(digests[2]).name == digests[2]


def test_agents_that_die_over_a_request_are_given_up(cache: Cache) -> None:
    """Three times, and where to look is said."""
    cache.root.mkdir()
    door.socket_path(cache.root).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door.socket_path(cache.root)))
        listening.listen()
        ended = threading.Event()

        def hang_up() -> None:
            for _ in range(3):
                listening.accept()[0].close()
            ended.set()

        threading.Thread(target=hang_up).start()
        with pytest.raises(DatakitError, match=r"3 agents of .* have died over the same request: status") as caught:
            cache.client().status()
        assert ended.wait(60)

    assert caught.value.hint == f"See {cache.root / 'agent.log'}"


FULL = """
import os, sys
from pathlib import Path
from datakit.errors import NoSpace
from datakit.tier.client import CacheClient
from support.agents import is_whole, shards_of

os.environ["XDG_RUNTIME_DIR"] = sys.argv[3]
client = CacheClient(Path(sys.argv[1]) / "cache", budget_bytes=2**40)
manifest = client.open(sys.argv[2]).manifest
for digest in shards_of(manifest):
    assert is_whole(client.lease(digest))
    client.release(digest)
digests = shards_of(manifest)
held = [client.lease(digest) for digest in digests[:3]]
try:
    client.lease(digests[3])
except NoSpace as error:
    print(error.exit_code, error.message)
print(len(client.read(digests[3], 0, 100)))
client.stop()
"""


@pytest.mark.prove
def test_a_real_full_disk_is_survived(tmp_path: Path, cache: Cache) -> None:
    """Shards of 1.2 MB stream through 4 MiB; when what fills them is held, that is said, and `read` goes on."""
    place = make_dataset(tmp_path / "ds", [[Sample(f"s{n}", {"bin": noise(1_200_000, n)})] for n in range(6)])
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=4m none {tmp_path / 'disk'}"
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, "-c", FULL]

    done = subprocess.run(
        [*command, str(tmp_path / "disk"), str(place), os.environ["XDG_RUNTIME_DIR"]],
        check=False,
        capture_output=True,
        text=True,
        env={**environment(), "PYTHONPATH": os.pathsep.join((environment()["PYTHONPATH"], str(TESTS)))},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 the disk of")
    assert "holds" in done.stdout
    assert done.stdout.endswith("\n100\n")
