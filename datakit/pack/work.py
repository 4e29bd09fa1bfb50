"""work: what becomes of a plan: all of it built and committed, a share of it built, or none of it done.

Shards that are there already, from an earlier pack or from one that was killed, are taken as they are. A split is one
commit; its members are second names of the built files, so that a kill in the middle of a commit loses none of them.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from datakit.data.index import Index
from datakit.data.manifest import Manifest
from datakit.errors import IntegrityError, NoSpace
from datakit.events import Caution, Note, OnEvent, Progress
from datakit.pack.cut import PackSettings
from datakit.pack.engines import Crew
from datakit.pack.planning import Plan, PlannedShard, PlannedSplit
from datakit.pack.receipts import Memory, Receipt
from datakit.pack.result import PackedDataset
from datakit.pack.sidecars import write_side_files
from datakit.pack.standing import Found, reusable, stood
from datakit.pack.tasks import Job, build_all
from datakit.pack.twins import DIGEST_BYTES, report, rows
from datakit.pack.writing import BuiltShard, describe, name_shards
from datakit.source.fetching import Fetched
from datakit.source.records import Records
from datakit.storage import disk
from datakit.storage.commit import Staging, check_place, commit
from datakit.storage.disk import map_file
from datakit.storage.links import link_or_copy
from datakit.units import agree, format_bytes, format_number_of

RACY_NS = 2 * 10**9
"""A file that changed so shortly before it was listed may change again under the same time: file systems keep times in
steps of up to 2 s (FAT; ext4 and XFS of a clock tick)."""

DVC_STAGE = "DVC_STAGE"
"""Set by DVC for the command of a stage, whose outs it has removed before (dvc.org, `dvc repro`)."""


@dataclass
class Work:
    """One plan, and what becomes of it.

    Attributes:
        plan: The plan.
        records: The table that it was made of.
        local: The source as local files.
        settings: How to pack.
        memory: What earlier packs of the destination remember.
        target: The destination.
        listed_ns: When the source began to be listed.
        on_event: Told how far it is.
        lost: How many records of the source were left out, by why.
        num_built: Shards that were built, or would be.
    """

    plan: Plan
    records: Records
    local: Fetched
    settings: PackSettings
    memory: Memory
    target: Path
    listed_ns: int
    on_event: OnEvent
    lost: Mapping[str, int] = field(default_factory=dict)
    num_built: int = 0

    def rehearse(self, part: tuple[int, int] | None) -> tuple[PackedDataset, ...]:
        """What `execute` or `share` would do, and nothing of it done.

        With its refusals, but for one: whether splits leak is known when a folder's files have been read. It says so.
        """
        standing = [check_place(s.path, kind="dataset", name=s.dataset) for s in self.plan.splits]
        self.memory.begun(self.plan.digest, dest=self.target)
        found = self._look(standing)
        jobs = self._jobs(found, part)
        self._check_space(jobs)
        self.num_built = len(jobs)
        if not self.records.exact and len(self.plan.splits) > 1:
            self.on_event(Note("whether splits share samples is seen when shards are built, and then refused"))
        return self._datasets(found, [stood(previous, self.memory) for previous in standing])

    def share(self, part: tuple[int, int], crew: Crew) -> tuple[PackedDataset, ...]:
        """Build one share of what is new, for the pack that will commit."""
        standing = [check_place(s.path, kind="dataset", name=s.dataset) for s in self.plan.splits]
        found = self._look(standing)
        self.memory.agree(self.plan.digest, dest=self.target)
        jobs = self._jobs(found, part)
        self._check_space(jobs)
        self._build(jobs, crew, f"work-{part[0]}-of-{part[1]}", others=0)
        return self._datasets(found, [stood(previous, self.memory) for previous in standing])

    def execute(self, crew: Crew) -> tuple[PackedDataset, ...]:
        """Build what is new and keep what is not; then commit split after split, each in one step.

        An error before the last shard is built commits none. A kill between two commits leaves the splits before it new
        and those after it as they were; the same pack again makes them all new.
        """
        splits = self.plan.splits
        in_parts = self.memory.begun(self.plan.digest, dest=self.target)
        with contextlib.ExitStack() as stack:
            stagings = []
            for split in splits:
                stack.enter_context(disk.dirs_for(split.path))
                stagings.append(stack.enter_context(commit(split.path, kind="dataset", name=split.dataset)))
            found = self._look([staging.previous for staging in stagings])
            before = [stood(staging.previous, self.memory) for staging in stagings]
            jobs = self._jobs(found, None)
            self._check_space(jobs)
            if in_parts and jobs:
                self.on_event(_unshared(len(jobs), sum(len(split.shards) for split in splits)))
            there = self.plan.samples - sum(len(job.shard.at) for job in jobs)
            built = self._build(jobs, crew, "work", others=there)
            whole = [self._complete(split, old, built) for split, old in zip(splits, found, strict=True)]
            if not self.records.exact:
                self._look_for_twins(whole)
            receipts = [self._hand_over(*one) for one in zip(stagings, splits, whole, strict=True)]
        datasets = tuple(map(_committed, self._datasets(found, before), found, before, stagings))
        for dataset in datasets:
            if dataset.reused:
                what = f"{dataset.reused} of {format_number_of(dataset.shards, 'shard')}"
                verb = agree(dataset.reused, "was", "were") if dataset.new_bytes is None else ""
                said = f"{verb} built before" if verb else f"{agree(dataset.reused, 'has', 'have')} the bytes of before"
                self.on_event(Note(f"{dataset.name}: {what} {said}"))
        self.memory.remember(
            [receipt for its in receipts for receipt in its],
            at={
                receipt.task: split.path / receipt.built.shard.name
                for split, its in zip(splits, receipts, strict=True)
                for receipt in its
            },
            links=DVC_STAGE in os.environ,
        )
        return datasets

    def _look(self, standing: Sequence[Manifest | None]) -> list[dict[int, Found]]:
        return [
            reusable(old, split, memory=self.memory, exact=self.records.exact, on_event=self.on_event)
            for old, split in zip(standing, self.plan.splits, strict=True)
        ]

    def _jobs(self, found: Sequence[Mapping[int, Found]], part: tuple[int, int] | None) -> list[Job]:
        """What is still to be built; of a share, each n-th shard of the plan, whatever is there already."""
        jobs, number = [], 0
        for split, old in zip(self.plan.splits, found, strict=True):
            for ordinal, shard in enumerate(split.shards):
                if ordinal not in old and (part is None or number % part[1] == part[0]):
                    jobs.append(Job(split.dataset, shard))
                number += 1
        return jobs

    def _build(self, jobs: Sequence[Job], crew: Crew, room: str, *, others: int) -> dict[str, Receipt]:
        """Build shards; `others` are samples that count as done already."""
        total = others + sum(len(job.shard.at) for job in jobs)
        progress = Progress("pack", 0, total, "samples")
        self.on_event(progress)
        self.num_built = len(jobs)
        with self.memory.workroom(room) as place:
            try:
                built = build_all(
                    jobs,
                    records=self.records,
                    local=self.local,
                    crew=crew,
                    memory=self.memory,
                    room=place,
                    bundle=self.settings.bundle,
                    settled=self._settled,
                    progress=replace(progress, done=others),
                    on_event=self.on_event,
                )
            except NoSpace:
                # what others need to end their work is room, and the next pack can build this again
                self.memory.forget_built(job.shard.task for job in jobs)
                raise
        self.local.check()
        return built

    def _settled(self, shard: PlannedShard) -> bool:
        return self.records.newest_ns(shard.positions) < self.listed_ns - RACY_NS

    def _complete(self, split: PlannedSplit, old: Mapping[int, Found], built: Mapping[str, Receipt]) -> list[Found]:
        """Every shard of a split, in order, and where its files are."""
        return [
            old[ordinal] if ordinal in old else Found(built[shard.task], self.memory.path_of(shard.task))
            for ordinal, shard in enumerate(split.shards)
        ]

    def _look_for_twins(self, whole: Sequence[Sequence[Found]]) -> None:
        """Tell which samples hold the same bytes, as the indexes say; raises where they are in two splits."""
        paths = [one.index for its in whole for one in its]
        column = self.local.spill.column(np.uint8, width=DIGEST_BYTES)
        firsts = [0]
        for path in paths:  # one is open at a time: a folder may become more shards than a process may have files
            its_own = b"".join(_index_at(path).digests())
            firsts.append(firsts[-1] + len(its_own) // DIGEST_BYTES)
            column.append(rows(its_own))
        assert firsts[-1] == self.plan.samples

        def key_at(position: int) -> str:
            number = bisect_right(firsts, position) - 1
            return _index_at(paths[number]).key(position - firsts[number])

        splits = [(split.split, split.samples) for split in self.plan.splits]
        if (said := report(column.done(), splits, key_at)) is not None:
            self.on_event(said)

    def _hand_over(self, staging: Staging, split: PlannedSplit, whole: Sequence[Found]) -> list[Receipt]:
        """Make the shards of a split, under their names, members of its commit, and describe it."""
        named = name_shards([one.receipt.built for one in whole], dataset=split.dataset, previous=staging.previous)
        for built, one in zip(named, whole, strict=True):
            for entry, path in ((built.shard, one.path), (built.index, one.index)):
                if path == split.path / entry.name:
                    staging.keep(entry.name)
                else:
                    copied = link_or_copy(path, staging.path / entry.name)
                    if copied is not None and copied.sha256 != entry.sha256:
                        self.memory.forget(one.receipt.task)
                        raise IntegrityError(
                            f"{path} is not what it was when it was built",
                            hint="Run the same command again: that shard is built anew",
                            subject=str(path),
                        )
                    staging.adopt(entry)
        pack = self.settings.to_json() | {"split": split.split}
        if lost := {why: count for why, count in self.lost.items() if count}:
            pack["left_out"] = lost
        if (parent := _parent_of(split, named)) is not None:
            pack["parent"] = parent
        contents = describe(named, pack=pack)
        staging.about.update(contents.to_about())
        places = {built.index.name: one.index for built, one in zip(named, whole, strict=True)}
        derived = write_side_files(
            contents,
            lambda shard: _index_at(places[shard.index_name]),
            self.settings.index,
            write=staging.open,
            scratch=staging.path,
        )
        if derived:
            staging.about["derived"] = list(derived)
        return [replace(one.receipt, built=built) for built, one in zip(named, whole, strict=True)]

    def _datasets(
        self, found: Sequence[Mapping[int, Found]], before: Sequence[frozenset[str]]
    ) -> tuple[PackedDataset, ...]:
        """The datasets as they are planned, against what was there `before`."""
        return tuple(
            PackedDataset(
                split=split.split,
                path=split.path,
                name=split.dataset,
                samples=split.samples,
                shards=len(split.shards),
                reused=len(old),
                shard_bytes=sum(shard.shard_bytes for shard in split.shards),
                payload_bytes=sum(shard.payload_bytes for shard in split.shards),
                new_bytes=_unbuilt_bytes(split, old) if its else None,
            )
            for split, old, its in zip(self.plan.splits, found, before, strict=True)
        )

    def _check_space(self, jobs: Sequence[Job]) -> None:
        needed, free = sum(job.shard.shard_bytes for job in jobs), disk.free_bytes(self.target)
        if needed > free:
            raise NoSpace(
                f"{self.target} needs {format_bytes(needed)} and its disk has {format_bytes(free)} free",
                hint="Free some space or name another destination",
                subject=str(self.target),
            )


def _index_at(path: Path) -> Index:
    return Index.from_buffer(map_file(path))


def _parent_of(split: PlannedSplit, shards: Sequence[BuiltShard]) -> str | None:
    """The parent's digest as the manifest records it: of a dataset that has all its shards from there, its parent's.

    So nothing changes where nothing has changed, also when a dataset is packed over with itself as the parent.
    """
    if split.parent is None:
        return None
    same = tuple(built.shard.sha256 for built in shards) == split.parent.shards
    return split.parent.inherited if same else split.parent.digest


def _committed(
    dataset: PackedDataset, found: Mapping[int, Found], before: frozenset[str], staging: Staging
) -> PackedDataset:
    """A dataset as it was committed, against what the version before had."""
    assert staging.manifest is not None
    manifest, contents = staging.manifest, staging.manifest.contents
    same = (manifest.member(shard.name).sha256 in before for shard in contents.shards)
    return replace(
        dataset,
        reused=sum(stays or ordinal in found for ordinal, stays in enumerate(same)),
        new_bytes=sum(one.bytes for one in manifest.members if one.sha256 not in before) if before else None,
        content_digest=contents.content_digest,
        layout_digest=contents.layout_digest,
        manifest_digest=manifest.digest,
    )


def _unbuilt_bytes(split: PlannedSplit, found: Mapping[int, Found]) -> int:
    return sum(shard.shard_bytes for ordinal, shard in enumerate(split.shards) if ordinal not in found)


def _unshared(missing: int, shards: int) -> Caution:
    said = f"{missing} of {format_number_of(shards, 'shard')} are built here, and were not by a part"
    hint = "A part has not run to its end, or its source was too new to be known again"
    return Caution(said, hint=f"{hint}; parts count from 0: --part 0/2 and --part 1/2")
