"""feed/dataset: any sample by number or key, never a damaged byte."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from datakit import InputError, IntegrityError, NotFound, UsageError, open_dataset
from datakit.data.manifest import MANIFEST_NAME
from support.cli import environment
from support.tiny import text_samples, write_dataset

SAMPLES = text_samples(23)


@pytest.fixture
def dataset_dir(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "ds", SAMPLES, per_shard=5)
    return tmp_path / "ds"


def test_every_sample_is_found_by_its_number(dataset_dir: Path) -> None:
    """Numbers count through the shards in order, and the bytes are those that were packed."""
    dataset = open_dataset(dataset_dir)

    read = [(item.number, item.key, {part: bytes(data) for part, data in item.parts.items()}) for item in dataset]

    assert read == [(number, sample.key, dict(sample.parts)) for number, sample in enumerate(SAMPLES)]
    assert len(dataset) == len(SAMPLES)
    assert dataset.parts == ("json", "txt")


def test_every_sample_is_found_by_its_key(dataset_dir: Path) -> None:
    """A key leads to the same sample as its number, whichever shard holds it."""
    dataset = open_dataset(dataset_dir)

    numbers = [dataset[sample.key].number for sample in SAMPLES]

    assert numbers == list(range(len(SAMPLES)))


def test_its_shards_are_those_of_the_manifest(dataset_dir: Path) -> None:
    """A tar that lies beside them, of an older version say, is none of them."""
    (dataset_dir / "ds-0badcafe.tar").write_bytes(b"")

    shards = open_dataset(dataset_dir).shards

    assert [shard.name for shard in shards] == [f"ds-{number:08x}.tar" for number in range(5)]
    assert all(shard.is_file() for shard in shards)


def test_negative_numbers_count_from_the_end(dataset_dir: Path) -> None:
    """`ds[-1]` is the last sample, as in a list."""
    dataset = open_dataset(dataset_dir)

    assert dataset[-1].key == SAMPLES[-1].key


@pytest.mark.parametrize("number", [23, -24, 10**9])
def test_a_number_beyond_the_dataset_is_an_index_error(dataset_dir: Path, number: int) -> None:
    """Numbers outside the dataset never wrap around."""
    dataset = open_dataset(dataset_dir)

    with pytest.raises(IndexError, match="23 samples"):
        dataset[number]


def test_an_unknown_key_is_not_found(dataset_dir: Path) -> None:
    """The message names the key."""
    dataset = open_dataset(dataset_dir)

    with pytest.raises(NotFound, match="no sample nobody"):
        dataset["nobody"]


def test_a_flipped_bit_in_any_part_is_named(dataset_dir: Path) -> None:
    """Each part is compared with its checksum; the error says shard, part and sample, and the hint mends it."""
    shard = sorted(dataset_dir.glob("*.tar"))[1]
    data = bytearray(shard.read_bytes())
    at = data.index(b'{"n": 7}')
    data[at + 3] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)

    dataset = open_dataset(dataset_dir)

    assert dataset[6].key == "s00006"
    with pytest.raises(IntegrityError, match=rf"{shard.name}: part json of sample s00007 has crc32c") as caught:
        dataset[7]
    assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {dataset_dir}"


def test_without_verification_the_disk_is_trusted(dataset_dir: Path) -> None:
    """`verify="none"` hands out whatever is there."""
    shard = min(dataset_dir.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[data.index(b'{"n": 0}') + 3] ^= 1
    shard.write_bytes(data)

    assert bytes(open_dataset(dataset_dir, verify="none")[0].parts["json"]) != SAMPLES[0].parts["json"]


@pytest.mark.parametrize("pattern", ["*.tar", "*.arrow"])
def test_a_truncated_file_is_refused_before_the_first_sample(dataset_dir: Path, pattern: str) -> None:
    """A shard or index that is shorter than the manifest says is never mapped into an answer."""
    victim = min(dataset_dir.glob(pattern))
    victim.write_bytes(victim.read_bytes()[:-1])

    with pytest.raises(IntegrityError, match=f"{victim.name} has .* the manifest says"):
        open_dataset(dataset_dir)[0]


def test_a_damaged_index_is_named(dataset_dir: Path) -> None:
    """Garbage of the right size in place of an index is an integrity error with the file's name."""
    victim = min(dataset_dir.glob("*.arrow"))
    victim.write_bytes(bytes(victim.stat().st_size))

    with pytest.raises(IntegrityError, match=f"{victim.name} has crc32c"):
        open_dataset(dataset_dir)[0]


@pytest.mark.parametrize("verify", ["crc", "none"])
def test_a_changed_byte_in_an_index_is_named(dataset_dir: Path, verify: Literal["crc", "none"]) -> None:
    """A key that still reads well is not what the manifest says; an index is compared whatever `verify` is."""
    victim = min(dataset_dir.glob("*.arrow"))
    victim.write_bytes(victim.read_bytes().replace(b"s00000", b"z00000"))

    with pytest.raises(IntegrityError, match=rf"{victim.name} has crc32c \w+ in its bytes") as caught:
        open_dataset(dataset_dir, verify=verify)[0]
    assert caught.value.hint == f"Mend it from a whole copy: datakit sync --repair COPY {dataset_dir}"


def test_it_survives_pickling(dataset_dir: Path) -> None:
    """A worker process gets the path and the manifest, not the maps."""
    dataset = open_dataset(dataset_dir)
    dataset[0]

    copy = pickle.loads(pickle.dumps(dataset))

    assert [item.key for item in copy] == [item.key for item in dataset]
    assert len(pickle.dumps(dataset)) < 40_000


def test_what_is_no_dataset_is_refused_in_a_sentence(tmp_path: Path, dataset_dir: Path) -> None:
    """A missing directory, an empty one, a URL, an empty dataset and a wrong word each have their own error."""
    (tmp_path / "empty").mkdir()
    write_dataset(tmp_path / "none", [])

    with pytest.raises(NotFound, match="nowhere"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(NotFound, match=MANIFEST_NAME):
        open_dataset(tmp_path / "empty")
    with pytest.raises(UsageError, match="not on a local disk"):
        open_dataset("s3://bucket/ds")
    with pytest.raises(InputError, match="no sample"):
        open_dataset(tmp_path / "none")
    with pytest.raises(UsageError, match="crc or none"):
        open_dataset(dataset_dir, verify="maybe")  # type: ignore[arg-type]


def test_opening_and_reading_loads_no_object_store_client(dataset_dir: Path) -> None:
    """A process that reads datasets never imports obstore, fsspec or torch."""
    code = (
        "import sys, datakit; ds = datakit.open_dataset(sys.argv[1]); ds[3]; ds['s00009'];"
        "print(sorted({'obstore', 'fsspec', 'torch'} & set(sys.modules)))"
    )

    command = [sys.executable, "-c", code, str(dataset_dir)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())

    assert out.stdout.strip() == "[]"


def test_more_shards_than_descriptors_are_read(tmp_path: Path) -> None:
    """The shards that were used last stay mapped, the others are let go; parts that were handed out stay valid."""
    write_dataset(tmp_path / "many", text_samples(120), per_shard=1)
    code = (
        "import resource, sys, datakit; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "ds = datakit.open_dataset(sys.argv[1]); first = ds[0].parts['json'];"
        "keys = [item.key for item in ds] + [ds[n * 7 % 120].key for n in range(240)] + [ds['s00119'].key];"
        "print(len(keys), len(set(keys)), bytes(first).decode())"
    )

    command = [sys.executable, "-c", code, str(tmp_path / "many")]
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())

    assert out.stdout.strip() == '361 120 {"n": 0}', out.stderr
