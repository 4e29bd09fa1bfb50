"""bring: a version that DVC records, to a place where neither git nor dvc is: `datakit sync --from`.

The plan is the plan of `sync`, with a remote of DVC as its source (the local cache is not asked); it runs by the same
engine, with the same verification, budgets, resumption and exit codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from datakit.errors import IntegrityError, UsageError
from datakit.events import OnEvent, ignore
from datakit.storage.access import StoreOptions
from datakit.storage.sync import SyncPlan, SyncResult, SyncSettings, plan_sync, run_sync
from datakit.version.dvc import LOCK_NAME
from datakit.version.project import Pointer
from datakit.version.tree import TreeStore, open_tree


def parse_pointer(text: str) -> Pointer:
    """A pointer as `--from` and `--to` take it.

    Raises:
        UsageError: The text is none.
    """
    pointer = Pointer.parse(text)
    if pointer is None:
        hint = "Write dvc.lock:STAGE, dvc.lock:STAGE:OUT or FILE.dvc"
        file, lock, stage = text.partition(".lock:")
        if lock:
            renamed = f"{file}/{LOCK_NAME}"
            hint = f"The file must be called {LOCK_NAME}: copy it to {renamed} and name {renamed}:{stage}"
        raise UsageError(f"{text} does not name a version", hint=hint, subject=text)
    return pointer


def plan_bring(
    pointer: Pointer,
    destination: str | Path,
    *,
    remote: str | None = None,
    settings: SyncSettings | None = None,
    stores: Mapping[str, StoreOptions] | None = None,
    budget: str | int | None = None,
    delete: bool = False,
    max_delete: int | None = None,
    repair: bool = False,
    max_requests: int | None = None,
    max_cost: float | None = None,
) -> SyncPlan:
    """Look at a version and a place, and say what has to move.

    Args:
        pointer: The version.
        destination: A path or URL.
        remote: Name of a remote of the project, or its URL; its default when None.
        settings: How, as for `sync`.
        stores: Named stores.
        budget: Bytes that the destination may hold in the end.
        delete: Delete what the destination holds besides.
        max_delete: How many files that may be at most.
        repair: Look at the bytes that the destination holds.
        max_requests: Requests that may be made from now on, tries that fail included.
        max_cost: What they and the bytes that leave a store may cost.

    Raises:
        NotFound: The pointer's file, stage or output, or the remote, or an object there, is not there.
        IntegrityError: An object is not what its md5 says, or a manifest and DVC's list contradict each other.
        Refused, NoSpace, NotAllowed, StoreUnavailable: As `sync`.
    """
    origin = open_tree(pointer, remote=remote, stores=stores)
    plan = plan_sync(
        origin,
        destination,
        settings=settings,
        stores=stores,
        budget=budget,
        delete=delete,
        max_delete=max_delete,
        repair=repair,
        max_requests=max_requests,
        max_cost=max_cost,
    )
    assert isinstance(origin.store, TreeStore)
    if plan.held.manifest is not None:
        origin.store.check(plan.held.manifest, folder=origin.prefix)
    return plan


def run_bring(plan: SyncPlan, *, on_event: OnEvent = ignore) -> SyncResult:
    """Do what the plan of `plan_bring` says.

    Raises:
        IntegrityError: Names the object of the remote whose bytes are wrong; otherwise, and all others, as `run_sync`.
    """
    try:
        return run_sync(plan, on_event=on_event)
    except IntegrityError as error:
        assert isinstance(plan.origin.store, TreeStore)
        raise plan.origin.store.blame(error) from error
