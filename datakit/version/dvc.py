"""dvc: the files that DVC keeps beside data, read and written without DVC: `.dir` objects, `.dvc` files, `dvc.lock`.

A directory is known to DVC by the md5 of a JSON list of its files' md5s. A manifest holds these md5s already, so the
address of a dataset, and of any other commit, is arithmetic: no shard is read again. What is written here `dvc pull`,
`dvc push`, `dvc status` and `dvc checkout` take for their own; the tests ask them.

Does not move bytes (`publish`, `tree`) and does not know where a project keeps them (`project`). Entries of DVC 2,
whose text files were hashed with other line ends, are refused by name.

Source: dvc 3.67.1 and dvc-data 3.18.3, `dvc_data/hashfile/tree.py`, `dvc/schema.py`, and files that they wrote.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datakit.data.digest import entry_of
from datakit.data.manifest import MANIFEST_NAME, Manifest
from datakit.errors import InputError, IntegrityError, NotFound, UsageError
from datakit.version.document import read_yaml, write_yaml

LOCK_NAME = "dvc.lock"
PIPELINE_NAME = "dvc.yaml"
DIR_SUFFIX = ".dir"
SCHEMA = "2.0"
"""Of dvc.lock, since DVC 2.0."""

_AGAIN = "Take it as it was from Git, or remove it and let DVC write it: dvc repro"
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")


def object_key(md5: str) -> str:
    """Where a cache or remote of DVC 3 keeps the object of this md5 (`.dir` included)."""
    return f"files/md5/{md5[:2]}/{md5[2:]}"


@dataclass(frozen=True)
class Tree:
    """A directory as DVC sees it: the md5 of each file, by its path below the directory.

    Attributes:
        members: Path to md5, in any order.
    """

    members: Mapping[str, str]

    @classmethod
    def of(cls, manifest: Manifest) -> Tree:
        """The directory of a commit: its members and `manifest.json` itself."""
        own = entry_of(MANIFEST_NAME, manifest.to_bytes())
        return cls({entry.name: entry.md5 for entry in (*manifest.members, own)})

    @classmethod
    def joined(cls, trees: Mapping[str, Tree]) -> Tree:
        """A directory of directories: the splits of a dataset."""
        return cls({f"{name}/{path}": md5 for name, tree in trees.items() for path, md5 in tree.members.items()})

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Tree:
        """Read a `.dir` object.

        Raises:
            IntegrityError: It is none, or a path in it leads out of its directory.
        """
        try:
            members = {str(item["relpath"]): str(item["md5"]) for item in json.loads(data)}
        except (ValueError, TypeError, KeyError):
            raise _damaged(f"{where} is not a .dir object of DVC", where) from None
        for path, md5 in members.items():
            if not _MD5.fullmatch(md5) or md5.endswith(DIR_SUFFIX):
                raise _damaged(f"{where}: {md5!r:.60} of {path} is not an md5", where)
            if any(step in ("", ".", "..") for step in path.split("/")) or "\\" in path or "\0" in path:
                raise _damaged(f"{where}: {path!r:.120} does not stay inside its directory", where)
        return cls(members)

    def to_bytes(self) -> bytes:
        """The `.dir` object: JSON with DVC's own spaces, sorted by path, non-ASCII escaped."""
        listed = [{"md5": self.members[path], "relpath": path} for path in sorted(self.members)]
        return json.dumps(listed, sort_keys=True).encode()

    @cached_property
    def md5(self) -> str:
        """The directory's address, `<32 hex>.dir`."""
        return hashlib.md5(self.to_bytes(), usedforsecurity=False).hexdigest() + DIR_SUFFIX

    def below(self, folder: str) -> Tree:
        """The part of it that lies in a folder; empty where there is none."""
        top = f"{folder}/" if folder else ""
        return Tree({path.removeprefix(top): md5 for path, md5 in self.members.items() if path.startswith(top)})


