"""tokenize: a dataset of records to a dataset of token ids, with a mask of the tokens that are learned.

Each shard gives one shard, in the same order, so a small change of the records stays small here too, and a second run
redoes only the shards whose source, tokenizer or settings have changed. A sample has the parts `ids.npy` (int32 [T])
and `mask.npy` (uint8 [T], 1 where a token is supervised), and its index the column `tokens`. Records that are cut, and
records left out because nothing in them is learned, are counted and told.

What it does not do: pad, batch, or pack several records into one sequence (that is the trainer's, from the same
bytes). Formats: NPY 1.0 (numpy.org, `numpy.lib.format`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from datakit.data.digest import crc32c
from datakit.data.keys import key_hash
from datakit.data.manifest import Contents, Manifest, ShardEntry
from datakit.data.shard import Row, Sample
from datakit.errors import InputError, IntegrityError, Refused, UsageError
from datakit.events import Caution, OnEvent, Progress, ignore
from datakit.pack.cut import check_name
from datakit.pack.masks import Draft, Encoded, TemplateRefusal, draft
from datakit.pack.standing import kept, none_of, refuse_foreign, share_a_key, standing_shards
from datakit.pack.tokenizer import Tokenizer
from datakit.pack.writing import (
    BuiltShard,
    describe,
    hand_over,
    make_shard,
    name_shards,
    sync_shard,
    write_shard,
)
from datakit.source.scan import local_directory
from datakit.storage.commit import Staging, check_place, commit, read_manifest
from datakit.storage.disk import make_dirs, map_file
from datakit.storage.indexes import open_index
from datakit.units import agree, format_number_of

ALGORITHM = 1
IDS_PART, MASK_PART = "ids.npy", "mask.npy"
_RECORD_PART = "json"
_MEND = "Mend that record in its source, and pack it again"
_BATCH = 1024
"""Records encoded together; the tokenizer spreads a batch over the cores."""


@dataclass(frozen=True, slots=True)
class TokenizeSettings:
    """How records become tokens.

    Attributes:
        seq_len: Longest sample in tokens; longer ones are cut at the end. At least 2.
        template: `auto` for the tokenizer's own chat template, or the path of a Jinja file.
        date: The date that a chat template sees, such as `2024-07-26`; without it, one that asks for it is refused.
    """

    seq_len: int = 2048
    template: str = "auto"
    date: str | None = None

    def __post_init__(self) -> None:
        if self.seq_len < 2:
            raise UsageError(f"seq_len must be 2 or more, not {self.seq_len}", hint="2048 suits most models")
        if self.date is not None and self.day is None:
            raise UsageError(f"{self.date!r} is not a date", hint="Write it as 2024-07-26", subject=self.date)

    @property
    def day(self) -> dt.date | None:
        """The date, or None where none is set or it is none."""
        with contextlib.suppress(ValueError):
            return None if self.date is None else dt.date.fromisoformat(self.date)
        return None


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """What was made.

    Attributes:
        path: The dataset.
        name: Its name.
        samples: Its samples.
        tokens: Tokens in them.
        supervised_tokens: Tokens that are learned: supervised ones, without a sample's first, which nothing precedes.
        truncated: Samples that were cut to `seq_len`.
        dropped: Records left out because no token in them is learned.
        shards: Its shards.
        reused: How many of them an earlier run had made.
        shard_bytes: Bytes of the shards.
        tokenizer_digest: Identity of tokenizer and template, 64 hex digits.
        content_digest: Same samples.
        layout_digest: Same shards, same order.
        manifest_digest: Same commit; None in a dry run.
        written: Whether anything was committed; a dry run commits nothing.
    """

    path: Path
    name: str
    samples: int
    tokens: int
    supervised_tokens: int
    truncated: int
    dropped: int
    shards: int
    reused: int
    shard_bytes: int
    tokenizer_digest: str
    content_digest: str
    layout_digest: str
    manifest_digest: str | None
    written: bool


@dataclass(frozen=True, slots=True)
class _Origin:
    """Which source shard a shard was made of (None made: all of it was left out), and what was counted."""

    shard: str
    made: str | None
    dropped: int
    truncated: int
    supervised_tokens: int


def tokenize(
    dataset: str | Path,
    dest: str | Path,
    *,
    model: str | Path,
    settings: TokenizeSettings | None = None,
    on_event: OnEvent = ignore,
    dry_run: bool = False,
) -> TokenizeResult:
    """Turn a dataset's records into token ids and masks.

    Args:
        dataset: A dataset whose samples have a part `json`: chats, prompts with completions, or texts.
        dest: Directory of the new dataset; new, empty, or tokenized before.
        model: Directory with the tokenizer's files.
        settings: How.
        on_event: Told how far it is.
        dry_run: Encode everything and write nothing.

    Raises:
        NotFound: The dataset or the model's directory is not there.
        InputError: A record has no known form, a template cannot be masked, nothing is left to learn.
        IntegrityError: An index is not what the manifest says, or a sample's bytes not what its index says.
        Refused: The destination holds something else, such as a dataset that is not of tokens, or tokens of which not a
            single sample is in this dataset.
    """
    settings = settings or TokenizeSettings()
    root = local_directory(dataset, verb="tokenize")
    target = local_directory(dest, verb="tokenize").absolute()
    check_name(target.name)
    if target == root.absolute():
        raise UsageError(f"{dest} is the dataset that is read", hint="Name another destination", subject=str(dest))
    source = read_manifest(root)
    tokenizer = Tokenizer(model, template=settings.template, date=settings.day)
    work = _Work(root, source, tokenizer, settings, target)
    if dry_run:
        made = work.run(check_place(target, kind="dataset", name=target.name), None, on_event)
        return _result(work, made, None, on_event)
    make_dirs(target.parent)
    with commit(target, kind="dataset", name=target.name) as staging:
        made = work.run(staging.previous, staging, on_event)
        staging.about.update(made.contents.to_about())
    return _result(work, made, staging.manifest, on_event)


@dataclass(frozen=True, slots=True)
class _Made:
    """The shards of the new dataset, where each came from, and how many an earlier run had made."""

    origins: Sequence[_Origin]
    shards: Sequence[BuiltShard]
    contents: Contents
    reused: int


@dataclass
class _Work:
    """One run over the shards of a dataset."""

    root: Path
    source: Manifest
    tokenizer: Tokenizer
    settings: TokenizeSettings
    target: Path

    def __post_init__(self) -> None:
        self.ends = self.tokenizer.ends
        self.how = {"algorithm": ALGORITHM, "seq_len": self.settings.seq_len, "tokenizer": self.tokenizer.digest}
        if self.settings.day is not None:
            self.how["date"] = self.settings.day.isoformat()

    def run(self, previous: Manifest | None, staging: Staging | None, on_event: OnEvent) -> _Made:
        """Make or keep a shard for each shard of the source, in order; written only where there is a staging."""
        self._refuse_another(previous)
        origins: list[_Origin] = []
        shards: list[BuiltShard] = []
        written: dict[str, Path] = {}
        earlier = _earlier(previous, self.how)
        standing = standing_shards(previous, self.target, on_event=on_event) if earlier else {}
        contents = self.source.contents
        done, reused = 0, 0
        on_event(Progress("tokenize", 0, contents.samples, "samples"))
        for ordinal, entry in enumerate(contents.shards):
            origin = earlier.get(self.source.member(entry.name).sha256)
            built = (
                kept(standing.get(origin.made or ""), self.target, on_event=on_event) if origin is not None else None
            )
            if origin is None or (built is None and origin.made is not None):
                path = staging.path / f"shard-{ordinal:06d}" if staging is not None else None
                origin, built = self._make(entry, path)
                if built is not None and path is not None:
                    written[built.shard.sha256] = path
            else:
                reused += built is not None
            origins.append(origin)
            shards += [built] if built is not None else []
            done += entry.samples
            on_event(Progress("tokenize", done, contents.samples, "samples"))
        if not shards:
            raise InputError(f"{self.root}: no record has a token to learn", hint="Give records with answers")
        shards = name_shards(shards, dataset=self.target.name, previous=previous)
        if staging is not None:
            hand_over(staging, shards, written=written, final=self.target)
        names = iter(shards)
        origins = [replace(o, made=None if o.made is None else next(names).shard.name) for o in origins]
        about = {"tokenize": self.how, "source": _source(self.source), "from": [asdict(origin) for origin in origins]}
        return _Made(origins, shards, describe(shards, pack=about), reused)

    def _refuse_another(self, previous: Manifest | None) -> None:
        """See that tokens about to be renewed are of an older version of this dataset: a shard or key is the same."""
        _refuse_records(previous, self.target)
        shards = self.source.contents.shards
        recorded = {origin["shard"] for origin in _recorded(previous)}
        if previous is None or not recorded.isdisjoint(self.source.member(entry.name).sha256 for entry in shards):
            return
        keys = chain.from_iterable(open_index(self.root, self.source, entry).keys() for entry in shards)
        if not share_a_key([(self.target, previous)], np.fromiter(map(key_hash, keys), np.uint64)):
            said = f"{none_of(previous.contents.samples, f'dataset {previous.name}')} {self.root}"
            way = f"if it is no longer needed, remove it: rm -r {shlex.quote(str(self.target))}"
            hint = f"Name another destination; or, {way}"
            raise Refused(f"{self.target} holds {said}", hint=hint, subject=str(self.target))

    def _make(self, entry: ShardEntry, path: Path | None) -> tuple[_Origin, BuiltShard | None]:
        counts = {"dropped": 0, "truncated": 0, "supervised_tokens": 0}
        samples = list(self._samples(entry, counts))
        source = self.source.member(entry.name).sha256
        if not samples:
            return _Origin(source, None, **counts), None
        if path is None:
            built = make_shard(samples, dataset=self.target.name, write=len, write_index=len)
        else:
            built = write_shard(path, samples, dataset=self.target.name)
            sync_shard(path)
        return _Origin(source, built.shard.name, **counts), built

    def _samples(self, entry: ShardEntry, counts: dict[str, int]) -> Iterator[Sample]:
        rows = open_index(self.root, self.source, entry).rows()
        data = map_file(self.root / entry.name)
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            drafts = [self._draft(row, data, entry) for row in batch]
            ids = iter(self.tokenizer.encode([text for one in drafts for text in one.texts]))
            for row, one in zip(batch, drafts, strict=True):
                encoded = one.finish([next(ids) for _ in one.texts])
                sample = _cut(row.key, encoded, self.settings.seq_len, counts)
                if sample is not None:
                    yield sample

    def _draft(self, row: Row, data: memoryview, entry: ShardEntry) -> Draft:
        place = row.parts.get(_RECORD_PART)
        where = f"sample {row.key} of {self.root / entry.name}"
        if place is None:
            raise InputError(
                f"{where} has no part {_RECORD_PART}, it has {', '.join(row.parts)}",
                hint="Name a dataset that was packed from JSON lines: datakit pack chat.jsonl DATASET",
                subject=row.key,
            )
        content = bytes(data[place.offset : place.offset + place.size])
        if crc32c(content) != place.crc32c:
            raise IntegrityError(
                f"{where} has crc32c {crc32c(content):08x}, the index says {place.crc32c:08x}",
                hint=f"See all damage: datakit verify {shlex.quote(str(self.root))}",
                subject=row.key,
            )
        try:
            record = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{where} is not JSON: {error}", hint=_MEND, subject=row.key) from None
        if not isinstance(record, dict):
            raise InputError(f"{where} is not a JSON object", hint=_MEND, subject=row.key)
        try:
            return draft(record, chat=self.tokenizer, ends=self.ends, where=where)
        except TemplateRefusal as error:
            raise InputError(f"{where}: {error.message}", hint=error.hint, subject=row.key) from None


def _cut(key: str, encoded: Encoded, seq_len: int, counts: dict[str, int]) -> Sample | None:
    """The sample, cut to `seq_len`; None where nothing in it is learned (the first token has nothing before it)."""
    ids, mask = encoded.ids[:seq_len], encoded.mask[:seq_len]
    if not mask[1:].any():
        counts["dropped"] += 1
        return None
    counts["truncated"] += len(encoded.ids) > seq_len
    counts["supervised_tokens"] += int(mask[1:].sum())
    return Sample(key, {IDS_PART: _npy(ids), MASK_PART: _npy(mask)}, tokens=len(ids))


def _npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=(1, 0), allow_pickle=False)
    return out.getvalue()


def _refuse_records(previous: Manifest | None, target: Path) -> None:
    """See that what would be renewed is a dataset of tokens."""
    refuse_foreign(previous, target)
    if previous is not None and "tokenize" not in previous.contents.pack:
        raise Refused(
            f"{target} holds dataset {previous.name}, which pack made", hint="Name another place", subject=str(target)
        )


def _earlier(previous: Manifest | None, how: Mapping[str, Any]) -> dict[str, _Origin]:
    """What an earlier run here with the same tokenizer and settings made of each source shard."""
    if previous is None or previous.contents.pack.get("tokenize") != how:
        return {}
    return {origin["shard"]: _Origin(**origin) for origin in _recorded(previous)}


def _recorded(previous: Manifest | None) -> list[dict[str, Any]]:
    """What an earlier run says of the shards that it read."""
    return [] if previous is None else previous.contents.pack.get("from", [])


def _source(source: Manifest) -> dict[str, Any]:
    contents = source.contents
    return {
        "name": source.name,
        "manifest_digest": source.digest,
        "content_digest": contents.content_digest,
        "layout_digest": contents.layout_digest,
        "pack": contents.pack,
    }


def _result(work: _Work, made: _Made, manifest: Manifest | None, on_event: OnEvent) -> TokenizeResult:
    contents = made.contents
    result = TokenizeResult(
        path=work.target,
        name=work.target.name,
        samples=contents.samples,
        tokens=contents.tokens or 0,
        supervised_tokens=sum(origin.supervised_tokens for origin in made.origins),
        truncated=sum(origin.truncated for origin in made.origins),
        dropped=sum(origin.dropped for origin in made.origins),
        shards=len(made.shards),
        reused=made.reused,
        shard_bytes=sum(built.shard.bytes for built in made.shards),
        tokenizer_digest=work.tokenizer.digest,
        content_digest=contents.content_digest,
        layout_digest=contents.layout_digest,
        manifest_digest=manifest.digest if manifest is not None else None,
        written=manifest is not None,
    )
    seq_len = work.settings.seq_len
    if result.truncated:
        some = f"{result.truncated} of {format_number_of(result.samples, 'sample')}"
        told = f"{some} {agree(result.truncated, 'was', 'were')} cut to {seq_len} tokens"
        on_event(Caution(told, hint="Set a larger tokenize.seq_len to keep them whole"))
    if result.dropped:
        left = f"{format_number_of(result.dropped, 'record')} {agree(result.dropped, 'was', 'were')} left out"
        on_event(Caution(f"{left}: nothing in the first {seq_len} tokens is learned"))
    return result
