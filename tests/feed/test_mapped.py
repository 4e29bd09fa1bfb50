"""feed/mapped: whole samples in whatever way they are read, and no byte of a damaged one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import IntegrityError
from datakit.data.digest import PART_BYTES, entry_of
from datakit.data.index import Index
from datakit.data.shard import Sample
from datakit.feed.mapped import Item, MappedShard, Verify
from support.cli import environment
from support.samples import SAMPLES, shard_of
from support.tiny import text_samples, write_dataset

LARGE = [Sample(f"s{n}", {"bin": bytes([n]) * (PART_BYTES * 2 // 5)}) for n in range(7)]
"""Seven samples over three blocks; the third and the fifth lie in two."""


def mapped(path: Path, samples: list[Sample], *, verify: Verify = "crc", bundle: int | None = None) -> MappedShard:
    """The shard of some samples, written to a file and mapped."""
    data, rows = shard_of(samples, bundle=bundle)
    path.write_bytes(data)
    index = Index.from_buffer(Index.from_rows(rows).to_bytes())
    return MappedShard(path, entry=entry_of(path.name, data), index=index, first=100, verify=verify)


def plain(items: list[Item]) -> list[tuple[int, str, dict[str, bytes]]]:
    return [(item.number, item.key, {part: bytes(data) for part, data in item.parts.items()}) for item in items]


def flip(shard: MappedShard, at: int) -> None:
    """Flip a bit of the file, which the map shows."""
    with shard.path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@given(SAMPLES, st.sampled_from(["crc", "none"]))
def test_in_order_and_alone_samples_are_the_same(tmp_path: Path, samples: list[Sample], verify: Verify) -> None:
    """Any mix of parts, absent and empty ones too: both ways give what was packed, numbered from the first."""
    shard = mapped(tmp_path / "s.tar", samples, verify=verify)

    in_order = plain(list(shard.samples()))

    assert in_order == [(100 + n, sample.key, dict(sample.parts)) for n, sample in enumerate(samples)]
    assert plain([shard.read(row) for row in range(len(samples))]) == in_order


def test_bundled_lines_are_samples_like_any(tmp_path: Path) -> None:
    """Each line of a bundle is read as the part `json` of its own sample, without its newline."""
    samples = [Sample(f"r{n:03d}", {"json": b'{"n": %d}' % n}) for n in range(600)]

    shard = mapped(tmp_path / "s.tar", samples, bundle=64)

    expected = [(100 + n, sample.key, dict(sample.parts)) for n, sample in enumerate(samples)]
    assert plain(list(shard.samples())) == expected
    assert plain([shard.read(row) for row in (0, 63, 64, 599)]) == [expected[row] for row in (0, 63, 64, 599)]


def test_more_rows_than_are_unpacked_at_once_come_in_order(tmp_path: Path) -> None:
    """Runs follow each other without a gap, where some samples lack a part too."""
    samples = [Sample(f"r{n:04d}", {"a": b"x", **({"b": b"y"} if n % 3 else {})}) for n in range(1000)]

    shard = mapped(tmp_path / "s.tar", samples)

    assert plain(list(shard.samples())) == [(100 + n, s.key, dict(s.parts)) for n, s in enumerate(samples)]


@pytest.mark.parametrize("victim", range(len(LARGE)))
def test_a_flipped_bit_is_named_and_whole_samples_before_it_are_given(tmp_path: Path, victim: int) -> None:
    """In whichever block it lies, also in a sample that lies in two: every sample before it, then the error."""
    shard = mapped(tmp_path / "s.tar", LARGE)
    flip(shard, shard.index.offsets("bin")[victim] + PART_BYTES // 5)
    reading = shard.samples()

    before = [next(reading) for _ in range(victim)]

    assert [(item.key, bytes(item.parts["bin"])) for item in before] == [
        (s.key, s.parts["bin"]) for s in LARGE[:victim]
    ]
    with pytest.raises(IntegrityError, match=f"s.tar: part bin of sample s{victim} has crc32c"):
        next(reading)
    with pytest.raises(IntegrityError, match=f"part bin of sample s{victim} has crc32c"):
        shard.read(victim)


def test_a_damaged_header_spoils_no_sample(tmp_path: Path) -> None:
    """A bit outside the parts makes its block differ; the samples there are checked one by one and are whole."""
    shard = mapped(tmp_path / "s.tar", LARGE)
    flip(shard, 3)

    read = [(item.key, bytes(item.parts["bin"])) for item in shard.samples()]

    assert read == [(sample.key, sample.parts["bin"]) for sample in LARGE]


def test_without_checks_damage_is_handed_out(tmp_path: Path) -> None:
    """`none` trusts the disk in both ways of reading."""
    shard = mapped(tmp_path / "s.tar", LARGE, verify="none")
    flip(shard, shard.index.offsets("bin")[2])

    read = [
        bytes(item.parts["bin"]) == sample.parts["bin"] for item, sample in zip(shard.samples(), LARGE, strict=True)
    ]

    assert read == [True, True, False, True, True, True, True]
    assert bytes(shard.read(2).parts["bin"]) != LARGE[2].parts["bin"]


def test_another_size_is_refused_at_once(tmp_path: Path) -> None:
    """A shard that is shorter than the manifest says is not mapped into an answer."""
    shard = mapped(tmp_path / "s.tar", LARGE[:1])
    entry = entry_of("s.tar", shard.path.read_bytes())
    shard.path.write_bytes(shard.path.read_bytes()[:-512])

    with pytest.raises(IntegrityError, match=rf"s.tar has {entry.bytes - 512} bytes, the manifest says {entry.bytes}"):
        MappedShard(shard.path, entry=entry, index=shard.index, first=0, verify="crc")


CUT = """
import os, sys, time
from pathlib import Path
from datakit import IntegrityError, open_dataset

dataset = open_dataset(sys.argv[1], verify=sys.argv[3])
if sys.argv[2] == "alone":
    dataset[0]
else:
    samples = iter(dataset)
    next(samples)
os.truncate(next(Path(sys.argv[1]).glob("*.tar")), 4096)
time.sleep(0.05)  # the size is believed for 10 ms
try:
    dataset[599] if sys.argv[2] == "alone" else list(samples)
except IntegrityError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["alone", "in order"])
@pytest.mark.parametrize("verify", ["crc", "none"])
def test_a_shard_that_is_cut_while_it_is_mapped_is_an_error_and_no_signal(
    tmp_path: Path, how: str, verify: str
) -> None:
    """A look behind the end of a mapped file is SIGBUS, which ends a trainer without a word."""
    write_dataset(tmp_path / "ds", text_samples(600), per_shard=600)

    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "ds"), how, verify],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "has 4096 bytes since a moment ago, the manifest says" in done.stdout
    assert f"datakit sync --repair COPY {tmp_path / 'ds'}" in done.stdout