@dataclass(frozen=True, slots=True)
class Out:
    """A file or directory as `.dvc` files and dvc.lock record it, as an output or a dependency.

    Attributes:
        path: As it is written there, relative to that file.
        md5: Its address; ends in `.dir` for a directory.
        size: Bytes of all its files, or None where not recorded.
        nfiles: Files of a directory, or None.
    """

    path: str
    md5: str
    size: int | None = None
    nfiles: int | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.md5.endswith(DIR_SUFFIX)

    @classmethod
    def from_json(cls, value: Any, *, where: str) -> Out:
        """Read an entry.

        Raises:
            InputError: It has no md5, or one of DVC 2.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("path"), str):
            raise InputError(f"{where} has an entry without a path", hint=_AGAIN, subject=where)
        path, md5 = value["path"], value.get("md5")
        if not isinstance(md5, str) or not _MD5.fullmatch(md5):
            raise InputError(
                f"{where} records no md5 of {path}",
                hint=f"Record it: dvc commit {shlex.quote(str(path))}",
                subject=path,
            )
        if value.get("hash", "md5-dos2unix") != "md5":
            raise InputError(
                f"{where} records {path} as DVC 2 did", hint="Renew it: dvc cache migrate --dvc-files", subject=path
            )
        return cls(path, md5, _count(value.get("size")), _count(value.get("nfiles")))

    def to_json(self) -> dict[str, Any]:
        """The entry as dvc.lock holds it."""
        value: dict[str, Any] = {"path": self.path, "hash": "md5", "md5": self.md5}
        if self.size is not None:
            value["size"] = self.size
        if self.nfiles is not None:
            value["nfiles"] = self.nfiles
        return value


def _damaged(message: str, where: str) -> IntegrityError:
    hint = "Record it anew where the data is whole: dvc commit, then dvc push"
    return IntegrityError(message, hint=hint, subject=where)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_dvc_file(data: bytes, *, where: str) -> tuple[Out, ...]:
    """What a `.dvc` file points at.

    Raises:
        InputError: It is not one.
    """
    value = read_yaml(data, where=where)
    if not isinstance(value, Mapping) or not isinstance(value.get("outs"), list) or not value["outs"]:
        hint = "Take it from Git again, or make it anew: dvc add PATH"
        raise InputError(f"{where} is not a .dvc file: it has no outs", hint=hint, subject=where)
    return tuple(Out.from_json(item, where=where) for item in value["outs"])


def write_dvc_file(out: Out) -> bytes:
    """A `.dvc` file, as `dvc add` would write it."""
    value = out.to_json()
    names = [name for name in ("md5", "size", "nfiles", "hash", "path") if name in value]
    return write_yaml({"outs": [{name: value[name] for name in names}]})


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as dvc.lock records its last good end.

    Attributes:
        name: Such as `pack` or `tokenize@train`.
        deps: What it was made from.
        params: File to name to value.
        outs: What it made.
    """

    name: str
    deps: tuple[Out, ...]
    params: Mapping[str, Mapping[str, Any]]
    outs: tuple[Out, ...]

    def locate(self, path: str | None) -> tuple[Out, str]:
        """The output that a path is or lies in, and where in it; without a path, as `out`.

        Raises:
            UsageError, NotFound: As `out`.
        """
        for out in self.outs if path is not None else ():
            if out.is_dir and path is not None and path.startswith(f"{out.path}/"):
                return out, path.removeprefix(f"{out.path}/").strip("/")
        return self.out(path), ""

    def out(self, path: str | None) -> Out:
        """The output of this path; without one, the only output, or else the only directory among them.

        Raises:
            UsageError: It has several.
            NotFound: It has none of this path.
        """
        if path is not None:
            for out in self.outs:
                if out.path == path.rstrip("/"):
                    return out
            known = ", ".join(out.path for out in self.outs)
            raise NotFound(f"stage {self.name} has no output {path}", hint=f"It has {known}", subject=path)
        folders = [out for out in self.outs if out.is_dir]
        chosen = self.outs if len(self.outs) == 1 else folders
        if len(chosen) != 1:
            known = ", ".join(out.path for out in self.outs) or "none"
            message = f"stage {self.name} has {len(self.outs)} outputs ({known})"
            raise UsageError(message, hint=f"Name one: {LOCK_NAME}:{self.name}:PATH", subject=self.name)
        return chosen[0]


class Lock:
    """A dvc.lock.

    Args:
        value: Its document.
        where: Where it lies, for messages.
    """

    def __init__(self, value: Mapping[str, Any], *, where: str) -> None:
        self._value = value
        self.where = where

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Lock:
        """Read one.

        Raises:
            InputError: It is none.
            UsageError: Its schema is one that this version does not read.
        """
        value = read_yaml(data, where=where)
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is not a dvc.lock", hint=_AGAIN, subject=where)
        if value.get("schema") != SCHEMA:
            found = value.get("schema", "1.0, of DVC 1")
            hint = "Remove it and let DVC 3 write it: dvc repro; or use a newer datakit"
            raise UsageError(f"{where} has schema {found}; this datakit reads {SCHEMA}", hint=hint, subject=where)
        if not isinstance(value.get("stages", {}), Mapping):
            raise InputError(f"{where} is not a dvc.lock: its stages are no mapping", hint=_AGAIN, subject=where)
        return cls(value, where=where)

    @property
    def names(self) -> tuple[str, ...]:
        """The stages that have ended well, in its order."""
        return tuple(self._value.get("stages", {}))

    def stage(self, name: str) -> Stage:
        """A stage.

        Raises:
            NotFound: It is not in there.
            InputError: Its entry is not what DVC writes.
        """
        value = self._value.get("stages", {}).get(name)
        if not isinstance(value, Mapping):
            known = ", ".join(self.names) or "no stage"
            raise NotFound(f"{self.where} has no stage {name}", hint=f"It has {known}", subject=name)
        params = {file: values for file, values in (value.get("params") or {}).items() if isinstance(values, Mapping)}
        return Stage(name, self._outs(value, "deps"), params, self._outs(value, "outs"))

    def stages(self) -> Iterable[Stage]:
        """All stages, in its order."""
        return [self.stage(name) for name in self.names]

    def with_stage(self, stage: Stage) -> Lock:
        """This lock with another record of one of its stages; what it says besides (`cmd`) stays."""
        stages = dict(self._value.get("stages", {}))
        value = dict(stages.get(stage.name, {}))
        parts: dict[str, Any] = {
            "deps": [dep.to_json() for dep in stage.deps],
            "params": {file: dict(values) for file, values in stage.params.items()},
            "outs": [out.to_json() for out in stage.outs],
        }
        value |= {name: part for name, part in parts.items() if part}
        stages[stage.name] = value
        return Lock({**self._value, "stages": stages}, where=self.where)

    def to_bytes(self) -> bytes:
        """The file, as DVC would write it."""
        return write_yaml(dict(self._value))

    def _outs(self, value: Mapping[str, Any], field: str) -> tuple[Out, ...]:
        # a dependency on a remote address or another repository has no md5 of ours: it leads nowhere we could look
        entries = [item for item in value.get(field) or () if not (field == "deps" and "md5" not in item)]
        return tuple(Out.from_json(item, where=self.where) for item in entries)
