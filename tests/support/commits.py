"""commits: small commits for tests, and damage done to files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from datakit.data.manifest import Kind, Manifest
from datakit.storage.commit import commit, read_manifest


def make_commit(final: Path, members: dict[str, bytes], *, kind: Kind = "dataset", name: str | None = None) -> Manifest:
    """Commit these members; a commit that stands there is renewed."""
    with commit(final, kind=kind, name=name or final.name) as staging:
        for member, data in members.items():
            staging.write(member, data)
    assert staging.manifest is not None
    return staging.manifest


def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that no compression and no accident reproduces."""
    return random.Random(seed).randbytes(size_bytes)


def flip_bit(path: Path, offset: int) -> None:
    """Damage one bit of a file, leaving its size and its time as they were."""
    import os

    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def files_below(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def spoil_md5(root: Path, name: str) -> str:
    """Have a commit's manifest say another md5 of a member, and all else as it is; gives that md5."""
    manifest = read_manifest(root)
    members = tuple(replace(each, md5="0" * 32) if each.name == name else each for each in manifest.members)
    (root / "manifest.json").write_bytes(replace(manifest, members=members).to_bytes())
    return "0" * 32
