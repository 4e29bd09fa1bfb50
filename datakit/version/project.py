"""project: a directory that DVC works in: its settings, its cache, its remotes, and what a pointer in it points at.

A pointer is what a person writes for a version of data: `dvc.lock:STAGE[:OUT]` or `FILE.dvc`. Neither git nor dvc is
needed to follow one; `dvc.lock` and `.dvc/config` are enough. Of DVC's settings the project's own two files are read
(`.dvc/config` and `.dvc/config.local`, the second over the first), not those of the user or the machine.

Source: dvc 3.67.1, `dvc/config.py` and `dvc/config_schema.py`.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datakit.errors import InputError, NotFound, UsageError
from datakit.storage.access import StoreOptions, nearest
from datakit.storage.disk import at_door
from datakit.storage.store import Location, open_location
from datakit.version.document import read_yaml
from datakit.version.dvc import LOCK_NAME, PIPELINE_NAME, Lock, Out, Stage, read_dvc_file

DVC_DIR = ".dvc"
FILE_SUFFIX = ".dvc"

_POINTER = re.compile(rf"(?P<file>(?:.*/)?{re.escape(LOCK_NAME)}|.+{re.escape(FILE_SUFFIX)})(?::(?P<words>.*))?")
_REMOTE = re.compile(r"""'?remote\s+"(?P<name>[^"]+)"'?""")
_TEMPLATE = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a person wrote for a version of data.

    Attributes:
        file: The dvc.lock or `.dvc` file.
        stage: The stage, or None for a `.dvc` file.
        out: Which of its outputs, or None for the only one.
    """

    file: Path
    stage: str | None
    out: str | None

    @classmethod
    def parse(cls, text: str) -> Pointer | None:
        """A pointer in its written form; None where the text is none.

        Raises:
            UsageError: It is one and lacks the stage.
        """
        match = _POINTER.fullmatch(text)
        if match is None or "://" in text:
            return None
        file, words = Path(match["file"]), match["words"] or ""
        if file.name != LOCK_NAME:
            return cls(file, None, words or None)
        stage, _, out = words.partition(":")
        if not stage:
            hint = f"Write {text.rstrip(':')}:STAGE, such as {LOCK_NAME}:pack"
            raise UsageError(f"{text} names no stage", hint=hint, subject=text)
        return cls(file, stage, out.rstrip("/") or None)

    def __str__(self) -> str:
        return ":".join([str(self.file), *(word for word in (self.stage, self.out) if word)])

    def follow(self, data: bytes) -> tuple[Out, str]:
        """The output that it points at, in the bytes of its file, and the folder in it where it points into it.

        Raises:
            NotFound: No such stage or output is recorded.
            UsageError: There are several.
        """
        if self.stage is not None:
            return Lock.from_bytes(data, where=str(self.file)).stage(self.stage).locate(self.out)
        return Stage(str(self.file), (), {}, read_dvc_file(data, where=str(self.file))).locate(self.out)

    def read(self) -> bytes:
        """The bytes of its file.

        Raises:
            NotFound: It is not there.
        """
        if not self.file.is_file():
            hint = "Copy it from the project, with .dvc/config beside it"
            raise NotFound(f"{self.file} is not there", hint=hint, subject=str(self.file))
        with at_door(self.file):
            return self.file.read_bytes()


def read_lock(folder: Path) -> Lock | None:
    """The dvc.lock of a directory, or None."""
    path = folder / LOCK_NAME
    if not path.is_file():
        return None
    with at_door(path):
        return Lock.from_bytes(path.read_bytes(), where=str(path))


def read_pipeline(folder: Path) -> Mapping[str, Any]:
    """The stages of a directory's dvc.yaml, by name; none where there is no such file."""
    path = folder / PIPELINE_NAME
    if not path.is_file():
        return {}
    with at_door(path):
        return parse_pipeline(path.read_bytes(), where=str(path))


def parse_pipeline(data: bytes, *, where: str) -> Mapping[str, Any]:
    """The stages of a dvc.yaml, by name.

    Raises:
        InputError: It is no YAML.
    """
    value = read_yaml(data, where=where)
    stages = value.get("stages") if isinstance(value, Mapping) else None
    return stages if isinstance(stages, Mapping) else {}


def stage_dir(folder: Path, stage: str, *, stages: Mapping[str, Any]) -> Path:
    """The directory that a stage's paths are relative to: that of its dvc.yaml, or the `wdir` written there.

    Args:
        folder: Of the dvc.yaml.
        stage: Its name.
        stages: What dvc.yaml says, by `read_pipeline` or `parse_pipeline`.
    """
    wdir = _entry(stage, stages).get("wdir")
    # a templated one is not resolved here: its paths then lead to nothing, and nothing is said about them
    return folder / wdir if isinstance(wdir, str) else folder


def uncached(stage: str, path: str, *, stages: Mapping[str, Any]) -> bool:
    """Whether dvc.yaml says `cache: false` of an output, so that DVC knows its md5 and has no copy to bring back.

    Args:
        stage: The stage's name, `tokenize@train` for one of a `foreach`.
        path: The output's path as dvc.lock names it; a template in dvc.yaml stands for anything.
        stages: As for `stage_dir`.
    """
    entry = _entry(stage, stages)
    kinds = [entry.get(kind) for kind in ("outs", "metrics", "plots")]
    for out in (each for kind in kinds if isinstance(kind, list) for each in kind if isinstance(each, Mapping)):
        for written, options in out.items():
            pattern = ".*".join(map(re.escape, _TEMPLATE.split(str(written))))
            if isinstance(options, Mapping) and options.get("cache") is False and re.fullmatch(pattern, path):
                return True
    return False


