"""The settings name up to three tiers, and a slip in one of them is said before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.tier.tiers import TierOptions, Tiers, check_tier

CACHE = TierOptions("/nvme/x", "500GB")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("warm", CACHE, "there is no tier warm"),
        ("cache", TierOptions(budget="1GB"), "tiers.cache has no place"),
        ("hot", TierOptions("/shared/x"), "tiers.hot has no budget"),
        ("cold", TierOptions("s3://b/x", "1TB"), "tiers.cold has a budget"),
        ("cache", TierOptions("s3://b/x", "1TB"), "only cold may be in object storage"),
    ],
)
def test_what_is_no_tier_is_refused(name: str, options: TierOptions, said: str) -> None:
    """With what to write instead."""
    with pytest.raises(UsageError, match=said) as refused:
        check_tier(name, options)

    assert refused.value.hint


def test_a_budget_is_a_size() -> None:
    """In the forms that all sizes have; 0 is one."""
    with pytest.raises(UsageError, match="is not a size"):
        TierOptions("/x", "much")
    check_tier("hot", TierOptions("/x", 0))


def test_the_warmest_comes_first(tmp_path: Path) -> None:
    """Pools have the place and the budget of the settings; cold is none."""
    tiers = Tiers({"cold": TierOptions("s3://b/x"), "hot": TierOptions("shared", "2TB"), "cache": CACHE})

    pools = list(tiers.pools())

    assert [(pool.name, pool.budget_bytes) for pool in pools] == [("cache", 500 * 10**9), ("hot", 2 * 10**12)]
    assert pools[1].root == Path.cwd() / "shared"
    assert not pools[1].root.exists()
    for name, said in (("cold", "cold holds all there is"), ("warm", "no tier warm")):
        with pytest.raises(UsageError, match=said):
            tiers.pool(name)
    with pytest.raises(UsageError, match="the settings have no tier hot"):
        Tiers({"cache": CACHE}).pool("hot")
    with pytest.raises(UsageError, match="the settings name no tier"):
        list(Tiers({"cold": TierOptions("/x")}).pools())


def test_a_name_lies_below_cold_and_a_place_is_a_place() -> None:
    """What could be both is a name."""
    tiers = Tiers({"cold": TierOptions("s3://b/x/")})

    found = [tiers.place_of(word) for word in ("chat", "chat/train", "./chat", "/d/chat", "s3://c/chat")]

    assert found == ["s3://b/x/chat", "s3://b/x/chat/train", "./chat", "/d/chat", "s3://c/chat"]
    with pytest.raises(UsageError, match="chat is a name, and the settings have no cold tier"):
        Tiers({}).place_of("chat")
