"""tars: tars as others write them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from datakit.data.shard import Sample


def write_tar(path: Path, files: Iterable[tuple[str, bytes]], *, kind: int = tarfile.GNU_FORMAT) -> Path:
    """A tar of these files in this order, with a time, an owner and a record padded to 10 KiB, as Python writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(data), 1_700_000_000, "someone"
            tar.addfile(info, io.BytesIO(data))
    return path


def write_webdataset(path: Path, samples: Iterable[Sample]) -> Path:
    """A shard by webdataset's own writer."""
    import webdataset

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream, webdataset.TarWriter(stream) as writer:
        for sample in samples:
            writer.write({"__key__": sample.key, **sample.parts})
    return path


def pairs(numbers: Iterable[int]) -> list[Sample]:
    """Samples of two parts."""
    return [Sample(f"img-{n:04d}", {"cls": b"%d" % (n % 10), "jpg": b"jpeg %d " % n * (1 + n % 90)}) for n in numbers]


def files_of(samples: Iterable[Sample]) -> list[tuple[str, bytes]]:
    """The files of samples, those of one sample together."""
    return [(f"{sample.key}.{part}", data) for sample in samples for part, data in sample.parts.items()]


def contents(folder: Path) -> Mapping[str, bytes]:
    """Every file below a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
