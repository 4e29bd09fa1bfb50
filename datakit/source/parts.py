"""parts: what to say of the parts that records have: too few here and there, or so many that they are of others too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from datakit.data.stems import KeyRule
from datakit.events import Caution, Note
from datakit.source.columns import having, tally
from datakit.source.records import KeyColumn
from datakit.units import agree, format_count, format_number_of

_RENAME = "give each a name that differs before the dot of its extension"
_APART: Mapping[KeyRule, str] = {
    "first-dot": "cut names elsewhere: --key known --escape percent",
    "last-dot": _RENAME,
    "known": _RENAME,
}
"""What makes samples of their own of files whose names begin alike, by the rule that cut them."""

_NAMED = 3
"""Records that lack a part and are named."""

MOST_PARTS = 64
"""Parts of a sample beyond which it is asked whether one key has taken in files that are samples of their own: a camera
rig or a set of masks has tens, and names that differ behind the cut come by the hundred."""


def lacking(kinds: Sequence[Sequence[str]], kind_of: npt.NDArray[np.int32], keys: KeyColumn) -> list[Note | Caution]:
    """What to say where some records lack a part that at least half of them have: how many, and the first of them.

    Args:
        kinds: Which parts there are together.
        kind_of: Which of them each record has.
        keys: The records' names.
    """
    rare = []
    num_of = tally(kind_of, len(kinds))
    for part in sorted({part for parts in kinds for part in parts}):
        lacks = ~np.array([part in parts for parts in kinds])
        count = int(num_of[lacks].sum())
        if 0 < count <= len(keys) / 2:
            some = np.array(list(islice(having(kind_of, lacks), _NAMED)))
            first = [*keys.take(some), *(["..."] if count > _NAMED else [])]
            rare.append(f"{format_count(count)} {agree(count, 'lacks', 'lack')} {part} ({', '.join(first)})")
    return [Caution(f"of {format_number_of(len(keys), 'sample')}, {', '.join(rare)}")] if rare else []


def crowded(
    kinds: Sequence[Sequence[str]],
    kind_of: npt.NDArray[np.int32],
    keys: KeyColumn,
    *,
    rule: KeyRule,
    cut: npt.NDArray[np.bool_] | None = None,
) -> list[Caution]:
    """What to say where a sample has so many parts that its key has surely taken in files of others.

    Args:
        kinds: Which parts there are together.
        kind_of: Which of them each record has.
        keys: The records' names.
        rule: Where names are cut.
        cut: Which records have their keys from names that were cut; None for all.
    """
    if max(map(len, kinds), default=0) <= MOST_PARTS:
        return []
    sizes = np.array([len(parts) for parts in kinds], np.int64)[kind_of]
    found = np.flatnonzero(sizes > MOST_PARTS if cut is None else (sizes > MOST_PARTS) & cut)
    if not len(found):
        return []
    (first,) = keys.take(found[:1])
    said = f"sample {first} has {format_count(int(sizes[found[0]]))} parts: all files whose names begin alike"
    more = f"; {format_number_of(len(found), 'sample')} have more than {MOST_PARTS}" if len(found) > 1 else ""
    return [Caution(f"{said}{more}", hint=f"If each of them is a sample, {_APART[rule]}")]
