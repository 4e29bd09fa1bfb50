"""storage/estimate: a plan tells the very requests and bytes that its run then makes, also where it must look twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit import UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.counts import RequestCounts
from datakit.storage.sync import SyncPlan, plan_sync, run_sync
from datakit.version.bring import parse_pointer, plan_bring
from datakit.version.publish import plan_publish, run_publish
from support.commits import make_commit, noise
from support.faulty import FaultyServer

LARGE = 17 * 2**20
"""Two parts."""


def options_of(faulty: FaultyServer, provider: str | None) -> StoreOptions:
    return StoreOptions(
        url=faulty.url,
        endpoint_url=faulty.endpoint,
        region="us-east-1",
        access_key_id=faulty.env["AWS_ACCESS_KEY_ID"],
        secret_access_key=faulty.env["AWS_SECRET_ACCESS_KEY"],
        provider=provider,
        virtual_hosted=False,
        get_per_10k=1.0,
        put_per_10k=1.0,
        egress_per_gb=1.0,
    )


def asked(plan: SyncPlan) -> RequestCounts:
    return plan.origin.store.requests + plan.target.store.requests


@pytest.mark.parametrize("provider", [None, "gcs"])
def test_a_plan_tells_what_its_run_asks_for(faulty: FaultyServer, tmp_path: Path, provider: str | None) -> None:
    """Up, where the provider's tags are none of bytes and conditions may not be kept, and down again."""
    faulty.opaque_tags = provider == "gcs"
    stores = {"s": options_of(faulty, provider)}
    make_commit(tmp_path / "ds", {"a": noise(1000), "b": noise(LARGE), "c": b""})

    up = plan_sync(tmp_path / "ds", f"{faulty.url}/ds", stores=stores)
    before = asked(up)
    run_sync(up)
    went_up = asked(up) - before
    down = plan_sync(f"{faulty.url}/ds", tmp_path / "copy", stores=stores)
    before = asked(down)
    run_sync(down)
    came_down = asked(down) - before

    manifest_bytes = (tmp_path / "ds" / "manifest.json").stat().st_size
    (told_up,), (told_down,) = up.charges, down.charges
    both = {"bytes_out": manifest_bytes, "bytes_in": manifest_bytes if provider == "gcs" else 0}
    assert told_up.requests + RequestCounts(**both) == went_up
    assert told_down.requests == came_down
    assert up.requests == told_up.requests.total
    assert (told_up.requests.bytes_in > LARGE) == (provider == "gcs")


def test_a_version_that_dvc_records_is_brought_within_a_bound_on_money(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the prices of the remote that it comes from; where they are not known, that is said."""
    for name, value in faulty.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "raw").write_bytes(noise(1000))
    run_publish(plan_publish(tmp_path / "raw", parse_pointer(str(tmp_path / "raw.dvc")), remote=f"{faulty.url}/dvc"))
    where = {"remote": f"{faulty.url}/dvc", "max_cost": 1.0}
    pointer = parse_pointer(str(tmp_path / "raw.dvc"))

    plan = plan_bring(pointer, tmp_path / "copy", stores={"s": options_of(faulty, None)}, **where)  # type: ignore[arg-type] # a dict of both
    with pytest.raises(UsageError, match="--max-cost cannot be kept"):
        plan_bring(pointer, tmp_path / "copy", **where)  # type: ignore[arg-type] # a dict of both
    run_sync(plan)

    assert [charge.store for charge in plan.charges] == [faulty.url]
    assert (tmp_path / "copy").read_bytes() == noise(1000)
