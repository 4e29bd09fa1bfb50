"""receipts: what pack remembers beside a destination, so that no shard is built or hashed twice.

A task is one shard to be; its name is a digest of everything that decides the shard's bytes. `.<dest>.pack/` holds
`built/<task>.tar`, its index and `<task>.json`, the receipt, which is written last: a shard counts as built when its
receipt says so and both files still have the inode, size and time that it names. A killed pack, and `--part I/N`, leave
such shards for the next pack of the same place. After a commit its receipts stay in `known.json`, so that the next pack
knows the standing shards without reading them; the shards themselves stay only where somebody removes the dataset
before each run, as DVC does with the outs of a stage, and then as hard links that cost no space of their own until the
dataset changes. Without them, removing the dataset frees its bytes.

A receipt of files that were written less than two seconds before they were listed does not outlive its pack: a clock
tick later they may hold other bytes under the same time (what git calls racy, git/Documentation/technical/racy-git).

What lies there is believed when it is whole (see `seal`) and of the right types. All else is as if it were not there:
the work is done again, and what was in its place is replaced.

What it does not do: decide which shards a dataset has (`planning`), commit (`build`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from datakit.data.digest import FileEntry
from datakit.data.index import index_name
from datakit.errors import DatakitError, Refused
from datakit.pack import seal
from datakit.pack.writing import BuiltShard, Totals, sync_shard
from datakit.storage import disk
from datakit.storage.aside import make_ignored, remove_bare
from datakit.storage.links import link
from datakit.storage.stamp import Stamp

TASK_FORMAT = 1
"""Raised when the same samples come to other bytes."""

KNOWN = "known.json"
PLAN = "plan.json"


def task_of(
    *,
    dataset: str,
    bundle: int | None,
    pieces: Iterable[tuple[Sequence[str], Iterable[bytes]]],
) -> str:
    """The name of a task: a digest of what decides a shard's bytes, 64 hex digits.

    Args:
        dataset: Name of the dataset, which the shard's name carries.
        bundle: Lines that share a member, or None.
        pieces: The samples in order, some at a time, however many: their keys, and 16 bytes each that tell the content.
    """
    keys, contents, count = hashlib.sha256(), hashlib.sha256(), 0
    for some, signatures in pieces:
        keys.update("".join(f"{key}\0" for key in some).encode())
        contents.update(b"".join(signatures))
        count += len(some)
    digest = hashlib.sha256(f"datakit shard {TASK_FORMAT}\n{dataset}\n{bundle or 1}\n{count}\n".encode())
    digest.update(keys.digest() + contents.digest())
    return digest.hexdigest()


def _stamp(path: Path) -> Stamp | None:
    """That of a file, or None where there is none."""
    try:
        return Stamp.of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A shard that was built, and how its two files looked then.

    Attributes:
        task: What was built.
        built: The entries of shard and index, and what is in them.
        shard: How the shard's file looks.
        index: How that of its index does.
        settled: Whether the task's name will still tell the content of its records when this pack is over.
        versions: Of the files whose index said so, as a digest (see `planning`). Machines may have copies of their own,
            so no task is named by it; what was built of another version is not taken.
    """

    task: str
    built: BuiltShard
    shard: Stamp
    index: Stamp
    settled: bool
    versions: str

    @classmethod
    def of(cls, task: str, built: BuiltShard, path: Path, *, settled: bool, versions: str = "") -> Receipt | None:
        """The receipt of a shard whose files at `path` are known to be whole; None where one is gone again."""
        shard, index = _stamp(path), _stamp(Path(index_name(str(path))))
        if shard is None or index is None:
            return None
        return cls(task, built, shard, index, settled, versions)

    def fits(self, path: Path) -> bool:
        """Whether the files at `path` are those that this was written for, untouched."""
        return self.shard == _stamp(path) and self.index == _stamp(Path(index_name(str(path))))

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        totals = self.built.totals
        return {
            "task": self.task,
            "shard": self.built.shard.to_json(),
            "index": self.built.index.to_json(),
            "samples": totals.samples,
            "payload_bytes": totals.payload_bytes,
            "parts": dict(totals.parts),
            "terms": f"{totals.terms:x}",
            "tokens": totals.tokens,
            "stat": [list(self.shard), list(self.index)],
            "settled": self.settled,
            "versions": self.versions,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """As it was written, or None for anything else: a receipt that cannot be read proves nothing."""
        try:
            texts = dict.fromkeys(("task", "terms", "versions"), str)
            if not _is_typed(value, samples=int, payload_bytes=int, parts=dict, settled=bool, **texts):
                return None
            tokens, parts, stat = value["tokens"], value["parts"], value["stat"]
            counts = [*parts.values(), *stat[0], *stat[1], *([] if tokens is None else [tokens])]
            if any(type(count) is not int for count in counts):
                return None
            totals = Totals(value["samples"], value["payload_bytes"], parts, int(value["terms"], 16), tokens)
            built = BuiltShard(FileEntry.from_json(value["shard"]), FileEntry.from_json(value["index"]), totals)
            shard, index = (Stamp(*numbers) for numbers in stat)
            return cls(value["task"], built, shard, index, value["settled"], value["versions"])
        except (KeyError, IndexError, TypeError, ValueError, DatakitError):
            return None


def _is_typed(value: Any, **kinds: type) -> bool:
    """Whether these fields are of these very types (a bool is no int)."""
    return isinstance(value, dict) and all(type(value[name]) is kind for name, kind in kinds.items())


@dataclass(frozen=True, slots=True)
class Memory:
    """What pack remembers of one destination.

    Attributes:
        root: `.<dest>.pack`, beside the destination; Git leaves it alone.
    """

    root: Path

    @classmethod
    def beside(cls, dest: Path) -> Memory:
        """That of a destination; nothing is made until there is something to remember."""
        return cls(disk.beside(dest, f".{disk.stem(dest.absolute().name)}.pack"))

    @property
    def lock(self) -> Path:
        """Held by the one pack that plans, builds and commits here."""
        return self.root.with_name(f"{self.root.name}.lock")

    def part_lock(self, part: tuple[int, int]) -> Path:
        """Held by the one that builds this share."""
        return self.root.with_name(f"{self.root.name}.{part[0]}-of-{part[1]}.lock")

    @contextlib.contextmanager
    def workroom(self, name: str) -> Iterator[Path]:
        """A directory for shards in the making, which the next holder of the same lock clears as well."""
        room = self.root / name
        make_ignored(self.root)
        disk.remove(room)
        disk.make_dirs(room)
        try:
            yield room
        finally:
            disk.remove(room)
            self.tidy()

    def tidy(self) -> None:
        """Remove what is empty."""
        for path in (self._built, self._kept, self.root):
            remove_bare(path)

    def settle(self, task: str, built: BuiltShard, path: Path, *, settled: bool, versions: str = "") -> Receipt:
        """Make a shard that `write_shard` wrote to `path` one that survives a kill; it moves to its place in `built`.

        Raises:
            NoSpace: The disk is full.
        """
        sync_shard(path)
        target = self.path_of(task)
        with disk.at_door(target):
            self._make(self._built)
            for path_of in (target, Path(index_name(str(target)))):
                seal.clear(path_of)
            os.replace(index_name(str(path)), index_name(str(target)))
            os.replace(path, target)
            receipt = Receipt.of(task, built, target, settled=settled, versions=versions)
            assert receipt is not None
            # not synced: one that a power cut swallows is built again, one that it cuts in two is not believed
            seal.write(self._built / f"{task}.json", receipt.to_json(), sync=False)
        return receipt

    def path_of(self, task: str) -> Path:
        """Where a built shard waits for its commit."""
        return self._built / f"{task}.tar"

    def built(self, task: str, *, versions: str = "") -> tuple[Receipt, Path] | None:
        """A shard of this task and these versions that a pack before has built and nobody has touched since."""
        receipt = Receipt.from_json(seal.read(self._built / f"{task}.json"))
        path = self.path_of(task)
        if receipt is None or not receipt.settled or (receipt.task, receipt.versions) != (task, versions):
            return None
        return (receipt, path) if receipt.fits(path) else None

    def kept(self, receipt: Receipt) -> Path | None:
        """The hard link that was kept of a committed shard, if nobody has touched it."""
        path = self._kept / f"{receipt.built.shard.sha256}.tar"
        return path if receipt.fits(path) else None

    def known(self) -> dict[str, Receipt]:
        """Receipts of the last commit here, by task."""
        values = seal.read(self.root / KNOWN)
        receipts = [Receipt.from_json(value) for value in values] if isinstance(values, list) else []
        return {receipt.task: receipt for receipt in receipts if receipt is not None and receipt.settled}

    def plan(self) -> str | None:
        """Digest of the plan that the shares built so far belong to."""
        value = seal.read(self.root / PLAN)
        return value if isinstance(value, str) else None

    def agree(self, plan: str, *, dest: Path) -> None:
        """Join the shares of a plan, or begin them.

        Raises:
            Refused: The shares built so far belong to another plan.
        """
        self.begun(plan, dest=dest, who="this part")
        self._make(self.root)
        seal.write(self.root / PLAN, plan)

    def begun(self, plan: str, *, dest: Path, who: str = "this pack") -> bool:
        """Whether shares of a plan were built and wait for its commit.

        Args:
            plan: Its digest.
            dest: The destination.
            who: What asks, as the message names it.

        Raises:
            Refused: The shares built so far belong to another plan, whose commit would throw them away.
        """
        earlier = self.plan()
        if earlier is not None and earlier != plan:
            hint = "Give all parts, and the commit, the same source and settings"
            raise Refused(
                f"{who} plans {plan[:16]}, the parts before it planned {earlier[:16]}: the source or the settings "
                f"have changed in between",
                hint=f"{hint}; or begin anew, without what they built: rm -r {shlex.quote(str(self.root))}",
                subject=str(dest),
            )
        return earlier is not None

    def forget_built(self, tasks: Iterable[str]) -> None:
        """Remove built shards, receipt first."""
        for task in tasks:
            for name in (f"{task}.json", f"{task}.tar", index_name(f"{task}.tar")):
                disk.remove(self._built / name)

    def forget(self, task: str) -> None:
        """Forget a shard that is not what its receipt says, wherever it lies: it is built again, or read before."""
        self.forget_built([task])
        if task in (known := self.known()):
            with disk.at_door(self.root):
                seal.write(self.root / KNOWN, [each.to_json() for each in known.values() if each.task != task])

    def remember(self, receipts: Sequence[Receipt], *, at: Mapping[str, Path], links: bool) -> None:
        """After a commit: its receipts stay, and links to its shards where asked for; all else goes.

        Args:
            receipts: One for each shard that is committed.
            at: Where each shard stands now, by task.
            links: Whether to keep hard links to the shards, for a destination that is removed before the next pack.
        """
        with disk.at_door(self.root):
            self._make(self.root)
            seal.write(self.root / KNOWN, [receipt.to_json() for receipt in receipts])
            wanted = {f"{receipt.built.shard.sha256}.tar": at[receipt.task] for receipt in receipts} if links else {}
            self._keep(wanted)
            disk.remove(self.root / PLAN)
            disk.sweep(self.root)  # what a kill left of `known.json` or `plan.json` in the making
            for room in (self._built, *self.root.glob("work-*-of-*")):  # of shares that were killed and not run again
                disk.remove(room)

    def _keep(self, wanted: Mapping[str, Path]) -> None:
        names = {name for shard in wanted for name in (shard, index_name(shard))}
        if self._kept.is_dir():
            for name in sorted(set(os.listdir(self._kept)) - names):
                disk.remove(self._kept / name)
        else:
            disk.remove(self._kept)
        for shard, path in wanted.items():
            self._make(self._kept)
            for name, there in ((shard, path), (index_name(shard), Path(index_name(str(path))))):
                kept = self._kept / name
                if _stamp(kept) != _stamp(there):
                    disk.remove(kept)
                    link(there, kept)
        self.tidy()

    def _make(self, folder: Path) -> None:
        make_ignored(self.root)
        _make_room(folder)

    @property
    def _built(self) -> Path:
        return self.root / "built"

    @property
    def _kept(self) -> Path:
        return self.root / "kept"


def _make_room(path: Path) -> None:
    """Make a directory of ours, whatever lies there."""
    try:
        disk.make_dirs(path)
    except Refused:  # a file is in the way
        disk.remove(path)
        disk.make_dirs(path)
