"""source/parts: parts that records lack, where most have them."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.source.parts import lacking
from datakit.source.records import KeyColumn


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["jj"] * 6 + ["j"] * 4, ["of 10 samples, 4 lack json (k6, k7, k8, ...)"]),
        (["j", "s"] + ["jst"] + ["jj"] * 7, ["of 10 samples, 1 lacks jpg (k1), 3 lack json (k0, k1, k2)"]),
        (["j"] * 6 + ["s"] * 4, ["of 10 samples, 4 lack jpg (k6, k7, k8, ...)"]),
        (["j"] * 5 + ["s"] * 5, ["of 10 samples, 5 lack jpg (k5, k6, k7, ...), 5 lack seg (k0, k1, k2, ...)"]),
        (["jj"] * 10, []),
        ([], []),
    ],
)
def test_parts_that_most_records_have_are_missed_where_they_lack(kinds: list[str], said: list[str]) -> None:
    """By the first names; what only a few have is theirs."""
    parts = {"j": ["jpg"], "jj": ["jpg", "json"], "s": ["seg"], "jst": ["jpg", "seg", "txt"]}
    order = list(dict.fromkeys(kinds))
    kind_of = np.array([order.index(kind) for kind in kinds], np.int32)
    keys = KeyColumn.of(f"k{number}" for number in range(len(kinds)))

    assert [remark.message for remark in lacking([parts[kind] for kind in order], kind_of, keys)] == said