def _entry(stage: str, stages: Mapping[str, Any]) -> Mapping[str, Any]:
    entry = stages.get(stage) or stages.get(stage.partition("@")[0])
    entry = entry.get("do", entry) if isinstance(entry, Mapping) else {}
    return entry if isinstance(entry, Mapping) else {}


@dataclass(frozen=True)
class Project:
    """A directory with `.dvc` in it.

    Attributes:
        root: The directory.
        core: Its settings `core.*`.
        cache: Its settings `cache.*`.
        remotes: Each remote's settings, by name.
    """

    root: Path
    core: Mapping[str, str]
    cache: Mapping[str, str]
    remotes: Mapping[str, Mapping[str, str]]

    @classmethod
    def at(cls, root: Path) -> Project:
        """Read the settings of a project.

        Raises:
            InputError: A file of them cannot be read as one.
        """
        sections: dict[str, dict[str, str]] = {}
        for name in ("config", "config.local"):
            path = root / DVC_DIR / name
            if path.is_file():
                for section, values in _read_config(path).items():
                    sections.setdefault(section, {}).update(values)
        matches = {section: _REMOTE.fullmatch(section) for section in sections}
        remotes = {match["name"]: sections[section] for section, match in matches.items() if match}
        return cls(root, sections.get("core", {}), sections.get("cache", {}), remotes)

    @classmethod
    def around(cls, path: Path) -> Project | None:
        """The project that a path lies in, or None."""
        absolute = Path(os.path.abspath(path))
        for folder in (absolute, *absolute.parents):
            if (folder / DVC_DIR).is_dir():
                return cls.at(folder)
        return None

    @property
    def cache_dir(self) -> Path:
        """The local cache."""
        return self.root / DVC_DIR / os.path.expanduser(self.cache.get("dir", "cache"))

    @property
    def default_remote(self) -> str | None:
        """The name of the remote that is meant where none is named, or None."""
        return self.core.get("remote") or (next(iter(self.remotes)) if len(self.remotes) == 1 else None)

    def remote(self, name: str | None = None, *, stores: Mapping[str, StoreOptions] | None = None) -> Location:
        """A remote: by name, or the default one.

        Where to reach it is said by the named store of the settings whose URL it begins with, then by DVC's settings,
        then by the environment.

        Raises:
            NotFound: There is no such remote, or no default.
            UsageError: It is of a kind that datakit does not read.
        """
        name = name or self.default_remote
        where = self.root / DVC_DIR / "config"
        if name is None:
            hint = "Name one: --remote URL, or dvc remote add --default NAME URL"
            if not where.parent.is_dir():
                message = f"{self.root} lies in no project of DVC, whose remote could be meant"
                raise NotFound(message, hint=f"Run dvc init where the project begins. {hint}", subject=str(self.root))
            raise NotFound(f"{where} names no default remote", hint=hint, subject=str(where))
        values = self.remotes.get(name)
        if values is None or "url" not in values:
            known = ", ".join(sorted(self.remotes)) or "none"
            raise NotFound(f"{where} has no remote {name}", hint=f"It has {known}", subject=name)
        for mode in ("version_aware", "worktree"):
            if values.get(mode, "").lower() == "true":
                message = f"remote {name} is {mode}: it keeps files under their own names, not by md5"
                raise UsageError(message, hint="Name a plain remote: --remote NAME", subject=name)
        url = values["url"]
        if "://" not in url:
            return open_location(self.root / DVC_DIR / os.path.expanduser(url))
        return open_remote(url, _options(values), stores=stores)


def open_remote(
    url: str, options: StoreOptions | None = None, *, stores: Mapping[str, StoreOptions] | None = None
) -> Location:
    """A remote by its URL; `options` are used where no named store of the settings says otherwise."""
    scheme, _, rest = url.partition("://")
    url = f"az://{rest}" if scheme == "azure" else url
    chosen = nearest(url, stores or {})
    if options is None:
        return open_location(url, stores=stores)
    known = options if chosen is None else chosen.over(options)
    return open_location(url, stores={"dvc-remote": replace(known, url=url)})


def _options(values: Mapping[str, str]) -> StoreOptions:
    """DVC's settings of a remote as ours."""
    who: StoreOptions | None = None
    if profile := values.get("profile"):
        env = {name: value for name, value in os.environ.items() if name != "AWS_ACCESS_KEY_ID"}
        who = StoreOptions.from_environment({**env, "AWS_PROFILE": profile})
    told = StoreOptions(
        endpoint_url=values.get("endpointurl"),
        region=values.get("region"),
        access_key_id=values.get("access_key_id"),
        secret_access_key=values.get("secret_access_key"),
        session_token=values.get("session_token"),
        anonymous=values.get("allow_anonymous_login", "").lower() == "true",
    )
    return told if who is None else told.over(who)


def _read_config(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(comment_prefixes=("#",), strict=False)
    try:
        with at_door(path):
            # DVC indents its values by four spaces, which configparser takes for a continuation after an unindented one
            parser.read_string("\n".join(line.strip() for line in path.read_text(encoding="utf-8").splitlines()))
    except (configparser.Error, UnicodeDecodeError) as error:
        hint = "Mend that file; dvc config --list says what is wrong with it"
        raise InputError(f"{path} cannot be read: {type(error).__name__}", hint=hint, subject=str(path)) from None
    return {name: {key: value.strip("\"'") for key, value in parser.items(name)} for name in parser.sections()}
